"""What a study waits for, from its ledger alone: `next` shows the first step, the loop takes them.

A candidate goes through phases: a smoke run where the contract shortens one, a short trial on the
development seeds, promotion on seeds of its own if it is among the best of its cohort, validation
on fresh ones. Promotion and validation are audited and judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.study.agree import protocol, spending
from assay.study.files.base import Phase
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.record.book import DECIDED, Book, losses
from assay.study.record.kinds import DECIDING, MOST_LOST, MOST_RUNS_LOST, RANKED
from assay.study.record.study import Study

Action = Literal[
    "baseline", "validate", "run", "promote", "audit", "judge", "summarise", "debug", "extend",
    "discard",
]  # fmt: skip
PERSONAL = ("debug", "extend", "discard")  # a person has to think first
AA, GAPS, SEEDS = "aa-test", "failed-baseline", "equal-seeds"  # exceptions of the contract
_UNREMARKABLE = 2.5  # standard errors; no t-test calls less than 2.57 significant at 1 %


@dataclass(frozen=True, slots=True)
class Step:
    """Something that can be done now."""

    action: Action  # what
    reason: str  # why
    candidate: str = ""  # whose turn it is; of `summarise`, the probe
    phase: Phase | None = None  # of a run, an audit or a judgement
    seeds: tuple[int, ...] = ()  # of a run


def steps_of(book: Book, agreed: Contract, without: Container[str] = ()) -> list[Step]:
    """Return all steps that can be taken now, the most urgent first, `without` some candidates.

    Until the baseline is complete nothing else is on it: candidates are compared with it. Seeds
    that nobody can be judged on are not waited for.
    """
    names, phases = book.baselines(), _waited_for(book, agreed)
    if not names and phases:
        first = [Step("baseline", "there is no baseline to compare candidates with")]
        return [step for step in first if step.candidate not in without]
    first = _baseline(book, agreed, names[0], phases) if phases else []
    if first or not all(book.complete(agreed, names[0], phase) for phase in phases):
        return [step for step in first if step.candidate not in without]
    steps: list[Step] = []
    for name, status in book.status.items():
        if name in names or status in DECIDED:
            continue
        steps += _one(book, agreed, name)
    steps = [step for step in steps if step.candidate not in without]
    steps += _trials(book, agreed, without)
    return sorted(steps, key=lambda step: step.action in PERSONAL)


def _waited_for(book: Book, agreed: Contract) -> tuple[Phase, ...]:
    """Return the phases that somebody can still be judged in, which the baseline is run for."""
    waiting = [name for name, status in book.status.items() if status not in DECIDED]
    shared = any(book.share(name) is not None for name in waiting)
    if shared or not spending.exhausted(book, agreed):
        return DECIDING
    found = any(book.judged.get((name, "promotion")) == "accept" for name in waiting)
    return ("validation",) if found else ()


def pool_without_share(book: Book, agreed: Contract) -> str:
    """Return which seeds of the promotion pool nobody can be judged on, and why, or ""."""
    names = book.baselines()
    if not names or "promotion" in _waited_for(book, agreed):
        return ""
    seeds = book.left(agreed, names[0], "promotion")
    if not seeds:
        return ""
    return (
        f"nobody can be judged on the seeds {list(seeds)} of evaluation.pools.promotion: "
        f"{_uncapitalised(spending.exhausted(book, agreed))}. A larger pool is another look, which "
        "costs another share; take them out, and begin a new study for further evidence"
    )


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def voided(study: Study, book: Book, agreed: Contract) -> Step | None:
    """Return what makes all evidence so far useless.

    Results are measured differently now, or seeds change nothing.
    """
    names = book.baselines()
    told = book.measures.get(names[0]) if names else None
    if not told:
        return None
    odd = protocol.differing(told, protocol.measures(study.root, agreed))
    if not odd:
        waived = SEEDS in agreed.experiment.exceptions
        return None if waived else _seedless(study, book, agreed, names[0])
    name, what = names[0], f"{', '.join(odd)} changed after {names[0]} was registered"
    if any(run.phase in DECIDING for run in book.of(name)):
        reason = f"{what}, so that its runs count for nothing; put it back, or {_instead(name)}"
    else:
        reason = f"{what}; put it back, or register it again (assay study validate {name})"
    return Step("debug", reason, name)


def _seedless(study: Study, book: Book, agreed: Contract, name: str) -> Step | None:
    """Return a step if runs of a baseline are the same, whatever their seed."""
    runs = {r.seed: r for r in book.of(name) if r.phase in DECIDING and r.outcome == "done"}
    metric = agreed.metrics.primary
    scores = [book.scores.get(run.id, {}).get(metric.name) for run in runs.values()]
    if len(set(scores)) == len(scores):
        return None  # by a look that loads nothing
    from assay.study.measure.alike import alike

    same = alike(metric, {seed: study.path / "runs" / run.id for seed, run in runs.items()})
    if not same:
        return None
    reason = (
        f"{name} gave the same values of {metric.name} on seeds {same}, to the last digit: the "
        "seed changes nothing, and one measurement would count as many. Have the command pass the "
        f"seed on, and {_instead(name)}; or have the script use it, commit that, and begin a new "
        "study (assay study start --study NAME --activate). If the task has no chance in it, have "
        f"it waived (exception '{SEEDS}')"
    )
    return Step("debug", reason, name)


def _baseline(book: Book, agreed: Contract, name: str, phases: Sequence[Phase]) -> list[Step]:
    waiting = _unready(book, name) or _spoilt(book, agreed, name)
    if waiting is not None:
        return [waiting]
    smoke: tuple[Phase, ...] = ("smoke",) if "smoke" in agreed.baseline.shortened else ()
    for phase in smoke:
        if not book.complete(agreed, name, phase):
            return _runs(book, agreed, name, phase)
    runs = [step for phase in phases for step in _runs(book, agreed, name, phase)]
    if runs or not all(book.complete(agreed, name, phase) for phase in DECIDING):
        return runs
    p = None if AA in agreed.experiment.exceptions else _differing(book, agreed, name)
    if p is None:
        return []
    reason = (
        f"the A/A test of {name} has p = {p:.1g}: its two pools of seeds differ by more than seeds "
        f"explain; find out why and {_instead(name)}, or have it waived (exception '{AA}')"
    )
    return [Step("debug", reason, name)]


def _instead(name: str) -> str:
    discard = f"assay study discard {name} --why TEXT"
    return f"discard it ({discard}) and plan another (assay study baseline)"


def _spoilt(book: Book, agreed: Contract, name: str) -> Step | None:
    """Return what makes a baseline useless, whatever is still run of it; a person decides."""
    for phase in DECIDING:
        failed = book.failed(agreed, name, phase)
        if failed and GAPS not in agreed.experiment.exceptions:
            last = [r for r in book.of(name) if r.phase == phase and r.seed in failed][-1]
            why = f" ({last.reason})" if last.reason else ""
            reason = f"{name} failed on seeds {list(failed)} in the {phase} phase{why}; look at "
            reason += "the log, "
            if max(failed.values()) < MOST_LOST:
                reason += f"and run each once more (run {name} --phase {phase} --seed N); or "
            reason += f"{_instead(name)}, or have them left out (exception '{GAPS}')"
            return Step("debug", reason, name, phase)
        occasions = losses(run for run in book.of(name) if run.phase == phase)
        if len(occasions) > MOST_RUNS_LOST:
            lost = [run for together in occasions for run in together]
            reason = (
                f"{', '.join(lost)} were lost, so that no candidate's audit against {name} would "
                f"pass; {_instead(name)}"
            )
            return Step("debug", reason, name, phase)
    return None


def _differing(book: Book, agreed: Contract, name: str) -> float | None:
    """Return the p-value of a baseline's A/A test if it is too small, else None."""
    metric = agreed.metrics.primary
    arms = [book.measured(name, phase, metric.name) for phase in DECIDING]
    if min(map(len, arms)) < 2:
        return None
    means = [statistics.fmean(arm.values()) for arm in arms]
    error = math.sqrt(sum(statistics.variance(arm.values()) / len(arm) for arm in arms))
    if error > 0 and abs(means[0] - means[1]) < _UNREMARKABLE * error:
        return None  # by a look that loads nothing
    from assay.study.judge import gate

    return gate.differ(arms[0], arms[1], metric.direction)


