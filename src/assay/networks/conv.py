"""Convolutional networks for images: Nature (DQN) and IMPALA (residual).

`assay.core.images` says what an image is. Channels may come first or last; pixels of type uint8
are scaled to [0, 1] by their upper bound here, so that images travel and are stored as bytes.
Float images are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import ConfigError, SpaceError, nearest
from assay.core.images import channels_first, is_image
from assay.networks.mlp import HIDDEN_GAIN, Init, initialise
from assay.networks.noisy import NoisyLinear

if TYPE_CHECKING:
    import gymnasium as gym

_NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride
_NATURE_LEAST = 36  # pixels that these need
_IMPALA_CHANNELS = (16, 32, 32)  # of each stage


def byte_scale(space: gym.Space[Any]) -> float:
    """Return 1/255 for bytes that use their whole range, else 1.

    Bytes with a lower bound on top (flags, object ids) are not brightness: scaling drowns them.
    """
    whole = space.dtype == np.uint8 and bool((space.high == 255).any())  # type: ignore[attr-defined]
    return 1.0 / 255.0 if whole else 1.0


def pixel_scale(space: gym.Space[Any]) -> float:
    """Return what scales the bytes of an image to [0, 1]: 1/255, or 1/10 for objects up to 10.

    Larger numbers drive the features of a new network so far that a policy stops to explore.
    """
    if space.dtype != np.uint8:
        return 1.0
    return 1.0 / max(int(space.high.max()), 1)  # type: ignore[attr-defined]


class ToChannels(nn.Module):
    """Bring images of a space to float [B, C, H, W].

    The channel axis is the odd one out beside two equal axes, else the shorter of first and last.

    Attributes:
        shape: (C, H, W) of the output.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        if not is_image(space):
            raise SpaceError(
                f"{space} is not an image.",
                "Give a Box of bytes, or of floats with one bound below and one above, of shape "
                "[C, H, W] or [H, W, C]; bytes may also be [H, W].",
            )
        shape = tuple(int(n) for n in space.shape or ())
        order: tuple[int, ...]
        sizes: tuple[int, ...]
        self.scale = pixel_scale(space)
        if len(shape) == 2:
            order, sizes = (0, 1, 2), (1, *shape)
        elif len(shape) == 3 and channels_first(shape):
            order, sizes = (0, 1, 2, 3), shape
        elif len(shape) == 3:
            order, sizes = (0, 3, 1, 2), (shape[2], shape[0], shape[1])
        elif channels_first(shape[1:]):  # a stack [S, C, H, W]
            order, sizes = (0, 1, 2, 3, 4), (shape[0] * shape[1], shape[2], shape[3])
        else:  # a stack [S, H, W, C]
            order, sizes = (0, 1, 4, 2, 3), (shape[0] * shape[3], shape[1], shape[2])
        self.order = order
        self.shape: tuple[int, int, int] = (sizes[0], sizes[1], sizes[2])

    def forward(self, x: Tensor) -> Tensor:
        """Return float images [B, C, H, W]."""
        if x.ndim != len(self.order):
            raise ValueError(
                f"images have shape {tuple(x.shape)}; expected {len(self.order)} axes with batch."
            )
        x = x.permute(self.order).reshape(-1, *self.shape).to(torch.float32)
        return x if self.scale == 1.0 else x * self.scale


class NatureCNN(nn.Module):
    """The network of DQN (Nature 518, 2015): three convolutions and a linear layer, all ReLU.

    Images of less than 36 pixels are too small for it. They get the network of MinAtar's DQN
    (arXiv:1903.03176) instead: one convolution with 16 filters of 3 by 3 pixels and a linear layer
    of 128. From 16 pixels on, the convolution takes every second pixel.

    With `noisy` the linear layer is noisy.
    """

    def __init__(
        self, space: gym.Space[Any], init: Init = "orthogonal", noisy: bool = False
    ) -> None:
        super().__init__()
        self.to_channels = ToChannels(space)
        channels, *size = self.to_channels.shape
        shape: tuple[tuple[int, int, int], ...] = _NATURE_LAYERS
        self.out_features = 512
        if min(size) < _NATURE_LEAST:
            shape = ((16, min(3, *size), 1 if min(size) < 16 else 2),)
            self.out_features = 128
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in shape:
            conv = nn.Conv2d(channels, out_channels, kernel, stride)
            layers += [initialise(conv, HIDDEN_GAIN, init), nn.ReLU()]
            channels, size = out_channels, [(n - kernel) // stride + 1 for n in size]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        flat = channels * size[0] * size[1]
        linear = (NoisyLinear if noisy else nn.Linear)(flat, self.out_features)
        self.linear = initialise(linear, HIDDEN_GAIN, init)

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, out_features]."""
        return F.relu(self.linear(self.convolutions(self.to_channels(x))))


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, init: Init) -> None:
        super().__init__()
        self.first = initialise(nn.Conv2d(channels, channels, 3, padding=1), HIDDEN_GAIN, init)
        self.second = initialise(nn.Conv2d(channels, channels, 3, padding=1), HIDDEN_GAIN, init)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class ImpalaCNN(nn.Module):
    """The deep network of IMPALA (arXiv:1802.01561), for images of any size.

    Each stage is a convolution, a max-pooling by two and two residual blocks; a ReLU and a linear
    layer with ReLU close it.

    With `noisy` the last layer is noisy.
    """

    out_features = 256

    def __init__(
        self, space: gym.Space[Any], init: Init = "orthogonal", noisy: bool = False
    ) -> None:
        super().__init__()
        self.to_channels = ToChannels(space)
        n, *size = self.to_channels.shape
        layers: list[nn.Module] = []
        for n_out in _IMPALA_CHANNELS:
            conv = initialise(nn.Conv2d(n, n_out, 3, padding=1), HIDDEN_GAIN, init)
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            layers += [conv, pool, _Residual(n_out, init), _Residual(n_out, init)]
            n, size = n_out, [(s + 1) // 2 for s in size]
        self.convolutions = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        width = n * size[0] * size[1]
        linear = (NoisyLinear if noisy else nn.Linear)(width, self.out_features)
        self.linear = initialise(linear, HIDDEN_GAIN, init)

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, out_features]."""
        return F.relu(self.linear(self.convolutions(self.to_channels(x))))


def make_cnn(
    name: str,
    space: gym.Space[Any],
    init: Init = "orthogonal",
    noisy: bool = False,
) -> NatureCNN | ImpalaCNN:
    """Return the network called `name` ("nature" or "impala") for an image space.

    Raises:
        ConfigError: The name is unknown.
    """
    kinds: dict[str, type[NatureCNN] | type[ImpalaCNN]] = {
        "nature": NatureCNN,
        "impala": ImpalaCNN,
    }
    if name not in kinds:
        raise ConfigError(f"Unknown cnn '{name}'. {nearest(name, kinds)}")
    return kinds[name](space, init=init, noisy=noisy)
