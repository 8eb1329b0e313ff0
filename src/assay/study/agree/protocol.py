"""What must be the same in both arms: how a result is measured.

The protocol's hash covers the evaluation part of the contract, the metrics with their sources, the
environment and its version, and the bytes of every file that does the measuring. Two arms are
compared only if they carry the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from assay.study.agree.closure import imported_files
from assay.study.files.base import Sha256
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, StudyError, digest
from assay.study.record.study import Study

EXTRACTORS = f"{ROOT}/shared/metric_extractors"


def protected_files(root: Path, contract: Contract) -> dict[str, str]:
    """Return the hash of every file that candidates must not touch, by path.

    These are the evaluation's files with what they import, what the scope protects, and the
    study's own directory without what the study itself writes as it goes on. A symbolic link is
    hashed as a link: one that takes a file's place does not pass for it.

    Raises:
        StudyError: A pattern matches nothing, or leaves the repository.
    """
    found: dict[str, str] = {}
    for pattern in (*contract.evaluation.files, *contract.scope.protected):
        paths = matching(root, pattern)
        if not paths:
            raise StudyError(
                f"'{pattern}' is protected but matches no file in '{root}'.",
                "Fix the pattern: a file that is not there cannot be held to what it was.",
            )
        found |= {path: fingerprint(root / path) for path in paths}
    found |= measuring_imports(root, contract)
    return dict(sorted((found | _hashes(root, [f"{EXTRACTORS}/**"])).items()))


def measuring_imports(root: Path, contract: Contract) -> dict[str, str]:
    """Return the hash of every file that the evaluation command imports from the repository.

    What the contract calls changeable is left out: there a person answers for it.
    """
    open_to_change = {
        path for pattern in contract.evaluation.changeable for path in matching(root, pattern)
    }
    paths = [path for path in imported_files(root, contract) if path not in open_to_change]
    return {path: fingerprint(root / path) for path in paths}


def _hashes(root: Path, patterns: Iterable[str]) -> dict[str, str]:
    paths = (path for pattern in patterns for path in matching(root, pattern))
    return {path: fingerprint(root / path) for path in paths}


def protocol_hash(root: Path, contract: Contract) -> Sha256:
    """Return the hash that both arms of a comparison must carry."""
    measured = {metric.name: metric.model_dump(mode="json") for metric in contract.metrics.all()}
    return digest(
        {
            "env": [contract.task.env, contract.task.env_version],
            "evaluation": _fixed(contract),
            "metrics": measured,
            "files": _hashes(root, contract.evaluation.files) | measuring_imports(root, contract),
            "extractors": _hashes(root, [f"{EXTRACTORS}/**"]),
        }
    )


def registration_hash(candidate: Candidate, contract: Contract, protocol: str) -> Sha256:
    """Return the hash that a candidate is frozen by before its first run."""
    return digest(
        {
            "candidate": candidate.model_dump(mode="json"),
            "primary": contract.metrics.primary.model_dump(mode="json"),
            "guardrails": [g.model_dump(mode="json") for g in contract.metrics.guardrails],
            "evaluation": _fixed(contract),
            "stop": contract.experiment.stop.model_dump(mode="json"),
            "protocol": protocol,
        }
    )


def _fixed(contract: Contract) -> dict[str, Any]:
    """Return the evaluation without its pools: more seeds, approved, measure the same thing."""
    return contract.evaluation.model_dump(mode="json", exclude={"pools"})


def matching(root: Path, pattern: str) -> list[str]:
    """Return the files and links below `root` that a glob matches, as POSIX paths, in order.

    Raises:
        StudyError: The pattern is absolute or leaves the repository.
    """
    if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts:
        raise StudyError(
            f"The pattern '{pattern}' leaves the repository.",
            "Write it relative to the repository's top, without '..'.",
        )
    if pattern.endswith("**"):
        pattern += "/*"
    paths = [p for p in root.glob(pattern) if p.is_symlink() or p.is_file()]
    return sorted(p.relative_to(root).as_posix() for p in paths)


def fingerprint(path: Path) -> str:
    """Return the hash of a file's bytes; of a symbolic link, also of where it leads."""
    if path.is_symlink():
        name = hashlib.sha256(str(path.readlink()).encode()).hexdigest()
        return f"link:{name}" + (f":{fingerprint(path.resolve())}" if path.is_file() else "")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprints(env: Mapping[str, str]) -> dict[str, str]:
    """Return a hash of every variable's value: enough to tell that one changed."""
    return {name: digest(value)[:16] for name, value in sorted(env.items())}


def artifacts(out: Path) -> dict[str, str]:
    """Return the hash of every file that a run wrote, by its path; of a link, with its target."""
    paths = [path for path in sorted(out.rglob("*")) if path.is_symlink() or path.is_file()]
    return {path.relative_to(out).as_posix(): fingerprint(path) for path in paths}


def frozen_hash(study: Study, agreed: Contract, name: str) -> str:
    """Return the hash that a candidate would be frozen by, as everything is now."""
    measured = protocol_hash(study.root, agreed)
    return registration_hash(study.candidate(name), agreed, measured)
