"""`assay predict`: the actions of a run for a file of observations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import ConfigError

if TYPE_CHECKING:
    from assay.prediction.acting import Actor

_PIPE = "-"
_STDIN = Path("/dev/stdin")


def predict(
    run: str = typer.Argument(
        ..., metavar="RUN", help="A path, or a name under runs; or FILE.onnx of assay export."
    ),
    obs: str = typer.Option(
        ..., "--obs", metavar="FILE", help="Observations: .npy, .npz, .csv, .jsonl, .parquet or -."
    ),
    out: str = typer.Option(
        ..., "--out", metavar="FILE", help="Actions: .npy, .csv, .jsonl, .parquet or -."
    ),
    batch: int = typer.Option(1024, "--batch", min=1, help="Rows that are held at a time."),
    pipe: str = typer.Option(
        None, "--format", help="Format of - (stdin, stdout): jsonl or csv. [default: jsonl]"
    ),
    checkpoint: str = typer.Option(
        None, "--checkpoint", help="A count such as 50000, or a path. [default: the last one]"
    ),
    sample: bool = typer.Option(
        False, "--sample", help="Explore as in training instead of taking the best action."
    ),
    seed: int = typer.Option(None, "--seed", min=0, help="Seed of --sample. [default: 0]"),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Write the actions that a run's agent takes for a file of observations.

    A row is an observation, in the environment's own units: columns obs.0, obs.1, ... or lists in
    obs; entries of a Dict by their names, such as arm.joints.0. An agent with a memory takes rows
    as the steps of one episode, in order; another one begins where the column episode changes or
    first is true.
    """
    source, target, kind = _places(obs, out, pipe, as_json)
    if seed is not None and not sample:
        raise ConfigError("--seed has a meaning only with --sample.", "Leave out --seed.")
    from assay.prediction.acting import answer
    from assay.prediction.reading import read
    from assay.prediction.writing import check_target, printing, writing

    if target is not None:
        check_target(target)
    actor = _actor(locate(run, root), checkpoint, sample, seed or 0)
    given = read(source, actor.observations, batch, kind if source == _STDIN else None)
    space = actor.actions.source
    shape, dtype = tuple(space.shape or ()), space.dtype
    assert dtype is not None
    if target is None:
        with printing(kind, shape) as write:
            answer(actor, given, write)
        return
    with writing(target, shape, dtype) as write:
        rows, episodes = answer(actor, given, write)
    if as_json:
        output.print_json({"path": target, "rows": rows, "episodes": episodes})
        return
    steps = f", episodes: {episodes:,}" if actor.remembers else ""
    output.say(f"Actions: {target} ({rows:,} rows{steps})")


def _places(obs: str, out: str, pipe: str | None, as_json: bool) -> tuple[Path, Path | None, str]:
    """Return where observations come from, where actions go, and the format of a pipe."""
    piped = _PIPE in (obs, out)
    if pipe is not None and not piped:
        raise ConfigError("--format has a meaning only with -.", "Leave out --format.")
    if pipe not in (None, "jsonl", "csv"):
        raise ConfigError(f"--format {pipe}: expected jsonl or csv.", "Other formats need a file.")
    if out == _PIPE and as_json:
        raise ConfigError("--json and --out - both print.", "Leave out --json.")
    if not piped and Path(obs).resolve() == Path(out).resolve():
        raise ConfigError(f"--obs '{obs}' and --out '{out}' are one file.", "Write to another one.")
    source = _STDIN if obs == _PIPE else Path(obs)
    return source, None if out == _PIPE else Path(out), f".{pipe or 'jsonl'}"


def _exported(path: Path, of_runs: dict[str, object]) -> Actor:
    if path.suffix.lower() != ".onnx":
        raise ConfigError(
            f"'{path}' is neither a run nor an ONNX file.", "Give a run, or FILE.onnx."
        )
    for option, value in of_runs.items():
        if value:
            raise ConfigError(f"{option} has a meaning only with a run.", f"Leave out {option}.")
    from assay.prediction.exported import ExportedActor

    return ExportedActor(path)


def _actor(run: Path, checkpoint: str | None, sample: bool, seed: int) -> Actor:
    """Return what acts: without torch, where the checkpoint has the policy as data."""
    from assay.prediction.acting import find_checkpoint, model_actor
    from assay.runs.directory import RunDirectory

    if run.is_file():
        return _exported(run, {"--checkpoint": checkpoint, "--sample": sample})
    directory = RunDirectory.open(run)
    place = find_checkpoint(directory, checkpoint)
    actor = None if sample else model_actor(directory, place)
    if actor is not None:
        return actor
    from assay.core.seeding import derive_rng
    from assay.prediction.agents import AgentActor

    # A run that still trains may have deleted the last one meanwhile.
    named = None if checkpoint is None else place
    return AgentActor(run, named, derive_rng(seed, "predict") if sample else None)
