"""The audit of a foreign repository: how it is trained, evaluated, configured and logged.

Static only: syntax trees, documents, entry points, CI files, Makefiles, YAML. Nothing of the target
is imported or run. Every answer has its evidence and a confidence; where nothing was found the
answer is the empty tuple.
"""

from __future__ import annotations

import fnmatch
import gc
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.study.files.models import Adapter, Answer
from assay.study.record.study import StudyError
from assay.study.repo.calls import is_metric
from assay.study.repo.commands import (
    EVALUATE_WORDS,
    Command,
    Purpose,
    evaluates,
    find_commands,
    is_script,
    preference,
    purpose,
    scoped,
    with_seed,
)
from assay.study.repo.files import MAX_FILES, Files, is_test, words
from assay.study.repo.hints import HINTS, HintedAnswer, Hints, find_hints, mismatch
from assay.study.repo.python import read_imports, read_python
from assay.study.repo.walk import Facts, Hit
from assay.study.repo.words import AXES, HANDS_ON, OTHER_CONFIGS, OUTCOME_WORDS, SLOTS

COMMANDS, FILES, METRICS, GUARDRAILS = 60, 200, 250, 100
NAMES = 100  # of one file
_EVIDENCE = 5
_THRESHOLD = 0.5
GUARDRAIL_WORDS = {
    "fall", "falls", "fell", "fallen", "falling", "collision", "collisions", "collided", "crash",
    "crashes", "crashed", "contact", "contacts", "energy", "power", "torque", "torques", "effort",
    "jerk", "smoothness", "violation", "violations", "constraint", "cost", "costs", "success",
    "successes", "failure", "failures", "slip", "slippage", "unsafe", "safety", "damage",
    "stumble", "limits", "overheating", "illegal", "unhealthy", "orientation", "tracking",
}  # fmt: skip
_GUARDRAIL_PAIRS = (
    {"action", "rate"}, {"action", "smooth"}, {"dof", "acc"}, {"joint", "acc"}, {"out", "bounds"},
    {"off", "track"}, {"bad", "orientation"}, {"error", "vel"}, {"action", "acc"},
)  # fmt: skip
_NO_GUARDRAIL = {
    "loss", "contact_email", "air", "coef", "coefficient", "lr", "sigma", "last", "prev",
}  # fmt: skip
# What could be a study's primary metric comes first.
_PROMISING = (
    {"success", "solved", "score", "winrate"}, {"return", "returns", "reward", "rewards"},
    {"length", "error", "tracking"},
)  # fmt: skip
_YAML_SLOTS = {
    "reward": re.compile(r"^_?(reward|rewards|reward_(scales|weights|config|terms|coefs?|cfg))$"),
    "termination": re.compile(r"^(termination|terminations|termination_conditions)$"),
    "curriculum": re.compile(r"^\w*curriculum\w*$"),
    "randomization": re.compile(
        r"^(domain_rand(omi[sz]ation)?|randomi[sz]ation(_params)?|randomi[sz]e\w*|dr_params)$"
    ),
}
_SINKS = {
    "tensorboardlogger": "tensorboard", "summarywriter": "tensorboard", "wandblogger": "wandb",
    "csvlogger": "csv", "mlflowlogger": "custom", "neptunelogger": "custom",
    "cometlogger": "custom",
}  # fmt: skip
_TARGET = re.compile(rf"^\s*-?\s*_target_:\s*[\"']?[\w.]*\.({'|'.join(_SINKS)})\b", re.IGNORECASE)
_ASIDE = {"benchmarks", "benchmarking", "profiling"}
_OFF = {"false", "null", "none", "~", "off", "no", "0", "{}", "[]", "''", '""'}


# A file without any of these has no answer to any question, only imports.
_INTERESTING = re.compile(
    r"__main__|[Rr]ew|[Tt]erm|[Dd]one|[Cc]urric|[Rr]andom|[Tt]rain|[Ee]val|[Ll]earn|[Ll]og|[Cc]fg"
    r"|[Cc]onfig|\.step\(|\.backward\(|[Ee]nv|[Mm]etric|scalar|argparse|flags|command|Writer"
    r"|yaml|json|csv|wandb|difficulty"
)

# What steps an environment or pays a reward; imports are looked at in any case.
_RL = re.compile(r"[Rr]eward|\b_?rew\b|Rew|\.step\(")


