"""What a run loaded, and what must not have changed while it was under way.

Before a process is started, a small module is put on its PYTHONPATH (`inside.py`), which writes
down what Python loads. Afterwards that is compared with the commit: a file that Git does not know,
or the repository's own instead of the worktree's, makes the run worthless. So does a change from
outside: of files that Python loads at every start, of data that Git does not hold, and of what
training had written, while the evaluation read it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.study.agree import checkout, interpreter, untracked
from assay.study.agree.protocol import fingerprint, protected_files
from assay.study.agree.scope import changed_files, in_scope
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.run import inside

_CODE = (".py", ".pyc", ".so", ".pyd", ".pth")
UNWATCHED = "its command started no Python that could be watched"
PARTLY = "it started a program with an environment of its own, which could not be watched"
UNPINNED = "it ran in the directory as it is, where imports are not watched"
Looks = dict[str, tuple[int, int, int, int]]


@dataclass(slots=True)
class Notes:
    """What the processes of one command said that they did."""

    watched: bool = False  # whether any of them said something
    escaped: bool = False  # whether one was started that could say nothing
    code: dict[str, str] = field(default_factory=dict)  # executed or imported: hashes, by path
    read: set[str] = field(default_factory=set)  # opened, of the worktree
    outside: set[str] = field(default_factory=set)  # code of the repository itself
    installed: set[str] = field(default_factory=set)  # code of other places
    written: set[str] = field(default_factory=set)  # of the run's output
    peeked: set[str] = field(default_factory=set)  # opened, of other runs and studies

    @classmethod
    def of(cls, place: Path) -> Notes:
        """Read the notes in a directory."""
        notes = cls()
        sets = {
            "read": notes.read, "root": notes.outside, "installed": notes.installed,
            "write": notes.written, "peek": notes.peeked,
        }  # fmt: skip
        for path in sorted(place.iterdir()):
            for line in path.read_bytes().decode(errors="surrogateescape").splitlines():
                kind, mark, name = [*line.split("\t", 2), "", ""][:3]
                notes.watched |= kind == "start"
                notes.escaped |= kind == "escape"
                if kind == "code":
                    notes.code[name] = mark
                elif kind in sets:
                    sets[kind].add(name)
        return notes


class Guard:
    """Watches over one run; what it finds is in `found`."""

    def __init__(
        self,
        root: Path,
        agreed: Contract,
        place: Path,
        env: Mapping[str, str],
        orders: Mapping[str, Any],
        patch: str,
    ) -> None:
        self.root, self.agreed, self.place, self.env = root, agreed, place, env
        self.orders = orders  # what the ledger says of the launch
        self.patch = patch
        self.found: list[str] = []  # what makes the run worthless
        self.loaded: dict[str, str] = {}  # hashes of the repository's files that it loaded
        self.unrecorded = ""  # why that cannot be known, if it cannot
        self._held: dict[str, checkout.Entry] = {}
        self._trained: Looks | None = None
        self._begun = time.time_ns()

    # ------------------------------------------------------------------ before and after a process

    def begin(self, tree: Path, training: bool, pinned: bool) -> dict[str, str]:
        """Look at everything, lay the watching module, and return the process's environment.

        Raises:
            StudyError: Something was changed since the launch; nothing is to be started.
        """
        self._look()
        self._look_at_output(written=())
        if self.found:
            raise StudyError(self.found[0])
        if not pinned:
            self.unrecorded = UNPINNED
            return dict(self.env)
        self._held = _held(tree)
        laid = self._laid(training)
        (laid / "notes").mkdir(parents=True)
        (laid / "sitecustomize.py").write_text(self._module(tree, training))
        env = dict(self.env)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(laid), env.get("PYTHONPATH", ""))))
        if not training:  # so that compiled code in its worktree is somebody else's
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        return env

    def end(self, tree: Path, training: bool, pinned: bool) -> None:
        """Look at everything again, and at what the process loaded."""
        notes = Notes()
        if pinned:
            laid = self._laid(training)
            try:
                whole = (laid / "sitecustomize.py").read_text() == self._module(tree, training)
                notes = Notes.of(laid / "notes")
            except OSError:
                whole = False
            if not whole:
                self.found.append("what watches its imports was changed while it ran")
            self._look_at_code(tree, notes, training)
            shutil.rmtree(laid, ignore_errors=True)
        self._look()
        if training:
            self._trained = _looks(self.place / "out")
        else:
            self._look_at_output(notes.written)

    def writable(self, training: bool) -> list[Path]:
        """Return the directories of the run that its processes write to, besides the worktree."""
        return [path for path in (self.place / "out", self._laid(training)) if path.is_dir()]

    def _laid(self, training: bool) -> Path:
        return self.place / ("inside-training" if training else "inside-evaluation")

    def _module(self, tree: Path, training: bool) -> str:
        text = Path(inside.__file__).read_text()
        places = {
            "ROOT": self.root,
            "TREE": tree,
            "OUT": self.place / "out",
            "NOTES": self._laid(training) / "notes",
        }
        for name, path in places.items():
            text = text.replace(f'{name} = ""', f"{name} = {str(path.resolve())!r}", 1)
        return text

    # ------------------------------------------------------------------ what is looked at

    def _look(self) -> None:
        """Find startup files and data that are not what they were at the launch."""
        before = self.orders.get("startup")
        if before is not None:
            pythons = interpreter.interpreters(self.root, self.agreed, self.env)
            odd = interpreter.changed(before, interpreter.startup_files(pythons, self.env))
            self._note(odd, lambda path: f"'{path}', which Python loads at its start, was changed")
        kept = self.orders.get("untracked")
        if kept:
            now = untracked.examine(self.root, self.agreed, kept)
            odd = untracked.changed(self.root, now, kept)
            self._note(odd, lambda what: f"{what} was changed")

    def _note(self, odd: str, sentence: Callable[[str], str]) -> None:
        if odd and not any(odd in known for known in self.found):
            self.found.append(f"{sentence(odd)} while the run was under way")

    def _look_at_output(self, written: Iterable[str]) -> None:
        """Find files of the training that were changed, unless the evaluation did so itself."""
        if self._trained is None:
            return
        now, own = _looks(self.place / "out"), tuple(written)
        for path, looks in self._trained.items():
            mine = any(path == name or path.startswith(f"{name}/") for name in own)
            if now.get(path) != looks and not mine:
                self._note(f"'{path}'", lambda name: f"{name}, which training wrote, was changed")

    def _look_at_code(self, tree: Path, notes: Notes, training: bool) -> None:
        """Hold what was loaded against the commit."""
        what = "it" if training else "its evaluation"
        if not notes.watched or notes.escaped:
            self.unrecorded = self.unrecorded or (PARTLY if notes.watched else UNWATCHED)
        if not notes.watched:
            pythons = interpreter.interpreters(self.root, self.agreed, self.env)
            for place in interpreter.editables(self.root, pythons, self.env)[:1]:
                self.found.append(f"{what} may have imported from '{place}', not from its worktree")
        for path in sorted(notes.outside):
            if not self._linked(path):
                self.found.append(
                    f"{what} loaded '{path}' from the repository itself, not from its worktree"
                )
        for path in sorted(notes.peeked):
            if not self._linked(path):
                self.found.append(f"{what} read '{path}', which is not of its own run")
        for path, mark in sorted(notes.code.items()):
            self.loaded[path] = mark
            if self._linked(path):
                continue
            entry = self._held.get(path)
            if entry is None:
                self.found.append(f"{what} loaded '{path}', which is not in the commit")
            elif checkout.difference(tree, path, entry) or mark != fingerprint(tree / path):
                self.found.append(f"{what} loaded '{path}', which was changed in its worktree")
        for path in sorted(notes.read & self._held.keys()):
            if (tree / path).is_file():
                self.loaded.setdefault(path, fingerprint(tree / path))
        if not training:
            self._look_at_evaluation(tree, notes)

    def _look_at_evaluation(self, tree: Path, notes: Notes) -> None:
        for path in protected_files(tree, self.agreed):
            if path in self._held and checkout.difference(tree, path, self._held[path]):
                self.found.append(f"'{path}' was changed in the worktree of the evaluation")
        for path in _code_of(tree):
            known = path in self._held or path in notes.code or self._linked(path)
            if not known:
                self.found.append(f"'{path}' appeared in the worktree of the evaluation")
        # What a program generates elsewhere, such as compiled steps, may be as young as the run.
        pythons = interpreter.interpreters(self.root, self.agreed, self.env)
        homes = [place for python in pythons for place in interpreter.places(python, self.env)]
        for path in sorted(notes.installed):
            known = any(Path(path).is_relative_to(home) for home in homes)
            if known and _edited_since(Path(path), self._begun):
                self.found.append(f"its evaluation loaded '{path}', which was changed while it ran")
        touched = changed_files(self.root, self.patch) if self.patch else []
        for path in sorted(set(touched) & notes.code.keys()):
            if not in_scope(path, self.agreed.evaluation.changeable):
                self.found.append(f"its evaluation loaded '{path}', which the candidate changes")

    def _linked(self, path: str) -> bool:
        """Return whether a path is one that Git does not hold and the contract names."""
        names = self.agreed.baseline.untracked
        return any(path == name or path.startswith(f"{name.rstrip('/')}/") for name in names)


def _edited_since(path: Path, moment: int) -> bool:
    """Return whether a file was changed after a moment, by a time that nobody can set."""
    try:
        return path.stat().st_ctime_ns > moment
    except OSError:  # it is gone, or was not a file at all
        return False


def _held(tree: Path) -> dict[str, checkout.Entry]:
    """Return every file that Git holds of a worktree, those of its submodules included."""
    held = checkout.staged(tree)
    for path in checkout.submodules(held):
        held |= {f"{path}/{name}": entry for name, entry in _held(tree / path).items()}
    return held


def _code_of(tree: Path) -> Iterable[str]:
    """Return the files of a directory that Python would import."""
    for directory, _, files in os.walk(tree):
        for name in files:
            if name.endswith(_CODE):
                yield Path(directory, name).relative_to(tree).as_posix()


def _looks(out: Path) -> Looks:
    """Return what shows an edit of a file, also of one that was put back, for every file."""
    found = {}
    for path in (path for path in out.rglob("*") if path.is_symlink() or path.is_file()):
        at = path.lstat()
        name = path.relative_to(out).as_posix()
        found[name] = (at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino)
    return found
