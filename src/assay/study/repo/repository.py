"""A foreign repository, read once: its files, what each of them does, and what uses what."""

from __future__ import annotations

import fnmatch
import functools
import gc
import re
from collections.abc import Iterable
from pathlib import Path

from assay.study.repo.commands import find_commands
from assay.study.repo.files import MAX_FILES, Files, words
from assay.study.repo.hints import Hints, mismatch
from assay.study.repo.python import read_imports, read_python
from assay.study.repo.reach import Reach
from assay.study.repo.walk import Facts

# A file without any of these has no answer to any question, only imports.
_INTERESTING = re.compile(
    r"__main__|[Rr]ew|[Tt]erm|[Dd]one|[Cc]urric|[Rr]andom|[Tt]rain|[Ee]val|[Ll]earn|[Ll]og|[Cc]fg"
    r"|[Cc]onfig|\.step\(|\.backward\(|[Ee]nv|[Mm]etric|scalar|argparse|flags|command|Writer"
    r"|yaml|json|csv|wandb|difficulty|dataclass|seed"
)
# What steps an environment or pays a reward; imports are looked at in any case.
_RL = re.compile(r"[Rr]eward|\b_?rew\b|Rew|\.step\(")
# A file that speaks of most of these is about reinforcement learning, whatever it imports.
_SPEAKS = tuple(
    re.compile(rf"(?<![A-Za-z])(?:{word})(?![a-z])")
    for word in ("rewards?", "episodes?", "polic(?:y|ies)", "actions?", "env|environment",
        "agents?", "obs|observations?", "gamma|discount", "done|terminated", "rollouts?", "returns")
)  # fmt: skip
_ENOUGH = 6
_SHORT = 4000  # what hands names on is short, and costs nothing to read
_NAMED = re.compile(
    r"reinforcement[ -]learning|\b(RL|RLHF|GRPO|PPO|DQN)\b|Q-learning|policy gradients?"
    r"|Alpha ?Zero|MuZero|self-play",
    re.IGNORECASE,
)


