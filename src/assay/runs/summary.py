"""A short summary of a run, read without torch."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from assay.core.errors import RunError
from assay.runs.checkpoint import latest
from assay.runs.directory import RunDirectory
from assay.runs.files import read_json_object, restore_floats
from assay.runs.metrics import last_record


def summary(run: RunDirectory) -> dict[str, Any]:
    """Return the main facts about a run; those of damaged files are None.

    Keys: `path`, `name`, `id`, `algorithm`, `env`, `seed`, `status`, `error`, `created`,
    `finished`, `env_steps`, `total_env_steps`, `updates`, `episodes`, `metrics` (the last value of
    those in the newest record), `eval_mean` and `eval_env_steps` (of the newest evaluation), and
    `checkpoint` (the path of the newest one).
    """
    record = last_record(run.metrics_path)
    eval_steps, eval_mean = _last_eval(run)
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
        "env_steps": record.env_steps if record else run.info.get("env_steps", 0),
        "total_env_steps": _total(run),
        "updates": record.updates if record else 0,
        "episodes": record.episodes if record else 0,
        "metrics": dict(record.metrics) if record else {},
        "eval_mean": eval_mean,
        "eval_env_steps": eval_steps,
        "checkpoint": str(checkpoint) if checkpoint else None,
    }


def _total(run: RunDirectory) -> int | None:
    try:
        return int(run.config["run"]["env_steps"])
    except (RunError, KeyError, TypeError, ValueError):
        return None


def _last_eval(run: RunDirectory) -> tuple[int | None, float | None]:
    """Return the `env_steps` and mean return of the most trained agent that was evaluated."""
    for path in sorted(run.eval_path.glob("*.json"), reverse=True):
        try:
            result = restore_floats(read_json_object(path))
            return int(result["env_steps"]), fmean(
                episode["return"] for episode in result["episodes"]
            )
        except (RunError, KeyError, TypeError, ValueError):
            continue
    return None, None
