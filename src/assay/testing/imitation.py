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
from assay.data.files import save
from assay.envs.make import EnvLike
from assay.testing.algorithms import AlgorithmContract, Case, Rig
from assay.testing.offline import record


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


class ImitationContract(AlgorithmContract):
    """The checks of `AlgorithmContract` for an algorithm that imitates episodes."""

    make_rig: ClassVar[type[Rig]] = ImitationRig
    _recorded: ClassVar[dict[tuple[type, str], Dataset]] = {}

    def rig(self, case: Case, **options: Any) -> Rig:
        """Return the algorithm on the environments of a case, whose data are recorded once."""
        key = (type(self), case.name)
        if key not in self._recorded:
            self._recorded[key] = record(case.factory(), episodes=5)
        return super().rig(case, data=self._recorded[key], **options)

    def budget(self, factory: Callable[[], Any], directory: Path, total: int) -> dict[str, Any]:
        """Return a number of steps, and a file of episodes."""
        path = directory / "expert.npz"
        if not path.exists():
            save(record(factory, episodes=5), path)
        return {**super().budget(factory, directory, total), "expert": str(path)}
