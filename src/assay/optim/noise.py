"""Random numbers for losses, drawn where the networks are.

Noise that NumPy draws has to cross to the device with every update. A world model wants millions
of numbers per update: those are drawn on the device, inside the CUDA graph where there is one.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from assay.core.types import State

_TINY = 1e-38  # an exponential number may round to zero, whose logarithm is infinite


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """Noise that a loss finds in its batch.

    Attributes:
        shape: Of the whole tensor; the rows of a minibatch are counted, not those of the rollout.
        kind: "normal" (mean 0, variance 1), "uniform" on [0, 1), or "gumbel" (the argmax of
            logits plus gumbel noise is a sample of their categorical distribution).
    """

    shape: tuple[int, ...]
    kind: Literal["normal", "uniform", "gumbel"] = "normal"


class NoiseSource:
    """A generator of a device and the noise that it draws for every update.

    Example:
        >>> source = NoiseSource({"eps": NoiseSpec((2, 3))}, torch.device("cpu"), seed=1)
        >>> source.draw()["eps"].shape
        torch.Size([2, 3])
    """

    def __init__(self, specs: Mapping[str, NoiseSpec], device: torch.device, seed: int) -> None:
        self.specs = dict(specs)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self) -> dict[str, Tensor]:
        """Return new noise, by name."""
        return {name: self._one(spec) for name, spec in self.specs.items()}

    def _one(self, spec: NoiseSpec) -> Tensor:
        place = torch.empty(spec.shape, device=self.device)
        if spec.kind == "normal":
            return place.normal_(generator=self.generator)
        if spec.kind == "uniform":
            return place.uniform_(generator=self.generator)
        # If E is exponential, -log E is Gumbel.
        return place.exponential_(generator=self.generator).clamp_(min=_TINY).log_().neg_()

    def state(self) -> State:
        """Return where the stream is."""
        return {"generator": self.generator.get_state().numpy()}

    def load_state(self, state: State) -> None:
        """Go on where `state` was returned.

        Devices of another type have generators of another type. The stream is then another one,
        which depends on nothing but the state.
        """
        saved = torch.as_tensor(np.asarray(state["generator"]))
        if saved.shape == self.generator.get_state().shape:
            self.generator.set_state(saved)
            return
        warnings.warn(
            f"This run drew its noise on another type of device than '{self.device}': its "
            "random numbers differ from now on.",
            stacklevel=2,
        )
        digest = hashlib.sha256(saved.numpy().tobytes()).digest()
        self.generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
