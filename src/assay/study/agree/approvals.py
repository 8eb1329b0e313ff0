"""Approvals: nothing trains until a person's word for each part of the contract is on record.

An approval is in the contract, where people look, and in the ledger, where it cannot be forged
without a trace. It counts only if both name the same hash and the part still has it.

It may be signed by an SSH key, which proves who approved. `experiment.signers` names a file of
allowed signers (ssh-keygen(1)); its text is put on record with every approval. The first approval
that is signed decides whose keys count: another text, and the end of the demand for signatures,
have to be signed by one of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from assay.core.errors import nearest
from assay.runs import ssh
from assay.study.agree.rules import (
    refuse_placeholders,
    refuse_uncommitted,
    refuse_unguarded,
)
from assay.study.agree.scope import checked_out
from assay.study.files.contract import APPROVALS, Approval, Contract
from assay.study.files.documents import (
    StudyError,
    canonical,
    digest,
    read_yaml_document,
    write_text,
)
from assay.study.record import kinds
from assay.study.record.history import History
from assay.study.record.ledger import Event, Problem
from assay.study.record.study import Study

NAMESPACE = "assay-approval"
_SIGNED = ("item", "by", "at", "hash", "commit", "signers", "demanded")  # what a signature covers
# Who approved which hash last, by the part; a third word where the approval is signed.
Recorded = Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class Standing:
    """Whose signatures count, by the approvals so far."""

    signers: str = ""  # the text of the allowed signers, from the first signed approval on
    demanded: bool = False  # whether an approval without a signature is refused

    def refusal(self, study: Study, data: Mapping[str, Any]) -> str:
        """Return why an approval does not count, or ""; take it in."""
        signature, reason = data.get("signature", ""), ""
        if signature:
            allowed = self.signers or data["signers"]
            reason = ssh.refusal(allowed, data["by"], NAMESPACE, message(study, data), signature)
        elif self.demanded:
            reason = "it is not signed, and the contract demands it"
        if reason:
            return f"the approval of '{data['item']}' by {data['by']} does not count: {reason}"
        if signature:
            self.signers = data["signers"]
        if signature or not self.demanded:
            self.demanded = bool(data.get("demanded"))
        return ""


def message(study: Study, data: Mapping[str, Any]) -> bytes:
    """Return what is signed: the approval, and whose keys count."""
    return canonical({"study": f"{study.task}/{study.name}", **{k: data[k] for k in _SIGNED}})


def standing(study: Study, events: Iterable[Event]) -> tuple[Standing, list[Problem]]:
    """Check every approval on record; return whose signatures count, and what is wrong."""
    now, found = Standing(), []
    for event in events:
        reason = now.refusal(study, event.data) if event.kind == kinds.APPROVED else ""
        if reason:
            found.append(Problem(event.seq, reason))
    return now, found


def signed(
    study: Study, agreed: Contract, given: Standing, data: Mapping[str, Any], key: Path | None
) -> dict[str, Any]:
    """Return an approval as it is recorded, signed where there is a key.

    Raises:
        StudyError: The contract demands a signature and there is no key, or the key is not that
            of the person who approves.
    """
    path = agreed.experiment.signers
    if key is not None and not path:
        raise StudyError(
            "The contract names no allowed signers, so that a signature proves nothing.",
            "Name the file in experiment.signers.",
        )
    if key is None and (agreed.experiment.signed or given.demanded):
        raise StudyError(
            f"An approval of '{data['item']}' has to be signed: the contract demands it.",
            "Pass the SSH key of the person who approves: --key FILE",
        )
    text = _text(study.root / path) if path else ""
    facts = {**data, "signers": text, "demanded": agreed.experiment.signed, "signature": ""}
    if key is None:
        return facts
    facts["signature"] = ssh.sign(key, NAMESPACE, message(study, facts))
    reason = Standing(given.signers, given.demanded).refusal(study, facts)
    if reason:
        raise StudyError(
            f"{reason[0].upper()}{reason[1:]}.",
            f"Approve with --by NAME as it stands in '{path}', and with that person's key.",
        )
    return facts


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(
            f"The allowed signers '{path}' cannot be read: {error}.",
            "experiment.signers is relative to the repository's top.",
        ) from None


def approve(study: Study, item: str, by: str, key: Path | None = None) -> Approval:
    """Record that `by` approves a part of the contract as it is now, signed where there is a key.

    Raises:
        StudyError: There is no such part, or no name, or what is to measure is not protected or
            not filled in, or the commit lacks a file that runs need, or a signature is missing or
            not that of the person.
    """
    if item not in APPROVALS:
        raise StudyError(f"There is no part '{item}' to approve.", nearest(item, APPROVALS))
    if not by.strip():
        raise StudyError("An approval needs a name.", "Say who approves it with --by NAME.")
    with study.ledger.transaction() as writer:
        contract = study.contract()
        if item == "evaluation":
            refuse_unguarded(study.root, contract)
        if item == "metrics":
            refuse_placeholders(contract)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        base = History.read(writer.events()).base
        code = checked_out(study.root) if base is None else base  # the study's own, once it has one
        if item == "baseline":
            refuse_uncommitted(study.root, contract, base)
        part = digest(contract.part(item))
        approval = Approval(by=by.strip(), at=at, hash=part, commit=code)
        given, _ = standing(study, writer.events())
        values = {"item": item, **approval.model_dump()}
        values = signed(study, contract, given, values, key)
        # Both or neither, also on a full disk: what is not the last word in both is void.
        written = study.contract_path.with_name("contract.yaml.new")
        text = _with_approvals(study.contract_path, {**contract.approvals, item: approval})
        try:
            write_text(written, text)
            read_yaml_document(written, Contract)
            writer.append(kinds.APPROVED, values, actor=approval.by)
            written.replace(study.contract_path)
        finally:
            written.unlink(missing_ok=True)
    return approval


def require_same_code(history: History, commit: str) -> None:
    """Refuse code that was not there when a person approved the baseline.

    Raises:
        StudyError: The baseline was approved with another commit.
    """
    approved = history.approved_code.get("baseline", "")
    if approved and commit and approved != commit:
        raise StudyError(
            f"The baseline was approved with the code of commit {approved[:12]}; what would run is "
            f"commit {commit[:12]}.",
            f"Look at what changed (git diff {approved[:12]} {commit[:12]}), and approve it: "
            "assay study contract approve baseline --by NAME",
        )


def missing(
    study: Study, contract: Contract | None = None, recorded: Recorded | None = None
) -> dict[str, str]:
    """Return the parts that are not approved as they are, each with the reason.

    The contract, and what the ledger says, are read unless they just were.
    """
    if recorded is None:
        recorded = study.history().approvals
    return unapproved(contract or study.contract(), recorded)


def unapproved(contract: Contract, recorded: Recorded) -> dict[str, str]:
    """Return the parts that are not approved as they are, each with the reason."""
    reasons = {}
    for item, what in APPROVALS.items():
        approval = contract.approvals.get(item)
        if approval is None:
            reasons[item] = f"{what} is not approved"
        elif approval.hash != digest(contract.part(item)):
            reasons[item] = f"{what} was changed after {approval.by} approved it on {approval.at}"
        elif item not in recorded:
            reasons[item] = f"the approval of {what} is not in the ledger"
        elif (approval.by, approval.hash) != recorded[item][:2]:
            reasons[item] = f"the approval of {what} is not the last one in the ledger"
        elif contract.experiment.signed and len(recorded[item]) < 3:
            reasons[item] = f"the approval of {what} is not signed, and the contract demands it"
    return reasons


def require_approved(
    study: Study, contract: Contract | None = None, recorded: Recorded | None = None
) -> None:
    """Refuse to go on unless all parts are approved; the arguments are those of `missing`.

    Raises:
        StudyError: Lists exactly what is missing.
    """
    reasons = missing(study, contract, recorded)
    if reasons:
        lines = "\n".join(f"  {item}: {reason}" for item, reason in reasons.items())
        raise StudyError(
            f"Nothing may be launched: {len(reasons)} of {len(APPROVALS)} approvals are missing.\n"
            f"{lines}",
            "A person approves each with: assay study contract approve ITEM --by NAME",
        )


def _with_approvals(path: Path, approvals: dict[str, Approval]) -> str:
    """Return the contract with other approvals; the rest of its text, comments too, as it is."""
    lines = path.read_text().splitlines(keepends=True)
    kept, inside = [], False
    for line in lines:
        if re.match(r"\S", line) and not line.startswith("#"):
            inside = line.startswith("approvals:")
        if not inside:
            kept.append(line)
    plain = {item: approvals[item].model_dump() for item in APPROVALS if item in approvals}
    block = yaml.safe_dump({"approvals": plain}, sort_keys=False, allow_unicode=True)
    return "".join(kept).rstrip("\n") + "\n" + block
