"""What the settings of an algorithm may be given as, for signatures and type checkers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from assay.core.schedules import Schedule
from assay.loops.run_settings import settings_model

# Settings that may also be objects, which `assay.train` gives a name.
_OBJECTS = {"expert": "str | Path | Dataset | Callable[[Any], Any]"}
_NAMES = {int: "int", float: "float", bool: "bool", str: "str", Any: "Any", NoneType: "None"}


def settings_of(algorithm: Any) -> dict[str, FieldInfo]:
    """Return all settings of an algorithm by name: its own before those of the run."""
    return {**algorithm.Hyperparameters.model_fields, **settings_model(algorithm).model_fields}


def type_of(name: str, field: FieldInfo) -> str:
    """Return what may be given for a setting, as an annotation.

    Example:
        >>> from assay.core.registry import get
        >>> fields = settings_of(get("ppo"))
        >>> [type_of(name, fields[name]) for name in ("lr", "hidden", "target_kl", "cnn")]
        ['float | str', 'Sequence[int]', 'float | None', "Literal['nature', 'impala']"]
    """
    return _OBJECTS.get(name) or " | ".join(dict.fromkeys(_parts(field.annotation)))


def default_of(field: FieldInfo) -> Any:
    """Return the default of a setting that has one, as a user would write it."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Schedule):
        return value.start if value.kind == "constant" else str(value)
    return value


def _parts(annotation: Any) -> Iterator[str]:
    """Yield the members of a union."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        for one in inner:
            yield from _parts(one)
    elif annotation is Schedule:
        yield from ("float", "str")
    elif annotation is Path:
        yield from ("str", "Path")
    elif origin is Literal:
        yield f"Literal[{', '.join(map(repr, inner))}]"
    elif origin is tuple:
        yield f"Sequence[{' | '.join(_parts(inner[0]))}]"
    elif origin is dict:
        yield f"dict[{', '.join(' | '.join(_parts(one)) for one in inner)}]"
    elif hasattr(annotation, "__metadata__"):  # Annotated
        yield from _parts(annotation.__origin__)
    else:
        yield _NAMES[annotation] if annotation in _NAMES else "Any"
