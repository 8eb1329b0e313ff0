"""Propose a candidate, and freeze it before its first run."""

from __future__ import annotations

from assay.study import probe, protocol, reflection, runner, states
from assay.study.layout import Study, StudyError, write_yaml_document
from assay.study.models import Candidate, Contract


def propose(study: Study, candidate: Candidate, actor: str) -> None:
    """Write a new candidate down as a draft.

    Raises:
        StudyError: Its name is taken, or it belongs elsewhere.
    """
    if (candidate.task, candidate.study) != (study.task, study.name):
        raise StudyError(
            f"Candidate '{candidate.id}' is written for {candidate.task}/{candidate.study}; "
            f"expected {study.task}/{study.name}."
        )
    with study.ledger.transaction() as writer:
        if candidate.id in states.current(writer.events()):
            raise StudyError(
                f"There is a candidate '{candidate.id}' already.", "Give the new one another id."
            )
        write_yaml_document(study.candidate_path(candidate.id), candidate)
        states.move(writer, candidate.id, "draft", actor=actor, why=candidate.hypothesis)


def validate(study: Study, name: str, actor: str) -> str:
    """Check a draft against the contract and freeze it; return the hash it is frozen by.

    The contract need not be approved yet; what is frozen is void if it changes later.

    Raises:
        StudyError: Names what is wrong; the draft stays as it is.
    """
    agreed, candidate = study.contract(), study.candidate(name)
    runner.refuse_scope(study, agreed, candidate)
    parameters = agreed.baseline.parameters | candidate.change.parameters
    runner.command(agreed, 0, study.path, parameters)
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
        raise StudyError(f"'{unknown[0]}' is no guardrail of the contract ({options}).")
    if candidate.kind.startswith("reward-") and candidate.reflection:
        reflection.named(study, candidate.reflection)
    if candidate.kind == "dr-tuning" and candidate.probe:
        probe.named(study, candidate.probe)
    measured = protocol.protocol_hash(study.root, agreed)
    frozen = frozen_hash(study, agreed, name)
    with study.ledger.transaction() as writer:
        states.move(writer, name, "validated", actor=actor, why="it keeps to the contract")
        facts = {"candidate": name, "hash": frozen, "protocol": measured}
        writer.append(runner.REGISTERED, facts, actor=actor)
    return frozen


def frozen_hash(study: Study, agreed: Contract, name: str) -> str:
    """Return the hash that a candidate would be frozen by, as everything is now."""
    measured = protocol.protocol_hash(study.root, agreed)
    return protocol.registration_hash(study.candidate(name), agreed, measured)
