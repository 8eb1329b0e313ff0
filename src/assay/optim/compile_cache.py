"""Compiled steps on disk: traced once, built once, loaded in milliseconds by every run after.

A file under the cache directory is named by a hash of all that went into it (the code of the
package, the settings, the shapes, the traced graph, torch and the processor), so nothing in it is
ever out of date, and several processes may fill it at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.paths import cache_root
from assay.optim import products
from assay.optim.rewrites import rewrite

Program = Callable[..., list[Tensor]]


class CompileError(RuntimeError):
    """A step cannot be compiled here; it runs eagerly instead."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program on disk.

    Attributes:
        path: The file.
        metrics: Names of the metrics that it returns.
        outputs: Names of what it returns of each item.
    """

    path: Path
    metrics: list[str]
    outputs: list[str]


def steps_path() -> Path:
    """Return the directory of compiled steps."""
    return cache_root() / "steps"


def step_name(
    shapes: Sequence[tuple[Sequence[int], torch.dtype]], *, key: str, packages: set[str]
) -> str:
    """Return the name of a program in the cache, which is known before it is traced.

    Args:
        shapes: Of all tensors that it takes.
        key: What shapes the program besides its source.
        packages: Packages that hold its source, besides this one.
    """
    sources = [_package_source(name) for name in sorted({"assay", *packages})]
    return _fingerprint(sources, key, [(tuple(shape), str(dtype)) for shape, dtype in shapes])


def find(name: str) -> Compiled | None:
    """Return what was compiled under a name, or None. Nothing is written or waited for."""
    directory = steps_path()
    try:
        inner, metrics, outputs = json.loads((directory / f"{name}.graph").read_text())
    except (OSError, ValueError):
        return None
    path = directory / f"{inner}.pt2"
    return Compiled(path, metrics, outputs) if path.exists() else None


def compiled(
    program: Program,
    example: list[Tensor],
    *,
    name: str,
    names: Callable[[], tuple[list[str], list[str]]],
) -> Compiled:
    """Return the compiled program, compiling only what is new.

    Two levels: (source, settings, shapes) names a traced graph without tracing; the graph's own
    text names the binary. So a second run neither traces nor compiles, and a change that leaves
    the graph alone (a learning rate, a comment) traces for a second and does not compile.

    Args:
        program: Takes the tensors of `example`, updates some in place, and returns the results.
        example: Tensors of the shapes that the program will be given.
        name: Its `step_name`.
        names: Returns the names of metrics and outputs once the program has been traced.

    Raises:
        CompileError: Torch cannot compile it here.
        OSError: The cache cannot be written.
        TypeError: The program reads a tensor that is not among its inputs.
    """
    directory = steps_path()
    found = find(name)
    if found is not None:
        return found
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel seeds want the same step: one makes it
        found = find(name)
        if found is not None:
            return found
        graph = _trace(program, example)
        inner = _fingerprint(
            graph.code, _options(), [(tuple(t.shape), str(t.dtype)) for t in example]
        )
        path = directory / f"{inner}.pt2"
        if not path.exists():
            with _scratch(directory, name) as scratch:
                _build(graph, example, path, scratch)
        metrics, outputs = names()
        _write_atomically(directory / f"{name}.graph", json.dumps([inner, metrics, outputs]))
        return Compiled(path, metrics, outputs)


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
    graph = make_fx(program)(*_copies(example))
    frozen = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    if frozen:
        raise TypeError(
            f"A loss reads tensors that would be frozen into the compiled step ({frozen}). Pass "
            "the module that owns them to Step(reads=...), or put them into the batch."
        )
    if example[0].device.type == "cpu":
        rewrite(graph)
    return graph


def _copies(example: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return copies with the strides that a compiled program expects, whatever the example has."""
    return tuple(t.detach().clone(memory_format=torch.contiguous_format) for t in example)


class _Wrapped(nn.Module):
    """What `torch.export` wants: a module that calls the traced graph."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        return self.graph(*tensors)


@contextlib.contextmanager
def _scratch(directory: Path, name: str) -> Iterator[Path]:
    """Make a directory to build a step in; only one process at a time may build it.

    What is there already was left by a process that was killed.
    """
    for left in directory.glob(f"{name}.*.build"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}.", suffix=".build", dir=directory) as scratch:
        yield Path(scratch)


def _options() -> dict[str, Any]:
    """Return what Inductor is told: a product and a sum may be one operation, rounded once.

    Polynomials take less time then. Early releases of torch do not have the option.
    """
    from torch._inductor import config

    name = "enable_floating_point_contract_flag"
    contract = {f"cpp.{name}": "fast"} if hasattr(config.cpp, name) else {}
    return contract | products.options()


def _build(graph: Any, example: list[Tensor], path: Path, scratch: Path) -> None:
    import torch._inductor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = scratch / "step.pt2"
        try:
            exported = torch.export.export(_Wrapped(graph), _copies(example))
            torch._inductor.aoti_compile_and_package(
                exported, package_path=str(package), inductor_configs=_options()
            )
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