@dataclass(frozen=True)
class _Found:
    """A candidate answer, before it is ranked."""

    value: Any
    place: str
    confidence: float
    note: str = ""


class _Audit:
    """One repository, read once."""

    def __init__(self, root: Path, hints: Hints) -> None:
        self.files = Files(root)
        self.hints = hints
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
            whole = not is_test(path) and _INTERESTING.search(text) is not None
            if whole and not _RL.search(text):
                rest.append(path)
                whole = False
            fact = read_python(path, text, vocabulary) if whole else read_imports(path, text)
            fact.modules.update(self.files.named_in(text))
            found[path] = fact
        self.facts = found
        if self.is_rl():
            for path in rest:
                text = self.files.text(path)
                found[path] = read_python(path, text, vocabulary)
                found[path].modules.update(self.files.named_in(text))

    # ------------------------------------------------------------------ what uses what

    def imported(self, path: str) -> list[str]:
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
            if any(hit.name not in local for hit in fact.rl):
                return True
            own = tuple(f"{hit.name}." for hit in fact.environments)
            if any(hit.name.startswith(own) for hit in fact.code["reward"]):
                return True
            if any(slot == "reward" for slot, *_ in fact.terms):
                return True
        return False

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

    # ------------------------------------------------------------------ commands

    def commands(self) -> dict[str, tuple[Answer, ...]]:
        documented: dict[tuple[str, str, str], list[Command]] = {}
        for command in self.scripts.commands:
            kind = self._kind(command)
            if kind:
                verb = _verb(command)
                documented.setdefault((kind, command.target, verb), []).append(command)
        found: dict[str, list[tuple[float, str, Answer]]] = {"train": [], "evaluate": []}
        for (kind, target, _), commands in documented.items():
            commands.sort(key=preference)
            answer = self._documented(kind, target, commands)
            if answer is not None:
                found[kind].append((-answer.confidence, commands[0].place, answer))
        seen = {(kind, target) for kind, target, _ in documented}
        for kind, path, answer in self._undocumented(seen):
            found[kind].append((-answer.confidence, path, answer))
        result = {}
        for kind, answers in found.items():
            answers.sort(key=lambda item: (item[0], _place_key(item[1])))
            # What is far less sure than the best may be a benchmark or a tool.
            sure = -answers[0][0] - 0.3 if answers else 0.0
            targets = [item for item in self.chosen[kind] if self.sure[kind, item] > sure]
            self.chosen[kind] = list(dict.fromkeys(targets))
            result[kind] = tuple(answer for _, _, answer in answers[:COMMANDS])
        return result

    def _choose(self, kind: str, target: str, confidence: float) -> None:
        self.chosen[kind].append(target)
        self.sure[kind, target] = max(confidence, self.sure.get((kind, target), 0.0))

    def _purpose(self, path: str, name: str = "", context: str = "") -> Purpose:
        """Judge a script, or the function of it that an entry point calls."""
        if path not in self.facts:
            return Purpose("", 0.0)
        fact, entry = self.facts[path], self.scripts.entries.get(name)
        if entry is None or entry.function not in fact.functions:
            return purpose(fact, self.closure(path), name, context)
        beside = [e for e in self.scripts.entries.values() if e.target == path and e is not entry]
        signals = scoped(fact, entry.function)
        whole = fact.signals if not signals and not beside else signals
        called = f"{name} {entry.function}"
        judged = purpose(fact, self.closure(path), called, context, whole)
        others = [e.name for e in beside if e.name.startswith(name)]
        if not judged.kind and any(set(words(other)) & EVALUATE_WORDS for other in others):
            # Of `walk` and `walk-eval`, the one without a purpose in its name trains.
            return Purpose("train", 0.7, fact.functions[entry.function][0])
        return judged

    def _kind(self, command: Command) -> str:
        verb = _verb(command)
        if command.entry and verb:
            subcommands = self._subcommands(command.target)
            if verb in subcommands:
                return _verb_kind(verb)
        judged = self._purpose(command.target, command.entry, command.context)
        if judged.kind == "train" and evaluates(command.argv):
            return "evaluate"
        if judged.kind and judged.sure < _THRESHOLD and is_test(command.target):
            return ""
        return judged.kind

    def _documented(self, kind: str, target: str, commands: list[Command]) -> Answer | None:
        best = commands[0]
        judged = self._purpose(target, best.entry, best.context)
        base = {"readme": 0.95, "docs": 0.9, "makefile": 0.9, "script": 0.85, "docstring": 0.85}
        confidence = base.get(best.source, 0.75)
        if judged.sure < _THRESHOLD and not (best.entry and _verb(best)):
            confidence -= 0.35
        if is_test(target) or _ASIDE & set(target.split("/")):
            confidence -= 0.3
        if confidence < _THRESHOLD:
            return None
        self._choose(kind, target, confidence)
        places = [command.place for command in commands]
        if judged.kind == kind:
            places.insert(1, f"{target}:{judged.line}")
        return self._answer(kind, best.argv, target, confidence, places, _verb(best))

    def _undocumented(self, seen: set[tuple[str, str]]) -> Iterable[tuple[str, str, Answer]]:
        runner = ("uv", "run") if self.scripts.uv else ()
        covered = {target for _, target in seen}
        for name, entry in sorted(self.scripts.entries.items()):
            judged = self._purpose(entry.target, name)
            kind = judged.kind if judged.sure >= 0.7 and not is_test(entry.target) else ""
            verbs = self._subcommands(entry.target)
            kinds = {verb: _verb_kind(verb) for verb in verbs if _verb_kind(verb)}
            if kinds and not _verb_kind(name):
                for verb, verb_kind in sorted(kinds.items()):
                    if (verb_kind, entry.target) not in seen:
                        places = [entry.place, verbs[verb]]
                        self._choose(verb_kind, entry.target, 0.8)
                        argv = (*runner, name, verb)
                        answer = self._answer(verb_kind, argv, entry.target, 0.8, places, verb)
                        yield verb_kind, entry.target, answer
            elif kind and (kind, entry.target) not in seen:
                self._choose(kind, entry.target, 0.85)
                places = [entry.place, f"{entry.target}:{judged.line}"]
                answer = self._answer(kind, (*runner, name), entry.target, 0.85, places)
                yield kind, entry.target, answer
                covered.add(entry.target)
        for path, fact in self.facts.items():
            if path in covered or not is_script(fact):
                continue
            judged = self._purpose(path)
            # What runs on import as well is a script only if it says so by its name.
            sure = judged.sure - (0.15 if fact.main < 0 else 0.0)
            sure -= 0.3 if _ASIDE & set(path.split("/")) else 0.0
            if judged.kind and sure >= 0.6:
                self._choose(judged.kind, path, sure * 0.85)
                module = re.sub(r"(/__main__)?\.py$", "", path.removeprefix("src/"))
                target = ("-m", module.replace("/", ".")) if fact.relative else (path,)
                argv = (*runner, "python", *target)
                places = [f"{path}:{judged.line}", f"{path}:{abs(fact.main)}"]
                answer = self._answer(judged.kind, argv, path, sure * 0.85, places)
                yield judged.kind, path, answer

    def _subcommands(self, target: str) -> dict[str, str]:
        """Return the verbs of a command-line program, each with its place."""
        found: dict[str, str] = {}
        for fact in self.closure(target, depth=2)[:40] if target in self.facts else ():
            if is_test(fact.path):
                continue
            for verb, line in fact.subcommands.items():
                found.setdefault(verb, f"{fact.path}:{line}")
        return found

    def _of_stack(self, target: str) -> bool:
        """Return whether a script belongs to the stack that the hints are about."""
        if not self.hints.imports:
            return True
        roots = {module.partition(".")[0] for module in self.facts[target].modules}
        return bool(roots & set(self.hints.imports))

    def _answer(
        self,
        kind: str,
        argv: tuple[str, ...],
        target: str,
        confidence: float,
        places: list[str],
        verb: str = "",
    ) -> Answer:
        fact = self.facts[target]
        systems = {
            key
            for item in self.closure(target, 2)
            if item is fact or not is_script(item)
            for key, hit in item.config.items()
            if _takes_settings(key, hit)
        }
        hydra = "hydra" in systems and ("hydra" in fact.config or not fact.options)
        style = "{name}={value}" if hydra else "--{name}={value}"
        bindings = [option for option in fact.options if option.endswith(("bindings", "gin_param"))]
        if "gin" in systems and bindings:
            style = bindings[0] + "={name}={value}"
        elif "gin" in fact.config and "absl" not in systems and not fact.options:
            style = "--gin_bindings={name}={value}"
        custom = fact.config.get("custom")
        if custom is not None and custom.name == "sacred":
            style = "{name}={value}" if "with" in argv else ""
        called = fact.config or argv[0] in self.scripts.entries or bool(verb)
        if not systems and not called:
            style = _style(argv)
        elif called and self.hints.parameter_format and self._of_stack(target):
            style = self.hints.parameter_format
        options = dict(fact.options)
        # A script with a command line of its own does not take that of what it imports.
        alone = {"tyro", "hydra"} & set(fact.config) and "argparse" not in fact.config
        for item in self.closure(target, 2)[1:] if not alone or verb else ():
            of_verb = bool(verb) and item.path.endswith(f"/{verb}.py")
            if of_verb or (not is_script(item) and ({"argparse", "absl"} & set(item.config))):
                options = {**item.options, **options}
        if hydra and not options:
            options = self._hydra_seed(target)
        if kind == "train" and self._of_stack(target) and called:
            if self.hints.seed and not any(option.endswith("seed") for option in options):
                options = {self.hints.seed: 0}
        command = with_seed(argv, options)
        value = {"command": list(command), "parameter_format": style}
        evidence = tuple(dict.fromkeys(places))[:_EVIDENCE]
        return Answer(value=value, confidence=round(confidence, 2), evidence=evidence)

    def _hydra_seed(self, target: str) -> dict[str, int]:
        near = target.rpartition("/")[0]
        for path in self.files.ending(".yaml", ".yml"):
            if path.startswith(near) or "conf" in path or "cfg" in path:
                for number, line in enumerate(self.files.text(path).split("\n"), 1):
                    if re.match(r"^seed:\s*\S*", line):
                        return {"seed": number}
        return {}

    # ------------------------------------------------------------------ config and logging

    def relevant(self) -> list[Facts]:
        """Return the files that training and evaluation use; without any, all but the tests."""
        if self._relevant:
            return self._relevant
        paths: dict[str, Facts] = {}
        scripts = [*self.chosen["train"], *self.chosen["evaluate"]]
        for target in [*scripts, *(self._instantiated() if scripts else ())]:
            for fact in self.closure(target, depth=12):
                if not is_test(fact.path) or fact.path == target:
                    paths.setdefault(fact.path, fact)
        self.own = set(paths)
        self._relevant = list(paths.values()) or self._searched()
        return self._relevant

    def _instantiated(self) -> Iterable[str]:
        """Yield the files of what settings name, to be made when a script is run."""
        for path in self.files.ending(".yaml", ".yml"):
            text = "" if is_test(path) else self.files.text(path)
            if "_target_" in text:
                for name in re.findall(r"_target_:\s*[\"']?([\w.]+)", text):
                    target = self.files.module(name.rpartition(".")[0]) if "." in name else None
                    if target in self.facts and target is not None:
                        yield target

    def config(self) -> tuple[Answer, ...]:
        near = self.relevant()
        scripts = {*self.chosen["train"], *self.chosen["evaluate"]}
        found: list[_Found] = []
        command_line = {"tyro", "hydra", "argparse", "absl", "gin"}
        for fact in near:
            used = {key for key in fact.config}
            for system, hit in fact.config.items():
                confidence = hit.confidence
                if scripts and fact.path not in scripts:
                    # The command line of another script that happens to be imported.
                    if system in command_line and is_script(fact):
                        continue
                    confidence -= 0.05
                if not scripts:
                    if system in command_line | {"yaml"} and not is_script(fact):
                        continue
                    confidence -= 0.3
                if system == "dataclasses" and used & {"tyro", "hydra"}:
                    continue  # what the command line is made from
                found.append(_Found(system, f"{fact.path}:{hit.line}", confidence, hit.name))
        # A task that is registered by name is imported by no script, and its settings count.
        for fact in self._searched() if scripts else ():
            if fact.path not in self.own and (fact.terms or any(fact.code.values())):
                for system in {"dataclasses", "custom"} & set(fact.config):
                    hit = fact.config[system]
                    place = f"{fact.path}:{hit.line}"
                    found.append(_Found(system, place, hit.confidence - 0.1, hit.name))
        for path in self.files.ending(".gin"):
            if not is_test(path) and any(item.value == "gin" for item in found):
                found.append(_Found("gin", f"{path}:1", 0.9))
        if any(item.value == "hydra" for item in found):
            found = [item for item in found if item.value != "yaml" or item.confidence > 0.74]
        return _ranked(found, 6, noted=("custom",))

    def logging(self) -> tuple[Answer, ...]:
        near = self.relevant()
        found = []
        for fact in near:
            for sink, hit in fact.logging.items():
                if sink != "stdout" or self.own:  # what a library prints is no record
                    found.append(_Found(sink, f"{fact.path}:{hit.line}", hit.confidence, hit.name))
        for path in self.files.ending(".yaml", ".yml") if near else ():
            if not is_test(path) and not path.startswith("."):
                for number, line in enumerate(self.files.text(path).split("\n"), 1):
                    target = _TARGET.match(line)  # what Hydra will make an instance of
                    if target:
                        sink = _SINKS[target[1].lower()]
                        found.append(_Found(sink, f"{path}:{number}", 0.8, target[1]))
        if not found:
            # Metrics go somewhere, by a way that is none of the known ones.
            for fact in near:
                for hit in fact.metrics[:1]:
                    if hit.confidence >= 0.85:
                        found.append(_Found("custom", f"{fact.path}:{hit.line}", 0.5))
        return _ranked(found, 7, noted=("custom",))

    # ------------------------------------------------------------------ metrics and guardrails

    def metrics(self) -> tuple[Answer, ...]:
        printed = [a.value for a in self.logging()] == ["stdout"]
        found = []
        for fact in self._searched():
            nearby = fact.path in self.own
            for hit in fact.metrics:
                name = hit.name
                if name.startswith("stdout:"):
                    if not printed:
                        continue
                    name = name.removeprefix("stdout:")
                if _measures(name):
                    confidence = hit.confidence - (0.0 if nearby else 0.1)
                    found.append(_Found(name, f"{fact.path}:{hit.line}", confidence))
        found += self._handed_on()
        return _ranked(found, METRICS, key=_promise)

    def _handed_on(self) -> Iterable[_Found]:
        """Yield the keys of dictionaries that one function returns and another logs."""
        makers: dict[str, list[Facts]] = {}
        for fact in self._searched():
            for function, keys in fact.returned.items():
                if keys:
                    makers.setdefault(function, []).append(fact)
        for fact in self._searched():
            for logged in fact.logged:
                # `to_dict` gives settings back as well, and what is not used here is another's.
                used = {item.path for item in self.closure(fact.path, 6)}
                used |= self.own if fact.path in self.own else set()
                named = set(words(logged.function))
                function = logged.function.rpartition(".")[2]
                known = [
                    maker
                    for maker in makers.get(function, [])
                    if maker.path in used
                    and HANDS_ON & (named | set(words(maker.path.rpartition("/")[2])))
                ]
                if not known and is_metric(logged.instead) and _measures(logged.instead):
                    place = f"{fact.path}:{logged.line}"
                    yield _Found(logged.instead, place, max(logged.confidence - 0.1, 0.5))
                own = [maker for maker in known if maker is fact]
                for maker in own or known:
                    for hit in maker.returned[function]:
                        name = logged.template.replace("{}", hit.name)
                        if is_metric(name) and _measures(name):
                            sure = logged.confidence - (0.0 if own else 0.15)
                            yield _Found(name, f"{maker.path}:{hit.line}", max(sure, 0.5))

    def guardrails(self, metrics: Iterable[Answer]) -> tuple[Answer, ...]:
        extra = set(self.hints.guardrails)
        found = [
            _Found(answer.value, place, max(answer.confidence * 0.9, _THRESHOLD), "logged")
            for answer in metrics
            for place in answer.evidence[:1]
            if _guards(str(answer.value), extra)
        ]
        for fact in self._searched():
            for hit in fact.infos:
                if _guards(hit.name, extra):
                    place = f"{fact.path}:{hit.line}"
                    found.append(_Found(hit.name, place, min(hit.confidence, 0.65), "info"))
            for slot, name, _, line in fact.terms:
                if name and slot in ("reward", "termination") and _guards(name, extra):
                    place = f"{fact.path}:{line}"
                    found.append(_Found(name, place, 0.6, f"{slot} term"))
        return _ranked(found, GUARDRAILS, noted=True)

    def _searched(self) -> list[Facts]:
        return [fact for path, fact in self.facts.items() if not is_test(path)]

    # ------------------------------------------------------------------ the task's code

    def code(self) -> dict[str, tuple[Answer, ...]]:
        places: dict[str, dict[str, list[Hit]]] = {slot: {} for slot in SLOTS}
        functions: dict[str, list[tuple[str, int]]] = {}
        for fact in self._searched():
            for name, (line, first) in fact.functions.items():
                if first in ("env", "self", "sim", "task"):
                    functions.setdefault(name, []).append((fact.path, line))
        for fact in self._searched():
            for slot in SLOTS:
                for hit in fact.code[slot]:
                    places[slot].setdefault(fact.path, []).append(hit)
            for slot, name, function, line in fact.terms:
                hit = Hit(name or function, line, 0.9 if function else 0.8)
                places[slot].setdefault(fact.path, []).append(hit)
                for path, where in functions.get(function, ()):
                    if slot != "randomization" or not function.startswith("reset"):
                        places[slot].setdefault(path, []).append(Hit(function, where, 0.85))
        for slot, path, hit in self._settings():
            places[slot].setdefault(path, []).append(hit)
        return {slot: self._files(slot, found) for slot, found in places.items()}

    def _files(self, slot: str, places: dict[str, list[Hit]]) -> tuple[Answer, ...]:
        answers = []
        for path, hits in places.items():
            confidence = max(hit.confidence for hit in hits)
            if confidence < _THRESHOLD:
                continue
            hits = sorted(hits, key=lambda hit: hit.line)
            names = list(dict.fromkeys(hit.name for hit in hits if hit.name))
            strongest = sorted(hits, key=lambda hit: -hit.confidence)[:_EVIDENCE]
            evidence = tuple(dict.fromkeys(f"{path}:{h.line}" for h in strongest))
            value = {"file": path, "names": names[:NAMES]}
            weight = (-confidence, path not in self.own, -min(len(names), 10), _place_key(path))
            answers.append((weight, Answer(value=value, confidence=confidence, evidence=evidence)))
        answers.sort(key=lambda item: item[0])
        return tuple(answer for _, answer in answers[:FILES])

    def _settings(self) -> Iterable[tuple[str, str, Hit]]:
        """Yield the parts of YAML and Gin files that set rewards, endings and randomness."""
        for path in self.files.ending(".yaml", ".yml"):
            hidden = path.startswith(".") or is_test(path)
            if hidden or path.rpartition("/")[2] in (HINTS, "mkdocs.yml", "environment.yml"):
                continue
            text = self.files.text(path)
            if not re.search("reward|terminat|curricul|random|domain_rand", text):
                continue
            lines = text.split("\n")
            for number, line in enumerate(lines, 1):
                match = re.match(r"^(\s*)([\w-]+):\s*([^#]*?)\s*(#.*)?$", line)
                if match:
                    for slot, pattern in _YAML_SLOTS.items():
                        key = match[2].lower()
                        if pattern.match(key) and _sets(
                            lines, number, len(match[1]), match[3], slot
                        ):
                            yield slot, path, Hit(match[2], number, 0.7)
                    scaled = re.search(r"reward_?(scale|weight|coef)", match[2], re.IGNORECASE)
                    if scaled and re.match(r"^-?[\d.]", match[3]):
                        yield "reward", path, Hit(match[2], number, 0.65)
        for path in self.files.ending(".gin"):
            for number, line in enumerate(self.files.text(path).split("\n"), 1):
                match = re.match(r"^([\w./]*(?:[Rr]eward)\w*)\.(\w+)\s*=", line)
                if match and not is_test(path):
                    yield "reward", path, Hit(f"{match[1]}.{match[2]}", number, 0.65)

    # ------------------------------------------------------------------ launchers

    def launcher(self, train: tuple[Answer, ...]) -> tuple[Answer, ...]:
        found = []
        for fact in self.relevant():
            for name, hit in fact.launchers.items():
                found.append(_Found(name, f"{fact.path}:{hit.line}", hit.confidence))
        for fact in self._searched():
            if is_script(fact) and "custom" in fact.launchers:
                hit = fact.launchers["custom"]
                found.append(_Found("custom", f"{fact.path}:{hit.line}", hit.confidence))
        for command in self.scripts.commands:
            if command.distributed and command.target in self.chosen["train"]:
                found.append(_Found("torchrun", command.place, 0.9))
        for path in self.files.paths:
            if not path.endswith(".py") and not is_test(path):
                found.extend(_launchers_in(path, self.files.text(path)))
        plain = [
            answer
            for answer in train
            if not {"sbatch", "srun", "torchrun", "ray"} & set(answer.value["command"])
        ]
        if plain:
            found.append(_Found("local", plain[0].evidence[0], max(0.6, plain[0].confidence - 0.1)))
        return _ranked(found, 7) if train else ()

    # ------------------------------------------------------------------ hints

    def hinted(self, answers: dict[str, tuple[Answer, ...]]) -> None:
        """Add what the profile expects, where the repository proves it."""
        for question, hints in self.hints.answers.items():
            known = [answer.value for answer in answers[question]]
            for hint in hints:
                proof = self._proof(hint)
                if proof and hint.value not in known:
                    answer = Answer(
                        value=hint.value,
                        confidence=hint.confidence,
                        evidence=(proof,),
                        note=f"hint of profile {self.hints.name}",
                    )
                    answers[question] = (*answers[question], answer)

    def _proof(self, hint: HintedAnswer) -> str:
        pattern = re.compile(hint.pattern)
        for path in self.files.paths:
            if fnmatch.fnmatch(path, hint.files):
                for number, line in enumerate(self.files.text(path).split("\n"), 1):
                    if pattern.search(line):
                        return f"{path}:{number}"
        return ""


