"""Write a policy as one file that runs without Assay, and check that it acts as the agent does.

The file holds everything between an observation and its deterministic action: normalisation,
one-hot coding, the network, action masks and limits. An observation that is a dict becomes one
named input per entry in ONNX, and a dict of tensors in TorchScript. The batch size is dynamic. A
policy with a memory has its carry as further inputs (`carry/h`), which begin as zeros, and as
further outputs (`next_carry/h`); in TorchScript, as a second argument and result.
Observations and actions are canonical (see `assay.envs.spaces`): an environment whose Discrete
actions start at 1 has them counted from 0 here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
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

from assay.core.errors import AssayError, ConfigError, MissingExtraError
from assay.core.seeding import derive_rng
from assay.core.types import ACTION_MASK, Tree, pack, tree_map, unpack
from assay.policies.parts import CARRY, ONE_INPUT
from assay.policies.policy import Policy
from assay.policies.team import TeamPolicy
from assay.runs.files import replacing

Format = Literal["onnx", "torchscript"]
OUTPUT = "action"
NEXT_CARRY = "next_carry"

_OBSERVATIONS = 64
_TOLERANCE = 1e-4  # of actions in [-1, 1]; float32 sums in another order differ by less
_REACH = 10.0  # how far from zero, or from the bound nearest to it, observations are drawn
_FAR = 1_000.0


@dataclass(frozen=True, slots=True)
class Export:
    """A policy that was written and checked.

    Attributes:
        path: The file.
        format: What it is.
        inputs: Name, shape without the batch axis, and dtype of each input, the carry's included.
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


def export_policy(policy: Policy, path: Path, format: Format = "onnx", *, seed: int = 0) -> Export:
    """Write a policy without its exploration to a file, and compare the two.

    Args:
        policy: `assay.load(run).policy` for a run. It is not changed.
        path: Where to; its directory is made. Nothing is left there if the comparison fails.
        format: "onnx", or "torchscript".
        seed: Of the observations that both are compared on.

    Raises:
        ConfigError: The format is unknown.
        MissingExtraError: ONNX is asked for and not installed.
        AssayError: The file acts differently from the agent.
        RunError: The file cannot be written.
    """
    if format not in get_args(Format):
        raise ConfigError(f"format={format!r}: expected one of {', '.join(get_args(Format))}.")
    if isinstance(policy, TeamPolicy):
        raise ConfigError(
            f"{type(policy).__name__} is not a policy of one agent.",
            "Export each policy of a team by itself: policy.policies[name].",
        )
    if policy.wants_rewards:
        raise ConfigError(
            "A policy that acts by the return still to reach cannot be exported: a file is not "
            "told its rewards.",
            "Load the run in Python: assay.load(run).act(obs, reward=reward).",
        )
    module = policy.module().cpu().eval()
    spaces = policy.spaces
    obs = sample_observations(spaces.observation, spaces.action, _OBSERVATIONS, seed)
    start = policy.initial_carry(_OBSERVATIONS)
    write = _write_onnx if format == "onnx" else _write_torchscript
    with replacing(path) as draft:
        run, runtime = write(module, _tensors(obs), _tensors(start), draft)
        difference = float("nan")
        if run is not None:
            difference = _compare(run, policy, obs, path)
    action = np.asarray(policy.act(obs, start).action)
    leaves = _flat_inputs(obs, start)
    return Export(
        path=path,
        format=format,
        inputs=tuple((key, x.shape[1:], str(x.dtype)) for key, x in leaves.items()),
        output=(action.shape[1:], str(action.dtype)),
        runtime=runtime,
        observations=_OBSERVATIONS if run is not None else 0,
        max_difference=difference,
    )


