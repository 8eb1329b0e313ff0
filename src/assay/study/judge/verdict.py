"""Judge a candidate by what is on record, and write the judgement down.

Promotion decides whether a candidate is better, at its share of the study's error rate. Validation
runs the winner and the baseline again on fresh seeds; only then does the incumbent change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from assay.study.agree import protocol
from assay.study.files.base import Phase, Status
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.judge import effect, gate
from assay.study.judge.gate import Verdict
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import History
from assay.study.record.ledger import Event
from assay.study.record.study import Study


def rival(study: Study, book: Book) -> str:
    """Return whom candidates are held against: the incumbent, or the baseline."""
    if book.incumbent:
        return book.incumbent
    unsaid = (name for name, kind in book.kind.items() if not kind)
    found = book.baselines() or [n for n in unsaid if study.candidate(n).kind == "baseline"]
    if not found:
        raise StudyError(
            "The study has no baseline.", "Plan and run it first: assay study baseline."
        )
    return found[0]


def noise(study: Study, history: History, agreed: Contract) -> float:
    """Return the spread over seeds, from the baseline's A/A test.

    Raises:
        StudyError: The baseline has too few results in one of the deciding pools.
    """
    name = rival(study, history)
    metric = agreed.metrics.primary
    first, second = (history.arm(name, phase, metric.name) for phase in kinds.DECIDING)
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
    with study.transaction() as transaction:
        damage = study.problems()
        if damage:
            raise StudyError(
                f"The ledger of {study.task}/{study.name} is damaged, {damage[0]}.",
                "Run `assay study verify`; nothing is decided on it.",
            )
        history = transaction.history
        agreed = study.contract()
        _require_completed(history, name)
        if not _fresh(history, name, phase, rival(study, history)):
            # A second verdict on the same evidence would spend the error rate twice.
            raise StudyError(
                f"'{name}' was judged in the {phase} phase already, on the same runs.",
                "The verdict is on record: assay study report. New evidence needs further seeds.",
            )
        verdict = weigh(study, history, agreed, name, phase)
        standard = _standard(study, history, agreed)
        facts = {"candidate": name, "phase": phase, **standard, **as_data(verdict)}
        transaction.append(kinds.GIVEN, facts, actor=actor)
        to = _next_state(verdict, phase)
        if to is not None:
            transaction.move(name, to, actor=actor, why=verdict.reasons[0])
    return verdict


def rehearse(study: Study, history: History, agreed: Contract, name: str, phase: Phase) -> Verdict:
    """Return whether a candidate could be judged now, and show nothing of what would come out.

    Whoever saw p before it is recorded could stop where it pleases, at no cost. A verdict that is
    on record already is shown again.
    """
    if not _fresh(history, name, phase, rival(study, history)):
        given = _last_verdict(history, name, phase)
        assert given is not None
        last = given.data
        alpha = math.nan if last["alpha"] is None else float(last["alpha"])
        needed = last["seeds_needed"]
        return Verdict(last["outcome"], tuple(last["reasons"]), alpha=alpha, seeds_needed=needed)
    _require_completed(history, name)
    found = weigh(study, history, agreed, name, phase)
    if found.outcome in ("invalid", "no effect"):
        return found
    reason = (
        f"It can be judged, at alpha {found.alpha:.2g}: all seeds of the {phase} pool are there. "
        "What comes out is shown when it is recorded."
    )
    return Verdict("open", (reason,), alpha=found.alpha)


def _require_completed(book: Book, name: str) -> None:
    status = book.status.get(name)
    if status != "completed":
        raise StudyError(
            f"Candidate '{name}' is {status or 'unknown'}; only a completed one is judged."
        )


def _last_verdict(history: History, name: str, phase: Phase) -> Event | None:
    given = [event for event in history.verdicts if event.data["candidate"] == name]
    return next((event for event in reversed(given) if event.data["phase"] == phase), None)


def _fresh(history: History, name: str, phase: Phase, other: str) -> bool:
    """Return whether there is evidence that no verdict on this rival has been given on."""
    last = _last_verdict(history, name, phase)
    if last is None or last.data["rival"] != other:
        return True
    runs = [*history.over(name), *history.over(other)]
    return any(run.ended is not None and run.ended.seq > last.seq for run in runs)


def _standard(study: Study, history: History, agreed: Contract) -> dict[str, object]:
    """Return what a candidate was judged by, so that the verdict can be read without the contract.

    What is in the contract may be agreed on again later; a verdict stands as it was given.
    """
    metric, evaluation = agreed.metrics.primary, agreed.evaluation
    return {
        "rival": rival(study, history),
        "metric": metric.name,
        "direction": metric.direction,
        "minimum_effect": metric.minimum_effect,
        "limits": {
            guard.name: {"direction": guard.direction, "bound": guard.bound, "margin": guard.margin}
            for guard in agreed.metrics.guardrails
        },
        "noise_floor": noise(study, history, agreed),
        "test": evaluation.test,
        "error_rate": evaluation.alpha,
        "decided_before": decisions(history),
        "spent_before": spent(history),
    }


def weigh(study: Study, history: History, agreed: Contract, name: str, phase: Phase) -> Verdict:
    """Return the verdict that the record allows, without writing it down.

    Raises:
        StudyError: There is not enough to decide on; a part of a pool never is.
    """
    other = rival(study, history)
    if other == name:
        raise StudyError(f"'{name}' is what candidates are held against; it is not judged itself.")
    if phase == "validation":
        _require_promoted(history, name, other)
    spread = noise(study, history, agreed)
    _require_pool(agreed, history, name, other, phase)
    reason = _invalid(study, history, agreed, name, other, phase)
    if reason:
        return Verdict("invalid", (reason,))
    reason = effect.no_effect(study, history, agreed, name, other, phase)
    if reason:
        return Verdict("no effect", (reason,))
    metric, arms = agreed.metrics.primary, (other, name)
    alpha = agreed.evaluation.alpha
    if phase == "promotion":
        alpha = gate.spend(agreed.evaluation, decisions(history), spent(history))
    return gate.decide(
        metric,
        *history.arms(arms, phase, metric.name),
        alpha=alpha,
        evaluation=agreed.evaluation,
        guardrails=[
            (guard, *history.arms(arms, phase, guard.name)) for guard in agreed.metrics.guardrails
        ],
        noise_floor=spread,
    )


def _require_promoted(history: History, name: str, other: str) -> None:
    """Refuse to validate what was not found better first, at its share of the error rate.

    Validation has no share of its own: it only repeats, on fresh seeds, what promotion found
    against the same rival.
    """
    given = _last_verdict(history, name, "promotion")
    if given is None or given.data["outcome"] != "accept":
        outcome = f"is {given.data['outcome']}" if given else "has not been given"
        raise StudyError(
            f"'{name}' cannot be validated: its verdict in the promotion phase {outcome}.",
            "Only what promotion accepts is run again on fresh seeds.",
        )
    before = given.data.get("rival", other)
    if before != other:
        raise StudyError(
            f"'{name}' was promoted against '{before}'; the incumbent is now '{other}'.",
            f"Judge it against that one first: assay study verdict {name} --phase promotion",
        )


def _require_pool(agreed: Contract, history: History, name: str, other: str, phase: Phase) -> None:
    """Refuse to judge a part of a pool: who may choose when to look finds something in noise.

    A seed that was lost as often as it may be run is not waited for; the audit speaks of it.
    """
    for who in (other, name):
        arm = history.arm(who, phase, agreed.metrics.primary.name)
        over = {*arm, *history.exhausted(who, phase)}
        missing = [seed for seed in agreed.evaluation.pools.of(phase) if seed not in over]
        if missing:
            raise StudyError(
                f"'{who}' has no run of seeds {missing} in the {phase} phase.",
                "A candidate is judged once, on the whole pool in both arms: run them first.",
            )


def _spending(history: History) -> list[Event]:
    """Return the verdicts that have spent a share of the error rate."""
    given = [e for e in history.verdicts if e.data["phase"] == "promotion"]
    return [e for e in given if e.data["outcome"] not in ("invalid", "no effect")]


def decisions(history: History) -> int:
    """Return how many decisions have spent a share of the error rate."""
    return len(_spending(history))


def spent(history: History) -> float:
    """Return what they have spent of it in all, whatever the contract expected at the time."""
    return math.fsum(float(e.data.get("alpha") or 0.0) for e in _spending(history))


def _invalid(
    study: Study, history: History, agreed: Contract, name: str, other: str, phase: Phase
) -> str | None:
    """Return why the evidence may not be used, or None."""
    mine, theirs = (history.selected(who, phase) for who in (name, other))
    if len({run.protocol for run in (*mine, *theirs)}) > 1:
        return "The arms were measured by different protocols."
    registered = history.registration(name).data["hash"]
    if any(run.registration != registered for run in mine):
        return "Some runs were made before the candidate was frozen as it is now."
    if protocol.frozen_hash(study, agreed, name) != registered:
        return "The candidate, or how it is measured, was changed after it was registered."
    strange = sorted({run.seed for run in mine} - set(agreed.evaluation.pools.of(phase)))
    if strange:
        return f"Seeds {strange} are not of the {phase} pool."
    audit = history.audits.get((name, phase))
    if audit is None:
        raise StudyError(
            f"The {phase} runs of '{name}' have not been audited.",
            f"Audit them first: assay study audit-result {name}.",
        )
    if not audit.data["passed"]:
        return f"The audit of the result failed: {findings(audit.data['checks'])}."
    return None


def findings(checks: Iterable[Mapping[str, Any]]) -> str:
    """Return what the failed checks of an audit found; a name alone reads as its opposite."""
    return "; ".join(f"{c['detail']} (check: {c['name']})" for c in checks if not c["passed"])


def _next_state(verdict: Verdict, phase: Phase) -> Status | None:
    if verdict.outcome == "accept":
        return "accepted" if phase == "validation" else None
    if verdict.outcome == "inconclusive":
        return "inconclusive"
    if verdict.outcome == "no effect":
        return "no-effect"
    return "rejected"


def as_data(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as plain data for the ledger."""
    return {
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
        "alpha": None if math.isnan(verdict.alpha) else verdict.alpha,
        "seeds_needed": verdict.seeds_needed,
        "comparison": verdict.comparison.plain() if verdict.comparison else None,
        "guardrails": {name: seen.plain() for name, seen in verdict.guardrails.items()},
    }
