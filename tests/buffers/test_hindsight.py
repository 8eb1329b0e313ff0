"""Hindsight replay: the contract, which goals it takes, and what it computes again for them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import assay
from assay.buffers.hindsight import HindsightOptions, HindsightReplay, Strategy
from assay.core.errors import AssayError, ConfigError, EnvError, SpaceError
from assay.core.types import Batch, Spaces, Transition, Tree
from assay.envs.make import make_env, make_vector
from assay.evaluation.evaluate import evaluate
from assay.testing.algorithms import Rig
from assay.testing.buffers import EPISODE, LANE, BufferContract
from assay.testing.envs import BitFlip, GoalPoint

LINE = Box(-1e6, 1e6, (1,), np.float32)
SPACES = Spaces(
    Dict({"observation": LINE, "achieved_goal": LINE, "desired_goal": LINE}), Discrete(2)
)


def tagged_goals(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the reward and end that the contract feeds; they follow from what was achieved."""
    tag = achieved[:, 0].astype(int) - 1
    step = tag % LANE
    return tag.astype(float), (step % EPISODE == EPISODE - 1) & (step // EPISODE % 2 == 0)


class Checked(HindsightReplay):
    """Check the goals of every batch, then hide them, as the contract knows only what it fed."""

    def sample(self, batch_size: int, beta: float = 1.0) -> Batch:
        batch = super().sample(batch_size, beta)
        tag = batch.obs["observation"].numpy()[:, 0].astype(int)
        goal = batch.obs["desired_goal"].numpy()[:, 0].astype(int)
        np.testing.assert_array_equal(goal, batch.next_obs["desired_goal"].numpy()[:, 0])
        told = round(self.options.ratio * batch_size)
        assert (goal[told:] == 0).all()
        tag, goal = tag[:told], goal[:told]
        # Goals are numbers of next observations: 1 more than the transition's they come from.
        assert (goal - 1 >= (tag if self.options.strategy != "episode" else tag // 5 * 5)).all()
        assert ((goal - 1) // EPISODE == tag // EPISODE).all()
        for part in (batch.obs, batch.next_obs):
            part["desired_goal"].zero_()
        return batch


class TestFuture(BufferContract):
    spaces = Spaces(SPACES.observation, BufferContract.spaces.action)
    strategy: Strategy = "future"

    def make(self, *, capacity: int, num_envs: int, seed: int) -> HindsightReplay:
        options, rng = HindsightOptions(self.strategy, 0.75), np.random.default_rng(seed)
        return Checked(
            self.spaces, capacity, num_envs, rng=rng, options=options, goals=tagged_goals
        )

    def observe(self, tags: np.ndarray) -> Tree:
        shown = tags[:, None].astype(np.float32)
        return {"observation": shown, "achieved_goal": shown, "desired_goal": 0 * shown}

    def identify(self, obs: Tree) -> np.ndarray:
        return obs["observation"][:, 0].astype(int)


class TestFinal(TestFuture):
    strategy = "final"


class TestEpisode(TestFuture):
    strategy = "episode"


def sparse(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reached = achieved[:, 0] == desired[:, 0]
    return reached - 1.0, reached


def make_replay(
    strategy: Strategy = "future",
    ratio: float = 1.0,
    capacity: int = 100,
    num_envs: int = 1,
    goals: Any = sparse,
) -> HindsightReplay:
    options, rng = HindsightOptions(strategy, ratio), np.random.default_rng(0)
    return HindsightReplay(SPACES, capacity, num_envs, rng=rng, options=options, goals=goals)


def put(replay: HindsightReplay, *lanes: tuple[int, bool, bool], valid: Any = None) -> None:
    """Add a step of every environment: (number t, terminated, truncated); t + 1 is achieved."""
    t, terminated, truncated = (np.array(column) for column in zip(*lanes, strict=True))

    goal = np.where(terminated, t + 1.0, -1.0)[:, None].astype(np.float32)

    def observe(number: np.ndarray) -> Tree:
        shown = number[:, None].astype(np.float32)
        return {"observation": shown, "achieved_goal": shown, "desired_goal": goal}

    reward = np.where(terminated, 0.0, -1.0)
    replay.add(Transition(observe(t), t % 2, reward, observe(t + 1), terminated, truncated, valid))


def goals_of(replay: HindsightReplay, batches: int = 40) -> dict[int, set[int]]:
    """Return which goals each transition was told."""
    found: dict[int, set[int]] = {}
    for _ in range(batches):
        batch = replay.sample(16)
        told = batch.obs["desired_goal"][:, 0].tolist()
        for t, goal in zip(batch.obs["observation"][:, 0].tolist(), told, strict=True):
            found.setdefault(int(t), set()).add(int(goal))
    return found


def episodes(replay: HindsightReplay, *lengths: int, running: int = 0) -> None:
    """Add episodes of one environment, numbered on, and the beginning of another."""
    t = 0
    for i, length in enumerate(lengths):
        for step in range(length):
            over = step == length - 1
            put(replay, (t, over and i % 2 == 0, over and i % 2 == 1))
            t += 1
    for step in range(running):
        put(replay, (t + step, False, False))


class TestGoals:
    def test_future_of_the_same_episode(self) -> None:
        replay = make_replay()
        episodes(replay, 3, 2, running=2)
        # Achieved after t or later: never before, and never in another episode.
        assert goals_of(replay) == {
            0: {1, 2, 3}, 1: {2, 3}, 2: {3}, 3: {4, 5}, 4: {5}, 5: {6, 7}, 6: {7},
        }  # fmt: skip

    def test_final(self) -> None:
        replay = make_replay("final")
        episodes(replay, 3, 2, running=2)
        assert goals_of(replay) == {0: {3}, 1: {3}, 2: {3}, 3: {5}, 4: {5}, 5: {7}, 6: {7}}

    def test_episode(self) -> None:
        replay = make_replay("episode")
        episodes(replay, 3, 2, running=2)
        first, second, third = {1, 2, 3}, {4, 5}, {6, 7}
        assert goals_of(replay) == {
            0: first, 1: first, 2: first, 3: second, 4: second, 5: third, 6: third,
        }  # fmt: skip

    def test_after_the_ring_has_wrapped(self) -> None:
        for strategy, cut in (("future", {4: {5, 6}, 5: {6}}), ("episode", {4: {5, 6}, 5: {5, 6}})):
            replay = make_replay(strategy, capacity=5)  # type: ignore[arg-type]
            episodes(replay, 3, 3, running=3)  # 0..2 | 3..5 | 6..8: 4..8 are left
            expected = cut | {6: {7, 8, 9}, 7: {8, 9}, 8: {9}}
            if strategy == "episode":
                expected |= {t: {7, 8, 9} for t in (6, 7, 8)}
            assert goals_of(replay) == expected
            # And so it stays, lap after lap.
            for t in range(9, 40):
                put(replay, (t, t % 4 == 0, False))
            assert all(
                t < goal <= -(-t // 4) * 4 + 1 or strategy == "episode"
                for t, goals in goals_of(replay).items()
                for goal in goals
            )

    def test_a_running_episode_grows(self) -> None:
        replay = make_replay("final")
        put(replay, (0, False, False))
        assert goals_of(replay) == {0: {1}}
        put(replay, (1, False, False))
        assert goals_of(replay) == {0: {2}, 1: {2}}

    def test_environments_end_their_episodes_apart(self) -> None:
        replay = make_replay(num_envs=2)
        put(replay, (0, False, False), (100, False, True))
        put(replay, (1, False, False), (101, False, False), valid=np.array([True, False]))
        put(replay, (2, False, True), (102, False, False))
        put(replay, (3, False, False), (103, False, False))
        assert goals_of(replay) == {
            0: {1, 2, 3}, 1: {2, 3}, 2: {3}, 3: {4}, 100: {101}, 102: {103, 104}, 103: {104},
        }  # fmt: skip

    def test_a_row_that_is_no_transition_ends_nothing(self) -> None:
        replay = make_replay(num_envs=2)
        put(replay, (0, False, False), (100, False, False))
        put(replay, (1, False, False), (101, True, False), valid=np.array([True, False]))
        put(replay, (2, True, False), (102, False, False))
        assert goals_of(replay) == {
            0: {1, 2, 3}, 1: {2, 3}, 2: {3}, 100: {101, 103}, 102: {103},
        }  # fmt: skip

    def test_a_cut_ends_the_episode(self) -> None:
        replay = make_replay()
        episodes(replay, 2, running=2)
        replay.cut_episodes()
        put(replay, (4, False, False))
        goals = {0: {1, 2}, 1: {2}, 2: {3, 4}, 3: {4}, 4: {5}}
        assert goals_of(replay) == goals
        other = make_replay()  # ends are found again from what is stored
        other.load_state(replay.state())
        assert goals_of(other) == goals

    def test_a_share_is_relabelled(self) -> None:
        replay = make_replay(ratio=0.25)
        episodes(replay, 4)
        for _ in range(20):
            batch = replay.sample(8)
            goals, t = (batch.obs[key][:, 0] for key in ("desired_goal", "observation"))
            # Their own goals: -1, and in the last step, which is terminated, what it reached.
            assert (goals[:2] > 0).all() and (goals[2:] == torch.where(t[2:] == 3, 4.0, -1.0)).all()
        own = {0: {-1}, 1: {-1}, 2: {-1}, 3: {4}}
        assert goals_of(make_and_fill(ratio=0.0)) == own

    def test_reward_and_end_are_computed_again(self) -> None:
        replay = make_replay("final")
        episodes(replay, 2, 3)  # the second is truncated, so nothing was reached
        for _ in range(10):
            batch = replay.sample(16)
            t = batch.obs["observation"][:, 0].numpy()
            last = np.isin(t, (1, 4))
            np.testing.assert_array_equal(batch.reward.numpy(), last - 1.0)
            np.testing.assert_array_equal(batch.terminated.numpy(), last)
            np.testing.assert_array_equal(batch.truncated.numpy(), t == 4)
            np.testing.assert_array_equal(batch.next_obs["achieved_goal"][:, 0].numpy(), t + 1)

    def test_an_unreached_goal_no_longer_terminates(self) -> None:
        """Transition 1 ended by its own goal; told that of another step, it goes on."""
        goals = lambda a, d: (np.full(len(a), -1.0), np.zeros(len(a), bool))  # noqa: E731
        replay = make_replay(goals=goals)
        episodes(replay, 2)
        assert replay.sample(64).terminated.sum() == 0

    def test_memory_is_that_of_a_plain_replay(self) -> None:
        with pytest.raises(ConfigError, match="available"):
            make_replay(capacity=10**14)


def make_and_fill(ratio: float) -> HindsightReplay:
    replay = make_replay(ratio=ratio)
    episodes(replay, 4)
    return replay


class Plain(gym.Wrapper[Any, Any, Any, Any]):
    """Doubles the reward, which `compute_reward` does not know."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * float(reward), *rest


class Worded(BitFlip):
    """Fails on batches, and needs an info that no replay has."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return info["over"]


class WholeNorm(GoalPoint):
    """A reward that takes a batch for one long goal."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -float(np.linalg.norm(achieved_goal - desired_goal) > 0.2)


class Blended(GoalPoint):
    """A reward that mixes up the goals of a batch."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.abs(achieved_goal - desired_goal.mean())[..., 0] > 0.2).astype(np.float32)


SMALL: dict[str, Any] = {"her": "future", "buffer_size": 500, "learning_starts": 20}


class TestEnvironments:
    @pytest.mark.parametrize("backend", ["sync", "processes"])
    def test_goal_functions(self, backend: Any) -> None:
        with make_vector(partial(BitFlip, 3), 2, backend=backend) as envs:
            goals = envs.goal_functions()
            achieved = np.array([[0, 1, 1], [0, 0, 0]], np.int8)
            reward, terminated = goals(achieved, np.array([[0, 1, 1], [0, 0, 1]], np.int8))
            assert reward.tolist() == [0, -1] and terminated.tolist() == [True, False]

    def test_row_by_row_where_batches_do_not_work(self) -> None:
        for env in (GoalPoint, WholeNorm, Blended):
            goals = make_vector(env).goal_functions()
            assert goals._whole == (env is GoalPoint, True)  # it never ends: one answer for all
            reward, terminated = goals(np.zeros((3, 1), np.float32), np.array([[0], [0.1], [5]]))
            assert reward.tolist() == [0, 0, -1] and not terminated.any()

    def test_a_vector_environment_lends_its_first(self) -> None:
        made = gym.vector.SyncVectorEnv([partial(BitFlip, 3)] * 2)
        assert make_vector(made).goal_functions()(*[np.zeros((2, 3), np.int8)] * 2)[1].all()

    def test_names_what_is_missing(self) -> None:
        class Without(BitFlip):
            compute_terminated = None  # type: ignore[assignment]

        with pytest.raises(EnvError, match="has no compute_terminated") as error:
            Rig("dqn", Without, **SMALL)
        assert "Define compute_terminated in the environment; it returns" in str(error.value)
        with pytest.raises(SpaceError, match="her needs observations with the entry"):
            Rig("sac", "Pendulum-v1", **SMALL)
        with pytest.raises(EnvError, match="failed in compute_terminated"):
            Rig("dqn", Worded, **SMALL)
        with pytest.raises(SpaceError, match="entry 'observation'"):
            HindsightReplay(
                Spaces(LINE, Discrete(2)), 10, rng=np.random.default_rng(0),
                options=HindsightOptions(), goals=sparse,
            )  # fmt: skip

    def test_refuses_to_mix_two_rewards(self) -> None:
        rig = Rig("dqn", lambda: Plain(BitFlip()), **SMALL)
        with pytest.raises(ConfigError, match=r"reward=-2\.0, but its compute_reward\(\) says -1"):
            rig.train(10)

    def test_an_end_that_is_no_goal_is_refused_when_it_happens(self) -> None:
        class Falling(BitFlip):
            def step(self, action: Any) -> Any:
                obs, reward, terminated, truncated, info = super().step(action)
                return obs, reward, terminated or self.np_random.random() < 0.3, truncated, info

        rig = Rig("dqn", Falling, **SMALL)
        with pytest.raises(ConfigError, match=r"terminated=True, but its compute_terminated"):
            rig.train(200)

    @pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "tqc", "redq", "crossq", "dqn"])
    def test_settings(self, name: str) -> None:
        env = BitFlip if name == "dqn" else GoalPoint
        rig = Rig(name, env, her="final", her_ratio=0.5)
        assert rig.algorithm.needs.her == HindsightOptions("final", 0.5)  # type: ignore[union-attr]
        assert isinstance(rig.loop.replay, HindsightReplay)  # type: ignore[union-attr]
        assert type(Rig(name, env).loop.replay) is not HindsightReplay  # type: ignore[union-attr]
        with pytest.raises(ConfigError, match="her=future does not work with n_step=3"):
            Rig(name, env, her="future", n_step=3)
        with pytest.raises(ConfigError, match=r"her_ratio=0\.5 has no effect with her=null"):
            Rig(name, env, her_ratio=0.5)

    def test_refuses_priorities(self) -> None:
        with pytest.raises(ConfigError, match="her=future does not work with prioritized=True"):
            Rig("dqn", BitFlip, her="future", prioritized=True)


class TestResume:
    @pytest.mark.parametrize("env", [partial(BitFlip, 4), GoalPoint], ids=["saved", "barrier"])
    def test_is_exact(self, env: Any, tmp_path: Path) -> None:
        """A run that stopped half-way and went on ends like one that never stopped."""
        name = "dqn" if env is not GoalPoint else "sac"
        settings: dict[str, Any] = {
            "her": "future", "env_steps": 240, "learning_starts": 20, "batch_size": 16,
            "buffer_size": 70, "hidden": (8,), "train_every": 4, "num_envs": 2, "device": "cpu",
            "checkpoint_every": 60, "eval_every": 0, "compile": False, "log_every": 60,
        }  # fmt: skip
        whole = assay.train(name, env, root=tmp_path / "a", **settings)

        def stop(event: Any) -> Any:
            saved = type(event).__name__ == "CheckpointSaved"
            return assay.STOP if saved and event.clock.env_steps >= 120 else None

        half = assay.train(name, env, root=tmp_path / "b", callbacks=[stop], **settings)
        assert half.status == "interrupted"
        again = assay.resume(half.path, env=env)
        assert again.status == "done"
        one, two = (assay.load(run.path).algorithm.state()["weights"] for run in (whole, again))
        for module, arrays in one.items():
            for key, array in arrays.items():
                np.testing.assert_array_equal(array, two[module][key])


class TestLearns:
    @pytest.mark.parametrize(("her", "reaches"), [("future", True), (None, False)])
    def test_to_flip_bits(self, her: str | None, reaches: bool) -> None:
        """With hindsight 8 bits are learned within seconds; without it, next to nothing is."""
        rig = Rig(
            "dqn", partial(BitFlip, 8), env_steps=4000, num_envs=4, her=her, lr=2e-3,
            batch_size=128, train_every=8, updates=2, learning_starts=300, buffer_size=20_000,
            tau=0.05, hidden=(64,), gamma=0.95, max_grad_norm=None,
        )  # fmt: skip
        result = evaluate(rig.train().algorithm, rig.source, episodes=100, seed=0)
        assert result.success_rate is not None
        assert (result.success_rate > 0.9) if reaches else (result.success_rate < 0.3)

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("sac", {"tau": 0.05}),
            ("redq", {"env_steps": 2400, "tau": 0.05, "updates": 2, "n_critics": 3}),
            (
                "crossq",
                {
                    "env_steps": 4000, "train_every": 2, "lr": 2e-3, "batch_size": 128,
                    "critic_hidden": (64,), "norm_momentum": 0.95,
                },
            ),
        ],
        ids=["sac", "redq", "crossq"],
    )  # fmt: skip
    def test_to_reach_a_point(self, name: str, settings: dict[str, Any]) -> None:
        """Without hindsight, next to none to half of the points are reached."""
        plain: dict[str, Any] = {
            "env_steps": 3000, "num_envs": 4, "lr": 3e-3, "batch_size": 64, "train_every": 4,
            "learning_starts": 300, "buffer_size": 5000, "hidden": (32,), "gamma": 0.9,
        }  # fmt: skip
        rig = Rig(name, GoalPoint, her="future", **(plain | settings))
        result = evaluate(rig.train().algorithm, GoalPoint, episodes=50, seed=0)
        assert result.success_rate is not None and result.success_rate > 0.9


def test_fetch_is_known_and_speaks_of_success() -> None:
    env = make_env("FetchReach-v4")
    assert env.spec is not None and env.spec.max_episode_steps == 50
    with make_vector("FetchReach-v4", 2) as envs:
        assert envs.goal_functions()._whole == (True, True)
        envs.reset(1)
        assert envs.success is not None and np.isnan(envs.success).all()
        envs.step(np.zeros((2, 4), np.float32))
        assert envs.success.tolist() == [0.0, 0.0]


def test_a_misspelt_robot_is_named() -> None:
    with pytest.raises(AssayError, match="Did you mean 'FetchReach-v4'"):
        make_env("FetchReech-v4")
