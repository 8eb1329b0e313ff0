"""Candidates that patch files get a worktree of their own, and their diffs are never lost.

The incumbent's tree is not touched: a patch is checked against the scope as text, applied in a
detached worktree, and the files that really changed are checked again there.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from assay.runs.git import GitError, git
from assay.study.agree import checkout
from assay.study.agree.protocol import protected_files
from assay.study.agree.scope import (
    changed_files,
    does_not_apply,
    refuse_out_of_scope,
    require_repository,
)
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, StudyError
from assay.study.record.study import Study

REFS = "refs/rlxp"


@contextlib.contextmanager
def worktree(
    study: Study, contract: Contract, name: str, patch: str, base: str = "HEAD"
) -> Iterator[Path]:
    """Yield a detached worktree of a commit with the patch applied, and remove it afterwards.

    Submodules are filled in from the repository's own. What the patched tree holds is kept as a
    commit under `refs/rlxp/`, also if the candidate is rejected later.

    Raises:
        StudyError: The patch does not apply, or changes what it must not, or Git wrote other bytes
            than the commit holds.
    """
    root = study.root
    require_repository(root)
    if patch:
        refuse_out_of_scope(root, contract, changed_files(root, patch))
    place = study.path / "worktrees" / name
    with _serialised(study):
        _remove(root, place)
        # Of a sparse checkout a run still gets every file.
        whole = ("-c", "core.sparseCheckout=false")
        git(root, *whole, "worktree", "add", "--detach", "--quiet", str(place), base)
    try:
        committed = checkout.entries(root, base)
        with _serialised(study):
            _fill_in(root, place, committed)
        if patch:
            _apply(place, patch)
        held = checkout.staged(place)
        changed = {path for path, _ in committed.items() ^ held.items()}
        _refuse_links(held, changed)
        checkout.require_same(place, held)
        refuse_out_of_scope(root, contract, sorted(changed))
        before = protected_files(root, contract)
        after = protected_files(place, contract) if before else {}
        ours = {path: value for path, value in before.items() if not path.startswith(ROOT)}
        if {path: after.get(path) for path in ours} != ours:
            odd = next(path for path in ours if after.get(path) != ours[path])
            raise StudyError(f"'{odd}' is not what it is in the repository: it is protected.")
        more = [path for path in after if path not in before]
        if patch and more:
            raise StudyError(f"The evaluation would import '{more[0]}', which the patch adds.")
        for path in contract.baseline.untracked:
            _link(root, place, path)
        if patch:
            keep(study, name, place)
        yield place
    finally:
        with _serialised(study):
            _remove(root, place)


def _fill_in(repository: Path, place: Path, held: Mapping[str, checkout.Entry]) -> None:
    """Give a worktree the submodules of its commit, and theirs, each as a worktree of its own."""
    for path, wanted in checkout.submodules(held).items():
        source, target = repository / path, place / path
        if not (source / ".git").exists():
            raise StudyError(
                f"The submodule '{path}' is not checked out, so that runs would not have it.",
                "Check it out: git submodule update --init --recursive",
            )
        git(source, "worktree", "add", "--detach", "--quiet", str(target), wanted)
        inner = checkout.entries(source, wanted)
        checkout.require_same(target, inner)
        _fill_in(source, target, inner)


def _refuse_links(held: Mapping[str, checkout.Entry], changed: Iterable[str]) -> None:
    """Refuse a patch that makes a link or a submodule: Git does not see what it leads to."""
    for path in sorted(changed):
        if path in held and held[path].mode in (checkout.LINK, checkout.SUBMODULE):
            raise StudyError(f"The patch makes '{path}' a symbolic link or a submodule.")


def _link(root: Path, place: Path, path: str) -> None:
    """Let a run see a path of the repository that Git does not hold."""
    source, target = root / path, place / path
    if path.startswith("/") or ".." in PurePosixPath(path).parts or not source.exists():
        raise StudyError(
            f"'{path}' of baseline.untracked is not a path in '{root}'.",
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
        raise does_not_apply(error) from None


def collect(place: Path, globs: Sequence[str], out: Path) -> None:
    """Move what a run wrote into its worktree to its output; what Git holds stays.

    Raises:
        StudyError: The output has a file of that name already.
    """
    held = set(git(place, "ls-files", "-z").split("\0"))
    found = [path for glob in globs for path in sorted(place.glob(glob))]
    below = [inner for path in found if path.is_dir() for inner in sorted(path.rglob("*"))]
    for path in dict.fromkeys([*found, *below]):
        name = path.relative_to(place).as_posix()
        if name in held or not (path.is_file() or path.is_symlink()):
            continue
        target = out / name
        if target.exists():
            raise StudyError(f"it wrote '{name}' twice: to its output, and beside it")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)


def strays(place: Path) -> list[str]:
    """Return globs of what was written into a worktree and Git does not hold."""
    listed = git(place, "status", "--porcelain", "-z", "--ignored", "--untracked-files=all", ".")
    prefix = git(place, "rev-parse", "--show-prefix").strip()
    found: dict[str, None] = {}
    for entry in filter(None, listed.split("\0")):
        name = entry[3:].removeprefix(prefix)
        first, deeper, _ = name.partition("/")
        if "__pycache__" not in name and first != ROOT:
            found[f"{first}/**/*" if deeper else first] = None
    return list(found)


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
    _prune(root)


def _prune(repository: Path) -> None:
    """Have a repository and its submodules forget worktrees that are gone."""
    own = repository / ".git"
    if not own.is_dir() or (own / "worktrees").exists():  # else it has none to forget
        git(repository, "worktree", "prune")
    if not (repository / ".gitmodules").exists():
        return
    for path in checkout.submodules(checkout.entries(repository, "HEAD")):
        if (repository / path / ".git").exists():
            _prune(repository / path)
