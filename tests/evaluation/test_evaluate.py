"""Evaluation plays a fixed set of episodes, and nothing but them counts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from assay.core.errors import ConfigError, RunError
from assay.core.types import Action
from assay.envs.make import make_vector
from assay.evaluation.evaluate import (
    EvaluationResult,
    episode_seed,
    evaluate,
    load_evaluations,
    save_evaluation,
)
from assay.runs.files import RunWarning


class Walk(gym.Env[np.ndarray, np.ndarray]):
    """Episodes of 1 to 30 steps, as the seed has it; the reward is the action.

    Observations are the steps since the reset. Episodes of an even length terminate, others are
    truncated.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 100, (1,))
        self.action_space = gym.spaces.Box(-50, 50, (1,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 31))
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == self.length
        even = self.length % 2 == 0
        obs = np.full(1, self.steps, np.float32)
        return obs, float(action[0]), over and even, over and not even, {}


class Counter:
    """Carries the number of steps since the start of the episode, and plays it."""

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        self.explored: set[bool] = set()

    def initial_carry(self, n: int) -> dict[str, np.ndarray]:
        return {"count": np.zeros(n)}

    def act(self, obs: np.ndarray, carry: dict[str, np.ndarray], explore: bool) -> Action:
        count = carry["count"]
        self.seen.append((obs[:, 0].copy(), count.copy()))
        self.explored.add(explore)
        return Action(count[:, None].astype(np.float32), {"count": count + 1})


