"""Judge a candidate by what is on record, and write the judgement down.

Promotion decides whether a candidate is better, at its share of the study's error rate. Validation
runs the winner and the baseline again on fresh seeds; only then does the incumbent change. Evidence
that is invalid decides nothing: once its cause is removed, it is audited and judged again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from assay.core.wording import counted
from assay.evaluation import statistics
from assay.study.agree import protocol, spending
from assay.study.agree.scope import changed_files
from assay.study.files.base import Phase, Status
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.judge import gate
from assay.study.judge.gate import Verdict
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import History, Run
from assay.study.record.ledger import Event
from assay.study.record.study import Study


def rival(study: Study, book: Book) -> str:
    """Return whom candidates are compared with: the incumbent, or the baseline."""
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
                "failed, discard it and run another.",
            )
    return gate.noise_floor(first, second, metric.direction)[0]


def discarded(history: History, metric: str) -> list[str]:
    """Describe the baselines that were discarded after their scores were known."""
    found = []
    for name in history.discarded_baselines():
        scores = [s for phase in kinds.DECIDING for s in history.arm(name, phase, metric).values()]
        known = [score for score in scores if score is not None]
        mean = f", with a mean of {math.fsum(known) / len(known):.4g}" if known else ""
        why = history.moved[name].data["why"]
        found.append(f"{name} was discarded after {counted(len(known), 'seed')}{mean} ({why})")
    return found


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
        way_out = "Run `assay study verify`; nothing is decided on it."
        study.refuse_damage(study.problems(), way_out)
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
        standard = _standard(study, history, agreed, name, phase)
        facts = {"candidate": name, "phase": phase, **standard, **as_data(verdict)}
        facts["iqm"] = iqm(study, history, agreed, name, phase)
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
        given = history.verdict(name, phase)
        assert given is not None
        last = given.data
        alpha = math.nan if last["alpha"] is None else float(last["alpha"])
        needed = last["seeds_needed"]
        return Verdict(last["outcome"], tuple(last["reasons"]), alpha=alpha, seeds_needed=needed)
    _require_completed(history, name)
    found = weigh(study, history, agreed, name, phase)
    if found.outcome in ("invalid", "no effect"):
        return found
    seeds = len(history.stage(agreed, name, phase))
    reason = (
        f"It can be judged, at alpha {found.alpha:.2g}: {seeds} seeds of the {phase} pool are "
        "there, as many as it is judged on next. The result is shown when it is recorded."
    )
    return Verdict("open", (reason,), alpha=found.alpha)


def _require_completed(book: Book, name: str) -> None:
    status = book.status.get(name)
    if status != "completed":
        raise StudyError(
            f"Candidate '{name}' is {status or 'unknown'}; only a completed one is judged."
        )


def _fresh(history: History, name: str, phase: Phase, other: str) -> bool:
    """Return whether there is evidence that no verdict on this rival has been given on."""
    last = history.verdict(name, phase)
    if last is None or last.data["rival"] != other:
        return True
    if last.data["outcome"] in ("invalid", kinds.CONTINUE):
        return True
    runs = [*history.over(name), *history.over(other)]
    return any(run.ended is not None and run.ended.seq > last.seq for run in runs)


def _standard(
    study: Study, history: History, agreed: Contract, name: str, phase: Phase
) -> dict[str, object]:
    """Return what a candidate was judged by, so that the verdict can be read without the contract.

    What is in the contract may be agreed on again later; a verdict stands as it was given.
    """
    metric, evaluation = agreed.metrics.primary, agreed.evaluation
    own = history.share(name)
    others = [share.alpha for share in history.shares if share is not own]
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
        "test": "welch" if evaluation.test == "auto" else evaluation.test,
        "seeds": list(history.stage(agreed, name, phase)),
        "pool": len(evaluation.pools.of(phase)),
        "seed_bound": metric.seed_bound,
        "error_rate": evaluation.alpha,
        "share": spending.share_of(history, agreed, name, phase),
        "decided_before": len(others),
        "spent_before": math.fsum(others),
    }


def iqm(
    study: Study, history: History, agreed: Contract, name: str, phase: Phase
) -> dict[str, list[float]]:
    """Return each arm's interquartile mean, its 95 % limits and its number of seeds, for people.

    It decides nothing, and is over the seeds that are judged, of both arms. In validation it is
    over both phases, drawn within each (stratified).
    """
    metric, found = agreed.metrics.primary.name, {}
    phases = kinds.DECIDING[: kinds.DECIDING.index(phase) + 1]
    for who in (rival(study, history), name):
        scores: dict[str, list[float]] = {}
        for one in phases:
            judged = history.stage(agreed, name, one)
            arm = history.arm(who, one, metric).items()
            scores[one] = [score for seed, score in arm if score is not None and seed in judged]
        if min(map(len, scores.values())) >= kinds.MINIMUM_SEEDS:
            seen = statistics.stratified_bootstrap(scores, rng=0)
            found[who] = [seen.point, seen.low, seen.high, sum(map(len, scores.values()))]
    return found


def weigh(study: Study, history: History, agreed: Contract, name: str, phase: Phase) -> Verdict:
    """Return the verdict that the record allows, without writing it down.

    Raises:
        StudyError: There is not enough to decide on; a part of a pool never is.
    """
    other = rival(study, history)
    if other == name:
        raise StudyError(f"'{name}' is what candidates are compared with; it is not judged itself.")
    if phase == "validation":
        _require_promoted(history, name, other)
    spread = noise(study, history, agreed)
    _require_pool(agreed, history, name, other, phase)
    reason, final = _invalid(study, history, agreed, name, other, phase)
    if reason:
        return Verdict("invalid", (reason,), final=final)
    reason = no_effect(study, history, agreed, name, other, phase)
    if reason:
        return Verdict("no effect", (reason,))
    metric, arms = agreed.metrics.primary, (other, name)
    seeds, pool = history.stage(agreed, name, phase), agreed.evaluation.pools.of(phase)
    share = spending.share_of(history, agreed, name, phase)
    spent = spending.used(history, name, phase)
    found = gate.decide(
        metric,
        *history.arms(arms, phase, metric.name, seeds),
        alpha=spending.level(share, spent, len(seeds), len(pool)),
        evaluation=agreed.evaluation,
        guardrails=[
            (guard, *history.arms(arms, phase, guard.name, seeds))
            for guard in agreed.metrics.guardrails
        ],
        noise_floor=spread,
    )
    return early(found, len(seeds), len(pool))


def early(found: Verdict, seeds: int, pool: int) -> Verdict:
    """Return what a look at a part of the pool comes to: what is not clear goes on."""
    if found.outcome != "inconclusive" or seeds == pool:
        return found
    why = f"Not clear after {seeds} of {pool} seeds, at alpha {found.alpha:.2g}; the next are run."
    return dataclasses.replace(found, outcome="continue", reasons=(why, *found.reasons))


def _require_promoted(history: History, name: str, other: str) -> None:
    """Refuse to validate what was not found better first, at its share of the error rate.

    Validation has no share of its own: it only repeats, on fresh seeds, what promotion found
    against the same rival.
    """
    given = history.verdict(name, "promotion")
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

    What is looked at early is in the contract (`evaluation.looks`). A seed that was lost as often
    as it may be run is not waited for; the audit speaks of it.
    """
    for who in (other, name):
        arm = history.arm(who, phase, agreed.metrics.primary.name)
        over = {*arm, *history.exhausted(who, phase)}
        missing = [seed for seed in history.stage(agreed, name, phase) if seed not in over]
        if missing:
            raise StudyError(
                f"'{who}' has no run of seeds {missing} in the {phase} phase.",
                "A candidate is judged on the whole pool in both arms, or at the looks that the "
                "contract names: run them first.",
            )


