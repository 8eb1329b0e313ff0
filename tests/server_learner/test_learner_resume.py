"""A learner that is killed goes on from the last commit as if nothing had happened."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_support import Client, Corridor, Point, Server, spec_for

from assay.core.errors import CheckpointError
from assay.policies.model_file import parse_snapshot
from assay.server.learner.learner import Learner
from assay.server.learner.messages import Consume, Start

ON_POLICY = {"horizon": 48, "hidden": [8]}
MEMORY = ON_POLICY | {"minibatch_size": 16, "chunk": 8, "memory_size": 6, "head_hidden": [8]}
REPLAY = {
    "hidden": [8], "learning_starts": 30, "train_every": 4, "batch_size": 8, "buffer_size": 100,
}  # fmt: skip
CASES: list[tuple[str, type[gym.Env[Any, Any]], dict[str, Any]]] = [
    ("ppo", Corridor, ON_POLICY | {"minibatch_size": 16}),
    (
        "ppo",
        Point,
        ON_POLICY | {"minibatch_size": 16, "normalize_obs": True, "normalize_reward": True},
    ),
    ("a2c", Corridor, ON_POLICY | {"horizon": 10}),
    ("recurrent_ppo", Corridor, MEMORY),
    ("recurrent_ppo", Point, MEMORY | {"memory": "gru", "normalize_obs": True}),
    ("impala", Corridor, ON_POLICY),
    ("dqn", Corridor, REPLAY | {"n_step": 3, "target_every": 7}),
    ("qrdqn", Corridor, REPLAY | {"quantiles": 8}),
    ("sac", Point, REPLAY | {"normalize_obs": True, "normalize_reward": True}),
    ("sac", Corridor, REPLAY),
    ("td3", Point, REPLAY),
    ("ddpg", Point, REPLAY),
]


def played(
    algorithm: str,
    env: type[gym.Env[Any, Any]],
    settings: dict[str, Any],
    learner: str = '{"publish_steps": 25}',
) -> Server:
    """Return a server to which three clients sent batches, late rewards among them."""
    own = Server(spec_for(env(), algorithm, **settings), learner)
    clients = [Client(own, env(), name, seed) for seed, name in enumerate("abc")]
    for number in range(16):
        client = clients[number % 3]
        own.send(client.name, client.play(5 + 7 * (number % 4)))
        if number % 5 == 4:
            own.send(client.name, client.patch(client.event - 2, 0.5))
    return own


@pytest.mark.parametrize(("algorithm", "env", "settings"), CASES)
def test_the_same_versions_follow(
    algorithm: str, env: type[gym.Env[Any, Any]], settings: dict[str, Any]
) -> None:
    server = played(algorithm, env, settings)
    versions = server.publications
    assert len(versions) > 5
    for number in (0, len(versions) // 2, len(versions) - 2):
        killed_after = versions[number]
        again = server.restart(killed_after, epoch=1)
        assert again.ready.publications == ()
        # In other groups than before: that makes no difference.
        rest = server.log[killed_after.position :]
        again.consume(*rest[:3])
        again.consume(*rest[3:])
        assert again.publications == versions[number:]
        assert again.outcome is not None and server.outcome is not None
        assert again.outcome.metrics == server.outcome.metrics
        assert again.outcome.keep_after == server.outcome.keep_after


def test_prioritised_replay_goes_on_with_fresh_priorities() -> None:
    server = played("dqn", Corridor, REPLAY | {"prioritized": True})
    number = len(server.publications) // 2
    again = server.restart(server.publications[number], epoch=1)
    again.consume(*server.log[server.publications[number].position :])
    assert [one.version for one in again.publications] == [
        one.version for one in server.publications[number:]
    ]
    assert again.learner.clock.updates == server.learner.clock.updates


def test_the_replay_is_whole_again_though_the_log_was_trimmed() -> None:
    server = played("dqn", Corridor, REPLAY)
    last = server.publications[-1]
    again = server.restart(last, epoch=1)
    held: Any = again.learner.feed
    assert len(held.replay) == 100
    # `restart` sent what lies behind `replay_from` alone, which is what the server keeps.
    assert 0 < again.ready.replay_from < last.position


@pytest.mark.parametrize("settings", [{}, {"n_step": 3}, {"prioritized": True}])
@pytest.mark.parametrize("missing", ["one", "all"])
def test_a_replay_of_which_the_log_has_lost_a_part_goes_on(
    missing: str, settings: dict[str, Any]
) -> None:
    server = played("dqn", Corridor, REPLAY | settings)
    middle = server.publications[len(server.publications) // 2]
    log, position = server.log, middle.position
    server.log = [
        one for one in log if one[0] > position or (missing == "one" and one[0] != position - 1)
    ]
    again = server.restart(middle, epoch=1)
    again.consume(*log[position:])
    assert again.publications[-1].version >= server.publications[-1].version
    assert again.learner.clock.env_steps == server.learner.clock.env_steps


def test_the_same_batch_twice_counts_once() -> None:
    server = played("ppo", Corridor, ON_POLICY | {"minibatch_size": 16})
    before = server.learner.clock.env_steps, server.version
    server.consume(*server.log)
    assert (server.learner.clock.env_steps, server.version) == before


def test_lag_is_that_of_the_time_when_steps_came() -> None:
    """What was too old when it came is not in the replay, and so it is not after a restart."""
    settings = '{"publish_steps": 25, "max_lag": 2}'
    own = Server(spec_for(Corridor(), "dqn", **REPLAY), settings)
    stale, fresh = (Client(own, Corridor(), name, seed) for seed, name in enumerate("ab"))
    old = own.policy
    for _ in range(6):
        own.send("a", stale.play(10, old))
        own.send("b", fresh.play(20))
    assert own.outcome is not None
    too_old = own.outcome.metrics["server/steps_too_old"]
    assert 0 < too_old < 60
    middle = own.publications[-2]
    again = own.restart(middle, epoch=1)
    again.consume(*own.log[middle.position :])
    assert again.publications[1:] == own.publications[-1:]
    assert again.outcome is not None
    assert again.outcome.metrics["server/steps_too_old"] == too_old


def test_checkpoints_can_be_rarer_than_versions() -> None:
    settings = '{"publish_steps": 25, "checkpoint_every": 3}'
    server = played("ppo", Corridor, ON_POLICY | {"minibatch_size": 16}, settings)
    with_state = [bool(one.checkpoint) for one in server.publications]
    assert with_state == [True, False, False, True, False, False]
    assert server.outcome is not None
    kept = server.publications[3]
    assert server.outcome.keep_after == kept.position
    # Version 6 was published, but the cursor stands where version 4 was: numbers are not reused.
    learner = Learner()
    spec = server.spec.canonical().decode()
    learner.start(Start(spec, settings, 2, 6, kept.position, kept.checkpoint))
    outcome = learner.consume(Consume(tuple(server.log[kept.position :])))
    assert [one.version for one in outcome.publications] == [7, 8]
    assert outcome.metrics["server/env_steps"] == server.outcome.metrics["server/env_steps"]


def test_a_drain_gives_what_was_learned_since() -> None:
    server = Server(spec_for(Corridor(), "dqn", **REPLAY), '{"publish_steps": 1000}')
    client = Client(server, Corridor())
    assert server.learner.checkpoint() is None
    server.send("one", client.play(40))  # the first lesson is published at once
    server.send("one", client.play(20))
    assert server.version == 2
    last = server.learner.checkpoint()
    assert last is not None
    assert (last.version, last.parent, last.position) == (3, 2, 2)
    assert server.learner.checkpoint() is None
    # It goes on from there.
    server.send("one", client.play(20))
    again = server.restart(last, epoch=1)
    again.consume(server.log[-1])
    assert again.learner.checkpoint() == server.learner.checkpoint()


def test_a_checkpoint_of_another_cursor_or_policy_is_refused() -> None:
    server = played("ppo", Corridor, ON_POLICY | {"minibatch_size": 16})
    spec, last = server.spec.canonical().decode(), server.publications[-1]
    with pytest.raises(CheckpointError, match="cursor"):
        Learner().start(Start(spec, "{}", 1, last.version, last.position + 1, last.checkpoint))
    with pytest.raises(CheckpointError, match="incomplete"):
        Learner().start(Start(spec, "{}", 1, last.version, last.position, last.checkpoint[:-9]))
    other = spec_for(Corridor(), "ppo", **ON_POLICY, minibatch_size=16).model_copy(
        update={"settings": {**server.spec.settings, "hidden": [9]}}
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="does not fit"):
        Learner().start(
            Start(other.canonical().decode(), "{}", 1, last.version, last.position, last.checkpoint)
        )


EVERY = [
    *CASES,
    ("c51", Corridor, REPLAY),
    ("rainbow", Corridor, REPLAY),
    ("iqn", Corridor, REPLAY),
    ("fqf", Corridor, REPLAY),
    ("dqn", Corridor, REPLAY | {"dueling": True}),
    ("tqc", Point, REPLAY),
    ("redq", Point, REPLAY | {"updates": 4}),  # in place of 20 after every train_every steps
    ("crossq", Point, REPLAY),
]


@pytest.mark.parametrize(("algorithm", "env", "settings"), EVERY)
def test_without_its_checkpoint_a_policy_goes_on_from_its_weights(
    algorithm: str, env: type[gym.Env[Any, Any]], settings: dict[str, Any]
) -> None:
    server = played(algorithm, env, settings)
    last = server.publications[-1]
    learner = Learner()
    ready = learner.start(
        Start(
            server.spec.canonical().decode(), server.settings, 2, last.version, last.position,
            weights=last.snapshot, metrics=last.metrics,
        )
    )  # fmt: skip
    assert (ready.replay_from, ready.publications) == (last.position, ())
    given = parse_snapshot(last.snapshot)
    now = learner.algorithm.policy.snapshot(learner.algorithm.spec.name, version=last.version)
    assert sorted(now.arrays) == sorted(given.arrays)
    for name, array in now.arrays.items():
        np.testing.assert_allclose(array, given.arrays[name], rtol=1e-5, err_msg=name)
    # Exploration and schedules go on as well.
    assert now.architecture.head == given.architecture.head
    assert learner.clock.env_steps == int(last.metrics["server/env_steps"])
    for name, target in (("q", "target"), ("actor", "target_actor")):
        own, copied = (getattr(learner.algorithm, one, None) for one in (name, target))
        if own is not None and copied is not None:
            assert all(map(torch.equal, own.parameters(), copied.parameters()))
    # It learns again, and does not owe what was learned before.
    client = Client(server, env(), "late", 9)
    outcome = learner.consume(Consume(((last.position + 1, "late", client.play(96)),)))
    assert outcome.publications and outcome.publications[0].version == last.version + 1
    assert outcome.metrics["server/updates"] < 2 * last.metrics["server/updates"]


def test_weights_of_another_policy_are_refused() -> None:
    server = played("ppo", Corridor, ON_POLICY | {"minibatch_size": 16})
    other = spec_for(Corridor(), "ppo", hidden=[9])
    weights = server.publications[-1].snapshot
    with pytest.raises(CheckpointError, match="is not one of this policy"):
        Learner().start(Start(other.canonical().decode(), "{}", 1, 3, 5, weights=weights))


def test_a_batch_that_cannot_be_read_is_counted_and_passed_over() -> None:
    server = Server(spec_for(Corridor(), "ppo", **ON_POLICY, minibatch_size=16))
    client = Client(server, Corridor())
    good = client.play(48)
    server.learner.consume(Consume(((1, "one", b"\xff\xff"), (2, "one", good[:-3]))))
    outcome = server.learner.consume(Consume(((3, "one", client.play(48)),)))
    assert outcome.metrics["server/bad_batches"] == 2
    assert [one.position for one in outcome.publications] == [3]
