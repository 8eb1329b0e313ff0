"""Approvals: nothing trains until a person's word for each part of the contract is on record.

An approval is in the contract, where people look, and in the ledger, where it cannot be forged
without a trace. It counts only if both name the same hash and the part still has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import yaml

from assay.core.errors import nearest
from assay.study.agree.protocol import matching
from assay.study.files.models import APPROVALS, Approval, Candidate, Contract
from assay.study.record import kinds
from assay.study.record.ledger import Event, digest
from assay.study.record.study import Study, StudyError, read_yaml_document, write_text

EVENT = kinds.APPROVED
_ONLINE = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL")
_LOCAL_MODES = ("offline", "disabled", "dryrun")


def approve(study: Study, item: str, by: str) -> Approval:
    """Record that `by` approves a part of the contract as it is now.

    Raises:
        StudyError: There is no such part, or no name, or what is to measure is not protected.
    """
    if item not in APPROVALS:
        raise StudyError(f"There is no part '{item}' to approve.", nearest(item, APPROVALS))
    if not by.strip():
        raise StudyError("An approval needs a name.", "Say who approves it with --by NAME.")
    with study.ledger.transaction() as writer:
        contract = study.contract()
        if item == "evaluation":
            refuse_unguarded(study.root, contract)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        approval = Approval(by=by.strip(), at=at, hash=digest(contract.part(item)))
        values = {"item": item, **approval.model_dump()}
        writer.append(EVENT, values, actor=approval.by)
        _write_approvals(study.contract_path, {**contract.approvals, item: approval})
    return approval


def missing(
    study: Study, contract: Contract | None = None, events: Iterable[Event] | None = None
) -> dict[str, str]:
    """Return the parts that are not approved as they are, each with the reason.

    Args:
        study: Whose ledger is asked.
        contract: As it was just read; read again if None.
        events: Of the ledger, as they were just read; read again if None.
    """
    given = study.ledger.events() if events is None else events
    return unapproved(contract or study.contract(), last_words(given))


def last_words(events: Iterable[Event]) -> dict[str, tuple[str, str]]:
    """Return who approved which hash last, by the part; what was said before is withdrawn."""
    return {
        str(event.data["item"]): (str(event.data["by"]), str(event.data["hash"]))
        for event in events
        if event.kind == EVENT
    }


def unapproved(contract: Contract, recorded: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the parts that are not approved as they are, each with the reason.

    Args:
        contract: As it is now.
        recorded: Who approved which hash last by the ledger, by the part.
    """
    reasons = {}
    for item, what in APPROVALS.items():
        approval = contract.approvals.get(item)
        if approval is None:
            reasons[item] = f"{what} is not approved"
        elif approval.hash != digest(contract.part(item)):
            reasons[item] = f"{what} was changed after {approval.by} approved it on {approval.at}"
        elif item not in recorded:
            reasons[item] = f"the approval of {what} is not in the ledger"
        elif (approval.by, approval.hash) != recorded[item]:
            reasons[item] = f"the approval of {what} is not the last one in the ledger"
    return reasons


def require_approved(
    study: Study, contract: Contract | None = None, events: Iterable[Event] | None = None
) -> None:
    """Refuse to go on unless all parts are approved; the arguments are those of `missing`.

    Raises:
        StudyError: Lists exactly what is missing.
    """
    reasons = missing(study, contract, events)
    if reasons:
        lines = "\n".join(f"  {item}: {reason}" for item, reason in reasons.items())
        raise StudyError(
            f"Nothing may be launched: {len(reasons)} of {len(APPROVALS)} approvals are missing.\n"
            f"{lines}",
            "A person approves each with: assay study contract approve ITEM --by NAME",
        )


