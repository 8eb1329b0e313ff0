"""Shifts of a run's world by name: what can be changed, by how much, and in which combinations.

A grid is written as `axis: values`, in YAML or as `axis=[values]`:

| axis | values |
|---|---|
| `obs_noise` | Gaussian noise on every number, as a share of its standard deviation |
| `action_noise` | Box: Gaussian noise in units of half the range; else: the share of random ones |
| `random_start` | random actions at the start of episodes, before the run takes over |
| `start` | options for the environment's `reset`, such as `{low: -0.2, high: 0.2}` |
| `levels` | arguments of the environment's constructor, or the id of another environment |
| `env_kwargs.NAME` | one argument of the environment's constructor |
| `dynamics.NAME` | factors of a parameter (`assay envs parameters ID`); `dynamics` alone: of all |
| `parameters.NAME` | values of a parameter |
| a wrapper's name | settings of the wrapper (`assay envs wrappers`), nearest to the environment |
| `combine` | pairs of axes above, whose values are all combined |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from assay.core.errors import ConfigError, nearest
from assay.envs.wrappers.settings import WRAPPERS, read_wrappers
from assay.robustness.measure import Point

COMBINE = "combine"
KWARGS, DYNAMICS, PARAMETERS = "env_kwargs", "dynamics", "parameters"
_BY_NAME = (KWARGS, DYNAMICS, PARAMETERS)
# Wrappers that leave the space of observations as it is; the others would need another network.
FITTING = (
    "noise", "dropout", "clip_obs", "obs_delay", "action_delay", "sticky_actions",
    "action_repeat", "frame_skip",
)  # fmt: skip
DELAYS = ("obs_delay", "action_delay")

PRESETS: dict[str, dict[str, Any]] = {
    "sensors": {"obs_noise": [0.1, 0.3, 1.0], "obs_delay": [1, 2, 4]},
    "actuators": {
        "action_noise": [0.05, 0.1, 0.2, 0.4],
        "action_delay": [1, 2, 4],
        "sticky_actions": [0.1, 0.25, 0.5],
    },
    "starts": {"random_start": [5, 10, 20]},
}
DEFAULT = "default"
PRESETS[DEFAULT] = {axis: values for each in PRESETS.values() for axis, values in each.items()}
PRESETS[DYNAMICS] = {DYNAMICS: [0.5, 0.8, 1.25, 2.0]}


@dataclass(frozen=True, slots=True)
class Change:
    """What a shift changes; nothing by default.

    Attributes:
        wrappers: Put around the environment, below those of the run.
        env: The id of another environment.
        env_kwargs: Arguments of its constructor.
        factors: By which its parameters are multiplied.
        parameters: What its parameters are set to.
        start: Options of its `reset`.
        obs_noise: Share of the spread of each number.
        action_noise: Share of the actions, or of their range.
        random_start: Steps.
        blind: Steps before an action can have an effect that is seen.
    """

    wrappers: tuple[Any, ...] = ()
    env: str | None = None
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    obs_noise: float = 0.0
    action_noise: float = 0.0
    random_start: int = 0
    blind: int = 0

    def __or__(self, other: Change) -> Change:
        """Return both changes together."""
        both = {}
        for each in fields(self):
            mine, its = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, dict):
                both[each.name] = mine | its
            elif each.name in ("wrappers", "blind"):
                both[each.name] = mine + its
            else:
                both[each.name] = its or mine
        return Change(**both)


@dataclass(frozen=True, slots=True)
class Shift:
    """One cell of the grid."""

    point: Point
    change: Change


def read_shifts(
    given: Mapping[str, Any], names: Callable[[], Sequence[str]] = tuple
) -> list[Shift]:
    """Return the cells of a grid, in the order in which it is written.

    Args:
        given: The grid.
        names: Gives all parameters of the environment, where `dynamics` is of all.

    Raises:
        ConfigError: An axis is unknown (the nearest is named), or a value does not fit it.
    """
    axes: dict[str, list[Shift]] = {}
    for name, values in given.items():
        if name == COMBINE:
            continue
        for axis, each in _nested(str(name), values, names).items():
            make = _maker(axis)
            axes[axis] = [Shift(Point(axis, value), make(value)) for value in _listed(axis, each)]
    combined = [shift for pair in _pairs(given) for shift in _combined(pair, axes)]
    found = [shift for shifts in axes.values() for shift in shifts] + combined
    if not found:
        raise ConfigError("The grid has no shifts.", "Write axis: [values], or name a preset.")
    return found


def preset(name: str) -> dict[str, Any]:
    """Return a grid by its name.

    Raises:
        ConfigError: There is none of this name.
    """
    if name not in PRESETS:
        raise ConfigError(
            f"'{name}' is neither a file nor a preset of shifts.", nearest(name, PRESETS)
        )
    return dict(PRESETS[name])


def _nested(name: str, values: Any, names: Callable[[], Sequence[str]]) -> dict[str, Any]:
    if name not in _BY_NAME:
        return {name: values}
    if name == DYNAMICS and not isinstance(values, Mapping):
        values = dict.fromkeys(names(), values)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name}={values}: expected {{name: [values]}}.")
    return {f"{name}.{key}": each for key, each in values.items()}


def _listed(axis: str, values: Any) -> list[Any]:
    made = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else None
    made = [values] if made is None else made
    if not made:
        raise ConfigError(f"The shift {axis} has no values.", f"Write {axis}=[0.1, 0.2].")
    return made


def _maker(axis: str) -> Callable[[Any], Change]:
    """Return what makes a change of a value."""
    head, _, name = axis.partition(".")
    if head == KWARGS and name:
        return lambda value: Change(env_kwargs={name: value})
    if head == DYNAMICS and name:
        return lambda value: Change(factors={name: _number(axis, value)})
    if head == PARAMETERS and name:
        return lambda value: Change(parameters={name: _number(axis, value)})
    if axis in _OWN:
        return _OWN[axis]
    if axis in FITTING:
        return lambda value: _wrapped(axis, value)
    if axis in WRAPPERS:
        changes = "rewards, which a run" if WRAPPERS[axis].of_rewards else "spaces, which a run"
        raise ConfigError(
            f"The wrapper {axis} changes {changes} cannot adapt to after training.",
            f"Shifts are {', '.join(KNOWN)}.",
        )
    raise ConfigError(f"There is no shift '{axis}'.", nearest(axis, KNOWN))


def _wrapped(axis: str, value: Any) -> Change:
    wrapper = read_wrappers([{axis: value}])[0]
    return Change(
        wrappers=({axis: value},), blind=getattr(wrapper, "steps", 0) if axis in DELAYS else 0
    )


def _number(axis: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{axis}={value}: expected a finite number.")
    return float(value)


def _share(axis: str, value: Any, most: float | None = None) -> float:
    share = _number(axis, value)
    if share <= 0 or (most is not None and share > most):
        limit = "above 0" if most is None else f"above 0 and at most {most:g}"
        raise ConfigError(f"{axis}={value}: expected a number {limit}.")
    return share


def _start(value: Any) -> Change:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(
            f"start={value}: expected options of reset.", "For example {low: -0.2, high: 0.2}."
        )
    return Change(start=dict(value))


def level_change(value: Any) -> Change:
    """Return another level as a change: arguments of the constructor, or the id of another one.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(value, str):
        return Change(env=value)
    if isinstance(value, Mapping) and value:
        return Change(env_kwargs=dict(value))
    raise ConfigError(
        f"levels={value}: expected the id of an environment, or arguments of its constructor.",
        "For example levels=[{delay: 20}].",
    )


