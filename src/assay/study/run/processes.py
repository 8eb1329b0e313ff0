"""Processes of a run: who claimed it, whether they live, how they end, and what they may use."""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import json
import os
import platform
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from assay.runs.files import dump_json
from assay.study.files.contract import StopRules

GIGABYTE = 1e9
TEMPORARY = "TMPDIR"
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def claim(place: Path, who: str) -> bool:
    """Take the right to start a run; exactly one caller ever gets it.

    The claim is linked into place, so that nobody sees it half written and takes its owner for
    dead.
    """
    draft = place / f"claim-{os.getpid()}.tmp"
    try:
        with open(draft, "wb") as file:
            file.write(dump_json({"by": who, **identity(os.getpid())}))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, place / "claim.json")
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def identity(pid: int) -> dict[str, Any]:
    """Name a process so that a later one with its number is not taken for it."""
    with contextlib.suppress(psutil.Error):
        return {"pid": pid, "created": psutil.Process(pid).create_time(), "host": platform.node()}
    return {"pid": pid, "created": 0.0, "host": platform.node()}


def alive(identity: dict[str, Any]) -> bool:
    """Return whether the process of an identity runs."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(int(identity["pid"]))
        same = abs(process.create_time() - float(identity["created"])) < 1.0
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    return False


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its supervisor dies (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def become_subreaper() -> None:
    """Inherit orphans of the run (prctl PR_SET_CHILD_SUBREAPER), to end them with it."""
    ctypes.CDLL(None).prctl(36, 1)


def kill_descendants() -> None:
    """End every process that this one, or one of its children, started."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


def supervised(place: Path) -> bool:
    """Return whether the process that claimed a run is alive."""
    try:
        claim = json.loads((place / "claim.json").read_bytes())
    except ValueError:  # somebody else wrote this; who claims links the whole file into place
        return False
    return claim["by"] == "supervisor" and alive(claim)


def kill_orphan(place: Path) -> None:
    """End what the run left behind; the kernel has done so already where it could."""
    try:
        identity = json.loads((place / "process.json").read_bytes())
    except (OSError, ValueError):
        return
    if alive(identity):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(identity["pid"]), signal.SIGKILL)


def hours_until_last_beat(place: Path) -> float:
    """Return how long a run was supervised, by its claim and its last heartbeat."""
    claimed = (place / "claim.json").stat().st_mtime
    with contextlib.suppress(OSError):
        return max(0.0, (place / "heartbeat.json").stat().st_mtime - claimed) / 3600
    return 0.0


def exceeded(rules: StopRules, place: Path) -> str:
    """Return that a run has written more than it may, or ""."""
    written = _size(place) / GIGABYTE
    if written <= rules.output_gb:
        return ""
    return (
        f"it wrote {written:.3g} GB; the contract allows {rules.output_gb:g} "
        "(experiment.stop.output_gb)"
    )


def _size(place: Path) -> int:
    """Return the bytes of all files below a directory, without following links."""
    total = 0
    for directory, _, names in os.walk(place):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except OSError:  # it was removed in the meantime
                continue
    return total


@contextlib.contextmanager
def scratch(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Make a directory for temporary files, removed afterwards; yield the variables that say so.

    So nothing that a run leaves there is read by the next one, or by its evaluation. It is in the
    system's own, where the names of sockets do not get too long. What torch compiles stays where it
    would be: it is found by its content, and takes minutes to make.
    """
    given = env.get(TEMPORARY, "")
    usual = given if os.path.isabs(given) and os.access(given, os.W_OK) else tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="assay-run-", dir=usual, ignore_cleanup_errors=True
    ) as place:
        found = {TEMPORARY: place}
        with contextlib.suppress(KeyError, OSError):  # a container without a user database
            compiled = os.path.join(usual, f"torchinductor_{getpass.getuser()}")
            found[_COMPILED] = env.get(_COMPILED, compiled)
        yield found
