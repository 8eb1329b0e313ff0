"""`assay explain`: what an agent looks at, remembers and expects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunName, RunsRoot
from assay.core.errors import RunError
from assay.core.wording import counted

if TYPE_CHECKING:
    from assay.explanation.report import Explanation

EXIT_FAILED = 1
_ROWS = 12


def explain(
    run: RunName,
    of: Literal["action", "value"] = typer.Option(
        "action", "--of", help="Explain the action, or the value that is expected."
    ),
    episodes: int = typer.Option(10, "--episodes", help="How many to play."),
    states: int = typer.Option(64, "--states", help="States that the maps are made of."),
    seed: int = typer.Option(0, "--seed", help="Fixes episodes and draws."),
    baseline: Literal["mean", "zero"] = typer.Option(
        "mean", "--baseline", help="What a number is compared with: its mean in play, or 0."
    ),
    max_steps: int = typer.Option(1000, "--max-steps", help="Where to cut an episode off."),
    names: str = typer.Option(
        None, "--names", metavar="NAME,...", help="Names of the numbers of an observation."
    ),
    html: Path = typer.Option(
        None, "--out", "--html", help="The page; by default RUN/explanation.html."
    ),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Say what an agent looks at, what it remembers, and what it expects.

    Plays episodes, and explains the actions by gradients, SmoothGrad, integrated gradients and
    occlusion, and images by Grad-CAM. A memory is judged by what is lost without it, values by the
    returns that followed. The most telling states are drawn on one HTML page.

    The maps are checked: integrated gradients must add up to within 1 %, and random weights must
    change the map. The exit code is 0 if every check passed, 1 if one failed, and 2 if the run
    cannot be explained, as one without gradients.
    """
    from assay.explanation.page import page
    from assay.explanation.report import explain as look
    from assay.runs.files import replacing

    place = locate(run, root)
    file = html or place / "explanation.html"
    if file.parent.is_dir() and not os.access(file.parent, os.W_OK):
        raise RunError(
            f"The page '{file}' cannot be written: '{file.parent}' is read-only.",
            "Give another place for it: --out FILE.",
        )
    given = tuple(name.strip() for name in names.split(",")) if names else ()
    found = look(
        place, of=of, episodes=episodes, states=states, seed=seed, baseline=baseline,
        max_steps=max_steps, names=given,
    )  # fmt: skip
    with replacing(file) as draft:
        draft.write_text(page(found))
    if as_json:
        output.print_json({**found.to_dict(), "page": file})
    else:
        _show(found)
        output.say(f"Page: {file}")
    if not found.believable:
        raise typer.Exit(EXIT_FAILED)


def _show(found: Explanation) -> None:
    from assay.explanation.look import METHODS

    output.say(
        f"{found.run} ({found.algorithm}, {found.env}): the {found.of} in {found.states} states of "
        f"{counted(len(found.returns), 'episode')}, mean return {found.returns.mean():.4g}"
    )
    rows = [
        (one.name, *("-" if (x := one.share[name]) is None else f"{x:.1%}" for name in METHODS))
        for one in found.features
    ]
    columns = ("looks at", *(f"{name}>" for name in METHODS))
    output.show(output.table(columns, rows[:_ROWS]))
    if len(rows) > _ROWS:
        output.say(f"and {len(rows) - _ROWS} more (--json has all)")
    checks = [(one.name, "ok" if one.passed else "FAILED", one.detail) for one in found.checks]
    output.show(output.table(("check", "", "detail"), checks))
    if isinstance(found.values, str):
        output.say(f"Values: none ({found.values}).")
    else:
        for line in found.values.describe():
            output.say(f"Values: {line}")
    if found.memory is not None:
        for line in found.memory.describe():
            output.say(f"Memory: {line}")
    moments = [
        (one.reason, f"{one.episode}:{one.time}", one.action, _number(one.value), _parts(one.parts))
        for one in found.moments
    ]
    heads = ("telling states", "episode:step", "action", "expected>", "because of")
    output.show(output.table(heads, moments))
    for note in found.notes:
        output.say(f"Note: {note}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _parts(parts: list[tuple[str, float, float]]) -> str:
    return ", ".join(f"{name}={value:.3g} ({part:+.2g})" for name, value, part in parts[:3]) or "-"