def _invalid(
    study: Study, history: History, agreed: Contract, name: str, other: str, phase: Phase
) -> tuple[str, bool]:
    """Return why the evidence may not be used, or "", and whether nothing can be put right."""
    seeds = history.stage(agreed, name, phase)
    mine, theirs = (history.selected(who, phase, seeds) for who in (name, other))
    reason = _unlike(history, mine, theirs)
    if reason:
        return reason, False
    registered = history.registration(name).data
    early = [run.id for run in mine if run.registration != registered["hash"]]
    if early:
        reason = f"{', '.join(early)} ran before '{name}' was registered as it is now: propose it "
        return reason + "as a new candidate.", False
    reason = protocol.why_void(study, agreed, name, registered)
    if reason:
        again = f"assay study audit-result {name} --phase {phase}"
        return f"{reason[0].upper()}{reason[1:]}. Put it back, then audit it again: {again}", False
    strange = sorted({run.seed for run in mine} - set(agreed.evaluation.pools.of(phase)))
    if strange:
        return f"Seeds {strange} are not of the {phase} pool.", False
    audit = _audit_of(history, name, phase, [run.id for run in (*mine, *theirs)])
    failed = [check for check in audit.data["checks"] if not check["passed"]]
    final = any(check.get("final") for check in failed)
    return (f"The audit of the result failed: {findings(failed)}." if failed else ""), final


