"""Compiled steps on disk: traced once, built once, loaded in milliseconds by every run after.

A file under the cache directory is named by a hash of all that went into it (the code of the
package, the settings, the shapes, the traced graph, torch and the processor), so nothing in it is
ever out of date, and several processes may fill it at the same time.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.paths import cache_root

Program = Callable[..., list[Tensor]]


class CompileError(RuntimeError):
    """A step cannot be compiled here; it runs eagerly instead."""


def compiled(
    program: Program,
    example: list[Tensor],
    *,
    key: str,
    packages: set[str],
    names: Callable[[], tuple[list[str], list[str]]],
) -> tuple[Path, list[str], list[str]]:
    """Return the compiled program's path, metric and output names, compiling only what is new.

    Two levels: (source, settings, shapes) names a traced graph without tracing; the graph's own
    text names the binary. So a second run neither traces nor compiles, and a change that leaves
    the graph alone (a learning rate, a comment) traces for a second and does not compile.

    Args:
        program: Takes the tensors of `example`, updates some in place, and returns the results.
        example: Tensors of the shapes that the program will be given.
        key: What shapes the program besides its source.
        packages: Further packages that hold its source.
        names: Returns the names of metrics and outputs once the program has been traced.

    Raises:
        CompileError: Torch cannot compile it here.
        TypeError: The program reads a tensor that is not among its inputs.
    """
    shapes = [(tuple(t.shape), str(t.dtype)) for t in example]
    sources = [_package_source(name) for name in sorted({"assay", *packages})]
    outer = _fingerprint(sources, key, shapes)
    directory = cache_root() / "steps"
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / f"{outer}.graph"
    with (directory / f"{outer}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel seeds want the same step: one makes it
        if note.exists():
            inner, metrics, outputs = json.loads(note.read_text())
            if (directory / f"{inner}.pt2").exists():
                return directory / f"{inner}.pt2", metrics, outputs
        graph = _trace(program, example)
        inner = _fingerprint(graph.code, shapes)
        path = directory / f"{inner}.pt2"
        if not path.exists():
            _build(graph, example, path)
        metrics, outputs = names()
        _write_atomically(note, json.dumps([inner, metrics, outputs]))
        return path, metrics, outputs


def load(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return a compiled program as a function of its tensors."""
    return torch._C._aoti.AOTIModelPackageLoader(*_loader_arguments(path)).run


@functools.cache
def _package_source(name: str) -> str:
    """Hash all code of a package, so that an edit never meets a stale binary."""
    module = sys.modules[name]
    paths = [
        Path(p) for place in getattr(module, "__path__", []) for p in Path(place).rglob("*.py")
    ]
    if not paths and getattr(module, "__file__", None):
        paths = [Path(str(module.__file__))]
    if not paths:  # typed at a prompt: the graph alone must name the binary
        return os.urandom(16).hex()
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _fingerprint(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in (
        *parts,
        torch.__version__,
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        # Compiled code holds arrays with a place per thread.
        torch.get_num_threads(),
        os.cpu_count(),
    ):
        digest.update(repr(part).encode() + b"\0")
    return digest.hexdigest()[:32]


def _trace(program: Program, example: list[Tensor]) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    # Tracing executes the program, which updates in place: trace on copies.
    graph = make_fx(program)(*[t.detach().clone() for t in example])
    frozen = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    if frozen:
        raise TypeError(
            f"A loss reads tensors that would be frozen into the compiled step ({frozen}). Pass "
            "the module that owns them to Step(reads=...), or put them into the batch."
        )
    return graph


class _Wrapped(nn.Module):
    """What `torch.export` wants: a module that calls the traced graph."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        return self.graph(*tensors)


def _build(graph: Any, example: list[Tensor], path: Path) -> None:
    import torch._inductor

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        warnings.simplefilter("ignore")
        copies = tuple(t.detach().clone() for t in example)
        package = Path(scratch) / "step.pt2"
        try:
            exported = torch.export.export(_Wrapped(graph), copies)
            torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise CompileError(
                f"The step could not be compiled ({type(error).__name__}: {reason})."
            ) from error
        _try_to_load(package, path.parent)
        package.rename(path)


def _try_to_load(package: Path, directory: Path) -> None:
    """Let a child load a package first, since some builds of torch crash when they do.

    That is the build's doing, not the package's: one that came through is noted in `directory`.

    Raises:
        CompileError: The child did not survive it.
    """
    proof = directory / f"{_fingerprint()}.loads"
    if proof.exists():
        return
    load = (
        "import json, sys, torch; torch._C._aoti.AOTIModelPackageLoader(*json.loads(sys.argv[1]))"
    )
    child = subprocess.run(
        [sys.executable, "-c", load, json.dumps(_loader_arguments(package))],
        capture_output=True,
        check=False,
    )
    if child.returncode:
        raise CompileError(f"This torch ({torch.__version__}) cannot load a step that it compiled.")
    proof.touch()


def _loader_arguments(path: Path) -> tuple[Any, ...]:
    return (str(path), "model", False, 1, -1)  # single-threaded: no, runners: 1, device: CPU


def _write_atomically(path: Path, text: str) -> None:
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(text)
    scratch.rename(path)
