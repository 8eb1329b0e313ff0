"""No episode is endless: a limit that was asked for, and a bound where there is none."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Counter, Masked, SavesItself
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import assay
from assay.core.errors import ConfigError, EnvError
from assay.core.types import Action
from assay.envs import make
from assay.envs.limits import EPISODE_BOUND
from assay.envs.make import make_env, make_vector
from assay.evaluation.evaluate import evaluate, rows_to_evaluate
from assay.loops.config import resolve
from assay.loops.events import CheckpointSaved
from assay.testing.algorithms import assert_same_run

LONG = 10**9


@pytest.fixture
def low_bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let episodes that nothing else ends be truncated after 100 steps."""
    for module in ("limits", "make"):
        monkeypatch.setattr(f"assay.envs.{module}.EPISODE_BOUND", 100)
    defaults = make._from_factory.__defaults__
    assert defaults is not None and defaults[-1] == EPISODE_BOUND
    monkeypatch.setattr(make._from_factory, "__defaults__", (*defaults[:-1], 100))
    return 100


class Always:
    """An agent that does one thing."""

    def __init__(self, action: int = 0) -> None:
        self.action = action

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        return Action(np.full(len(obs), self.action))

    def initial_carry(self, n: int) -> None:
        return None


def endless() -> gym.Env:
    return Counter(LONG)


def lengths(envs: Any, steps: int, action: Any = None) -> list[list[int]]:
    """Return the lengths of the episodes that end in so many steps, all by truncation."""
    envs.reset(seed=0)
    begun, found = np.zeros(envs.num_envs, int), [[] for _ in range(envs.num_envs)]
    for t in range(1, steps + 1):
        given = np.zeros(envs.num_envs, np.int64) if action is None else action(t)
        _, _, terminated, truncated, _, final = envs.step(given)
        assert not terminated.any()
        assert (final is not None) == truncated.any()
        for row in np.flatnonzero(truncated):
            found[row].append(t - int(begun[row]))
            begun[row] = t
    return found


def there_and_back(t: int) -> np.ndarray:
    return np.full(3, t % 2)


@pytest.mark.parametrize("backend", ["native", "vector", "sync", "processes"])
def test_the_setting_limits_ids_in_every_backend(backend: Any) -> None:
    with make_vector("CartPole-v1", 3, backend=backend, max_episode_steps=4) as envs:
        assert envs.limit == 4
        if backend == "vector":  # resets in the step after
            envs.reset(seed=0)
            cut = [envs.step(there_and_back(t))[3].all() for t in range(9)]
            assert cut == [False, False, False, True, False, False, False, False, True]
        else:
            assert lengths(envs, 9, there_and_back) == [[4, 4]] * 3


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_the_setting_limits_factories(backend: Any) -> None:
    with make_vector(endless, 2, backend=backend, max_episode_steps=3) as envs:
        assert lengths(envs, 7) == [[3, 3]] * 2


def test_the_last_observation_of_a_truncated_episode_is_there_to_bootstrap_from() -> None:
    envs = make_vector(endless, 1, max_episode_steps=3)
    envs.reset(seed=0)
    envs.step(np.array([0]))
    envs.step(np.array([0]))
    obs, _, terminated, truncated, _, final = envs.step(np.array([0]))
    assert (obs.item(), final.item()) == (100, 3)  # of the next episode, and of this one
    assert truncated.all() and not terminated.any()


def test_masks_and_goals_are_found_behind_a_limit() -> None:
    for how in ("info", "method"):
        envs = make_vector(lambda how=how: Masked(how, LONG), 1, max_episode_steps=2)
        envs.reset(seed=0)
        envs.step(np.array([0]))
        assert envs.step(np.array([1]))[5]["action_mask"].tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("env", [TimeLimit(Counter(LONG), 5), lambda: TimeLimit(Counter(LONG), 5)])
def test_an_own_limit_can_be_shortened_and_not_lengthened(env: Any) -> None:
    assert make_vector(env).limit == 5
    assert lengths(make_vector(env, max_episode_steps=2), 4) == [[2, 2]]
    assert lengths(make_vector(env, max_episode_steps=5), 5) == [[5]]
    with pytest.raises(EnvError, match=r"max_episode_steps=6, but .* time limit of 5 steps"):
        make_vector(env, max_episode_steps=6)


def test_the_limit_of_an_id_can_be_lengthened() -> None:
    assert make_vector("CartPole-v1", max_episode_steps=900).limit == 900
    assert make_vector("Acrobot-v1", backend="sync", max_episode_steps=900).limit == 900
    assert make_env("Acrobot-v1", max_episode_steps=3).spec.max_episode_steps == 3  # type: ignore[union-attr]


