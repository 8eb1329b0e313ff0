"""Encoders: from an observation of any supported space to one vector of features.

Observations arrive as they are stored (uint8 images, integer Discrete, float32 vectors); casting,
one-hot coding and pixel scaling happen here, so that no caller can forget them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import SpaceError
from assay.core.images import is_image
from assay.core.types import ACTION_MASK
from assay.networks.conv import ImpalaCNN, NatureCNN, byte_scale, make_cnn
from assay.networks.custom import BUILT_IN, DEFAULT, SIMBA, CustomEncoder
from assay.networks.mlp import Init, mlp
from assay.networks.simba import residual_trunk

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True, slots=True)
class FlatEntry:
    """How one entry of an observation becomes a part of a flat vector.

    Attributes:
        key: The entry's key, or None when the observation is one array.
        width: How many numbers it becomes.
        scale: Factor for plain numbers.
        sizes: For integers to be one-hot coded: the number of values of each; else empty.
    """

    key: str | None
    width: int
    scale: float = 1.0
    sizes: tuple[int, ...] = ()


class Encoder(nn.Module):
    """Features of an observation: a CNN per image, one MLP for all the rest, side by side.

    Attributes:
        out_features: Width of the features.
        entries: What is not an image, flattened for the trunk.
        trunk: The MLP.
        image_keys: Key of each image (None when the observation is one image).
        cnns: The network of each image.
    """

    def __init__(
        self,
        entries: Sequence[FlatEntry],
        trunk: nn.Sequential,
        width: int,
        cnns: Mapping[str | None, NatureCNN | ImpalaCNN],
    ) -> None:
        super().__init__()
        self.entries = tuple(entries)
        self.trunk = trunk
        self.image_keys = tuple(cnns)
        self.cnns = nn.ModuleList(cnns.values())
        self.out_features = width + sum(cnn.out_features for cnn in cnns.values())

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return features [B, out_features]."""
        images = zip(self.cnns, self.image_keys, strict=True)
        parts = [cnn(_entry(obs, key)) for cnn, key in images]
        if self.entries:
            parts.append(self.trunk(self.flat(obs)))
        return _joined(parts)

    def flat(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return what is not an image as one row of floats."""
        return _joined([_flatten(_entry(obs, entry.key), entry) for entry in self.entries])


def make_encoder(
    space: gym.Space[Any],
    *,
    hidden: Sequence[int] = (64, 64),
    activation: str = "tanh",
    cnn: str = "nature",
    network: str = DEFAULT,
    init: Init = "orthogonal",
    noisy: bool = False,
) -> Encoder | CustomEncoder:
    """Build the encoder for an observation space.

    Without `hidden` the flat observation is passed on. A Dict's entry "action_mask" is not part of
    the features. The residual blocks of "simba" have one activation and one initialisation; for a
    network of the user's own only `space` counts.

    Raises:
        SpaceError: The space is of another kind or nested.
        ConfigError: A name or a width is wrong.
    """
    from gymnasium import spaces

    if network not in BUILT_IN:
        return CustomEncoder(network, space)
    items: dict[str | None, gym.Space[Any]] = {None: space}
    if isinstance(space, spaces.Dict):
        items = {k: space.spaces[k] for k in sorted(space.spaces) if k != ACTION_MASK}
    if not items:
        raise SpaceError(f"The observation space {space} has no entries.")
    images = {key: part for key, part in items.items() if is_image(part)}
    cnns = {key: make_cnn(cnn, image, init, noisy) for key, image in images.items()}
    entries = [_flat_entry(key, part) for key, part in items.items() if key not in images]
    if not entries:
        return Encoder(entries, nn.Sequential(), 0, cnns)
    sizes = (sum(entry.width for entry in entries), *hidden)
    if network == SIMBA and hidden:
        trunk = residual_trunk(sizes[0], hidden)
    else:
        trunk = mlp(sizes, activation, init=init, activate_output=True, noisy=noisy)
    return Encoder(entries, trunk, sizes[-1], cnns)


def _flat_entry(key: str | None, space: gym.Space[Any]) -> FlatEntry:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        nvec = space.n if isinstance(space, spaces.Discrete) else space.nvec
        sizes = tuple(int(n) for n in np.ravel(nvec))
        return FlatEntry(key, sum(sizes), sizes=sizes)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return FlatEntry(key, int(np.prod(space.shape)), scale=byte_scale(space))
    raise _no_encoder(key, space)


def _entry(obs: Tensor | Mapping[str, Tensor], key: str | None) -> Tensor:
    if key is None:
        if not isinstance(obs, Tensor):
            raise ValueError(f"obs is a {type(obs).__name__}; expected one tensor.")
        return obs
    if isinstance(obs, Tensor) or key not in obs:
        raise ValueError(f"obs has no entry '{key}'; expected a dict with that key.")
    return obs[key]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _flatten(x: Tensor, entry: FlatEntry) -> Tensor:
    x = x.reshape(x.shape[0], -1)
    width = len(entry.sizes) or entry.width
    if x.shape[1] != width:
        raise ValueError(
            f"obs entry {entry.key!r} has {x.shape[1]} numbers per item; expected {width}."
        )
    if entry.sizes:
        return _one_hot(x, entry)
    x = x.to(torch.float32)
    return x if entry.scale == 1.0 else x * entry.scale


def _one_hot(x: Tensor, entry: FlatEntry) -> Tensor:
    if len(set(entry.sizes)) == 1:
        choices = torch.arange(entry.sizes[0], device=x.device)
        return (x.unsqueeze(-1) == choices).to(torch.float32).reshape(x.shape[0], -1)
    columns = [
        x[:, i : i + 1] == torch.arange(size, device=x.device) for i, size in enumerate(entry.sizes)
    ]
    return torch.cat(columns, dim=1).to(torch.float32)


def _no_encoder(key: str | None, space: gym.Space[Any]) -> SpaceError:
    where = "" if key is None else f" under key '{key}'"
    return SpaceError(
        f"No encoder for the observation space {space}{where}; expected Box, Discrete, "
        "MultiBinary, MultiDiscrete or a flat Dict of these.",
        "Flatten nested spaces, or wrap the environment so that it gives one of these.",
    )
