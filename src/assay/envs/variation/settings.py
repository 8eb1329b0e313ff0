"""Randomisation and curricula by their settings, around environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.core.config import example, parse
from assay.core.errors import ConfigError, nearest
from assay.envs.parameters import parameters
from assay.envs.variation.base import Curriculum, Sampler, VariedLayer
from assay.envs.variation.ranges import Ranges, read_ranges
from assay.envs.variation.replay import LevelReplay
from assay.envs.variation.sampling import Generated, LearningProgress, Reverse
from assay.envs.variation.widening import Adr
from assay.envs.vector import Vector
from assay.envs.wrappers.settings import snake

CURRICULA: dict[str, type[Curriculum]] = {
    snake(kind.__name__): kind for kind in (Adr, LearningProgress, Generated, Reverse, LevelReplay)
}


def read_curriculum(given: str | Mapping[str, Any] | None) -> Curriculum | None:
    """Return the curriculum that settings name: `name`, or `{name: {setting: value}}`.

    Raises:
        ConfigError: It is unknown, or one of its settings is.
    """
    if given is None:
        return None
    named = {given: {}} if isinstance(given, str) else given
    if len(named) != 1 or not isinstance(next(iter(named.values())) or {}, Mapping):
        raise ConfigError(
            f"'{given}' is not a curriculum.", "Write name, or {name: {setting: value}}."
        )
    ((name, values),) = named.items()
    if name not in CURRICULA:
        raise ConfigError(
            f"There is no curriculum '{name}'.",
            f"{nearest(str(name), CURRICULA)} `assay envs curricula` lists all.",
        )
    kind = CURRICULA[name]
    fix = f"For example curriculum={example(kind, name)}; `assay envs curricula` lists settings."
    return parse(kind, values or {}, what=f"the curriculum {name}", fix=fix)


def varied(
    vector: Vector, randomize: Mapping[str, Any], curriculum: str | Mapping[str, Any] | None
) -> Vector:
    """Return environments whose parameters are drawn for every episode.

    Raises:
        ConfigError: A range or the curriculum is not right, or there is nothing to draw.
        EnvError: The environment has no such parameter.
    """
    ranges, plan = read_ranges(randomize), read_curriculum(curriculum)
    if not ranges:
        if plan is not None:
            raise ConfigError(
                f"curriculum={curriculum} has nothing to choose from.",
                "Set randomize={parameter: [low, high]}; `assay envs parameters ID` lists them.",
            )
        return vector
    usual = {name: float(x[0]) for name, x in parameters(vector, ranges).items()}
    known = Ranges(ranges, usual)
    sampler = Sampler(known) if plan is None else plan.sampler(known)
    layer = VariedLayer(vector.backend, sampler)
    return Vector(layer, vector.name, vector.frame_stack, vector.limit)
