"""The contract tests of algorithms that learn from recorded data, and data for them.

class TestContract(OfflineContract):
    algorithm = "iql"
    settings = {"hidden": (16,), "batch_size": 8}
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from assay.core.types import Action, Tree
from assay.data.collect import from_episodes
from assay.data.dataset import Dataset
from assay.data.files import save
from assay.envs.make import EnvLike, make_vector
from assay.evaluation.play import Uniform, play, recorded_space
from assay.loops.collect import Collector
from assay.loops.config import resolve
from assay.loops.table import make_loop
from assay.loops.training import build_algorithm
from assay.testing.algorithms import AlgorithmContract, Case, Rig
from assay.testing.envs import Reach

Behaviour = Callable[[Any, np.random.Generator], Any]


class _Actor(Uniform):
    """Chooses by a function of all observations, or uniformly among what is allowed."""

    def __init__(self, space: Any, behaviour: Behaviour | None, seed: int) -> None:
        super().__init__(space, np.random.default_rng(seed))
        self.behaviour = behaviour

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        if self.behaviour is not None:
            return Action(self.behaviour(obs, self.rng), None, {})
        return super().act(obs, carry, explore)


def record(
    env: EnvLike, *, episodes: int = 25, seed: int = 0, behaviour: Behaviour | None = None
) -> Dataset:
    """Play episodes and return them.

    Args:
        env: What `make_vector` takes.
        episodes: How many.
        seed: Fixes all of it.
        behaviour: Gives canonical actions for observations [N, ...] and a generator; without it,
            actions are uniform.
    """
    vector = make_vector(env, 1)
    actor = _Actor(vector.spaces.action, behaviour, seed)
    try:
        played = play(actor, vector, episodes=episodes, seed=seed)
        return from_episodes(played, recorded_space(vector.observations), vector.actions.source)
    finally:
        vector.close()


def torn(obs: Any, rng: np.random.Generator) -> Any:
    """Act in `Reach`: as often away from the goal as towards it, so that the mean stands still."""
    half = obs.shape[1] // 2
    move = np.clip(obs[:, half:] - obs[:, :half], -0.5, 0.5)
    move = np.where(rng.random((len(obs), 1)) < 0.5, move, -move) + rng.normal(0, 0.1, move.shape)
    return np.clip(1.0 + 4.0 * move, Reach.low, Reach.high).astype(np.float32)


class OfflineRig(Rig):
    """An offline algorithm with its loop and data, and environments to act in.

    The data and the environments' episodes are the same for every seed: a run's seed does not
    choose what was recorded.

    Args:
        algorithm: Registry name.
        env: What `make_vector` takes.
        data: What to learn from; by default uniform actions in the environment.
        seed: The run's seed.
        num_envs: Environments that are acted in.
        updates: The budget, which schedules refer to.
        compile: Whether optimizer steps are compiled.
        **settings: Hyperparameters.
    """

    def __init__(
        self,
        algorithm: str,
        env: EnvLike,
        *,
        data: Dataset | None = None,
        seed: int = 1,
        num_envs: int = 2,
        updates: int = 10_000,
        compile: bool = False,
        **settings: Any,
    ) -> None:
        torch.set_num_threads(1)  # as training does for small networks
        self._directory = tempfile.TemporaryDirectory()
        path = save(record(env) if data is None else data, Path(self._directory.name) / "data.npz")
        run = {"seed": seed, "updates": updates, "compile": compile, "data": str(path)}
        config = resolve(algorithm, "rig", {**run, "device": "cpu"}, settings, use_preset=False)
        self.clock = config.run.clock()
        self.source = env
        self.env: Any = make_vector(env, num_envs)
        self.algorithm = build_algorithm(config, self.env.spaces, self.clock)
        self.loop: Any = make_loop(self.algorithm, self.env, config.run)
        self.loop.start()
        self.collector = Collector(self.env, self.algorithm, self.clock, 0)
        self.collector.start()

    def train(self, count: int | None = None) -> OfflineRig:
        """Update `count` times in all (by default the whole budget), and return the rig."""
        self.learn((self.clock.total if count is None else count) - self.clock.updates)
        return self


class RecordedContract(AlgorithmContract):
    """The checks of `AlgorithmContract` with data, which are recorded once for each case."""

    _recorded: ClassVar[dict[tuple[type, str], Dataset]] = {}

    def record(self, factory: Callable[[], Any]) -> Dataset:
        """Return what to learn from in an environment."""
        return record(factory)

    def rig(self, case: Case, **options: Any) -> Rig:
        """Return the algorithm on the environments of a case, with its data."""
        key = (type(self), case.name)
        if key not in self._recorded:
            self._recorded[key] = self.record(case.factory())
        return super().rig(case, data=self._recorded[key], **options)

    def file(self, factory: Callable[[], Any], directory: Path) -> str:
        """Return a file of data."""
        path = directory / "data.npz"
        if not path.exists():
            save(self.record(factory), path)
        return str(path)


class OfflineContract(RecordedContract):
    """The checks of `AlgorithmContract` for an algorithm that learns from recorded data."""

    make_rig: ClassVar[type[Rig]] = OfflineRig
    span: ClassVar[int] = 32

    def budget(self, factory: Callable[[], Any], directory: Path, total: int) -> dict[str, Any]:
        """Return a number of updates, and a file of data."""
        return {"updates": total, "data": self.file(factory, directory)}

    @pytest.mark.parametrize("saves", [False], ids=["env_cannot_save"])
    def test_killed_run_ends_like_the_undisturbed_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool
    ) -> None:
        """A run that dies between two checkpoints and is resumed ends bit for bit the same.

        It steps no environment that could be saved.
        """
        super().test_killed_run_ends_like_the_undisturbed_one(tmp_path, monkeypatch, saves)