@dataclass(frozen=True)
class Inspected:
    """What an audit found, and what a person should know about it."""

    adapter: Adapter
    findings: tuple[str, ...]  # troubles by their names, such as `profile mismatch: ...`


def audit(root: Path, profile: str | None = None) -> Adapter:
    """Return how a repository is trained, evaluated, configured and logged.

    Args:
        root: Its directory. Nothing in it is imported, run or changed.
        profile: A packaged profile or a file of hints; by default the repository's own
            `adapter-hints.yaml`, else the profile that it looks like.

    Raises:
        StudyError: There is no such directory or profile, or its hints are malformed.
    """
    return inspect(root, profile).adapter


def inspect(root: Path, profile: str | None = None) -> Inspected:
    """Return what `audit` does, together with the troubles that it met.

    Raises:
        StudyError: There is no such directory or profile, or its hints are malformed.
    """
    if not root.is_dir():
        raise StudyError(f"'{root}' is no directory.", "Name a repository with --root.")
    hints = find_hints(root, profile)
    found = _Audit(root, hints)
    findings = found.troubles()
    if not found.is_rl():
        return Inspected(Adapter(profile=hints.name), findings)
    answers = found.commands()
    answers["config"] = found.config()
    answers["logging"] = found.logging()
    answers["metrics"] = found.metrics()
    answers["guardrails"] = found.guardrails(answers["metrics"])
    answers.update(found.code())
    answers["launcher"] = found.launcher(answers["train"])
    found.hinted(answers)
    return Inspected(Adapter(profile=hints.name, **answers), findings)


