"""`assay plot`: draw learning curves, or what a world model predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import RunsRoot
from assay.core.errors import ConfigError

_METRIC, _FILE = "eval/return_mean", Path("plot.png")
Kind = Literal["curves", "profiles", "improvement", "ranks"]


def plot(
    runs: list[str] = typer.Argument(..., metavar="RUN_OR_GROUP...", help="What to draw."),
    metric: str = typer.Option(_METRIC, "--metric", help="Any logged metric."),
    out: Path = typer.Option(_FILE, "--out", help="A .png or .svg file."),
    kind: Kind = typer.Option(
        "curves", "--kind", help="Learning curves, or a drawing of one score per run."
    ),
    at: Literal["final", "best"] = typer.Option(
        "final", "--at", help="Which value of a run is its score; not for curves."
    ),
    text: bool = typer.Option(False, "--text", help="Draw in the terminal, and write no file."),
    imagination: bool = typer.Option(
        False, "--imagination", help="Draw what a world model predicts, to RUN/imagination."
    ),
    root: RunsRoot = None,
) -> None:
    """Draw learning curves: the IQM over seeds, with its interval.

    Other kinds draw one score per run. profiles: the share of runs above each score. improvement:
    how likely a run of one group beats a run of another. ranks: average ranks over environments
    and seeds, with bars over groups that cannot be told apart (a critical-difference diagram).

    With --imagination, play episodes with the agents of runs of dreamerv3 that see images, and draw
    what their models make of them: reconstructions, predictions from the actions alone, and how the
    model would go on.
    """
    if imagination:
        given = {"--metric": metric != _METRIC, "--out": out != _FILE, "--text": text}
        given |= {"--kind": kind != "curves"}
        for name in (name for name, changed in given.items() if changed):
            raise ConfigError(f"{name} has no meaning with --imagination.", f"Leave out {name}.")
        _imagine(runs, root)
        return
    from assay.evaluation.plots import plot_curves, read_curves, read_unit, text_chart

    paths = [locate(run, root) for run in runs]
    if kind != "curves":
        if text:
            raise ConfigError(f"--text has no meaning with --kind {kind}.", "Leave out --text.")
        from assay.evaluation.score_plots import plot_scores

        output.say(f"Plot: {plot_scores(paths, kind, out, metric=metric, at=at)}")
        return
    if at != "final":
        raise ConfigError("--at has no meaning for curves.", "Leave it out, or choose a --kind.")
    curves, unit = read_curves(paths, metric), read_unit(paths)
    if text:
        output.say(text_chart(curves, unit=unit))
        return
    output.say(f"Plot: {plot_curves(curves, metric, out, unit=unit)}")


def _imagine(runs: list[str], root: Path | None) -> None:
    from assay.imagination import draw_imagination
    from assay.runs.directory import group_runs

    for run in runs:
        for one in group_runs(locate(run, root)):
            for file in draw_imagination(one.path):
                output.say(f"Picture: {file}")
