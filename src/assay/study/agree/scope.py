"""What a candidate may change: the parameters, ranges and files that were agreed on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from assay.runs.git import GitError, git, repository
from assay.study.agree.protocol import protected_files
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, StudyError
from assay.study.record.study import Study


def pinned(root: Path) -> bool:
    """Return whether runs get a tree of a commit, which takes the top of a Git repository."""
    top = repository(root)
    if top is None or top.resolve() != root.resolve():
        return False
    with contextlib.suppress(GitError):
        return bool(git(root, "rev-parse", "--verify", "--quiet", "HEAD"))
    return False


def require_repository(root: Path) -> None:
    """Refuse a directory that is not the top of a Git repository."""
    top = repository(root)
    if top is None or top.resolve() != root.resolve():
        raise StudyError(
            f"'{root}' is not the top of a Git repository, and a patch needs one.",
            "Run `git init` and commit there, or use parameters instead of a patch.",
        )


def changed_files(root: Path, patch: str) -> list[str]:
    """Return the paths that a unified diff touches, old and new names both."""
    try:
        out = git(root, "apply", "--numstat", "-z", "-", data=patch.encode())
    except GitError as error:
        raise StudyError(f"The patch cannot be read: {error.message}") from None
    if not out:
        raise StudyError("The patch is empty.", "Give a unified diff, as `git diff` writes it.")
    paths = {entry.split("\t", 2)[2] for entry in out.split("\0") if entry}
    # Of a rename Git counts the new name alone here.
    return sorted(paths | set(re.findall(r"^rename from (.+)$", patch, flags=re.MULTILINE)))


def refuse_out_of_scope(root: Path, contract: Contract, paths: list[str]) -> None:
    """Refuse paths that the contract does not allow to be changed."""
    kept = set(protected_files(root, contract))
    for path in paths:
        if path == ROOT or path.startswith(f"{ROOT}/"):
            raise StudyError(f"'{path}' belongs to the study and may not be changed.")
        guarded = (*contract.evaluation.files, *contract.scope.protected)
        if path in kept or in_scope(path, guarded):
            raise StudyError(f"'{path}' is protected: it measures the result.")
        if not in_scope(path, contract.scope.files):
            allowed = ", ".join(contract.scope.files) or "no file"
            raise StudyError(f"'{path}' is outside the approved scope ({allowed}).")
        # A link on the way could lead a harmless name to a protected file.
        for part in (root / path, *(root / path).parents):
            if part == root:
                break
            if part.is_symlink():
                raise StudyError(f"'{path}' is reached through the symbolic link '{part.name}'.")


def in_scope(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path relative to the repository matches one of the globs."""
    return any(_glob_match(PurePosixPath(path).parts, _parts(pattern)) for pattern in patterns)


def _parts(pattern: str) -> tuple[str, ...]:
    parts = PurePosixPath(pattern).parts
    return (*parts, "*") if parts and parts[-1] == "**" else parts


def _glob_match(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_glob_match(path[i:], pattern[1:]) for i in range(len(path) + 1))
    return (
        bool(path)
        and PurePosixPath(path[0]).match(pattern[0])
        and _glob_match(path[1:], pattern[1:])
    )


def refuse_scope(study: Study, agreed: Contract, candidate: Candidate) -> None:
    """Refuse a change that the contract does not allow."""
    for name, value in candidate.change.parameters.items():
        known = agreed.scope.parameters.get(name)
        if known is None:
            options = ", ".join(agreed.scope.parameters) or "none"
            raise StudyError(f"'{name}' is not in the approved scope ({options}).")
        reason = known.refusal(value)
        if reason:
            raise StudyError(f"{name}={value!r} is out of scope: {reason}.")
    if candidate.change.patch:
        require_repository(study.root)
        paths = changed_files(study.root, candidate.change.patch)
        refuse_out_of_scope(study.root, agreed, paths)