# ---------------------------------------------------------------------- rules on names and text


def _verb(command: Command) -> str:
    if not command.entry:
        return ""
    at = command.argv.index(command.entry) + 1
    rest = command.argv[at : at + 1]
    return rest[0] if rest and re.fullmatch(r"[a-z][\w-]*", rest[0]) else ""


def _verb_kind(verb: str) -> str:
    first = words(verb)[:1]
    if first in (("train",), ("learn",), ("fit",)) and len(words(verb)) == 1:
        return "train"
    if first in (("eval",), ("evaluate",), ("enjoy",), ("play",)) and len(words(verb)) == 1:
        return "evaluate"
    return ""


def _takes_settings(system: str, hit: Hit) -> bool:
    """Return whether a config system reads the command line."""
    if system == "hydra":  # `hydra.compose` and the like take no arguments from it
        tail = hit.name.rpartition(".")[2]
        return tail == "main" or "hydra" in tail.lower()
    return system in {"tyro", "argparse", "absl", "gin"} or hit.name in OTHER_CONFIGS


def _style(argv: tuple[str, ...]) -> str:
    """Return how a command takes settings, judged by those that a document gives it."""
    if any(re.match(r"--[a-z]", part) for part in argv):
        return "--{name}={value}"
    return "{name}={value}" if any(re.match(r"[a-z][\w.]*=", part) for part in argv) else ""


