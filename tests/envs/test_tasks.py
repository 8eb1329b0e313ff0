"""The tasks that need memory or exploration: rules, registration, saving."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.checks import check_env
from assay.envs.make import make_vector
from assay.envs.tasks import Catch, Chain, Recall

IDS = ["assay/CartPoleNoVel-v1", "assay/Recall-v0", "assay/Chain-v0", "assay/Catch-v0"]


def rollout(env: Any, steps: int = 120, seed: int = 3) -> list[np.ndarray]:
    """Return everything that a vector shows under random actions."""
    rng = np.random.default_rng(5)
    rows = [env.reset(seed)]
    choices = env.spaces.action.n
    for _ in range(steps):
        obs, reward, terminated, truncated, _, final = env.step(
            rng.integers(0, choices, env.num_envs)
        )
        done = terminated | truncated
        rows += [obs, reward, terminated, truncated]
        if done.any():
            rows.append(final[done])
    return rows


@pytest.mark.parametrize("name", IDS)
class TestAll:
    @pytest.mark.parametrize("backend", ["sync", "processes"])
    def test_batched_and_single_are_the_same(self, name: str, backend: Any) -> None:
        with make_vector(name, 3) as fast, make_vector(name, 3, backend=backend) as slow:
            for one, two in zip(rollout(fast), rollout(slow), strict=True):
                np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("backend", ["auto", "sync"])
    def test_restores_exactly(self, name: str, backend: Any) -> None:
        with make_vector(name, 3, backend=backend) as env:
            rollout(env, 37)
            state = env.get_state()
            rng, actions = np.random.default_rng(1), []
            choices = env.spaces.action.n
            first = []
            for _ in range(100):
                actions.append(rng.integers(0, choices, 3))
                first.append(env.step(actions[-1]))
        with make_vector(name, 3, backend=backend) as env:
            env.reset(99)
            env.set_state(state)
            for action, expected in zip(actions, first, strict=True):
                for now, then in zip(env.step(action)[:4], expected[:4], strict=True):
                    np.testing.assert_array_equal(now, then)

    def test_passes_the_environment_check(self, name: str) -> None:
        assert [result for result in check_env(name) if not result.ok] == []


def test_known_without_the_rest_of_assay() -> None:
    code = (
        "import gymnasium as gym; "
        "env = gym.make('assay.envs.tasks:assay/Recall-v0', delay=3); env.reset(seed=1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestCartPoleNoVel:
    @pytest.mark.parametrize("n", [1, 4])
    def test_is_cartpole_without_velocities(self, n: int) -> None:
        with make_vector("CartPole-v1", n) as full, make_vector("assay/CartPoleNoVel-v1", n) as env:
            rng = np.random.default_rng(0)
            np.testing.assert_array_equal(full.reset(1)[:, [0, 2]], env.reset(1))
            for _ in range(100):
                action = rng.integers(0, 2, n)
                obs, *rest, final = full.step(action)
                seen, *others, last = env.step(action)
                np.testing.assert_array_equal(obs[:, [0, 2]], seen)
                for one, two in zip(rest[:3], others[:3], strict=True):
                    np.testing.assert_array_equal(one, two)
                assert (final is None) == (last is None)
                if final is not None:
                    np.testing.assert_array_equal(final[:, [0, 2]], last)
            assert env.spaces.observation.contains(seen[0])

    def test_limit(self) -> None:
        assert gym.make("assay/CartPoleNoVel-v1").spec.max_episode_steps == 500  # type: ignore[union-attr]
        assert make_vector("assay/CartPoleNoVel-v1").backend.env.max_episode_steps == 500  # type: ignore[attr-defined]


class TestRecall:
    def test_an_episode(self) -> None:
        env = Recall(3, delay=2, cues=4)
        cue, _ = env.reset(seed=0)
        shown = cue[:, :4].argmax(1)
        assert cue.sum(1).tolist() == [1, 1, 1] and not cue[:, 4].any()
        answers = [np.zeros(3, np.int64), shown, np.zeros(3, np.int64)]
        for t, answer in enumerate(answers):
            obs, reward, terminated, _, _ = env.step(answer)
            assert not reward.any() and not terminated.any()  # an early answer earns nothing
            assert not obs[:, :4].any()
            assert obs[:, 4].tolist() == [float(t == 2)] * 3
        wrong = (shown + np.array([0, 1, 0])) % 4
        obs, reward, terminated, truncated, info = env.step(wrong)
        assert reward.tolist() == [1, 0, 1]
        assert terminated.all() and not truncated.any()
        assert not info["final_obs"].any()
        assert obs[:, :4].sum(1).tolist() == [1, 1, 1]  # the next cue

    def test_default_delay_and_fair_cues(self) -> None:
        env = Recall(200)
        obs, _ = env.reset(seed=1)
        counts = obs[:, :4].sum(0)
        assert counts.sum() == 200 and counts.min() > 30
        steps = 0
        while True:
            steps += 1
            _, _, terminated, _, _ = env.step(np.zeros(200, np.int64))
            if terminated.all():
                break
        assert steps == 12  # the cue, ten blanks, the question

    @pytest.mark.parametrize("bad", [{"delay": -1}, {"cues": 1}, {"delay": 1.5}])
    def test_refuses(self, bad: dict[str, Any]) -> None:
        with pytest.raises(EnvError, match=next(iter(bad))):
            Recall(**bad)
        with pytest.raises(EnvError, match=next(iter(bad))):
            make_vector("assay/Recall-v0", env_kwargs=bad)


class TestChain:
    def test_walk(self) -> None:
        env = Chain(2, length=4)
        obs, _ = env.reset(seed=0)
        assert obs.tolist() == [[1, 0, 0, 0]] * 2
        first, second, third = env.onward[:3]
        obs, reward, terminated, _, _ = env.step(np.array([1 - first, first]))
        assert reward.tolist() == [0.001, 0.0]
        assert obs.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
        env.step(np.array([first, second]))
        obs, reward, terminated, _, info = env.step(np.array([second, third]))
        assert reward.tolist() == [0.0, 1.0] and terminated.tolist() == [False, True]
        assert info["final_obs"][1].tolist() == [1, 1, 1, 1]
        assert obs.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]

    def test_repeating_one_action_does_not_reach_the_end(self) -> None:
        for action in (0, 1):
            env = Chain(1)
            env.reset(seed=0)
            assert not any(env.step(np.array([action]))[2][0] for _ in range(80))
        assert Chain(1).onward.tolist() == Chain(3).onward.tolist()

    def test_going_back_from_inside_pays_nothing(self) -> None:
        env = Chain(1, length=4)
        env.reset(seed=0)
        env.step(env.onward[:1])
        obs, reward, *_ = env.step(1 - env.onward[1:2])
        assert reward[0] == 0.0 and obs[0].tolist() == [1, 0, 0, 0]

    def test_limit(self) -> None:
        env = Chain(1, length=4)
        env.reset(seed=0)
        ends = [bool(env.step(1 - env.onward[:1])[3][0]) for _ in range(8)]
        assert ends == [False] * 7 + [True]

    def test_a_random_walk_does_not_find_the_reward(self) -> None:
        env = Chain(500)
        rng = np.random.default_rng(0)
        env.reset(seed=0)
        found = 0
        for _ in range(320):  # 2000 episodes
            found += int(env.step(rng.integers(0, 2, 500))[2].sum())
        assert found == 0


def test_single_refuses_a_step_after_the_end() -> None:
    env = gym.make("assay/Recall-v0", delay=0).unwrapped
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    with pytest.raises(EnvError, match="over"):
        env.step(0)


class TestCatch:
    def test_an_episode(self) -> None:
        env = Catch(2, cells=4)
        obs, _ = env.reset(seed=2)
        assert obs.shape == (2, 1, 8, 8) and obs.dtype == np.uint8
        ball, paddle = (obs[:, 0, row, ::2].argmax(1) for row in (0, 7))
        assert (obs == 255).sum((1, 2, 3)).tolist() == [8, 8]  # two squares of two by two
        for t in range(3):
            # The first copy goes to the ball, the second one away from it.
            away = np.where(ball[1] < 2, 1, -1)
            move = np.array([np.sign(ball[0] - paddle[0]), away])
            paddle = np.clip(paddle + move, 0, 3)
            obs, reward, terminated, truncated, info = env.step(move + 1)
            assert terminated.tolist() == [t == 2] * 2 and not truncated.any()
            shown = info["final_obs"] if t == 2 else obs
            assert (shown[np.arange(2), 0, 2 * t + 2, 2 * ball] == 255).all()
            assert (shown[np.arange(2), 0, 7, 2 * paddle] == 255).all()
        assert reward.tolist() == [1, 0]

    def test_a_blind_fall_is_not_shown(self) -> None:
        env = Catch(1, cells=5, blind=2)
        obs, _ = env.reset(seed=0)
        seen = [bool(obs[0, 0, :8].any())]
        for _ in range(3):
            obs = env.step(np.array([1]))[0]
            seen.append(bool(obs[0, 0, :8].any()))
        assert seen == [True, True, False, False]  # rows 2 and 3 of 5

    def test_a_ball_that_is_never_seen_is_refused(self) -> None:
        with pytest.raises(EnvError, match="blind is 7; at most 6"):
            Catch(1, blind=7)
