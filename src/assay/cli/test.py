"""`assay test`: what is left of a run where the world differs from its training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunOrGroup, RunsRoot
from assay.core.errors import ConfigError
from assay.core.wording import counted

if TYPE_CHECKING:
    from assay.robustness.measure import Verdict

EXIT_NOT_SHOWN = 1

app = typer.Typer(
    help="Test what is left of a run in other worlds, and under attack.", no_args_is_help=True
)

Episodes = Annotated[int, typer.Option("--episodes", min=2, help="Episodes per cell.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Fixes the episodes.")]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        help="The largest loss that is accepted, as a share; asks for a verdict by exit code.",
    ),
]
Floor = Annotated[
    float | None,
    typer.Option(
        "--floor", help="The return that counts as nothing. [default: that of random actions]"
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="A directory for report.md, report.json and pictures.")
]
Pictures = Annotated[str, typer.Option("--pictures", help="Their format: svg or png.")]


@app.command("ood")
def ood(
    run: RunOrGroup,
    given: list[str] = typer.Argument(
        None, metavar="[AXIS=VALUES]...", help="Shifts, such as obs_noise=[0.1,0.2]."
    ),
    shifts: str = typer.Option(
        None,
        "--shifts",
        help="A YAML file, or a preset: default, sensors, actuators, starts, dynamics.",
    ),
    episodes: Episodes = 50,
    seed: Seed = 0,
    tolerance: Tolerance = None,
    floor: Floor = None,
    out: Out = None,
    pictures: Pictures = "svg",
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Play a run in worlds that differ from its training, and say what it loses.

    Every shift is played in the same episodes as the undisturbed environment. A loss is a share of
    what the run is worth: its undisturbed return less that of random actions. The seeds of a group
    are measurements of one setting.

    With --tolerance the exit code is 0 if no shift costs more, as far as the intervals can tell,
    and 1 if one does or that is not shown. Bad input is 2.
    """
    from assay.core.config import parse_assignments, read_yaml
    from assay.robustness.measure import TOLERANCE
    from assay.robustness.ood import measure_shifts, parameter_names
    from assay.robustness.report import check_place, write_report
    from assay.robustness.shifts import DEFAULT, preset, read_shifts
    from assay.runs.directory import group_runs

    check_place(out, pictures)
    grid: dict[str, Any] = parse_assignments(given or [])
    if shifts is not None or not grid:
        is_file = shifts is not None and Path(shifts).suffix in (".yaml", ".yml")
        grid = (read_yaml(Path(shifts)) if is_file else preset(shifts or DEFAULT)) | grid
    paths = [one.path for one in group_runs(locate(run, root))]
    cells = read_shifts(grid, partial(parameter_names, paths[0]))
    verdict = measure_shifts(
        paths,
        cells,
        episodes=episodes,
        seed=seed,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        floor=floor,
        progress=_progress(as_json),
    )
    found = verdict.to_json()
    files = []
    if out is not None:
        title = f"{run} in other worlds"
        files = write_report(out, title, verdict, found=found, picture=pictures)
    _finish(verdict, found, files, tolerance, as_json)


@app.command("attack")
def attack(
    run: RunOrGroup,
    attacks: str = typer.Option(
        None,
        "--attacks",
        help="Names with commas: random, fgsm, pgd, timed, action, adversary, reward.",
    ),
    budgets: str = typer.Option(
        None,
        "--budgets",
        help="How far a number is moved, in standard deviations. [default: 0.1,0.3,1,2]",
    ),
    shares: str = typer.Option(
        None, "--shares", help="Shares of moments, actions and rewards. [default: 0.1,0.25,0.5]"
    ),
    steps: int = typer.Option(10, "--steps", min=2, help="Steps of PGD."),
    adversary_steps: int = typer.Option(
        100_000, "--adversary-steps", min=1, help="Environment steps an adversary learns for."
    ),
    episodes: Episodes = 50,
    seed: Seed = 0,
    tolerance: Tolerance = None,
    floor: Floor = None,
    out: Out = None,
    pictures: Pictures = "svg",
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Attack a run, and say what that costs against the budget of the attack.

    Observations are moved by random noise (the control), by the gradient of the policy (FGSM, PGD)
    or by an adversary that is trained; at all times, or where most is at stake; and actions are
    overruled. `reward` trains the run again, with the wrong sign on a share of its rewards. Where a
    bound exists, it is certified which choices no attack can change.

    With --tolerance the exit code is 0 if no attack costs more, as far as the intervals can tell,
    and 1 if one does or that is not shown. Bad input is 2.
    """
    from assay.robustness.attack import (
        BUDGETS,
        DEFAULT,
        PANELS,
        SHARES,
        Plan,
        measure_attacks,
        parts,
        sections,
    )
    from assay.robustness.measure import TOLERANCE
    from assay.robustness.report import check_place, write_report
    from assay.runs.directory import group_runs

    check_place(out, pictures)
    plan = Plan(
        tuple(name.strip() for name in attacks.split(",")) if attacks is not None else DEFAULT,
        _numbers("--budgets", budgets, BUDGETS),
        _numbers("--shares", shares, SHARES),
        steps,
        adversary_steps,
    )
    result = measure_attacks(
        [one.path for one in group_runs(locate(run, root))],
        plan,
        episodes=episodes,
        seed=seed,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        floor=floor,
        place=out,
        progress=_progress(as_json),
    )
    verdict, found = result.verdict, result.to_json()
    files = []
    if out is not None:
        drawn = {
            title: [name for name in names if name in verdict.axes]
            for title, names in PANELS.items()
        }
        files = write_report(
            out, f"{run} under attack", verdict, found=found, sections=sections(result),
            picture=pictures, panels={title: names for title, names in drawn.items() if names},
        )  # fmt: skip
    if not as_json:
        for part in parts(result):
            output.say(part.text)
            if part.rows:
                output.show(output.table(part.head, part.rows))
    _finish(verdict, found, files, tolerance, as_json)


def _numbers(option: str, text: str | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if text is None:
        return default
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{option} {text}: expected numbers with commas.", f"For example {option} 0.1,0.2"
        ) from None


def _progress(as_json: bool) -> Any:
    if as_json:
        return None

    def tell(done: int, total: int) -> None:
        if done == total or done % max(1, total // 10) == 0:
            output.note(f"{done} of {total} cells")

    return tell


def _finish(
    verdict: Verdict,
    found: dict[str, Any],
    files: list[Path],
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Print a verdict, and exit by it where it was asked for."""
    from assay.evaluation.formatting import number
    from assay.robustness.report import HEAD, row

    if as_json:
        output.print_json(found | {"files": files})
    else:
        output.say(
            f"Undisturbed {number(verdict.nominal)}, random actions {number(verdict.floor)}; "
            f"{counted(verdict.episodes, 'episode')} per cell"
        )
        output.show(output.table(HEAD, [row(cell) for cell in verdict.cells]))
        output.say(verdict.sentence())
        for file in files:
            output.say(f"Written: {file}")
    if tolerance is not None and verdict.outcome != "holds":
        raise typer.Exit(EXIT_NOT_SHOWN)
