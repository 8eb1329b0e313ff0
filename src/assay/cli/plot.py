"""`assay plot`: draw learning curves."""

from __future__ import annotations

from pathlib import Path

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import RunsRoot


def plot(
    runs: list[str] = typer.Argument(..., metavar="RUN_OR_GROUP...", help="What to draw."),
    metric: str = typer.Option("eval/return_mean", "--metric", help="Any logged metric."),
    out: Path = typer.Option(Path("plot.png"), "--out", help="A .png or .svg file."),
    text: bool = typer.Option(False, "--text", help="Draw in the terminal, and write no file."),
    root: RunsRoot = None,
) -> None:
    """Draw learning curves: the IQM over seeds, with its interval."""
    from assay.evaluation.plots import plot_curves, read_curves, read_unit, text_chart

    paths = [locate(run, root) for run in runs]
    curves, unit = read_curves(paths, metric), read_unit(paths)
    if text:
        output.say(text_chart(curves, unit=unit))
        return
    output.say(f"Plot: {plot_curves(curves, metric, out, unit=unit)}")
