"""Wrappers as a setting, worked out by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.core import fast_yaml
from assay.core.config import example
from assay.core.errors import AssayError
from assay.envs.gym_vector import Batched
from assay.envs.make import make_vector
from assay.envs.native import NATIVE
from assay.envs.sync import Sync
from assay.envs.variation.settings import CURRICULA, read_curriculum
from assay.envs.wrappers.settings import WRAPPERS, read_wrappers
from assay.loops import events
from assay.testing.algorithms import assert_same_run


class Count(gym.Env[Any, Any]):
    """Shows how many steps an episode of `length` has had, and the last action; pays 3 a step."""

    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, length: int = 3) -> None:
        self.length, self.steps, self.last = length, 0, 0

    def _seen(self) -> Any:
        return np.array([self.steps, self.last], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.last = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps, self.last = self.steps + 1, int(action)
        return self._seen(), 3.0, self.steps == self.length, False, {}

    def get_state(self) -> Any:
        return {"steps": self.steps, "last": self.last}

    def set_state(self, state: Any) -> None:
        self.steps, self.last = int(state["steps"]), int(state["last"])


class Picture(Count):
    """The same as a small coloured image."""

    observation_space = spaces.Box(0, 255, (8, 12, 3), np.uint8)

    def _seen(self) -> Any:
        image = np.zeros((8, 12, 3), np.uint8)
        image[self.steps % 8, :, 0] = 100
        return image


class Parts(Count):
    """The same as one entry of two."""

    observation_space = spaces.Dict(
        {"a": spaces.Box(0, 100, (2,), np.float32), "b": spaces.Box(0, 1, (1,), np.float32)}
    )

    def _seen(self) -> Any:
        return {"a": super()._seen(), "b": np.zeros(1, np.float32)}


def stepped(vector: Any, *actions: int) -> list[Any]:
    """Return observations, the first included, and the final one of the last step."""
    seen = [vector.reset(0)]
    final = None
    for action in actions:
        obs, _, _, _, _, final = vector.step(np.full(vector.num_envs, action))
        seen.append(obs)
    return [*seen, final]


class TestObservations:
    def test_vectors(self) -> None:
        with make_vector(Count, 1, wrappers=[{"rescale": {"low": 0, "high": 1}}]) as vector:
            assert stepped(vector, 4)[1].tolist() == [[pytest.approx(0.01), pytest.approx(0.04)]]
            assert vector.spaces.observation == spaces.Box(0, 1, (2,), np.float32)
        with make_vector(Count, 1, wrappers=[{"clip_obs": 2}]) as vector:
            assert stepped(vector, 4)[1].tolist() == [[1, 2]]
        with make_vector(Count, 1, wrappers=[{"hide_sensors": [0]}]) as vector:
            assert stepped(vector, 4)[1].tolist() == [[4]]
            assert vector.spaces.observation.shape == (1,)
        with make_vector(Parts, 2, wrappers=[{"hide_sensors": {"sensors": [1], "key": "a"}}]) as v:
            assert v.reset(0)["a"].shape == (2, 1) and v.reset(0)["b"].shape == (2, 1)

    def test_images(self) -> None:
        crop, resize = {"top": 1, "height": 4, "width": 12}, {"height": 4, "width": 3}
        given = [{"crop": crop}, {"resize": resize}, "grey", "flatten"]
        with make_vector(Picture, 1, wrappers=given) as vector:
            # Row 1 of the picture is the first of the crop; 100 red is 30 grey.
            assert stepped(vector, 0)[1].tolist() == [[30] * 3 + [0] * 9]
            assert vector.spaces.observation.dtype == np.uint8

    def test_noise_is_drawn_again_by_seed_and_not_shared(self) -> None:
        given = [{"noise": 0.5}, {"noise": 0.5}]
        with make_vector(lambda: Count(99), 2, wrappers=given) as vector:
            first, again = stepped(vector, 1, 1), stepped(vector, 1, 1)
            assert np.array_equal(first[2], again[2])
            assert not np.array_equal(first[2][0], first[2][1])
            off = np.stack([x - [i, min(i, 1)] for i, x in enumerate(first[:3])])
            assert 0.1 < off.std() < 2
        with make_vector(lambda: Count(99), 200, wrappers=[{"dropout": 0.25}]) as vector:
            assert 0.6 < (stepped(vector, 3)[1] > 0).mean() < 0.9


class TestTime:
    def test_frames_begin_again_with_an_episode(self) -> None:
        with make_vector(Count, 2, wrappers=[{"frame_stack": 2}]) as vector:
            *seen, final = stepped(vector, 1, 2, 3)
            assert [x[0].tolist() for x in seen] == [
                [0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 2, 2], [0, 0, 0, 0],
            ]  # fmt: skip
            assert final[0].tolist() == [2, 2, 3, 3]

    def test_frames_where_resets_take_a_step(self) -> None:
        envs = gym.vector.SyncVectorEnv([Count, Count])
        with make_vector(envs, wrappers=[{"frame_stack": 2}]) as vector:
            *seen, _ = stepped(vector, 1, 2, 3, 4, 1)
            assert [x[0, ::2].tolist() for x in seen] == [
                [0, 0], [0, 1], [1, 2], [2, 3], [0, 0], [0, 1],
            ]  # fmt: skip

    def test_byte_images_are_stored_once(self) -> None:
        with make_vector(Picture, 1, wrappers=["grey", {"frame_stack": 4}]) as vector:
            assert vector.frame_stack == 4 and vector.spaces.observation.shape == (4, 8, 12, 1)
        with make_vector(Count, 1, wrappers=[{"frame_stack": 4}]) as vector:
            assert vector.frame_stack is None

    def test_delays(self) -> None:
        with make_vector(Count, 1, wrappers=[{"obs_delay": 1}]) as vector:
            *seen, final = stepped(vector, 1, 2, 3)
            assert [x[0, 0] for x in seen] == [0, 0, 1, 0] and final[0, 0] == 2
        with make_vector(lambda: Count(3), 1, wrappers=[{"action_delay": 1}]) as vector:
            *seen, final = stepped(vector, 4, 3, 2, 1, 1)
            assert [x[0, 1] for x in seen] == [0, 0, 4, 0, 0, 1]  # 2 is lost with its episode

    def test_sticky_actions(self) -> None:
        with make_vector(lambda: Count(50), 400, wrappers=[{"sticky_actions": 0.25}]) as vector:
            seen = stepped(vector, 1, 2, 3)
            assert (seen[1][:, 1] == 1).all()  # there is nothing to repeat yet
            assert 0.15 < (seen[2][:, 1] == 1).mean() < 0.35

    def test_time_is_seen(self) -> None:
        with make_vector(Count, 1, wrappers=[{"time_in_obs": 4}]) as vector:
            *seen, final = stepped(vector, 1, 1, 1)
            assert [x[0, -1] for x in seen] == [0, 0.25, 0.5, 0] and final[0, -1] == 0.75

    @pytest.mark.parametrize("backend", ["sync", "processes"])
    def test_repeated_actions_end_with_the_episode(self, backend: Any) -> None:
        with make_vector(Count, 2, backend=backend, wrappers=[{"action_repeat": 2}]) as vector:
            vector.reset(0)
            obs, reward, over, *_ = vector.step(np.array([1, 1]))
            assert obs[:, 0].tolist() == [2, 2] and reward.tolist() == [6, 6] and not over.any()
            obs, reward, over, *_, final = vector.step(np.array([1, 1]))
            assert reward.tolist() == [3, 3] and over.all() and final[:, 0].tolist() == [3, 3]
            assert obs[:, 0].tolist() == [0, 0]

    def test_skipped_frames_are_pooled(self) -> None:
        with make_vector(Picture, 1, wrappers=[{"frame_skip": 2}]) as vector:
            assert (stepped(vector, 0)[1][0, :, 0, 0] > 0).tolist() == [False, True, True] + [
                False
            ] * 5

    @pytest.mark.parametrize("name", sorted(set(NATIVE) - {"CartPole-v0"}))
    @pytest.mark.parametrize("count", [1, 5])
    def test_native_copies_repeat_at_once_as_they_do_one_by_one(
        self, name: str, count: int
    ) -> None:
        settings: Any = {"wrappers": [{"action_repeat": 3}], "max_episode_steps": 40}
        rng, ends = np.random.default_rng(0), 0
        with (
            make_vector(name, count, **settings) as one,
            make_vector(name, count, backend="sync", **settings) as other,
        ):
            assert isinstance(one.backend, Batched) and isinstance(other.backend, Sync)
            np.testing.assert_array_equal(one.reset(3), other.reset(3))
            for _ in range(30):
                actions = _random_actions(rng, one.spaces.action, count)
                *found, valid, final = one.step(actions)
                *expected, _, last = other.step(actions)
                assert valid is None
                for a, b in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(a, b)
                done = found[2] | found[3]
                ends += int(done.sum())
                assert done.any() == (final is not None) == (last is not None)
                if done.any():
                    np.testing.assert_array_equal(final[done], last[done])
        assert ends >= 2 * count  # 40 steps are 14 choices, the last of which is cut short


def _random_actions(rng: np.random.Generator, space: Any, count: int) -> np.ndarray:
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(int(space.n), size=count)
    return rng.uniform(-1, 1, (count, *space.shape)).astype(np.float32)


def test_rewards_are_changed_in_training_alone() -> None:
    for given, expected in (
        ("sign_reward", 1),
        ({"clip_reward": 2}, 2),
        ({"scale_reward": -2}, -6),
        ({"flip_reward": 1}, -3),
    ):
        for training, paid in ((True, expected), (False, 3)):
            with make_vector(Count, 1, wrappers=[given], training=training) as vector:
                vector.reset(0)
                assert vector.step(np.array([0]))[1].tolist() == [paid]


def test_a_share_of_rewards_has_the_wrong_sign() -> None:
    with make_vector("CartPole-v1", 4_000, wrappers=[{"flip_reward": 0.2}]) as vector:
        vector.reset(0)
        reward = vector.step(np.zeros(4_000, np.int64))[1]
    assert set(reward) == {-1.0, 1.0} and abs((reward < 0).mean() - 0.2) < 0.03


def test_a_state_goes_on() -> None:
    given = [{"noise": 0.5}, {"frame_stack": 3}, {"sticky_actions": 0.5}, {"action_delay": 2},
             {"time_in_obs": 9}, {"flip_reward": 0.5}, "sign_reward"]  # fmt: skip
    make = lambda: make_vector(lambda: Count(5), 3, wrappers=given)  # noqa: E731
    actions = np.random.default_rng(0).integers(5, size=(12, 3))
    with make() as one, make() as two:
        one.reset(0)
        for row in actions[:6]:
            one.step(row)
        two.reset(1)
        two.set_state(one.get_state())
        for row in actions[6:]:
            for a, b in zip(one.step(row)[:4], two.step(row)[:4], strict=True):
                assert np.array_equal(a, b)


def test_a_run_is_resumed_and_acts(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env_steps": 256, "num_envs": 2, "horizon": 16, "minibatch_size": 16, "hidden": (8,),
        "eval_episodes": 2, "checkpoint_every": 64, "sinks": (), "compile": False, "root": tmp_path,
        "wrappers": [{"noise": 0.1}, {"frame_stack": 2}, {"scale_reward": 0.5}],
    }  # fmt: skip

    def stop(event: events.Event) -> Any:
        return assay.STOP if event.clock.env_steps >= 96 else None

    whole = assay.train("ppo", "CartPole-v1", name="whole", **settings)
    parts = assay.train("ppo", "CartPole-v1", name="parts", callbacks=[stop], **settings)
    assert_same_run(whole.path, assay.resume(parts.path).path)
    assert assay.load(whole.path).act(np.zeros(8, np.float32)) in (0, 1)
    measured = whole.evaluate(2)
    assert measured.mean == measured.lengths.mean()  # CartPole pays 1 a step, not a half


@pytest.mark.parametrize(
    ("env", "given", "message"),
    [
        (Count, "frame_stak", "frame_stack"),
        (Count, "time_limit", "max_episode_steps"),
        (Count, {"frame_stack": 1}, "frames"),
        (Count, {"frame_stack": {"frame": 2}}, "frame"),
        (Count, {"sign_reward": 2}, "no setting"),
        (Count, {"a": 1, "b": 2}, "is not a wrapper"),
        (Count, "resize", "[{resize: {height: 84}}]"),
        (Count, {"frame_stack": 10**9}, "The wrapper frame_stack would keep 7,629 MiB"),
        (Count, {"obs_delay": 10**9}, "The wrapper obs_delay would keep 7,629 MiB"),
        (Count, {"action_delay": 10**9}, "The wrapper action_delay would keep 7,629 MiB"),
        (Picture, {"resize": 10**6}, "The wrapper resize would keep"),
        (Picture, {"scale_reward": 0}, "factor=0"),
        (Picture, {"scale_reward": 1e308}, "factor=1e+308: input should be less than or equal to"),
        (
            "CartPole-v1",
            {"noise": 1e300},
            "std=1e+300: input should be less than or equal to 1000000000",
        ),
        (Picture, "resize", "For example wrappers=[{resize: {height: 84}}]"),
        (partial(gym.make, "CartPole-v1"), "rescale", "[{clip_obs: 10}, rescale]"),
        (Count, {"hide_sensors": []}, "sensors=[]: expected a list of 1 or more"),
        (Count, "grey", "is for images"),
        (Count, {"hide_sensors": [2]}, "0 to 1"),
        (Count, {"hide_sensors": [0, 1]}, "one must be left"),
        (Count, {"rescale": {"low": 1, "high": 1}}, "low=1"),
        (Picture, {"crop": {"height": 9, "width": 2}}, "8 by 12"),
        (Picture, {"noise": 1}, "floats"),
        (Count, {"noise": {"std": 1, "key": "c"}}, "they are not a Dict"),
        (Parts, {"noise": 1}, "one of a, b"),
        (Parts, {"noise": {"std": 1, "key": "c"}}, "which observations lack"),
    ],
)
def test_refused(env: Any, given: Any, message: str) -> None:
    with pytest.raises(AssayError) as caught:
        make_vector(env, 1, wrappers=[given])
    assert message in f"{caught.value.message} {caught.value.fix}" and caught.value.fix


@pytest.mark.parametrize(("name", "kind"), [*WRAPPERS.items(), *CURRICULA.items()])
def test_the_example_of_a_message_is_right(name: str, kind: Any) -> None:
    given = fast_yaml.load(f"[{example(kind, name)}]".encode())[0]
    made = read_curriculum(given) if name in CURRICULA else read_wrappers([given])[0]
    assert isinstance(made, kind)


def test_clipped_bytes_stay_bytes() -> None:
    with make_vector(Picture, 1, wrappers=[{"clip_obs": 100.5}]) as vector:
        space, seen = vector.spaces.observation, vector.reset(0)
        assert seen.dtype == space.dtype == np.uint8 and seen.max() <= space.high.max() == 100


def test_what_an_example_says_works() -> None:
    with make_vector("CartPole-v1", 2, wrappers=[{"clip_obs": 10}, "rescale"]) as vector:
        assert np.abs(vector.reset(0)).max() <= 1


def test_refused_together() -> None:
    with pytest.raises(AssayError, match="Two wrappers repeat"):
        make_vector(Count, 1, wrappers=[{"action_repeat": 2}, {"frame_skip": 2}])
    with pytest.raises(AssayError, match="steps all copies at once"):
        make_vector(gym.vector.SyncVectorEnv([Count]), wrappers=[{"action_repeat": 2}])


def test_several_agents_see_what_they_see() -> None:
    with make_vector("assay/TwoStep-v0", 2, wrappers=["sign_reward"]) as vector:
        assert vector.spaces.team is not None and vector.spaces.team.size == 2
    with pytest.raises(AssayError, match="has several agents"):
        make_vector("assay/TwoStep-v0", 2, wrappers=[{"noise": {"std": 0.1, "key": "obs"}}])


def test_the_command_line_lists_and_takes_them(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["envs", "wrappers", "--json"])
    assert shown.exit_code == 0 and all(name in shown.stdout for name in WRAPPERS)
    words = ["train", "dqn", "CartPole-v1", "wrappers=[{frame_stack: 2}, sign_rewards]"]
    refused = CliRunner().invoke(app, [*words, "--root", str(tmp_path)])
    assert refused.exit_code == 2 and "sign_reward" in refused.stderr
