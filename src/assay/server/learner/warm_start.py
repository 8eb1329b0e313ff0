"""From a published model back to the weights of an algorithm: for a learner without a checkpoint.

A model file has the policy alone. Critics, optimizer and replay begin from nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.algorithms.base import Algorithm
from assay.core.errors import CheckpointError
from assay.server.model_export import export_snapshot
from assay.server.model_file import Snapshot

Array = np.ndarray[Any, Any]

_BASE = 2048  # a number is written in two digits of this base, each of which float32 holds exactly
_MARK = 12345.5  # what no constant of a network is
_VARIANCE_EPS = 1e-8  # what `RunningNormalizer` adds to a variance


def load_weights(algorithm: Algorithm, snapshot: Snapshot, seen: int) -> None:
    """Give an algorithm that has just been built the policy of a model file.

    An export only moves numbers. So every weight is given a number of its own once, and the
    export of these tells where each number of the file belongs, whatever the network is.

    Args:
        algorithm: It must not have learned anything.
        snapshot: Of the same policy.
        seen: Observations that the file's normalisation comes from.

    Raises:
        CheckpointError: The file is not one of this policy.
    """
    modules = {k: v for k, v in vars(algorithm).items() if isinstance(v, nn.Module)}
    tensors = {name: _tensors(module) for name, module in modules.items()}
    every = [one for some in tensors.values() for one in some]
    values = np.concatenate([one.detach().cpu().numpy().reshape(-1) for one in every])
    copies = _copies(tensors)
    for name, place in _places(algorithm, every).items():
        given = snapshot.arrays.get(name)
        if given is None or given.shape != place.shape:
            raise _other_policy(f"it has no '{name}' of the shape {list(place.shape)}")
        values[place] = given
    _write(every, values)
    for name, target in copies:
        _copy(tensors[name], tensors[target])
    _load_normalization(algorithm, snapshot, seen)
    algorithm.load_state(algorithm.state())  # whatever is derived from the weights
    for name, array in export_snapshot(algorithm, version=1).arrays.items():
        if not np.allclose(array, snapshot.arrays.get(name, np.nan), rtol=1e-4):
            raise _other_policy(f"its '{name}' is another")


def _other_policy(why: str) -> CheckpointError:
    return CheckpointError(
        f"The model file is not one of this policy: {why}.",
        "Use the version of Assay that published it.",
    )


def _tensors(module: nn.Module) -> list[Tensor]:
    """Return the weights of a module and its buffers that are floats, each once."""
    found = {id(one): one for one in (*module.parameters(), *module.buffers())}
    return [one for one in found.values() if one.is_floating_point()]


def _copies(tensors: dict[str, list[Tensor]]) -> list[tuple[str, str]]:
    """Return pairs of modules whose second began as a copy of the first: its target network."""
    return [
        (name, other)
        for name, own in tensors.items()
        for other, theirs in tensors.items()
        if "target" in other and "target" not in name and _are_equal(own, theirs)
    ]


def _are_equal(own: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(own) == len(theirs) and all(map(torch.equal, own, theirs))


def _places(algorithm: Algorithm, tensors: list[Tensor]) -> dict[str, Array]:
    """Return by name of the model file's arrays which weights they hold, counted over all."""
    numbers = np.arange(sum(one.numel() for one in tensors))
    exports = []
    for values in (numbers % _BASE, numbers // _BASE, np.full(len(numbers), _MARK)):
        _write(tensors, values.astype(np.float32))
        exports.append(export_snapshot(algorithm, version=1).arrays)
    low, high, marked = exports
    return {
        name: high[name].astype(np.int64) * _BASE + low[name].astype(np.int64)
        for name in low
        if (marked[name] == _MARK).all()  # others do not come from weights
    }


def _write(tensors: list[Tensor], values: Array) -> None:
    start = 0
    with torch.no_grad():
        for one in tensors:
            part = values[start : start + one.numel()].reshape(one.shape)
            one.copy_(torch.from_numpy(np.ascontiguousarray(part)))
            start += one.numel()


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    with torch.no_grad():
        for a, b in zip(source, target, strict=True):
            b.copy_(a)


def _load_normalization(algorithm: Algorithm, snapshot: Snapshot, seen: int) -> None:
    normalizer, spread = algorithm.obs_norm, snapshot.architecture.normalization
    if normalizer is None or spread is None:
        return
    mean, scale = snapshot.arrays[spread.mean], snapshot.arrays[spread.inverse_std]
    state, start = normalizer.state(), 0
    for entry in snapshot.architecture.inputs:
        part = slice(start, start + entry.width)
        start += entry.width
        known = state.get(entry.key or "")
        if known is not None:
            var = 1.0 / np.square(scale[part].astype(np.float64)) - _VARIANCE_EPS
            known["mean"] = mean[part].astype(np.float64).reshape(known["mean"].shape)
            known["var"] = np.maximum(var, 0.0).reshape(known["var"].shape)
            known["count"] = max(seen, 1)
    normalizer.load_state(state)
