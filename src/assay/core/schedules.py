"""Values that change over a run, as functions of its progress in [0, 1].

A schedule is written as a number (`3e-4`) or as `kind:start:end[:until]`: `linear:3e-4:0` decreases
over the whole run, `linear:1:0.05:0.2` reaches 0.05 after a fifth of it and stays there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from assay.core.errors import ConfigError, nearest

Kind = Literal["constant", "linear", "cosine"]

_FIX = "Write a number such as 3e-4, or kind:start:end[:until] such as linear:3e-4:0."


@dataclass(frozen=True, slots=True)
class Schedule:
    """A non-negative value as a function of progress; usable as a pydantic field.

    Attributes:
        kind: "constant", "linear" or "cosine".
        start: Value at progress 0.
        end: Value from progress `until` on.
        until: Fraction of the run after which `end` is reached, in (0, 1].

    Example:
        >>> lr = Schedule.parse("linear:3e-4:0")
        >>> round(lr(0.5), 6)
        0.00015
    """

    kind: Kind
    start: float
    end: float
    until: float = 1.0

    def __post_init__(self) -> None:
        """Reject values that make no sense for a hyperparameter."""
        if self.kind not in get_args(Kind):
            raise ConfigError(
                f"Unknown schedule '{self.kind}'. {nearest(str(self.kind), get_args(Kind))}", _FIX
            )
        for name in ("start", "end"):
            number = getattr(self, name)
            if not (math.isfinite(number) and number >= 0):
                raise ConfigError(
                    f"Schedule {name}={number}: expected a finite number of at least 0.", _FIX
                )
        if not 0 < self.until <= 1:
            raise ConfigError(f"Schedule until={self.until}: expected a fraction in (0, 1].", _FIX)

    def __call__(self, progress: float) -> float:
        """Return the value when `progress` in [0, 1] of the run is done."""
        share = min(max(progress / self.until, 0.0), 1.0)
        if self.kind == "cosine":
            share = 0.5 - 0.5 * math.cos(math.pi * share)
        return self.start + (self.end - self.start) * share

    def __str__(self) -> str:
        """Return the text that `parse` would read back."""
        if self.kind == "constant":
            return f"{self.start:g}" if float(f"{self.start:g}") == self.start else repr(self.start)
        parts = [self.kind, repr(self.start), repr(self.end)]
        return ":".join(parts if self.until == 1.0 else [*parts, repr(self.until)])

    @classmethod
    def parse(cls, spec: Schedule | float | str) -> Schedule:
        """Read a number or a text such as `linear:3e-4:0`.

        Raises:
            ConfigError: Names the part that is wrong and what was expected.
        """
        if isinstance(spec, Schedule):
            return spec
        if isinstance(spec, bool) or not isinstance(spec, int | float | str):
            raise ConfigError(f"{spec!r} is not a schedule.", _FIX)
        if not isinstance(spec, str):
            return constant(float(spec))
        kind, *values = spec.strip().split(":")
        if not values:
            return constant(_number(kind, spec))
        if kind == "constant":
            if len(values) != 1:
                raise ConfigError(f"'{spec}': a constant has one value, found {len(values)}.", _FIX)
            return constant(_number(values[0], spec))
        if kind not in get_args(Kind):
            raise ConfigError(
                f"'{spec}': unknown schedule '{kind}'. {nearest(kind, get_args(Kind))}", _FIX
            )
        if len(values) not in (2, 3):
            raise ConfigError(
                f"'{spec}': expected two or three values after '{kind}', found {len(values)}.", _FIX
            )
        return cls(kind, *(_number(text, spec) for text in values))  # type: ignore[arg-type]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic models validate a field with `parse` and dump it as it was written."""
        del source, handler
        return core_schema.no_info_plain_validator_function(
            _validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_serialize),
            json_schema_input_schema=core_schema.union_schema(
                [core_schema.float_schema(), core_schema.str_schema()]
            ),
        )


def constant(value: float) -> Schedule:
    """Return a schedule that stays at `value`."""
    return Schedule("constant", value, value)


def linear(start: float, end: float, until: float = 1.0) -> Schedule:
    """Return a schedule on a straight line from `start` to `end`, reached at `until`."""
    return Schedule("linear", start, end, until)


def cosine(start: float, end: float, until: float = 1.0) -> Schedule:
    """Return a schedule on half a cosine wave from `start` to `end`, reached at `until`."""
    return Schedule("cosine", start, end, until)


def _number(text: str, spec: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"'{spec}': '{text}' is not a number.", _FIX) from None


def _validate(spec: Any) -> Schedule:
    try:
        return Schedule.parse(spec)
    except ConfigError as error:
        # Only a ValueError lets pydantic report the field's name with the message.
        raise ValueError(str(error).replace("\n", " ")) from None


def _serialize(schedule: Schedule) -> float | str:
    return schedule.start if schedule.kind == "constant" else str(schedule)


def _within_unit(schedule: Schedule) -> Schedule:
    for end in (schedule.start, schedule.end):
        if not 0 <= end <= 1:
            raise ValueError(f"the schedule reaches {end:g}; expected values in [0, 1]")
    return schedule


# A schedule of a probability or a share (epsilon, beta), as the type of a setting.
ProbabilitySchedule = Annotated[Schedule, AfterValidator(_within_unit)]
