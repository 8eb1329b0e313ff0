"""What speaks for a program being the one that trains, weighed together.

A program is a script or an installed command, with one of its verbs where it has some. Documents,
names, the code that it reaches and the place where it lies each give signs; `weights.yaml` says how
much each counts. The weights are fitted to the truths about other people's repositories
(`benchmarks/fit_audit.py`), not chosen.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml

from assay.study.repo.commands import Command, Entry
from assay.study.repo.files import words
from assay.study.repo.options import is_seed
from assay.study.repo.purpose import TRAIN_WORDS, is_script, stem, without_reward
from assay.study.repo.repository import Repository
from assay.study.repo.walk import Facts
from assay.study.repo.words import ALGORITHMS, ASIDE, EVALUATE_WORDS, OTHER_WORDS

# What evaluates, what says so best first.
EVALUATES = (
    "evaluate", "eval", "evaluation", "evaluations", "evaluator", "test", "enjoy", "watch",
    "spectate", "play", "inference", "infer",
)  # fmt: skip
_VERBS = {"command", "cmd", "mode", "action", "subcommand", "verb", "subcmd", "argv", "func"}
_FILE = importlib.resources.files("assay.study.repo").joinpath("weights.yaml")
NONE = "none"  # the sign of the answer that nothing trains
_DOCUMENTS = 5  # more of them say no more
_DEPTH = 6
_METHODS = ALGORITHMS | {"sarsa", "qlearning", "q", "es", "cem", "alphazero", "muzero"}


def subcommands(repo: Repository, target: str) -> dict[str, str]:
    """Return the verbs of a command-line program, each with its place."""
    found: dict[str, str] = {}
    for fact in repo.closure(target, depth=2)[:40] if target in repo.facts else ():
        if repo.files.is_test(fact.path):
            continue
        for verb, line in fact.subcommands.items():
            found.setdefault(verb, f"{fact.path}:{line}")
        for setting, values in fact.compared.items() if fact.path == target else ():
            option = f"--{setting.rpartition('.')[2]}"
            # `mode == "eval"` may ask for anything, unless the command line has it.
            last = setting.rpartition(".")[2]
            given = last in fact.positional or not {"mode", "action"} & set(words(last))
            if set(words(setting)) & _VERBS and option not in fact.options and given:
                for verb, line in values.items():
                    found.setdefault(verb, f"{fact.path}:{line}")
    return found


def verb_of(repo: Repository, command: Command) -> str:
    """Return what a program is told to do: `train` in `tool train` and `python -m tool train`."""
    if command.entry:
        at = command.argv.index(command.entry) + 1
    elif "-m" in command.argv[:4]:
        at = command.argv.index("-m") + 2
    else:
        at = next((i + 1 for i, word in enumerate(command.argv) if word.endswith(".py")), 0)
    rest = command.argv[at : at + 1]
    if not rest or not re.fullmatch(r"[a-z][\w-]*", rest[0]):
        return ""
    known = command.entry or rest[0] in subcommands(repo, command.target)
    return rest[0] if known else ""


def verb_kind(verb: str) -> str:
    """Return whether a verb trains or evaluates, if it says so."""
    first = words(verb)[:1]
    if first in (("train",), ("learn",), ("fit",)) and (
        len(words(verb)) == 1 or set(words(verb)[1:]) <= ALGORITHMS
    ):
        return "train"
    if len(words(verb)) == 1 and verb in ALGORITHMS - {"rl", "agent", "policy", "marl"}:
        return "train"  # `tool grpo`
    if first and first[0] in EVALUATES and len(words(verb)) == 1:
        return "evaluate"
    return ""


@dataclass
class Program:
    """Something that can be run, and all that runs it."""

    target: str
    verb: str = ""
    entries: list[Entry] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


@functools.cache
def weights() -> dict[str, float]:
    """Return how much each sign counts."""
    return {str(name): float(value) for name, value in yaml.safe_load(_FILE.read_text()).items()}


def score(signs: dict[str, float]) -> float:
    """Return how much speaks for a program, less what would have to speak for any."""
    known = weights()
    return sum(known.get(name, 0.0) * value for name, value in signs.items()) - known[NONE]


def programs(repo: Repository) -> list[Program]:
    """Return everything that can be run: what documents run, what is installed, and scripts."""
    found: dict[tuple[str, str], Program] = {}

    def at(target: str, verb: str) -> Program:
        return found.setdefault((target, verb), Program(target, verb))

    for command in repo.scripts.commands:
        if command.target in repo.facts and not command.target.endswith("setup.py"):
            at(command.target, verb_of(repo, command)).commands.append(command)
    for entry in repo.scripts.entries.values():
        for verb in (_verbs(repo, entry.target) or [""]) if entry.target in repo.facts else ():
            at(entry.target, verb).entries.append(entry)
    known = {target for target, _ in found}
    for path, fact in repo.facts.items():
        if is_script(fact) and path not in known:
            for verb in ("", *_verbs(repo, path)):
                at(path, verb)
    return list(found.values())


def _verbs(repo: Repository, target: str) -> list[str]:
    """Return the verbs that a parser has, and others only if they say what they are for."""
    parsed = {verb for fact in repo.closure(target, 2)[:40] for verb in fact.subcommands}
    told = [v for v in subcommands(repo, target) if v in parsed or verb_kind(v)]
    return [verb for verb in told if re.fullmatch(r"[a-z][\w-]*", verb)]


def signs(repo: Repository, program: Program) -> dict[str, float]:
    """Return the signs that a program shows; most are there or not."""
    fact = repo.facts[program.target]
    verb = set(words(program.verb))
    named = set(words(stem(program.target))) | verb
    if not program.verb:
        named |= {word for entry in program.entries for word in words(entry.name)}
    folders = set(words(program.target.rpartition("/")[0]))
    described = [c for c in program.commands if c.source == "readme" and "/" not in c.place]
    elsewhere = [c for c in program.commands if c.source != "comment"]
    heading = {word for command in program.commands for word in words(command.context)}
    own = set(fact.signals)
    reached = {signal for item in repo.closure(program.target, 6) for signal in item.signals}
    purposes = TRAIN_WORDS | EVALUATE_WORDS | _METHODS | {"run", "start", "fit", "test"}
    found: dict[str, object] = {
        "name says training": named & TRAIN_WORDS,
        "name says evaluation": named & EVALUATE_WORDS,
        "name says something else": named & OTHER_WORDS,
        "name is of a method": named & _METHODS,
        "name is of learning without rewards": without_reward(program.target, ("", program.verb)),
        "has a verb": verb,
        "needs a verb": not verb and fact.subcommands,
        "verb says training": verb & TRAIN_WORDS,
        "verb says something else": verb and not verb & (purposes | {"experiment"}),
        "among examples": folders & {"examples", "example"},
        "among measurements": folders & ASIDE,
        "readme runs it": described,
        "other document runs it": elsewhere and not described,
        "readme names it": is_told(repo, program.target),
        "heading says training": heading & TRAIN_WORDS,
        "heading says evaluation": heading & (EVALUATE_WORDS | {"test"}),
        "is installed": program.entries,
        "has a main function": fact.main > 0,
        "runs on import": fact.main < 0,
        "runs nothing by itself": fact.main == 0,
        "has settings": fact.config,
        "takes a seed": _takes_seed(fact),
        "speaks of nothing of RL": not about_rl(repo, program.target),
        "learns": "learn" in own,
        "calls training": "train_call" in own,
        "runs an agent": "agent_run" in own,
        "trains in any way": own & {"learn", "gradient", "train_call"},
        "reaches learning": "learn" in reached,
        "reaches gradients": "gradient" in reached,
        "reaches any learning": reached & {"learn", "gradient"},
        "reaches steps": "env_step" in reached,
        "reaches an environment": "make_env" in reached,
        "reaches learning and an environment": reached & {"learn", "gradient"}
        and reached & {"env_step", "make_env"},
    }
    result = {name: 1.0 for name, value in found.items() if value}
    result["depth"] = min(program.target.count("/"), _DEPTH) / _DEPTH
    if program.commands:
        result["documents"] = min(len(program.commands), _DOCUMENTS) / _DOCUMENTS
    return result


def can_train(shown: Iterable[str]) -> bool:
    """Return whether a program may train though nothing says so: it learns, or is called for it.

    What only imports code that learns is a module, unless documents run it or it is installed.
    """
    found = set(shown)
    learns = {"trains in any way", "runs an agent", "verb says training"}
    called = {"readme runs it", "readme names it", "other document runs it", "is installed"}
    other = {"needs a verb", "verb says something else"}
    if "name says training" not in found:
        other |= {"name says something else", "name says evaluation"}
    reaches = "reaches any learning" in found and found & called
    return bool(found & learns or reaches) and not found & other


def is_told(repo: Repository, path: str) -> bool:
    """Return whether the repository's description names a script."""
    name = path.rpartition("/")[2]
    return name not in ("__init__.py", "__main__.py") and name in repo.description


def about_rl(repo: Repository, path: str) -> bool:
    """Return whether a script, or what it uses, steps an environment or speaks of rewards."""
    steps = {"env_step", "make_env"}
    return any(f.speaks or f.rl or steps & set(f.signals) for f in repo.closure(path, 6))


def _takes_seed(fact: Facts) -> bool:
    """Return whether a script has a setting for its seed."""
    fields = (name for names in fact.fields.values() for name in names)
    return any(is_seed(name) for name in (*fact.options, *fact.positional, *fields))
