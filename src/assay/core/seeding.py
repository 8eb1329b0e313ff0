"""All randomness of a run comes from its one seed.

A stream is named, so that adding a consumer never shifts the numbers another one draws.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for the stream `names` of the run with `seed`.

    Example:
        >>> derive_seed(1, "env", 0) == derive_seed(1, "env", 0) != derive_seed(1, "env", 1)
        True
    """
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def derive_rng(seed: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator for the stream `names` of the run with `seed`."""
    return np.random.default_rng(derive_seed(seed, *names))


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the generator's state as plain JSON-able values."""
    return dict(rng.bit_generator.state)


def set_rng_state(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore a state that `rng_state` returned."""
    rng.bit_generator.state = state
