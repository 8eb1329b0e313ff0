"""What one Python file of a foreign repository does, read from its syntax tree.

The tree is walked once and dropped; what stays are facts with line numbers. The rules look at what
a call does, which import a name came from and what shape a class has. They never import the file.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from assay.study.repo.calls import Calls
from assay.study.repo.files import words
from assay.study.repo.syntax import (
    LEAVES,
    asks,
    assignments,
    computes,
    is_computed,
    is_none,
    is_number,
    target_name,
)
from assay.study.repo.walk import Facts, Hit, Owner
from assay.study.repo.words import (
    CONFIGS,
    DESCRIBES,
    DONE_NAMES,
    FILE_NAMES,
    LAUNCHERS,
    NESTED,
    NO_REWARD,
    OTHER_CONFIGS,
    OUTCOME_WORDS,
    RANDOMIZES,
    REWARD_NAMES,
    RL_LIBRARIES,
    STEPS,
    TABLES,
    TASK_ARGUMENTS,
)

_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)
# Where a part begins: nothing that closes or goes on with the one before.
_PART = re.compile(r"^(?!else\b|elif\b|except\b|finally\b)[A-Za-z_@]")


def read_python(path: str, text: str, vocabulary: dict[str, Any] | None = None) -> Facts:
    """Return what a file does; of a file that is no valid Python, as much as can be seen.

    Args:
        path: Its path in the repository.
        text: Its text.
        vocabulary: Extra names of a stack: `metric_calls` and, per slot, `<slot>_terms`.
    """
    facts = Facts(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(text)
            except SyntaxError:  # Python 2, templates, a newer Python
                facts.broken = True
                tree = _parse_parts(text)
                read_imports(path, text, facts)
        facts.doc = ast.get_docstring(tree) or ""
        _Reader(facts, vocabulary or {}).module(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Null bytes, machine-written nests: what was seen before stays.
        facts.broken = True
        return read_imports(path, text, facts)
    return facts


def _parse_parts(text: str) -> ast.Module:
    """Return the functions, classes and statements of a file that can be parsed by themselves."""
    module = ast.Module(body=[], type_ignores=[])
    lines = text.split("\n")
    found = [index for index, line in enumerate(lines) if _PART.match(line)]
    # A decorator belongs to what follows it.
    starts = [
        index
        for before, index in zip([-1, *found], found, strict=False)
        if before < 0 or not lines[before].startswith("@")
    ]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            part = ast.parse("\n".join(lines[start:end]))
        except SyntaxError:
            continue
        for node in part.body:
            module.body.append(ast.increment_lineno(node, start))
    return module


def read_imports(path: str, text: str, facts: Facts | None = None) -> Facts:
    """Return no more than what a file imports, which needs no syntax tree."""
    facts = facts or Facts(path)
    for found in _IMPORT.finditer(text):
        if found[1] not in facts.modules:
            note_import(facts, found[1], text.count("\n", 0, found.start(1)) + 1)
    return facts


def note_import(facts: Facts, module: str, line: int) -> None:
    """Note an import, and what it says about the repository."""
    facts.modules.add(module)
    root = module.partition(".")[0]
    if root in RL_LIBRARIES or module.startswith(("ray.rllib", "omni.isaac.")):
        facts.rl.append(Hit(root, line))
    if root in LAUNCHERS:
        facts.launchers.setdefault(LAUNCHERS[root], Hit(root, line, 0.7))
    if root in OTHER_CONFIGS:
        facts.config.setdefault("custom", Hit(root, line, 0.6))


class _Reader(Calls):
    """Walks one tree."""

    def __init__(self, facts: Facts, vocabulary: dict[str, Any]) -> None:
        super().__init__(facts, vocabulary)
        self.handlers = {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.ClassDef: self._class,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.For: self._loop,
            ast.While: self._loop,
            ast.If: self._if,
            ast.Assign: self._assign,
            ast.AnnAssign: self._assign,
            ast.AugAssign: self._assign,
            ast.Dict: self._dict,
            ast.keyword: self._keyword,
            ast.Call: self.call,
            ast.Compare: self._compare,
            ast.Return: self._return,
        }

    def module(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        self.constants[target.id] = node.value.value
        own = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        }
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.Expr) and isinstance(node.value, ast.Call):
                if self.dotted(node.value.func).endswith(".parse_args"):
                    self.runs(node.lineno)  # a program without a main function
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                call = node.value
                named = {item.id for item in (call.func, *call.args) if isinstance(item, ast.Name)}
                if named & own and not {"register"} & set(words(self.dotted(call.func))):
                    self.runs(node.lineno)  # `main()` or `app.run(main)`
        self.children(tree)
        for name, origin in self.constants.items():
            if name.startswith("tyro:"):
                for option, line in self.fields.get(origin, {}).items():
                    self.facts.options.setdefault("--" + option, line)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.facts.imports[alias.asname] = alias.name
            note_import(self.facts, alias.name, node.lineno)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            self.facts.relative = True
            package = self.facts.path.split("/")[: -node.level]
            module = ".".join([*package, module] if module else package)
        for alias in node.names:
            self.facts.imports[alias.asname or alias.name] = f"{module}.{alias.name}"
            self.facts.modules.add(f"{module}.{alias.name}")
        note_import(self.facts, module, node.lineno)

    def _loop(self, node: ast.For | ast.While) -> None:
        outer = self.pairs
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            source, key = node.iter, node.target.elts[0]
            called = source.func if isinstance(source, ast.Call) else None
            if isinstance(called, ast.Attribute) and isinstance(key, ast.Name):
                if called.attr == "items":
                    self.pairs = {**outer, key.id: called.value}
        self.loops += 1
        self.children(node)
        self.loops -= 1
        self.pairs = outer

    def _if(self, node: ast.If) -> None:
        test = node.test
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Name)
            and test.left.id == "__name__"
        ):
            self.facts.main = node.lineno
        self.children(node)

    def _compare(self, node: ast.Compare) -> None:
        for value in node.comparators:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                self.facts.subcommands.setdefault(value.value, node.lineno)
        self.children(node)

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
            base.endswith(("Task", "Env", "Robot")) for base in bases
        )
        # `class UnlockEnv(RoomGrid)`: the base is somewhere else, the name says what it is.
        named_so = node.name.endswith(("Env", "Environment"))
        inherits = inherits or (bool(steps and bases) and named_so)
        wrapper = "wrapper" in base_words or node.name.endswith("Wrapper")
        rewarding = any(name.startswith(("_reward_", "compute_reward")) for name in methods)
        context = Owner(node.name, bool(methods) and (shaped or inherits or rewarding), wrapper)
        for base in node.bases:
            full = self.dotted(base)
            if full.partition(".")[0] in ("rsl_rl", "rl_games", "skrl") and "Runner" in full:
                self.sink("tensorboard", full, node.lineno, 0.6)
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
            if plain and (named & {"randomizer", "randomization", "randomisation", "randomize"}):
                self.found("randomization", node.name, node.lineno, 0.8)
            if plain and "manager" in named and "reward" in named | {w.rstrip("s") for w in named}:
                self.found("reward", node.name, node.lineno, 0.55)
            if plain and "manager" in named and "termination" in named:
                self.found("termination", node.name, node.lineno, 0.55)
        for decorator in node.decorator_list:
            self._decorator(decorator, node.name, node.lineno)
        outer = self.depth, self.function, self.loops, self.label
        self.classes.append(context)
        for item in node.body:
            self._visit(item)
        self.classes.pop()
        self.depth, self.function, self.loops, self.label = outer

    def _class_config(self, node: ast.ClassDef, methods: set[str], bases: set[str]) -> None:
        name_words = words(node.name)
        decorators = {
            self.dotted(item.func if isinstance(item, ast.Call) else item).rpartition(".")[2]
            for item in node.decorator_list
        }
        fields = {
            item.target.id: item.lineno
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        if decorators & {"dataclass", "configclass", "define", "attrs"}:
            self.fields[node.name] = fields
            if fields and name_words and name_words[-1] in CONFIGS:
                self.facts.config.setdefault("dataclasses", Hit(node.name, node.lineno, 0.75))
        elif fields and bases & {"model", "settings"} and name_words[-1] in CONFIGS:
            self.facts.config.setdefault("custom", Hit("pydantic", node.lineno, 0.6))
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

    def _nested(self, classes: list[ast.ClassDef], owner: str) -> None:
        """Note the parts of a config that is a class of classes."""
        for item in classes:
            for slot, names in NESTED.items():
                assigned = [part for part in ast.walk(item) if isinstance(part, ast.Assign)]
                if item.name.lower() in names and assigned:
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
        for decorator in node.decorator_list:
            self._decorator(decorator, node.name, node.lineno)
        outer = self.function, self.dicts, self.made, self.loops, self.scope
        self.function, self.dicts, self.made, self.loops = node.name, {}, {}, 0
        if not self.classes and not self.scope:
            self.scope = node.name
        self.depth += 1
        self.children(node)
        self.depth -= 1
        self.function, self.dicts, self.made, self.loops, self.scope = outer

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
            command = str(given[0]) if given else name.strip("_").replace("_", "-")
            self.facts.subcommands.setdefault(command, line)

    def _return(self, node: ast.Return) -> None:
        value = node.value
        if (
            self.function in STEPS
            and isinstance(value, ast.Tuple)
            and isinstance(value.elts[-1], ast.Dict)
        ):
            self.keys(value.elts[-1], self.facts.infos, 0.6)
        if value is not None:
            # `return loss, {"loss": ...}` hands its metrics on as well.
            for part in value.elts if isinstance(value, ast.Tuple) else [value]:
                keys = self.dict_keys(part) or self.dicts.get(target_name(part), [])
                self.facts.returned.setdefault(self.function, []).extend(keys)
                if keys and self.function in DESCRIBES and self.classes:
                    if self.classes[-1].environment:
                        self.facts.infos.extend(keys)
        self.children(node)

    def _named(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: list[str], inside: bool
    ) -> None:
        name_words = words(node.name)
        if not name_words:
            return
        self._in_place(node, arguments, inside)
        named = set(name_words)
        owner = self.classes[-1] if inside else None
        if owner is not None and "buffer" in words(owner.name):
            return
        qualified = f"{owner.name}.{node.name}" if owner else node.name
        tasked = (
            (owner is not None and owner.environment)
            or bool(TASK_ARGUMENTS & set(arguments))
            or (self.place if owner else self.rewarding)
            or (name_words[0] in ("compute", "calc") and bool(self.facts.environments))
        )
        if owner is not None and owner.environment and node.name in STEPS:
            self._step(node, qualified, owner)
        no = NO_REWARD
        if owner is not None and owner.environment and name_words[0] in ("compute", "calc"):
            no = NO_REWARD - {"normalized"}  # `compute_normalized_reward` works it out
        if named & {"reward", "rewards", "rew"} and not named & no and computes(node):
            prefix = re.match(r"_?(reward|rew)_\w", node.name) and owner is not None
            if prefix and owner is not None and owner.environment:
                self.found("reward", qualified, node.lineno, 0.95)
                self.term("reward", re.sub(r"^_?(reward|rew)_", "", node.name), "", node.lineno)
            elif name_words[-1] in ("reward", "rewards", "rew", "fn", "function") or named & {
                "compute", "calc", "calculate", "get", "penalty",
            }:  # fmt: skip
                if tasked:
                    self.found("reward", qualified, node.lineno, 0.85)
        ending = named & {
            "termination", "terminations", "terminated", "terminate", "done", "dones", "terminal",
            "truncated", "truncation", "absorbing",
        }  # fmt: skip
        verb = name_words[0] in {
            "check", "compute", "get", "is", "should", "calc", "has", "evaluate", "termination",
        } or len(name_words) == 1  # fmt: skip
        other = named & {
            "reward",
            "print",
            "log",
            "on",
            "process",
            "count",
            "buffer",
            "mask",
            "plot",
        }
        # `is_terminated` among reward functions pays for the end, it does not bring it about.
        paid = owner is None and {"reward", "rewards"} & set(words(self.facts.path))
        # What is handed the reward packs a step up.
        packs = owner is None and {"reward", "rewards"} & set(arguments)
        if ending and verb and not other and not paid and not packs and tasked:
            if computes(node) or asks(node):
                self.found("termination", qualified, node.lineno, 0.85)
        if named & {"curriculum", "curricula"} and computes(node, strict=False):
            self.found("curriculum", qualified, node.lineno, 0.85)
        elif named & {"difficulty"} and named & {"update", "schedule", "increase", "adjust"}:
            self.found("curriculum", qualified, node.lineno, 0.6)
        random = named & RANDOMIZES or {"domain", "rand"} <= named
        if random and not named & {"seed", "seeds", "weights", "layers", "order", "policy"}:
            if computes(node, strict=False):
                self.found("randomization", qualified, node.lineno, 0.85)

    def _in_place(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: list[str], inside: bool
    ) -> None:
        """Note the functions of a file that is called after what they are: `termination_fns.py`."""
        if inside or self.depth or self.classes or node.name.startswith("_"):
            return
        stem = set(words(self.facts.path.rpartition("/")[2].removesuffix(".py")))
        if arguments and set(arguments[:2]) & (TASK_ARGUMENTS | {"act", "ob", "next_ob"}):
            for slot, names in FILE_NAMES.items():
                if stem & names and computes(node):
                    self.found(slot, node.name, node.lineno, 0.8)

    def _step(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, qualified: str, owner: Owner
    ) -> None:
        """Note where a step computes its reward and its end, not where it hands them on."""
        found: dict[str, int] = {}
        for item, branch in assignments(node.body, False):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            for target in targets:
                name = target_name(target)
                slot = (
                    "reward" if name in REWARD_NAMES
                    else "termination" if name in DONE_NAMES
                    else ""
                )  # fmt: skip
                if owner.wrapper and (
                    isinstance(item.value, ast.Call)
                    or (isinstance(item, ast.AugAssign) and "reward" in ast.unparse(item.value))
                ):
                    continue  # a wrapper converts or sums what the environment gave it
                if slot and item.value is not None and slot not in found:
                    if is_computed(item.value, branch or isinstance(item, ast.AugAssign), slot):
                        found[slot] = item.lineno
        for slot, line in found.items():
            self.found(slot, qualified, line, 0.6 if owner.wrapper else 0.8)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        for target in targets:
            if isinstance(target, ast.Subscript):
                self._subscript(target)
            name = target_name(target)
            if isinstance(target, ast.Name | ast.Attribute) and value is not None:
                keys = self.dict_keys(value)
                if keys:
                    self.dicts.setdefault(name, []).extend(keys)
                    if name in ("info", "infos"):
                        self.facts.infos.extend(keys)
                    if "metrics" in words(name):
                        for hit in keys:
                            if "/" in hit.name or name == "metrics":
                                self.metric(hit.name, hit.line, 0.65)
            if isinstance(value, ast.Call):
                maker = ".".join(self.dotted(value.func).split(".")[-2:])
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    self.made[target_name(part)] = maker
                if isinstance(target, ast.Tuple):
                    self._unpacked(target, value)
            if name in ("logger", "logger_type") and isinstance(value, ast.Constant):
                if value.value in ("wandb", "tensorboard", "csv"):
                    self.sink(value.value, name, node.lineno, 0.7)
            if name == "curriculum" and isinstance(value, ast.Constant) and value.value is True:
                self.found("curriculum", "curriculum = True", node.lineno, 0.75)
            self.label = name
            if isinstance(target, ast.Subscript):
                self.label = self.text(target.slice) or name
        if value is not None:
            self._weights(self.label, value)
            if type(value) not in LEAVES:
                self._visit(value)
        self.label = ""
        for target in targets:
            self._visit(target)

    def _unpacked(self, target: ast.Tuple, call: ast.Call) -> None:
        """Note `obs, reward, ... = env.step(action)`."""
        full = self.dotted(call.func)
        receiver, _, tail = full.rpartition(".")
        if tail in ("step", "step_wait", "env_step") and 3 <= len(target.elts) <= 6:
            names = {target_name(item) for item in target.elts}
            known = any(OUTCOME_WORDS & set(words(name)) for name in names)
            if known or {"env", "envs"} & set(words(receiver)):
                self.facts.rl.append(Hit("env.step", call.lineno))
                self.signal("env_step", call.lineno)

    def _subscript(self, target: ast.Subscript) -> None:
        key = self.text(target.slice)
        if not key:
            return
        base: ast.AST = target.value
        chain = []
        while isinstance(base, ast.Subscript):
            chain.append(self.text(base.slice) or "")
            base = base.value
        name = target_name(base)
        hit = Hit(key, target.lineno, 0.7)
        if name in ("extras", "extra") and (
            set(chain) & {"log", "episode", "metrics"} or "/" in key.strip("/") or key.endswith("/")
        ):
            self.facts.metrics.append(hit)
        elif chain and name in ("info", "infos") and set(chain) & {"log", "metrics"}:
            self.facts.metrics.append(hit)
        elif not chain and name in ("info", "infos"):
            self.facts.infos.append(hit)
        elif not chain:
            self.dicts.setdefault(name, []).append(hit)
            if name == "metrics":
                self.metric(key, target.lineno, 0.6)

    def _weights(self, label: str, value: ast.AST) -> None:
        """Note `rewards = {"alive": 1.0, ...}` and `reward_config=create(scales=create(...))`."""
        if label.lower() not in NESTED["reward"] or not isinstance(value, ast.Dict | ast.Call):
            return
        if isinstance(value, ast.Call):
            made = self.dotted(value.func).rpartition(".")[2]
            if made not in TABLES and not set(words(made)) & (CONFIGS | {"reward", "rewards"}):
                return  # `reward=Box(low=0, high=1)` is a space
        names: list[tuple[str, int]] = []
        nodes = list(ast.walk(value))
        if any(isinstance(node, ast.keyword) and node.arg == "func" for node in nodes):
            return  # terms of a manager, which are read as such
        for node in nodes:
            if isinstance(node, ast.keyword) and node.arg and is_number(node.value):
                names.append((node.arg, node.value.lineno))
            elif isinstance(node, ast.Dict):
                for key, item in zip(node.keys, node.values, strict=True):
                    if (
                        isinstance(key, ast.Constant)
                        and isinstance(key.value, str)
                        and is_number(item)
                    ):
                        names.append((key.value, key.lineno))
        terms = [entry for entry in names if entry[0] not in ("weight", "std", "sigma", "scale")]
        if len(terms) > 1:
            self.found("reward", label, value.lineno, 0.7)
            for name, line in terms:
                self.term("reward", name, "", line)

    def _dict(self, node: ast.Dict) -> None:
        callables = 0
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.label = key.value
                self._weights(key.value, value)
                if isinstance(value, ast.Name) and value.id in {
                    key.value, key.value.replace("-", "_"), f"{key.value}_main",
                }:  # fmt: skip
                    callables += 1
                    self.facts.subcommands.setdefault(key.value, key.lineno)
            if type(value) not in LEAVES:
                self._visit(value)
        self.label = ""

    def _keyword(self, node: ast.keyword) -> None:
        name = node.arg or ""
        if name in ("tensorboard_log", "tensorboard_log_dir") and not is_none(node.value):
            self.sink("tensorboard", name, node.value.lineno, 0.85)
        if name in ("randomization_fn", "randomize_fn"):
            tail = self.dotted(node.value).rpartition(".")[2]
            # A parameter that is handed on keeps its name.
            if {"randomize", "randomise", "randomizer"} & set(words(tail)):
                self.term("randomization", tail, tail, node.value.lineno)
        if name == "info_keywords" and isinstance(node.value, ast.Tuple | ast.List):
            for item in node.value.elts:
                if self.text(item):
                    self.facts.infos.append(Hit(self.text(item), node.value.lineno, 0.7))
        self._weights(name, node.value)
        outer, self.label = self.label, name or self.label
        if type(node.value) not in LEAVES:
            self._visit(node.value)
        self.label = outer

    def _visit(self, node: ast.AST) -> None:
        handler = self.handlers.get(type(node))
        if handler is None:
            self.children(node)
        else:
            handler(node)
