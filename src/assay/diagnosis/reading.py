"""Read runs and foreign logs into cases."""

from __future__ import annotations

import csv
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import AssayError, ConfigError, RunError, nearest
from assay.diagnosis.case import Case
from assay.diagnosis.probe import probe
from assay.runs.directory import RunDirectory, evaluated_at
from assay.runs.files import RunWarning, run_error
from assay.runs.metrics import Series, read_metrics, read_records
from assay.study.files.contract import MetricSource
from assay.study.measure.discover import kind_of
from assay.study.measure.extractors import READERS

FORMATS = "CSV, JSON lines, JSON, TensorBoard, W&B, SB3's monitor.csv and evaluations.npz"

# What other programs call a metric, tried in this order; the first column that matches is taken.
# A name is compared in lower case, with every sign that is not a letter or digit as "_".
_NAMES: dict[str, tuple[str, ...]] = {
    "rollout/return_mean": (
        r"rollout_ep_rew_mean", r"charts_episodic_return", r"train_mean_reward", r"r",
        r"(.*_)?(episode|episodic|ep)_(reward|return|rew|ret)(_mean|_avg)?", r"return_mean",
        r"(.*_)?(mean|avg|average)_(episode_)?(reward|return)", r"(.*_)?(return|returns|score)",
        r"(.*_)?reward",
    ),
    "rollout/length_mean": (
        r"rollout_ep_len_mean", r"charts_episodic_length", r"train_mean_episode_length", r"l",
        r"(.*_)?(episode|episodic|ep)_(length|len)(_mean)?", r"length_mean", r"(.*_)?length",
    ),
    "eval/return_mean": (
        r"eval(uation)?_(mean_)?(reward|return|rew|score)(_mean)?", r"results",
        r"(test|eval|evaluation)_.*(reward|return|score).*",
    ),
    "eval/success_rate": (r"(.*_)?success(_rate)?(_mean)?", r"(.*_)?is_success"),
    "rollout/true_return": (r"(.*_)?true_(return|reward|score)", r"(.*_)?task_(return|score)"),
    "train/entropy": (r"train_entropy_loss", r"(.*_)?entropy(_mean)?", r"(.*_)?entropy_loss"),
    "train/approx_kl": (r"(.*_)?approx_kl", r"(.*_)?(mean_)?kl(_divergence|_div)?"),
    "train/clip_fraction": (r"(.*_)?clip_?frac(tion)?",),
    "train/explained_variance": (r"(.*_)?explained_var(iance)?",),
    "train/lr": (r"(.*_)?learning_rate", r"(.*_)?lr"),
    "train/alpha": (r"(.*_)?ent_coef", r"(.*_)?alpha"),
    "train/q_mean": (
        r"(.*_)?qf?1?_values?(_mean)?", r"(.*_)?q_mean", r"(.*_)?(mean_q|q_value)(_mean)?",
        r"(.*_)?values?_mean",
    ),
    "time/env_steps_per_second": (r"(.*_)?fps", r"(.*_)?sps", r"(.*_)?steps_per_second"),
}  # fmt: skip
_STEPS = (
    r"env_steps", r"(time_)?total_timesteps", r"global_step", r"timesteps?(_total)?", r"steps?",
    r"total_steps", r"num_env_steps.*", r"frames?", r"iterations?", r"epochs?",
)  # fmt: skip
_UPDATES = (r"train_n_updates", r"n_updates", r"updates")
_ROWS = ("csv", "json", "jsonl")  # formats that count rows
_NEGATED = r"(.*_)?entropy_loss"  # Stable-Baselines3 logs what it minimises


def read_run(run: RunDirectory) -> Case:
    """Read a run of Assay's; damaged parts are left out, with a warning."""
    records = list(read_records(run.metrics_path))
    last = records[-1] if records else None
    try:
        config: dict[str, Any] = run.config
        unit, total = run.budget
    except RunError as error:
        warnings.warn(error.message, RunWarning, stacklevel=2)
        config, unit, total = {}, "env_steps", None
    settings, hyperparameters = config.get("run") or {}, config.get("hyperparameters") or {}
    made_by_id = not config.get("env_is_object", False)
    return Case(
        run.path,
        "assay",
        read_metrics(run.metrics_path),
        unit=unit,
        count=last.count if last else 0,
        total=total,
        updates=last.updates if last else 0,
        episodes=last.episodes if last else 0,
        clock=np.array([(r.count, r.updates, r.time, r.episodes) for r in records]).reshape(-1, 4),
        status=run.effective_status,
        error=run.info.get("error"),
        algorithm=run.info["algorithm"],
        env=run.info["env"],
        settings=hyperparameters,
        run=settings,
        made_by_id=made_by_id,
        evaluations=_evaluations(run),
        probe=probe(run.checkpoints_path),
        threshold=_threshold(run.info["env"]) if made_by_id else None,
    )


