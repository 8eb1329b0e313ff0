"""Judge a candidate by what is on record, and write the judgement down.

Promotion decides whether a candidate is better, at its share of the study's error rate. Validation
runs the winner and the baseline again on fresh seeds; only then does the incumbent change.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.study.agree import protocol
from assay.study.files.base import Phase, Status
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.judge import gate
from assay.study.judge.gate import Verdict
from assay.study.record import kinds, results, states
from assay.study.record.book import Book
from assay.study.record.ledger import Event
from assay.study.record.study import Study


def rival(study: Study, events: Sequence[Event]) -> str:
    """Return whom candidates are held against: the incumbent, or the baseline.

    Raises:
        StudyError: There is neither.
    """
    book = Book.read(events)
    if book.incumbent:
        return book.incumbent
    unsaid = (name for name, kind in book.kind.items() if not kind)
    found = book.baselines() or [n for n in unsaid if study.candidate(n).kind == "baseline"]
    if not found:
        raise StudyError(
            "The study has no baseline.", "Plan and run it first: assay study baseline."
        )
    return found[0]


def noise(study: Study, events: Sequence[Event], agreed: Contract) -> float:
    """Return the spread over seeds, from the baseline's A/A test.

    Raises:
        StudyError: The baseline has too few results in one of the deciding pools.
    """
    name = rival(study, events)
    metric = agreed.metrics.primary
    done = results.runs(events)
    first, second = (results.arm(done, name, phase, metric.name) for phase in kinds.DECIDING)
    for phase, scores in zip(kinds.DECIDING, (first, second), strict=True):
        known = sum(score is not None for score in scores.values())
        if known < kinds.MINIMUM_SEEDS:
            raise StudyError(
                f"'{name}' has {known} seeds with a result in the {phase} phase; the noise floor "
                f"needs {kinds.MINIMUM_SEEDS} in each.",
                "Run the baseline on both pools before any candidate is judged; where its runs "
                "failed, give it up and run another.",
            )
    return gate.noise_floor(first, second, metric.direction)[0]


def judge(study: Study, name: str, phase: Phase, actor: str) -> Verdict:
    """Decide on a candidate in a phase, and record the decision.

    Raises:
        StudyError: There is not enough to decide on; nothing is recorded and no alpha spent.
    """
    if phase not in kinds.DECIDING:
        raise StudyError(
            f"The {phase} phase decides nothing.", f"Ask in one of: {', '.join(kinds.DECIDING)}."
        )
    with study.ledger.transaction() as writer:
        damage = study.problems()
        if damage:
            raise StudyError(
                f"The ledger of {study.task}/{study.name} is damaged, {damage[0]}.",
                "Run `assay study verify`; nothing is decided on it.",
            )
        events = list(writer.events())
        agreed = study.contract()
        _require_completed(events, name)
        _refuse_again(events, name, phase, rival(study, events))
        verdict = weigh(study, events, agreed, name, phase)
        standard = _standard(study, events, agreed)
        facts = {"candidate": name, "phase": phase, **standard, **as_data(verdict)}
        writer.append(kinds.GIVEN, facts, actor=actor)
        to = _next_state(verdict, phase)
        if to is not None:
            states.move(writer, name, to, actor=actor, why=verdict.reasons[0])
    return verdict


def rehearse(
    study: Study, events: Sequence[Event], agreed: Contract, name: str, phase: Phase
) -> Verdict:
    """Return whether a candidate could be judged now, and show nothing of what would come out.

    Whoever saw p before it is recorded could stop where it pleases, at no cost. A verdict that is
    on record already is shown again.

    Raises:
        StudyError: There is not enough to decide on.
    """
    other = rival(study, events)
    if not _fresh(events, name, phase, other):
        last = next(e.data for e in reversed(events) if _is_verdict(e, name, phase))
        alpha = math.nan if last["alpha"] is None else float(last["alpha"])
        needed = last["seeds_needed"]
        return Verdict(last["outcome"], tuple(last["reasons"]), alpha=alpha, seeds_needed=needed)
    _require_completed(events, name)
    found = weigh(study, events, agreed, name, phase)
    if found.outcome == "invalid":
        return found
    reason = (
        f"It can be judged, at alpha {found.alpha:.2g}: all seeds of the {phase} pool are there. "
        "What comes out is shown when it is recorded."
    )
    return Verdict("open", (reason,), alpha=found.alpha)


def _require_completed(events: Sequence[Event], name: str) -> None:
    status = states.current(events).get(name)
    if status != "completed":
        raise StudyError(
            f"Candidate '{name}' is {status or 'unknown'}; only a completed one is judged."
        )


def _is_verdict(event: Event, name: str, phase: Phase) -> bool:
    data = event.data
    return event.kind == kinds.GIVEN and (data["candidate"], data["phase"]) == (name, phase)


def _fresh(events: Sequence[Event], name: str, phase: Phase, other: str) -> bool:
    """Return whether there is evidence that no verdict on this rival has been given on."""
    runs = {e.data["run"]: e.data["candidate"] for e in events if e.kind == kinds.PREPARED}
    fresh = True
    for event in events:
        if _is_verdict(event, name, phase):
            fresh = event.data["rival"] != other
        elif event.kind == kinds.ENDED and runs.get(event.data["run"]) in (name, other):
            fresh = True
    return fresh


def _refuse_again(events: Sequence[Event], name: str, phase: Phase, other: str) -> None:
    """Refuse a second verdict on the same evidence: it would spend the error rate twice.

    Raises:
        StudyError: Nothing was run since the last one, and the rival is the same.
    """
    if not _fresh(events, name, phase, other):
        raise StudyError(
            f"'{name}' was judged in the {phase} phase already, on the same runs.",
            "The verdict is on record: assay study report. New evidence needs further seeds.",
        )


def _standard(study: Study, events: Sequence[Event], agreed: Contract) -> dict[str, object]:
    """Return what a candidate was judged by, so that the verdict can be read without the contract.

    What is in the contract may be agreed on again later; a verdict stands as it was given.
    """
    metric, evaluation = agreed.metrics.primary, agreed.evaluation
    return {
        "rival": rival(study, events),
        "metric": metric.name,
        "direction": metric.direction,
        "minimum_effect": metric.minimum_effect,
        "limits": {
            guard.name: {"direction": guard.direction, "bound": guard.bound, "margin": guard.margin}
            for guard in agreed.metrics.guardrails
        },
        "noise_floor": noise(study, events, agreed),
        "test": evaluation.test,
        "error_rate": evaluation.alpha,
        "decided_before": decisions(events),
        "spent_before": spent(events),
    }


def weigh(
    study: Study, events: Sequence[Event], agreed: Contract, name: str, phase: Phase
) -> Verdict:
    """Return the verdict that the record allows, without writing it down.

    Raises:
        StudyError: There is not enough to decide on; a part of a pool never is.
    """
    other = rival(study, events)
    if other == name:
        raise StudyError(f"'{name}' is what candidates are held against; it is not judged itself.")
    if phase == "validation":
        _require_promoted(events, name, other)
    done = results.runs(events)
    spread = noise(study, events, agreed)
    _require_pool(agreed, done, name, other, phase)
    reason = _invalid(study, events, agreed, done, name, other, phase)
    if reason:
        return Verdict("invalid", (reason,))
    metric = agreed.metrics.primary
    alpha = agreed.evaluation.alpha
    if phase == "promotion":
        alpha = gate.spend(agreed.evaluation, decisions(events), spent(events))
    guards = [
        (
            guard,
            results.arm(done, other, phase, guard.name),
            results.arm(done, name, phase, guard.name),
        )
        for guard in agreed.metrics.guardrails
    ]
    return gate.decide(
        metric,
        results.arm(done, other, phase, metric.name),
        results.arm(done, name, phase, metric.name),
        alpha=alpha,
        evaluation=agreed.evaluation,
        guardrails=guards,
        noise_floor=spread,
    )


def _require_promoted(events: Sequence[Event], name: str, other: str) -> None:
    """Refuse to validate what was not found better first, at its share of the error rate.

    Validation has no share of its own: it only repeats, on fresh seeds, what promotion found
    against the same rival.
    """
    given = [
        e.data for e in events
        if e.kind == kinds.GIVEN and (e.data["candidate"], e.data["phase"]) == (name, "promotion")
    ]  # fmt: skip
    if not given or given[-1]["outcome"] != "accept":
        outcome = f"is {given[-1]['outcome']}" if given else "has not been given"
        raise StudyError(
            f"'{name}' cannot be validated: its verdict in the promotion phase {outcome}.",
            "Only what promotion accepts is run again on fresh seeds.",
        )
    before = given[-1].get("rival", other)
    if before != other:
        raise StudyError(
            f"'{name}' was promoted against '{before}'; the incumbent is now '{other}'.",
            f"Judge it against that one first: assay study verdict {name} --phase promotion",
        )


def _require_pool(
    agreed: Contract, done: Sequence[results.Run], name: str, other: str, phase: Phase
) -> None:
    """Refuse to judge a part of a pool: who may choose when to look finds something in noise.

    A seed that was lost as often as it may be run is not waited for; the audit speaks of it.

    Raises:
        StudyError: An arm has seeds to run.
    """
    pool = getattr(agreed.evaluation.pools, kinds.POOLS[phase])
    for who in (other, name):
        arm = results.arm(done, who, phase, agreed.metrics.primary.name)
        over = {*arm, *results.exhausted(done, who, phase)}
        missing = [seed for seed in pool if seed not in over]
        if missing:
            raise StudyError(
                f"'{who}' has no run of seeds {missing} in the {phase} phase.",
                "A candidate is judged once, on the whole pool in both arms: run them first.",
            )


def _spending(events: Sequence[Event]) -> list[Event]:
    """Return the verdicts that have spent a share of the error rate."""
    given = [e for e in events if e.kind == kinds.GIVEN and e.data["phase"] == "promotion"]
    return [e for e in given if e.data["outcome"] != "invalid"]


def decisions(events: Sequence[Event]) -> int:
    """Return how many decisions have spent a share of the error rate."""
    return len(_spending(events))


def spent(events: Sequence[Event]) -> float:
    """Return what they have spent of it in all, whatever the contract expected at the time."""
    return math.fsum(float(e.data.get("alpha") or 0.0) for e in _spending(events))


def _invalid(
    study: Study,
    events: Sequence[Event],
    agreed: Contract,
    done: Sequence[results.Run],
    name: str,
    other: str,
    phase: Phase,
) -> str | None:
    """Return why the evidence may not be used, or None."""
    mine, theirs = (results.selected(done, who, phase) for who in (name, other))
    protocols = {run.protocol for run in (*mine, *theirs)}
    if len(protocols) > 1:
        return "The arms were measured by different protocols."
    registered = states.registration(events, name).data["hash"]
    if any(run.registration != registered for run in mine):
        return "Some runs were made before the candidate was frozen as it is now."
    if protocol.frozen_hash(study, agreed, name) != registered:
        return "The candidate, or how it is measured, was changed after it was registered."
    pool = set(getattr(agreed.evaluation.pools, kinds.POOLS[phase]))
    strange = sorted({run.seed for run in mine} - pool)
    if strange:
        return f"Seeds {strange} are not of the {phase} pool."
    audits = [
        e for e in events
        if e.kind == kinds.AUDITED and (e.data["candidate"], e.data["phase"]) == (name, phase)
    ]  # fmt: skip
    if not audits:
        raise StudyError(
            f"The {phase} runs of '{name}' have not been audited.",
            f"Audit them first: assay study audit-result {name}.",
        )
    if not audits[-1].data["passed"]:
        checks = audits[-1].data["checks"]
        return f"The audit of the result failed: {findings(checks)}."
    return None


def findings(checks: Iterable[Mapping[str, Any]]) -> str:
    """Return what the failed checks of an audit found; a name alone reads as its opposite."""
    return "; ".join(f"{c['detail']} (check: {c['name']})" for c in checks if not c["passed"])


def _next_state(verdict: Verdict, phase: Phase) -> Status | None:
    if verdict.outcome == "accept":
        return "accepted" if phase == "validation" else None
    if verdict.outcome == "inconclusive":
        return "inconclusive"
    return "rejected"


def as_data(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as plain data for the ledger."""
    plain: dict[str, object] = {
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
        "alpha": None if verdict.alpha != verdict.alpha else verdict.alpha,
        "seeds_needed": verdict.seeds_needed,
        "comparison": _finite(verdict.comparison),
        "guardrails": {name: _finite(seen) for name, seen in verdict.guardrails.items()},
    }
    return plain


def _finite(seen: gate.Comparison | None) -> dict[str, object] | None:
    """Return a comparison as plain data; what is no number becomes None."""
    if seen is None:
        return None
    values = dataclasses.asdict(seen)
    return {
        key: None if isinstance(value, float) and value - value != 0 else value
        for key, value in values.items()
    }
