"""Where a run came from: code, versions, machine, seeds and command line. Never a secret."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.core.errors import RunError
from assay.core.system_memory import total_bytes
from assay.runs.files import assay_version
from assay.runs.git import GitError, git

MAX_DIFF_BYTES = 200_000
REDACTED = "[redacted]"
_GPU_KIND = ("name", "memory.total", "driver_version")
_SECONDS = 10.0  # that Git or the GPU driver may take to answer

# Variables that change results or speed. An allow list, since any other may hold a secret.
ENVIRONMENT = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "MUJOCO_GL",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "SLURM_JOB_ID",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_COMPILE_DISABLE",
)

_SECRET_FILES = (".env", ".env.*", ".netrc", "*.pem", "*.key", "id_*", "*credentials*")
_SECRET_NAME = r"[\w-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key)"
_SECRET_ARGUMENT = re.compile(_SECRET_NAME, re.IGNORECASE)
_SECRET_TEXT = (
    # Keys with a known format.
    re.compile(r"\b(?:(?:gh[opsru]_|hf_)\w{20,}|(?:github_pat_|glpat-|sk-|xox\w-)[\w-]{20,})"),
    re.compile(r"\b(?:AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END|\Z)"),
    # The user and password of a URL.
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),
    # password = "..."
    re.compile(rf"""\b{_SECRET_NAME}["']?\s*[:=]\s*["'][^"'\n]+["']""", re.IGNORECASE),
)


def is_secret(name: str) -> bool:
    """Return whether a variable or option of this name holds a secret."""
    return _SECRET_ARGUMENT.search(name) is not None


def collect(
    argv: Sequence[str] | None = None,
    *,
    seeds: Mapping[str, int] | None = None,
    files: Mapping[str, Mapping[str, Any]] | None = None,
    code: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> dict[str, Any]:
    """Return what is needed to repeat the run.

    Args:
        argv: The command line; this process's own if None.
        seeds: The run's seeds by what they are for.
        files: What the run reads, by what it is for: the `path` and `sha256` of each, and more.
        code: The SHA-256 of the source of each class or function of the user's own that the run
            names, where it is known.
        cwd: Whose Git repository to describe; the working directory if None.
    """
    cwd = Path.cwd() if cwd is None else cwd
    return {
        "argv": _redact_arguments(list(sys.argv if argv is None else argv)),
        "seeds": dict(seeds or {}),
        "files": {name: dict(facts) for name, facts in (files or {}).items()},
        "code": dict(code or {}),
        "cwd": str(cwd),
        "git": _git(cwd),
        "assay": assay_version(),
        "python": platform.python_version(),
        "packages": _packages(),
        "platform": platform.platform(),
        "hardware": hardware(),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def refuse_changed_files(
    recorded: Mapping[str, Any], present: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse to go on where what a run reads is no longer what `collect` recorded at the start.

    Args:
        recorded: The provenance of the run.
        present: What `collect` would be given now.

    Raises:
        RunError: A file has changed; it is named.
    """
    for name, then in recorded.get("files", {}).items():
        now = present[name]
        if now["sha256"] != then["sha256"]:
            ways = "Put the file back as it was, or start a new run."
            if name == "reward_model":
                ways = f"{ways[:-1]}, or go on with what it is now: --reward-model {then['path']}"
            raise RunError(
                f"{name}='{then['path']}' has changed since the run was started: its SHA-256 is "
                f"{now['sha256'][:12]}..., it was {then['sha256'][:12]}....",
                ways,
            )


def warn_of_changed_code(recorded: Mapping[str, Any], present: Mapping[str, str | None]) -> None:
    """Warn where the source of what a run names is no longer what `collect` recorded."""
    for name, now in present.items():
        if recorded.get("code", {}).get(name, now) != now:
            warnings.warn(
                f"The source of '{name}' has changed since this run was started: its weights may "
                "not do what they were trained to do. Put the source back as it was to be sure.",
                stacklevel=2,
            )


def hardware() -> dict[str, Any]:
    """Return the CPU's model, the cores this process may use, the memory and the GPUs."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": total_bytes(),
        # Neither number nor identity: two machines of one kind are described alike.
        "gpus": [{name: gpu[name] for name in _GPU_KIND} for gpu in gpus()],
    }


def _git(cwd: Path) -> dict[str, Any] | None:
    """Describe the repository around `cwd`, or return None if there is none."""
    excluded = [f":(exclude,top,glob,icase)**/{name}" for name in _SECRET_FILES]
    options = ("--no-color", "--no-ext-diff", "--no-textconv")
    try:
        sha = git(cwd, "rev-parse", "HEAD", timeout=_SECONDS)
    except GitError:
        return None
    diff = _output(cwd, "diff", "HEAD", *options, "--", *excluded)
    changed = _output(cwd, "status", "--porcelain")
    data = _redact(diff).encode()
    return {
        "sha": sha.strip(),
        "dirty": bool(changed),
        # The names are kept too: a new file is not in the diff.
        "changed": changed.splitlines()[:1000],
        "diff": data[:MAX_DIFF_BYTES].decode(errors="ignore"),
        "diff_truncated": len(data) > MAX_DIFF_BYTES,
    }


def _output(cwd: Path, *arguments: str) -> str:
    """Return what Git prints, or nothing if it fails; bytes that are not UTF-8 are replaced."""
    try:
        text = git(cwd, *arguments, timeout=_SECONDS)
    except GitError:
        return ""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _packages() -> dict[str, str]:
    """Return the version of every package that can be imported, by name."""
    return dict(_packages_in(tuple((place, _modified(place)) for place in sys.path)))


def _modified(place: str) -> int:
    """Return when a directory was changed last, as by an installation; 0 if it is none."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=1)  # a hundred files are read, for every run of a process
def _packages_in(places: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
    found = {}
    for distribution in importlib.metadata.distributions():
        # To parse all of it, as `distribution.metadata` does, takes six times as long.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        # A half-removed package has metadata without a name.
        if name := _header(text, "Name"):
            found[name] = _header(text, "Version")
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _header(text: str, name: str) -> str:
    found = re.search(rf"^{name}:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, str]]:
    """Return the GPUs of this machine in the order of nvidia-smi, by its names of their fields."""
    fields = ("index", "uuid", *_GPU_KIND)
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):  # not installed, slow, or without a driver
        return []
    rows = [line.split(", ") for line in done.stdout.decode(errors="replace").splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _redact(text: str) -> str:
    for pattern in _SECRET_TEXT:
        text = pattern.sub(REDACTED, text)
    return text


def _redact_arguments(arguments: list[str]) -> list[str]:
    """Hide the values of `--token x`, `--token=x` and `token=x`, and what looks like a key."""
    safe: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = _SECRET_ARGUMENT.fullmatch(name) is not None
        if hide_next:
            safe.append(REDACTED)
        elif secret and equals:
            safe.append(f"{name}={REDACTED}")
        else:
            safe.append(_redact(argument))
        hide_next = not hide_next and secret and not equals and name.startswith("-")
    return safe