def _one(book: Book, agreed: Contract, name: str) -> list[Step]:
    """Return what brings an undecided candidate on, apart from its short trial."""
    waiting = _unready(book, name)
    if waiting is not None:
        return [waiting]
    if book.kind[name] == "dr-probe":
        return _probe(book, agreed, name)
    if not book.goes_on(name):
        return _barred(book, agreed, name)
    for phase in DECIDING:
        outcome = book.judged.get((name, phase))
        barred = _barred(book, agreed, name) if phase == "promotion" else []
        if barred and outcome == "accept":
            continue  # it was found better before the pool grew
        if barred and outcome in (None, "inconclusive"):
            return barred
        if not book.complete(agreed, name, phase):
            return _runs(book, agreed, name, phase)
        if (name, phase) not in book.audited:
            reason = f"the {phase} runs of {name} are complete and not audited"
            return [Step("audit", reason, name, phase)]
        if outcome is None:
            reason = f"the {phase} runs of {name} are audited and not judged"
            return [Step("judge", reason, name, phase)]
        if outcome == "inconclusive":
            return [Step("extend", _larger(agreed, name, phase), name, phase)]
        if outcome == "invalid":
            reason = (
                f"the {phase} evidence of {name} is invalid (assay study report says why); remove "
                f"the cause and audit it again (audit-result {name} --phase {phase}), or discard it"
            )
            return [Step("debug", reason, name, phase)]
    return []


