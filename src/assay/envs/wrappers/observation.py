"""Wrappers of observations that need no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from assay.core.errors import ConfigError
from assay.core.images import channels_first, is_image
from assay.envs.wrappers.layers import (
    EntryLayer,
    OfEntry,
    RandomLayer,
    entry_of,
    mapped,
    misfit,
    refuse_large,
)


class Resize(OfEntry):
    """Images of another size, by the nearest pixels."""

    height: int = Field(gt=0, examples=[84], description="Rows.")
    width: int | None = Field(None, gt=0, description="Columns; as many as rows by default.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        high, wide = self.height, self.width or self.height
        rows_axis = _image_axes(inner, self.key, "resize")
        box = entry_of(inner.observations, self.key, "resize")[1]
        shape = (*box.shape[:rows_axis], high, wide, *box.shape[rows_axis + 2 :])
        refuse_large("resize", shape, box.dtype)

        def change(x: NDArray[Any]) -> NDArray[Any]:
            for axis, size in ((rows_axis, high), (rows_axis + 1, wide)):
                have = x.shape[axis + 1]
                at = np.minimum((np.arange(size) + 0.5) * have / size, have - 1).astype(np.intp)
                x = np.take(x, at, axis + 1)
            return x

        return EntryLayer(inner, self.key, lambda box: mapped(box, change), change, "resize")


class Crop(OfEntry):
    """A part of images."""

    top: int = Field(0, ge=0, description="First row.")
    left: int = Field(0, ge=0, description="First column.")
    height: int = Field(gt=0, examples=[84], description="Rows.")
    width: int = Field(gt=0, examples=[84], description="Columns.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        axis = _image_axes(inner, self.key, "crop")
        shape = entry_of(inner.observations, self.key, "crop")[1].shape
        if self.top + self.height > shape[axis] or self.left + self.width > shape[axis + 1]:
            raise ConfigError(
                f"The wrapper crop reaches to row {self.top + self.height} and column "
                f"{self.left + self.width}; images are {shape[axis]} by {shape[axis + 1]}.",
                "Give a part that is inside of them.",
            )
        part = (slice(self.top, self.top + self.height), slice(self.left, self.left + self.width))
        index = (slice(None),) * (axis + 1) + part

        def change(x: NDArray[Any]) -> NDArray[Any]:
            return x[index]

        return EntryLayer(inner, self.key, lambda box: mapped(box, change), change, "crop")


class Grey(OfEntry):
    """Grey images of coloured ones, [height, width, 3] to [height, width, 1]."""

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        box = entry_of(inner.observations, self.key, "grey")[1]
        if not is_image(box) or len(box.shape) != 3 or box.shape[-1] != 3:
            raise misfit("grey", "images [height, width, 3]", box)
        weights = np.array([0.299, 0.587, 0.114], np.float32)  # of luminance, ITU-R BT.601

        def change(x: NDArray[Any]) -> NDArray[Any]:
            grey = (x @ weights)[..., None]
            return (np.rint(grey) if x.dtype.kind == "u" else grey).astype(x.dtype)

        return EntryLayer(inner, self.key, lambda box: mapped(box, change), change, "grey")


class Flatten(OfEntry):
    """A vector in place of an array."""

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""

        def change(x: NDArray[Any]) -> NDArray[Any]:
            return x.reshape(len(x), -1)

        return EntryLayer(inner, self.key, lambda box: mapped(box, change), change, "flatten")


class Rescale(OfEntry):
    """From the bounds of the space to others."""

    low: float = Field(-1.0, description="What the lower bound becomes.")
    high: float = Field(1.0, description="What the upper bound becomes.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        box = entry_of(inner.observations, self.key, "rescale")[1]
        if not box.is_bounded():
            raise ConfigError(
                f"The wrapper rescale needs finite bounds; the observation is {box}.",
                "Give it some before it: wrappers=[{clip_obs: 10}, rescale].",
            )
        if self.low >= self.high:
            raise ConfigError(
                f"The wrapper rescale has low={self.low:g} and high={self.high:g}.",
                "Give a low below high, such as {rescale: {low: 0, high: 1}}.",
            )
        low, span = box.low.astype(np.float32), np.maximum(box.high - box.low, 1e-12)
        scale = ((self.high - self.low) / span).astype(np.float32)

        def change(x: NDArray[Any]) -> NDArray[Any]:
            return self.low + (x - low) * scale

        def space(box: spaces.Box) -> spaces.Box:
            return spaces.Box(self.low, self.high, box.shape, np.float32)

        return EntryLayer(inner, self.key, space, change, "rescale")


class ClipObs(OfEntry):
    """Values no larger than a bound."""

    bound: float = Field(gt=0, examples=[10], description="The largest absolute value.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""

        def change(x: NDArray[Any]) -> NDArray[Any]:
            return np.clip(x, -self.bound, self.bound).astype(x.dtype)  # bytes stay bytes

        return EntryLayer(inner, self.key, lambda box: mapped(box, change), change, "clip_obs")


class HideSensors(OfEntry):
    """Numbers of a vector that the agent does not get to see."""

    sensors: tuple[int, ...] = Field(
        min_length=1, examples=[[0, 1]], description="Their places; they are left out."
    )

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        box = entry_of(inner.observations, self.key, "hide_sensors")[1]
        width = box.shape[0] if len(box.shape) == 1 else 0
        if not width:
            raise misfit("hide_sensors", "vectors", box)
        kept = np.array([i for i in range(width) if i not in self.sensors], np.intp)
        if not all(0 <= i < width for i in self.sensors) or not len(kept):
            raise ConfigError(
                f"The wrapper hide_sensors has sensors={list(self.sensors)}; the observation has "
                f"{width} numbers, 0 to {width - 1}, of which one must be left.",
                "Name some of them.",
            )

        def change(x: NDArray[Any]) -> NDArray[Any]:
            return x[:, kept]

        return EntryLayer(inner, self.key, lambda box: mapped(box, change), change, "hide_sensors")


class _Disturbed(RandomLayer, EntryLayer):
    """Disturbs one array of floats."""

    def __init__(self, inner: Any, wrapper: OfEntry, what: str) -> None:
        box = entry_of(inner.observations, wrapper.key, what)[1]
        if box.dtype.kind != "f":
            raise misfit(what, "floats", box)
        wide = spaces.Box(-np.inf, np.inf, box.shape, np.float32)
        super().__init__(inner, wrapper.key, lambda box: wide, self._disturbed, what)
        self._wrapper = wrapper

    def _disturbed(self, x: NDArray[Any]) -> NDArray[Any]:
        if isinstance(self._wrapper, Noise):
            return x + self._wrapper.std * self.rng.standard_normal(x.shape, np.float32)
        assert isinstance(self._wrapper, Dropout)
        return np.where(self.rng.random(x.shape) < self._wrapper.share, np.float32(0), x)


class Noise(OfEntry):
    """Gaussian noise on float observations."""

    # What is larger overflows in float32, and the environment would seem to have returned it.
    std: float = Field(gt=0, le=1e9, examples=[0.1], description="Its standard deviation.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _Disturbed(inner, self, "noise")


class Dropout(OfEntry):
    """Float observations of which some numbers are 0, others at every step."""

    share: float = Field(gt=0, lt=1, examples=[0.1], description="Which share of them.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _Disturbed(inner, self, "dropout")


def _image_axes(inner: Any, key: str | None, what: str) -> int:
    """Return the axis of an image's rows, without the batch axis."""
    box = entry_of(inner.observations, key, what)[1]
    if not is_image(box):
        raise misfit(what, "images", box)
    if len(box.shape) == 2:
        return 0
    return len(box.shape) - 3 + channels_first(box.shape[-3:])