def _audit_of(history: History, name: str, phase: Phase, runs: list[str]) -> Event:
    """Return the last audit of a candidate, if it saw all that is judged."""
    audit = history.audits.get((name, phase))
    unseen = unaudited(audit, runs)
    if audit is None or unseen:
        some = f"{len(unseen)} of the {len(runs)} runs" if audit else "The runs"
        raise StudyError(
            f"{some} that '{name}' is judged on in the {phase} phase have not been audited.",
            f"Audit them first: assay study audit-result {name} --phase {phase}",
        )
    return audit


def unaudited(audit: Event | None, runs: Iterable[str]) -> list[str]:
    """Return the runs that an audit has not seen."""
    seen = set(audit.data.get("runs", ())) if audit else set()
    return [run for run in runs if run not in seen]


def _unlike(history: History, mine: list[Run], theirs: list[Run]) -> str:
    """Return what differs in how two arms were measured, or ""."""
    now = mine[0].protocol if mine else ""
    odd = next((run for run in (*mine, *theirs) if run.protocol != now), None)
    if odd is None:
        return ""
    known = history.protocols
    parts = protocol.differing(known.get(odd.protocol, {}), known.get(now, {}))
    what = f": {', '.join(parts)} changed in between" if parts else ""
    return (
        f"The arms were measured by different protocols{what} (runs '{mine[0].id}' and '{odd.id}')."
    )


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
    if verdict.outcome == kinds.CONTINUE or (verdict.outcome == "invalid" and not verdict.final):
        return None
    return "rejected"


def as_data(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as plain data for the ledger."""
    return {
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
        "alpha": None if math.isnan(verdict.alpha) else verdict.alpha,
        "seeds_needed": verdict.seeds_needed,
        "seeds_for_seen": verdict.seeds_for_seen,
        "comparison": verdict.comparison.plain() if verdict.comparison else None,
        "guardrails": {name: seen.plain() for name, seen in verdict.guardrails.items()},
    }


# ---------------------------------------------------------------------- changes without effect


def no_effect(
    study: Study, history: History, agreed: Contract, name: str, other: str, phase: Phase
) -> str:
    """Return why a candidate's change had no effect in a phase, or "" if it may have had one."""
    unloaded = _never_loaded(study, history, name, phase)
    if unloaded:
        return f"The change had no effect: no run loaded {unloaded}, which the patch changes."
    mine, theirs = (history.arm(who, phase, agreed.metrics.primary.name) for who in (name, other))
    both = mine.keys() & theirs.keys()
    if both and all(mine[seed] is not None and mine[seed] == theirs[seed] for seed in both):
        metric = agreed.metrics.primary.name
        return (
            f"The change had no effect: {metric} equals that of {other} to the last digit on all "
            f"{len(both)} seeds."
        )
    return ""


def _never_loaded(study: Study, history: History, name: str, phase: Phase) -> str:
    """Return the changed files if it is certain that no run of a phase loaded one of them.

    That can be known of Python files, of runs whose Python was watched. Another file may be read
    by a program that says nothing; of a deleted one nothing can be loaded.
    """
    patch = study.candidate(name).change.patch
    if not patch:
        return ""
    paths = changed_files(study.root, patch)
    if not all(path.endswith(".py") for path in paths) or "\n+++ /dev/null" in f"\n{patch}":
        return ""
    for run in history.selected(name, phase):
        try:
            record = study.run(run.id)
        except StudyError:
            return ""
        if run.outcome != "done" or record.unrecorded or not record.loaded:
            return ""
        if record.loaded.keys() & set(paths):
            return ""
    return " or ".join(f"'{path}'" for path in paths) if history.selected(name, phase) else ""
