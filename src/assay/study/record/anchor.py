"""Note the head of a ledger in a Git ref, one commit upon the other, where it cannot be unsaid."""

from __future__ import annotations

import json
import time
from pathlib import Path

from assay.runs.git import GitError, git
from assay.study.record.ledger import Head


class GitRef:
    """A ref whose commits each note a head.

    Args:
        root: The repository; without Git nothing is noted.
        name: The ref's full name.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name

    @property
    def possible(self) -> bool:
        """Return whether the directory is the top of a Git repository."""
        return (self.root / ".git").exists()

    def head(self) -> Head | None:
        """Return the head that was noted last, or None where there is none."""
        return self.last()[0]

    def last(self) -> tuple[Head | None, str]:
        """Return the head that was noted last, and the hash of the state that it comes to."""
        if not self.possible:
            return None, ""
        try:
            text = git(self.root, "cat-file", "commit", self.name).partition("\n\n")[2]
        except GitError:
            return None, ""
        head = _head(text)
        return head, str(json.loads(text).get("state", "")) if head else ""

    def chain(self) -> tuple[list[Head], str]:
        """Return all heads that were noted, the newest first, and why there are none."""
        if not self.possible:
            return [], ""
        try:
            lines = git(self.root, "rev-list", "--format=%B", self.name).splitlines()
        except GitError as error:
            return [], f" ({' '.join(error.message.rstrip('.').split())})"
        heads = [_head(line) for line in lines if line.startswith("{")]
        # A note that says nothing stands for no event, so that it is found wrong.
        return [head or Head(-1, "") for head in heads], ""

    def note(self, head: Head, state: str = "") -> bool:
        """Note a head in a commit upon those that there are; return whether Git did.

        With it goes the hash of the state that the ledger comes to there, where it is known.
        """
        if not self.possible:
            return False
        before, known = self.last()
        if before == head and state in ("", known):
            return True
        values = {"seq": head.seq, "hash": head.hash} | ({"state": state} if state else {})
        text = json.dumps(values) + "\n"
        stream = (
            f"commit {self.name}\ncommitter assay <assay@localhost> {int(time.time())} +0000\n"
            f"data {len(text)}\n{text}" + (f"from {self.name}^0\n" if before else "")
        )
        try:
            git(self.root, "fast-import", "--quiet", data=stream.encode())
        except GitError:
            return False
        return True


def _head(text: str) -> Head | None:
    """Return the head that a note names, or None if it names none."""
    try:
        values = json.loads(text)
        return Head(int(values["seq"]), str(values["hash"]))
    except (ValueError, TypeError, KeyError):
        return None
