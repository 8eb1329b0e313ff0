"""The versions that failed their trial, on the disk: none of them is ever tried again.

They lie beside the policy's experience, in `policies/<name>/verdicts.json`.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from assay.core.config import Model
from assay.runs.files import write_atomic
from assay.server.store.log import make_directory

log = logging.getLogger("assay.server")

VERDICTS = "verdicts.json"
_KEPT = 64  # only the newest version is ever tried, so that old failures do not matter


class Failed(Model):
    """Why a version was rolled back."""

    version: int = Field(description="The one that was tried.")
    mean: float = Field(description="Its mean return,")
    episodes: int = Field(description="over so many episodes.")
    stable: int = Field(description="What it was judged by,")
    stable_mean: float = Field(description="with this mean return,")
    stable_episodes: int = Field(description="over so many episodes.")
    best: bool = Field(False, description="Whether that was the best of late, not the last one.")
    tolerance: float = Field(description="How much worse would be good enough, as a share.")
    time: float = Field(description="Seconds since the epoch.")

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        best = ", the best stable version of late" if self.best else ""
        return (
            f"Version {self.version} was rolled back ({when}): its mean return was {self.mean:.4g} "
            f"over {self.episodes} episodes, against {self.stable_mean:.4g} of version "
            f"{self.stable} over {self.stable_episodes}{best}; the tolerance is "
            f"{self.tolerance:.3g}."
        )


class _File(Model):
    schema_version: Literal[1] = 1
    failed: tuple[Failed, ...] = ()


class Verdicts:
    """The failed versions of one policy.

    Args:
        directory: Of the policy; nothing is made there before the first verdict.

    Attributes:
        failed: By version, the oldest first.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / VERDICTS
        self.failed: dict[int, Failed] = {}
        try:
            found = _File.model_validate_json(self._path.read_bytes())
            self.failed = {one.version: one for one in found.failed}
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning(
                "'%s' cannot be read, so versions that failed may be tried again: %s",
                self._path, error,
            )  # fmt: skip

    def __contains__(self, version: object) -> bool:
        return version in self.failed

    def add(self, verdict: Failed) -> None:
        """Keep a verdict. A disk that fails is logged, and the verdict holds until a restart."""
        known = {**self.failed, verdict.version: verdict}
        # Replaced as a whole, as others read it meanwhile.
        self.failed = {version: known[version] for version in sorted(known)[-_KEPT:]}
        text = _File(failed=tuple(self.failed.values())).model_dump_json(indent=1)
        try:
            make_directory(self._path.parent)
            write_atomic(self._path, text.encode())
        except OSError as error:
            log.warning("The verdict on version %d is lost: %s", verdict.version, error)

    def newest(self, count: int) -> list[Failed]:
        """Return the latest verdicts, the last one first."""
        return sorted(self.failed.values(), key=lambda one: one.version, reverse=True)[:count]
