"""`assay train`: train an agent, or the same settings under several seeds at once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import ConfigError, RunError
from assay.core.paths import OTHER_NAMES_OF_RUN_FOLDER, runs_root
from assay.core.wording import counted

if TYPE_CHECKING:
    from assay.cli.plan import Plan
    from assay.cli.progress import Progress
    from assay.cli.seeds import Job, Outcome

_OF_OTHER_PROGRAMS = [f"--{name.replace('_', '-')}" for name in OTHER_NAMES_OF_RUN_FOLDER]


def _refuse_place(place: Path | None) -> None:
    """Say how the folder of a run is chosen to who gives it as in other programs."""
    if place is not None:
        words = ["--root", str(place.parent), "--name", place.name or "NAME"]
        raise ConfigError(
            f"assay train has no option for the run's folder, such as '{place}': that is the name "
            "of the run, below the folder of all runs.",
            f"Use {shlex.join(words)} instead.",
        )


def train(
    algorithm: str = typer.Argument(
        None, metavar="ALGO", help="The algorithm, such as ppo (see `assay algorithms`)."
    ),
    env: str = typer.Argument(
        None,
        metavar="ENV",
        help="The environment's id, such as CartPole-v1 or my_module:Maze-v0. With data=SET it can "
        "be left out: it is what the data was recorded in, or none.",
    ),
    settings: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Settings, such as env_steps=100_000 lr=3e-4."
    ),
    seed: int = typer.Option(
        None, "--seed", min=0, help="The run's seed, or the first of several."
    ),
    seeds: int = typer.Option(
        None, "--seeds", min=1, help="Run this many seeds in parallel, as a group."
    ),
    name: str = typer.Option(
        None, "--name", help="Name of the run or group; generated if missing."
    ),
    device: str = typer.Option(None, "--device", help="auto, cpu, cuda or cuda:N."),
    config: Path = typer.Option(
        None,
        "--config",
        help="A YAML file with settings. If it names algorithm and env, as a run's config.yaml "
        "does, ALGO and ENV can be left out.",
    ),
    root: RunsRoot = None,
    jobs: int = typer.Option(
        None, "--jobs", min=1, help="Most seeds to train at once; by default one per core."
    ),
    preset: bool = typer.Option(
        True, "--preset/--no-preset", help="Start from the settings shipped for this task."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print the result only."),
    as_json: AsJson = False,
    stop_with_stdin: bool = typer.Option(False, "--stop-with-stdin", hidden=True),
    _: Path = typer.Option(None, *_OF_OTHER_PROGRAMS, hidden=True, callback=_refuse_place),
) -> None:
    """Train an agent.

    Settings come from the algorithm's defaults, the shipped preset, --config, and KEY=VALUE, where
    later ones override earlier ones. `assay train --config RUN/config.yaml` starts the same run
    again. Ctrl-C saves the run after the step or update that it is at, and `assay resume`
    continues it; a second Ctrl-C ends it at once, at its last checkpoint.
    """
    from assay.cli.plan import choose_task, make_plan, read_settings, split_words
    from assay.runs.directory import unique_name

    if stop_with_stdin:
        from assay.cli.seeds import stop_with_stdin as watch_stdin

        watch_stdin()
    names, settings = split_words([algorithm, env, *(settings or [])])
    file_settings, given = read_settings(settings, config, {"seed": seed, "device": device})
    place = runs_root(root)
    if seeds is None:
        _refuse_taken(place, name)
    task = choose_task(names, file_settings, given)
    plan = make_plan(*task, file_settings, given, use_preset=preset)
    if seeds is None:
        if not quiet:
            output.note(plan.describe())
        train_one(
            plan.config.algorithm,
            lambda progress: _train(plan, place, name, progress),
            quiet=quiet,
            as_json=as_json,
        )
        return
    group = name or unique_name(plan.config.algorithm, plan.config.env)
    first = plan.config.run.seed
    options = ["--root", str(place)]
    options += ["--config", str(config)] if config is not None else []
    options += ["--device", device] if device is not None else []
    options += [] if preset else ["--no-preset"]
    own = [item for item in settings if item.partition("=")[0].strip() != "seed"]
    if plan.config.run.threads == 0:
        # One thread each, and in the configuration: a seed that is resumed alone must not use more,
        # because sums over several threads differ in the last bits.
        own.append("threads=1")
    todo = [
        _job(plan, place, group, number, [*task, *own, *options])
        for number in range(first, first + seeds)
    ]
    if not quiet:
        output.note(plan.describe())
    train_group(
        place / group,
        todo,
        jobs,
        replay_bytes=plan.replay_bytes,
        quiet=quiet,
        as_json=as_json,
        again=lambda left: _again([*task, *own, *options], group, left),
    )


def _train(plan: Plan, root: Path, name: str | None, progress: Progress) -> Any:
    from assay.api import train as train_run

    config = plan.config
    # The plan is fully resolved: the run uses exactly what was printed.
    return train_run(
        config.algorithm,
        config.env,
        name=name,
        root=root,
        config=config.to_dict(),
        preset=False,
        callbacks=[progress],
    )


def train_one(label: str, start: Callable[[Progress], Any], *, quiet: bool, as_json: bool) -> None:
    """Train or resume one run in this process, and report it; `start` does the training."""
    from assay.cli.progress import Bars, Progress, Pulse, choose_mode
    from assay.cli.results import read_result, show_results

    mode = choose_mode(quiet=quiet, as_json=as_json)
    with Bars(mode) as bars:
        progress = Progress(bars, label)
        try:
            with Pulse(progress):
                run = start(progress)
        except KeyboardInterrupt:
            if progress.path is not None:
                output.note(_ended_at_once(progress.path))
            raise
    result = read_result(run.path)
    if as_json:
        output.print_json(result)
    else:
        show_results([result])
        output.say(f"Run: {run.path}")
    if result["status"] == "interrupted":
        kept = f", with {progress.collected:,} steps after it" if progress.collected else ""
        output.note(
            f"Saved at {result['unit']}={int(Path(result['checkpoint']).name):,}{kept}. "
            f"Resume with: {resume_command(run.path)}"
        )
        raise typer.Exit(output.EXIT_INTERRUPTED)


def _ended_at_once(path: Path) -> str:
    from assay.runs import checkpoint
    from assay.runs.directory import RunDirectory

    again = resume_command(path)
    if checkpoint.latest(RunDirectory.open(path).checkpoints_path) is None:
        return (
            "Ended immediately, before the first checkpoint: nothing is saved. "
            f"Start it again with: {again}"
        )
    return f"Ended immediately; the last checkpoint is kept. Resume with: {again}"


def train_group(
    group: Path,
    todo: Sequence[Job],
    parallel: int | None,
    *,
    replay_bytes: int = 0,
    quiet: bool,
    as_json: bool,
    again: Callable[[list[Outcome]], str] | None = None,
) -> None:
    """Train or resume several runs, each in its own process, and report them.

    By default there are as many at once as there are cores. `again` returns the command for those
    that an interrupt kept from starting.
    """
    from assay.buffers.allocation import require_memory
    from assay.cli.progress import Bars, choose_mode
    from assay.cli.results import group_result, show_group
    from assay.cli.seeds import cores, run_jobs

    at_once = min(len(todo), parallel or cores())
    require_memory(
        at_once * replay_bytes,
        f"The replays of {at_once} runs at once",
        advice="train fewer of them at once (--jobs)",
    )
    mode = choose_mode(quiet=quiet, as_json=as_json)
    if mode != "silent":
        output.note(f"{counted(len(todo), 'run')}, {at_once} at a time, in {group}")
    with Bars(mode) as bars:
        outcomes = run_jobs(todo, at_once, bars)
    result = group_result(group, outcomes)
    if as_json:
        output.print_json(result)
    else:
        show_group(result)
    for outcome in outcomes:
        if outcome.status == "failed":
            output.note(f"{outcome.job.label} failed: {outcome.message}")
    if any(outcome.status == "interrupted" for outcome in outcomes):
        output.note(f"Saved. Resume with: {resume_command(group)}")
    left = [outcome for outcome in outcomes if outcome.status == "not started"]
    if left and again is not None:
        output.note(f"Not started: {_listed(left)}. Start with: {again(left)}")
    codes = {outcome.code for outcome in outcomes if outcome.status == "failed"}
    if codes:
        raise typer.Exit(2 if codes == {2} else 1)
    if any(outcome.status != "done" for outcome in outcomes):
        raise typer.Exit(output.EXIT_INTERRUPTED)


def resume_command(path: Path) -> str:
    """Return the command that resumes a run or group."""
    return f"assay resume {shlex.quote(str(path))}"


def _job(plan: Plan, root: Path, group: str, seed: int, arguments: list[str]) -> Job:
    from assay.cli.seeds import Job

    name = f"{group}/seed-{seed}"
    _refuse_taken(root, name)
    return Job(
        label=f"seed {seed}",
        arguments=("train", *arguments, "--seed", str(seed), "--name", name, "--quiet"),
        path=root / name,
        total=plan.config.run.total,
        unit=plan.config.run.unit,
    )


def _refuse_taken(root: Path, name: str | None) -> None:
    """Raise an error before anything starts; creating the run directory checks it again."""
    if name is not None and (root / name / "run.json").exists():
        raise RunError(
            f"There is a run at '{root / name}' already.",
            f"Resume it ({resume_command(root / name)}) or choose another name.",
        )


def _again(arguments: list[str], group: str, left: list[Outcome]) -> str:
    first = left[0].job.label.removeprefix("seed ")
    words = [*arguments, "--name", group, "--seed", first, "--seeds", str(len(left))]
    return "assay train " + shlex.join(words)


def _listed(outcomes: list[Outcome]) -> str:
    return ", ".join(outcome.job.label for outcome in outcomes)
