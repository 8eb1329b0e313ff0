"""Fields of a MuJoCo model as parameters of an environment.

    mass, friction, damping, gravity, ...    the whole field, as a factor: 1 is the model's own
    body_mass                                any field by its own name, as a factor as well
    body_mass[torso], opt.timestep           one number of it: the number itself
    geom_friction[floor]                     several numbers: a factor
    geom_friction[floor, 0], body_mass[1]    elements by name or by number

A field is always computed from what the model had at first: factors of the whole, then of rows,
then single numbers. Constants that MuJoCo derives from masses and inertias are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError, nearest

# Short names: the fields that they scale. A heavier body of the same shape has more inertia.
SHORT: dict[str, tuple[str, ...]] = {
    "mass": ("body_mass", "body_inertia"),
    "friction": ("geom_friction",),
    "damping": ("dof_damping",),
    "armature": ("dof_armature",),
    "frictionloss": ("dof_frictionloss",),
    "stiffness": ("jnt_stiffness",),
    "gear": ("actuator_gear",),
    "gravity": ("opt.gravity",),
}
_LISTED = ("body_mass", "dof_damping", "dof_armature", "jnt_stiffness")
_ITEM = re.compile(r"^([a-z_0-9.]+)\[([^\]]+)\]$")
_KEPT = "_assay_fields"  # the attribute of an environment that remembers what its model had
_FIX = "Give another value, or another range."


class Fields:
    """The parameters of one model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._first: dict[str, NDArray[np.float64]] = {}  # what fields were before they were set
        self._values: dict[str, float] = {}

    def has(self, name: str) -> bool:
        """Return whether a name is a short name, a field or a part of one.

        Raises:
            EnvError: It is a part of a field that has no such part.
        """
        if name in SHORT:
            return True
        field, index = self._place(name)
        return field is not None and (index is None or self._part(name).size > 0)

    def names(self) -> list[str]:
        """Return short names and all fields."""
        options = [f"opt.{name}" for name in dir(self.model.opt) if self._array(f"opt.{name}")]
        return [*SHORT, *(name for name in dir(self.model) if self._array(name)), *options]

    def listed(self) -> dict[str, float]:
        """Return short names, and single numbers of the fields that are set most often."""
        found = {name: self.get(name) for name in SHORT if self._read(SHORT[name][0]).any()}
        for field in _LISTED:
            for row in range(len(self._read(field))):
                name = self._element(field, row)
                if name is not None and self._read(field)[row]:
                    found[f"{field}[{name}]"] = self.get(f"{field}[{name}]")
        return found | {"opt.timestep": self.get("opt.timestep")}

    def get(self, name: str) -> float:
        """Return the current value of a parameter that there is."""
        part = None if name in SHORT else self._part(name)
        if part is None or part.size > 1:
            return self._values.get(name, 1.0)
        return float(part.reshape(-1)[0])

    def set(self, values: Mapping[str, float]) -> None:
        """Set parameters that there are."""
        if not values:
            return
        for name, value in values.items():
            if name == "opt.timestep" and value <= 0:
                raise EnvError(f"opt.timestep={value:g}: expected a number above 0.", _FIX)
            if value < 0 and "body_mass" in self._fields(name):
                raise EnvError(f"{name}={value:g}: expected no negative mass.", _FIX)
        self._values |= values
        touched = {field for name in self._values for field in self._fields(name)}
        for field in touched:
            first = self._first.setdefault(field, self._read(field).copy())
            self._write(field, (...,), first)
        for name in sorted(self._values, key=self._rank):
            for field in self._fields(name):
                place = (...,) if name in SHORT else self._place(name)[1] or (...,)
                now = np.asarray(self._read(field)[place])
                value = self._values[name]
                self._write(field, place, now * value if self._is_factor(name) else value)
        self._derive()

    def _derive(self) -> None:
        import mujoco

        mujoco.mj_setConst(self.model, mujoco.MjData(self.model))

    def _rank(self, name: str) -> tuple[int, str]:
        whole = name in SHORT or self._place(name)[1] is None
        return (0 if whole else 1 if self._is_factor(name) else 2), name

    def _is_factor(self, name: str) -> bool:
        return name in SHORT or self._part(name).size > 1

    def _fields(self, name: str) -> tuple[str, ...]:
        return SHORT.get(name) or (str(self._place(name)[0]),)

    def _place(self, name: str) -> tuple[str | None, tuple[Any, ...] | None]:
        """Return the field that a name begins with, if there is one, and the index in it."""
        item = _ITEM.match(name)
        field = item[1] if item else name
        if not self._array(field):
            return None, None
        if item is None:
            return field, None
        parts = [part.strip() for part in item[2].split(",")]
        shape = self._read(field).shape
        numbers = []
        for axis, part in enumerate(parts):
            number = int(part) if part.isdigit() else self._number(field, part, axis)
            if axis >= len(shape) or number >= shape[axis]:
                raise EnvError(
                    f"'{name}' is not in the field {field} of the MuJoCo model, whose shape is "
                    f"{shape}."
                )
            numbers.append(number)
        return field, tuple(numbers)

    def _number(self, field: str, name: str, axis: int) -> int:
        names = [self._element(field, row) or "" for row in range(len(self._read(field)))]
        if axis or name not in names:
            raise EnvError(
                f"The field {field} of the MuJoCo model has no element '{name}'.",
                nearest(name, [n for n in names if n] or [f"0 to {len(names) - 1}"]),
            )
        return names.index(name)

    def _element(self, field: str, row: int) -> str | None:
        """Return the name of what a row of a field belongs to."""
        kind = field.split("_")[0]
        if kind == "dof":
            kind, row = "jnt", int(self.model.dof_jntid[row])
        finder = getattr(self.model, kind, None)
        return (finder(row).name or None) if callable(finder) else None

    def _array(self, field: str) -> bool:
        """Return whether a field exists and holds floating-point numbers."""
        try:
            value = self._read(field)
        except (AttributeError, TypeError, ValueError):
            return False
        return not field.startswith("_") and value.dtype.kind == "f" and value.size > 0

    def _read(self, field: str) -> NDArray[Any]:
        owner = self.model.opt if field.startswith("opt.") else self.model
        return np.asarray(getattr(owner, field.removeprefix("opt.")))

    def _part(self, name: str) -> NDArray[Any]:
        field, index = self._place(name)
        assert field is not None
        return np.asarray(self._read(field)[() if index is None else index])

    def _write(self, field: str, place: tuple[Any, ...], value: Any) -> None:
        owner = self.model.opt if field.startswith("opt.") else self.model
        attribute = field.removeprefix("opt.")
        held = getattr(owner, attribute)
        if isinstance(held, np.ndarray):
            held[place] = value
        else:
            setattr(owner, attribute, float(value))


def fields_of(env: Any) -> Fields | None:
    """Return the fields of the MuJoCo model of an environment without wrappers, if it has one."""
    kept: Fields | None = vars(env).get(_KEPT)
    model = getattr(env, "model", None)
    if kept is not None and kept.model is model:
        return kept
    if not type(model).__module__.startswith("mujoco") or type(model).__name__ != "MjModel":
        return None
    fields = Fields(model)
    setattr(env, _KEPT, fields)
    return fields
