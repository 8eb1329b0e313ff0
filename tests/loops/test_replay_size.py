"""A replay is never larger than what its run can fill, and grows with a larger budget."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.algorithms.base import ReplayNeeds
from assay.core.errors import ConfigError
from assay.loops.off_policy import fillable
from assay.testing.algorithms import assert_same_run, last_checkpoint
from assay.testing.envs import Identity

SMALL: dict[str, Any] = {
    "num_envs": 2, "hidden": (8,), "env_steps": 41, "learning_starts": 10, "batch_size": 4,
    "eval_every": 0, "eval_episodes": 1, "sinks": (), "preset": False, "compile": False,
}  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dqn": {},
    "dqn_prioritized": {"prioritized": True, "n_step": 3},
    "r2d2": {"sequence": 5, "burn_in": 3, "overlap": 2, "memory_size": 8},
}
PLAIN = SimpleNamespace(frame_stack=None, resets_in_steps=False)


@pytest.mark.parametrize(
    ("needs", "kind", "expected"),
    [
        ({}, {}, 102),  # 34 rows of 3 environments
        ({"capacity": 50}, {}, 50),
        ({}, {"resets_in_steps": True}, 204),
        ({}, {"frame_stack": 4}, 204),
        ({"n_step": 200}, {}, 600),
        ({"sequence": 8, "overlap": 7}, {}, 102 * 8),  # episodes of one step
        ({"sequence": 8, "overlap": 4, "cross_episodes": True}, {}, 51 * 8),
    ],
)
def test_what_a_run_can_fill(needs: Any, kind: Any, expected: int) -> None:
    asked = ReplayNeeds(**({"capacity": 10_000, "learning_starts": 0} | needs))
    env = SimpleNamespace(**(vars(PLAIN) | kind))
    assert fillable(asked, env, num_envs=3, steps=100) == expected


class Huge(gym.Env):
    """Observations of 40 MB, of which a default replay of 10,000 transitions needs 745 GiB."""

    observation_space = gym.spaces.Box(-1, 1, (10_000_000,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(10_000_000, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(10_000_000, np.float32), 1.0, self.steps == 3, False, {}


@pytest.mark.slow
def test_a_short_run_on_huge_observations_trains(tmp_path: Path) -> None:
    settings = {**SMALL, "num_envs": 1, "env_steps": 4, "learning_starts": 2, "batch_size": 1}
    run = assay.train("dqn", Huge, root=tmp_path, checkpoint_every=0, **(settings | {"hidden": ()}))
    assert run.status == "done"


def test_a_long_one_says_what_it_needs_and_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        assay.train("dqn", Huge, root=tmp_path, **(SMALL | {"hidden": (), "env_steps": 100_000}))
    assert "A replay of 100,000 transitions needs 7.3 TiB of memory; " in str(caught.value)
    assert "Lower its capacity (buffer_size) from 100,000 to at most " in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", ALGORITHMS)
def test_the_size_changes_nothing(case: str, tmp_path: Path) -> None:
    """A run with more room than it can fill is the same run, also after a resume."""
    name = case.partition("_")[0]
    options = SMALL | ALGORITHMS[case] | {"checkpoint_every": 20, "root": tmp_path}
    one, two = (assay.train(name, Identity, buffer_size=n, **options) for n in (400, 4_000))
    assert_same_run(one.path, two.path)


@pytest.mark.parametrize("case", ALGORITHMS)
def test_a_larger_budget_keeps_all_that_was_collected(case: str, tmp_path: Path) -> None:
    name = case.partition("_")[0]
    options = SMALL | ALGORITHMS[case] | {"root": tmp_path}
    run = assay.train(name, Identity, buffer_size=4_000, **options)
    slots = [last_checkpoint(run.path)["replay-head"]["settings"]["slots"]]
    assert assay.resume(run.path, env=Identity, budget=90).status == "done"
    head = last_checkpoint(run.path)["replay-head"]
    slots.append(head["settings"]["slots"])
    assert slots == ([21, 45] if name == "dqn" else [42, 90])
    if name == "dqn":
        assert head["heads"].tolist() == [45, 45] and head["tails"].tolist() == [0, 0]
