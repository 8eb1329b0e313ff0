"""`assay study baseline`, `propose`, `review`, `validate`, `discard`: what is tried. No runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output
from assay.cli.study.common import Call, acting, assignments, on_study

if TYPE_CHECKING:
    from assay.study.files.candidate import BudgetRequest
    from assay.study.record.study import Study

Hours = Annotated[
    float | None, typer.Option("--hours", help="Wall-clock hours that one run may use.")
]
GpuHours = Annotated[float, typer.Option("--gpu-hours", help="GPU-hours that one run may use.")]


@acting
def baseline(call: Call, hours: Hours = None, gpu_hours: GpuHours = 0.0) -> None:
    """Plan the baseline: its runs, its A/A test, and what its noise lets you see."""
    from assay.study.steps import candidates

    with call.opened() as found:
        names = found.book()[0].baselines()
        made = not names
        if made:
            request = request_of(found, hours, gpu_hours)
            names = [candidates.plan_baseline(found, request, call.actor)]
        facts, lines = _plan(found, names[0])
    call.show(facts | {"proposed": made}, lines)


def _plan(study: Study, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return what the baseline still needs, or what it shows once it is complete."""
    from assay.study.agree import spending
    from assay.study.judge import gate, power
    from assay.study.record.kinds import DECIDING, MINIMUM_SEEDS

    agreed = study.contract()
    history = study.history()
    metric = agreed.metrics.primary
    arms = [history.arm(name, phase, metric.name) for phase in DECIDING]
    pools = agreed.evaluation.pools
    seeds = dict(zip(DECIDING, (pools.promotion, pools.validation), strict=True))
    request = study.candidate(name).budget
    facts: dict[str, Any] = {
        "baseline": name,
        "seeds": seeds,
        "done": {phase: len(arm) for phase, arm in zip(DECIDING, arms, strict=True)},
        "hours": request.wall_clock_hours * sum(map(len, seeds.values())),
    }
    lines = [
        f"{name}: {len(arms[0])} of {len(seeds['promotion'])} promotion seeds and {len(arms[1])} "
        f"of {len(seeds['validation'])} validation seeds are done; at most {facts['hours']:.3g} h.",
        power.shown(agreed.evaluation),
    ]
    if min(map(len, arms)) < MINIMUM_SEEDS:
        lines.append("The noise floor and the A/A test come from them: assay study next")
        return facts, lines
    spread, same = gate.noise_floor(arms[0], arms[1], metric.direction)
    alpha = spending.spend(agreed.evaluation, 0)  # every candidate gets the same share
    needed = power.seeds_for(agreed.evaluation, metric.minimum_effect, spread)
    p = 2 * min(same.p_better, same.p_worse, 0.5)
    facts |= {"noise": spread, "aa_p": p, "alpha": alpha, "seeds_needed": needed}
    noise = f"{spread:.4g} {metric.unit}".strip()
    lines.append(
        f"Noise over seeds: {noise}. A/A test: the halves differ by "
        f"{same.effect:+.4g}, p = {p:.2g}" + (" (odd; look at the runs)." if p < 0.05 else ".")
    )
    wanted = f"{needed} seeds per arm" if needed else "more seeds than is sensible"
    lines.append(
        f"With this noise you need {wanted} to see the minimum effect of "
        f"{metric.minimum_effect:g} with a chance of {agreed.evaluation.power:.0%} "
        f"at alpha {alpha:.2g}."
    )
    return facts, lines


@acting
def propose(
    call: Call,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML: a candidate, or several.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A changed setting; may be repeated, each key once."
        ),
    ] = None,
    patch: Annotated[
        Path | None, typer.Option("--patch", help="A unified diff of the repository's files.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What to call the candidate of --set and --patch.")
    ] = None,
    hypothesis: Annotated[
        str, typer.Option("--hypothesis", help="Why the change should be better.")
    ] = "",
    optuna: Annotated[
        int, typer.Option("--optuna", min=0, help="Sample this many inside the approved scope.")
    ] = 0,
    hours: Hours = None,
    gpu_hours: GpuHours = 0.0,
) -> None:
    """Propose candidates: a change with --set or --patch, a file, or sampled by Optuna."""
    from assay.study.files.documents import StudyError
    from assay.study.steps import proposers

    change = bool(settings) or patch is not None
    if sum((file is not None, change, optuna > 0)) != 1:
        raise StudyError(
            "Give a change (--set, --patch), a file, or --optuna, and only one of them.",
            "For example: assay study propose --set lr=0.001 --hypothesis 'It learns faster.'",
        )
    if not change and (name or hypothesis):
        raise StudyError(
            "--name and --hypothesis describe the change of --set and --patch.",
            "Leave them out; a file names its candidates itself.",
        )
    with call.opened() as found:
        if file is not None:
            made = proposers.from_file(found, file, call.actor)
        elif optuna:
            request = request_of(found, hours, gpu_hours)
            made = proposers.from_optuna(found, optuna, request, call.actor)
        else:
            proposal = proposers.Proposal(
                assignments(settings or []), proposers.read_patch(patch), name, hypothesis
            )
            request = request_of(found, hours, gpu_hours)
            made = [proposers.from_change(found, proposal, request, call.actor)]
    lines = [f"{name} is a draft; the loop validates and runs it." for name in made]
    call.show({"proposed": made}, [*lines, "What comes next: assay study next"])


def request_of(study: Study, hours: float | None, gpu_hours: float) -> BudgetRequest:
    """Return what a run may use: the given hours, or the usual ones."""
    from assay.core.config import parse
    from assay.study.files.candidate import BudgetRequest
    from assay.study.steps import candidates

    if hours is not None:
        asked = {"wall_clock_hours": hours, "gpu_hours": gpu_hours}
        return parse(BudgetRequest, asked, what="what one run asks for")
    return candidates.usual_request(study)


@on_study
def review(call: Call, name: Annotated[str, typer.Argument(metavar="CANDIDATE")]) -> None:
    """Review a draft before it is frozen: scope, scale, signal, prediction; exit 1 if it must stop.

    Nothing is written or run. The scale is that of every number that changes, also in a patch; the
    signal is each reward component's share, as far as earlier runs tell it.
    """
    from assay.study.steps.review import review

    seen = review(call.read(), name)
    facts = {"candidate": name, "checks": [dataclasses.asdict(c) for c in seen]}
    rows = [(c.name, c.level, c.detail) for c in seen]
    call.show(facts, [output.table(("check", "level", "seen"), rows, title=name)])
    if any(c.level == "stop" for c in seen):
        raise typer.Exit(1)


@acting
def validate(
    call: Call,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CANDIDATE...]", help="By default all drafts.")
    ] = None,
) -> None:
    """Check drafts against the contract and freeze them; later edits void their evidence."""
    from assay.study.steps import candidates

    with call.opened() as found:
        drafts = [n for n, status in found.book()[0].status.items() if status == "draft"]
        frozen = {name: candidates.validate(found, name, call.actor) for name in names or drafts}
    lines = [f"{name} is frozen: {value[:12]}" for name, value in frozen.items()]
    call.show(frozen, lines or ["There are no drafts."])


@acting
def discard(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    why: Annotated[str, typer.Option("--why", "--reason", help="The reason, for the record.")],
) -> None:
    """Discard a candidate without a verdict, or revert the incumbent.

    Once a promotion score is known, its share of the error rate is spent all the same.
    """
    from assay.study.steps import candidates

    with call.opened() as found:
        candidates.discard(found, name, call.actor, why)
        history = found.history()
    facts = {"candidate": name, "status": history.status[name]}
    call.show(facts, f"{name} is {history.shown_state(name)}.")
