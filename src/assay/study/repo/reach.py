"""What a script of a foreign repository runs: the functions and methods that it can come to.

A file imports far more than it uses. From the lines that run first, names lead on: a function that
is mentioned runs, and so does a method that is mentioned, if something mentions its class or a
class that inherits from it. What a decorator registers may be made by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from assay.study.repo.files import words
from assay.study.repo.purpose import TRAIN_WORDS
from assay.study.repo.syntax import MAIN, Part
from assay.study.repo.walk import Facts
from assay.study.repo.words import EVALUATE_WORDS

_COMMANDS = {"command", "argument", "option"}  # decorators of functions that a user calls
_DEPTH = 6  # of packages that import a name from each other


class Reach:
    """The pieces of a repository that a script runs."""

    def __init__(
        self, files: Collection[Facts], imported: dict[str, dict[str, tuple[str, str]]]
    ) -> None:
        """Index the files.

        Args:
            files: Those that may be run.
            imported: By file, the names that it imports: a file and a name in it, or no name
                where it is a module.
        """
        self._facts = {fact.path: fact for fact in files}
        self._imported = imported
        self._at: dict[tuple[str, str], list[Part]] = {}
        self._methods: dict[tuple[str, str], list[tuple[str, Part]]] = {}
        self._bases: dict[tuple[str, str], tuple[str, ...]] = {}
        for fact in files:
            for part in fact.parts.parts:
                self._at.setdefault((fact.path, part.name), []).append(part)
                owner, _, name = part.name.rpartition(".")
                if owner:
                    self._methods.setdefault((fact.path, owner), []).append((name, part))
            for name, bases in fact.parts.bases:
                self._bases[fact.path, name] = bases
        self._reached: dict[str, set[Part]] = {}
        self._mentioned: set[str] = set()
        self._alive: set[tuple[str, str]] = set()
        self._todo: list[tuple[str, Part]] = []

    def run(self, path: str, function: str, *, evaluates: bool = False) -> None:
        """Follow what a script runs; a program with several commands runs one of them."""
        fact = self._facts[path]
        commands = {
            part.name: part for part in fact.parts.parts if _COMMANDS & set(part.decorators)
        }
        wanted = EVALUATE_WORDS if evaluates else TRAIN_WORDS
        chosen = [name for name in commands if set(words(name)) & wanted] or list(commands)
        for name in ("", MAIN, function, *chosen):
            self._reach(path, self._at.get((path, name), ()))
        if not self._reached.get(path):
            self._reach(path, fact.parts.parts)
        for item in self._facts.values():
            for part in item.parts.parts:
                if set(part.decorators) - _COMMANDS:
                    self._use(item.path, part.name)
        self._follow()

    def has(self, path: str, line: int) -> bool:
        """Return whether a line can run."""
        return any(part.line <= line <= part.end for part in self._reached.get(path, ()))

    def beside(self, path: str, line: int) -> bool:
        """Return whether a line only runs if another file is run by itself."""
        parts = self._at.get((path, MAIN), ())
        if path not in self._facts:
            return True
        return any(part.line <= line <= part.end for part in parts) and not self.has(path, line)

    def _follow(self) -> None:
        while self._todo:
            path, part = self._todo.pop()
            new = part.mentions - self._mentioned
            self._mentioned |= new
            for name in part.mentions:
                for where, what in self._resolve(path, name):
                    self._use(where, what)
            for where, owner in list(self._alive) if new else ():
                self._call(where, owner, new)

    def _reach(self, path: str, parts: Iterable[Part]) -> None:
        known = self._reached.setdefault(path, set())
        for part in parts:
            if part not in known:
                known.add(part)
                self._todo.append((path, part))

    def _use(self, path: str, name: str) -> None:
        """Follow a function, a variable or a class that something mentions."""
        self._reach(path, self._at.get((path, name), ()))
        if (path, name) in self._bases and (path, name) not in self._alive:
            self._alive.add((path, name))
            self._call(path, name, self._mentioned)
            for base in self._bases[path, name]:
                for where, what in self._resolve(path, base):
                    self._use(where, what)

    def _call(self, path: str, owner: str, names: Collection[str]) -> None:
        """Follow the methods of a class that are mentioned, or that another library calls."""
        foreign = self._is_foreign(path, owner)
        for name, part in self._methods.get((path, owner), ()):
            if foreign or name in names or (name.startswith("__") and name.endswith("__")):
                self._reach(path, (part,))

    def _is_foreign(self, path: str, owner: str, depth: int = 0) -> bool:
        """Return whether a class inherits from one of another library, which calls its methods."""
        for base in self._bases.get((path, owner), ()) if depth < _DEPTH else ():
            known = self._resolve(path, base)
            if not known and base not in _PLAIN:
                return True
            if any(self._is_foreign(where, name, depth + 1) for where, name in known):
                return True
        return False

    def _resolve(self, path: str, name: str, depth: int = 0) -> list[tuple[str, str]]:
        """Return where a name is defined, as a file sees it."""
        if (path, name) in self._at:
            return [(path, name)]
        known = self._imported.get(path, {})
        source, original = known.get(name, ("", ""))
        if depth >= _DEPTH or (source and not original):
            return []
        if source:
            return self._resolve(source, original, depth + 1)
        whole = [where for where, known_as in known.values() if known_as == "*"]
        # `module.function`, where the module was imported.
        modules = [] if depth else self._modules(path)
        return [
            place for where in (*whole, *modules) for place in self._resolve(where, name, depth + 1)
        ]

    def _modules(self, path: str) -> list[str]:
        """Return the files that a file imports as modules, and what those import as such."""
        found: dict[str, None] = {}
        level = [path]
        for _ in range(2):
            level = [
                where
                for item in level
                for where, name in self._imported.get(item, {}).values()
                if not name
            ]
            found.update(dict.fromkeys(level))
        return list(found)


_PLAIN = {"object", "ABC", "Protocol", "Generic", "Enum", "NamedTuple"}
