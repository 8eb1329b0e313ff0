"""The contract tests of algorithms that imitate recorded episodes.

class TestContract(ImitationContract):
    algorithm = "gail"
    settings = {"hidden": (16,), "horizon": 8, "minibatch_size": 8}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from assay.data.dataset import Dataset
from assay.envs.make import EnvLike
from assay.testing.algorithms import Rig
from assay.testing.offline import RecordedContract, record


class ImitationRig(Rig):
    """A `Rig` of an algorithm that imitates episodes.

    Args:
        algorithm: Registry name.
        env: What `make_vector` takes.
        data: What to imitate; by default five episodes of uniform actions.
        **options: As of `Rig`.
    """

    def __init__(
        self, algorithm: str, env: EnvLike, *, data: Dataset | None = None, **options: Any
    ) -> None:
        self._data = data
        super().__init__(algorithm, env, **options)

    def expert(self, env: Any) -> Dataset:
        """Return the episodes to imitate."""
        return record(env, episodes=5) if self._data is None else self._data


class ImitationContract(RecordedContract):
    """The checks of `AlgorithmContract` for an algorithm that imitates episodes."""

    make_rig: ClassVar[type[Rig]] = ImitationRig

    def record(self, factory: Callable[[], Any]) -> Dataset:
        """Return the episodes to imitate in an environment."""
        return record(factory, episodes=5)

    def budget(self, factory: Callable[[], Any], directory: Path, total: int) -> dict[str, Any]:
        """Return a number of steps, and a file of episodes."""
        steps = super().budget(factory, directory, total)
        return {**steps, "expert": self.file(factory, directory)}
