"""A short summary of a run, read without torch."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from assay.core.errors import RunError
from assay.core.types import Unit
from assay.runs.checkpoint import latest
from assay.runs.directory import RunDirectory, evaluated_at
from assay.runs.files import read_json_object, restore_floats
from assay.runs.metrics import last_record


def summary(run: RunDirectory) -> dict[str, Any]:
    """Return the main facts about a run; those of damaged files are None.

    Keys: `path`, `name`, `id`, `algorithm`, `env`, `seed`, `status`, `error`, `created`,
    `finished`, `unit` (what the run is counted in), `total` (its budget), `env_steps`, `updates`,
    `episodes`, `metrics` (the last value of those in the newest record), `eval_mean` and
    `eval_count` (of the newest evaluation), and `checkpoint` (the path of the newest one).
    """
    record = last_record(run.metrics_path)
    unit, total = _budget(run)
    eval_count, eval_mean = _last_eval(run)
    checkpoint = latest(run.checkpoints_path)
    return {
        "path": str(run.path),
        "name": run.name,
        "id": run.id,
        "algorithm": run.info["algorithm"],
        "env": run.info["env"],
        "seed": run.info["seed"],
        "status": run.effective_status,
        "error": run.info.get("error"),
        "created": run.info["created"],
        "finished": run.info.get("finished"),
        "unit": unit,
        "total": total,
        "env_steps": record.env_steps if record else run.info.get("env_steps", 0),
        "updates": record.updates if record else run.info.get("updates", 0),
        "episodes": record.episodes if record else 0,
        "metrics": dict(record.metrics) if record else {},
        "eval_mean": eval_mean,
        "eval_count": eval_count,
        "checkpoint": str(checkpoint) if checkpoint else None,
    }


def _budget(run: RunDirectory) -> tuple[Unit, int | None]:
    try:
        return run.budget
    except RunError:
        return "env_steps", None


def _last_eval(run: RunDirectory) -> tuple[int | None, float | None]:
    """Return the count and mean return of the most trained agent that was evaluated."""
    for path in sorted(run.eval_path.glob("*.json"), reverse=True):
        try:
            result = restore_floats(read_json_object(path))
            return evaluated_at(result), fmean(episode["return"] for episode in result["episodes"])
        except (RunError, KeyError, TypeError, ValueError):
            continue
    return None, None
