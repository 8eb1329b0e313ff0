"""Write a policy as one file that runs without Assay, and prove that it acts as the agent does.

The file holds all that lies between an observation and its deterministic action: normalisation,
one-hot coding, the network, action masks and limits. An observation that is a dict becomes one
named input per entry in ONNX, and a dict of tensors in TorchScript. The batch size is free.
Observations and actions are canonical (see `assay.envs.spaces`): an environment whose Discrete
actions start at 1 has them counted from 0 here.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.algorithms.base import Algorithm
from assay.core.errors import AssayError, ConfigError, MissingExtraError, RunError
from assay.core.seeding import derive_rng
from assay.core.types import ACTION_MASK, Tree, tree_map
from assay.runs.files import run_error

Format = Literal["onnx", "torchscript"]
ONE_INPUT = "observation"  # the name of the input where the observation is one array
OUTPUT = "action"

_OBSERVATIONS = 64
_TOLERANCE = 1e-4  # of actions in [-1, 1]; float32 sums in another order differ by less
_REACH = 10.0  # how far from zero, or from the bound nearest to it, observations are drawn


@dataclass(frozen=True, slots=True)
class Export:
    """A policy that was written and checked.

    Attributes:
        path: The file.
        format: What it is.
        inputs: Name, shape without the batch axis, and dtype of each input.
        output: Shape without the batch axis, and dtype of the action.
        runtime: What ran the file; "" where nothing could, because onnxruntime is missing.
        observations: How many observations it was compared on.
        max_difference: Largest absolute difference from the agent's actions; NaN if not compared.
    """

    path: Path
    format: Format
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    output: tuple[tuple[int, ...], str]
    runtime: str
    observations: int
    max_difference: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "path": str(self.path),
            "format": self.format,
            "inputs": [
                {"name": name, "shape": list(shape), "dtype": dtype}
                for name, shape, dtype in self.inputs
            ],
            "output": {"name": OUTPUT, "shape": list(self.output[0]), "dtype": self.output[1]},
            "runtime": self.runtime or None,
            "observations": self.observations,
            "max_difference": None if np.isnan(self.max_difference) else self.max_difference,
        }


def export_policy(
    algorithm: Algorithm, path: Path, format: Format = "onnx", *, seed: int = 0
) -> Export:
    """Write the deterministic policy of an algorithm to a file, and compare the two.

    Args:
        algorithm: Whose policy; `assay.load(run).algorithm` for a run. It is not changed.
        path: Where to; its directory is made. Nothing is left there if the comparison fails.
        format: "onnx", or "torchscript".
        seed: Of the observations that both are asked about.

    Raises:
        ConfigError: The format is unknown.
        MissingExtraError: ONNX is asked for and not installed.
        SpaceError: The algorithm has no policy that can be exported.
        AssayError: The file acts differently from the agent.
        RunError: The file cannot be written.
    """
    if format not in get_args(Format):
        raise ConfigError(f"format={format!r}: expected one of {', '.join(get_args(Format))}.")
    # A copy, because it may have to move to the CPU, and shares its weights with the agent.
    policy = copy.deepcopy(algorithm.policy_module()).cpu().eval()
    space = algorithm.spaces.observation
    obs = sample_observations(space, algorithm.spaces.action, _OBSERVATIONS, seed)
    expected = np.asarray(algorithm.act(obs, algorithm.initial_carry(_OBSERVATIONS), False).action)
    write = _write_onnx if format == "onnx" else _write_torchscript
    with _draft(path) as draft:
        run, runtime = write(policy, _tensors(obs), draft)
        difference = float("nan")
        if run is not None:
            difference = _compare(run, obs, expected, path)
    leaves = obs if isinstance(obs, Mapping) else {ONE_INPUT: obs}
    return Export(
        path=path,
        format=format,
        inputs=tuple((key, x.shape[1:], str(x.dtype)) for key, x in leaves.items()),
        output=(expected.shape[1:], str(expected.dtype)),
        runtime=runtime,
        observations=_OBSERVATIONS if run is not None else 0,
        max_difference=difference,
    )


def sample_observations(
    space: gym.Space[Any], action: gym.Space[Any], count: int, seed: int
) -> Tree:
    """Draw observations [count, ...] of a canonical space, far enough to exercise a policy.

    Numbers are drawn within 10 of the one nearest to zero. Action masks allow at least one action.
    """
    rng = derive_rng(seed, "export")
    if isinstance(space, gym.spaces.Dict):
        return {
            key: _sample_mask(part, action, count, rng)
            if key == ACTION_MASK
            else _sample(part, count, rng)
            for key, part in space.items()
        }
    return _sample(space, count, rng)


def _sample(space: gym.Space[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    if isinstance(space, gym.spaces.Box):
        if space.dtype == np.uint8:
            return rng.integers(space.low, space.high, (count, *space.shape), np.uint8, True)
        centre = np.clip(0.0, space.low, space.high)
        low, high = np.maximum(space.low, centre - _REACH), np.minimum(space.high, centre + _REACH)
        return rng.uniform(low, high, (count, *space.shape)).astype(space.dtype)
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, count)
    if isinstance(space, gym.spaces.MultiDiscrete):
        drawn = rng.random((count, *space.shape)) * space.nvec
        return (drawn.astype(space.dtype) + space.start).astype(space.dtype)
    assert isinstance(space, gym.spaces.MultiBinary)
    return rng.integers(0, 2, (count, *space.shape), dtype=np.int8)


def _sample_mask(
    space: gym.Space[Any], action: gym.Space[Any], count: int, rng: np.random.Generator
) -> NDArray[Any]:
    mask = _sample(space, count, rng)
    sizes = [int(action.n)] if isinstance(action, gym.spaces.Discrete) else None
    if isinstance(action, gym.spaces.MultiDiscrete):
        sizes = [int(n) for n in action.nvec]
    if sizes is None:  # each entry of MultiBinary may be forbidden by itself
        return mask
    start, rows = 0, np.arange(count)
    for size in sizes:
        mask[rows, start + rng.integers(size, size=count)] = 1
        start += size
    return mask


Runner = Callable[[Tree], NDArray[Any]]


def _write_onnx(policy: nn.Module, obs: Tree, path: Path) -> tuple[Runner | None, str]:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "Exporting to ONNX")
    names = list(obs) if isinstance(obs, Mapping) else [ONE_INPUT]
    tensors = [obs[name] for name in names] if isinstance(obs, Mapping) else [obs]
    batch = torch.export.Dim("batch", min=1)
    with _silence():
        torch.onnx.export(
            _Positional(policy, names if isinstance(obs, Mapping) else None),
            tuple(tensors),
            str(path),
            input_names=names,
            output_names=[OUTPUT],
            dynamic_shapes={"tensors": tuple({0: batch} for _ in tensors)},
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    if importlib.util.find_spec("onnxruntime") is None:
        return None, ""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        path.read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    kept = {entry.name for entry in session.get_inputs()}

    def run(obs: Tree) -> NDArray[Any]:
        leaves = obs if isinstance(obs, Mapping) else {ONE_INPUT: obs}
        feed = {name: leaves[name] for name in names if name in kept}
        return np.asarray(session.run([OUTPUT], feed)[0])

    return run, f"onnxruntime {runtime.__version__}"


def _write_torchscript(policy: nn.Module, obs: Tree, path: Path) -> tuple[Runner, str]:
    with torch.no_grad(), _silence():
        traced = torch.jit.trace(policy, (obs,), check_trace=False)
        traced.save(str(path))
        loaded = torch.jit.load(str(path))

    def run(obs: Tree) -> NDArray[Any]:
        with torch.no_grad(), _silence():
            return loaded(_tensors(obs)).numpy()

    return run, f"torch {torch.__version__}"


class _Positional(nn.Module):
    """A policy that takes the entries of an observation one by one, as ONNX wants them."""

    def __init__(self, policy: nn.Module, names: list[str] | None) -> None:
        super().__init__()
        self.policy = policy
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        if self.names is None:
            return self.policy(tensors[0])
        return self.policy(dict(zip(self.names, tensors, strict=True)))


def _compare(run: Runner, obs: Tree, expected: NDArray[Any], path: Path) -> float:
    """Return the largest difference, having asked for all observations and for a single one."""
    actual = run(obs)
    alone = run(tree_map(lambda x: x[:1], obs))
    same_shape = actual.shape == expected.shape and alone.shape == expected[:1].shape
    if not same_shape:
        raise AssayError(
            f"The exported policy '{path}' returns actions {actual.shape} and {alone.shape} for "
            f"{len(expected)} observations and one; expected {expected.shape} and "
            f"{expected[:1].shape}.",
            "This is a bug in Assay; please report it with the run's config.yaml.",
        )
    wide = expected.astype(np.float64)
    difference = np.abs(actual.astype(np.float64) - wide)
    difference[:1] = np.maximum(difference[:1], np.abs(alone.astype(np.float64) - wide[:1]))
    worst = float(difference.max())
    if np.issubdtype(expected.dtype, np.floating):
        wrong = worst > _TOLERANCE * max(1.0, float(np.abs(wide).max()))
    else:
        # Where two actions are equally good, the last bit of a sum decides: one such is no error.
        wrong = int(difference.reshape(len(difference), -1).any(1).sum()) > 1
    if wrong or np.isnan(worst):
        raise AssayError(
            f"The exported policy differs from the agent by {worst:.3g}, so '{path}' was not kept.",
            "This is a bug in Assay; please report it with the run's config.yaml.",
        )
    return worst


def _tensors(obs: Tree) -> Tree:
    return tree_map(lambda x: torch.from_numpy(np.ascontiguousarray(x)), obs)


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield where to write, and move that to `path` once all went well."""
    draft = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()
        yield draft
        os.replace(draft, path)
    except FileExistsError:
        raise RunError(
            f"Cannot write '{path}': '{path.parent}' is a file.", "Choose another place."
        ) from None
    except OSError as error:
        raise run_error(error, f"write '{path}'") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporters' chatter about their own future from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
