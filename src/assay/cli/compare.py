"""`assay compare`: is one setting better than another, and how sure can we be?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot

if TYPE_CHECKING:
    from assay.evaluation.compare import Comparison


def compare(
    runs: list[str] = typer.Argument(
        ..., metavar="RUN_OR_GROUP...", help="Two or more; the first is the baseline."
    ),
    metric: str = typer.Option("eval/return_mean", "--metric", help="What to compare."),
    at: str = typer.Option(
        "final",
        "--at",
        help="Score of a run: final value, best value, or auc (mean over training).",
    ),
    plot: Path = typer.Option(None, "--plot", help="Also plot it, to a .png or .svg file."),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs, or groups of runs that differ in their seed.

    A seed is one measurement, so give each setting several (`assay train --seeds 5`).
    """
    from assay.evaluation.compare import compare as compare_runs

    # Other values are rejected there.
    result = compare_runs([locate(run, root) for run in runs], metric=metric, at=at)  # type: ignore[arg-type]
    drawn = None
    if plot is not None:
        from assay.evaluation.plots import plot_comparison

        drawn = plot_comparison(result, plot)
    if as_json:
        output.print_json(result.to_json() | {"plot": drawn})
        return
    show_comparison(result)
    if drawn is not None:
        output.say(f"Plot: {drawn}")


def show_comparison(result: Comparison) -> None:
    """Print a comparison: the arms, their differences from the baseline, and the verdicts."""
    from assay.evaluation.formatting import bounds, number, p_value, signed

    percent = f"{result.level:.0%} interval"
    budget = "" if result.total is None else f" after {result.total:,} {result.unit}"
    output.say(f"{result.env}{budget}: {result.metric} ({result.at})")
    arms: list[tuple[Any, ...]] = [
        (one.name, len(one.scores), number(one.iqm.point), bounds(one.iqm), number(one.mean))
        for one in result.arms
    ]
    output.show(output.table(("arm", "seeds>", "IQM>", f"{percent}>", "mean>"), arms))
    corrected = ", Holm" if len(result.pairs) > 1 else ""
    columns = (
        f"against {result.arms[0].name}", "difference>", f"{percent}>", "P(better)>",
        f"{percent}>", "Hedges' g>", f"p (Welch{corrected})>", f"p (permutation{corrected})>",
    )  # fmt: skip
    pairs = [
        (
            pair.name,
            signed(pair.difference.point),
            bounds(pair.difference),
            f"{pair.improvement.point:.2f}",
            bounds(pair.improvement, places=2),
            "-" if pair.effect != pair.effect else f"{pair.effect:+.2f}",
            p_value(pair.welch_p),
            p_value(pair.permutation_p),
        )
        for pair in result.pairs
    ]
    output.show(output.table(columns, pairs))
    for pair in result.pairs:
        if pair.changes:
            changed = [f"{key} {old} -> {new}" for key, (old, new) in pair.changes.items()]
            output.say(f"{pair.name} changes: {', '.join(changed)}")
        output.say(f"{pair.name}: {pair.verdict}")
    for warning in result.warnings:
        output.say(f"Note: {warning}")
