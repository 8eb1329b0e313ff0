"""Images of observations, and maps laid over them."""

from __future__ import annotations

import base64
import importlib
import io
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.images import channels_first, is_image
from assay.evaluation.video import enlarge

Frame = NDArray[np.uint8]  # [height, width, 3]
_HOT = np.array([255.0, 40.0, 0.0])


def image_axes(space: gym.Space[Any]) -> tuple[int, int] | None:
    """Return which axes of an entry are height and width; None if it is not an image."""
    if not is_image(space):
        return None
    shape = tuple(space.shape or ())
    if len(shape) == 2:
        return 0, 1
    behind = len(shape) - 3  # a stack has an axis more
    return (behind + 1, behind + 2) if channels_first(shape[behind:]) else (behind, behind + 1)


def plane(values: NDArray[Any], axes: tuple[int, int]) -> NDArray[np.float64]:
    """Return [height, width]: the sum of sizes over all other axes of one map."""
    others = tuple(i for i in range(values.ndim) if i not in axes)
    return np.abs(values).sum(axis=others)


def draw(image: NDArray[Any], space: gym.Space[Any], axes: tuple[int, int]) -> Frame:
    """Return one observed image in colours if it has three channels, else in grey.

    Of a stack, and of channels that are not colours, the last is shown.
    """
    pixels = np.moveaxis(np.asarray(image, np.float64), axes, (-2, -1))
    pixels = pixels.reshape(-1, *pixels.shape[-2:])  # [channels, height, width]
    low, high = float(np.min(space.low)), float(np.max(space.high))  # type: ignore[attr-defined]
    bytes_ = (255.0 * (pixels - low) / max(high - low, 1e-9)).clip(0, 255).astype(np.uint8)
    colours = bytes_[-3:] if len(bytes_) % 3 == 0 else np.repeat(bytes_[-1:], 3, axis=0)
    return enlarge(np.ascontiguousarray(colours.transpose(1, 2, 0)))


def overlay(picture: Frame, heat: NDArray[np.float64]) -> Frame:
    """Return a picture, greyed, with a map [height, width] over it in red."""
    rows = np.arange(picture.shape[0]) * heat.shape[0] // picture.shape[0]
    columns = np.arange(picture.shape[1]) * heat.shape[1] // picture.shape[1]
    most = float(np.quantile(heat, 0.995)) or float(heat.max()) or 1.0
    weight = np.clip(heat[rows][:, columns] / most, 0.0, 1.0)[..., None] * 0.85
    grey = picture.mean(axis=2, keepdims=True)
    return ((1.0 - weight) * (0.3 * picture + 0.7 * grey) + weight * _HOT).astype(np.uint8)


def as_data(picture: Frame) -> str:
    """Return a picture as the address of a PNG that is written out in it."""
    image: Any = importlib.import_module("PIL.Image")
    file = io.BytesIO()
    image.fromarray(picture).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