class Constant:
    """Plays one number."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def initial_carry(self, n: int) -> None:
        return None

    def act(self, obs: np.ndarray, carry: None, explore: bool) -> Action:
        return Action(np.full((len(obs), 1), self.value, np.float32))


class Balance:
    """A decent player of CartPole."""

    def initial_carry(self, n: int) -> None:
        return None

    def act(self, obs: np.ndarray, carry: None, explore: bool) -> Action:
        return Action((obs[:, 2] + 0.2 * obs[:, 3] > 0).astype(np.int64))


def length_of(seed: int) -> int:
    env = Walk()
    env.reset(seed=seed)
    return env.length


@pytest.mark.parametrize("num_envs", [1, 3, 7, 20])
def test_parallel_evaluation_equals_one_episode_after_the_other(num_envs: int) -> None:
    lengths = [length_of(episode_seed(5, k)) for k in range(20)]
    assert max(lengths) > 5 * min(lengths)  # else nothing could be biased
    result = evaluate(Constant(), Walk, episodes=20, seed=5, num_envs=num_envs)
    assert result.lengths.tolist() == lengths
    assert result.returns.tolist() == lengths
    assert result.terminated.tolist() == [n % 2 == 0 for n in lengths]
    assert result.truncated.tolist() == [n % 2 == 1 for n in lengths]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_autoreset_mode_gives_the_same_episodes(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([Walk] * 4, autoreset_mode=mode)
    result = evaluate(Counter(), env, episodes=10, seed=3)
    lengths = [length_of(episode_seed(3, k)) for k in range(10)]
    assert result.lengths.tolist() == lengths
    # 0 + 1 + ... + (n - 1), which only a carry that restarts in every episode gives
    assert result.returns.tolist() == [n * (n - 1) / 2 for n in lengths]
    env.reset(seed=0)  # the caller's environment is still open


def test_no_episode_starts_with_an_old_carry() -> None:
    agent = Counter()
    evaluate(agent, Walk, episodes=8, seed=1, num_envs=8)
    assert len(agent.seen) > 2 * min(length_of(episode_seed(1, k)) for k in range(8))
    for obs, count in agent.seen:
        assert obs.tolist() == count.tolist()


def test_a_row_that_is_reset_in_a_step_of_its_own_starts_with_a_new_carry() -> None:
    agent = Counter()
    env = SyncVectorEnv([Walk] * 8, autoreset_mode=AutoresetMode.NEXT_STEP)
    evaluate(agent, env, episodes=8, seed=1)
    begun = [count[obs == 0] for obs, count in agent.seen]
    assert sum(len(counts) for counts in begun) > 8  # rows that play on unseen are among them
    assert not np.concatenate(begun).any()


def test_the_agents_own_carry_is_not_written_to() -> None:
    class Holder(Counter):
        def act(self, obs: np.ndarray, carry: dict[str, np.ndarray], explore: bool) -> Action:
            action = super().act(obs, carry, explore)
            action.carry["count"].flags.writeable = False
            return action

    evaluate(Holder(), Walk, episodes=4, seed=1, num_envs=4)


def test_the_agent_does_not_explore_unless_asked() -> None:
    agent = Counter()
    evaluate(agent, Walk, episodes=2, seed=1)
    assert agent.explored == {False}
    evaluate(agent, Walk, episodes=2, seed=1, explore=True)
    assert agent.explored == {False, True}


def test_actions_are_clipped_to_their_space() -> None:
    result = evaluate(Constant(1e6), Walk, episodes=3, seed=1)
    assert result.returns.tolist() == [50.0 * n for n in result.lengths]


def test_the_seed_decides_and_each_episode_can_be_played_again() -> None:
    first, again, other = (
        evaluate(Balance(), "CartPole-v1", episodes=6, seed=seed) for seed in (1, 1, 2)
    )
    assert first.to_json() == again.to_json()
    assert set(first.seeds.tolist()).isdisjoint(other.seeds.tolist())
    env = gym.make("CartPole-v1")
    for seed, expected in zip(first.seeds.tolist(), first.returns.tolist(), strict=True):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action = int(Balance().act(obs[None], None, False).action[0])
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        assert total == expected


def test_an_existing_environment_is_used_and_left_open() -> None:
    with make_vector(Walk, 2) as vector:
        shared = evaluate(Constant(), vector, episodes=5, seed=5, num_envs=50)
        vector.reset(0)
    env = Walk()
    env.close = lambda: pytest.fail("closed")  # type: ignore[method-assign]
    single = evaluate(Constant(), env, episodes=5, seed=5)
    assert shared.to_json() == single.to_json()


def test_statistics_of_the_returns_worked_out_by_hand() -> None:
    result = EvaluationResult(
        0,
        np.array([0.0, 2.0, 4.0, 10.0]),
        np.array([1, 2, 3, 4]),
        np.array([True, True, False, False]),
        np.array([False, False, True, True]),
        np.array([7, 8, 9, 10]),
    )
    assert result.mean == 4.0
    assert result.iqm == 3.0  # of 2 and 4
    assert result.std == pytest.approx(14**0.5)  # squares 16 + 4 + 0 + 36 over 4
    content = result.to_json()
    assert content["episodes"][3] == {
        "return": 10.0,
        "length": 4,
        "terminated": False,
        "truncated": True,
        "seed": 10,
    }
    assert {key: content[key] for key in ("seed", "mean", "iqm")} == {
        "seed": 0,
        "mean": 4.0,
        "iqm": 3.0,
    }


def test_saved_evaluations_come_back_by_label_in_order(make_run: Any) -> None:
    run = make_run("x", {})
    late = evaluate(Constant(), Walk, episodes=3, seed=2)
    early = evaluate(Constant(2.0), Walk, episodes=3, seed=1)
    save_evaluation(run, 10_000, late)
    save_evaluation(run, 9_000, early)
    save_evaluation(run, 10_000, early, label="manual")
    loaded = load_evaluations(run)
    assert [steps for steps, _ in loaded] == [9_000, 10_000]
    assert [result.to_json() for _, result in loaded] == [early.to_json(), late.to_json()]
    assert len(load_evaluations(run, label="manual")) == 1


def test_what_cannot_be_stored_after_the_training_is_a_warning(
    make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("x", {})
    result = evaluate(Constant(), Walk, episodes=3, seed=2)
    monkeypatch.setattr(os, "open", raises(OSError(errno.EROFS, "Read-only file system")))
    monkeypatch.setattr("builtins.open", raises(OSError(errno.EROFS, "Read-only file system")))
    with pytest.warns(RunWarning, match="is not stored. Cannot write .* read-only"):
        save_evaluation(run, 10_000, result, label="seed0")
    with pytest.raises(RunError, match="read-only"):
        save_evaluation(run, 10_000, result)


def raises(error: Exception) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "content",
    ['{"env_steps": 5, "seed": 1, "episodes": []}', '{"env_steps": 5, "episodes": [{}]}', "{"],
)
def test_a_damaged_evaluation_is_named(make_run: Any, content: str) -> None:
    run = make_run("x", {})
    (run.eval_path / "000000000005-training.json").write_text(content)
    with pytest.raises(RunError, match="x/eval"):
        load_evaluations(run)


def test_episodes_are_truncated_where_it_was_asked_for() -> None:
    whole = evaluate(Constant(), Walk, episodes=4, seed=5)
    limit = int(whole.lengths.max()) - 1
    cut = evaluate(Constant(), Walk, episodes=4, seed=5, max_episode_steps=limit)
    longer = whole.lengths > limit
    assert longer.any() and not longer.all()
    assert np.array_equal(cut.lengths, np.minimum(whole.lengths, limit))
    assert np.array_equal(cut.truncated, whole.truncated | longer)
    assert np.array_equal(cut.terminated, whole.terminated & ~longer)
    assert np.array_equal(cut.returns[~longer], whole.returns[~longer])


@pytest.mark.parametrize(
    "wrong",
    [{"episodes": 0}, {"episodes": 2, "num_envs": 0}, {"episodes": 2, "max_episode_steps": 0}],
)
def test_numbers_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected at least 1"):
        evaluate(Constant(), Walk, seed=1, **wrong)


def test_evaluation_is_importable_without_torch_and_plots_without_matplotlib() -> None:
    code = (
        "import sys; import assay.evaluation.compare, assay.evaluation.plots, "
        "assay.evaluation.evaluate, assay.evaluation.video; "
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