def _place_key(place: str) -> tuple[bool, int, str]:
    """Order places: the repository's own before examples and copies, shallow before deep."""
    aside = {"examples", "example", "third_party", "legacy", "deprecated", "old", "benchmarks"}
    return bool(aside & set(place.split("/"))), place.count("/"), place


def _guards(name: str, extra: set[str]) -> bool:
    named = set(words(name))
    if named & _NO_GUARDRAIL:
        return False
    return bool(named & (GUARDRAIL_WORDS | extra)) or any(p <= named for p in _GUARDRAIL_PAIRS)


def _measures(name: str) -> bool:
    """Return whether a logged name is a metric, and no axis such as `time/step`."""
    group, _, last = name.lower().replace(" ", "_").rpartition("/")
    if not re.search("[A-Za-z]{2}", name):
        return False
    # `rewards/step` is the reward by steps.
    return last not in AXES or bool(set(words(group)) & (OUTCOME_WORDS | {"length", "lengths"}))


def _promise(name: str) -> int:
    named = set(words(name))
    for rank, group in enumerate(_PROMISING):
        if named & group:
            return rank * 2 + (0 if named & {"eval", "evaluation", "test", "episodic"} else 1)
    return 9


def _sets(lines: list[str], number: int, indent: int, value: str, slot: str) -> bool:
    """Return whether a YAML key switches something on or has numbers below it."""
    value = value.strip().lower()
    if value:
        plain = value not in _OFF and not value.startswith(("&", "*", "$"))
        if slot == "curriculum":
            return plain and not value.startswith("[")
        return plain and (slot == "randomization" or value.startswith("{"))
    for line in lines[number : number + 60]:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(line) - len(line.lstrip()) <= indent:
            return False
        if slot != "reward" or re.search(r":\s*-?[\d.]+", line):
            return True
    return False


