"""`assay study baseline`, `propose`, `validate` and `give-up`: what is tried. Nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.study.common import Call, acting

if TYPE_CHECKING:
    from assay.study.record.study import Study

Hours = Annotated[
    float | None, typer.Option("--hours", help="Wall-clock hours that one run may use.")
]
GpuHours = Annotated[float, typer.Option("--gpu-hours", help="GPU-hours that one run may use.")]


@acting
def baseline(call: Call, hours: Hours = None, gpu_hours: GpuHours = 0.0) -> None:
    """Plan the baseline: its runs, its A/A test, and what its noise lets you see."""
    from assay.study.files.candidate import Candidate
    from assay.study.files.documents import StudyError
    from assay.study.steps import candidates

    with call.opened() as found:
        agreed = found.contract()
        book = found.book()[0]
        names = book.baselines()
        made = not names
        if made:
            given_up = list(book.kind.values()).count("baseline")
            pools = agreed.evaluation.pools
            runs = len(pools.promotion) + len(pools.validation)
            share = hours
            if share is None:
                share = agreed.budget.wall_clock_hours / agreed.budget.runs
            if share * runs > agreed.budget.wall_clock_hours:
                raise StudyError(
                    f"{runs} runs of the baseline at {share:g} hours exceed the study's "
                    f"{agreed.budget.wall_clock_hours:g}.",
                    "Ask for fewer --hours a run, or agree on a larger budget.",
                )
            plan = Candidate(
                id=f"baseline-{given_up + 1}" if given_up else "baseline",
                task=found.task,
                study=found.name,
                kind="baseline",
                hypothesis="Candidates are compared with it, and it shows the noise.",
                budget=request_of(found, share, gpu_hours),
                expected="The two halves of its seeds do not differ (A/A).",
                rollback="Nothing is changed.",
            )
            candidates.propose(found, plan, call.actor)
            names = [plan.id]
        facts = _plan(found, names[0]) | {"proposed": made}
    call.show(facts, facts.pop("lines") if not call.as_json else [])


def _plan(study: Study, name: str) -> dict[str, Any]:
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
        return facts | {"lines": lines}
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
    return facts | {"lines": lines}


@acting
def propose(
    call: Call,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML: a candidate, or several.")
    ] = None,
    optuna: Annotated[
        int, typer.Option("--optuna", min=0, help="Sample this many inside the approved scope.")
    ] = 0,
    hours: Hours = None,
    gpu_hours: GpuHours = 0.0,
) -> None:
    """Propose candidates, from a file or sampled by Optuna; they are drafts until validated."""
    from assay.study.files.documents import StudyError
    from assay.study.steps import proposers

    if (file is None) == (optuna == 0):
        raise StudyError(
            "Give either a file or --optuna.",
            "For example: assay study propose candidate.yaml, or assay study propose --optuna 4",
        )
    with call.opened() as found:
        if file is not None:
            made = proposers.from_file(found, file, call.actor)
        else:
            request = request_of(found, hours, gpu_hours)
            made = proposers.from_optuna(found, optuna, request, call.actor)
    lines = [f"{name} is a draft: assay study validate {name}" for name in made]
    call.show({"proposed": made}, lines)


def request_of(study: Study, hours: float | None, gpu_hours: float) -> Any:
    """Return what a run may use: the given hours, or those of the baseline."""
    from assay.core.config import parse
    from assay.study.files.candidate import BudgetRequest

    if hours is not None:
        asked = {"wall_clock_hours": hours, "gpu_hours": gpu_hours}
        return parse(BudgetRequest, asked, what="what one run asks for")
    names = study.book()[0].baselines()
    if names:
        return study.candidate(names[0]).budget
    limits = study.contract().budget
    return BudgetRequest(wall_clock_hours=limits.wall_clock_hours / limits.runs)


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
def give_up(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="CANDIDATE")],
    why: Annotated[str, typer.Option("--why", help="The reason, for the record.")],
) -> None:
    """Discard a candidate without a verdict, or revert the incumbent.

    Once a promotion score is known, its share of the error rate is spent all the same.
    """
    from assay.study.steps import candidates

    with call.opened() as found:
        candidates.give_up(found, name, call.actor, why)
        status = found.book()[0].status[name]
    call.show({"candidate": name, "status": status}, f"{name} is {status}.")
