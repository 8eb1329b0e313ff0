"""`assay plot`: draw learning curves, runs side by side, mazes, options, or imagination."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import RunsRoot
from assay.core.errors import ConfigError
from assay.core.wording import counted

if TYPE_CHECKING:
    from assay.runs.directory import RunDirectory

_METRIC, _FILE, _FILM = "eval/return_mean", Path("plot.png"), Path("video.gif")
_MOST_BESIDE = 4
_EPISODES = 64  # of the drawing of options
Kind = Literal["curves", "profiles", "improvement", "ranks"]


def plot(
    runs: list[str] = typer.Argument(..., metavar="RUN_OR_GROUP...", help="What to draw."),
    metric: str = typer.Option(_METRIC, "--metric", help="Any logged metric."),
    out: Path = typer.Option(
        _FILE, "--out", help="A .png or .svg file; of a video a .gif or .mp4 (video.gif)."
    ),
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
    levels: bool = typer.Option(
        False, "--levels", help="Draw the mazes that the generator of a run of paired drew."
    ),
    video: bool = typer.Option(
        False, "--video", help="Film the agents of two runs (up to four) side by side."
    ),
    options: bool = typer.Option(
        False, "--options", help="Draw which option of a run of option_critic acts where."
    ),
    episodes: int = typer.Option(
        None, "--episodes", help="Of a video (default 1) or of the drawing of options (64)."
    ),
    seed: int = typer.Option(None, "--seed", help="Seed of these episodes. [default: 0]"),
    root: RunsRoot = None,
) -> None:
    """Draw learning curves: the IQM over seeds, with its interval.

    Other kinds draw one score per run. profiles: the share of runs above each score. improvement:
    how likely a run of one group beats a run of another. ranks: average ranks over environments
    and seeds, with bars over groups that cannot be told apart (a critical-difference diagram).

    With --imagination, play episodes with the agents of runs of dreamerv3 that see images, and draw
    what their models make of them: reconstructions, predictions from the actions alone, and how the
    model would go on.

    With --levels, draw a few of the mazes of each tenth of a run of paired.

    With --video, play episodes with the agents of two runs from the same seeds, side by side.

    With --options, play episodes with the agent of a run that acts by options, and draw which of
    them acts where: a map of a grid, else a line for each episode.
    """
    drawn = {"--metric": metric != _METRIC, "--text": text, "--kind": kind != "curves"}
    drawn |= {"--at": at != "final"}
    filmed = {"--episodes": episodes is not None, "--seed": seed is not None}
    if options:
        _refuse(drawn | {"--video": video, "--imagination": imagination}, "with --options")
        _options(runs, out, episodes or _EPISODES, seed or 0, root)
        return
    if imagination:
        _refuse(
            drawn | filmed | {"--out": out != _FILE, "--video": video, "--levels": levels},
            "with --imagination",
        )
        _imagine(runs, root)
        return
    if levels:
        others = {name: given for name, given in drawn.items() if name != "--text"}
        _refuse(others | filmed | {"--video": video}, "with --levels")
        _draw_levels(runs, out, text, root)
        return
    if video:
        _refuse(drawn, "with --video")
        _film(runs, _FILM if out == _FILE else out, episodes or 1, seed or 0, root)
        return
    _refuse(filmed, "without --video or --options")
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


def _refuse(given: dict[str, bool], where: str) -> None:
    for name in (name for name, changed in given.items() if changed):
        raise ConfigError(f"{name} has no meaning {where}.", f"Leave out {name}.")


def _film(runs: list[str], out: Path, episodes: int, seed: int, root: Path | None) -> None:
    from assay.agents import drawable, load, require_spaces, required_vector
    from assay.evaluation.video import record_beside
    from assay.loops.config import RunConfig
    from assay.runs.directory import group_runs

    if not 2 <= len(runs) <= _MOST_BESIDE:
        raise ConfigError(
            f"--video: {counted(len(runs), 'run')}; expected two to {_MOST_BESIDE}.",
            "Give the runs that are to be seen side by side.",
        )
    agents = []
    for run in runs:
        first, *rest = group_runs(locate(run, root))
        if rest:
            raise ConfigError(
                f"--video: '{run}' is a group of {len(rest) + 1} runs.",
                f"Give one of them, for example {run}/{first.path.name}.",
            )
        config, agent = RunConfig.from_dict(first.config), load(first.path)
        with required_vector(
            config, None, 1, "Film runs of environments that have an id."
        ) as vector:
            require_spaces(agent.algorithm.spaces, vector)
        agents.append((run, agent.policy, drawable(config), config.run.wrappers))
    films = record_beside(agents, out, seed=seed, episodes=episodes)
    for run, film in zip(runs, films, strict=True):
        returns = ", ".join(f"{one:g}" for one in film.returns)
        output.say(f"{run}: return {returns} in {sum(film.lengths)} steps")
    output.say(f"Video: {out}")


def _draw_levels(runs: list[str], out: Path, text: bool, root: Path | None) -> None:
    from assay.evaluation.level_plots import levels_text, plot_levels, read_levels

    parts = read_levels(_only_run(runs, root, "--levels").path)
    output.say(levels_text(parts) if text else f"Plot: {plot_levels(parts, out)}")


def _options(runs: list[str], out: Path, episodes: int, seed: int, root: Path | None) -> None:
    from assay.agents import load, required_vector
    from assay.evaluation.option_plots import plot_options
    from assay.loops.config import RunConfig

    found = _only_run(runs, root, "--options")
    config, agent = RunConfig.from_dict(found.config), load(found.path)
    with required_vector(config, None, episodes, "Draw it in Python: plot_options.") as vector:
        drawn = plot_options(agent.policy, vector, out, episodes=episodes, seed=seed)
    output.say(f"Plot: {drawn}")


def _only_run(runs: list[str], root: Path | None, option: str) -> RunDirectory:
    from assay.runs.directory import group_runs

    found = [one for run in runs for one in group_runs(locate(run, root))]
    if len(found) != 1:
        raise ConfigError(f"{option}: {counted(len(found), 'run')}; expected one.", "Give one run.")
    return found[0]


def _imagine(runs: list[str], root: Path | None) -> None:
    from assay.imagination import draw_imagination
    from assay.runs.directory import group_runs

    for run in runs:
        for one in group_runs(locate(run, root)):
            for file in draw_imagination(one.path):
                output.say(f"Picture: {file}")
