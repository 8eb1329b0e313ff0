"""The models that a client has: the current one, the last good one, and their copies on the disk.

The sending side offers bytes. They are verified, built and warmed up there; what acts sees a new
model by one assignment. Acting never reads a file and never waits.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import AssayError
from assay.policies.model_file import Snapshot, parse_snapshot, read_snapshot
from assay.policies.parts import ModelError
from assay.server.client.policy import Policy, PolicyError

_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]{64})\.safetensors")
_KEPT = 2
_WARM_UP = 3


@dataclass(slots=True)
class Loaded:
    """A model that is ready to act."""

    policy: Policy  # acts
    version: int  # of the model
    epoch: int  # of the learner
    sha256: str  # of the file
    # When the server last said that this is the model to use, by the client's clock.
    fresh_at: float


class ModelKeeper:
    """Verifies, keeps and hands out models.

    Args:
        observation: The canonical observation space that models must be made for.
        action: The canonical action space, likewise; both as `describe_space` has them.
        directory: Where good models are kept, or None to keep none.
        clock: Seconds that only grow.

    Attributes:
        current: What to act with, or None. Replaced by one assignment.
        last_good: The model before it, or the one found on the disk at the start.
        rejected: Models that were refused.
        last_rejection: Why, of the last one; "" if none was.
        disk_errors: Times that a model could not be kept.
    """

    def __init__(
        self,
        observation: dict[str, Any],
        action: dict[str, Any],
        directory: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observation, self._action = observation, action
        self._directory = directory
        self._clock = clock
        self.current: Loaded | None = None
        self.last_good: Loaded | None = None
        self.rejected = self.disk_errors = 0
        self.last_rejection = ""
        if directory is not None:
            self.last_good = self._newest_on_disk(directory)

    def offer(self, data: bytes, sha256: str) -> bool:
        """Make a model current if it is good; return whether it is."""
        known = self.current
        if known is not None and known.sha256 == sha256.lower():
            known.fresh_at = self._clock()
            return True
        try:
            snapshot = parse_snapshot(data, sha256)
            loaded = self._load(snapshot, self._clock())
        except Exception as error:  # whatever a model does, the one before it acts on
            self.refuse(_why(error))
            return False
        self._keep(snapshot)
        if known is not None:
            self.last_good = known
        self.current = loaded
        return True

    def refuse(self, why: str) -> None:
        """Count a model that was not taken."""
        self.rejected += 1
        self.last_rejection = why

    def confirm(self, sha256: str) -> bool:
        """Note that the server still wants the current model; return whether it is that one."""
        known = self.current
        if known is None or known.sha256 != sha256.lower():
            return False
        known.fresh_at = self._clock()
        return True

    def _load(self, snapshot: Snapshot, fresh_at: float) -> Loaded:
        """Build a model and make it act, so that the first real call is no slower than others."""
        architecture = snapshot.architecture
        for what, found, expected in (
            ("observation", architecture.observation, self._observation),
            ("action", architecture.action, self._action),
        ):
            if found != expected:
                raise ModelError(f"The model's {what} space is {found}; expected {expected}.")
        policy = Policy(snapshot)
        rng = np.random.default_rng(0)
        obs: Any = {
            entry.key: np.array(entry.starts, np.float32)
            if entry.sizes
            else np.zeros(entry.width, np.float32)
            for entry in architecture.inputs
        }
        obs = obs[None] if None in obs else obs
        mask = np.ones(policy.mask_size, np.int8) if policy.mask_size else None
        for _ in range(_WARM_UP):
            policy.act(obs, mask, rng)
            policy.act(obs)
        policy.reset()
        return Loaded(policy, architecture.version, architecture.epoch, snapshot.sha256, fresh_at)

    def _keep(self, snapshot: Snapshot) -> None:
        if self._directory is None:
            return
        architecture = snapshot.architecture
        name = f"{architecture.epoch:08d}-{architecture.version:012d}-{snapshot.sha256}.safetensors"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            snapshot.write(self._directory / name)
            for path in _by_age(self._directory)[:-_KEPT]:
                path.unlink(missing_ok=True)
        except (AssayError, OSError):
            self.disk_errors += 1  # a full disk is no reason not to act with a good model

    def _newest_on_disk(self, directory: Path) -> Loaded | None:
        for path in reversed(_by_age(directory)):
            match = _NAME.fullmatch(path.name)
            assert match is not None
            try:
                snapshot = read_snapshot(path, match[3])
                # The wall clock may have jumped: an age is never negative.
                age = max(0.0, time.time() - path.stat().st_mtime)
                return self._load(snapshot, self._clock() - age)
            except Exception as error:
                self.refuse(_why(error))
        return None


def _why(error: Exception) -> str:
    known = isinstance(error, AssayError | PolicyError | OSError)
    return str(error) if known else f"The model cannot act: {type(error).__name__}: {error}."


def _by_age(directory: Path) -> list[Path]:
    """Return the kept models, the one that was kept last at the end."""
    found: list[tuple[float, str, Path]] = []
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    found.append((path.stat().st_mtime, path.name, path))
    return [path for _, _, path in sorted(found)]