class Repository:
    """One repository, read once."""

    def __init__(self, root: Path, hints: Hints, script: str | None = None) -> None:
        self.files = Files(root)
        self.hints = hints
        self.script = script  # what trains, where a person has said so
        self.facts: dict[str, Facts] = {}
        collecting = gc.isenabled()
        # Syntax trees are many small objects that die together: collecting them halves the speed.
        gc.disable()
        try:
            self._read()
        finally:
            if collecting:
                gc.enable()
        self.scripts = find_commands(self.files, self.facts)
        self._imported: dict[str, list[str]] = {}
        self._relevant: list[Facts] = []  # once the commands are known
        self.closures: dict[tuple[str, int], list[Facts]] = {}
        self.chosen: dict[str, list[str]] = {"train": [], "evaluate": []}
        self.sure: dict[tuple[str, str], float] = {}
        self.own: set[str] = set()  # files that training and evaluation use
        self._reached: dict[str, Reach] = {}  # by kind, once the commands are known
        self._near: set[str] = set()

    def _read(self) -> None:
        """Read what can show that this is about RL first, and the rest only if it is."""
        vocabulary = dict(self.hints.vocabulary)
        paths = [
            path
            for path in self.files.ending(".py")
            if not any(fnmatch.fnmatch(path, glob) for glob in self.hints.ignore)
        ]
        rest: list[str] = []
        found: dict[str, Facts] = {}
        for path in paths:
            text = self.files.text(path)
            whole = not self.files.is_test(path) and (
                len(text) < _SHORT or _INTERESTING.search(text) is not None
            )
            whole = whole or path == self.script
            if whole and path != self.script and not _RL.search(text):
                rest.append(path)
                whole = False
            fact = read_python(path, text, vocabulary) if whole else read_imports(path, text)
            fact.modules.update(self.files.named_in(text))
            found[path] = fact
            if not self.files.is_test(path) and "eward" in text:
                fact.speaks = sum(1 for word in _SPEAKS if word.search(text))
        self.facts = found
        if self.is_rl():
            for path in rest:
                text = self.files.text(path)
                found[path] = read_python(path, text, vocabulary)
                found[path].modules.update(self.files.named_in(text))

    def imported(self, path: str) -> list[str]:
        """Return the files of the repository that a file imports."""
        if path not in self._imported:
            fact = self.facts[path]
            found = {self.files.module(module, near=path) for module in fact.modules}
            self._imported[path] = sorted(f for f in found if f in self.facts and f != path)
        return self._imported[path]

    def closure(self, path: str, depth: int = 3) -> list[Facts]:
        """Return the file and what it imports from the repository, near ones first."""
        if (path, depth) not in self.closures:
            seen, level = {path: None}, [path]
            for _ in range(depth):
                following = [
                    name for item in level for name in self.imported(item) if name not in seen
                ]
                level = list(dict.fromkeys(following))
                seen.update(dict.fromkeys(level))
            self.closures[path, depth] = [self.facts[item] for item in seen]
        return self.closures[path, depth]

    def is_rl(self) -> bool:
        """Return whether anything here steps an environment or imports what does."""
        local = {path.partition("/")[0].removesuffix(".py") for path in self.facts}
        local |= {path.split("/")[1] for path in self.facts if path.startswith("src/")}
        for fact in self.facts.values():
            if fact.path == self.script or any(hit.name not in local for hit in fact.rl):
                return True
            own = tuple(f"{hit.name}." for hit in fact.environments)
            if any(hit.name.startswith(own) for hit in fact.code["reward"]):
                return True
            if any(slot == "reward" for slot, *_ in fact.terms) or fact.speaks >= _ENOUGH:
                return True
        return _NAMED.search(self.description) is not None and (
            any(fact.speaks for fact in self.facts.values()) or self._plays_itself()
        )

    def _plays_itself(self) -> bool:
        """Return whether networks are imported beside a search for moves, which has no rewards."""
        modules = {module for fact in self.facts.values() for module in fact.modules}
        nets = {"torch", "tensorflow", "keras", "jax"} & {m.partition(".")[0] for m in modules}
        said = {word for path in self.facts for word in words(path)}
        return bool(nets and said & {"mcts", "selfplay", "alphazero"})

    @functools.cached_property
    def description(self) -> str:
        """The repository's own description."""
        return "\n".join(
            self.files.text(path)
            for path in self.files.paths
            if "/" not in path and path.lower().startswith("readme")
        )

    def troubles(self) -> tuple[str, ...]:
        """Return what stands in the way of good answers, each with its name."""
        imported = {m.partition(".")[0] for fact in self.facts.values() for m in fact.modules}
        found = [mismatch(self.files.root, self.hints, imported)]
        if not self.is_rl():
            found.append(
                "no reinforcement learning: nothing here steps an environment, computes a reward "
                "or imports a library that does, so every answer is none."
            )
        broken = [path for path, fact in self.facts.items() if fact.broken]
        if broken:
            more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
            shown = ", ".join(broken[:3])
            found.append(f"unreadable code: no valid Python, read in parts: {shown}{more}.")
        if self.files.left_out:
            found.append(f"too many files: only the first {MAX_FILES:,} were read.")
        return tuple(text for text in found if text)

    def relevant(self) -> list[Facts]:
        """Return the files that training and evaluation use; without any, all but the tests."""
        if self._relevant:
            return self._relevant
        paths: dict[str, Facts] = {}
        scripts = [*self.chosen["train"], *self.chosen["evaluate"]]
        for target in [*scripts, *(self._instantiated() if scripts else ())]:
            for fact in self.closure(target, depth=12):
                if not self.files.is_test(fact.path) or fact.path == target:
                    paths.setdefault(fact.path, fact)
        self.own = set(paths)
        self._relevant = list(paths.values()) or self.searched()
        return self._relevant

    def near(self) -> set[str]:
        """Return the files that the first train command uses, and the evaluation; else all."""
        train = self.chosen["train"][:1]
        used = {fact.path for script in train for fact in self.closure(script, depth=12)}
        used |= set(self._instantiated()) if train else set()
        return used | set(self.chosen["evaluate"][:1]) if used else set(self.facts)

    def distance(self, place: str, *kinds: str) -> int:
        """Return how far a line, `path:line`, is from the first train command and evaluation.

        0 if they run it, or those of them that are named; 1 if they use its file, else 2.
        """
        if not self._reached:
            self._reached = {kind: self._followed(kind) for kind in self.chosen}
            self._near = self.near()
        path, _, line = place.rpartition(":")
        reached = [self._reached[kind] for kind in kinds or self.chosen]
        if any(item.has(path, int(line)) for item in reached):
            return 0
        beside = all(item.beside(path, int(line)) for item in self._reached.values())
        return 2 if beside or path not in self._near else 1

    def around(self, place: str) -> str:
        """Return the function or method that a line, `path:line`, is in."""
        path, _, line = place.rpartition(":")
        parts = self.facts[path].parts.parts if path in self.facts else ()
        return next((part.name for part in parts if part.line <= int(line) <= part.end), "")

    def _followed(self, kind: str) -> Reach:
        """Return what the first command of a kind runs, with what settings name."""
        scripts = self.chosen[kind][:1]
        made = list(self._instantiated()) if scripts else []
        files = {fact.path: fact for path in [*scripts, *made] for fact in self.closure(path, 12)}
        reach = Reach(list(files.values()), {path: self._origins(path) for path in files})
        for path in made:
            reach.run(path, "")
        for path in scripts:
            functions = [e.function for e in self.scripts.entries.values() if e.target == path]
            reach.run(path, functions[0] if functions else "", evaluates=kind == "evaluate")
        return reach

    def _origins(self, path: str) -> dict[str, tuple[str, str]]:
        """Return what the names that a file imports are: a file and a name in it."""
        found = {}
        for local, origin in self.facts[path].imports.items():
            module, _, name = origin.rpartition(".")
            whole = self.files.module(origin, near=path)
            source = whole or self.files.module(module, near=path)
            if source is not None:
                found[local] = (source, "" if whole else name)  # `*` stands for all of it
        return found

    def _instantiated(self) -> Iterable[str]:
        """Yield the files of what settings name, to be made when a script is run."""
        for path in self.files.ending(".yaml", ".yml"):
            text = "" if self.files.is_test(path) else self.files.text(path)
            if "_target_" in text:
                for name in re.findall(r"_target_:\s*[\"']?([\w.]+)", text):
                    target = self.files.module(name.rpartition(".")[0]) if "." in name else None
                    if target in self.facts and target is not None:
                        yield target

    def searched(self) -> list[Facts]:
        """Return all files but the tests."""
        return [fact for path, fact in self.facts.items() if not self.files.is_test(path)]

    def of_stack(self, target: str) -> bool:
        """Return whether a script belongs to the stack that the hints are about."""
        if not self.hints.imports:
            return True
        roots = {module.partition(".")[0] for module in self.facts[target].modules}
        return bool(roots & set(self.hints.imports))
