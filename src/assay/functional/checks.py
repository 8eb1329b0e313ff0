"""Rank and shape checks that name the argument they complain about."""

from __future__ import annotations

from typing import Any


def check_rank(rank: int, **arrays: Any) -> None:
    """Raise unless every array has `rank` axes.

    Raises:
        ValueError: Names the argument, its shape and the rank that was expected.
    """
    for name, array in arrays.items():
        if array is not None and array.ndim != rank:
            raise ValueError(f"{name} has shape {tuple(array.shape)}; expected {rank} axes.")


def check_same_shape(**arrays: Any) -> None:
    """Raise unless all arrays that are given have the shape of the first one.

    Without this check, [B] against [B, 1] would broadcast to [B, B] and train on nonsense.

    Raises:
        ValueError: Names both arguments and their shapes.
    """
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        if array is not None and array.shape != first.shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}; "
                f"expected that of {first_name}, {tuple(first.shape)}."
            )
