"""Propose a candidate, and freeze it before its first run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.study.agree import budget, protocol, scope
from assay.study.agree.approvals import require_same_code
from assay.study.agree.rules import refuse_network, refuse_uncommitted, refuse_unreflected
from assay.study.agree.scope import checked_out
from assay.study.files.base import Status
from assay.study.files.candidate import BudgetRequest, Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, digest, write_yaml_document
from assay.study.measure import probe, reflection
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.study import Study
from assay.study.run import planning
from assay.study.run.worktree import kept


def propose(study: Study, candidate: Candidate, actor: str) -> None:
    """Write a new candidate down as a draft; see `propose_all`."""
    propose_all(study, [candidate], actor)


def propose_all(study: Study, found: Sequence[Candidate], actor: str) -> None:
    """Write candidates down as drafts, all or none, for which the ledger is read once.

    Raises:
        StudyError: A name is taken, or one belongs elsewhere.
    """
    with study.transaction() as transaction:
        for candidate in found:
            if (candidate.task, candidate.study) != (study.task, study.name):
                raise StudyError(
                    f"Candidate '{candidate.id}' is written for {candidate.task}/"
                    f"{candidate.study}; expected {study.task}/{study.name}."
                )
            if candidate.id in transaction.history.status:
                raise StudyError(
                    f"There is a candidate '{candidate.id}' already.",
                    "Give the new one another id.",
                )
            if candidate.kind == "baseline":
                _refuse_another_baseline(study, transaction.history)
        for candidate in found:
            write_yaml_document(study.candidate_path(candidate.id), candidate)
            facts = {"kind": candidate.kind, "probe": candidate.probe}
            why = candidate.hypothesis
            transaction.move(candidate.id, "draft", actor=actor, why=why, **facts)


def plan_baseline(study: Study, request: BudgetRequest | None, actor: str) -> str:
    """Propose the baseline; return its name.

    Args:
        study: Whose.
        request: What one run may use; by default an even share of the study's budget.
        actor: In whose name.

    Raises:
        StudyError: All of its runs together may use more than the study has.
    """
    agreed = study.contract()
    budget.refuse_small(agreed)
    request = request or usual_request(study)
    pools, limits = agreed.evaluation.pools, agreed.budget
    runs = len(pools.promotion) + len(pools.validation)
    if request.wall_clock_hours * runs > limits.wall_clock_hours:
        raise StudyError(
            f"{runs} runs of the baseline at {request.wall_clock_hours:g} hours each exceed the "
            f"study's {limits.wall_clock_hours:g} hours (budget.wall_clock_hours).",
            "Ask for fewer --hours a run, or agree on more: assay study contract set "
            f"budget.wall_clock_hours={request.wall_clock_hours * limits.runs:.3g}",
        )
    discarded = list(study.book()[0].kind.values()).count("baseline")
    plan = Candidate(
        id=f"baseline-{discarded + 1}" if discarded else "baseline",
        task=study.task,
        study=study.name,
        kind="baseline",
        hypothesis="Candidates are compared with it, and it shows the noise.",
        budget=request,
        expected="The two halves of its seeds do not differ (A/A).",
        rollback="Nothing is changed.",
    )
    propose(study, plan, actor)
    return plan.id


def usual_request(study: Study) -> BudgetRequest:
    """Return what a run may use where nobody says: what the baseline's may, or an even share."""
    names = study.book()[0].baselines()
    if names:
        return study.candidate(names[0]).budget
    limits = study.contract().budget
    return BudgetRequest(wall_clock_hours=limits.wall_clock_hours / limits.runs)


def _refuse_another_baseline(study: Study, history: History) -> None:
    """Refuse to measure baselines until one is low."""
    agreed = study.contract()
    measures = protocol.named(protocol.measures(study.root, agreed))
    discarded = history.discarded_baselines(measures)
    waived = "discarded-baselines" in agreed.experiment.exceptions
    if len(discarded) > kinds.MOST_BASELINES and not waived:
        raise StudyError(
            f"{len(discarded)} baselines with scores were discarded ({', '.join(discarded)}); a "
            "study compares with the one it measured, not with the one it likes.",
            "Close this study with its report, or have the exception 'discarded-baselines' "
            "approved with the reason.",
        )


