"""The result of a run, read from its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli import output
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.cli.seeds import Outcome

# Keys of a run's summary.
_FACTS = (
    *("path", "name", "algorithm", "env", "seed", "status", "error"),
    *("unit", "env_steps", "updates", "episodes", "checkpoint"),
)
_FEW_AGENTS = 8  # are told one by one


def read_result(path: Path) -> dict[str, Any]:
    """Return the facts about a run that `train`, `resume` and `evaluate` report.

    `evaluation` is the last one of the training loop, or None. `seconds` counts training time
    only, over all the sessions of a run that was resumed.
    """
    from assay.evaluation.evaluate import load_evaluations
    from assay.runs.directory import RunDirectory
    from assay.runs.metrics import read_metrics
    from assay.runs.summary import summary

    run = RunDirectory.open(path)
    facts = summary(run)
    metrics = read_metrics(run.metrics_path)
    evaluations = load_evaluations(run)
    unit, _ = run.budget
    speed = metrics.get(f"time/{unit}_per_second")
    elapsed = metrics.get("time/elapsed")
    evaluation = None
    if evaluations:
        count, result = evaluations[-1]
        evaluation = {
            unit: count,
            "episodes": len(result.returns),
            "mean": result.mean,
            "iqm": result.iqm,
            "std": result.std,
            **({"agents": result.agent_means} if result.agents else {}),
        }
    return {
        **{key: facts[key] for key in _FACTS},
        "evaluation": evaluation,
        f"{unit}_per_second": float(speed[1][-1]) if speed else None,
        "seconds": _total_seconds(elapsed[1].tolist()) if elapsed else None,
    }


def show_results(results: Sequence[dict[str, Any]]) -> None:
    """Print a table with one line per run; all are counted in one unit."""
    unit = results[0]["unit"]
    rows = [
        (
            result["seed"],
            result["status"],
            f"{result[unit]:,}",
            number((result["evaluation"] or {}).get("mean")),
            number((result["evaluation"] or {}).get("iqm")),
            (result["evaluation"] or {}).get("episodes"),
            f"{result[f'{unit}_per_second'] or 0:,.0f}",
            output.duration(result["seconds"]),
        )
        for result in results
    ]
    columns = ("seed>", "status", f"{unit}>", "mean>", "IQM>", "episodes>", f"{unit}/s>", "time>")
    output.show(output.table(columns, rows))
    for result in results:
        show_agents(f"seed {result['seed']}", (result["evaluation"] or {}).get("agents"))


def show_agents(whose: str, agents: Mapping[str, float] | None) -> None:
    """Say what each of several agents gets, unless all get the same."""
    if not agents or len(set(agents.values())) == 1:
        return
    ranked = sorted(agents, key=agents.__getitem__)
    names = list(agents) if len(agents) <= _FEW_AGENTS else [ranked[0], ranked[-1]]
    told = f"{len(agents)} agents, from " if len(agents) > _FEW_AGENTS else ""
    each = (" to " if told else ", ").join(f"{name} {number(agents[name])}" for name in names)
    output.say(f"Mean return of each agent, {whose}: {told}{each}")


def group_result(group: Path, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the facts about runs that were trained as a group.

    `summary` is about the final evaluations of those that are done; its interval is a bootstrap
    over seeds, and None for a single one.
    """
    from assay.core.seeding import derive_rng
    from assay.evaluation import statistics
    from assay.runs.directory import RUN_FILE

    runs = [
        read_result(outcome.job.path)
        for outcome in outcomes
        if (outcome.job.path / RUN_FILE).exists()
    ]
    scores = [
        run["evaluation"]["mean"] for run in runs if run["status"] == "done" and run["evaluation"]
    ]
    summary = None
    if scores:
        interval = statistics.stratified_bootstrap(
            scores, reps=2000, rng=derive_rng(0, "command line", "group")
        )
        summary = {
            "seeds": len(scores),
            "mean": sum(scores) / len(scores),
            "iqm": interval.point,
            "low": interval.low,
            "high": interval.high,
            "level": interval.level,
        }
    return {
        "path": str(group),
        "runs": runs,
        "summary": summary,
        "failed": [
            {"run": str(outcome.job.path), "message": outcome.message}
            for outcome in outcomes
            if outcome.status == "failed"
        ],
        "not_started": [str(o.job.path) for o in outcomes if o.status == "not started"],
    }


def show_group(result: dict[str, Any]) -> None:
    """Print what `group_result` returned."""
    if result["runs"]:
        show_results(result["runs"])
    summary = result["summary"]
    if summary is not None:
        low, high = number(summary["low"]), number(summary["high"])
        interval = f" ({summary['level']:.0%} interval {low} to {high})" if low != "-" else ""
        seeds = "1 seed" if summary["seeds"] == 1 else f"{summary['seeds']} seeds"
        output.say(f"IQM over {seeds}: {number(summary['iqm'])}{interval}")
    output.say(f"Runs: {result['path']}")


def _total_seconds(elapsed: Sequence[float]) -> float:
    """Add up the sessions of a run: elapsed time starts again where a run was resumed."""
    ends = [now for now, after in pairwise(elapsed) if after < now]
    return sum(ends) + elapsed[-1]
