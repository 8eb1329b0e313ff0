"""`assay runs`: list, show and delete runs. Nothing here needs torch."""

from __future__ import annotations

from typing import Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunName, RunOrGroup, RunsRoot
from assay.core.errors import RunError
from assay.core.paths import runs_root
from assay.evaluation.formatting import number

_FIGURES = ("mean", "iqm", "std")  # of an evaluation

app = typer.Typer(
    help="List runs; `show` and `delete` one of them.",
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.callback()
def list_runs(ctx: typer.Context, root: RunsRoot = None, as_json: AsJson = False) -> None:
    """List runs; `show` and `delete` one of them."""
    if ctx.invoked_subcommand is not None:
        return
    from assay.runs.directory import find_runs
    from assay.runs.summary import summary

    place = runs_root(root)
    if root is not None and not place.is_dir():
        raise RunError(f"There is no directory '{place}'.", "Give the directory that holds runs.")
    summaries = [summary(run) for run in find_runs(place)]
    if as_json:
        output.print_json(summaries)
        return
    if not summaries:
        output.say(f"No runs in '{place}'. Start one: assay train ppo CartPole-v1")
        return
    columns = (
        "run", "algorithm", "env", "seed>", "status", "env_steps>", "evaluation>", "created",
    )  # fmt: skip
    output.show(output.table(columns, [_row(item) for item in summaries]))


@app.command("show")
def show(run: RunName, root: RunsRoot = None, as_json: AsJson = False) -> None:
    """Show a run: its settings, evaluations, checkpoints and where it came from."""
    from assay.runs.checkpoint import list_checkpoints
    from assay.runs.directory import RunDirectory
    from assay.runs.summary import summary

    directory = RunDirectory.open(locate(run, root))
    facts = summary(directory)
    facts |= {
        "config": directory.config,
        "evaluations": [_short(content, facts["unit"]) for content in directory.evals()],
        "checkpoints": [str(path) for path in list_checkpoints(directory.checkpoints_path)],
        "provenance": directory.provenance,
    }
    if as_json:
        output.print_json(facts)
    else:
        _show(facts)


@app.command("delete")
def delete(
    run: RunOrGroup,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    root: RunsRoot = None,
) -> None:
    """Delete a run, or all runs of a group, permanently."""
    from assay.runs.directory import group_runs

    path = locate(run, root)
    runs = group_runs(path)
    active = [run for run in runs if run.effective_status == "running"]
    if active:
        raise RunError(
            f"'{active[0].path}' is being trained, so nothing was deleted.", "Stop it first."
        )
    if not yes:
        what = f"the run '{path}'" if len(runs) == 1 else f"{len(runs)} runs in '{path}'"
        typer.confirm(f"Delete {what} permanently?", abort=True)
    for directory in runs:
        directory.delete()
    output.say(f"Deleted {len(runs)} run{'s' if len(runs) > 1 else ''}.")
    if path.exists():
        output.note(f"Other files in '{path}' were kept.")


def _row(item: dict[str, Any]) -> tuple[Any, ...]:
    unit, total = item["unit"], item["total"]
    unfinished = item["status"] != "done" and total
    trained = f"{item[unit]:,}" + (f" of {total:,}" if unfinished else "")
    if unit != "env_steps":
        trained += f" {unit}"
    return (
        item["name"],
        item["algorithm"],
        item["env"],
        item["seed"],
        item["status"],
        trained,
        number(item["eval_mean"]),
        _local(item["created"]),
    )


def _show(facts: dict[str, Any]) -> None:
    import yaml

    git = facts["provenance"].get("git")
    lines = {
        **{key: facts[key] for key in ("path", "algorithm", "env", "seed", "status", "error")},
        **{key: _local(facts[key]) for key in ("created", "finished")},
        **{key: f"{facts[key]:,}" for key in ("env_steps", "updates", "episodes")},
        "checkpoint": facts["checkpoint"],
        "git": git.get("sha") if isinstance(git, dict) else None,
    }
    for key, value in lines.items():
        if value is not None:
            output.say(f"{key + ':':<12}{value}")
    if facts["evaluations"]:
        unit = facts["unit"]
        rows = [
            (
                f"{evaluation[unit]:,}",
                evaluation["label"],
                evaluation["episodes"],
                *(number(evaluation[key]) for key in _FIGURES),
            )
            for evaluation in facts["evaluations"]
        ]
        columns = (f"{unit}>", "evaluation", "episodes>", "mean>", "IQM>", "std>")
        output.show(output.table(columns, rows))
    output.say("config:")
    text = yaml.safe_dump(facts["config"], sort_keys=False, allow_unicode=True)
    output.say("".join(f"  {line}\n" for line in text.splitlines()).rstrip())


def _short(content: dict[str, Any], unit: str) -> dict[str, Any]:
    """Return the figures of a stored evaluation without its episodes."""
    from assay.runs.directory import evaluated_at

    return {
        unit: evaluated_at(content),
        "label": content["label"],
        "episodes": len(content.get("episodes", [])),
        **{key: content.get(key) for key in _FIGURES},
    }


def _local(text: str | None) -> str | None:
    """Format a stored time in the user's time zone."""
    from datetime import datetime

    if text is None:
        return None
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
