"""Candidates that patch files get a worktree of their own, and their diffs are never lost.

The incumbent's tree is not touched: a patch is checked against the scope as text, applied in a
detached worktree, and the files that really changed are checked again there.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from assay.runs.git import GitError, git, repository
from assay.study.agree.protocol import in_scope, protected_files
from assay.study.files.models import Contract
from assay.study.record.study import ROOT, Study, StudyError

REFS = "refs/rlxp"


def pinned(root: Path) -> bool:
    """Return whether runs get a tree of a commit, which takes the top of a Git repository."""
    top = repository(root)
    if top is None or top.resolve() != root.resolve():
        return False
    with contextlib.suppress(GitError):
        return bool(git(root, "rev-parse", "--verify", "--quiet", "HEAD"))
    return False


def require_repository(root: Path) -> None:
    """Refuse a directory that is not the top of a Git repository.

    Raises:
        StudyError: It is not.
    """
    top = repository(root)
    if top is None or top.resolve() != root.resolve():
        raise StudyError(
            f"'{root}' is not the top of a Git repository, and a patch needs one.",
            "Run `git init` and commit there, or use parameters instead of a patch.",
        )


def changed_files(root: Path, patch: str) -> list[str]:
    """Return the paths that a unified diff touches, old and new names both.

    Raises:
        StudyError: It is no diff that Git can read.
    """
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
    """Refuse paths that the contract does not allow to be changed.

    Raises:
        StudyError: Names the first such path and why.
    """
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


@contextlib.contextmanager
def worktree(
    study: Study, contract: Contract, name: str, patch: str, base: str = "HEAD"
) -> Iterator[Path]:
    """Yield a detached worktree of a commit with the patch applied, and remove it afterwards.

    What the patched tree holds is kept as a commit under `refs/rlxp/`, also if the candidate is
    rejected later.

    Raises:
        StudyError: The patch does not apply, or changes what it must not.
    """
    root = study.root
    require_repository(root)
    if patch:
        refuse_out_of_scope(root, contract, changed_files(root, patch))
    place = study.path / "worktrees" / name
    with _serialised(study):
        _remove(root, place)
        git(root, "worktree", "add", "--detach", "--quiet", str(place), base)
    try:
        if patch:
            _apply(place, patch)
        _refuse_links(place)
        really = git(place, "diff", "--cached", "--name-only", "--no-renames", "-z", "HEAD")
        refuse_out_of_scope(root, contract, [path for path in really.split("\0") if path])
        before = protected_files(root, contract)
        after = protected_files(place, contract) if before else {}
        ours = {path: value for path, value in before.items() if not path.startswith(ROOT)}
        if {path: after.get(path) for path in ours} != ours:
            odd = next(path for path in ours if after.get(path) != ours[path])
            raise StudyError(f"'{odd}' is not what it is in the repository: it is protected.")
        for path in contract.baseline.untracked:
            _link(root, place, path)
        if patch:
            keep(study, name, place)
        yield place
    finally:
        with _serialised(study):
            _remove(root, place)


def _refuse_links(place: Path) -> None:
    """Refuse a patch that makes a link or a submodule: what it leads to is outside of Git's sight.

    Raises:
        StudyError: Names it.
    """
    raw = git(place, "diff", "--cached", "--raw", "--no-renames", "-z", "HEAD").split("\0")
    for facts, path in zip(raw[::2], raw[1::2], strict=False):
        if facts.split(" ")[1] in ("120000", "160000"):
            raise StudyError(f"The patch makes '{path}' a symbolic link or a submodule.")


def _link(root: Path, place: Path, path: str) -> None:
    """Let a run see a path of the repository that Git does not hold.

    Raises:
        StudyError: It is not there, leaves the repository, or is in Git after all.
    """
    source, target = root / path, place / path
    if path.startswith("/") or ".." in PurePosixPath(path).parts or not source.exists():
        raise StudyError(
            f"'{path}' of baseline.untracked is no path in '{root}'.",
            "Name files or directories relative to the repository's top.",
        )
    if target.exists():
        raise StudyError(
            f"'{path}' of baseline.untracked is in Git.", "Leave it out: runs have it anyway."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())


def _apply(place: Path, patch: str) -> None:
    try:
        git(place, "apply", "--index", "-", data=patch.encode())
    except GitError as error:
        raise StudyError(
            f"The patch does not apply: {error.message}",
            "Make it again against the incumbent's commit, or HEAD where there is none.",
        ) from None


def kept(study: Study, run: str) -> str:
    """Return the commit that holds the code of a run, or "" if it ran the repository's own."""
    ref = f"{REFS}/{study.task}/{study.name}/candidates/{run}"
    with contextlib.suppress(GitError):
        return git(study.root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").strip()
    return ""


def keep(study: Study, name: str, place: Path) -> str:
    """Keep the index of a worktree as a commit under a ref of the candidate; return its id."""
    tree = git(place, "write-tree").strip()
    identity = ("-c", "user.name=assay", "-c", "user.email=assay@localhost")
    message = f"Candidate {name} of {study.task}/{study.name}"
    commit = git(place, *identity, "commit-tree", tree, "-p", "HEAD", "-m", message).strip()
    git(study.root, "update-ref", f"{REFS}/{study.task}/{study.name}/candidates/{name}", commit)
    return commit


@contextlib.contextmanager
def _serialised(study: Study) -> Iterator[None]:
    """Let one process at a time change the list of worktrees, which Git does not do itself."""
    study.path.mkdir(parents=True, exist_ok=True)
    with open(study.path / "worktrees.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(root: Path, place: Path) -> None:
    if place.exists():
        with contextlib.suppress(GitError):
            git(root, "worktree", "remove", "--force", str(place))
        shutil.rmtree(place, ignore_errors=True)
    git(root, "worktree", "prune")
