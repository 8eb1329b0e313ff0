"""What the classes and functions of a foreign file are: environments, rewards, configurations."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection

from assay.study.repo.files import words
from assay.study.repo.steps import Steps
from assay.study.repo.syntax import (
    asks,
    body_of,
    computes,
    is_number,
    never,
    returns_step,
    works_out,
)
from assay.study.repo.walk import Hit, Owner
from assay.study.repo.words import (
    COMPUTES,
    CONFIGS,
    ENDINGS,
    FILE_NAMES,
    LIBRARY_METRICS,
    NESTED,
    NO_ENDING,
    NO_RANDOM,
    NO_REWARD,
    RANDOMIZES,
    SIMULATED,
    STEPS,
    STORAGE,
    TASK_ARGUMENTS,
)

# `getreward`, which has no word of its own.
_JOINED = re.compile(r"(get|calc|compute|calculate|check|is)(reward|done|terminal)(?=$|_|[A-Z])")
_ASKED = {(verb, "reward") for verb in ("get", "compute", "calculate", "calc")}
REWARD_ENDS = {"reward", "rewards", "rew", "fn", "function", "func"}
REWARD_VERBS = {"compute", "calc", "calculate", "get", "penalty", "shape"}


class Definitions(Steps):
    """The rules that look at classes and functions."""

    def _class(self, node: ast.ClassDef) -> None:
        bases = [self.dotted(base).rpartition(".")[2] for base in node.bases]
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        base_words = {word for base in bases for word in words(base)[-2:]}
        # A step takes an action; what steps by itself is a form or a scheduler.
        steps = {
            item.name
            for item in node.body
            if isinstance(item, ast.FunctionDef)
            and item.name in STEPS
            and (len(item.args.args) > 1 or item.name not in ("step", "_step"))
        }
        shaped = bool(steps) and any(name.startswith(("reset", "_reset")) for name in methods)
        inherits = bool(base_words & {"env", "environment", "wrapper"}) or any(
            base.endswith(("Task", "Env", "Robot", "MDP")) for base in bases
        )
        # `class UnlockEnv(RoomGrid)`: the base is somewhere else, the name says what it is.
        named_so = node.name.endswith(("Env", "Environment"))
        inherits = inherits or (bool(steps and bases) and named_so)
        wrapper = "wrapper" in base_words or node.name.endswith("Wrapper")
        terms = [name for name in methods if name.startswith("_reward_")]
        rewarding = len(terms) > 1 or any(name.startswith("compute_reward") for name in methods)
        context = Owner(node.name, bool(methods) and (shaped or inherits or rewarding), wrapper)
        for base in node.bases:
            full = self.dotted(base)
            if full.endswith("SummaryWriter"):
                self.sink("tensorboard", full, node.lineno, 0.9)
            if full.partition(".")[0] in ("rsl_rl", "rl_games", "skrl") and "Runner" in full:
                self.sink("tensorboard", full, node.lineno, 0.6)
            inherited = f"{full.partition('.')[0]}:{full.rpartition('.')[2]}"
            for name in LIBRARY_METRICS.get(inherited, ()):
                self.metric(name, node.lineno, 0.7)
        known = set(bases) & set(self.facts.functions)
        if not self.classes and ("__call__" in methods or "term" in base_words or known):
            # A term of a manager may be an object that is called.
            self.facts.functions[node.name] = node.lineno, "env"
        if context.environment and not wrapper:
            self.facts.environments.append(Hit(node.name, node.lineno))
        self._class_config(node, methods, base_words)
        named = set(words(node.name))
        if methods and not methods <= {"__init__"}:
            plain = named.isdisjoint({"cfg", "config", "test", "error", "term"})
            if plain and named & {"curriculum", "curricula"}:
                self.found("curriculum", node.name, node.lineno, 0.85)
            drawn = named & (RANDOMIZES | {"randomizer"}) and not named & {"no", "null", "dummy"}
            inside = set(self.facts.path.split("/")[:-1])
            drawn = drawn and not (STORAGE | {"models", "nets"}) & inside
            if plain and drawn and not named & (STORAGE | NO_RANDOM):
                self.found("randomization", node.name, node.lineno, 0.8)
            self._callable(node, named | base_words)
            if plain and "manager" in named and "reward" in named | {w.rstrip("s") for w in named}:
                self.found("reward", node.name, node.lineno, 0.55)
            if plain and "manager" in named and "termination" in named:
                self.found("termination", node.name, node.lineno, 0.55)
        for decorator in node.decorator_list:
            self._decorator(decorator, node.name, node.lineno)
        outer = self.depth, self.function, self.loops, self.label
        self.classes.append(context)
        for item in node.body:
            self.visit(item)
        self.classes.pop()
        self.depth, self.function, self.loops, self.label = outer

    def _callable(self, node: ast.ClassDef, named: set[str]) -> None:
        """Note a term that is an object: `class FallReward(RewardFunction)` with `__call__`."""
        bases = [words(self.dotted(base)) for base in node.bases]
        # `class Contrast(RewardModel)` pays, while `class RewardModel(nn.Module)` guesses.
        pays = words(node.name)[-1:] == ("reward",) or ("reward", "model") in [
            b[-2:] for b in bases
        ]
        names = COMPUTES | ({"forward", "score"} if pays else set())
        if words(node.name)[-2:] in (("reward", "shaper"), ("reward", "shaping")):
            names = names | {"shape", "reshape"}
        computing = any(
            isinstance(item, ast.FunctionDef) and item.name in names and computes(item)
            for item in node.body
        )
        other = STORAGE | {"wrapper", "abstract", "mixin", "protocol", "base", "head", "decoder"}
        if not computing or (set(words(node.name)) | named) & other - {"base"}:
            return
        if {"metrics", "metric"} & self.around:
            return  # it counts how episodes end
        if "base" in words(node.name) or "base" in words(self.facts.path.rpartition("/")[2]):
            return
        named = named | set(words("/".join(self.facts.path.split("/")[-2:])))
        if named & {"reward", "rewards"} and not named & {"normalizer", "scaler", "normalize"}:
            self.found("reward", node.name, node.lineno, 0.75)
        elif named & {"done", "dones", "termination", "terminations"}:
            self.found("termination", node.name, node.lineno, 0.75)

    def _class_config(self, node: ast.ClassDef, methods: set[str], bases: set[str]) -> None:
        name_words = words(node.name)
        decorators = {
            self.dotted(item.func if isinstance(item, ast.Call) else item).rpartition(".")[2]
            for item in node.decorator_list
        }
        fields = self.fields_of_class(node)
        made = bool(decorators & {"dataclass", "configclass", "define", "attrs", "chz"})
        if fields and (made or bases & {"model", "settings", "config", "cfg"}):
            self.facts.fields[node.name] = fields
            self.facts.bases[node.name] = [self.dotted(b).rpartition(".")[2] for b in node.bases]
        if made:
            if fields and name_words and name_words[-1] in CONFIGS:
                self.facts.config.setdefault("dataclasses", Hit(node.name, node.lineno, 0.75))
        elif fields and bases & {"model", "settings"} and name_words[-1] in CONFIGS:
            self.facts.config.setdefault("custom", Hit("pydantic", node.lineno, 0.75))
        elif not bases and not methods and name_words[-1:] == ("config",) and len(fields) > 4:
            self.facts.config.setdefault("custom", Hit("a class of constants", node.lineno, 0.7))
        if not self.classes:
            self._table(node, methods)
        nested = [item for item in node.body if isinstance(item, ast.ClassDef)]
        plain = [
            item
            for item in nested
            if not item.decorator_list
            and any(isinstance(part, ast.Assign) for part in ast.walk(item))
            and not any(isinstance(part, ast.FunctionDef) for part in item.body)
        ]
        if not decorators and plain and not methods - {"__init__"}:
            enough = len(plain) > 1 or name_words[-1:] in (("cfg",), ("config",))
            if enough:
                hit = Hit("nested classes", node.lineno, 0.85)
                self.facts.config.setdefault("custom", hit)
                self._nested(plain, node.name)

    def _table(self, node: ast.ClassDef, methods: set[str]) -> None:
        """Note a class that is only a table of what is randomised or rewarded."""
        named = words(node.name)
        numbers = [
            item
            for item in node.body
            if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None
        ]
        if not numbers or methods - {"__init__", "__post_init__"}:
            return
        random = set(named) & RANDOMIZES or {"domain", "rand"} <= set(named)
        if random and not set(named) & (STORAGE | NO_RANDOM):
            self.found("randomization", node.name, node.lineno, 0.8)
        rewarding = named[:1] in (("reward",), ("rewards",)) and len(named) > 1
        weighed = {"scales", "weights", "coefficients", "coefs", "cfg", "config"} & set(named[1:])
        values = [part for item in numbers for part in _defaults(item.value)]  # type: ignore[arg-type]
        if rewarding and weighed and any(map(is_number, values)):
            self.found("reward", node.name, node.lineno, 0.7)

    def _nested(self, classes: list[ast.ClassDef], owner: str) -> None:
        """Note the parts of a config that is a class of classes."""
        for item in classes:
            for slot, names in NESTED.items():
                assigned = [part for part in ast.walk(item) if isinstance(part, ast.Assign)]
                if assigned and any(_called(item.name.lower(), name) for name in names):
                    self.found(slot, f"{owner}.{item.name}", item.lineno, 0.85)
                    for part in assigned if slot == "reward" else ():
                        if is_number(part.value) and isinstance(part.targets[0], ast.Name):
                            self.term(slot, part.targets[0].id, "", part.lineno)
            self._nested([part for part in item.body if isinstance(part, ast.ClassDef)], owner)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        inside = bool(self.classes) and self.depth == 0
        if not inside and self.depth == 0:
            self.facts.functions[node.name] = node.lineno, (arguments or [""])[0]
        if "fixture" not in " ".join(map(self.dotted, node.decorator_list)):
            self._named(node, arguments, inside)
        signature = self.signature(node)
        if self.depth == 0 and (not self.classes or node.name == "__init__"):
            called = f"{self.classes[-1].name}.__init__" if self.classes else node.name
            self.facts.signatures[called] = signature
        for decorator in node.decorator_list:
            self._decorator(decorator, node.name, node.lineno)
            made_by = decorator.func if isinstance(decorator, ast.Call) else decorator
            self.option_decorator(decorator, self.dotted(made_by), node)
        outer = self.function, self.dicts, self.made, self.renamed, self.loops, self.scope
        around = self.conditions, self.arguments, self.defaults
        self.function, self.dicts, self.made, self.renamed = node.name, {}, {}, {}
        self.loops = 0
        if not self.depth:
            self.conditions = []
        self.defaults = [
            (name, option.default)
            for name, option in signature.items()
            if isinstance(option.default, str)
        ]
        self.arguments = [*arguments, *(argument.arg for argument in node.args.kwonlyargs)]
        if not self.classes and not self.scope:
            self.scope = node.name
        self.depth += 1
        self.children(node)
        self.depth -= 1
        self.function, self.dicts, self.made, self.renamed, self.loops, self.scope = outer
        self.conditions, self.arguments, self.defaults = around

    def _decorator(self, node: ast.AST, name: str, line: int) -> None:
        call = node.func if isinstance(node, ast.Call) else node
        full = self.dotted(call)
        tail = full.rpartition(".")[2]
        if "hydra" in full.lower():
            self.facts.config["hydra"] = Hit(full, line, 0.95)
        elif full.startswith("gin.") or full == "gin":
            self.facts.config.setdefault("gin", Hit(full, line, 0.95))
        elif full in ("ray.remote",):
            self.facts.launchers.setdefault("ray", Hit(full, line, 0.8))
        if tail == "command":
            given = [a.value for a in getattr(node, "args", ()) if isinstance(a, ast.Constant)]
            given += [
                self.text(item.value)
                for item in getattr(node, "keywords", ())
                if item.arg == "name"
            ]
            command = str(given[0]) if given else name.strip("_").replace("_", "-")
            self.facts.subcommands.setdefault(command, line)
            self.facts.verbs.setdefault(command, name)

    def _named(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: list[str], inside: bool
    ) -> None:
        name_words = words(_JOINED.sub(r"\1_\2", node.name))
        if not name_words:
            return
        self._in_place(node, arguments, inside)
        body = body_of(node)
        if len(body) == 1 and isinstance(body[0], ast.Return) and self.elsewhere(body[0].value):
            return
        named = set(name_words)
        owner = self.classes[-1] if inside else None
        stored = set(words(owner.name if owner else self.facts.path.rpartition("/")[2])) & STORAGE
        kept = {"buffer", "buffers", "storage", "dataset"} & stored
        if kept or (stored and not (owner is not None and owner.environment)):
            return  # what stores or learns from steps has no say in them
        qualified = f"{owner.name}.{node.name}" if owner else node.name
        tasked = (
            (owner is not None and owner.environment)
            or bool(TASK_ARGUMENTS & set(arguments))
            or (self.place if owner else self.rewarding)
            or (name_words[0] in ("compute", "calc") and bool(self.facts.environments))
            or (owner is None and self.place and name_words[-1] == "reward")
            or (owner is None and name_words in _ASKED)
            or bool(named & {"intrinsic", "intr"})
        )
        both = named & {"reward", "rew"} and named & {"terminated", "done"}
        if owner is not None and (both or (owner.environment and node.name.lower() in STEPS)):
            self.step(node, qualified, owner)
        elif not self.classes and node.name in STEPS and tasked and self.place:
            self.step(node, qualified, Owner(node.name, environment=True, wrapper=False))
        elif owner is not None and owner.environment and not named & {"reset", "init"}:
            self.sets(node, qualified)
        elif owner is not None and returns_step(node):
            self.sets(node, qualified)  # `return time, reward, done` of what moves for a step
        no = NO_REWARD
        if owner is not None and owner.environment and name_words[0] in ("compute", "calc"):
            no = NO_REWARD - {"normalized"}  # `compute_normalized_reward` works it out
        if name_words[0] == "shape":
            no = NO_REWARD - {"shape"}
        called = _pair(name_words, {"reward", "rewards"})
        if called and self.rewarding:
            no = NO_REWARD - {"default", "format"}  # `format_reward_func`
        if named & {"reward", "rewards", "rew"} and not named & no and works_out(node):
            prefix = re.match(r"_?(reward|rew)_\w", node.name) and owner is not None
            if prefix and owner is not None and owner.environment:
                self.found("reward", qualified, node.lineno, 0.95)
                self.term("reward", re.sub(r"^_?(reward|rew)_", "", node.name), "", node.lineno)
            elif owner is None and self.rewarding and name_words[0] == "reward":
                self.found("reward", qualified, node.lineno, 0.8)  # `reward_politeness(text)`
            elif tasked and (name_words[-1] in REWARD_ENDS or called or named & REWARD_VERBS):
                self.found("reward", qualified, node.lineno, 0.85)
        ending = named & ENDINGS
        verb = name_words[0] in {
            "check", "compute", "get", "is", "should", "calc", "has", "evaluate", "termination",
        } or len(name_words) == 1 or _pair(name_words, ENDINGS)  # fmt: skip
        fetched = {"state", "states", "obs", "observation", "value", "values"}
        other = named & NO_ENDING or (name_words[0] == "get" and name_words[-1] in fetched)
        # `is_terminated` among reward functions pays for the end, it does not bring it about.
        paid = owner is None and {"reward", "rewards"} & set(words(self.facts.path))
        # What is handed the reward packs a step up.
        packs = owner is None and {"reward", "rewards"} & set(arguments)
        if ending and verb and not other and not paid and not packs and tasked:
            if (computes(node) and not never(node)) or asks(node):
                self.found("termination", qualified, node.lineno, 0.85)
        if named & {"curriculum", "curricula"} and computes(node, strict=False):
            self.found("curriculum", qualified, node.lineno, 0.85)
        elif named & {"difficulty"} and named & {"update", "schedule", "increase", "adjust"}:
            self.found("curriculum", qualified, node.lineno, 0.6)
        random = named & RANDOMIZES or {"domain", "rand"} <= named
        if random and not named & (NO_RANDOM | STORAGE) and computes(node, strict=False):
            simulated = SIMULATED & ({w for a in arguments for w in words(a)} | named | self.around)
            if (owner is not None and owner.environment) or simulated:
                self.found("randomization", qualified, node.lineno, 0.85)

    def _in_place(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: list[str], inside: bool
    ) -> None:
        """Note the functions of a file that is called after what they are: `termination_fns.py`."""
        if inside or self.depth or self.classes or node.name.startswith("_"):
            return
        stem = set(words(self.facts.path.rpartition("/")[2].removesuffix(".py")))
        if stem & FILE_NAMES["reward"] and node.name in ("compute", "calculate") and computes(node):
            self.found("reward", node.name, node.lineno, 0.8)
        if arguments and set(arguments[:2]) & (TASK_ARGUMENTS | {"act", "ob", "next_ob"}):
            for slot, names in FILE_NAMES.items():
                if stem & names and computes(node):
                    self.found(slot, node.name, node.lineno, 0.8)


def _defaults(value: ast.expr) -> list[ast.expr]:
    """Return what a field is by default: `2.0` and `field(default=2.0)`."""
    given = value.keywords if isinstance(value, ast.Call) else []
    return [value, *(item.value for item in given if item.arg == "default")]


def _pair(name: tuple[str, ...], about: Collection[str]) -> bool:
    """Return whether a name says that it is a function of something: `reward_fn_batch`."""
    return any(
        first in about and second in ("fn", "func", "function")
        for first, second in itertools.pairwise(name)
    )


def _called(name: str, part: str) -> bool:
    """Return whether a class is a part of a config: `domain_rand`, also `domain_rand_heavy`."""
    return name == part or (len(part) > 6 and name.startswith(f"{part}_"))
