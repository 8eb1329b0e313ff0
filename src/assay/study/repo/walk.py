"""A walk through one syntax tree, and the facts that stay when the tree is dropped."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from assay.study.repo.files import words
from assay.study.repo.syntax import LEAVES, Parts, fields_of, placeholder
from assay.study.repo.words import PLACES, SLOTS

# What a file does at its top is its purpose, if it is one of these.
RUNS = {"learn", "gradient", "env_step", "train_call", "evaluate_call"}


# A setting, and the value that it has to have; `...` stands for any that is not None.
Condition = tuple[str, Any]


@dataclass(frozen=True)
class Hit:
    """Something that was found, and how sure that is."""

    name: str
    line: int
    confidence: float = 0.8
    under: tuple[Condition, ...] = ()  # what has to hold for it


@dataclass(frozen=True)
class Option:
    """A setting that a command line, a dataclass or a config file has."""

    line: int
    kind: str = ""  # int, float, bool, str, choice, or the name of a class that has fields itself
    default: Any = None
    choices: tuple[Any, ...] = ()
    required: bool = False
    flag: bool = False  # takes no value
    about: str = ""
    path: str = ""  # its file, once it is known


@dataclass(frozen=True)
class Logged:
    """A dictionary that is logged and was made by a function, here or elsewhere."""

    function: str  # with what it was called on: `report.to_dict`
    template: str  # `losses/{}`: the name of a metric around a key
    confidence: float
    line: int = 0
    instead: str = ""  # what the metrics are called where that function is not found


@dataclass(frozen=True)
class Sink:
    """A use of a place that results are written to."""

    name: str
    line: int
    under: tuple[Condition, ...]  # what has to hold for it
    defined: bool  # inside of a class or function that is called after it
    starts: bool  # opens it, rather than to write to it


@dataclass(frozen=True)
class Helper:
    """A function that logs under a name that it is given, or the keys of a dictionary."""

    argument: str
    arguments: tuple[str, ...]  # without self
    template: str  # `{mode}/{}`
    keys: bool  # of a dictionary
    defaults: tuple[tuple[str, str], ...] = ()  # of other arguments in the template


@dataclass(frozen=True)
class Spoken:
    """A call with a string or with the keys of a dictionary."""

    function: str
    texts: tuple[tuple[str | int, str], ...]
    keys: tuple[tuple[str | int, tuple[str, ...]], ...]
    line: int


@dataclass
class Facts:
    """What a file does."""

    path: str
    imports: dict[str, str] = field(default_factory=dict)  # local name -> dotted origin
    modules: set[str] = field(default_factory=set)
    relative: bool = False
    broken: bool = False  # no valid Python
    main: int = 0  # line of what runs when the file is run, negative if on import too; 0: nothing
    doc: str = ""
    options: dict[str, Option] = field(default_factory=dict)  # of the command line, with dashes
    positional: dict[str, Option] = field(default_factory=dict)
    fields: dict[str, dict[str, Option]] = field(default_factory=dict)  # of classes
    bases: dict[str, list[str]] = field(default_factory=dict)  # of those classes
    signatures: dict[str, dict[str, Option]] = field(default_factory=dict)  # of functions
    # Classes and functions that a command line is made of, and whether of a function's arguments.
    parsed: list[tuple[str, bool]] = field(default_factory=list)
    hydra: dict[str, tuple[str, str]] = field(default_factory=dict)  # configs, per function
    compared: dict[str, dict[str, int]] = field(default_factory=dict)  # strings, per setting
    assigned: dict[str, Any] = field(default_factory=dict)  # literals, by what they are called
    config_files: list[tuple[str, str]] = field(default_factory=list)  # flags, and their defaults
    subcommands: dict[str, int] = field(default_factory=dict)
    verbs: dict[str, str] = field(default_factory=dict)  # subcommands, and their functions
    owners: dict[str, set[str]] = field(default_factory=dict)  # functions that have an option
    dashed: set[str] = field(default_factory=set)  # functions whose options have no underscores
    dotted: bool = False  # what follows a script is read as `name=value`
    structured: list[str] = field(default_factory=list)  # classes that such settings are of
    flat: bool = False  # the names of options are those of the fields, without their classes
    signals: dict[str, int] = field(default_factory=dict)
    scopes: dict[str, dict[str, int]] = field(default_factory=dict)  # signals, per function
    calls: dict[str, set[str]] = field(default_factory=dict)  # functions of this file, per function
    config: dict[str, Hit] = field(default_factory=dict)
    logging: dict[str, Hit] = field(default_factory=dict)
    sinks: list[Sink] = field(default_factory=list)  # every use, with what it depends on
    helpers: dict[str, Helper] = field(default_factory=dict)  # functions that log what they get
    spoken: list[Spoken] = field(default_factory=list)  # calls that may be calls of such
    metrics: list[Hit] = field(default_factory=list)
    kept: list[Hit] = field(default_factory=list)  # keys of dictionaries that speak of outcomes
    beats: list[Hit] = field(default_factory=list)  # what is compared with the best so far
    texts: dict[str, list[str]] = field(default_factory=dict)  # variables that hold part of a name
    infos: list[Hit] = field(default_factory=list)
    returned: dict[str, list[Hit]] = field(default_factory=dict)  # keys, per function
    logged: list[Logged] = field(default_factory=list)
    code: dict[str, list[Hit]] = field(default_factory=lambda: {slot: [] for slot in SLOTS})
    terms: list[tuple[str, str, str, int]] = field(default_factory=list)  # slot, name, func, line
    functions: dict[str, tuple[int, str]] = field(default_factory=dict)  # line, first argument
    launchers: dict[str, Hit] = field(default_factory=dict)
    speaks: int = 0  # how many of the words of reinforcement learning it uses
    rl: list[Hit] = field(default_factory=list)
    environments: list[Hit] = field(default_factory=list)
    parts: Parts = field(default_factory=Parts)


@dataclass
class Owner:
    """The class that a method belongs to."""

    name: str
    environment: bool
    wrapper: bool


class Walker:
    """The state of a walk, and what every rule needs of it."""

    def __init__(self, facts: Facts, vocabulary: dict[str, Any]) -> None:
        self.facts = facts
        self.metric_calls = set(vocabulary.get("metric_calls", ()))
        self.extra_terms = {
            name: slot for slot in SLOTS for name in vocabulary.get(f"{slot}_terms", ())
        }
        self.classes: list[Owner] = []
        self.function = ""
        self.scope = ""  # the function at the top of the file that the walk is in
        self.depth = 0  # of functions
        self.loops = 0
        self.label = ""
        self.constants: dict[str, str] = {}
        self.log_file = False  # whether what is logged by `logging` goes to a file
        self.local: set[str] = set()  # functions at the top of this file
        self.defined: set[str] = set()  # classes at the top of this file
        self.dicts: dict[str, list[Hit]] = {}  # variables of this function that hold string keys
        self.renamed: dict[str, ast.DictComp] = {}  # variables with the keys of others
        self.made: dict[str, str] = {}  # variables of this function, and what function made them
        self.asked: list[str] = []  # the words of the tests that the walk is inside of
        self.files: dict[str, str] = {}  # variables that hold the path of a file of results
        self.conditions: list[Condition] = []  # of the branches that the walk is in
        self.arguments: list[str] = []  # of this function
        self.defaults: list[tuple[str, str]] = []  # of those that are strings
        self.pairs: dict[str, ast.expr] = {}  # `key` in `for key, value in metrics.items()`
        self.place = bool(PLACES & set(words(facts.path)))
        self.around = set(words(facts.path))
        self.rewarding = bool({"reward", "rewards", "mdp"} & set(words(facts.path)))
        self.handlers: dict[type[ast.AST], Callable[[Any], None]] = {}

    def children(self, node: ast.AST) -> None:
        """Go on to what a node is made of."""
        handlers = self.handlers
        kind_of: Any = type(node)
        for name in fields_of(kind_of):
            value = getattr(node, name, None)
            for item in value if type(value) is list else (value,):
                kind: type[Any] = type(item)
                if kind in LEAVES:
                    continue
                handler = handlers.get(kind)
                if handler is not None:
                    handler(item)
                elif isinstance(item, ast.AST):
                    self.children(item)

    def visit(self, node: ast.AST) -> None:
        """Let the rule for this kind of node look at it, or go on to what it is made of."""
        handler = self.handlers.get(type(node))
        if handler is None:
            self.children(node)
        else:
            handler(node)

    def dotted(self, node: ast.AST) -> str:
        """Return `a.b.c` with `a` replaced by where it was imported from; empty if no name."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Call):  # `Runner(...).learn()`
            head = self.dotted(node.func)
        elif isinstance(node, ast.Subscript):
            head = self.dotted(node.value)
        elif isinstance(node, ast.Name):
            head = self.facts.imports.get(node.id, node.id)
        elif parts:  # `(loss + penalty).backward()`
            head = ""
        else:
            return ""
        return ".".join([head, *reversed(parts)])

    def signal(self, name: str, line: int) -> None:
        """Note something that the file does, where it does it first."""
        self.facts.signals.setdefault(name, line)
        if self.scope:
            self.facts.scopes.setdefault(self.scope, {}).setdefault(name, line)
        elif name in RUNS and not self.classes and not self.depth:
            self.runs(line)

    def runs(self, line: int) -> None:
        """Note that a file does something when it is run, though on import as well."""
        if not self.facts.main and not self.facts.path.endswith("__init__.py"):
            self.facts.main = -line

    def found(self, slot: str, name: str, line: int, confidence: float) -> None:
        """Note code of the task."""
        self.facts.code[slot].append(Hit(name, line, confidence))

    def term(self, slot: str, name: str, function: str, line: int) -> None:
        """Note a term of a manager or of a table of weights."""
        self.facts.terms.append((slot, name, function, line))

    def sink(self, sink: str, name: str, line: int, confidence: float) -> None:
        """Note where results are written to; the surest sign stays."""
        self.sink_used(sink, line, starts=not name.endswith(".log"))
        known = self.facts.logging.get(sink)
        if known is None or known.confidence < confidence:
            self.facts.logging[sink] = Hit(name, line, confidence)

    def sink_used(self, sink: str, line: int, *, starts: bool = True) -> None:
        """Note what a use of a sink depends on."""
        around = " ".join([self.function, self.scope, *(owner.name for owner in self.classes)])
        defined = sink in around.lower() or (sink == "tensorboard" and "TB" in around)
        self.facts.sinks.append(Sink(sink, line, tuple(self.conditions), defined, starts))

    def dict_keys(self, value: ast.AST) -> list[Hit]:
        """Return the string keys of a dictionary that is written out."""
        found: list[Hit] = []
        if isinstance(value, ast.Dict):
            self.keys(value, found, 0.85)
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            if value.func.id == "dict":
                found = [Hit(k.arg, value.lineno, 0.85) for k in value.keywords if k.arg]
        return found

    def keys(self, node: ast.Dict, into: list[Hit], confidence: float) -> None:
        """Note the keys of a dictionary whose values could be numbers."""
        for key, value in zip(node.keys, node.values, strict=True):
            media = isinstance(value, ast.Call) and self.dotted(value.func).rpartition(".")[2] in (
                "Video", "Histogram", "Image", "Table", "Html", "Plotly", "Object3D",
            )  # fmt: skip
            name = self.text(key) if key is not None else ""
            said = isinstance(value, ast.JoinedStr) or (
                isinstance(value, ast.Constant) and isinstance(value.value, str | bool)
            )
            if name and not media and not said and not isinstance(value, ast.Dict):
                into.append(Hit(name, key.lineno if key else node.lineno, confidence))

    def text(self, node: ast.AST | None) -> str:
        """Return the string of an expression; `{}` stands for what is filled in."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, "")
        if isinstance(node, ast.JoinedStr):
            # An argument that is empty by default adds nothing: `f"eval{suffix}/return"`.
            empty = {f"{{{name}}}" for name, default in self.defaults if default == ""}
            parts = [
                str(part.value) if isinstance(part, ast.Constant) else placeholder(part)
                for part in node.values
            ]
            return "".join(part for part in parts if part not in empty)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "format":  # `"losses/{}".format(name)`
                return re.sub(r"\{[^}]*\}", "{}", self.text(node.func.value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self.text(node.left)  # `"reward %d" % reward`
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left = self.text(node.left) or placeholder(node.left)
            right = self.text(node.right) or placeholder(node.right)
            return left + right if re.sub(r"\{\w*\}", "", left + right) else ""
        return ""
