"""What one Python file of a foreign repository does, read from its syntax tree.

The tree is walked once and dropped; what stays are facts with line numbers. The rules look at what
a call does, which import a name came from and what shape a class has. They never import the file.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from assay.study.repo.definitions import Definitions
from assay.study.repo.files import words
from assay.study.repo.options import literal
from assay.study.repo.syntax import (
    LEAVES,
    conditions,
    is_none,
    is_number,
    parse_other,
    parts_of,
    target_name,
)
from assay.study.repo.walk import Facts, Hit
from assay.study.repo.words import (
    CONFIGS,
    DESCRIBES,
    LAUNCHERS,
    LIBRARY_METRICS,
    NESTED,
    OTHER_CONFIGS,
    OUTCOME_WORDS,
    RL_LIBRARIES,
    STEPS,
    TABLES,
)

_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+([^(\n]*|\([^)]*))?", re.MULTILINE
)
_NONE = ast.Constant(None)


def read_python(path: str, text: str, vocabulary: dict[str, Any] | None = None) -> Facts:
    """Return what a file does; of a file that is not valid Python, as much as can be seen.

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
                tree = parse_other(text)
                read_imports(path, text, facts)
        facts.doc = ast.get_docstring(tree) or ""
        facts.parts = parts_of(tree)
        _Reader(facts, vocabulary or {}).module(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Null bytes, machine-written nests: what was seen before stays.
        facts.broken = True
        return read_imports(path, text, facts)
    return facts


def read_imports(path: str, text: str, facts: Facts | None = None) -> Facts:
    """Return no more than what a file imports, which needs no syntax tree."""
    facts = facts or Facts(path)
    for found in _IMPORT.finditer(text):
        module = absolute(path, found[1])
        if module not in facts.modules:
            note_import(facts, module, text.count("\n", 0, found.start(1)) + 1)
        if found[1].startswith("."):  # `from . import agent`
            names = re.findall(r"\w+", (found[2] or "").partition("#")[0])
            facts.modules.update(f"{module}.{name}" for name in names)
    return facts


def absolute(path: str, module: str) -> str:
    """Return the full name of what a file imports: `pkg.agents` for `.agents` in `pkg/run.py`."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    return ".".join([*path.split("/")[:-level], *filter(None, [module[level:]])])


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


class _Reader(Definitions):
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
            ast.Match: self._match,
            ast.Subscript: self._read_key,
            ast.Return: self._return,
        }

    def module(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        self.constants[target.id] = node.value.value
        self.local = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        own = {name for name in self.local if not name.startswith("_")}
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
        if "learn" in self.facts.signals:
            for origin in self._imported_first(tree):
                made = f"{origin.partition('.')[0]}:{origin.rpartition('.')[2]}"
                for name in LIBRARY_METRICS.get(made, ()):
                    self.metric(name, self.facts.signals["learn"], 0.7)
            known = {name.partition(".")[0] for name in self.facts.modules}
            if "stable_baselines3" in known and "learn_steps" in self.facts.signals:
                for name in LIBRARY_METRICS["stable_baselines3:PPO"]:  # all of them log these
                    self.metric(name, self.facts.signals["learn_steps"], 0.65)

    def _imported_first(self, tree: ast.Module) -> list[str]:
        """Return what the whole file imports, and not one of its functions alone."""
        nodes = [
            part
            for node in tree.body
            if isinstance(node, ast.ImportFrom | ast.Try | ast.If)
            for part in ast.walk(node)
        ]
        return [
            self.facts.imports[alias.asname or alias.name]
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name) in self.facts.imports
        ]

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            # A name with dots is not a variable, but leads to its file.
            self.facts.imports[alias.asname or f"{alias.name}."] = alias.name
            note_import(self.facts, alias.name, node.lineno)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = absolute(self.facts.path, "." * node.level + (node.module or ""))
        self.facts.relative = self.facts.relative or node.level > 0
        for alias in node.names:
            local = alias.asname or (f"{module}.*" if alias.name == "*" else alias.name)
            if not self.depth or local not in self.defined:
                self.facts.imports[local] = f"{module}.{alias.name}"
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
            for item in node.body:
                self.visit(item)
            return
        self.visit(test)
        before = len(self.conditions)
        spoken = {
            word
            for part in ast.walk(test)
            for text in (getattr(part, "id", ""), getattr(part, "attr", ""), self.text(part))
            for word in words(str(text))
        }
        self.asked.append(" ".join(sorted(spoken)))
        for body, holds in ((node.body, True), (node.orelse, False)):
            self.conditions += conditions(test, holds=holds)
            for item in body:
                self.visit(item)
            del self.conditions[before:]
        self.asked.pop()
        if node.body and isinstance(node.body[-1], ast.Return | ast.Raise) and not node.orelse:
            # What follows is reached only if the test does not hold.
            self.conditions += conditions(test, holds=False)

    def _compare(self, node: ast.Compare) -> None:
        self.beats(node)
        for value in node.comparators:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                if isinstance(node.left, ast.Attribute | ast.Name | ast.Subscript):
                    asked = conditions(node)
                    for name, wanted in asked[:1]:
                        self.facts.compared.setdefault(name, {}).setdefault(
                            str(wanted), node.lineno
                        )
        self.children(node)

    def _match(self, node: ast.Match) -> None:
        """Note the strings that a setting is matched with: `case "train"`."""
        subject = conditions(ast.Compare(node.subject, [ast.Eq()], [ast.Constant("")]))
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchValue) and self.text(part.value):
                    for name, _ in subject:
                        known = self.facts.compared.setdefault(name, {})
                        known.setdefault(self.text(part.value), part.lineno)
        self.children(node)

    def _return(self, node: ast.Return) -> None:
        value = node.value
        if (
            self.function in STEPS
            and isinstance(value, ast.Tuple)
            and isinstance(value.elts[-1], ast.Dict)
        ):
            self.keys(value.elts[-1], self.facts.infos, 0.6)
        if self.function in STEPS and self.classes and isinstance(value, ast.Call):
            if self.dotted(value.func) == "dm_env.termination":
                name = f"{self.classes[-1].name}.{self.function}"
                self.found("termination", name, node.lineno, 0.8)
        if value is not None:
            # `return loss, {"loss": ...}` hands its metrics on as well.
            for part in value.elts if isinstance(value, ast.Tuple) else [value]:
                keys = self.dict_keys(part) or self.dicts.get(target_name(part), [])
                self.facts.returned.setdefault(self.function, []).extend(keys)
                if keys and self.function in DESCRIBES and self.classes:
                    if self.classes[-1].environment:
                        self.facts.infos.extend(keys)
        self.children(node)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        for target in targets:
            if isinstance(target, ast.Subscript):
                self._subscript(target)
            name = target_name(target)
            if value is not None and isinstance(target, ast.Name | ast.Attribute):
                self._path(name, value)
            if isinstance(value, ast.Constant | ast.List) and isinstance(target, ast.Name):
                # `wandb = None` after a failed import is not a setting.
                if name not in self.facts.modules and name not in self.facts.imports:
                    self.facts.assigned.setdefault(name, literal(value))
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
            if isinstance(value, ast.DictComp):
                self.renamed[name] = value
            if isinstance(target, ast.Name) and isinstance(value, ast.IfExp | ast.Constant):
                self.part_of_name(name, value)
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
            self._bonus(name, value, node.lineno)
            self.label = name
            if isinstance(target, ast.Subscript):
                self.label = self.text(target.slice) or name
        if value is not None:
            self._weights(self.label, value)
            if type(value) not in LEAVES:
                self.visit(value)
        self.label = ""
        for target in targets:
            self.visit(target)

    def _bonus(self, name: str, value: ast.AST | None, line: int) -> None:
        """Note a reward that a learner works out by itself: `intrinsic_reward = error ** 2`."""
        named = words(name)
        adds = {"intrinsic", "style", "penalty", "shaped", "shaping", "kl"}
        if named[-1:] in (("reward",), ("rewards",)) and set(named) & adds:
            made = self.dotted(value.func) if isinstance(value, ast.Call) else ""
            if isinstance(value, ast.BinOp) or made.startswith(("torch.", "numpy.", "jax.")):
                self.found("reward", self.function or name, line, 0.65)

    def _path(self, name: str, value: ast.AST) -> None:
        """Note a variable that holds the path of a file of results."""
        if isinstance(value, ast.Call | ast.JoinedStr | ast.BinOp | ast.Constant):
            for part in ast.walk(value):
                match = re.fullmatch(r"[^\n]*\.(csv|jsonl)", self.text(part)[-60:])
                if match:
                    self.files[name] = match[1]

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
        if "curriculum" in words(key):
            self.found("curriculum", key, target.lineno, 0.6)
        if name in ("extras", "extra") and (
            set(chain) & {"log", "episode", "metrics"} or "/" in key.strip("/") or key.endswith("/")
        ):
            self.facts.metrics.append(hit)
        elif chain and name in ("info", "infos") and set(chain) & {"log", "metrics"}:
            self.facts.metrics.append(hit)
        elif not chain and name in ("info", "infos"):
            self.facts.infos.append(hit)
            if "/" in key and OUTCOME_WORDS & set(words(key)):
                self.metric(key, target.lineno, 0.65)  # `info["Metric/reward"]`
        elif not chain:
            self.keeps(key, target.lineno)
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
        self.tags(node)
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.label = key.value
                if isinstance(value, ast.Constant | ast.List):
                    self.facts.assigned.setdefault(key.value, literal(value))
                self._weights(key.value, value)
                if isinstance(value, ast.Name) and value.id in {
                    key.value, key.value.replace("-", "_"), f"{key.value}_main",
                }:  # fmt: skip
                    self.facts.subcommands.setdefault(key.value, key.lineno)
            if type(value) not in LEAVES:
                self.visit(value)
        self.label = ""

    def _read_key(self, node: ast.Subscript) -> None:
        """Note `metrics["eval/return"]`, which something else wrote."""
        key = self.text(node.slice) if isinstance(node.slice, ast.Constant) else ""
        about = {"metrics", "metric", "logs", "stats", "results", "result"}
        if "/" in key and about & set(words(target_name(node.value))):
            self.metric(key, node.lineno, 0.7)
        self.children(node)

    def _keyword(self, node: ast.keyword) -> None:
        name = node.arg or ""
        if name in ("tensorboard_log", "tensorboard_log_dir") and not is_none(node.value):
            before = len(self.conditions)
            self.conditions += conditions(ast.Compare(node.value, [ast.IsNot()], [_NONE]))
            self.sink("tensorboard", name, node.value.lineno, 0.85)
            del self.conditions[before:]
        if name in ("randomization_fn", "randomize_fn"):
            tail = self.dotted(node.value).rpartition(".")[2]
            # A parameter that is handed on keeps its name.
            known = tail in self.facts.imports or tail in self.facts.functions
            known = known or isinstance(node.value, ast.Attribute)
            if known and {"randomize", "randomise", "randomizer"} & set(words(tail)):
                self.term("randomization", tail, tail, node.value.lineno)
        if name == "info_keywords" and isinstance(node.value, ast.Tuple | ast.List):
            for item in node.value.elts:
                if self.text(item):
                    self.facts.infos.append(Hit(self.text(item), node.value.lineno, 0.7))
        self._weights(name, node.value)
        outer, self.label = self.label, name or self.label
        if type(node.value) not in LEAVES:
            self.visit(node.value)
        self.label = outer