def refuse_unreflected(agreed: Contract, candidate: Candidate) -> None:
    """Refuse reward engineering that builds on no reflection, unless the contract says why.

    Raises:
        StudyError: It does not; the candidate's own word is not enough.
    """
    waived = "reward-reflection" in agreed.experiment.exceptions
    if candidate.kind == "reward-engineering" and not candidate.reflection and not waived:
        raise StudyError(
            f"'{candidate.id}' changes the reward and builds on no reward reflection.",
            "Make one of an earlier run (assay study reflect RUN) and name it in 'reflection', or "
            "agree in the contract on why there is none: experiment.exceptions.reward-reflection.",
        )


def refuse_unguarded(root: Path, agreed: Contract) -> None:
    """Refuse an evaluation whose own script may be changed.

    Raises:
        StudyError: The evaluation command runs a file of the repository that is not among
            `evaluation.files`.
    """
    kept = {path for pattern in agreed.evaluation.files for path in matching(root, pattern)}
    before = ""
    for word in agreed.evaluation.command:
        names = [word]
        if before == "-m":
            names = [word.replace(".", "/") + end for end in (".py", "/__main__.py")]
        for name in names:
            path = (root / agreed.baseline.cwd / name).resolve()
            if not path.is_file() or not path.is_relative_to(root.resolve()):
                continue
            short = path.relative_to(root.resolve()).as_posix()
            if short not in kept:
                raise StudyError(
                    f"The evaluation command runs '{short}', which is not in evaluation.files, so "
                    "that it could be changed between two runs.",
                    f"Add '{short}', and what it imports, to evaluation.files.",
                )
        before = word


def refuse_network(agreed: Contract) -> None:
    """Refuse a contract whose metrics or environment would use the network against its own word.

    Raises:
        StudyError: Names the metric or variable, and every permission that is missing.
    """
    for metric in agreed.metrics.all():
        if not remote(metric.source.path):
            continue
        what = f"Metric '{metric.name}' is read from '{metric.source.path}', which"
        lacking = _forbidden(agreed, metric.source.kind == "wandb")
        if lacking:
            raise _no_network(what, lacking)
        raise StudyError(
            f"{what} is no file of a run.",
            "Have the run write it, or fetch it beforehand: W&B's offline files are read as well.",
        )
    for name, value in agreed.baseline.env.items():
        local = name == "WANDB_MODE" and value.lower() in _LOCAL_MODES
        lacking = _forbidden(agreed, wandb=True)
        if name in _ONLINE and not local and lacking:
            raise _no_network(f"{name}={value} in baseline.env", lacking)


def remote(path: str) -> bool:
    """Return whether a path is an address instead.

    Example:
        >>> remote("wandb://team/project/run"), remote("logs/run.wandb")
        (True, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def _forbidden(agreed: Contract, wandb: bool) -> list[str]:
    """Return the permissions that the contract does not give."""
    lacking = [] if agreed.experiment.network else ["experiment.network is false"]
    if wandb and not agreed.experiment.wandb:
        lacking.append("experiment.wandb is false")
    return lacking


def _no_network(what: str, lacking: list[str]) -> StudyError:
    return StudyError(
        f"{what} needs the network, which the contract does not allow: {'; '.join(lacking)}.",
        "A person allows it there, and then: assay study contract approve experiment --by NAME",
    )


def _write_approvals(path: Path, approvals: dict[str, Approval]) -> None:
    """Replace the contract's approvals and leave the rest of its text, comments too, alone."""
    lines = path.read_text().splitlines(keepends=True)
    kept, inside = [], False
    for line in lines:
        if re.match(r"\S", line) and not line.startswith("#"):
            inside = line.startswith("approvals:")
        if not inside:
            kept.append(line)
    plain = {item: approvals[item].model_dump() for item in APPROVALS if item in approvals}
    block = yaml.safe_dump({"approvals": plain}, sort_keys=False, allow_unicode=True)
    text = "".join(kept).rstrip("\n") + "\n" + block
    write_text(path, text)
    read_yaml_document(path, Contract)
