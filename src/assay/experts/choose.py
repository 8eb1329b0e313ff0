"""The expert of a run, as its algorithm needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.data.dataset import Dataset
from assay.experts.episodes import keep, kept
from assay.experts.teachers import find_teacher
from assay.loops.config import RunConfig
from assay.loops.run_settings import OBJECT, EpisodeSettings, TaughtSettings


@dataclass(frozen=True, slots=True)
class Expert:
    """Whom a run imitates."""

    # What its loop takes: a `Dataset`, or what makes a teacher for an environment. None where a run
    # imitates nobody.
    source: Any = None
    # What provenance keeps of it, as `RunSettings.files` does.
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def named(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return settings in which an expert that is an object is named, and that object."""
    expert = settings.get("expert")
    if expert is None:
        return dict(settings), None
    if isinstance(expert, str | Path):
        return {**settings, "expert": str(expert)}, None
    name = getattr(expert, "__qualname__", type(expert).__name__)
    return {**settings, "expert": f"{OBJECT}{name}"}, expert


def choose(
    config: RunConfig, directory: Path, *, env: Any = None, given: Any = None, begins: bool
) -> Expert:
    """Return the expert of a run.

    Args:
        config: Of the run.
        directory: Of the run; episodes are kept there.
        env: The environment object of the run, if it was given one.
        given: The expert, if it was given as an object.
        begins: Whether the run begins; one that goes on has its episodes.

    Raises:
        AssayError: There is no such expert, or it is one of another environment.
    """
    run = config.run
    if isinstance(run, EpisodeSettings):
        episodes: Dataset = keep(config, directory, env, given) if begins else kept(directory)
        return Expert(episodes, {"expert": {"path": run.expert, **episodes.facts()}})
    if isinstance(run, TaughtSettings):
        return Expert(*find_teacher(config, given))
    return Expert()
