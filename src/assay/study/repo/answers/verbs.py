"""What a command-line program is told to do: the verbs that it has, and what they are for."""

from __future__ import annotations

import re

from assay.study.repo.commands import Command
from assay.study.repo.files import words
from assay.study.repo.repository import Repository

# What evaluates, what says so best first.
EVALUATES = (
    "evaluate", "eval", "evaluation", "evaluations", "evaluator", "test", "enjoy", "watch",
    "spectate", "play", "inference", "infer",
)  # fmt: skip
_VERBS = {"command", "cmd", "mode", "action", "subcommand", "verb", "subcmd", "argv", "func"}
ALGORITHMS = {
    "ppo", "dqn", "ddqn", "qrdqn", "sac", "td3", "ddpg", "a2c", "a3c", "trpo", "grpo", "rloo",
    "tqc", "reinforce", "rainbow", "impala", "rl", "agent", "policy", "marl", "mappo", "qmix",
    "dreamer",
}  # fmt: skip


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
