"""Approvals: nothing trains until a person's word for each part of the contract is on record.

An approval is in the contract, where people look, and in the ledger, where it cannot be forged
without a trace. It counts only if both name the same hash and the part still has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import yaml

from assay.core.errors import nearest
from assay.study import kinds
from assay.study.layout import Study, StudyError, read_yaml_document, write_text
from assay.study.ledger import Event, digest
from assay.study.models import APPROVALS, Approval, Contract

EVENT = kinds.APPROVED
_ONLINE = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL")
_LOCAL_MODES = ("offline", "disabled", "dryrun")


def approve(study: Study, item: str, by: str) -> Approval:
    """Record that `by` approves a part of the contract as it is now.

    Raises:
        StudyError: There is no such part, or no name.
    """
    if item not in APPROVALS:
        raise StudyError(f"There is no part '{item}' to approve.", nearest(item, APPROVALS))
    if not by.strip():
        raise StudyError("An approval needs a name.", "Say who approves it with --by NAME.")
    with study.ledger.transaction() as writer:
        contract = study.contract()
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
        contract: As it was just read; read anew if None.
        events: Of the ledger, as they were just read; read anew if None.
    """
    recorded: dict[str, set[tuple[str, str]]] = {}
    for event in study.ledger.events() if events is None else events:
        if event.kind == EVENT:
            words = (str(event.data["by"]), str(event.data["hash"]))
            recorded.setdefault(str(event.data["item"]), set()).add(words)
    return unapproved(contract or study.contract(), recorded)


def unapproved(
    contract: Contract, recorded: Mapping[str, Collection[tuple[str, str]]]
) -> dict[str, str]:
    """Return the parts that are not approved as they are, each with the reason.

    Args:
        contract: As it is now.
        recorded: Who approved which hash by the ledger, by the part.
    """
    reasons = {}
    for item, what in APPROVALS.items():
        approval = contract.approvals.get(item)
        if approval is None:
            reasons[item] = f"{what} is not approved"
        elif approval.hash != digest(contract.part(item)):
            reasons[item] = f"{what} was changed after {approval.by} approved it on {approval.at}"
        elif (approval.by, approval.hash) not in recorded.get(item, ()):
            reasons[item] = f"the approval of {what} is not in the ledger"
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


def require_network(study: Study, what: str, *, wandb: bool = False) -> None:
    """Refuse to use the network until a person has approved that.

    Whatever could fetch or send asks here first.

    Args:
        study: Whose contract is asked.
        what: What would use it, as the subject of a sentence.
        wandb: Whether it is W&B.

    Raises:
        StudyError: Names every permission that is missing.
    """
    agreed = study.contract()
    lacking = _forbidden(agreed, wandb)
    reason = missing(study, agreed).get("experiment")
    if reason:
        lacking.append(reason)
    if lacking:
        raise _no_network(what, lacking)


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
    """Say whether a path is an address instead.

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