def _larger(agreed: Contract, name: str, phase: Phase) -> str:
    """Return how a person gets more evidence on an inconclusive candidate, and what it costs."""
    field = f"evaluation.pools.{phase}"
    seeds = ", ".join(map(str, agreed.evaluation.pools.of(phase)))
    cost = ", which costs another share of the error rate" if phase == "promotion" else ""
    return (
        f"{name} is inconclusive and the {phase} pool is used up; add seeds to it (assay study "
        f"contract set '{field}=[{seeds}, ...]', assay study contract approve evaluation --by NAME)"
        f"{cost}; or discard it (assay study discard {name} --why TEXT)"
    )


def _barred(book: Book, agreed: Contract, name: str) -> list[Step]:
    """Return what a person can do with a candidate that cannot be judged any more, if so."""
    why = spending.barred(book, agreed, name)
    if not why:
        return []
    what = f"{name} cannot be judged any more"
    if book.status[name] == "inconclusive":
        what = f"{name} is inconclusive, and more seeds are another look, which costs another share"
    reason = (
        f"{what}: {_uncapitalised(why)}; discard it (assay study discard {name} --why TEXT), and "
        "begin a new study for further evidence (assay study init --study NAME --activate)"
    )
    return [Step("discard", reason, name)]


def _unready(book: Book, name: str) -> Step | None:
    """Return what a candidate needs before it can be run, if anything."""
    status = book.status[name]
    if status == "draft":
        return Step("validate", f"{name} is a draft", name)
    runs = book.of(name)
    if status == "debug" and runs and runs[-1].outcome != "lost":
        last = runs[-1]
        return Step("debug", f"run {last.id} failed ({last.reason}); look at its log", name)
    return None


def _runs(book: Book, agreed: Contract, name: str, phase: Phase) -> list[Step]:
    left = book.left(agreed, name, phase)
    if not left:
        return []
    pool = len(agreed.evaluation.pools.of(phase))
    reason = f"{name} has {pool - len(left)} of {pool} seeds in the {phase} phase"
    return [Step("run", reason, name, phase, left)]


def _probe(book: Book, agreed: Contract, name: str) -> list[Step]:
    plan = book.probe.get(name, "")
    runs = _runs(book, agreed, name, "short")
    if runs or not plan or plan in book.summarised:
        return runs
    members = [other for other, owner in book.probe.items() if owner == plan]
    members = [other for other in members if book.kind[other] == "dr-probe"]
    ready = all(book.complete(agreed, other, "short") for other in members)
    if not ready or name != members[-1]:
        return []
    return [Step("summarise", f"all values of probe {plan} have been run", plan)]


