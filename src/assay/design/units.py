"""Units of measurement: what they are made of, and whether two can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from assay.core.errors import nearest

# Unit -> factor and powers of what it is made of.
_BASE: dict[str, tuple[float, dict[str, int]]] = {
    "1": (1.0, {}),
    "%": (0.01, {}),
    "m": (1.0, {"length": 1}),
    "g": (1e-3, {"mass": 1}),
    "t": (1e3, {"mass": 1}),
    "s": (1.0, {"time": 1}),
    "min": (60.0, {"time": 1}),
    "h": (3600.0, {"time": 1}),
    "day": (86400.0, {"time": 1}),
    "step": (1.0, {"steps": 1}),
    "rad": (1.0, {"angle": 1}),
    "deg": (0.017453292519943295, {"angle": 1}),
    "K": (1.0, {"temperature": 1}),
    "degC": (1.0, {"temperature": 1}),
    "A": (1.0, {"current": 1}),
    "Hz": (1.0, {"time": -1}),
    "N": (1.0, {"mass": 1, "length": 1, "time": -2}),
    "J": (1.0, {"mass": 1, "length": 2, "time": -2}),
    "W": (1.0, {"mass": 1, "length": 2, "time": -3}),
    "Wh": (3600.0, {"mass": 1, "length": 2, "time": -2}),
    "V": (1.0, {"mass": 1, "length": 2, "time": -3, "current": -1}),
    "Pa": (1.0, {"mass": 1, "length": -1, "time": -2}),
    "l": (1e-3, {"length": 3}),
    "B": (1.0, {"data": 1}),
    "bit": (0.125, {"data": 1}),
    "EUR": (1.0, {"EUR": 1}),
    "USD": (1.0, {"USD": 1}),
    "px": (1.0, {"pixels": 1}),
}
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "c": 1e-2, "d": 0.1, "k": 1e3, "M": 1e6, "G": 1e9}
_PART = re.compile(r"([A-Za-z%1]+)(?:\^(-?\d+)|(\d))?")

Unit = tuple[float, tuple[tuple[str, int], ...]]  # factor, and powers in order


@lru_cache(maxsize=256)
def parse_unit(text: str) -> Unit | None:
    """Return what a unit is made of, or None if it is not known.

    Example:
        >>> parse_unit("km/h") == (1000 / 3600, (("length", 1), ("time", -1)))
        True
        >>> parse_unit("m/s^2") == parse_unit("N/kg")
        True
        >>> parse_unit("parsnips") is None
        True
    """
    factor, powers = 1.0, dict[str, int]()
    for index, group in enumerate(text.replace(" ", "").split("/")):
        for part in group.split("*"):
            match = _PART.fullmatch(part)
            base = _base(match[1]) if match else None
            if match is None or base is None:
                return None
            power = int(match[2] or match[3] or 1) * (1 if index == 0 else -1)
            factor *= base[0] ** power
            for name, times in base[1].items():
                powers[name] = powers.get(name, 0) + times * power
    return factor, tuple(sorted((name, power) for name, power in powers.items() if power))


def _base(name: str) -> tuple[float, dict[str, int]] | None:
    if name in _BASE:
        return _BASE[name]
    if name[:1] in _PREFIXES and name[1:] in _BASE:
        factor, powers = _BASE[name[1:]]
        return _PREFIXES[name[0]] * factor, powers
    return None


def comparable(one: str, other: str) -> bool:
    """Return whether two units measure the same; units that are not known equal only themselves."""
    first, second = parse_unit(one), parse_unit(other)
    if first is None or second is None:
        return one == other
    return first[1] == second[1]


def unknown(unit: str | None) -> Iterator[str]:
    """Yield what is wrong with a unit that is not known; those that are can have prefixes."""
    if unit is not None and parse_unit(unit) is None:
        yield f"'{unit}' is unknown. {nearest(unit, sorted(_BASE))}"