def sample_observations(
    space: gym.Space[Any], action: gym.Space[Any], count: int, seed: int
) -> Tree:
    """Draw observations [count, ...] of a canonical space, far enough to exercise a policy.

    A half of the numbers is drawn within 10 of the one nearest to zero, and the other within 1,000:
    a policy may see prices. Action masks allow at least one action.
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
        parts = []
        for reach, rows in ((_REACH, count - count // 2), (_FAR, count // 2)):
            low = np.maximum(space.low, centre - reach)
            high = np.minimum(space.high, centre + reach)
            parts.append(rng.uniform(low, high, (rows, *space.shape)).astype(space.dtype))
        return np.concatenate(parts)
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(space.n, size=count)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return (rng.random((count, *space.shape)) * space.nvec).astype(space.dtype)
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


# Observations and a carry (or None) to actions and the carry after them.
Runner = Callable[[Tree, Tree], tuple[NDArray[Any], Tree]]


def _write_onnx(module: nn.Module, obs: Tree, carry: Tree, path: Path) -> tuple[Runner | None, str]:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "Exporting to ONNX")
    inputs = _flat_inputs(obs, carry)
    flat = _Flat(module, list(inputs), isinstance(obs, Mapping), list(carry or ()))
    batch = torch.export.Dim("batch", min=1)
    outputs = [OUTPUT, *(f"{NEXT_CARRY}/{name}" for name in carry or ())]
    with _silence():
        torch.onnx.export(
            flat,
            tuple(inputs.values()),
            str(path),
            input_names=flat.names,
            output_names=outputs,
            dynamic_shapes={"tensors": tuple({0: batch} for _ in inputs)},
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

    def run(obs: Tree, carry: Tree) -> tuple[NDArray[Any], Tree]:
        feed = {k: v for k, v in _flat_inputs(obs, carry).items() if k in kept}
        found = dict(zip(outputs, session.run(outputs, feed), strict=True))
        return found[OUTPUT], None if carry is None else unpack(NEXT_CARRY, found)

    return run, f"onnxruntime {runtime.__version__}"


def _write_torchscript(module: nn.Module, obs: Tree, carry: Tree, path: Path) -> tuple[Runner, str]:
    with torch.no_grad(), _silence():
        inputs = (obs,) if carry is None else (obs, carry)
        traced = torch.jit.trace(module, inputs, check_trace=False, strict=False)
        path.write_bytes(traced.save_to_buffer())  # torch itself aborts where a disk is full
        loaded = torch.jit.load(str(path))

    def run(obs: Tree, carry: Tree) -> tuple[NDArray[Any], Tree]:
        with torch.no_grad(), _silence():
            if carry is None:
                return loaded(_tensors(obs)).numpy(), None
            action, after = loaded(_tensors(obs), _tensors(carry))
        return action.numpy(), tree_map(lambda x: x.numpy(), after)

    return run, f"torch {torch.__version__}"


def _flat_inputs(obs: Tree, carry: Tree) -> dict[str, Any]:
    leaves = dict(obs) if isinstance(obs, Mapping) else {ONE_INPUT: obs}
    return leaves if carry is None else leaves | pack(CARRY, carry)


class _Flat(nn.Module):
    """A policy whose inputs and outputs are single tensors, as ONNX wants them."""

    def __init__(
        self, policy: nn.Module, names: list[str], by_name: bool, carry: list[str]
    ) -> None:
        super().__init__()
        self.policy = policy
        self.names = names
        self.by_name = by_name
        self.carry = carry

    def forward(self, *tensors: Tensor) -> Any:
        named = dict(zip(self.names, tensors, strict=True))
        carry = {name: named.pop(f"{CARRY}/{name}") for name in self.carry}
        obs = named if self.by_name else named[ONE_INPUT]
        if not carry:
            return self.policy(obs)
        action, after = self.policy(obs, carry)
        return action, *(after[name] for name in self.carry)


def _compare(run: Runner, policy: Policy, obs: Tree, path: Path) -> float:
    """Return the largest difference of actions, for all observations and for a single one.

    A memory takes two steps, so that the carry of the first has its part in the second.
    """
    worst = 0.0
    count = _OBSERVATIONS
    carry = expected_carry = policy.initial_carry(count)
    for _ in range(1 if carry is None else 2):
        alone, _ = run(*(tree_map(lambda x: x[:1], tree) for tree in (obs, carry)))
        actual, carry = run(obs, carry)
        choice = policy.act(obs, expected_carry)
        expected, expected_carry = np.asarray(choice.action), choice.carry
        worst = max(worst, _difference(actual, alone, expected, path))
    return worst


def _difference(
    actual: NDArray[Any], alone: NDArray[Any], expected: NDArray[Any], path: Path
) -> float:
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
        # Where two actions are equally good, rounding decides: allow one such case.
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
def _silence() -> Iterator[None]:
    """Hide the exporters' deprecation warnings and log output."""
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