def read_log(path: Path, columns: Mapping[str, str] | None = None) -> Case:
    """Read another program's log; `columns` says which column is which of Assay's metrics.

    Raises:
        ConfigError: The format is not known, or a column does not exist.
        RunError: It cannot be read.
    """
    kind = kind_of(path)
    if not kind or kind == "assay":
        raise ConfigError(
            f"'{path}' is neither a run nor a log of a known format.", f"Known: {FORMATS}."
        )
    try:
        source = MetricSource.model_validate({"kind": kind, "path": "", "key": "any"})
        found = READERS[kind][0](path, source)
    except ModuleNotFoundError as error:
        raise RunError(
            f"Reading '{path}' needs the package '{error.name}', which is not installed.",
            f"Install it with: pip install {error.name}",
        ) from None
    except OSError as error:
        raise run_error(error, f"read '{path}'") from None
    except AssayError:
        raise
    except (ValueError, KeyError, csv.Error, RecursionError, zipfile.BadZipFile) as error:
        raise RunError(f"'{path}' is not a readable {kind} file: {error}.") from None
    raw = {
        str(name): (np.array([p[0] for p in points]), np.array([p[1] for p in points]))
        for name, points in found.items()
        if points
    }
    if not raw:
        raise RunError(f"'{path}' holds no numbers.", f"Known formats: {FORMATS}.")
    return _foreign(path, kind, raw, dict(columns or {}))


def _foreign(path: Path, kind: str, raw: dict[str, Any], given: dict[str, str]) -> Case:
    known = {**_NAMES, "env_steps": _STEPS, "updates": _UPDATES}
    for name, column in given.items():
        if name not in known:
            raise ConfigError(f"--column {name}=...: no such metric.", nearest(name, known))
        if column not in raw:
            raise ConfigError(f"'{path}' has no column '{column}'.", nearest(column, raw))
    columns = _guess(raw, known, given)
    if not set(columns) - {"env_steps", "updates"} and not any("loss" in n.lower() for n in raw):
        listed = ", ".join(sorted(raw)[:30])
        raise ConfigError(
            f"No column of '{path}' is recognised as a return, a loss or another metric that is "
            f"diagnosed. It has: {listed}.",
            "Say which is which: --column rollout/return_mean=COLUMN",
        )
    judged = set(columns.values()) | {name for name in raw if "loss" in name.lower()}
    named = judged - {columns.get("env_steps"), columns.get("updates")}
    if not any(np.isfinite(raw[name][1]).any() for name in named):
        raise RunError(
            f"No column of '{path}' that is diagnosed holds a number: {', '.join(sorted(named))}.",
            "Name one that does: --column rollout/return_mean=COLUMN",
        )
    steps = columns.get("env_steps")
    series: dict[str, Series] = {}
    for name, (counts, values) in raw.items():
        if name in (steps, columns.get("updates")):
            continue
        steps_of = _stepped(counts, raw.get(steps or ""), kind)
        series[_called(name, columns)] = steps_of, _sign(name, values)
    last = max((int(counts[-1]) for counts, _ in series.values() if len(counts)), default=0)
    updates = raw.get(columns.get("updates", ""))
    return Case(
        path,
        kind,
        series,
        columns,
        count=last,
        unit="rows" if steps is None and kind in _ROWS else "env_steps",
        updates=None if updates is None else int(np.nanmax(updates[1])),
    )


def _guess(
    raw: Mapping[str, Any], known: Mapping[str, tuple[str, ...]], given: dict[str, str]
) -> dict[str, str]:
    """Return which column is which metric: as given, or by the first pattern that one matches."""
    plain = {name: re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in raw}
    columns = dict(given)
    # A column called eval is not the return of training: what is more special chooses first.
    order = ["eval/success_rate", "rollout/true_return", "eval/return_mean", *known]
    for metric in dict.fromkeys(order):
        if metric in columns:
            continue
        free = [name for name in sorted(raw) if name not in columns.values()]
        for pattern in known[metric]:
            match = next((name for name in free if re.fullmatch(pattern, plain[name])), None)
            if match is not None:
                columns[metric] = match
                break
    return columns


def _called(name: str, columns: Mapping[str, str]) -> str:
    return next((metric for metric, column in columns.items() if column == name), name)


def _sign(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower())
    negative = re.fullmatch(_NEGATED, plain) and np.nanmedian(values) < 0
    return -values if negative else values


def _stepped(counts: np.ndarray[Any, Any], steps: Any, kind: str) -> np.ndarray[Any, Any]:
    """Return the counts of a column: its row numbers become steps where there is such a column."""
    if steps is None or kind not in _ROWS:
        return counts.astype(np.int64)
    rows = np.interp(counts, steps[0], np.nan_to_num(steps[1]))
    return rows.astype(np.int64)


def _evaluations(run: RunDirectory) -> list[tuple[int, list[dict[str, Any]]]]:
    try:
        return [(evaluated_at(one), one.get("episodes", [])) for one in run.evals()]
    except (RunError, KeyError, TypeError, ValueError) as error:
        warnings.warn(f"The evaluations of '{run.path}': {error}", RunWarning, stacklevel=3)
        return []


def _threshold(env: str) -> float | None:
    """Return the return from which on Gymnasium counts an environment as solved."""
    import gymnasium as gym

    spec = gym.registry.get(env)
    return None if spec is None else spec.reward_threshold
