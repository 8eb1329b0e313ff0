"""`assay resume`: continue a run, or all unfinished runs of a group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunOrGroup, RunsRoot
from assay.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from assay.runs.directory import RunDirectory


def resume(
    run: RunOrGroup,
    force: bool = typer.Option(
        False, "--force", help="If the last checkpoint is damaged, use the one before it."
    ),
    reward_model: Path = typer.Option(
        None, "--reward-model", metavar="MODEL", help="Go on with another learned reward."
    ),
    budget: int = typer.Option(
        None,
        "--budget",
        min=1,
        metavar="N",
        help="Go on to a larger budget, in environment steps (updates, where the run learns from "
        "data alone), also if the run is done.",
    ),
    root: RunsRoot = None,
    jobs: int = typer.Option(None, "--jobs", min=1, help="Most runs to train at once."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print the result only."),
    as_json: AsJson = False,
    stop_with_stdin: bool = typer.Option(False, "--stop-with-stdin", hidden=True),
) -> None:
    """Continue a run from its last checkpoint; it ends as if it had never stopped."""
    from assay.cli.train import train_group, train_one
    from assay.runs.directory import RUN_FILE, group_runs

    if stop_with_stdin:
        from assay.cli.seeds import stop_with_stdin as watch_stdin

        watch_stdin()
    path = locate(run, root)
    runs = group_runs(path)
    if (path / RUN_FILE).exists():
        algorithm = str(runs[0].info["algorithm"])
        train_one(
            algorithm,
            lambda progress: _resume(path, force, reward_model, budget, progress),
            quiet=quiet,
            as_json=as_json,
        )
        return
    if reward_model is not None:
        raise ConfigError(
            f"--reward-model is for one run, and '{path}' is a group.", "Name one of its runs."
        )
    left = [run for run in runs if budget is not None or run.status != "done"]
    if not left:
        raise RunError(
            f"All {len(runs)} runs of '{path}' are done.",
            "Go on to a larger budget with --budget N, or start a run with another seed.",
        )
    todo = [_job(run, path, force, budget) for run in left]
    train_group(path, todo, jobs, quiet=quiet, as_json=as_json)


def _resume(
    path: Path, force: bool, reward_model: Path | None, budget: int | None, progress: Any
) -> Any:
    from assay.api import resume as resume_run

    return resume_run(
        path, callbacks=[progress], force=force, reward_model=reward_model, budget=budget
    )


def _job(run: RunDirectory, group: Path, force: bool, budget: int | None) -> Any:
    from assay.cli.seeds import Job
    from assay.loops.config import RunConfig

    settings = RunConfig.from_dict(run.config).run
    arguments = ["resume", str(run.path), "--quiet", *(["--force"] if force else [])]
    arguments += [] if budget is None else ["--budget", str(budget)]
    return Job(
        label=str(run.path.relative_to(group)).replace("seed-", "seed "),
        arguments=tuple(arguments),
        path=run.path,
        total=budget or settings.total,
        unit=settings.unit,
    )
