"""What a script of a foreign repository is for: does it train, or does it evaluate?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from assay.study.repo.files import words
from assay.study.repo.walk import Facts, Option
from assay.study.repo.words import (
    EVALUATE_WORDS,
    LEARNING_OPTIONS,
    OTHER_MODELS,
    OTHER_WORDS,
    WITHOUT_REWARD,
)

TRAIN_WORDS = {"train", "training", "trainer", "learn", "learner", "finetune", "pretrain"}
_MODES = EVALUATE_WORDS | {"test", "testing", "backtest", "backtesting"}
_MODE_KEYS = {"mode", "phase", "job", "cmd", "command", "action", "type", "stage", "script", "task"}
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


@dataclass(frozen=True)
class Purpose:
    """What a script is for, and how sure that is."""

    kind: str  # train, evaluate or nothing
    sure: float
    line: int = 1


def scoped(fact: Facts, function: str) -> dict[str, int]:
    """Return what one function does, and the functions of its file that it calls."""
    found: dict[str, int] = {}
    seen, todo = {function}, [function]
    while todo:
        name = todo.pop()
        for signal, line in fact.scopes.get(name, {}).items():
            found.setdefault(signal, line)
        for called in sorted(fact.calls.get(name, set()) & set(fact.functions)):
            if called not in seen:
                seen.add(called)
                todo.append(called)
    return found


def purpose(
    fact: Facts,
    closure: list[Facts],
    name: str = "",
    context: str = "",
    signals: dict[str, int] | None = None,
) -> Purpose:
    """Judge by its name and by what it and the files it uses do whether a script trains.

    Args:
        fact: The script.
        closure: The files of the repository that it imports, itself first.
        name: The entry point, if it is called by one, and its function.
        context: The heading that a document gives its command.
        signals: What that function does; by default what the file does.
    """
    called = stem(fact.path)
    named = set(words(called)) | set(words(name))
    signals = fact.signals if signals is None else signals
    reached = {key for item in closure for key in item.signals}
    trains = next(
        (signals[k] for k in ("learn", "gradient", "train_call", "optimizer") if k in signals), 0
    )
    acts = "env_step" in signals or "evaluate_call" in signals
    both = [word for word in words(called) if word in TRAIN_WORDS | EVALUATE_WORDS]
    if both and both[0] in EVALUATE_WORDS:
        named -= TRAIN_WORDS  # `evaluate_training.py`
    others = named & OTHER_WORDS
    if others == {"tune"} and "learn" in signals:
        return Purpose("train", 0.7, signals["learn"])
    if others and others <= {"demo", "tutorial"}:
        if {"learn", "gradient"} & set(signals):
            others = set()  # it shows how to train by training
        elif "train_call" in signals:
            return Purpose("train", 0.75, signals["train_call"])
    if others and not named & (TRAIN_WORDS | EVALUATE_WORDS):
        if others <= {"generate"} and "evaluate_call" in signals and not trains:
            return Purpose("evaluate", 0.7, signals["evaluate_call"])  # of a language model
        return Purpose("", 0.0)
    learns = bool({"learn", "gradient", "optimizer"} & set(signals))
    if "load" in signals and acts and not learns and not named & TRAIN_WORDS:
        # It runs what was trained before; a name such as `run_policy.py` says no more.
        surely = named & (EVALUATE_WORDS | {"test", "trained", "pretrained", "policy"})
        return Purpose("evaluate", 0.9 if surely else 0.65, signals["load"])
    if named & TRAIN_WORDS and not others:
        if trains or reached & {"learn", "gradient"}:
            return Purpose("train", 0.95 if trains else 0.85, trains or abs(fact.main) or 1)
        plain = fact.main > 0 and not named & OTHER_MODELS
        return Purpose("train", 0.65 if plain else 0.4, abs(fact.main) or 1)
    by_hand = named & EVALUATE_WORDS == {"play"} and "env_step" in signals
    if by_hand and "load" not in reached and "evaluate_call" not in signals:
        return Purpose("", 0.0)  # a person plays
    if named & EVALUATE_WORDS and not named & TRAIN_WORDS and not others:
        line = signals.get("env_step") or signals.get("evaluate_call") or signals.get("load") or 0
        if line or reached & {"env_step", "evaluate_call"}:
            return Purpose("evaluate", 0.9 if line else 0.7, line or abs(fact.main) or 1)
        return Purpose("evaluate", 0.6 if fact.main > 0 else 0.4, abs(fact.main) or 1)
    if others:
        return Purpose("", 0.0)
    if trains and ("learn" in signals or acts or "make_env" in signals or "env_step" in reached):
        fits = "gradient" in signals or "optimizer" in signals
        # With a command line of its own it is a script, even if helpers step the environment.
        strong = "learn" in signals or (
            fits and ("env_step" in signals or (fact.main > 0 and bool(fact.config)))
        )
        return Purpose("train", 0.8 if strong else 0.55, trains)
    if set(words(context)) & TRAIN_WORDS and reached & {"gradient", "learn"}:
        return Purpose("train", 0.6, abs(fact.main) or 1)
    # Evolution and tables learn without gradients: what steps an environment that it made, is told
    # how to learn and loads nothing, learns.
    told = {word for option in fact.options for word in words(option)}
    fixed = {word for name in fact.assigned for word in words(name)} & (
        LEARNING_OPTIONS | {"alpha"}
    )
    told |= fixed if len(fixed) > 1 else set()
    if "env_step" in signals and "make_env" in signals and "load" not in signals:
        if told & LEARNING_OPTIONS:
            return Purpose("train", 0.8, signals["env_step"])
    if "test" in named and ({"evaluate_call", "load"} & set(signals) or "env_step" in signals):
        return Purpose("evaluate", 0.6, abs(fact.main) or 1)
    return Purpose("", 0.0)


def stem(path: str) -> str:
    """Return what a file is called, with its directory where its own name says nothing."""
    name = path.rpartition("/")[2].removesuffix(".py")
    plain = name in ("__main__", "__init__", "main", "run", "cli")
    return "/".join(path.split("/")[-2:]) if plain else name


def without_reward(path: str, argv: Iterable[str] = ()) -> bool:
    """Return whether a script, or the verb that it is called with, trains by no reward."""
    called = stem(path)
    verbs = [word for word in list(argv)[1:3] if re.fullmatch(r"[a-z][\w-]*", word)]
    named = {word for name in (called, *verbs) for word in words(name)}
    return bool(named & WITHOUT_REWARD) and not named & {"rl", "ppo", "grpo"}


def evaluates(argv: Iterable[str]) -> bool:
    """Return whether the arguments turn a training script into an evaluation."""
    parts = list(argv)
    for index, part in enumerate(parts):
        key, equals, value = part.partition("=")
        following = parts[index + 1] if index + 1 < len(parts) else ""
        if not equals and following and not following.startswith("-"):
            value = following
        if not key.startswith("-") and not equals:
            continue
        if says_evaluate(key):
            bare = not equals and (following.startswith("-") or not following)
            return (
                bare or value.lower() not in _FALSE
                if key.startswith("-") and not equals
                else (value.lower() in _TRUE)
            )
        named = set(words(key))
        if named & _MODE_KEYS and value.lower() in _MODES:
            return True
        if named == {"train"} and value.lower() in _FALSE:
            return True
        if named in ({"no", "train"}, {"notrain"}, {"skip", "train"}, {"skip", "training"}):
            return True
    return False


def says_evaluate(option: str) -> bool:
    """Return whether an option makes a script evaluate instead: `--eval-only`, `test`."""
    named = set(words(option.rpartition(".")[2]))
    if named & {"evaluation", "rollout", "rollouts"} and "only" not in named:
        return False  # `experiment.evaluation=true` evaluates on the way
    return bool(named & _MODES) and named <= _MODES | {"only", "just", "run", "mode", "is", "do"}


def training_switch(
    fact: Facts, options: dict[str, Option], argv: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the arguments without which a script does not train: `--mode train`, `--train`."""
    given = {word.partition("=")[0] for word in argv}
    for setting, values in fact.compared.items():
        name = f"--{setting.rpartition('.')[2]}"
        option = fact.options.get(name)
        if option is not None and name not in given and set(words(name)) & _MODE_KEYS:
            wanted = [value for value in values if value.lower() in ("train", "training")]
            if wanted and str(option.default).lower() not in ("train", "training"):
                return name, wanted[0]
    for name, option in options.items():
        named = words(name)
        if option.flag and option.default is False and len(named) == 1 and name not in given:
            if named[0] in ("train", "trainer", "training") and name in fact.options:
                return (name,)
    return ()