_LAUNCH_LINES = (
    ("slurm", 0.9, re.compile(r"^#SBATCH\s|^\s*(\$\s*)?(sbatch|srun)\s+\S|^.*submitit_slurm")),
    ("tmux", 0.85, re.compile(r"\btmux\s+(new|new-session|send-keys|new-window|split-window)\b")),
    ("torchrun", 0.85, re.compile(r"^[\s$`>-]*(\w+=\S*\s+)*(uv run |poetry run )?torchrun\s+\S")),
    ("torchrun", 0.85, re.compile(r"\bpython3?\s+-m\s+torch\.distributed\.(run|launch)\b")),
    ("ray", 0.8, re.compile(r"\bray\s+(job\s+submit|submit|up|start)\b")),
    ("kubernetes", 0.85, re.compile(r"\bkubectl\s+(apply|create|run)\b")),
    ("custom", 0.6, re.compile(r"^[\s$`>-]*(\w+=\S*\s+)*accelerate\s+launch\b")),
)  # fmt: skip


def _launchers_in(path: str, text: str) -> list[_Found]:
    found: list[_Found] = []
    if path.endswith((".yaml", ".yml")):
        kind = re.search(r"^kind:\s*(Job|Pod|\w*Job|CronJob|StatefulSet)\s*$", text, re.MULTILINE)
        if kind and re.search(r"^apiVersion:", text, re.MULTILINE):
            line = text.count("\n", 0, kind.start()) + 1
            found.append(_Found("kubernetes", f"{path}:{line}", 0.85))
    if path.endswith((".txt", ".cfg", ".toml", ".gin")):
        return found
    if not re.search("SBATCH|sbatch|srun|submitit|tmux|torch|ray|kubectl|accelerate", text):
        return found
    for number, row in enumerate(text.split("\n"), 1):
        for name, confidence, pattern in _LAUNCH_LINES:
            if len(row) < 1000 and pattern.search(row):
                found.append(_Found(name, f"{path}:{number}", confidence))
    return found


def _ranked(
    found: Iterable[_Found], limit: int, *, key: Any = None, noted: Any = ()
) -> tuple[Answer, ...]:
    """Join equal values, drop what is too unsure, and put the best first."""
    groups: dict[str, list[_Found]] = {}
    for item in found:
        groups.setdefault(str(item.value), []).append(item)
    answers = []
    for value, items in groups.items():
        items = sorted(items, key=lambda item: -item.confidence)
        best = items[0]
        if best.confidence < _THRESHOLD:
            continue
        note = best.note if noted is True or (noted and value in noted) else ""
        answer = Answer(
            value=best.value,
            confidence=round(min(best.confidence, 1.0), 2),
            evidence=tuple(dict.fromkeys(item.place for item in items))[:_EVIDENCE],
            note=note,
        )
        rank = key(value) if key else 0
        answers.append((rank, -best.confidence, _place_key(best.place), answer))
    answers.sort(key=lambda item: item[:3])
    return tuple(item[-1] for item in answers[:limit])
