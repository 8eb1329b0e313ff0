"""What a candidate may change: the parameters, ranges and files that were agreed on."""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from assay.core.errors import nearest
from assay.runs.git import GitError, git, repository
from assay.study.agree.protocol import matching, protected_files
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract, Parameter
from assay.study.files.documents import ROOT, StudyError
from assay.study.record.study import Study

_LINKS = re.compile(r"^new (?:file )?mode 1[26]0000$", re.MULTILINE)


def pinned(root: Path) -> bool:
    """Return whether runs get a tree of a commit, which takes the top of a Git repository."""
    return bool(checked_out(root))


def checked_out(root: Path) -> str:
    """Return the commit that is checked out at the top of a Git repository; "" if there is none."""
    with contextlib.suppress(GitError):
        top, _, commit = git(root, "rev-parse", "--show-toplevel", "HEAD").strip().rpartition("\n")
        return commit if Path(top).resolve() == root.resolve() else ""
    return ""


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


def refuse_unfit(root: Path, patch: str, commit: str) -> None:
    """Refuse a patch that does not apply to a commit, or makes a link; nothing is changed.

    Raises:
        StudyError: No run could have it.
    """
    if _LINKS.search(patch):
        raise StudyError("The patch makes a symbolic link or a submodule, which no run may have.")
    with tempfile.TemporaryDirectory(prefix="assay-patch-") as place:
        index = Path(place) / "index"
        git(root, "read-tree", commit, index=index)
        try:
            git(root, "apply", "--cached", "--check", "-", data=patch.encode(), index=index)
        except GitError as error:
            raise does_not_apply(error) from None


def does_not_apply(error: GitError) -> StudyError:
    """Return the refusal of a patch that Git could not apply."""
    return StudyError(
        f"The patch does not apply: {error.message}",
        "Make it again against the incumbent's commit, or HEAD where there is none.",
    )


def refuse_out_of_scope(root: Path, contract: Contract, paths: list[str]) -> None:
    """Refuse paths that the contract does not allow to be changed."""
    kept = set(protected_files(root, contract))
    for path in paths:
        if path == ROOT or path.startswith(f"{ROOT}/"):
            raise StudyError(f"'{path}' belongs to the study and may not be changed.")
        if ".." in PurePosixPath(path).parts:
            raise StudyError(f"'{path}' leaves the repository.", "Make the patch at its top.")
        field = guarded_by(contract, path)
        if path in kept or field:
            raise _protected(path, field)
        if not in_scope(path, contract.scope.files):
            allowed = ", ".join(contract.scope.files) or "no file"
            wanted = ", ".join([*contract.scope.files, path])
            raise StudyError(
                f"'{path}' is outside the approved scope ({allowed}).",
                "Patches may touch what scope.files names: assay study contract set "
                f"'scope.files=[{wanted}]', and have the scope approved.",
            )
        # A link on the way could lead a harmless name to a protected file.
        for part in (root / path, *(root / path).parents):
            if part == root:
                break
            if part.is_symlink():
                raise StudyError(f"'{path}' is reached through the symbolic link '{part.name}'.")


def guarded_by(contract: Contract, path: str) -> str:
    """Return the field of the contract that protects a path by its name, or ""."""
    if in_scope(path, contract.evaluation.files):
        return "evaluation.files"
    return "scope.protected" if in_scope(path, contract.scope.protected) else ""


def _protected(path: str, field: str) -> StudyError:
    """Return the refusal of a patch of a protected file, with the field that can be changed."""
    if not field:
        return StudyError(
            f"'{path}' is protected: it measures the result, since the evaluation imports it.",
            "If patches may change it all the same (the policy's own code), name it: assay study "
            f"contract set 'evaluation.changeable=[{path}]', and have it approved.",
        )
    return StudyError(
        f"'{path}' is protected: it measures the result, according to {field}.",
        f"Take it out of {field} (assay study contract set '{field}=[]' where it is the only one), "
        "name it in scope.files, and have both approved. A patch of what measures can write any "
        "score: an evaluation.command in a file of its own is safer.",
    )


def overlaps(root: Path, contract: Contract) -> list[str]:
    """Return what the contract lets patches change and protects at the same time, in words.

    A glob that allows other files as well is not a contradiction: it means those.
    """
    found = []
    allowed = {
        "scope.files": contract.scope.files,
        "evaluation.changeable": contract.evaluation.changeable,
    }
    for field, patterns in allowed.items():
        for pattern in patterns:
            paths = matching(root, pattern)
            by = {guarded_by(contract, path) for path in paths} - {""}
            if paths and all(guarded_by(contract, path) for path in paths):
                others = " and ".join(sorted(by))
                found.append(
                    f"{field} names '{pattern}', and {others} protects it, so that no patch may "
                    f"change it. Take it out of one of them, such as: assay study contract set "
                    f"'{sorted(by)[0]}=[]'"
                )
    return found


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


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """Return what to do about a setting that the scope does not name."""
    meant = nearest(name, known)
    hint = f"{meant} " if meant.startswith("Did you mean") else ""
    return (
        f"{hint}To allow it: assay study contract set "
        f"'scope.parameters.{name}={{kind: float, low: 0, high: 1}}', and have the scope approved."
    )


def _wider(name: str, known: Parameter, value: Any) -> str:
    """Return how a person allows a value of a setting that the scope names."""
    field = f"scope.parameters.{name}"
    change = f"{field}.choices=[...]"
    if known.kind != "choice":
        if not isinstance(value, int | float) or isinstance(value, bool):
            return "Give a number."
        if not math.isfinite(value):
            return "Give a finite number."
        assert known.low is not None
        change = f"{field}.{'low' if value < known.low else 'high'}={value:g}"
        if known.kind == "int" and isinstance(value, float):
            change = f"{field}.kind=float"
    return f"To allow it: assay study contract set '{change}', and have the scope approved."


def refuse_scope(study: Study, agreed: Contract, candidate: Candidate) -> None:
    """Refuse a change that the contract does not allow."""
    for name, value in candidate.change.parameters.items():
        known = agreed.scope.parameters.get(name)
        if known is None:
            options = ", ".join(agreed.scope.parameters) or "none"
            raise StudyError(
                f"'{name}' is not in the approved scope ({options}).",
                unknown_setting(name, agreed.scope.parameters),
            )
        reason = known.refusal(value)
        if reason:
            raise StudyError(
                f"{name}={value!r} is out of scope: {reason}.", _wider(name, known, value)
            )
    if candidate.change.patch:
        require_repository(study.root)
        paths = changed_files(study.root, candidate.change.patch)
        refuse_out_of_scope(study.root, agreed, paths)