def evaluation_switch(
    fact: Facts, options: dict[str, Option]
) -> tuple[tuple[str, ...], int] | None:
    """Return the arguments that make a training script evaluate, where its options say so."""
    for setting, values in fact.compared.items():
        last = setting.rpartition(".")[2]
        found = sorted(value for value in values if says_evaluate(value))
        for name, option in options.items():
            if (
                found
                and re.split(r"[.-]", name)[-1] == last
                and option.kind in ("str", "choice", "")
            ):
                typed = (name, found[0]) if name.startswith("-") else (f"{name}={found[0]}",)
                return typed, option.line
    options = {**fact.options, **options}
    for name, option in options.items():
        if set(words(name)) & _MODE_KEYS and option.choices:
            for choice in option.choices:
                if str(choice).lower() in _MODES:
                    return (name, str(choice)), option.line
    order = ("evaluate", "eval", "test", "inference", "infer", "play")
    ranked = sorted(options, key=lambda n: [w not in words(n) for w in order])
    for name, option in ((name, options[name]) for name in ranked):
        about = set(words(option.about))
        during = about & {
            "human", "keyboard", "during", "every", "while", "interval", "periodically",
            "frequency",
        }  # fmt: skip
        if says_evaluate(name) and option.kind == "bool" and not during:
            if option.flag and option.default is False:
                return (name,), option.line
    return None


def is_script(fact: Facts) -> bool:
    """Return whether a file does something when it is run; of tests only imports are known."""
    return fact.main != 0 and not fact.path.endswith("setup.py")
