"""From a policy to a model file, which clients run without torch.

What can be written is what `assay.policies.from_torch` describes: multi-layer perceptrons with
layer or batch normalisation, GRU and LSTM, and the heads of `assay.policies.description`. Not
supported, and refused by name: image encoders, transformer memories and networks of a user's own.

IQN explores at fresh levels in local training. A file holds the even ones, at which its evaluations
act: a client explores by epsilon, or by the noise of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pydantic
from torch import nn

from assay.core.types import Spaces
from assay.networks.normalize import RunningNormalizer
from assay.networks.rnn import Remembering
from assay.policies.description import Architecture, Entry, Normalization, describe_space
from assay.policies.from_torch import UnsupportedError, describe
from assay.policies.layers import Dense
from assay.policies.model_file import Snapshot, make_snapshot
from assay.policies.numpy_network import Described, GaussianParams
from assay.policies.parts import Array, ModelError

if TYPE_CHECKING:
    from assay.policies.heads import Head

_UNLIMITED = float(np.finfo(np.float32).max)
_SCALE = ("head.center", "head.half_width")  # of actions; constants, which a file has folded


def make_policy_snapshot(
    algorithm: str,
    spaces: Spaces,
    network: nn.Module,
    head: Head,
    normalizer: RunningNormalizer | None,
    *,
    version: int,
    epoch: int,
    noisy: bool,
) -> Snapshot:
    """Return a policy, whose network is on the CPU as float32, as one model version.

    Raises:
        ModelError: The policy has a part that clients cannot run; it is named.
    """
    try:
        described = describe(*_parts(network), noisy=noisy, fold=True)
        normalization = _normalization(described, normalizer)
        architecture = Architecture(
            version=version,
            epoch=epoch,
            algorithm=algorithm,
            observation=describe_space(spaces.observation),
            action=describe_space(spaces.action),
            inputs=described.inputs,
            normalization=normalization,
            layers=tuple(described.layers),
            head=head.describe(described),
        )
    except UnsupportedError as error:
        raise ModelError(
            f"The policy of '{algorithm}' cannot run in a client: it has {error}.",
            "Use vector observations, and networks of linear layers, normalisations, a GRU or an "
            "LSTM; or let clients ask the server for actions (remote inference).",
        ) from None
    except pydantic.ValidationError as error:  # wider than files may be
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ModelError(
            f"The policy of '{algorithm}' does not fit into a model file: {error.title} has "
            f"{where}={first['input']}, and {first['msg'].lower()}.",
            "Use smaller observations, such as embedded ones, or let clients ask the server for "
            "actions (remote inference).",
        ) from None
    return make_snapshot(architecture, described.arrays)


def _parts(network: nn.Module) -> tuple[nn.Module, ...]:
    return network.parts if isinstance(network, Remembering) else (network,)


def _normalization(
    described: Described, normalizer: RunningNormalizer | None
) -> Normalization | None:
    """Spread the statistics over the flat input; what is not normalised passes unchanged."""
    if normalizer is None:
        return None
    columns = [_columns(entry, normalizer) for entry in described.inputs]
    names = ("mean", "inverse_std", "limit")
    for name, parts in zip(names, zip(*columns, strict=True), strict=True):
        described.arrays[f"normalization.{name}"] = np.concatenate(parts)
    return Normalization(**{name: f"normalization.{name}" for name in names})


def _columns(entry: Entry, normalizer: RunningNormalizer) -> list[Array]:
    found = normalizer.applied(entry.key or "")
    values = (0.0, 1.0, _UNLIMITED) if found is None else (*found, normalizer.clip)
    return [np.broadcast_to(np.reshape(np.asarray(v, np.float32), -1), entry.width) for v in values]


def load_arrays(network: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Write the arrays of a model file into a network on the CPU, in place.

    Raises:
        ModelError: They are of another network; the first difference is named.
    """
    described = describe(*_parts(network))
    names = set(described.arrays) - set(_SCALE)
    for name in sorted(names):
        own, given = described.arrays[name], arrays.get(name)
        if given is None or given.shape != own.shape:
            raise ModelError(f"it has no '{name}' of the shape {list(own.shape)}.")
        own[...] = given
    if isinstance(described.params, GaussianParams) and described.params.scale is not None:
        # A file has the scale of actions folded into the last layer.
        center, half_width = (described.arrays[name] for name in described.params.scale)
        last = described.layers[-1]
        assert isinstance(last, Dense)
        described.arrays[last.weight][...] /= half_width[:, None]
        described.arrays[last.bias][...] = (described.arrays[last.bias] - center) / half_width
        described.arrays[described.params.log_std][...] -= np.log(half_width)


def load_normalization(normalizer: RunningNormalizer, snapshot: Snapshot, seen: int) -> None:
    """Restore the statistics of a model file, which come from `seen` observations."""
    spread = snapshot.architecture.normalization
    if spread is None:
        return
    mean, scale = snapshot.arrays[spread.mean], snapshot.arrays[spread.inverse_std]
    start = 0
    for entry in snapshot.architecture.inputs:
        part = slice(start, start + entry.width)
        start += entry.width
        normalizer.assume(entry.key or "", mean[part], scale[part], seen)
