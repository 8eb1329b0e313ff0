"""Rank and shape checks that name the argument they complain about."""

from __future__ import annotations

from typing import Any


def check_rank(rank: int, **arrays: Any) -> None:
    """Raise a ValueError that names the argument unless every array has `rank` axes."""
    for name, array in arrays.items():
        if array is not None and array.ndim != rank:
            raise ValueError(f"{name} has shape {tuple(array.shape)}; expected {rank} axes.")


def check_same_shape(**arrays: Any) -> None:
    """Raise a ValueError that names both unless all arrays have the shape of the first one.

    Without this check, [B] against [B, 1] would broadcast to [B, B] and train on nonsense.
    """
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        if array is not None and array.shape != first.shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}; "
                f"expected that of {first_name}, {tuple(first.shape)}."
            )
