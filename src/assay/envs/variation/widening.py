"""Automatic domain randomisation: ranges that grow while the agent copes with their ends.

OpenAI et al., "Solving Rubik's Cube with a Robot Hand" (2019, arXiv:1910.07113), algorithm 1.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from assay.core.errors import ConfigError
from assay.core.types import Metrics, State
from assay.envs.variation.base import Judged, Numbers, Sampler, Tags, measured
from assay.envs.variation.ranges import Ranges, Units

_NARROWEST = 1e-3  # a range without width has no entropy


class Adr(Judged):
    """Ranges that begin at the usual values and grow or shrink by how the agent does at their ends.

    In a share of the episodes one parameter is at one end of its current range. When enough of
    these have ended, their mean decides: at `high` or above the end moves outwards, at `low` or
    below inwards. Deviation: steps are shares of the range that `randomize` gives, which is also
    the widest that it can become.
    """

    low: float = Field(examples=[100], description="Mean at or below which a range shrinks.")
    high: float = Field(examples=[400], description="Mean at or above which a range grows.")
    buffer: int = Field(20, gt=0, description="Episodes at an end that are averaged.")
    step: float = Field(0.05, gt=0, le=1, description="How far an end moves, of the whole range.")
    boundary: float = Field(0.5, gt=0, le=1, description="Share of the episodes at an end.")

    @model_validator(mode="after")
    def _in_order(self) -> Adr:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} is not below high={self.high:g}")
        return self

    def sampler(self, ranges: Ranges) -> Sampler:
        """Return what draws for it."""
        for name, one in zip(ranges.names, ranges.ranges, strict=True):
            if one.count is not None or one.grow is not None:
                raise ConfigError(
                    f"adr widens ranges without gaps by itself; {name} has "
                    f"{'grow' if one.grow is not None else 'single values'}.",
                    "Give it uniform, log_uniform or gaussian alone.",
                )
        return AdrSampler(self, ranges)


class AdrSampler(Sampler):
    """The current ranges [P], and what episodes at each of their ends brought.

    End 2p is the lower one of parameter p, and 2p + 1 the upper one.
    """

    def __init__(self, settings: Adr, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.settings = settings
        self.ends = np.stack([ranges.usual, ranges.usual], 1).reshape(-1)  # [2 P]
        self.buffers: list[list[float]] = [[] for _ in self.ends]

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Units, Tags]:
        """Draw within the current ranges, and put some points to an end of one parameter."""
        low, high = self.ends[::2], self.ends[1::2]
        units = low + rng.random((count, len(low))) * (high - low)
        tags = np.where(
            rng.random(count) < self.settings.boundary, rng.integers(len(self.ends), size=count), -1
        )
        rows = np.flatnonzero(tags >= 0)
        units[rows, tags[rows] // 2] = self.ends[tags[rows]]
        return units, tags

    def ended(self, units: Units, tags: Tags, returns: Numbers, success: Numbers) -> None:
        """Keep what episodes at an end brought, and move ends of which enough is known."""
        settings = self.settings
        found = measured(settings.measure, returns, success)
        for end, value in zip(tags.tolist(), found.tolist(), strict=True):
            if end < 0:
                continue
            buffer = self.buffers[end]
            buffer.append(value)
            if len(buffer) < settings.buffer:
                continue
            mean = float(np.mean(buffer))
            buffer.clear()
            if settings.low < mean < settings.high:
                continue
            outwards = settings.step if mean >= settings.high else -settings.step
            usual = self.ranges.usual[end // 2]
            if end % 2:
                self.ends[end] = min(max(self.ends[end] + outwards, usual), 1.0)
            else:
                self.ends[end] = max(min(self.ends[end] - outwards, usual), 0.0)

    def metrics(self) -> Metrics:
        """Return the entropy of the ranges, 0 where they are whole, and their ends."""
        widths = np.maximum(self.ends[1::2] - self.ends[::2], _NARROWEST)
        found = {"curriculum/entropy": float(np.log(widths).mean())}
        for side, name in enumerate(("low", "high")):
            values = self.ranges.values(self.ends[side::2][None])
            found |= {f"curriculum/{key}_{name}": float(x[0]) for key, x in values.items()}
        return found

    def state(self) -> State:
        """Return the ranges and what is known of their ends."""
        buffers = {str(end): np.array(buffer) for end, buffer in enumerate(self.buffers)}
        return {"ends": self.ends.copy(), "buffers": buffers}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.ends = np.array(state["ends"])
        self.buffers = [state["buffers"][str(end)].tolist() for end in range(len(self.ends))]
