"""The run directory: the one interface between training and everything else.

```
run.json        id, status, schema          config.yaml      fully resolved
metrics.jsonl   every log record            provenance.json  where the run came from
events.jsonl    what happened when          eval/*.json      every episode of every evaluation
checkpoints/<count>/                        videos/  tensorboard/  stdout.log
expert.npz      episodes that it imitates
```
A count is in environment steps, or in updates where a run learns from data alone.
A run is a directory with a `run.json`. A group is a directory that contains runs, for example
`<name>/seed-<k>`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, get_args

import yaml

from assay.core import fast_yaml
from assay.core.errors import CheckpointError, RunError, nearest
from assay.core.types import Unit
from assay.runs.files import (
    RunWarning,
    assay_version,
    dump_json,
    fsync_directory,
    read_json_object,
    restore_floats,
    run_error,
    write_atomic,
)

SCHEMA = 1
RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"
HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 300.0  # without a heartbeat for so long, a run on another host counts as dead

Status = Literal["running", "done", "failed", "interrupted"]

_NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}")
_REQUIRED = ("schema", "id", "name", "algorithm", "env", "seed", "status", "created")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)

# The lock belongs to the open file, which a forked worker would share: an orphaned worker would
# then keep the run locked after its trainer died. So a child closes its copies immediately.
_held_locks: set[IO[bytes]] = set()


def _close_locks_in_child() -> None:
    for handle in _held_locks:
        handle.close()
    _held_locks.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


class RunDirectory:
    """A run on the disk; make one with `create` or `open`.

    Attributes:
        path: The directory.
        info: The content of `run.json` as last read or written.
        metrics_path: The file of all records; `events_path` that of the events.
        eval_path: The directory of the evaluations; likewise `checkpoints_path`, `videos_path` and
            `tensorboard_path`.
    """

    def __init__(
        self, path: Path, info: dict[str, Any], clock: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self.info = info
        self.metrics_path, self.events_path = path / "metrics.jsonl", path / "events.jsonl"
        self.eval_path, self.checkpoints_path = path / "eval", path / "checkpoints"
        self.videos_path, self.tensorboard_path = path / "videos", path / "tensorboard"
        self._clock = clock
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(
        cls,
        root: Path,
        name: str | None,
        *,
        algorithm: str,
        env: str,
        config: Mapping[str, Any],
        seed: int,
        clock: Callable[[], float] = time.time,
    ) -> RunDirectory:
        """Make a new run under `root`, with status "running", and lock it for this process.

        Args:
            root: Where runs are kept; made if missing.
            name: The run's name, with `/` to put it in a group (`x/seed-1`). None: a unique one is
                generated.
            algorithm: The algorithm's registered name.
            env: The environment's id.
            config: The fully resolved configuration, of plain values.
            seed: The run's one seed.
            clock: Seconds since the epoch.

        Raises:
            RunError: The name is taken or not allowed, or the directory cannot be written.
        """
        if name is None:
            path, name = _make_unnamed(root, algorithm, env, clock)
        else:
            path = _make_named(root, name)
        info = {
            "schema": SCHEMA,
            "id": secrets.token_hex(8),
            "name": name,
            "algorithm": algorithm,
            "env": env,
            "seed": seed,
            "created": _iso(clock()),
            "assay": assay_version(),
        }
        run = cls(path, info, clock)
        try:
            for folder in (run.eval_path, run.checkpoints_path, run.videos_path):
                folder.mkdir()
            write_atomic(path / CONFIG_FILE, _yaml(config))
            run.lock()
            # Last, since this is what makes the directory a run.
            run.set_status("running")
            fsync_directory(path.parent)
        except BaseException as error:
            run.unlock()
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, OSError):
                raise run_error(error, f"create the run directory '{path}'") from None
            raise
        return run

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> RunDirectory:
        """Return the run at `path`.

        Raises:
            RunError: There is no run, or it is damaged or from a newer Assay.
        """
        if not path.is_dir():
            raise RunError(f"There is no run at '{path}'.", _neighbours(path))
        if not (path / RUN_FILE).is_file():
            raise RunError(
                f"'{path}' is not a run: '{path / RUN_FILE}' is missing.",
                "Give the directory of a run (see `assay runs`).",
            )
        return cls(path, _read_info(path / RUN_FILE), clock)

    # Properties

    @property
    def id(self) -> str:
        """Return the run's unique id."""
        return str(self.info["id"])

    @property
    def name(self) -> str:
        """Return the name under the root, such as `x/seed-1`."""
        return str(self.info["name"])

    @property
    def status(self) -> Status:
        """Return the status as it was last written."""
        status: Status = self.info["status"]
        return status

    @property
    def effective_status(self) -> Status:
        """Return the status, with "interrupted" for a run whose process is gone."""
        if self.status != "running":
            return self.status
        locked = _probe_lock(self.path / LOCK_FILE)
        if locked:
            return "running"
        if self.info.get("host") != socket.gethostname():
            # Locks may not reach across hosts; the heartbeat does.
            age = self._clock() - _seconds(self.info.get("heartbeat"))
            return "running" if age < STALE_SECONDS else "interrupted"
        if locked is None and _alive(self.info.get("pid")):
            return "running"
        return "interrupted"

    def no_checkpoint(self) -> CheckpointError:
        """Return the error that there is no checkpoint, and what to do in the run's status."""
        status = self.effective_status
        if status == "running":
            fix = "Wait for the first one."
            return CheckpointError(f"The run '{self.path}' has no checkpoint yet.", fix)
        again = f"assay train --config {self.path / CONFIG_FILE}"
        return CheckpointError(
            f"The run '{self.path}' is {status} and has no checkpoint in "
            f"'{self.checkpoints_path}'.",
            f"Bring the folder back from a copy, or train again: {again}"
            if status == "done"
            else f"Go on with it: assay resume {self.path}",
        )

    @property
    def config(self) -> dict[str, Any]:
        """Return the fully resolved configuration.

        Raises:
            RunError: `config.yaml` is missing or damaged.
        """
        path = self.path / CONFIG_FILE
        try:
            values = fast_yaml.load(path.read_bytes())
        except OSError as error:
            raise run_error(error, f"read '{path}'") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RunError(f"'{path}' is not readable YAML: {error}.") from None
        if not isinstance(values, dict):
            raise RunError(f"'{path}' holds no settings.")
        return values

    @property
    def budget(self) -> tuple[Unit, int | None]:
        """Return what the run is counted in, and how long it is to be; None if that is not known.

        Raises:
            RunError: `config.yaml` is missing or damaged.
        """
        found = self.config.get("run")
        settings = found if isinstance(found, dict) else {}
        updates, steps = settings.get("updates"), settings.get("env_steps")
        if isinstance(updates, int):  # from data, and then with an environment for some steps
            return "updates", updates + (steps or 0) * settings.get("updates_per_step", 1)
        return "env_steps", steps if isinstance(steps, int) else None

    @property
    def provenance(self) -> dict[str, Any]:
        """Return where the run came from, or an empty dict if that was not written."""
        path = self.path / "provenance.json"
        return read_json_object(path) if path.exists() else {}

    # Writing

    def set_status(self, status: Status, error: str | None = None) -> None:
        """Write the status, who trains the run, and why it failed if it did.

        Raises:
            RunError: `run.json` cannot be written; the old one is intact.
        """
        if status not in get_args(Status):
            raise ValueError(f"status={status!r}; expected one of {', '.join(get_args(Status))}.")
        now = _iso(self._clock())
        self._update(
            status=status,
            error=error,
            pid=os.getpid(),
            host=socket.gethostname(),
            heartbeat=now,
            finished=None if status == "running" else now,
        )

    def heartbeat(self, count: int, unit: Unit = "env_steps") -> None:
        """Note that the run is alive and how far it is; cheap enough to call at every update.

        A heartbeat that cannot be written is skipped; the run does not fail.
        """
        now = self._clock()
        if abs(now - _seconds(self.info.get("heartbeat"))) >= HEARTBEAT_SECONDS:
            with contextlib.suppress(RunError):
                self._update(heartbeat=_iso(now), **{unit: count})

    def change_config(self, config: Mapping[str, Any], **changed: Any) -> None:
        """Replace the configuration of a run that goes on, and write down what changed.

        Raises:
            RunError: The file cannot be written; the old one is intact.
        """
        self.log_event("ConfigChanged", **changed)
        self._write(CONFIG_FILE, _yaml(config))

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Write `provenance.json`."""
        self._write("provenance.json", dump_json(dict(provenance), indent=1))

    def write_eval(
        self, result: Mapping[str, Any], *, count: int, label: str, unit: Unit = "env_steps"
    ) -> Path:
        """Write an evaluation to `eval/<count>-<label>.json` and return the path.

        In `result`, `returns` holds the return of every episode. The same label replaces the same
        evaluation.
        """
        if not _NAME_PART.fullmatch(label):
            raise ValueError(f"label={label!r}; expected letters, digits and '._=+-'.")
        name = f"eval/{count:012d}-{label}.json"
        content = {unit: count, "label": label, "time": _iso(self._clock()), **result}
        self._write(name, dump_json(content, indent=1))
        return self.path / name

    def evals(self) -> list[dict[str, Any]]:
        """Return the evaluations, from the least to the most trained agent.

        Raises:
            RunError: A file is damaged; it is named.
        """
        return [restore_floats(read_json_object(p)) for p in sorted(self.eval_path.glob("*.json"))]

    def log_event(self, kind: str, **fields: Any) -> None:
        """Append an event of `kind` to `events.jsonl`.

        Raises:
            RunError: The file cannot be written.
        """
        line = dump_json({"time": _iso(self._clock()), "kind": kind, **fields})
        try:
            # One write in append mode: lines of several processes do not mix.
            with open(self.events_path, "ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            raise run_error(error, f"write '{self.events_path}'") from None

    def events(self) -> list[dict[str, Any]]:
        """Return the events, oldest first; incomplete lines are left out."""
        events = []
        with contextlib.suppress(FileNotFoundError), open(self.events_path, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    events.append(json.loads(line))
        return events

    # Locking and deleting

    def lock(self, *, wait_seconds: float = 0.5) -> None:
        """Make this process the only one that may train the run.

        Args:
            wait_seconds: How long to try. Readers hold the lock for an instant when they ask
                whether the run is alive, and must not be mistaken for a trainer.

        Raises:
            RunError: Another process trains it.
        """
        path = self.path / LOCK_FILE
        try:
            handle = open(path, "a+b")  # Held until `unlock`.
        except OSError as error:
            raise run_error(error, f"lock the run '{self.path}'") from None
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                handle.seek(0)
                owner = handle.read().decode(errors="replace").strip() or "unknown"
                handle.close()
                raise RunError(
                    f"The run '{self.path}' is being trained by pid {owner}.",
                    "Wait for it to end or stop it first.",
                ) from None
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    warnings.warn(
                        f"The file system of '{self.path}' has no locks: nothing will stop a "
                        "second process from training this run.",
                        RunWarning,
                        stacklevel=2,
                    )
                    break
                handle.close()
                raise run_error(error, f"lock the run '{self.path}'") from None
        self._lock = handle
        _held_locks.add(handle)
        try:
            handle.truncate(0)
            handle.write(f"{os.getpid()} on {socket.gethostname()}\n".encode())
            handle.flush()
        except OSError as error:
            self.unlock()
            raise run_error(error, f"lock the run '{self.path}'") from None

    def unlock(self) -> None:
        """Let other processes train the run; does nothing if this one does not hold the lock."""
        handle, self._lock = self._lock, None
        if handle is None or handle not in _held_locks:
            return
        _held_locks.discard(handle)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            handle.close()

    def delete(self) -> None:
        """Delete the run, and the directories of its group that become empty.

        Raises:
            RunError: It is being trained, or may not be deleted.
        """
        if self._lock is None:
            self.lock()
        aside = self.path.with_name(f".deleted-{self.path.name}-{secrets.token_hex(3)}")
        try:
            # Renamed first: a half-deleted run must not be listed.
            os.rename(self.path, aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise run_error(error, f"delete the run '{self.path}'") from None
        finally:
            self.unlock()
        parent = self.path.parent
        with contextlib.suppress(OSError):
            for _ in self.name.split("/")[1:]:
                parent.rmdir()
                parent = parent.parent

    def _update(self, **fields: Any) -> None:
        info = {**self.info, **fields}
        self._write(RUN_FILE, dump_json(info, indent=1))
        self.info = info

    def _write(self, name: str, data: bytes) -> None:
        try:
            write_atomic(self.path / name, data)
        except OSError as error:
            raise run_error(error, f"write '{self.path / name}'") from None


def find_runs(root: Path) -> list[RunDirectory]:
    """Return every run at or below `root`, oldest first.

    A damaged run is left out with a `RunWarning` that says what is wrong with it.
    """
    runs = []
    for path, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if RUN_FILE in files:
            folders.clear()
            try:
                runs.append(RunDirectory.open(Path(path)))
            except RunError as error:
                warnings.warn(error.message, RunWarning, stacklevel=2)
    return sorted(runs, key=lambda run: (str(run.info["created"]), str(run.path)))


def group_runs(path: Path) -> list[RunDirectory]:
    """Return the run at `path`, or the runs of the group at `path`, by path.

    Raises:
        RunError: There is neither a run nor a group.
    """
    if not path.is_dir() or (path / RUN_FILE).exists():
        return [RunDirectory.open(path)]
    runs = sorted(find_runs(path), key=lambda run: run.path)
    if not runs:
        raise RunError(
            f"'{path}' is neither a run nor a group of runs: no '{RUN_FILE}' is in or below it.",
            "Give the directory of a run or a group (see `assay runs`).",
        )
    return runs


def evaluated_at(content: Mapping[str, Any]) -> int:
    """Return how long the agent of a stored evaluation had been trained, in the run's unit."""
    return int(content["env_steps"] if "env_steps" in content else content["updates"])


