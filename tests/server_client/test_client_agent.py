"""The acting half: it answers from the chain, within the shield, and records what happened."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, KNOB, SEEN, FakeClock, MemoryServer, MemoryTransport, model
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import ConfigError
from assay.policies import description as arch
from assay.policies.model_file import make_snapshot
from assay.server.client.agent import ClientAgent, ClientSettings
from assay.server.client.outbox import Rewards, Segment
from assay.server.client.shield import Flag
from assay.server.client.transport import Courier, ModelArrived

OBS = np.zeros(3, np.float32)


def agent(safe: Any = 0, **options: Any) -> ClientAgent:
    names = ("heuristic", "directory", "clock", "observation", "action")
    given_ = {key: options.pop(key) for key in names if key in options}
    seen, done = given_.pop("observation", SEEN), given_.pop("action", CHOICE)
    return ClientAgent(seen, done, safe, ClientSettings(**options), **given_)


def offer(client: ClientAgent, snapshot: Any) -> bool:
    return client.keeper.offer(snapshot.data, snapshot.sha256)


def segments(client: ClientAgent) -> list[Segment]:
    client.flush()
    found = []
    while (numbered := client.outbox.take()) is not None:
        assert isinstance(numbered[1], Segment)
        found.append(numbered[1])
    return found


# ---------------------------------------------------------------------- the chain


def test_the_chain_is_model_then_last_good_then_heuristic_then_constant():
    client = agent(heuristic=lambda obs, mask: 1)
    assert client.decide(OBS)[0::2][:2] == (1, "heuristic")
    assert offer(client, model(1, prefers=2))
    decided = client.decide(OBS)
    assert (decided.action, decided.source, decided.version, decided.flags) == (2, "model", 1, 0)
    # A second model that overflows on large inputs: the one before it answers.
    assert offer(client, model(2, prefers=0, scale=3e38))
    large = np.full(3, 10.0, np.float32)
    with np.errstate(all="ignore"):
        decided = client.decide(large)
    assert (decided.action, decided.source, decided.version) == (2, "last_good", 1)
    assert decided.flags == Flag.FALLBACK
    # Nothing can be made of this observation.
    decided = client.decide(np.array([math.nan, 0, 0], np.float32))
    assert (decided.action, decided.source) == (1, "heuristic")


def test_a_heuristic_that_fails_leaves_the_constant():
    def broken(obs: Any, mask: Any) -> Any:
        raise RuntimeError("no idea")

    client = agent(safe=2, heuristic=broken)
    assert client.act(OBS) == 2
    status = client.status()
    assert status.sources == {"constant": 1}
    assert status.errors == {"RuntimeError": 1}
    for nonsense in ("left", None, [1, 2], math.nan, object()):
        odd = agent(safe=2, heuristic=lambda obs, mask, nonsense=nonsense: nonsense)
        assert odd.act(OBS) in (0, 1, 2)
        assert odd.act("rubbish") in (0, 1, 2)


def test_a_constant_that_the_mask_forbids_becomes_the_first_valid_choice_not_a_random_one():
    client = agent(safe=0, masks=True)
    decided = {client.decide(OBS, [0, 1, 1])[0] for _ in range(50)}
    assert decided == {1}
    assert client.decide(OBS, [0, 1, 1]).flags == Flag.FALLBACK | Flag.MASK


def test_a_mask_that_is_none_leaves_what_is_safe_at_any_time():
    client = agent(safe=1, masks=True, heuristic=lambda obs, mask: 2)
    for bad in ("no", [1, 0], [0.5, 1, 1], 7, np.ones((1, 3), int)):
        assert client.decide(OBS, bad)[0] == 1
    assert client.status().errors == {"BadMaskError": 5}
    assert client.decide(OBS, (True, False, True)).action == 2


anything = st.one_of(
    st.none(), st.text(max_size=3), st.floats(width=32), st.integers(),
    st.lists(st.floats(width=32), max_size=4), st.dictionaries(st.text(max_size=2), st.none()),
    st.just(np.array([math.inf, 0, 0])), st.just(np.zeros((2, 2))), st.just(object()),
    st.just(np.zeros(3, np.float32)), st.just(np.array(["a", "b", "c"])),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(anything, anything, st.booleans(), st.booleans())
def test_nothing_makes_it_raise_or_leave_the_space(obs, mask, masks, has_model):
    client = agent(safe=1, masks=masks)
    if has_model:
        space = SEEN
        if masks:
            space = spaces.Dict({"obs": SEEN, "action_mask": spaces.MultiBinary(3)})
        assert offer(client, model(observation=space, key="obs" if masks else None))
    for _ in range(2):
        action = client.act(obs, mask)
        assert isinstance(action, int) and CHOICE.contains(action)
    client.reward(obs)
    client.end(truncated=True, final_obs=obs)
    client.flush()
    while (numbered := client.outbox.take()) is not None:
        if isinstance(numbered[1], Segment):
            fields = numbered[1].fields()
            assert all(np.isfinite(x).all() for x in fields.values() if x.dtype.kind == "f")


def test_it_answers_while_the_network_thread_hangs():
    client = agent(safe=1, batch_steps=4, buffer_steps=8)
    hangs, entered = threading.Event(), threading.Event()

    class Stuck(MemoryTransport):
        def send(self, seq: int, item: Any) -> None:
            entered.set()
            hangs.wait(20)

    courier = Courier(client.outbox, client.keeper, Stuck(MemoryServer()))
    courier.start()
    for _ in range(20):
        client.act(OBS)
        client.reward(1.0)
    assert entered.wait(10)
    done = threading.Event()

    def use() -> None:
        for _ in range(100):
            client.act(OBS)
            client.reward(1.0)
        client.end(terminated=True)
        client.status()
        done.set()

    threading.Thread(target=use, daemon=True).start()
    assert done.wait(10)
    assert client.outbox.held_steps <= 8
    hangs.set()
    courier.stop(0.1)


# ---------------------------------------------------------------------- models


def test_bad_models_are_refused_and_the_one_before_is_kept():
    client = agent()
    good = model(3)
    assert offer(client, good)
    newer, other = model(4), model(4, action=spaces.Discrete(4))
    assert not client.keeper.offer(newer.data, "0" * 64)
    assert not client.keeper.offer(newer.data[:-5], newer.sha256)
    assert not offer(client, other)
    assert "action space" in client.status().last_rejection
    assert client.status().rejected_models == 3
    assert client.decide(OBS).version == 3


def test_the_last_good_model_is_found_on_the_disk_at_the_next_start(tmp_path):
    first = agent(directory=tmp_path)
    for version, prefers in ((1, 0), (2, 1), (3, 2)):
        assert offer(first, model(version, prefers=prefers))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == 2 and "000000000003" in kept[-1]
    second = agent(directory=tmp_path, safe=1)
    decided = second.decide(OBS)
    assert (decided.action, decided.source, decided.version) == (2, "last_good", 3)
    # The newest is damaged: the one before it, and if that is as well, the constant.
    newest = tmp_path / kept[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    third = agent(directory=tmp_path)
    assert third.decide(OBS).version == 2
    (tmp_path / kept[0]).write_bytes(b"")
    assert agent(directory=tmp_path, safe=1).decide(OBS).source == "constant"


def test_a_disk_that_cannot_be_written_costs_the_copy_only(tmp_path):
    place = tmp_path / "file"
    place.write_text("in the way")
    client = agent(directory=place)
    assert offer(client, model(1))
    assert client.decide(OBS).source == "model"
    assert client.keeper.disk_errors == 1


def test_models_rest_when_the_server_was_silent_too_long():
    clock = FakeClock()
    client = agent(clock=clock, model_ttl=10.0, heuristic=lambda obs, mask: 1)
    snapshot = model(1)
    offer(client, snapshot)
    assert client.decide(OBS).source == "model"
    clock.now += 10.5
    assert client.decide(OBS).source == "heuristic"
    assert not client.keeper.confirm("0" * 64)
    assert client.decide(OBS).source == "heuristic"
    assert client.keeper.confirm(snapshot.sha256)
    assert client.decide(OBS).source == "model"


def test_a_memory_is_swapped_between_episodes_only():
    client = agent()
    offer(client, model(1, memory=True))
    assert client.decide(OBS).version == 1
    offer(client, model(2, memory=True))
    assert client.decide(OBS).version == 1
    client.end(terminated=True)
    assert client.decide(OBS).version == 2
    offer(client, model(3))
    assert client.decide(OBS).version == 2
    client.end(terminated=True)
    assert client.decide(OBS).version == 3
    offer(client, model(4))
    assert client.decide(OBS).version == 4  # without memory it may change at any time


# ---------------------------------------------------------------------- modes


def test_in_the_shadow_the_heuristic_acts_and_the_model_recommends():
    client = agent(mode="shadow", heuristic=lambda obs, mask: int(obs[0]))
    client.act(OBS)
    assert client.recommendation is None
    offer(client, model(1, prefers=2))
    for wanted in (0, 1, 2, 2):
        decided = client.decide(np.array([wanted, 0, 0], np.float32))
        assert (decided.action, decided.version) == (wanted, 0)
        assert decided.flags == Flag.HEURISTIC
        assert client.recommendation == 2
    assert client.status().agreement == 0.5


def test_an_apprentice_follows_the_heuristic_first():
    client = agent(mode="apprentice", apprentice_steps=3, heuristic=lambda obs, mask: 1)
    offer(client, model(1, prefers=2))
    assert [client.act(OBS) for _ in range(5)] == [1, 1, 1, 2, 2]
    flags = np.concatenate([s.fields()["flags"] for s in segments(client)])
    assert flags.tolist() == [Flag.HEURISTIC] * 3 + [0]


# ---------------------------------------------------------------------- the shield


def test_bounds_and_rate_of_a_box():
    wanted = [np.array([5.0, 0.5])]
    client = agent(
        np.zeros(2, np.float32), action=KNOB, max_change=0.25, heuristic=lambda obs, m: wanted[0]
    )
    decided = client.decide(OBS)
    np.testing.assert_array_equal(decided.action, np.array([1.0, 0.5], np.float32))
    assert decided.flags == Flag.FALLBACK | Flag.BOUNDS
    wanted[0] = np.array([0.0, 0.4])
    decided = client.decide(OBS)
    np.testing.assert_allclose(decided.action, [0.75, 0.4])
    assert decided.flags == Flag.FALLBACK | Flag.RATE
    wanted[0] = np.array([math.nan, 0.0])
    decided = client.decide(OBS)
    assert np.isfinite(decided.action).all()
    assert client.status().shielded == 3
    np.testing.assert_allclose(segments(client)[0].fields()["action"][1], [0.75, 0.4])


def test_choices_are_held_and_moved_into_range():
    wanted = iter([1, 2, 2, 7, 0])
    client = agent(hold_steps=2, heuristic=lambda obs, mask: next(wanted))
    decided = [client.decide(OBS) for _ in range(5)]
    assert [d.action for d in decided] == [1, 1, 2, 2, 0]
    flags = [d.flags & ~Flag.FALLBACK for d in decided]
    assert flags == [0, Flag.RATE, 0, Flag.BOUNDS, 0]


def test_what_a_caller_does_with_an_action_does_not_reach_the_record():
    client = agent(np.zeros(2, np.float32), action=KNOB, heuristic=lambda obs, mask: [0.5, 0.5])
    obs = np.zeros(3, np.float32)
    action = client.act(obs)
    action[:] = 9
    obs[:] = 9
    client.end(terminated=True)
    fields = segments(client)[0].fields()
    np.testing.assert_array_equal(fields["action"], [[0.5, 0.5]])
    np.testing.assert_array_equal(fields["obs"], np.zeros((1, 3)))


# ---------------------------------------------------------------------- the record


def at(value: float) -> np.ndarray:
    return np.full(3, value, np.float32)


def test_an_episode_is_recorded_step_by_step():
    client = agent(safe=1, batch_steps=100)
    offer(client, model(6, prefers=2))
    for i in range(3):
        client.act(at(i))
        client.reward(i)
        client.reward(0.5)
    client.end(truncated=True, final_obs=at(9))
    client.act(at(4))
    client.reward(7)
    client.end(terminated=True)
    client.act(at(5))
    client.act(at(6))
    [segment] = segments(client)
    fields = segment.fields()
    np.testing.assert_array_equal(fields["obs"][:, 0], [0, 1, 2, 4, 5])
    np.testing.assert_array_equal(fields["reward"], [0.5, 1.5, 2.5, 7, 0])
    np.testing.assert_array_equal(fields["terminated"], [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(fields["truncated"], [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(fields["event"], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(fields["version"], [6] * 5)
    np.testing.assert_array_equal(fields["action"], [2] * 5)
    # What a truncated step and the last one bootstrap from.
    np.testing.assert_array_equal(fields["bootstrap"][:, 0], [9, 6])
    assert (segment.episode, segment.start_step) == (0, 0)


def test_batches_are_cut_by_steps_and_by_time_and_go_on_where_they_were_cut():
    clock = FakeClock()
    client = agent(batch_steps=3, batch_seconds=5.0, clock=clock)
    for i in range(8):
        client.act(at(i))
    clock.now += 6.0
    client.act(at(8))
    found = []
    while (numbered := client.outbox.take()) is not None:
        found.append(numbered)
    assert [seq for seq, _ in found] == [1, 2, 3]
    firsts = [(s.start_step, len(s.steps), float(s.bootstrap[0, 0])) for _, s in found]
    assert firsts == [(0, 3, 3.0), (3, 3, 6.0), (6, 2, 8.0)]


def test_rewards_find_their_step_or_are_sent_after_it():
    client = agent(batch_steps=2)
    events = [client.decide(at(i)).event for i in range(4)]
    assert client.reward(10.0, events[2])  # open
    assert client.reward(20.0, events[0])  # closed with the first batch
    assert not client.reward(1.0, 99) and not client.reward(math.nan) and not client.reward("x")
    assert not client.reward(1e300) and not client.reward(-math.inf)
    assert not client.reward(1.1e12) and not client.reward(-2e12, events[0])
    assert client.reward(6e11) and not client.reward(6e11)  # together they are too large
    assert client.reward(-6e11)
    client.end(terminated=True)
    assert not client.reward(1.0)
    items = []
    client.flush()
    while (numbered := client.outbox.take()) is not None:
        items.append(numbered[1])
    assert [type(item) for item in items] == [Segment, Rewards, Segment]
    assert items[1] == Rewards({events[0]: 20.0})
    assert items[2].fields()["reward"].tolist() == [10.0, 0.0]
    status = client.status()
    assert (status.late_rewards, status.lost_rewards) == (1, 8)


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_the_limits_are_answered_and_not_sent():
    wide = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    client = agent(observation=wide)
    assert offer(client, model(1, prefers=2, observation=wide))
    for value in (1e12, -1e12):
        assert client.decide(at(value)).source == "model"
    assert client.status().dropped_steps == 0
    for value in (1.1e12, -1e13, 3e38):
        decided = client.decide(at(value))
        assert (decided.action, decided.source) == (2, "model")
    # Those three, and the one before them that lacks its successor.
    assert client.status().dropped_steps == 4
    (segment,) = segments(client)
    np.testing.assert_array_equal(segment.fields()["obs"][:, 0], np.float32([1e12]))
    client.act(at(0))
    assert not client.end(truncated=True, final_obs=at(2e12))
    assert client.status().dropped_steps == 5 and segments(client) == []


def test_actions_beyond_the_limit_are_done_and_not_sent():
    free = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    wanted = [1e12]
    client = agent(np.zeros(2), action=free, heuristic=lambda obs, mask: np.full(2, wanted[0]))
    client.act(OBS)
    wanted[0] = 3e38
    np.testing.assert_array_equal(client.act(OBS), np.full(2, 3e38, np.float32))
    assert client.status().dropped_steps == 2


def test_what_cannot_be_sent_cuts_the_record_without_a_false_transition():
    client = agent(batch_steps=100)
    for i in range(3):
        client.act(at(i))
    client.act(at(math.nan))
    client.act(at(7))
    client.act(at(8))
    first, second = segments(client)
    # The step at 2 has no known successor: it only tells what the step at 1 led to.
    np.testing.assert_array_equal(first.fields()["obs"][:, 0], [0, 1])
    np.testing.assert_array_equal(first.fields()["bootstrap"][:, 0], [2])
    np.testing.assert_array_equal(second.fields()["obs"][:, 0], [7])
    # Of the steps 2 and 3 nothing is known, and 4 must not pass for what came after 1.
    assert (first.episode, first.start_step) == (0, 0)
    assert (second.episode, second.start_step) == (0, 4)
    assert client.status().dropped_steps == 2
    # A truncated episode without its final observation.
    assert not client.end(truncated=True)
    assert client.status().dropped_steps == 3
    # An episode whose last step cannot be sent, and one that is whole.
    client.act(at(math.nan))
    assert not client.end(terminated=True)
    client.act(at(9))
    assert client.end(terminated=True) and not client.end(terminated=True)
    client.act(at(10))
    client.act(at(11))
    later = segments(client)
    places = [(one.episode, one.start_step, len(one.steps)) for one in later]
    assert places == [(2, 0, 2)] and later[0].steps[0].terminated


def test_masks_inside_and_beside_the_observation_are_recorded_with_it():
    client = agent(masks=True)
    client.act(at(1), [1, 0, 1])
    client.act(at(2), [0, 0, 1])
    [segment] = segments(client)
    assert segment.fields()["obs/action_mask"].tolist() == [[1, 0, 1]]
    assert segment.fields()["bootstrap/action_mask"].tolist() == [[0, 0, 1]]
    inside = spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(3)})
    other = agent(safe=0, observation=inside)
    decided = other.decide({"x": at(1), "action_mask": np.array([0, 1, 0], np.int8)})
    assert decided.action == 1 and decided.flags == Flag.FALLBACK | Flag.MASK


def test_a_mask_that_the_learner_does_not_see_keeps_the_step_out_of_its_gradient():
    client = agent()
    offer(client, model(1))
    assert client.decide(OBS, [1, 1, 0]).flags == Flag.MASK
    assert client.decide(OBS).flags == 0


def test_a_segment_is_what_the_wire_takes():
    pytest.importorskip("google.protobuf")
    from assay.server import spec as specs
    from assay.server.tensors import Experience, Layout, decode, encode

    client = agent(masks=False)
    offer(client, model(2))
    for i in range(4):
        client.act(at(i))
        client.reward(1.0)
    client.end(truncated=True, final_obs=at(5))
    client.act(at(6))
    client.act(at(7))
    [segment] = segments(client)
    layout = Layout(
        specs.PolicySpec(
            name="p",
            observation=specs.Box(shape=(3,)),
            action=specs.Discrete(n=3),
            algorithm="ppo",
        )
    )
    fields = segment.fields()
    again = decode(encode(Experience(1, 1, fields), layout), layout)
    assert set(again.fields) == set(fields)
    for name, array in fields.items():
        np.testing.assert_array_equal(again.fields[name], array, err_msg=name)


# ---------------------------------------------------------------------- threads, settings


def test_threads_act_while_models_come_and_batches_go():
    client = agent(safe=1, batch_steps=5, buffer_steps=50, model_ttl=60.0)
    server = MemoryServer()
    transport = MemoryTransport(server, seed=3, faults=0.05)
    courier = Courier(
        client.outbox, client.keeper, transport, poll_seconds=0.001, retry_seconds=0.001
    )
    courier.start()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(300):
                event = client.decide(at(i % 7)).event
                client.reward(1.0, event)
                if i % 11 == 0:
                    client.end(terminated=True)
                if i % 50 == 0:
                    snapshot = model(i + 1, prefers=i % 3)
                    transport.events.append(ModelArrived(snapshot.data, snapshot.sha256))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush()
    transport.faults = 0.0
    assert courier.stop(20)
    assert failures == []
    status = client.status()
    assert status.decisions == 1200 and sum(status.sources.values()) == 1200
    assert server.gaps == 0
    received = [s for item in server.items.values() for s in item.steps]
    assert len(received) == status.recorded_steps - client.outbox.dropped_steps
    events = [step.event for step in received]
    assert len(set(events)) == len(events)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"safe": 5}, "safe_action=5 is not in the action space"),
        ({"safe": "left"}, "safe_action='left'"),
        ({"mode": "shadow"}, "needs a heuristic"),
        ({"batch_steps": 10, "buffer_steps": 5}, "no batch would fit"),
        ({"max_change": 0.1}, "max_change=0.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        agent(**options)


def test_masks_of_a_box_are_refused():
    with pytest.raises(ConfigError, match="Box actions have no masks"):
        agent(np.zeros(2), action=KNOB, masks=True)


def test_actions_are_in_the_systems_own_units():
    space = spaces.Discrete(3, start=5)
    client = agent(safe=6, action=space, heuristic=lambda obs, mask: 7)
    assert client.act(OBS) == 7
    assert offer(client, model(1, prefers=0))  # canonical choices start at 0
    assert client.act(OBS) == 5
    table = spaces.Box(-2.0, 2.0, (2, 1), np.float64)
    box = agent(np.zeros((2, 1)), action=table)
    assert box.act(OBS).shape == (2, 1) and box.act(OBS).dtype == np.float64


def test_tighter_bounds_hold_for_every_source():
    low, high = np.array([-0.5, -1.0]), np.array([0.5, 0.25])
    narrow = spaces.Box(low.astype(np.float32), high.astype(np.float32))
    client = ClientAgent(
        SEEN, KNOB, [0.0, 0.0], heuristic=lambda obs, mask: [1.0, 1.0], limits=(low, high)
    )
    decided = client.decide(OBS)
    np.testing.assert_array_equal(decided.action, np.array([0.5, 0.25], np.float32))
    assert decided.flags == Flag.FALLBACK | Flag.BOUNDS
    assert not offer(client, model(1, action=KNOB))  # models are made for the narrow space
    assert offer(client, model(2, action=narrow))
    decided = client.decide(OBS)
    assert decided.version == 2 and narrow.contains(decided.action)
    with pytest.raises(ConfigError, match="outside the bounds"):
        ClientAgent(SEEN, KNOB, [0.9, 0.0], limits=(low, high))
    with pytest.raises(ConfigError, match="Bounds are for Box actions"):
        ClientAgent(SEEN, CHOICE, 0, limits=(low, high))


def test_the_mask_of_a_final_observation_is_recorded():
    client = agent(masks=True)
    client.act(at(1), [1, 1, 1])
    assert client.end(truncated=True, final_obs=at(2), final_mask=[0, 1, 0])
    client.act(at(3), [1, 1, 1])
    assert client.end(truncated=True, final_obs=at(4))
    client.act(at(5), [1, 1, 1])
    assert not client.end(truncated=True, final_obs=at(6), final_mask=[1])
    fields = segments(client)[0].fields()
    assert fields["bootstrap/action_mask"].tolist() == [[0, 1, 0], [1, 1, 1]]


# ---------------------------------------------------------------------- what goes wrong on the way


def test_a_late_reward_for_what_is_no_number_of_a_decision_is_lost():
    client = agent(batch_steps=1)
    for _ in range(4):
        client.act(OBS)
    segments(client)
    assert not client.reward(1.0, event=2.5)  # type: ignore[arg-type]
    assert client.outbox.take() is None
    assert client.reward(1.0, event=np.int64(2))  # type: ignore[arg-type]
    numbered = client.outbox.take()
    assert numbered is not None and numbered[1] == Rewards({2: 1.0})


def test_an_interrupt_in_the_middle_of_a_decision_cuts_the_record():
    interrupted = [False, False, True, False, False]

    def heuristic(obs: Any, mask: Any) -> int:
        if interrupted.pop(0):
            raise KeyboardInterrupt
        return 1

    client = agent(heuristic=heuristic)
    client.act(np.full(3, 1.0, np.float32))
    client.act(np.full(3, 2.0, np.float32))
    with pytest.raises(KeyboardInterrupt):
        client.act(np.full(3, 3.0, np.float32))
    client.act(np.full(3, 4.0, np.float32))
    client.act(np.full(3, 5.0, np.float32))
    [segment] = segments(client)
    assert [float(step.obs[0, 0]) for step in segment.steps] == [4.0]
    assert segment.bootstrap[0, 0] == 5.0
    assert (segment.episode, segment.start_step) == (0, 3)
    assert client.status().dropped_steps == 2


def test_a_model_that_fails_in_a_way_nobody_thought_of_is_refused(tmp_path: Path):
    snapshot = model(1, action=KNOB)
    head = arch.Gaussian(log_std="s", low=(-1, -1), high=(1, 1))
    arrays = {**snapshot.arrays, "s": np.full(2, 1e4, np.float32)}  # exp() of it overflows
    wild = make_snapshot(snapshot.architecture.model_copy(update={"head": head}), arrays)
    client = agent(safe=[0, 0], action=KNOB)
    assert not offer(client, wild)
    assert "OverflowError" in client.status().last_rejection
    # Nor does one on the disk keep a client from starting.
    directory = tmp_path / "models"
    directory.mkdir()
    wild.write(directory / f"00000001-000000000001-{wild.sha256}.safetensors")
    client = agent(safe=[0, 0], action=KNOB, directory=directory)
    assert client.decide(OBS).source == "constant"
