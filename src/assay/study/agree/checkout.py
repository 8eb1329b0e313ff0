"""Whether a directory holds exactly what a commit says, byte by byte.

Git may write other bytes than it stores: filters, attributes and line endings change a file when it
is checked out. What may differ is known here: line endings, and a Git LFS pointer whose content is
the one that it names. Everything else is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from assay.runs.git import GitError, git
from assay.study.files.documents import StudyError

LINK, SUBMODULE = "120000", "160000"
_POINTER = b"version https://git-lfs.github.com/spec/"
_LONGEST_POINTER = 1024


class Entry(NamedTuple):
    """One file of a tree."""

    mode: str
    id: str  # of its blob, or of a submodule's commit


def entries(place: Path, tree: str, *paths: str) -> dict[str, Entry]:
    """Return every file of a tree or commit, by path; only those of `paths`, if any are given."""
    found = {}
    for line in git(place, "ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths).split("\0"):
        if line:
            facts, path = line.split("\t", 1)
            mode, _, name = facts.split(" ")
            found[path] = Entry(mode, name)
    return found


def staged(place: Path) -> dict[str, Entry]:
    """Return every file of a worktree's index, by path: of the tree that a commit of it has.

    Raises:
        StudyError: A merge left a path in several versions.
    """
    found = {}
    for line in git(place, "ls-files", "--stage", "-z").split("\0"):
        if line:
            facts, path = line.split("\t", 1)
            mode, name, stage = facts.split(" ")
            if stage != "0":
                raise StudyError(f"'{path}' is not merged in the index of '{place}'.")
            found[path] = Entry(mode, name)
    return found


def require_same(place: Path, held: Mapping[str, Entry]) -> None:
    """Refuse a directory that does not hold exactly the bytes of its commit.

    Raises:
        StudyError: Names the first file that differs, and what may have changed it.
    """
    for path, entry in held.items():
        reason = difference(place, path, entry)
        if reason:
            raise StudyError(
                f"'{path}' {reason}.",
                "Look at .gitattributes, .git/info/attributes and the filters of .git/config; of a "
                "Git LFS file, fetch its content: git lfs pull.",
            )


def difference(place: Path, path: str, entry: Entry) -> str:
    """Return how a file differs from what its commit holds, or ""."""
    if entry.mode == SUBMODULE:
        return ""
    full = place / path
    if full.is_symlink() != (entry.mode == LINK):
        return "is a symbolic link in one of the commit and the run's worktree, and not in both"
    try:
        data = os.fsencode(os.readlink(full)) if entry.mode == LINK else full.read_bytes()
    except OSError:
        return "is in the commit and missing in the run's worktree"
    if _blob(data, len(entry.id)) == entry.id:
        return "is a Git LFS pointer, and its content is not here" if _pointer(data) else ""
    # From its own directory: it may be a submodule's.
    held = git(full.parent, "cat-file", "blob", entry.id).encode(errors="surrogateescape")
    wanted = _pointer(held)
    if wanted:
        same = hashlib.sha256(data).hexdigest() == wanted
        return "" if same else "is not the content that its Git LFS pointer names"
    if data.replace(b"\r\n", b"\n") == held.replace(b"\r\n", b"\n"):
        return ""
    return "has other bytes in the run's worktree than in the commit"


def _blob(data: bytes, length: int) -> str:
    """Return the id that Git gives to the bytes of a file."""
    found = hashlib.new("sha1" if length == 40 else "sha256")
    found.update(b"blob %d\0" % len(data))
    found.update(data)
    return found.hexdigest()


def _pointer(data: bytes) -> str:
    """Return the SHA-256 that a Git LFS pointer names, or "" if it is none."""
    if len(data) > _LONGEST_POINTER or not data.startswith(_POINTER):
        return ""
    found = re.search(rb"^oid sha256:([0-9a-f]{64})$", data, re.MULTILINE)
    return found[1].decode() if found else ""


def submodules(held: Mapping[str, Entry]) -> dict[str, str]:
    """Return the submodules of a tree with their commits, by path."""
    return {path: entry.id for path, entry in held.items() if entry.mode == SUBMODULE}


def obstacles(root: Path) -> list[str]:
    """Return what of a repository keeps a run from having its code, in words for people.

    Submodules that are checked out, Git LFS files whose content is here and sparse checkouts work.
    """
    try:
        held = entries(root, "HEAD")
        shared = _shared(root)
    except GitError:
        return []
    found = list(_unfetched(root, held))
    grafts = shared / "info" / "grafts"
    if grafts.is_file() and grafts.stat().st_size:
        found.append(f"'{grafts}' shows commits with other parents than they have; remove it")
    return found


def _shared(root: Path) -> Path:
    """Return Git's own directory of a repository, which all its worktrees share."""
    own = root / ".git"
    if (own / "HEAD").is_file() and not (own / "commondir").exists():
        return own
    return root / git(root, "rev-parse", "--git-common-dir").strip()


def _unfetched(root: Path, held: Mapping[str, Entry]) -> Iterator[str]:
    for path in submodules(held):
        if not (root / path / ".git").exists():
            yield f"the submodule '{path}' is not checked out; run git submodule update --init"
    for path, entry in held.items():
        full = root / path
        if entry.mode in (LINK, SUBMODULE) or not full.is_file() or full.is_symlink():
            continue
        if full.stat().st_size <= _LONGEST_POINTER and _pointer(full.read_bytes()):
            yield f"'{path}' is a Git LFS pointer, and its content is not here; run git lfs pull"


def refuse_obstacles(root: Path) -> None:
    """Refuse a repository whose code a run would not get.

    Raises:
        StudyError: Names the first obstacle, and what removes it.
    """
    found = obstacles(root)
    if found:
        raise StudyError(f"Runs would not have the code of '{root}': {found[0]}.")