def _random_start(value: Any) -> Change:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"random_start={value}: expected a number of steps, at least 1.")
    return Change(random_start=value, blind=value)


_OWN: dict[str, Callable[[Any], Change]] = {
    "obs_noise": lambda value: Change(obs_noise=_share("obs_noise", value)),
    "action_noise": lambda value: Change(action_noise=_share("action_noise", value, 1.0)),
    "random_start": _random_start,
    "start": _start,
    "levels": level_change,
}
KNOWN = (*_OWN, *FITTING, *(f"{head}.NAME" for head in _BY_NAME))


def _pairs(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    found = given.get(COMBINE) or ()
    for pair in found if isinstance(found, Sequence) and not isinstance(found, str) else [found]:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(f"{COMBINE}: {pair} is not a pair of axes.", "Write [[one, other]].")
        pairs.append((str(pair[0]), str(pair[1])))
    return pairs


def _combined(pair: tuple[str, str], axes: Mapping[str, list[Shift]]) -> list[Shift]:
    for axis in pair:
        if axis not in axes:
            raise ConfigError(
                f"{COMBINE} names '{axis}', which the grid lacks.",
                nearest(axis, axes) if axes else f"Give its values as well: {axis}=[0.1, 0.2].",
            )
    label = " + ".join(pair)
    return [
        Shift(
            Point(label, {a.point.axis: a.point.value, b.point.axis: b.point.value}),
            a.change | b.change,
        )
        for a, b in product(axes[pair[0]], axes[pair[1]])
    ]
