"""Distributions of parameters, each as a map from the unit interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from assay.core.config import Model, parse
from assay.core.errors import ConfigError
from assay.core.schedules import ProbabilitySchedule

Units = NDArray[np.float64]
Pair = tuple[float, float]

_MOST = 2**53  # what a float tells apart
_KINDS = ("uniform", "log_uniform", "gaussian", "integer", "choice")
_FIX = (
    "Write [low, high], {log_uniform: [low, high]}, {gaussian: [mean, std]}, "
    "{integer: [first, last]} or {choice: [a, b]}."
)


class Range(Model):
    """What values of a parameter are drawn from: exactly one of the first five."""

    uniform: Pair | None = Field(None, description="All values between two are as likely.")
    log_uniform: Pair | None = Field(None, description="All orders of magnitude are as likely.")
    gaussian: Pair | None = Field(None, description="Mean and standard deviation.")
    integer: tuple[int, int] | None = Field(None, description="Whole numbers, both ends included.")
    choice: tuple[float, ...] | None = Field(None, min_length=1, description="One of these.")
    within: Pair | None = Field(None, description="Of a Gaussian: where values are cut off.")
    grow: ProbabilitySchedule | None = Field(
        None,
        description="Which share of the way from the usual value to the drawn one is gone, as a "
        "schedule over the run: linear:0:1:0.5.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Range:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"exactly one of {', '.join(_KINDS)} is expected")
        if self.within is not None and self.gaussian is None:
            raise ValueError("within is for a gaussian")
        for name in ("uniform", "log_uniform", "integer", "within"):
            ends = getattr(self, name)
            if ends is not None and not ends[0] < ends[1]:
                raise ValueError(
                    f"{name} goes from {ends[0]:g} to {ends[1]:g}; the second must be above the "
                    "first"
                )
        if self.integer is not None and max(map(abs, self.integer)) > _MOST:
            raise ValueError(f"integer goes beyond {_MOST:,}")
        if self.log_uniform is not None and self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform begins at {self.log_uniform[0]:g}, which is not above 0")
        if self.gaussian is not None and self.gaussian[1] <= 0:
            raise ValueError(
                f"the standard deviation is {self.gaussian[1]:g}, which is not above 0"
            )
        if self.grow is not None and (self.integer is not None or self.choice is not None):
            raise ValueError("grow is for a range without gaps")
        return self

    def values(self, units: Units) -> Units:
        """Return the values at places of the unit interval, from the lowest to the highest."""
        if self.uniform is not None:
            low, high = self.uniform
            return low + units * (high - low)
        if self.log_uniform is not None:
            low, high = map(math.log, self.log_uniform)
            return np.exp(low + units * (high - low))
        if self.gaussian is not None:
            inside = np.clip(units, 1e-9, 1 - 1e-9)
            drawn = np.array([*map(NormalDist(*self.gaussian).inv_cdf, inside.tolist())])
            return drawn if self.within is None else np.clip(drawn, *self.within)
        assert self.count is not None
        place = np.minimum(np.floor(units * self.count), self.count - 1)
        if self.integer is not None:  # without a list of them: levels may be millions
            return self.integer[0] + place
        return np.array(self.choice, np.float64)[place.astype(np.intp)]

    def unit(self, value: float) -> float:
        """Return the place of a value, or of the end that is nearest to it."""
        if self.uniform is not None:
            low, high = self.uniform
            place = (value - low) / (high - low)
        elif self.log_uniform is not None:
            low, high = map(math.log, self.log_uniform)
            place = (math.log(max(value, self.log_uniform[0])) - low) / (high - low)
        elif self.gaussian is not None:
            place = NormalDist(*self.gaussian).cdf(value)
        elif self.integer is not None:
            first, last = self.integer
            place = (min(max(round(value), first), last) - first + 0.5) / (last - first + 1)
        else:
            options = np.array(self.choice, np.float64)
            place = (int(np.abs(options - value).argmin()) + 0.5) / len(options)
        return min(max(place, 0.0), 1.0)

    def ends(self) -> Pair:
        """Return the places of the lowest and highest values; 0.1 % of a Gaussian are beyond."""
        return (0.0, 1.0) if self.gaussian is None else (0.001, 0.999)

    def tried(self) -> tuple[float, ...]:
        """Return the places to try before a run: the ends, or all that can be chosen."""
        if self.choice is None:
            return self.ends()
        count = len(self.choice)
        return tuple((place + 0.5) / count for place in range(count))

    @property
    def count(self) -> int | None:
        """Return how many values there are, or None if any number of them."""
        if self.integer is not None:
            return self.integer[1] - self.integer[0] + 1
        return None if self.choice is None else len(self.choice)


class Ranges:
    """Ranges of several parameters: points of a unit cube [n, P], and their values.

    Args:
        ranges: One for each parameter.
        usual: The environment's own values.
    """

    def __init__(self, ranges: Mapping[str, Range], usual: Mapping[str, float]) -> None:
        self.names, self.own = list(ranges), dict(usual)
        self.ranges = list(ranges.values())
        self.usual = np.array([one.unit(usual[name]) for name, one in ranges.items()])

    def tried(self) -> Iterator[tuple[str, Units]]:
        """Yield points [P] to try before a run, each with the parameter that is not as usual."""
        for index, one in enumerate(self.ranges):
            for place in one.tried():
                point = self.usual.copy()
                point[index] = place
                yield self.names[index], point

    def values(self, units: Units) -> dict[str, Units]:
        """Return values by name, each [n]."""
        columns = zip(self.names, self.ranges, units.T, strict=True)
        return {name: one.values(column) for name, one, column in columns}

    def grown(self, units: Units, progress: float) -> Units:
        """Return points pulled towards the usual values, as far as schedules say."""
        shares = [1.0 if one.grow is None else one.grow(progress) for one in self.ranges]
        return self.usual + (units - self.usual) * np.array(shares)


def read_ranges(given: Mapping[str, Any]) -> dict[str, Range]:
    """Return the ranges that settings name: `[low, high]` or `{kind: [...]}`.

    Raises:
        ConfigError: One is not a range, or is upside down.

    Example:
        >>> read_ranges({"gravity": [8, 12]})["gravity"].uniform
        (8.0, 12.0)
    """
    found = {}
    for name, one in given.items():
        if isinstance(one, list | tuple) and len(one) == 2:
            one = {"uniform": one}
        if not isinstance(one, Mapping):
            raise ConfigError(f"randomize: '{one}' is not a range for {name}.", _FIX)
        found[name] = parse(Range, one, what=f"randomize, {name}", fix=_FIX)
    return found