def unique_name(algorithm: str, env: str, clock: Callable[[], float] = time.time) -> str:
    """Return a name for a run or group of runs that was given none."""
    what = re.sub(r"[^A-Za-z0-9._]+", "-", f"{algorithm}-{env}").strip("-._")[:70] or "run"
    stamp = datetime.fromtimestamp(clock()).strftime("%Y%m%d-%H%M%S")
    return f"{what}-{stamp}-{secrets.token_hex(3)}"


def _make_unnamed(
    root: Path, algorithm: str, env: str, clock: Callable[[], float]
) -> tuple[Path, str]:
    while True:
        name = unique_name(algorithm, env, clock)
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / name).mkdir()
        except FileExistsError:
            if root.is_dir():
                continue  # Another run drew the same six digits in the same second.
            raise RunError(f"'{root}' is a file; expected a directory for runs.") from None
        except OSError as error:
            raise run_error(error, f"create the run directory '{root / name}'") from None
        return root / name, name


def _make_named(root: Path, name: str) -> Path:
    parts = name.split("/")
    if not all(_NAME_PART.fullmatch(part) for part in parts):
        raise RunError(
            f"'{name}' cannot be the name of a run.",
            "Use up to 100 letters, digits and '._=+-', starting with a letter or digit; '/' makes "
            "a group.",
        )
    path = root.joinpath(*parts)
    for depth in range(1, len(parts)):
        group = root.joinpath(*parts[:depth])
        if (group / RUN_FILE).exists():
            raise RunError(
                f"'{group}' is a run, so it cannot hold the run '{name}'.", "Choose another name."
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        if not path.parent.is_dir():
            raise RunError(
                f"Cannot create the run directory '{path}': part of the path is a file.",
                "Choose another path.",
            ) from None
        if (path / RUN_FILE).exists():
            raise RunError(
                f"There is a run at '{path}' already.",
                f"Resume it (assay resume {path}) or choose another name.",
            ) from None
        raise RunError(f"'{path}' exists already.", "Choose another name.") from None
    except OSError as error:
        raise run_error(error, f"create the run directory '{path}'") from None
    return path


def _read_info(path: Path) -> dict[str, Any]:
    info = read_json_object(path)
    for key in _REQUIRED:
        if key not in info:
            raise RunError(f"'{path}' is not the file of an Assay run: it lacks '{key}'.")
    if not isinstance(info["schema"], int):
        raise RunError(f"'{path}' has schema {info['schema']!r}; expected a number.")
    if info["schema"] > SCHEMA:
        raise RunError(
            f"'{path}' was written by a newer Assay (run schema {info['schema']}; this one reads "
            f"up to {SCHEMA}).",
            "Upgrade Assay to read it.",
        )
    if info["status"] not in get_args(Status):
        raise RunError(
            f"'{path}' has status {info['status']!r}; expected one of "
            f"{', '.join(get_args(Status))}."
        )
    return info


def _neighbours(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.is_dir() and p.name[0] != "."]
    except OSError:
        names = []
    hint = nearest(path.name, names)
    # Without a close match the hint lists every name, which can be long.
    return hint if hint.startswith("Did") else "Give the directory of a run (see `assay runs`)."


def _probe_lock(path: Path) -> bool | None:
    """Return whether a process holds the lock, or None where that cannot be known."""
    try:
        with open(path, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def _alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (OSError, TypeError, ValueError):
        return False
    return True


def _yaml(config: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).encode()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _seconds(text: Any) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return 0.0