def test_a_vector_environment_keeps_its_own_limit() -> None:
    with pytest.raises(EnvError, match="max_episode_steps=3 cannot be set for the vector"):
        make_vector(SyncVectorEnv([Counter]), max_episode_steps=3)


class NoParameter(gym.vector.VectorEnv):
    def __init__(self, num_envs: int = 1) -> None: ...


def test_a_vector_version_that_takes_no_limit_is_not_used_for_one() -> None:
    gym.register("limits/Plain-v0", entry_point=endless, vector_entry_point=NoParameter)
    try:
        assert lengths(make_vector("limits/Plain-v0", 1, max_episode_steps=2), 4) == [[2, 2]]
        with pytest.raises(EnvError, match=r"no vector version that fits .*max_episode_steps.: 2"):
            make_vector("limits/Plain-v0", 1, backend="vector", max_episode_steps=2)
    finally:
        del gym.registry["limits/Plain-v0"]


def test_a_limit_given_twice_is_refused_unless_it_is_the_same() -> None:
    twice: dict[str, Any] = {"max_episode_steps": 7, "env_kwargs": {"max_episode_steps": 7}}
    assert make_vector("Acrobot-v1", **twice).limit == 7
    with pytest.raises(EnvError, match=r"max_episode_steps=8, but env_kwargs say .*=7"):
        make_vector("Acrobot-v1", **twice | {"max_episode_steps": 8})


@pytest.mark.parametrize("wrong", [0, -3, True])
def test_a_limit_is_a_positive_number(wrong: Any) -> None:
    with pytest.raises(EnvError, match=f"max_episode_steps={wrong}"):
        make_vector("CartPole-v1", max_episode_steps=wrong)
    with pytest.raises(ConfigError, match="max_episode_steps"):
        resolve("ppo", "CartPole-v1", {"max_episode_steps": -1})


