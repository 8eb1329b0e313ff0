"""What a learner begins with, what it refuses, and how calls reach it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from learner_support import Client, Corridor, Point, Server, spec_for

from assay.core.errors import AssayError, ConfigError, SpaceError
from assay.policies.model_file import parse_snapshot
from assay.policies.parts import ModelError
from assay.server import spec as wire
from assay.server.client.policy import Policy
from assay.server.learner.building import Canonical, gym_space
from assay.server.learner.learner import Learner, LearnerHost
from assay.server.learner.messages import (
    Consume,
    LearnerSettings,
    Outcome,
    Publication,
    Ready,
    Start,
)
from assay.server.spec import Bounds, PolicySpec, space_of

VECTOR = spaces.Box(-1, 1, (3,), np.float32)


def start(spec: PolicySpec, settings: str = "{}") -> Ready:
    return Learner().start(Start(spec.canonical().decode(), settings, epoch=1))


def spec(algorithm: str, observation: Any = VECTOR, action: Any = None, **settings: Any) -> Any:
    return PolicySpec.model_validate(
        {
            "name": "p",
            "observation": space_of(observation),
            "action": space_of(action or spaces.Discrete(2)),
            "algorithm": algorithm,
            "settings": settings,
        }
    )


class TestRefusals:
    @pytest.mark.parametrize(
        ("asked", "kind", "message"),
        [
            (spec("recurrent_ppo", memory="transformer"), ModelError, "cannot run in a client"),
            (spec("r2d2"), ConfigError, "'r2d2' replays sequences with the memory"),
            (spec("dqn", spaces.Box(0, 255, (1, 84, 84), np.uint8)), SpaceError, "images"),
            (spec("ppo", lr=-1), ConfigError, "lr=-1"),
            (spec("ppo", learning_rate=1e-3), ConfigError, "'learning_rate'"),
            (spec("ppo", device="cuda"), ConfigError, "'device' belongs to a run"),
            (spec("ppo", preset="Cartpole-v1"), ConfigError, "preset='Cartpole-v1'"),
            (spec("ppo", preset=3), ConfigError, "preset=3: expected the id"),
            (spec("ppo", horizon=100), ConfigError, "minibatch_size=128 does not divide"),
            (spec("impala", actor_lag=2), ConfigError, "actor_lag=2"),
            (spec("pppo"), ConfigError, "Unknown algorithm 'pppo'"),
            (spec("td3"), SpaceError, "handles Box actions"),
            (spec("sac", VECTOR, spaces.MultiBinary(3)), SpaceError, "handles Box or Discrete"),
        ],
        ids=lambda value: getattr(value, "algorithm", None),
    )
    def test_says_why(self, asked: PolicySpec, kind: type[AssayError], message: str) -> None:
        with pytest.raises(kind, match=message):
            start(asked)

    def test_hindsight(self) -> None:
        goals = spaces.Dict(
            {name: VECTOR for name in ("observation", "achieved_goal", "desired_goal")}
        )
        with pytest.raises(ConfigError, match="her='future'"):
            start(spec("sac", goals, spaces.Box(-1, 1, (2,), np.float32), her="future"))

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"max_lag": -1}, "max_lag"),
            ({"device": "tpu"}, "device='tpu'"),
            ({"speed": 1}, "unknown setting 'speed'"),
        ],
    )
    def test_settings_of_the_server(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            start(spec("ppo"), json.dumps(settings))


@pytest.mark.parametrize(
    ("settings", "clip"), [({}, 1.0), ({"importance_clip": None}, None), ({"horizon": 3}, 1.0)]
)
def test_a2c_corrects_for_clients_that_are_behind_unless_told_not_to(
    settings: dict[str, Any], clip: float | None
) -> None:
    learner = Learner()
    learner.start(Start(spec("a2c", **settings).canonical().decode(), "{}", epoch=1))
    assert learner.algorithm.hp.importance_clip == clip


class TestSpaces:
    @pytest.mark.parametrize(
        "space",
        [
            VECTOR,
            spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
            spaces.Box(0, 9, (2, 3), np.int16),
            spaces.Discrete(4, start=2),
            spaces.MultiDiscrete([2, 5]),
            spaces.MultiBinary(3),
            spaces.MultiBinary((2, 2)),
            spaces.Dict({"b": VECTOR, "a": spaces.Tuple([spaces.Discrete(2), VECTOR])}),
        ],
        ids=str,
    )
    def test_there_and_back(self, space: gym.Space[Any]) -> None:
        assert gym_space(wire.space_of(space)) == space

    def test_bounds_cut_the_actions(self) -> None:
        plain = spec("td3", VECTOR, spaces.Box(-1, 1, (2,), np.float32), learning_starts=10)
        tight = plain.model_copy(update={"bounds": Bounds(low=(-0.5, None), high=0.25)})
        action = Canonical(tight).spaces.action
        assert action.low.tolist() == [-0.5, -1] and action.high.tolist() == [0.25, 0.25]
        policy = Policy(parse_snapshot(start(tight).publications[0].snapshot))
        rng = np.random.default_rng(0)
        for _ in range(20):
            chosen, _ = policy.act(np.zeros((1, 3), np.float32), None, rng)
            assert (chosen >= action.low).all() and (chosen <= action.high).all()

    def test_nested_observations_and_masks(self) -> None:
        observation = spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(3),
                "arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2,), np.float64)}),
                "mode": spaces.Discrete(4, start=1),
            }
        )
        settings = {"horizon": 16, "minibatch_size": 8, "hidden": [8]}
        server = Server(spec("ppo", observation, spaces.Discrete(3, start=5), **settings))
        rng = np.random.default_rng(0)
        policy = server.policy
        rows: dict[str, list[Any]] = {one.name: [] for one in server.layout.steps}
        for _ in range(16):
            mask = np.array([1, rng.integers(2), 0], np.int8)
            seen = {"action_mask": mask, "arm/joints": rng.normal(size=2), "mode": rng.integers(4)}
            tree = {name: np.asarray(x, np.float32)[None] for name, x in seen.items()}
            tree["mode"] = np.array([seen["mode"]])
            tree["action_mask"] = mask[None]
            action, log_prob = policy.act(tree, mask, rng)
            values = {
                "obs/action_mask": mask, "obs/arm/joints": seen["arm/joints"],
                "obs/mode": seen["mode"] + 1, "action": action + 5, "reward": 1.0,
                "log_prob": log_prob, "version": 1, "flags": 0, "terminated": False,
                "truncated": False, "event": 0,
            }  # fmt: skip
            for name, value in values.items():
                rows[name].append(value)
        fields = {
            one.name: np.array(rows[one.name], one.dtype)
            for one in server.layout.steps
            if one.name != "event"
        }
        fields |= {
            f"bootstrap/{key}": fields[f"obs/{key}"][-1:]
            for key in ("action_mask", "arm/joints", "mode")
        }
        client = Client.__new__(Client)
        client.server, client.seq, client.place = server, 0, (0, 0)
        outcome = server.send("one", client.pack(fields))
        assert server.version == 2
        # Freshly exported, the policy gives what clients acted with: the first ratio is 1.
        assert abs(outcome.metrics["train/approx_kl"]) < 1e-2

    def test_version_one_is_there_at_once(self) -> None:
        ready = start(spec("ppo", seed=5))
        [first] = ready.publications
        assert (first.version, first.parent, first.position, ready.replay_from) == (1, 0, 0, 0)
        snapshot = parse_snapshot(first.snapshot)
        assert snapshot.architecture.version == 1
        assert json.loads(first.architecture)["algorithm"] == "ppo"
        assert start(spec("ppo", seed=5)).publications == ready.publications
        other = start(spec("ppo"), '{"seed": 6}').publications[0]
        assert other.snapshot != first.snapshot
        assert start(spec("ppo", seed=5), '{"seed": 6}').publications == ready.publications

    def test_a_preset_is_the_base(self) -> None:
        learner = Learner()
        asked = spec("ppo", preset="CartPole-v1", epochs=2)
        learner.start(Start(asked.canonical().decode(), "{}", 1))
        hp: Any = learner.algorithm.hp
        # The shipped settings: 32 environments of 32 steps each, here one rollout of all
        assert (hp.horizon, hp.epochs, hp.gae_lambda) == (32 * 32, 2, 0.9)
        assert learner.clock.total == 100_000


class TestMessages:
    def test_frames_come_back_as_they_went(self) -> None:
        publication = Publication(3, 7, b"model", b"", 2, {"train/loss": 0.5}, '{"a": 1}')
        messages = [
            Start("spec", "{}", 2, 3, 4, b"state"),
            Consume(((5, "one", b"abc"), (6, "zwei", b"")), replaying=True),
            publication,
            Ready(4, (publication, publication)),
            Outcome(7, 5, (publication,), {"x": 1.0}),
        ]
        for message in messages:
            head, blobs = message.to_frame()
            # What an executor makes of it: JSON, and bytes of any kind.
            head = json.loads(json.dumps(head))
            assert type(message).from_frame(head, [memoryview(blob) for blob in blobs]) == message

    def test_publications_need_their_blobs(self) -> None:
        head, blobs = Ready(0, (Publication(1, 0, b"a", b"b"),)).to_frame()
        with pytest.raises(ValueError, match="1 blobs came with 1 publications"):
            Ready.from_frame(head, blobs[:1])

    def test_no_torch(self) -> None:
        code = "import sys, assay.server.learner.messages; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_defaults(self) -> None:
        settings = LearnerSettings()
        assert (settings.max_lag, settings.publish_steps, settings.imitate) == ("auto", 500, True)


class TestHost:
    def test_calls_reach_the_learner(self) -> None:
        settings = {"learning_starts": 10, "batch_size": 4, "hidden": [8], "buffer_size": 50}
        asked = spec_for(Point(), "td3", **settings)
        host = LearnerHost()
        first = Start(asked.canonical().decode(), '{"publish_steps": 40}', 1)
        ready = Ready.from_frame(*host.handle(*first.to_frame()))
        server = Server(asked, '{"publish_steps": 40}')
        assert ready == server.ready
        client = Client(server, Point())
        batch = server.append("one", client.play(30))
        outcome = Outcome.from_frame(*host.handle(*Consume((batch,)).to_frame()))
        assert outcome == server.consume(batch)
        assert [one.version for one in outcome.publications] == [2]
        assert host.handle({"method": "checkpoint"}, ()) == ({"publication": None}, ())
        batch = server.append("one", client.play(30))
        host.handle(*Consume((batch,)).to_frame())
        server.consume(batch)
        head, blobs = host.handle({"method": "checkpoint"}, ())
        found = Publication.from_frame(head["publication"], blobs)
        assert found == server.learner.checkpoint()
        assert found.version == 3 and found.checkpoint

    def test_what_it_does_not_know(self) -> None:
        host = LearnerHost()
        with pytest.raises(ValueError, match="before 'start'"):
            host.handle({"method": "consume"}, ())
        host.handle(*Start(spec("ppo").canonical().decode(), "{}", 1).to_frame())
        with pytest.raises(ValueError, match="'sing' is unknown"):
            host.handle({"method": "sing"}, ())

    def test_divergence_is_reported_and_not_published(self) -> None:
        settings = {"horizon": 16, "minibatch_size": 8, "hidden": [8]}
        server = Server(spec_for(Corridor(), "ppo", **settings))
        client = Client(server, Corridor())
        server.send("one", client.play(8))
        next(iter(server.learner.algorithm.net.parameters())).data.fill_(float("nan"))  # type: ignore[attr-defined]
        with pytest.raises(AssayError, match="diverged: the weights of 'net'"):
            server.send("one", client.play(8))
