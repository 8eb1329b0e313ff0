"""How a repository is trained and evaluated."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable

from assay.core.errors import nearest
from assay.study.files.documents import StudyError
from assay.study.files.records import Answer
from assay.study.repo.answers.evidence import (
    EVALUATES,
    Program,
    about_rl,
    can_train,
    programs,
    score,
    signs,
    subcommands,
    verb_kind,
    verb_of,
)
from assay.study.repo.answers.ranking import EVIDENCE, THRESHOLD, place_key
from assay.study.repo.answers.ready import parameters, ready
from assay.study.repo.commands import Command, preference
from assay.study.repo.files import words
from assay.study.repo.parameters import command_line
from assay.study.repo.purpose import (
    TRAIN_WORDS,
    Purpose,
    evaluates,
    evaluation_switch,
    is_script,
    purpose,
    scoped,
    training_switch,
    without_reward,
)
from assay.study.repo.repository import Repository
from assay.study.repo.words import ALGORITHMS, ASIDE, EVALUATE_WORDS

COMMANDS = 60
_STARTS = {"run", "start", "experiment", "launch", "exec", "main", "fit"}
_TRUST = 2.0  # how much a judgement by name and code counts beside all signs
_LAST = 100.0  # puts an answer behind all others
_Ranked = tuple[float, str, str, Answer]  # weight, place, script

# Libraries of pages that people click on.
_PAGES = {"streamlit", "gradio", "dash", "nicegui"}


def commands(repo: Repository) -> dict[str, tuple[Answer, ...]]:
    """Return the commands that train and evaluate; the repository notes which were chosen."""
    documented: dict[tuple[str, str, str], list[Command]] = {}
    for command in repo.scripts.commands:
        kind = _kind(repo, command)
        if kind:
            verb = verb_of(repo, command)
            documented.setdefault((kind, command.target, verb), []).append(command)
    found: dict[str, list[_Ranked]] = {"train": [], "evaluate": []}
    for (kind, target, _), commands in documented.items():
        commands.sort(key=preference)
        answer = _documented(repo, kind, target, commands)
        if answer is not None:
            found[kind].append((-answer.confidence, commands[0].place, target, answer))
    seen = {(kind, target) for kind, target, _ in documented}
    for kind, path, answer in _undocumented(repo, seen):
        found[kind].append((-answer.confidence, path, path, answer))
    evaluated = {(target, verb) for kind, target, verb in documented if kind == "evaluate"}
    found["train"] = _weighed(repo, found["train"], evaluated)
    known = {target for *_, target, _ in found["evaluate"]}
    switched = [item for item in _switched(repo, found["train"]) if item[2] not in known]
    found["evaluate"] += switched[: 1 if found["evaluate"] else 5]
    result = {}
    for kind, answers in found.items():
        aside = {item[2]: kind == "evaluate" and _elsewhere(repo, item[2]) for item in answers}
        said = {id(item): _said(item[3]) if kind == "evaluate" else 0 for item in answers}
        answers.sort(key=lambda item: (item[0], aside[item[2]], said[id(item)], place_key(item[1])))
        # What is far less sure than the best may be a benchmark or a tool.
        sure = answers[0][-1].confidence - 0.3 if answers else 0.0
        targets = [target for _, _, target, _ in answers if repo.sure[kind, target] > sure]
        repo.chosen[kind] = list(dict.fromkeys(targets))
        result[kind] = tuple(answer for *_, answer in answers[:COMMANDS])
    return result


def _weighed(
    repo: Repository, judged: list[_Ranked], evaluated: set[tuple[str, str]]
) -> list[_Ranked]:
    """Return the commands that train by all that speaks for them, best first.

    Args:
        repo: The repository.
        judged: What is said to train by its name and its own code, with how sure that is.
        evaluated: Programs that documents call to evaluate.
    """
    shown = [(program, signs(repo, program)) for program in programs(repo)]
    weighed = [(score(found), program, found) for program, found in shown]
    ranked = []
    for weight, place, target, answer in judged:
        said = ("", *answer.value["documented"].split())
        own = [(p.verb in said, worth) for worth, p, _ in weighed if p.target == target]
        worth = max(worth for fits, worth in own if fits == max(own)[0])
        # Beside a documented call with a verb, one without it is only the program's name.
        verbs = {
            p.verb
            for _, p, found in weighed
            if p.target == target and p.commands and can_train(found)
        } - {""}
        lacking = bool(verbs) and not verbs & set(said)
        ranked.append((_LAST * lacking - worth + _TRUST * weight, place, target, answer))
    best = min([0.0, *(weight for weight, *_ in ranked)])
    for worth, program, found in sorted(weighed, key=lambda item: -item[0]):
        aside = (program.target, program.verb) in evaluated or verb_kind(program.verb) == "evaluate"
        if worth <= -best:
            break
        if can_train(found) and not aside and not repo.files.is_test(program.target):
            ranked.append((-worth, program.target, program.target, _unnamed(repo, program)))
            break
    return ranked


def _unnamed(repo: Repository, program: Program) -> Answer:
    """Return how a program is run of which nothing says by itself that it trains."""
    target, verb = program.target, (program.verb,) if program.verb else ()
    told = sorted(program.commands, key=preference)
    told = [command for command in told if not evaluates(command.argv)]
    if told:
        argv, places = told[0].argv, [command.place for command in told]
    elif program.entries:
        argv, places = (program.entries[0].name, *verb), [program.entries[0].place]
    else:
        argv = (*_python(repo, target), *verb)
        places = [f"{target}:{abs(repo.facts[target].main) or 1}"]
    _choose(repo, "train", target, 0.6)
    return _answer(repo, "train", argv, target, 0.6, places, program.verb)


def _python(repo: Repository, path: str) -> tuple[str, ...]:
    """Return how a script is run that no document calls."""
    runner = ("uv", "run") if repo.scripts.uv else ()
    module = re.sub(r"(/__main__)?\.py$", "", path.removeprefix("src/"))
    named = repo.facts[path].relative and all(p.isidentifier() for p in module.split("/"))
    return (*runner, "python", *(("-m", module.replace("/", ".")) if named else (path,)))


def _said(answer: Answer) -> int:
    """Return how plainly a command says that it evaluates: `eval` before `play`."""
    named = {word for part in answer.value["command"][:4] for word in words(part)}
    known = [place for place, word in enumerate(EVALUATES) if word in named]
    return min(known, default=len(EVALUATES))


def _elsewhere(repo: Repository, target: str) -> bool:
    """Return whether a script lies in another directory than the first that trains."""
    first = repo.chosen["train"][0] if repo.chosen["train"] else target
    return target.rpartition("/")[0] != first.rpartition("/")[0]


def _switched(repo: Repository, train: list[_Ranked]) -> Iterable[_Ranked]:
    """Yield the evaluation that an option of a training script turns it into."""
    for _, place, target, answer in sorted(train, key=lambda item: item[0])[:5]:
        argv = tuple(shlex.split(answer.value["documented"]))
        line = command_line(repo, target, argv, "")
        switch = evaluation_switch(repo.facts[target], line.options)
        if switch:
            name = switch[0][0]
            kept = [w for i, w in enumerate(argv) if w != name and (not i or argv[i - 1] != name)]
            option = line.options.get(name)
            home = option.path if option is not None and option.path else target
            places = [f"{home}:{switch[1]}", *answer.evidence[:1]]
            given = (*kept, *switch[0])
            _choose(repo, "evaluate", target, 0.6)
            evaluation = _answer(repo, "evaluate", given, target, 0.6, places)
            yield -answer.confidence, place, target, evaluation


def named(repo: Repository, script: str) -> Answer:
    """Return how a script is run that a person calls the training script.

    Raises:
        StudyError: The repository has no such Python file.
    """
    if script not in repo.facts:
        known = [path for path, fact in repo.facts.items() if is_script(fact)]
        raise StudyError(
            f"There is no Python file '{script}' in the repository.",
            nearest(script, known) if known else "It has no Python scripts.",
        )
    told = [command for command in repo.scripts.commands if command.target == script]
    told.sort(key=preference)
    argv, place = (told[0].argv, told[0].place) if told else (("python", script), f"{script}:1")
    repo.chosen["train"].insert(0, script)
    repo.sure["train", script] = 1.0
    return _answer(repo, "train", argv, script, 1.0, [place])


def _choose(repo: Repository, kind: str, target: str, confidence: float) -> None:
    repo.chosen[kind].append(target)
    repo.sure[kind, target] = max(confidence, repo.sure.get((kind, target), 0.0))


def _purpose(repo: Repository, path: str, name: str = "", context: str = "") -> Purpose:
    """Judge a script, or the function of it that an entry point calls."""
    if path not in repo.facts:
        return Purpose("", 0.0)
    fact, entry = repo.facts[path], repo.scripts.entries.get(name)
    if entry is None or entry.function not in fact.functions:
        return purpose(fact, repo.closure(path), name, context)
    beside = [e for e in repo.scripts.entries.values() if e.target == path and e is not entry]
    signals = scoped(fact, entry.function)
    whole = fact.signals if not signals and not beside else signals
    called = f"{name} {entry.function}"
    judged = purpose(fact, repo.closure(path), called, context, whole)
    others = [e.name for e in beside if e.name.startswith(name)]
    if not judged.kind and any(set(words(other)) & EVALUATE_WORDS for other in others):
        # Of `walk` and `walk-eval`, the one without a purpose in its name trains.
        return Purpose("train", 0.7, fact.functions[entry.function][0])
    return judged


def _kind(repo: Repository, command: Command) -> str:
    if command.target.endswith("setup.py"):
        return ""  # `python setup.py test` runs the tests
    named = _named_function(repo, command)
    if named:
        return named
    verb = verb_of(repo, command)
    if verb and verb in subcommands(repo, command.target):
        return verb_kind(verb)
    judged = _purpose(repo, command.target, command.entry, command.context)
    if judged.kind == "train" and evaluates(command.argv):
        return "evaluate"
    if judged.kind and judged.sure < THRESHOLD and repo.files.is_test(command.target):
        return ""
    if not judged.kind:  # `launcher config.yaml train`
        said = [verb_kind(word) for word in command.argv[1:] if re.fullmatch("[a-z]+", word)]
        return next((kind for kind in said if kind), "")
    return judged.kind


def _named_function(repo: Repository, command: Command) -> str:
    """Return what the function does that a program is told to run: `run pkg.flows.train_agent`."""
    for before, word in itertools.pairwise(command.argv[1:]):
        if before == "-m":
            continue  # the program itself
        module, _, function = word.replace(":", ".").rpartition(".")
        target = repo.files.module(module) if re.fullmatch(r"\w+(\.\w+)+", module) else None
        if target is not None and target in repo.facts:
            said = words(function)[:1]
            if said and said[0] in TRAIN_WORDS:
                return "train"
            return "evaluate" if said and said[0] in EVALUATE_WORDS else ""
    return ""


def _documented(repo: Repository, kind: str, target: str, commands: list[Command]) -> Answer | None:
    best = commands[0]
    judged = _purpose(repo, target, best.entry, best.context)
    base = {"readme": 0.95, "docs": 0.9, "makefile": 0.9, "script": 0.85, "docstring": 0.85}
    confidence = base.get(best.source, 0.75)
    if best.source == "readme" and "/" in best.place:
        confidence -= 0.02  # of a part of the repository
    verb = verb_of(repo, best)
    if judged.sure < THRESHOLD and not verb and not _named_function(repo, best):
        confidence -= 0.35
    if repo.files.is_test(target) or ASIDE & set(target.split("/")):
        confidence -= 0.3
    reached = {key for fact in repo.closure(target, 6) for key in fact.signals}
    if kind == "train" and not {"env_step", "make_env"} & reached:
        confidence -= 0.1  # it may train something else
        if not about_rl(repo, target):
            confidence = min(confidence, max(confidence - 0.15, THRESHOLD))
    if best.bare:
        confidence -= 0.05  # how it is told what to do stands elsewhere
    if kind == "train" and without_reward(target, best.argv):
        confidence -= 0.15  # reinforcement learning comes first
    if confidence < THRESHOLD:
        return None
    _choose(repo, kind, target, confidence)
    places = [command.place for command in commands]
    if judged.kind == kind:
        places.insert(1, f"{target}:{judged.line}")
    return _answer(repo, kind, best.argv, target, confidence, places, verb)


def _undocumented(
    repo: Repository, seen: set[tuple[str, str]]
) -> Iterable[tuple[str, str, Answer]]:
    runner = ("uv", "run") if repo.scripts.uv else ()
    covered = {target for _, target in seen}
    for name, entry in sorted(repo.scripts.entries.items()):
        judged = _purpose(repo, entry.target, name)
        kind = judged.kind if judged.sure >= 0.7 and not repo.files.is_test(entry.target) else ""
        verbs = subcommands(repo, entry.target)
        # `tool test` may as well run the tests.
        kinds = {verb: verb_kind(verb) for verb in verbs if verb_kind(verb) and verb != "test"}
        if kinds and not verb_kind(name):
            for verb, told in kinds.items():
                if (told, entry.target) not in seen:
                    places = [entry.place, verbs[verb]]
                    _choose(repo, told, entry.target, 0.8)
                    argv = (*runner, name, verb)
                    answer = _answer(repo, told, argv, entry.target, 0.8, places, verb)
                    yield told, entry.target, answer
        elif kind and (kind, entry.target) not in seen and not _says_else(repo, entry.target, kind):
            _choose(repo, kind, entry.target, 0.85)
            places = [entry.place, f"{entry.target}:{judged.line}"]
            answer = _answer(repo, kind, (*runner, name), entry.target, 0.85, places)
            yield kind, entry.target, answer
            covered.add(entry.target)
    imported = {item for path in repo.facts for item in repo.imported(path)}
    for path, fact in repo.facts.items():
        if path in covered or not is_script(fact):
            continue
        judged = _purpose(repo, path)
        # What runs on import as well is a script only if it says so by its name.
        sure = judged.sure - (0.15 if fact.main < 0 else 0.0)
        sure -= 0.3 if ASIDE & set(path.split("/")) else 0.0
        sure -= 0.1 if judged.kind == "train" and without_reward(path) else 0.0
        sure -= 0.3 if judged.kind == "train" and not about_rl(repo, path) else 0.0
        sure -= 0.3 if _PAGES & {module.partition(".")[0] for module in fact.modules} else 0.0
        if path in imported and not fact.options and not fact.parsed:
            sure -= 0.2  # a module that can be run to try it out
        if judged.kind and sure >= 0.6:
            _choose(repo, judged.kind, path, sure * 0.85)
            argv = _python(repo, path)
            places = [f"{path}:{judged.line}", f"{path}:{abs(fact.main)}"]
            answer = _answer(repo, judged.kind, argv, path, sure * 0.85, places)
            yield judged.kind, path, answer


def _says_else(repo: Repository, target: str, kind: str) -> bool:
    """Return whether a program lists what it can do, and nothing of that is of a kind."""
    verbs = repo.facts[target].subcommands
    said = {word for verb in verbs for word in words(verb)}
    wanted = TRAIN_WORDS | ALGORITHMS if kind == "train" else EVALUATE_WORDS
    return len(verbs) > 2 and not said & (wanted | _STARTS)


def _answer(
    repo: Repository,
    kind: str,
    argv: tuple[str, ...],
    target: str,
    confidence: float,
    places: list[str],
    verb: str = "",
) -> Answer:
    line = command_line(repo, target, argv, verb)
    if kind == "train":
        argv = (*argv, *training_switch(repo.facts[target], line.options, argv))
    stack = kind == "train" and bool(line.form) and repo.of_stack(target)
    module = _module(repo, argv, target)
    seed = repo.hints.seed if stack else ""
    value = ready(kind, argv, line, places[0], seed=seed, module=module)
    if kind == "train":
        value["parameters"] = parameters(line)
    evidence = tuple(dict.fromkeys(places))[:EVIDENCE]
    return Answer(value=value, confidence=round(confidence, 2), evidence=evidence)


def _module(repo: Repository, argv: tuple[str, ...], target: str) -> str:
    """Return the module that does the same as a console script, if there is one."""
    entry = next(
        (repo.scripts.entries[word] for word in argv[:3] if word in repo.scripts.entries), None
    )
    if entry is None or repo.facts[target].main <= 0:
        return ""
    shared = [other for other in repo.scripts.entries.values() if other.target == target]
    return entry.module if len({other.function for other in shared}) == 1 else ""
