"""The interface has room: two shapes of algorithm that nothing shipped has, run as users run them.

The learners, `recurrent_q.py` and `value_decomposition.py`, are trials and not products. They come
in as algorithms of another package do, and are trained, evaluated, saved, killed and resumed by
`assay.train` and `assay.resume`. So a carried state with sequence replay, and an agent axis with
masks, need nothing from loops, buffers or checkpoints that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.loops.events import CheckpointSaved, Event
from assay.testing.algorithms import assert_same_run

Step = tuple[Any, float, bool, bool, dict[str, Any]]
TRIALS = ("recurrent_q", "value_decomposition")


class Recall(gym.Env[np.ndarray, int]):
    """Show a cue once, then nothing; the last of six actions must name the cue."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length = 6

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return np.array([1.0, 2 * self.cue - 1], np.float32), {}

    def step(self, action: int) -> Step:
        self.time += 1
        last = self.time == self.length
        reward = float(action == self.cue) if last else 0.0
        return np.zeros(2, np.float32), reward, last, False, {}


class Crossing(gym.Env[np.ndarray, np.ndarray]):
    """Two agents each take three steps ahead, by the action that they are shown.

    The team is paid when an agent arrives. One that has arrived may only wait (action 0) until the
    other one has, too, or six steps are over.
    """

    # [agents, rows, columns]: where an agent is, and which action takes it ahead.
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2, 2, 4), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.place = 0, np.zeros(2, int)
        self.ahead = self.np_random.integers(2, size=2)
        return self._seen()

    def step(self, action: np.ndarray) -> Step:
        arrived = self.place == 3
        if action[arrived].any():
            raise ValueError(f"{action} moves an agent that has arrived")
        self.time += 1
        self.place += ~arrived & (action == self.ahead)
        reward = float((~arrived & (self.place == 3)).sum())
        obs, info = self._seen()
        return obs, reward, bool((self.place == 3).all() or self.time == 6), False, info

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        rows = np.stack([self.place, self.ahead], 1)
        mask = np.ones((2, 2), np.int8)
        mask[self.place == 3, 1] = 0
        return np.eye(4, dtype=np.float32)[rows], {"action_mask": mask.reshape(-1)}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trials be found as those of an installed package are."""
    facts = tmp_path / "packages" / "room_trials-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: room-trials\nVersion: 1\n")
    lines = "".join(f"{name} = {name}\n" for name in TRIALS)
    (facts / "entry_points.txt").write_text(f"[assay.algorithms]\n{lines}")
    monkeypatch.syspath_prepend(facts.parent)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # no power cut is expected


def train(algorithm: str, env: Callable[[], Any], root: Path, **settings: Any) -> assay.Run:
    options: dict[str, Any] = {
        "num_envs": 8, "eval_episodes": 64, "sinks": (), "compile": False, "preset": False,
        "device": "cpu",
    }  # fmt: skip
    return assay.train(algorithm, env, root=root, **(options | settings))


def final_score(run: assay.Run) -> float:
    """Return the mean return of the last evaluation."""
    return run.metrics()["eval/return_mean"][1][-1]


def test_a_memory_is_learned_from_sequences_shorter_than_episodes(tmp_path: Path) -> None:
    # The second sequence of an episode knows the cue from its stored carry alone.
    run = train("recurrent_q", Recall, tmp_path, env_steps=8000, seed=1)
    assert final_score(run) > 0.9  # without memory: 0.5


def test_without_the_stored_carry_it_is_chance(tmp_path: Path) -> None:
    run = train("recurrent_q", Recall, tmp_path, env_steps=8000, seed=1, forget=True)
    assert final_score(run) < 0.75


def test_agents_learn_a_task_of_several_steps(tmp_path: Path) -> None:
    run = train("value_decomposition", Crossing, tmp_path, env_steps=6000, seed=1)
    assert final_score(run) > 1.9


def test_without_bootstrapping_agents_do_not_arrive(tmp_path: Path) -> None:
    run = train("value_decomposition", Crossing, tmp_path, env_steps=6000, seed=1, gamma=0.0)
    assert final_score(run) < 1.6


@pytest.mark.parametrize(("algorithm", "env"), zip(TRIALS, (Recall, Crossing), strict=True))
def test_a_killed_run_ends_like_the_undisturbed_one(
    algorithm: str, env: type[gym.Env[Any, Any]], tmp_path: Path
) -> None:
    options = {
        "env_steps": 640, "checkpoint_every": 200, "log_every": 80, "eval_every": 320,
        "eval_episodes": 2, "seed": 3,
    }  # fmt: skip
    saved = []

    def die(event: Event) -> None:
        saved.append(isinstance(event, CheckpointSaved))
        if sum(saved) == 2 and not saved[-1]:  # the second one is there, and the run has gone on
            raise KeyError("the power is out")

    whole = train(algorithm, env, tmp_path, name="whole", **options)
    with pytest.raises(KeyError, match="power"):
        train(algorithm, env, tmp_path, name="killed", callbacks=[die], **options)
    killed = assay.resume(tmp_path / "killed", env=env)
    assert whole.status == killed.status == "done"
    assert_same_run(whole.path, killed.path)
