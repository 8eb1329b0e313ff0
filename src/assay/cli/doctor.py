"""`assay doctor`: what is installed here, what is missing, and what it is needed for."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.paths import runs_root

# Extra -> (a module that it brings, what it is for).
EXTRAS = {
    "atari": ("ale_py", "Atari games"),
    "box2d": ("Box2D", "LunarLander, BipedalWalker, CarRacing"),
    "classic": ("pygame", "rendering CartPole and the other small tasks"),
    "data": ("pyarrow", "datasets as HDF5, Minari or Parquet"),
    "dm-control": ("dm_control", "the DeepMind Control Suite"),
    "foraging": ("lbforaging", "level-based foraging: teams that gather food"),
    "minari": ("minari", "Minari's own package; Assay reads and writes its datasets without it"),
    "minatar": ("minatar", "MinAtar: five Atari games in small"),
    "minigrid": ("minigrid", "MiniGrid and BabyAI: grid worlds with missions"),
    "mujoco": ("mujoco", "HalfCheetah, Hopper and other MuJoCo tasks"),
    "openspiel": ("pyspiel", "OpenSpiel's games"),
    "pettingzoo": ("pettingzoo", "environments with several agents"),
    "onnx": ("onnxscript", "assay export --onnx"),
    "postgres": ("psycopg", "a server's registry in PostgreSQL"),
    "ray": ("ray", "learners on a Ray cluster"),
    "robotics": ("gymnasium_robotics", "FetchReach and other tasks with goals"),
    "server": ("grpc", "the training server"),
    "study": ("optuna", "candidates sampled by Optuna"),
    "video": ("imageio_ffmpeg", "MP4 videos"),
    "warehouse": ("rware", "the robotic warehouse, of several agents"),
    "mlflow": ("mlflow", "the metric sink mlflow"),
    "trackio": ("trackio", "the metric sink trackio"),
    "wandb": ("wandb", "the metric sink wandb"),
}
_ESSENTIAL = (
    "numpy", "torch", "gymnasium", "pydantic", "yaml", "safetensors", "scipy", "matplotlib",
    "psutil",
)  # fmt: skip
_LITTLE_DISK = 2 * 2**30
_LITTLE_MEMORY = 2 * 2**30

State = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; "note" means that something optional is missing."""

    name: str
    state: State
    detail: str


def doctor(root: RunsRoot = None, as_json: AsJson = False) -> None:
    """Report what is installed here and what is missing.

    The exit code is 1 if Assay cannot work here.
    """
    findings = examine(runs_root(root))
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        found = [{"name": f.name, "state": f.state, "detail": f.detail} for f in findings]
        output.print_json({"ok": not broken, "findings": found})
    else:
        rows = [(f.name, f.state.upper() if f in broken else f.state, f.detail) for f in findings]
        output.show(output.table(("what", "", "found"), rows))
        output.say(
            f"Broken: {', '.join(finding.name for finding in broken)}."
            if broken
            else "Assay works here. Try: assay demo"
        )
    if broken:
        raise typer.Exit(1)


def examine(root: Path) -> list[Finding]:
    """Run all checks, even if something is missing."""
    findings = [_python(), *_packages()]
    if all(finding.state != "broken" for finding in findings):
        findings += [*_torch(), _compiler(), _memory()]
    findings += [_disk(root), *_extras(), *_drawing(), *_hook()]
    return findings


def _hook() -> list[Finding]:
    """Say whether Codex runs the hook of the plugin for studies, where that is installed."""
    from assay.skills.checks import hook_of_codex
    from assay.skills.library import SkillsError

    try:
        found = hook_of_codex(Path.cwd())
    except (SkillsError, OSError):  # without a home there is no Codex to report
        return []
    return [Finding(found.name, found.state, found.detail)] if found else []


def _python() -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    return Finding("python", "ok" if sys.version_info >= (3, 11) else "broken", detail)


def _packages() -> list[Finding]:
    findings = []
    for name in _ESSENTIAL:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a broken binary can raise anything
            findings.append(Finding(name, "broken", f"cannot be imported: {error}"))
        else:
            findings.append(Finding(name, "ok", str(getattr(module, "__version__", "installed"))))
    return findings


def _torch() -> list[Finding]:
    import torch

    from assay.cli.seeds import cores

    detail = f"usable cores: {cores()}; threads of torch: {torch.get_num_threads()}"
    findings = [Finding("cpu", "ok", detail)]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return [*findings, Finding("gpu", "ok", f"CUDA {torch.version.cuda}: {', '.join(names)}")]
    reason = "this build of torch has no CUDA" if torch.version.cuda is None else "none is visible"
    return [*findings, Finding("gpu", "ok", f"no CUDA GPU ({reason}); everything runs on the CPU")]


def _compiler() -> Finding:
    from assay.core.paths import cache_root
    from assay.optim.mode import has_compiler

    place = cache_root()
    if not has_compiler():
        fix = "updates run uncompiled, 1.5 to 5 times slower. On Debian: apt install g++"
        return Finding("compiler", "note", f"no C++ compiler found: {fix}")
    used = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    path = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    return Finding("compiler", "ok", f"{path}; compiled updates in {place} ({_bytes(used)})")


def _memory() -> Finding:
    from assay.core.system_memory import available_bytes

    free = available_bytes()
    return Finding("memory", "note" if free < _LITTLE_MEMORY else "ok", f"{_bytes(free)} available")


def _disk(root: Path) -> Finding:
    place = root.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK) or not place.is_dir():
        return Finding("disk", "broken", f"runs cannot be written to '{root}'")
    free = shutil.disk_usage(place).free
    detail = f"{_bytes(free)} free where runs are kept ('{root}')"
    return Finding("disk", "note" if free < _LITTLE_DISK else "ok", detail)


def _extras() -> list[Finding]:
    findings = []
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            findings.append(Finding(f"extra {extra}", "ok", f"installed ({purpose})"))
        else:
            fix = f"for {purpose}: pip install 'assay[{extra}]'"
            findings.append(Finding(f"extra {extra}", "note", f"not installed; {fix}"))
    return findings


def _drawing() -> list[Finding]:
    """Report how environments can be rendered for videos."""
    import ctypes.util

    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    where = f"screen {screen}" if screen else "no screen, which videos do not need"
    findings = [Finding("drawing", "ok", where)]
    if importlib.util.find_spec("mujoco") is not None:
        wanted = os.environ.get("MUJOCO_GL")
        there = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
        detail = f"MUJOCO_GL={wanted or 'not set'}; libraries: {', '.join(there) or 'none'}"
        if not there and not screen:
            detail += ". To render MuJoCo tasks on Debian: apt install libegl1 libgl1-mesa-dri"
        findings.append(Finding("drawing mujoco", "ok" if there or screen else "note", detail))
    return findings


def _bytes(count: float) -> Any:
    from assay.buffers.allocation import human_bytes

    return human_bytes(count)