def validate(study: Study, name: str, actor: str) -> str:
    """Check a candidate against the contract and freeze it; return the hash it is frozen by.

    The contract need not be approved yet; what is frozen is void if it changes later. A candidate
    that is frozen can be frozen again, by a contract that changed, until its first deciding run.

    Raises:
        StudyError: Names what is wrong; the candidate stays as it is.
    """
    agreed, candidate = study.contract(), study.candidate(name)
    refuse_network(agreed)
    refuse_unreflected(study, agreed, candidate)
    scope.refuse_scope(study, agreed, candidate)
    _refuse_other_plans(agreed, candidate)
    history = study.history()
    base, parameters = standing(study, history, agreed)
    require_same_code(history, base if history.base is None else "")
    refuse_uncommitted(study.root, agreed, history.base)
    if candidate.change.patch:
        scope.refuse_unfit(study.root, candidate.change.patch, base)
    parameters |= candidate.change.parameters
    planning.command(agreed, 0, study.path, parameters)
    request, total = candidate.budget, agreed.budget
    if request.wall_clock_hours > total.wall_clock_hours or request.gpu_hours > total.gpu_hours:
        raise StudyError(
            f"One run of '{name}' asks for {request.wall_clock_hours:g} wall-clock and "
            f"{request.gpu_hours:g} GPU-hours; the whole study has {total.wall_clock_hours:g} and "
            f"{total.gpu_hours:g}.",
            "Ask for less, or agree on a larger budget.",
        )
    known = {guard.name for guard in agreed.metrics.guardrails}
    unknown = sorted(set(candidate.guardrails) - known)
    if unknown:
        options = ", ".join(sorted(known)) or "none"
        raise StudyError(f"'{unknown[0]}' is not a guardrail of the contract ({options}).")
    if candidate.kind.startswith("reward-") and candidate.reflection:
        reflection.named(study, candidate.reflection)
    if candidate.kind == "dr-tuning" and candidate.probe:
        probe.named(study, candidate.probe)
    measures = protocol.measures(study.root, agreed)
    parts = protocol.frozen_parts(candidate, agreed, digest(measures))
    facts: dict[str, Any] = {
        "candidate": name, "hash": digest(parts), "protocol": digest(measures),
        "base": base, "parameters": parameters,
        "change": protocol.change_hash(candidate, base, parameters),
        "kind": candidate.kind, "probe": candidate.probe,
        "seeds": agreed.evaluation.pools.model_dump(mode="json"),
        "measures": protocol.named(measures), "parts": protocol.named(parts),
    }  # fmt: skip
    with study.transaction() as transaction:
        history = transaction.history
        _refuse_the_same_change(history, candidate, facts)
        if not _refrozen(history, name, parts):
            transaction.move(name, "validated", actor=actor, why="it keeps to the contract")
        transaction.append(kinds.REGISTERED, facts, actor=actor)
    return str(facts["hash"])


def _refrozen(history: History, name: str, parts: Mapping[str, str]) -> bool:
    """Return whether a candidate is frozen already and may be frozen again.

    Once it has runs its own file stays as it was: only the contract may have changed.
    """
    if history.status.get(name) not in ("validated", "completed"):
        return False
    runs = history.of_candidate(name)
    told = history.registration(name).data.get("parts", {})
    edited = [part for part in protocol.differing(told, parts) if part.startswith("candidates/")]
    return not any(run.phase in kinds.DECIDING for run in runs) and not (runs and edited)


def _refuse_the_same_change(
    history: History, candidate: Candidate, facts: Mapping[str, Any]
) -> None:
    """Refuse a change whose scores are known, under whatever name it comes again.

    What was measured by another protocol, or never came to a deciding run, may be tried again.
    """
    if candidate.kind in kinds.UNJUDGED:
        return
    for name, event in history.registered.items():
        told = event.data
        alike = all(told.get(key) == facts[key] for key in ("change", "protocol"))
        decided = any(run.phase in kinds.DECIDING for run in history.of_candidate(name))
        if alike and decided and name != candidate.id and told["kind"] not in kinds.UNJUDGED:
            raise StudyError(
                f"'{candidate.id}' is the same change as '{name}', which is "
                f"{history.status[name]}: a change is not tried again until it passes.",
                "For more evidence on it, have a larger pool of seeds approved before it is "
                "discarded.",
            )


def _refuse_other_plans(agreed: Contract, candidate: Candidate) -> None:
    """Refuse a candidate that states another command or other seeds than were agreed on."""
    if candidate.command and candidate.command != agreed.baseline.command:
        raise StudyError(
            f"Candidate '{candidate.id}' states the command {' '.join(candidate.command)!r}; the "
            f"contract's is {' '.join(agreed.baseline.command)!r}.",
            "Leave it out, or agree on another baseline command.",
        )
    pool = agreed.evaluation.pools.promotion
    if candidate.seeds and set(candidate.seeds) != set(pool):
        raise StudyError(
            f"Candidate '{candidate.id}' states the seeds {list(candidate.seeds)}; the contract's "
            f"promotion pool is {list(pool)}.",
            "Leave them out, or agree on another pool.",
        )


def discard(study: Study, name: str, actor: str, why: str) -> None:
    """Reject a candidate that is not accepted, or revert the incumbent, for a reason.

    What it was stays on record; the seeds that it used are used.

    Raises:
        StudyError: It is unknown, under way or decided, or there is no reason.
    """
    if not why.strip():
        raise StudyError("Discarding a candidate needs a reason.", "Say it with --why TEXT.")
    study.candidate(name)
    with study.transaction() as transaction:
        holds = transaction.history.status.get(name) == "accepted"
        to: Status = "reverted" if holds else "rejected"
        transaction.move(name, to, actor=actor, why=why, discarded=True)


def standing(study: Study, history: History, agreed: Contract) -> tuple[str, dict[str, Any]]:
    """Return what changes are laid over: the incumbent's commit and settings.

    Without an incumbent it is the commit that the study's first candidate was registered on, so
    that what is committed later is part of no arm; "" where there is no Git.
    """
    holder = history.incumbent
    if not holder:
        head = history.base
        if head is None:
            head = checked_out(study.root)
        return head, dict(agreed.baseline.parameters)
    registered = history.registration(holder).data
    if not study.candidate(holder).change.patch:
        return str(registered["base"]), dict(registered["parameters"])
    runs = history.of_candidate(holder)
    commits = [commit for run in runs if (commit := kept(study, run.id))]
    if not commits:
        raise StudyError(
            f"The code of the incumbent '{holder}' is not kept in Git any more.",
            "Its commits were under refs/rlxp/; fetch them from where they are.",
        )
    return commits[-1], dict(registered["parameters"])