def _trials(book: Book, agreed: Contract, without: Container[str]) -> list[Step]:
    """Return what the short trials wait for: runs, or their ranking."""
    if spending.exhausted(book, agreed):
        return []  # a person is asked about each
    cohort = [name for name in book.cohort() if name not in without]
    smoke: tuple[Phase, ...] = ("smoke",) if "smoke" in agreed.baseline.shortened else ()
    steps = []
    for name in cohort:
        for phase in (*smoke, "short"):
            if not book.complete(agreed, name, phase):
                steps += _runs(book, agreed, name, phase)
                break
    drafts = [name for name, status in book.status.items() if status == "draft"]
    baselines = book.baselines()
    pending = [n for n in drafts if n not in without and n not in baselines]
    busy = any(not book.complete(agreed, name, "short") for name in cohort)
    if steps or busy or pending or not cohort:
        return steps
    reason = f"{len(cohort)} short trials are complete; the best go on"
    return [Step("promote", reason, cohort[0])]


def promote(study: Study, actor: str) -> tuple[list[str], list[str]]:
    """Rank the short trials that are complete; the best share goes on (successive halving).

    Candidates are ranked by the mean of the primary metric; one with a failed trial comes last.
    Those that do not go on are rejected with their rank as the reason.

    Returns:
        Who goes on, and who does not, the best first.
    """
    agreed = study.contract()
    metric = agreed.metrics.primary
    sign = 1.0 if metric.direction == "maximize" else -1.0
    with study.transaction() as transaction:
        history = transaction.history
        scored: list[tuple[float, str]] = []
        for name in history.cohort():
            if not history.complete(agreed, name, "short"):
                continue
            scores = list(history.arm(name, "short", metric.name).values())
            values = [score for score in scores if score is not None]
            failed = len(values) < len(scores) or not values
            scored.append((-float("inf") if failed else sign * sum(values) / len(values), name))
        if not scored:
            raise StudyError(
                "No short trial is complete, so there is nothing to rank.",
                "Run the development seeds of the candidates first.",
            )
        scored.sort(key=lambda pair: -pair[0])
        most = max(1, round(len(scored) * agreed.experiment.keep))
        chosen = [name for score, name in scored[:most] if score > -float("inf")]
        passed = [name for _, name in scored if name not in chosen]
        ranks = {name: None if s == -float("inf") else sign * s for s, name in scored}
        facts = {"metric": metric.name, "means": ranks, "promoted": chosen, "passed": passed}
        transaction.append(RANKED, facts, actor=actor)
        for name in passed:
            rank = [n for _, n in scored].index(name) + 1
            why = f"number {rank} of {len(scored)} in the short trials; {most} went on"
            transaction.move(name, "rejected", actor=actor, why=why)
    return chosen, passed


def take(study: Study, step: Step, actor: str) -> str:
    """Take a step that needs no launch and no person; return what came of it.

    Raises:
        StudyError: It is refused, or it is not such a step.
    """
    # What audits and judges is not loaded by those who only ask what comes next.
    from assay.study.judge import audit, verdict
    from assay.study.measure import probe
    from assay.study.steps import candidates

    match step.action, step.phase:
        case "baseline", _:
            return f"{candidates.plan_baseline(study, None, actor)} is planned"
        case "validate", _:
            candidates.validate(study, step.candidate, actor)
            return f"{step.candidate} keeps to the contract and is frozen"
        case "promote", _:
            chosen, passed = promote(study, actor)
            dropped = f"; not {', '.join(passed)}" if passed else ""
            return f"on to promotion: {', '.join(chosen) or 'nobody'}{dropped}"
        case "audit", phase if phase is not None:
            found = audit.audit(study, step.candidate, phase, actor)
            if found.passed:
                return f"the audit of {step.candidate} passed"
            failed = verdict.findings(check.model_dump() for check in found.checks)
            return f"the audit of {step.candidate} failed: {failed}"
        case "judge", phase if phase is not None:
            seen = verdict.judge(study, step.candidate, phase, actor)
            return f"{step.candidate} in {phase}: {seen.outcome}. {seen.reasons[0]}"
        case "summarise", _:
            summary = probe.summarise(study, step.candidate, actor)
            return f"{summary.parameter} may go from {summary.lowest} to {summary.highest}"
        case _:
            raise StudyError(f"'{step.action}' is not a step that can be taken by itself.")
