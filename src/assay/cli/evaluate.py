"""`assay evaluate`: evaluate a trained agent over new episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunOrGroup, RunsRoot
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.api import Run


def evaluate(
    run: RunOrGroup,
    episodes: int = typer.Option(100, "--episodes", min=1, help="How many episodes to play."),
    seed: int = typer.Option(
        0, "--seed", min=0, help="Fixes the episodes: the same seed plays the same ones."
    ),
    settings: list[str] | None = typer.Option(
        None,
        "--set",
        metavar="KEY=VALUE",
        help="A setting that only acting reads: target_return=N.",
    ),
    video: bool = typer.Option(False, "--video", help="Record the first episode to RUN/videos."),
    video_format: str = typer.Option("gif", "--format", help="Video format: gif or mp4."),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes with the agent of a run.

    The policy is the deterministic one of the last checkpoint. Every episode is stored in RUN/eval.
    Returns are of the environment's own rewards, without normalisation or clipping.
    """
    from assay.api import open_run
    from assay.core.config import parse_assignments
    from assay.runs.directory import group_runs

    results, chosen = [], parse_assignments(settings or [])
    for directory in group_runs(locate(run, root)):
        opened = open_run(directory.path)
        measured = opened.evaluate(episodes, seed=seed, settings=chosen)
        result = {"run": str(opened.path), **measured.to_json()}
        if video:
            result["video"] = str(_film(opened, seed, video_format, chosen))
        results.append(result)
    if as_json:
        output.print_json(results[0] if len(results) == 1 else results)
        return
    columns = ("run", "episodes>", "mean>", "IQM>", "std>", "min>", "max>", "length>")
    output.show(output.table(columns, [_row(result) for result in results]))
    for result in results:
        if "video" in result:
            output.say(f"Video: {result['video']}")


def _row(result: dict[str, Any]) -> tuple[Any, ...]:
    episodes = result["episodes"]
    returns = [episode["return"] for episode in episodes]
    return (
        result["run"],
        len(episodes),
        *(number(result[key]) for key in ("mean", "iqm", "std")),
        number(min(returns)),
        number(max(returns)),
        number(sum(episode["length"] for episode in episodes) / len(episodes)),
    )


def _film(run: Run, seed: int, video_format: str, settings: dict[str, Any]) -> Path:
    """Record a video of the first episode."""
    from assay.api import load
    from assay.envs.make import make_env
    from assay.evaluation.video import record

    agent, config = load(run.path, settings=settings), run.config

    def make(render_mode: str) -> Any:
        settings = {**config.run.env_kwargs, "render_mode": render_mode}
        limit = config.run.max_episode_steps
        return make_env(config.env, env_kwargs=settings, max_episode_steps=limit)

    name = f"{agent.clock.count:012d}-seed{seed}.{video_format.lower()}"
    return record(agent.policy, make, run.directory.videos_path / name, seed=seed).path
