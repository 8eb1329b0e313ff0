"""What to do next, from files alone: the first thing that stands in the way, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.core.errors import AssayError
from assay.study import budget, contract, gate, results, runner, states, verdict
from assay.study.layout import Study
from assay.study.ledger import Event
from assay.study.models import Contract, Phase

STUDY = "assay study"


@dataclass(frozen=True, slots=True)
class Advice:
    """One next step.

    Attributes:
        action: What kind of step: `approve`, `propose`, `validate`, `run`, `audit`, `judge`, ...
        reason: Why this one.
        command: What to type, or "" where a person has to think first.
        safe: Whether an agent may do it without asking; starting a run is not.
    """

    action: str
    reason: str
    command: str = ""
    safe: bool = True


def next_step(study: Study) -> Advice:
    """Return the next safe action and the reason for it."""
    damage = study.ledger.verify(study.anchors())
    if damage:
        return Advice("verify", f"the ledger is damaged, {damage[0]}", f"{STUDY} verify", False)
    if (study.path / runner.STOP).exists():
        return Advice("wait", "the kill switch is on; a person has to take it off", "", False)
    try:
        agreed = study.contract()
    except AssayError as error:
        return Advice("contract", f"the contract is not ready: {error.message}")
    unapproved = contract.missing(study, agreed)
    if unapproved:
        item, reason = next(iter(unapproved.items()))
        command = f"{STUDY} contract approve {item} --by NAME"
        return Advice(
            "approve", f"{len(unapproved)} approvals are missing: {reason}", command, False
        )
    events = list(study.ledger.events())
    used = budget.usage(events)
    running = [run for run in used.open]
    if len(running) >= agreed.budget.parallel:
        return Advice("monitor", f"{running[0]} is under way", f"{STUDY} monitor {running[0]}")
    return _open_candidate(study, events, agreed, used) or Advice(
        "propose",
        "everything that was proposed is decided",
        f"{STUDY} propose FILE",
    )


def _open_candidate(
    study: Study, events: Sequence[Event], agreed: Contract, used: budget.Usage
) -> Advice | None:
    """Return the step that brings the oldest undecided candidate on."""
    current = states.current(events)
    if used.runs >= agreed.budget.runs and any(s == "validated" for s in current.values()):
        return Advice("report", "the budget of runs is used up", f"{STUDY} report")
    done = results.runs(events)
    baselines = [n for n in current if study.candidate(n).kind == "baseline"]
    if not baselines:
        reason = "there is no baseline, and nothing can be held against nothing"
        return Advice("baseline", reason, f"{STUDY} baseline")
    order = [*baselines, *(n for n in current if n not in baselines)]
    for name in order:
        status = current[name]
        if status == "draft":
            return Advice("validate", f"{name} is a draft", f"{STUDY} validate {name}")
        if status == "debug":
            return Advice("debug", f"the last run of {name} failed; look at its log", "", False)
        if status in ("rejected", "reverted"):
            continue
        phases: Sequence[Phase] = runner.DECIDING
        if status == "accepted" and name not in baselines:
            continue
        for phase in phases:
            step = _phase(events, agreed, done, name, phase, name in baselines)
            if step is not None:
                return step
    return None


def _phase(
    events: Sequence[Event],
    agreed: Contract,
    done: Sequence[results.Run],
    name: str,
    phase: Phase,
    baseline: bool,
) -> Advice | None:
    """Return what a candidate lacks in a phase, or None if it is through."""
    pool = getattr(agreed.evaluation.pools, runner.POOLS[phase])
    have = {run.seed for run in done if (run.candidate, run.phase) == (name, phase)}
    left = [seed for seed in pool if seed not in have]
    if left:
        command = f"{STUDY} run {name} --phase {phase} --seed {left[0]}"
        reason = f"{name} has {len(have)} of {len(pool)} seeds in the {phase} phase"
        return Advice("run", reason, command, False)
    if baseline:
        return None
    audited = any(
        e.kind == verdict.AUDITED and (e.data["candidate"], e.data["phase"]) == (name, phase)
        for e in events
    )
    if not audited:
        reason = f"the {phase} runs of {name} are complete and not audited"
        return Advice("audit", reason, f"{STUDY} audit-result {name} --phase {phase}")
    judged = [
        e.data["outcome"]
        for e in events
        if e.kind == verdict.GIVEN and (e.data["candidate"], e.data["phase"]) == (name, phase)
    ]
    if not judged:
        reason = f"the {phase} runs of {name} are audited and not judged"
        return Advice("judge", reason, f"{STUDY} verdict {name} --phase {phase}")
    if judged[-1] == "inconclusive":
        reason = (
            f"{name} is inconclusive after {len(have)} seeds, and its pool of {len(pool)} is used "
            f"up; {gate.MINIMUM_SEEDS} more need a larger pool, approved"
        )
        return Advice("extend", reason, "", False)
    return None
