"""Signed approvals: who approved, proved by an SSH key that the contract names.

`experiment.signers` names a file of allowed signers (ssh-keygen(1)); its text is put on record with
every approval. The first approval that is signed decides whose keys count: another text, and the
end of the demand for signatures, have to be signed by one of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.runs import ssh
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, canonical
from assay.study.record import kinds
from assay.study.record.ledger import Event, Problem
from assay.study.record.study import Study

NAMESPACE = "assay-approval"
_SIGNED = ("item", "by", "at", "hash", "commit", "signers", "demanded")  # what a signature covers


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