def caught(function: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        function()
    return [str(one.message) for one in seen]


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_an_environment_without_a_limit_is_bounded_with_one_warning(
    backend: Any, low_bound: int
) -> None:
    with make_vector(endless, 2, backend=backend) as envs:
        assert envs.limit is None
        said = caught(lambda: lengths_are(envs, 2 * low_bound, [[low_bound] * 2] * 2))
    assert len(said) == 1
    assert "'endless' did not end within 100 steps" in said[0]
    assert "max_episode_steps" in said[0]


def test_the_bound_is_ten_thousand_steps() -> None:
    envs = make_vector(endless, 1)
    (said,) = caught(lambda: lengths_are(envs, EPISODE_BOUND, [[10_000]]))
    assert "'endless' did not end within 10,000 steps" in said


def lengths_are(envs: Any, steps: int, expected: list[list[int]]) -> None:
    assert lengths(envs, steps) == expected


def test_who_ends_in_time_hears_nothing(low_bound: int) -> None:
    envs = make_vector(lambda: Counter(low_bound, truncates=True), 1)
    assert caught(lambda: lengths_are(envs, low_bound, [[low_bound]])) == []
    asked = make_vector(endless, 1, max_episode_steps=low_bound)
    assert caught(lambda: lengths_are(asked, low_bound, [[low_bound]])) == []


@pytest.mark.parametrize("env", [Counter(LONG), SyncVectorEnv([endless])])
def test_objects_are_left_alone_in_training_and_bounded_in_evaluation(
    env: Any, low_bound: int
) -> None:
    assert lengths(make_vector(env), low_bound + 1) == [[]]
    results: list[Any] = []
    said = caught(lambda: results.append(evaluate(Always(), env, episodes=2, seed=0)))
    assert len(said) == 1 and "did not end within 100 steps" in said[0]
    assert results[0].lengths.tolist() == [low_bound] * 2
    assert results[0].truncated.all() and not results[0].terminated.any()
    # 1 + 2 + ... of the counter
    assert results[0].returns.tolist() == [low_bound * (low_bound + 1) / 2] * 2


class Sometimes(Counter):
    """Every third seed ends at once; the others never do."""

    stepped = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs = super().reset(seed=seed, options=options)
        self.ends = seed is not None and seed % 3 == 0
        return obs

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        Sometimes.stepped += 1
        return obs, reward, self.ends, truncated, info


@pytest.mark.parametrize("num_envs", [1, 3, 20])
def test_an_evaluation_is_over_with_the_fourth_episode_without_an_end(
    monkeypatch: pytest.MonkeyPatch, num_envs: int
) -> None:
    monkeypatch.setattr("assay.envs.limits.EPISODE_BOUND", 7)
    play = functools.partial(evaluate, Always(), episodes=20, seed=1)
    make = functools.partial(Sometimes, LONG)
    first = play(make, max_episode_steps=7)
    assert len(first.returns) == 20 and (first.lengths == 7).sum() > 10
    played: list[Any] = []
    monkeypatch.setattr(Sometimes, "stepped", 0)
    said = caught(lambda: played.append(play(make, num_envs=num_envs)))
    (short,) = played
    fourth = int(np.flatnonzero(first.lengths == 7)[3])
    assert short.lengths.tolist() == first.lengths[: fourth + 1].tolist()
    assert short.returns.tolist() == first.returns[: fourth + 1].tolist()
    assert short.seeds.tolist() == first.seeds[: fourth + 1].tolist()
    assert any(f"played {fourth + 1} of 20 episodes" in line for line in said)
    assert num_envs > 1 or Sometimes.stepped == short.lengths.sum()
    every = play(make, num_envs=num_envs, every_episode=True)
    assert every.lengths.tolist() == first.lengths.tolist()


def test_an_evaluation_in_a_world_without_an_end_steps_four_copies() -> None:
    assert rows_to_evaluate(endless, 16).num_envs == 4
    assert rows_to_evaluate("CartPole-v1", 16).num_envs == 16


def test_a_longer_limit_of_its_own_is_not_cut_in_evaluation(low_bound: int) -> None:
    longer = low_bound + 5
    result = evaluate(Always(), TimeLimit(Counter(LONG), longer), episodes=1, seed=0)
    assert result.lengths.tolist() == [longer] and result.truncated.all()


@pytest.mark.usefixtures("low_bound")
def test_cliff_walking_is_evaluated() -> None:
    said = caught(lambda: evaluate(Always(), "CliffWalking-v1", episodes=2, seed=0))
    assert len(said) == 1 and "'CliffWalking-v1'" in said[0]


@pytest.mark.parametrize("backend", ["vector", "sync"])
@pytest.mark.parametrize("training", [True, False])
def test_a_limit_counts_the_steps_of_an_atari_game(backend: Any, training: bool) -> None:
    pytest.importorskip("ale_py")
    with make_vector(
        "ALE/Pong-v5", 2, backend=backend, max_episode_steps=6, training=training
    ) as envs:
        assert lengths(envs, 13) == [[6, 6]] * 2
        assert envs.limit == 6
    assert make_vector("ALE/Pong-v5", backend=backend).limit == 108_000 // 4


# ---------------------------------------------------------------------- runs

QUICK: dict[str, Any] = {
    "env_steps": 200, "num_envs": 2, "learning_starts": 40, "hidden": (8,), "batch_size": 8,
    "eval_every": 100, "eval_episodes": 2, "checkpoint_every": 80, "log_every": 20, "sinks": (),
    "compile": False, "preset": False, "seed": 3,
}  # fmt: skip


def stop_in_the_middle(event: Any) -> Any:
    return assay.STOP if isinstance(event, CheckpointSaved) else None


@pytest.mark.parametrize(
    ("env", "limit"),
    [("CliffWalking-v1", 37), ("CartPole-v1", 9), (SavesItself, 2), (Counter, 2)],
)
def test_a_run_keeps_its_limit_and_resumes_exactly(env: Any, limit: int, tmp_path: Path) -> None:
    """Steps of the episode are saved, or the environments reset at every checkpoint."""
    settings = QUICK | {"max_episode_steps": limit}
    whole = assay.train("dqn", env, root=tmp_path, name="whole", **settings)
    parts = assay.train(
        "dqn", env, root=tmp_path, name="parts", callbacks=[stop_in_the_middle], **settings
    )
    assert parts.status == "interrupted"
    assert parts.config.run.max_episode_steps == limit
    parts = assay.resume(parts.path, env=None if isinstance(env, str) else env)
    assert_same_run(whole.path, parts.path)
    assert max(whole.metrics()["rollout/length_mean"][1]) <= limit
    assert whole.evaluate(3).lengths.max() <= limit


def test_the_bound_is_saved_in_the_middle_of_an_episode(low_bound: int) -> None:
    made = [make_vector(lambda: SavesItself(LONG), 1) for _ in range(2)]
    one, two = made
    one.reset(seed=0)
    for _ in range(low_bound - 2):
        one.step(np.array([0]))
    state = one.get_state()
    assert state is not None
    two.reset(seed=5)
    two.set_state(state)
    ends = [[bool(envs.step(np.array([0]))[3][0]) for _ in range(3)] for envs in made]
    assert ends == [[False, True, False]] * 2
