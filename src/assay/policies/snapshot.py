"""From a policy to a model file, which clients run without torch.

What can be written is what `assay.policies.from_torch` describes: multi-layer perceptrons with
layer or batch normalisation, GRU and LSTM, and the heads of `assay.policies.description`. Not
supported, and refused by name: image encoders, transformer memories and networks of a user's own.

IQN explores at fresh levels in local training. A file holds the even ones, at which its evaluations
act: a client explores by epsilon, or by the noise of the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from assay.core.types import Spaces
from assay.networks.normalize import RunningNormalizer
from assay.networks.rnn import Remembering
from assay.policies.description import Architecture, Entry, Normalization, describe_space
from assay.policies.from_torch import UnsupportedError, describe
from assay.policies.model_file import Snapshot, make_snapshot
from assay.policies.numpy_network import Described
from assay.policies.parts import Array, ModelError

if TYPE_CHECKING:
    from assay.policies.heads import Head

_UNLIMITED = float(np.finfo(np.float32).max)


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
    """Return a policy as one model version.

    Args:
        algorithm: Who learned it.
        spaces: What it sees and does.
        network: On the CPU, as float32.
        head: Decides by what the network gives.
        normalizer: Of observations, if there is one.
        version: Number of the version.
        epoch: Of the learner.
        noisy: Keep the noise of noisy layers.

    Raises:
        ModelError: The policy has a part that clients cannot run; it is named.
    """
    parts = network.parts if isinstance(network, Remembering) else (network,)
    try:
        described = describe(*parts, noisy=noisy, fold=True)
    except UnsupportedError as error:
        raise ModelError(
            f"The policy of '{algorithm}' cannot run in a client: it has {error}.",
            "Use vector observations, and networks of linear layers, normalisations, a GRU or an "
            "LSTM; or let clients ask the server for actions (remote inference).",
        ) from None
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
    return make_snapshot(architecture, described.arrays)


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
