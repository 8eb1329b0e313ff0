"""The outbox is bounded and counted; the courier loses nothing over a connection that breaks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, SEEN, MemoryServer, MemoryTransport, model
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.policies.description import describe_space
from assay.server.client.agent import ClientAgent, ClientSettings
from assay.server.client.keeper import ModelKeeper
from assay.server.client.outbox import Outbox, RewardPatch, Rewards, Segment, Step
from assay.server.client.transport import Courier, ModelArrived, ModelConfirmed


def segment(first: int, length: int = 1) -> Segment:
    row = np.zeros((1, 3), np.float32)
    steps = tuple(
        Step(row, np.array([0]), np.array([0]), 0.0, 1, 0, first + i) for i in range(length)
    )
    return Segment(steps, 0, first)


def outbox(capacity: int, overflow: Any, seed: int = 0) -> Outbox:
    return Outbox(capacity, overflow, np.random.default_rng(seed))


def waiting(box: Outbox) -> list[int]:
    found = []
    while (numbered := box.take()) is not None:
        found.append(numbered[1].steps[0].event)
    return found


def keeper() -> ModelKeeper:
    return ModelKeeper(describe_space(SEEN), describe_space(CHOICE))


def wait_until(condition: Any, seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return bool(condition())


def test_the_oldest_goes_first():
    box = outbox(4, "drop_oldest")
    assert all(box.offer(segment(i, 2)) for i in (0, 2, 4))
    assert (box.held_steps, box.dropped_steps) == (4, 2)
    assert waiting(box) == [2, 4]


def test_what_is_under_way_is_never_dropped():
    box = outbox(4, "drop_oldest")
    box.offer(segment(0, 2))
    box.offer(segment(2, 2))
    taken = [box.take(), box.take()]
    assert [numbered[0] for numbered in taken if numbered] == [1, 2]
    assert not box.offer(segment(4, 2))  # the new one itself is what can go
    assert box.held_steps == 4 and len(box.under_way()) == 2
    box.acknowledge(1)
    assert box.offer(segment(6, 2))
    # The number of the one that was dropped was never given: the server sees no gap.
    assert box.take()[0] == 3


def test_a_blocking_outbox_refuses_when_it_is_full():
    box = outbox(2, "block")
    assert box.offer(segment(0, 2)) and not box.has_room(1)
    assert not box.offer(segment(2, 1))
    assert (box.dropped_steps, box.held_steps) == (1, 2)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            box.take()
            box.acknowledge(1)

    assert box.wait_for_room(2, 1.0, nap)
    assert len(naps) == 3
    box.offer(segment(4, 2))
    assert not box.wait_for_room(1, 0.01, lambda seconds: None)


def test_a_reservoir_keeps_an_even_sample():
    kept = np.zeros(40)
    rounds = 800
    for seed in range(rounds):
        box = outbox(8, "reservoir", seed)
        for i in range(40):
            box.offer(segment(i))
        events = waiting(box)
        assert len(events) == 8 and box.dropped_steps == 32
        kept[events] += 1
    # Each is kept with probability 8 / 40; four standard errors of the share are 0.057.
    np.testing.assert_allclose(kept / rounds, 0.2, atol=0.057)


def test_rewards_without_steps_are_bounded_as_well():
    for overflow in ("drop_oldest", "reservoir", "block"):
        box = outbox(5, overflow)
        for i in range(100):
            box.offer(RewardPatch(i, 1.0))
        count = 0
        while box.take() is not None:
            count += 1
        assert count <= 10


@settings(max_examples=75, deadline=None)
@given(
    st.sampled_from(["block", "drop_oldest", "reservoir"]),
    st.lists(st.tuples(st.sampled_from("otax"), st.integers(1, 4)), max_size=80),
)
def test_whatever_happens_it_adds_up_and_stays_bounded(overflow, doings):
    box = outbox(6, overflow)
    event = 0
    sent: list[int] = []
    for doing, number in doings:
        if doing == "o":
            box.offer(segment(event, number))
            event += number
        elif doing == "t":
            numbered = box.take()
            if numbered is not None:
                sent += [step.event for step in numbered[1].steps]
        elif box.under_way():
            box.acknowledge(box.under_way()[0][0])
        held = [s for _, item in box.under_way() for s in item.steps]
        assert len(held) <= box.held_steps <= 6
        assert box.offered_steps == event
    assert sent == sorted(set(sent)) or overflow == "reservoir"
    assert len(sent) == len(set(sent))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_or_doubled_over_a_connection_that_breaks(seed):
    box, server = outbox(1000, "drop_oldest"), MemoryServer()
    transport = MemoryTransport(server, seed, faults=0.15)
    courier = Courier(box, keeper(), transport, poll_seconds=0.0005, retry_seconds=0.0005)
    courier.start()
    for i in range(120):
        box.offer(segment(2 * i, 2))
        if i % 7 == 0:
            box.offer(RewardPatch(2 * i, 1.0))
    assert courier.stop(30)
    events = [step.event for item in server.items.values() for step in item.steps]
    assert events == list(range(240))
    late = [item.by_event for item in server.items.values() if isinstance(item, Rewards)]
    assert [event for by_event in late for event in by_event] == list(range(0, 240, 14))
    assert courier.failures > 0 and transport.opened > 1
    assert server.gaps == 0


def test_a_server_that_is_away_costs_what_the_buffer_says_and_no_answer():
    server = MemoryServer()
    transport = MemoryTransport(server)
    transport.up = False
    options = ClientSettings(batch_steps=5, buffer_steps=20)
    client = ClientAgent(SEEN, CHOICE, 0, options, heuristic=lambda obs, mask: 1)
    courier = Courier(
        client.outbox, client.keeper, transport, poll_seconds=0.001, retry_seconds=0.001
    )
    courier.start()
    for _ in range(200):
        assert client.act(np.zeros(3, np.float32)) == 1
        client.reward(1.0)
        assert client.outbox.held_steps <= 20
    assert wait_until(lambda: courier.failures > 2) and courier.state != "connected"
    snapshot = model(9, prefers=2)
    transport.events = [ModelArrived(snapshot.data, snapshot.sha256)]
    transport.up = True  # it comes back, in mid-run
    assert wait_until(lambda: client.keeper.current is not None)
    assert client.act(np.zeros(3, np.float32)) == 2
    client.end(terminated=True)
    client.flush()
    assert courier.stop(20)
    kept = sum(len(item.steps) for item in server.items.values())
    assert kept == 201 - client.outbox.dropped_steps
    assert client.outbox.dropped_steps > 0


def test_events_reach_the_keeper():
    now = [0.0]
    keeps = ModelKeeper(describe_space(SEEN), describe_space(CHOICE), clock=lambda: now[0])
    server, snapshot = MemoryServer(), model(1)
    transport = MemoryTransport(server)
    transport.events = [ModelArrived(b"rubbish", "0" * 64)]
    courier = Courier(outbox(10, "block"), keeps, transport, poll_seconds=0.001)
    courier.start()
    assert wait_until(lambda: keeps.rejected == 1)
    transport.events = [ModelArrived(snapshot.data, snapshot.sha256)]
    assert wait_until(lambda: keeps.current is not None)
    now[0] = 5.0
    transport.events = [ModelConfirmed(snapshot.sha256)]
    assert wait_until(lambda: keeps.current is not None and keeps.current.fresh_at == 5.0)
    assert courier.state == "connected"
    assert courier.stop(5)
    assert courier.state != "connected"


def test_a_transport_that_raises_anything_does_not_end_the_courier():
    class Odd(MemoryTransport):
        def open(self) -> int:
            self.opened += 1
            if self.opened < 3:
                raise RuntimeError("not foreseen")
            return super().open()

        def close(self) -> None:
            super().close()
            raise OSError("even here")

    box, server = outbox(10, "block"), MemoryServer()
    courier = Courier(box, keeper(), Odd(server), poll_seconds=0.001, retry_seconds=0.001)
    courier.start()
    box.offer(segment(0))
    assert wait_until(lambda: server.mark == 1)
    assert courier.failures == 2
    courier.stop(5)


def test_with_block_the_caller_of_reward_waits_and_act_does_not(monkeypatch):
    options = ClientSettings(batch_steps=2, buffer_steps=8, overflow="block", block_seconds=0.05)
    client = ClientAgent(SEEN, CHOICE, 0, options)
    for _ in range(30):
        client.act(np.zeros(3, np.float32))
    # Nobody takes anything: what was closed and what is open are both bounded.
    assert client.outbox.held_steps <= 8
    assert client.status().dropped_steps > 0
    waits: list[int] = []

    def note(steps: int, seconds: float) -> bool:
        assert seconds == 0.05
        waits.append(steps)
        return False

    monkeypatch.setattr(client.outbox, "wait_for_room", note)
    for _ in range(12):  # more than one filling of what may stay open
        client.act(np.zeros(3, np.float32))
        assert waits == []
        if len(client._open) >= 2:
            client.reward(1.0)
            assert waits == [len(client._open)]
            waits.clear()
            client.end(terminated=True)
            assert len(waits) == 1 or len(client._open) < 2
            return
    pytest.fail("nothing stayed open")
