"""The courier: pauses that grow, reports that are rare, refusals that end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, SEEN, FakeClock, MemoryServer, MemoryTransport
from fake_server import wait_for
from test_client_outbox import keeper, outbox, segment

from assay.server.client.agent import ClientAgent
from assay.server.client.outbox import Item, RewardPatch, Rewards
from assay.server.client.transport import (
    Courier,
    ModelRefused,
    Notice,
    Refused,
    RefusedError,
    SendAgain,
    TransportError,
)
from assay.server.errors import Reason


class Steady:
    """Draws the longest pause, always."""

    def random(self) -> float:
        return 1.0


def pauses(
    errors: Sequence[Exception], lasts: Callable[[int], float] | None = None, **options: Any
) -> tuple[list[float], Courier, list[str]]:
    """Return the pauses after sessions that end with these errors, one after the other."""
    clock, reports, waited = FakeClock(), [], []
    queue = list(errors)

    class Ending(MemoryTransport):
        def open(self) -> int:
            if lasts is None:
                raise queue.pop(0)
            self.opened += 1
            return 0

        def poll(self, seconds: float) -> Any:
            assert lasts is not None
            clock.now += lasts(self.opened)
            raise queue.pop(0)

    courier = Courier(
        outbox(10, "block"),
        keeper(),
        Ending(MemoryServer()),
        report=reports.append,
        rng=Steady(),  # type: ignore[arg-type]
        clock=clock,
        **options,
    )

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            clock.now += timeout or 0.0
            if not queue:
                self.set()
            return self.is_set()

    courier._stop = Waits()
    courier._run()
    return waited, courier, reports


def test_a_server_that_is_away_is_asked_less_and_less():
    waited, courier, reports = pauses([TransportError("away")] * 10)
    assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10])
    assert courier.failures == 10
    assert len(reports) == 1 and "cannot be reached" in reports[0]


def test_a_connection_that_worked_is_opened_again_at_once():
    waited, _, reports = pauses([TransportError("cut")] * 4, lambda n: 1.0)
    assert waited == pytest.approx([0.1] * 4)
    assert reports == []


def test_two_processes_with_one_name_do_not_fight_for_it():
    fenced = RefusedError(Reason.FENCED, "session 2 has taken over")
    # Each time it gets the session for three seconds, until the other one takes it again.
    waited, courier, reports = pauses([fenced] * 8, lambda n: 3.0)
    assert waited == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300])
    assert "taken over" in courier.trouble
    # About once a minute: after 0, 5+3, ... seconds, and so on.
    assert 4 <= len(reports) <= 7
    # It had the session for long: the next fence begins again.
    waited, _, _ = pauses([fenced] * 4, lambda n: 100.0 if n == 3 else 1.0)
    assert waited == pytest.approx([5, 10, 5, 10])


@pytest.mark.parametrize(
    "reason",
    [
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.SPEC_CONFLICT,
        Reason.BAD_SPEC,
        Reason.UNSUPPORTED_PROTOCOL,
        Reason.POLICY_DELETED,
    ],
)
def test_what_a_person_has_to_mend_is_reported_once_a_minute_and_tried_slowly(reason):
    waited, courier, reports = pauses([RefusedError(reason, "no")] * 8)
    assert waited == pytest.approx([5, 10, 20, 40, 60, 60, 60, 60])
    assert courier.trouble == f"{reason.name}: no"
    # At 0, 75, 135, 195 and 255 seconds of 315.
    assert len(reports) == 5


def test_a_server_that_takes_nothing_now_is_asked_less_and_less_though_it_answers():
    full = RefusedError(Reason.RESOURCE_EXHAUSTED, "the disk is full")
    waited, _, _ = pauses([full] * 5, lambda n: 0.05)
    assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])


def test_a_policy_that_is_paused_is_asked_every_few_seconds():
    paused = RefusedError(Reason.POLICY_PAUSED, "the policy is paused")
    waited, courier, reports = pauses([paused] * 6, lambda n: 0.05)
    assert waited == pytest.approx([1, 2, 4, 5, 5, 5])
    assert courier.trouble == "POLICY_PAUSED: the policy is paused" and len(reports) == 1


def test_a_report_that_fails_does_no_harm():
    def explode(message: str) -> None:
        raise RuntimeError("a warning made an error")

    box, server = outbox(10, "block"), MemoryServer()
    transport = MemoryTransport(server)
    transport.events = [Notice(Reason.PERMISSION_DENIED, "no models")]
    courier = Courier(box, keeper(), transport, poll_seconds=0.001, report=explode)
    courier.start()
    wait_for(lambda: "RuntimeError" in courier.last_failure)
    box.offer(segment(0))
    wait_for(lambda: server.mark == 1)
    assert courier.stop(10)


def test_refusals_are_counted_and_what_follows_is_sent_again():
    class Picky(MemoryTransport):
        """Refuses the second item for ever, as a server does that then misses it."""

        def send(self, seq: int, item: Item) -> None:
            self.sent.append(seq)
            if seq == 2:
                self.events += [Refused(2, Reason.NOT_FINITE, "holds nan"), SendAgain(3)]

        def poll(self, seconds: float) -> Any:
            events, self.events = self.events, []
            return events

    box = outbox(100, "block")
    transport = Picky(MemoryServer())
    transport.sent = []
    for i in range(5):
        box.offer(segment(2 * i, 2))
    reports: list[str] = []
    courier = Courier(box, keeper(), transport, poll_seconds=0.001, report=reports.append)
    courier.start()
    wait_for(lambda: len(transport.sent) >= 8)
    assert transport.sent == [1, 2, 3, 4, 5, 3, 4, 5]
    assert (box.refused_steps, box.held_steps) == (2, 8)
    assert courier.refusals == {"NOT_FINITE": 1} and "holds nan" in courier.last_refusal
    assert len(reports) == 1 and "refused 2 steps" in reports[0]
    courier.stop(0.0)


def test_a_model_that_was_not_fetched_is_counted_with_the_others():
    keeps = keeper()
    transport = MemoryTransport(MemoryServer())
    transport.events = [ModelRefused("too large")]
    courier = Courier(outbox(10, "block"), keeps, transport, poll_seconds=0.001)
    courier.start()
    wait_for(lambda: keeps.rejected == 1)
    assert keeps.last_rejection == "too large"
    courier.stop(1.0)


def test_stop_does_not_wait_for_a_server_that_does_not_answer():
    entered, released = threading.Event(), threading.Event()

    class Stuck(MemoryTransport):
        def open(self) -> int:
            entered.set()
            released.wait(30)
            raise TransportError("aborted")

        def abort(self) -> None:
            released.set()

    box = outbox(10, "block")
    box.offer(segment(0))
    courier = Courier(box, keeper(), Stuck(MemoryServer()))
    courier.start()
    assert entered.wait(10)
    assert not courier.stop(0.0)
    assert released.is_set() and not courier._thread.is_alive()


def test_late_rewards_travel_together_and_two_of_one_step_are_added():
    box = outbox(100, "drop_oldest")
    box.offer(segment(0))
    for event, value in ((7, 1.0), (8, 2.0), (7, 0.5)):
        box.offer(RewardPatch(event, value))
    box.offer(segment(1))
    box.offer(RewardPatch(9, 9e11))
    box.offer(RewardPatch(9, 9e11))  # together they are more than the server takes
    items = []
    while (numbered := box.take()) is not None:
        items.append(numbered)
    assert [seq for seq, _ in items] == [1, 2, 3, 4, 5]
    assert items[1][1] == Rewards({7: 1.5, 8: 2.0})
    assert items[3][1] == items[4][1] == Rewards({9: 9e11})
    assert box.take() is None and not box.empty
    box.acknowledge(5)
    assert box.empty


def test_act_takes_no_lock_that_the_network_holds():
    """Every call of the transport hangs; each of the agent's calls returns nevertheless."""
    released = threading.Event()
    inside: set[str] = set()

    class Hangs(MemoryTransport):
        def __init__(self, where: str) -> None:
            super().__init__(MemoryServer())
            self.where = where

        def _maybe(self, where: str) -> None:
            if where == self.where:
                inside.add(where)
                released.wait(60)

        def open(self) -> int:
            self._maybe("open")
            return super().open()

        def ready(self) -> bool:
            self._maybe("ready")
            return True

        def send(self, seq: int, item: Item) -> None:
            self._maybe("send")
            super().send(seq, item)

        def poll(self, seconds: float) -> Any:
            self._maybe("poll")
            return super().poll(seconds)

    couriers = []
    try:
        for where in ("open", "ready", "send", "poll"):
            client = ClientAgent(SEEN, CHOICE, 1)
            courier = Courier(client.outbox, client.keeper, Hangs(where), poll_seconds=0.001)
            couriers.append(courier)
            client.act(np.zeros(3, np.float32))
            client.end(terminated=True)
            client.flush()
            courier.start()
            wait_for(lambda where=where: where in inside, where)
            done = threading.Event()

            def use(client: ClientAgent = client, done: threading.Event = done) -> None:
                for _ in range(50):
                    client.act(np.zeros(3, np.float32))
                    client.reward(1.0)
                client.end(truncated=True, final_obs=np.zeros(3, np.float32))
                client.flush()
                client.status()
                done.set()

            threading.Thread(target=use, daemon=True).start()
            assert done.wait(20), where
    finally:
        released.set()
        for courier in couriers:
            courier.stop(0.0)
