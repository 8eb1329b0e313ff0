"""What one Python file of a foreign repository does, read from its syntax tree.

The tree is walked once and dropped; what stays are facts with line numbers. The rules look at what
a call does, which import a name came from and what shape a class has. They never import the file.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from assay.study.repo_files import words

RL_LIBRARIES = {
    "ale_py", "acme", "brax", "cleanrl", "craftax", "d3rlpy", "dm_control", "dm_env", "dopamine",
    "envpool", "evojax", "gym", "gym3", "gymnasium", "gymnax", "highway_env", "humanoid_bench",
    "imitation", "isaacgym", "isaacgymenvs", "isaaclab", "isaaclab_rl", "isaaclab_tasks", "jumanji",
    "legged_gym", "mani_skill", "metaworld", "minigrid", "mjlab", "mujoco_playground", "ocatari",
    "omnisafe", "pettingzoo", "procgen", "pufferlib", "purejaxrl", "rl_games", "rlax", "rlpyt",
    "robosuite", "rsl_rl", "safety_gymnasium", "sample_factory", "sb3_contrib", "sbx", "skrl",
    "stable_baselines", "stable_baselines3", "tf_agents", "tianshou", "torchrl", "vizdoom",
}  # fmt: skip
# Logging libraries that are none of the named sinks.
OTHER_LOGGERS = {"mlflow", "neptune", "comet_ml", "aim", "clearml", "trackio", "swanlab", "visdom"}
OTHER_CONFIGS = {"click", "typer", "fire", "draccus", "simple_parsing", "jsonargparse", "chz"}
METRIC_WORDS = {
    "metric", "metrics", "result", "results", "log", "logs", "stat", "stats", "score", "scores",
    "return", "returns", "reward", "rewards", "history", "eval", "evaluation", "episode",
    "episodes", "progress", "summary", "summaries", "performance", "success", "loss", "record",
}  # fmt: skip
OUTCOME_WORDS = {"reward", "rewards", "return", "returns", "score", "success", "loss", "rew"}
# Names of a run's axis and of its bookkeeping, which are logged beside metrics and are none.
AXES = {
    "step", "steps", "global_step", "globalstep", "epoch", "iteration", "iter", "timestep",
    "timesteps", "total_timesteps", "time", "episode", "update", "env_step", "env_steps", "seed",
    "frame", "frames", "total_steps", "num_timesteps", "walltime", "timestamp", "date",
}  # fmt: skip
SLOTS = ("reward", "termination", "curriculum", "randomization")

_TERM = re.compile(
    r"^(?:(?P<reward>Rew|Reward)|(?P<termination>Termination|Done|Term)"
    r"|(?P<curriculum>Curr|Curriculum)|(?P<randomization>Event|Randomization|Rand))"
    r"(Term)?(Cfg|Config)?$"
)
_NESTED = {
    "reward": {"reward", "rewards", "reward_scales", "reward_weights", "reward_config"},
    "termination": {"termination", "terminations", "termination_conditions"},
    "curriculum": {"curriculum", "curricula"},
    "randomization": {
        "domain_rand", "domain_randomization", "domain_randomisation", "randomization",
        "randomisation", "randomize", "dr", "events",
    },
}  # fmt: skip
_NO_REWARD = {
    "normalize", "normalise", "normalized", "denormalize", "unnormalize", "clip", "clipped",
    "discount", "discounted", "plot", "log", "print", "sample", "sampled", "store", "record",
    "buffer", "add", "mean", "average", "avg", "total", "cumulative", "sum", "episode", "episodic",
    "load", "save", "test", "check", "parse", "predict", "set", "update", "reset", "register",
    "render", "read", "write", "format", "return", "returns", "rescale", "sort", "collect",
    "aggregate", "broadcast", "max", "min", "last", "best", "prepare", "history", "wrapper",
    "stats", "normalization", "norm", "scale", "scaling", "names", "keys", "threshold", "range",
    "space", "spec", "to", "go", "weights", "loss", "learn", "train", "label", "relabel", "create",
    "make", "build", "percentile", "transform", "preprocess", "visualize", "extract", "stack",
    "shape", "spaces", "info", "type", "running", "manager", "expected", "original",
    "dataset", "undiscounted",
}  # fmt: skip
# A call that only repacks what it is given computes no reward.
_REPACKS = {
    "normalize", "clip", "stack", "array", "asarray", "concat", "concatenate", "float", "tensor",
    "numpy", "to", "astype", "squeeze", "unsqueeze", "item", "sum", "mean", "cat", "copy", "clone",
    "zeros", "ones", "empty", "full", "as", "dict", "list", "tuple", "reshape", "view", "append",
    "like", "detach", "cpu", "int", "bool", "denormalize", "zip", "map", "transform", "get", "pop",
    "items", "values", "tree", "vmap", "scan", "unreplicate", "step",
}  # fmt: skip
_REWARD_NAMES = {"reward", "rewards", "rew", "rew_buf", "reward_buf", "total_reward", "_reward"}
_DONE_NAMES = {
    "done", "dones", "terminated", "terminations", "truncated", "terminal", "terminate", "is_done",
    "reset_buf", "time_out_buf", "truncations", "_done", "done_buf", "termination",
}  # fmt: skip
_STEPS = {"step", "_step", "step_env", "step_wait", "post_physics_step", "after_step", "step_agent"}
_TASK_ARGUMENTS = {
    "env", "state", "states", "obs", "observation", "observations", "action", "actions", "physics",
    "next_state", "next_obs", "data", "info", "achieved_goal", "desired_goal", "mjx_data",
    "root_states", "pipeline_state", "world", "agent",
}  # fmt: skip
_PLACES = {
    "env",
    "envs",
    "environment",
    "environments",
    "reward",
    "rewards",
    "task",
    "tasks",
    "mdp",
}
_CONFIGS = {"cfg", "config", "configuration", "args", "arguments", "settings", "hyperparameters"}
_LOADS = {
    "load_state_dict", "load_checkpoint", "restore", "restore_checkpoint", "load_policy",
    "load_params", "from_pretrained", "get_checkpoint_path", "load_model", "load_agent",
    "load_from_checkpoint", "from_checkpoint",
}  # fmt: skip
_LEAVES = (ast.Constant, ast.Name, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.alias)


@dataclass(frozen=True)
class Hit:
    """Something that was found, and how sure that is."""

    name: str
    line: int
    confidence: float = 0.8


@dataclass
class Facts:
    """What a file does."""

    path: str
    imports: dict[str, str] = field(default_factory=dict)  # local name -> dotted origin
    modules: set[str] = field(default_factory=set)
    relative: bool = False
    main: int = 0  # line of what runs when the file is run; 0 where nothing does
    doc: str = ""
    options: dict[str, int] = field(default_factory=dict)  # command-line options, with dashes
    subcommands: dict[str, int] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)
    config: dict[str, Hit] = field(default_factory=dict)
    logging: dict[str, Hit] = field(default_factory=dict)
    metrics: list[Hit] = field(default_factory=list)
    infos: list[Hit] = field(default_factory=list)
    code: dict[str, list[Hit]] = field(default_factory=lambda: {slot: [] for slot in SLOTS})
    terms: list[tuple[str, str, str, int]] = field(default_factory=list)  # slot, name, func, line
    functions: dict[str, tuple[int, str]] = field(default_factory=dict)  # line, first argument
    launchers: dict[str, Hit] = field(default_factory=dict)
    rl: list[Hit] = field(default_factory=list)
    environments: list[Hit] = field(default_factory=list)


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
            tree = ast.parse(text)
        facts.doc = ast.get_docstring(tree) or ""
        _Reader(facts, vocabulary or {}).module(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Python 2, templates, machine-written nests: what was seen before stays.
        for found in re.finditer(r"^\s*(?:from|import)\s+([\w.]+)", text, re.MULTILINE):
            facts.modules.add(found[1])
    return facts


@dataclass
class _Class:
    name: str
    environment: bool
    wrapper: bool


class _Reader:
    """Walks one tree."""

    def __init__(self, facts: Facts, vocabulary: dict[str, Any]) -> None:
        self.facts = facts
        self.metric_calls = set(vocabulary.get("metric_calls", ()))
        self.extra_terms = {
            name: slot for slot in SLOTS for name in vocabulary.get(f"{slot}_terms", ())
        }
        self.classes: list[_Class] = []
        self.function = ""
        self.depth = 0  # of functions
        self.loops = 0
        self.label = ""
        self.constants: dict[str, str] = {}
        self.fields: dict[str, dict[str, int]] = {}  # of dataclasses
        self.dicts: dict[str, list[Hit]] = {}  # variables of this function that hold string keys
        self.place = bool(_PLACES & set(words(facts.path)))
        self.rewarding = bool({"reward", "rewards", "mdp"} & set(words(facts.path)))
        self.handlers: dict[type[ast.AST], Callable[[Any], None]] = {
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
            ast.Call: self._call,
            ast.Compare: self._compare,
            ast.Return: self._return,
        }

    # ------------------------------------------------------------------ walking

    def module(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        self.constants[target.id] = node.value.value
            runs = isinstance(node, ast.For | ast.While | ast.With) or (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            )
            if runs and not self.facts.main and not self.facts.path.endswith("__init__.py"):
                self.facts.main = -node.lineno  # negative: it runs, but on import as well
        self.children(tree)
        for name, origin in self.constants.items():
            if name.startswith("tyro:"):
                for option, line in self.fields.get(origin, {}).items():
                    self.facts.options.setdefault("--" + option, line)

    def visit(self, node: ast.AST) -> None:
        handler = self.handlers.get(type(node))
        if handler is None:
            self.children(node)
        else:
            handler(node)

    def children(self, node: ast.AST) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST) and not isinstance(item, _LEAVES):
                        self.visit(item)
            elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
                self.visit(value)

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
        else:
            return ""
        return ".".join([head, *reversed(parts)])

    def signal(self, name: str, line: int) -> None:
        self.facts.signals.setdefault(name, line)

    # ------------------------------------------------------------------ statements

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.facts.imports[alias.asname] = alias.name
            self._imported(alias.name, node.lineno)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            self.facts.relative = True
            package = self.facts.path.split("/")[: -node.level]
            module = ".".join([*package, module] if module else package)
        for alias in node.names:
            self.facts.imports[alias.asname or alias.name] = f"{module}.{alias.name}"
            self.facts.modules.add(f"{module}.{alias.name}")
        self._imported(module, node.lineno)

    def _imported(self, module: str, line: int) -> None:
        self.facts.modules.add(module)
        root = module.partition(".")[0]
        if root in RL_LIBRARIES or module.startswith(("ray.rllib", "omni.isaac.")):
            self.facts.rl.append(Hit(root, line))
        launcher = {"submitit": "slurm", "libtmux": "tmux", "torchrunx": "torchrun"}.get(root)
        if root == "kubernetes":
            launcher = "kubernetes"
        if launcher:
            self.facts.launchers.setdefault(launcher, Hit(root, line, 0.7))
        if root in OTHER_CONFIGS:
            self.facts.config.setdefault("custom", Hit(root, line, 0.6))

    def _loop(self, node: ast.For | ast.While) -> None:
        self.loops += 1
        self.children(node)
        self.loops -= 1

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
        shaped = bool(methods & _STEPS) and any(
            name.startswith(("reset", "_reset")) for name in methods
        )
        inherits = bool(base_words & {"env", "environment", "wrapper"}) or any(
            base.endswith(("Task", "Env", "Robot")) for base in bases
        )
        wrapper = "wrapper" in base_words or node.name.endswith("Wrapper")
        rewarding = any(name.startswith(("_reward_", "compute_reward")) for name in methods)
        context = _Class(node.name, bool(methods) and (shaped or inherits or rewarding), wrapper)
        for base in node.bases:
            full = self.dotted(base)
            if full.partition(".")[0] in ("rsl_rl", "rl_games", "skrl") and "Runner" in full:
                self._sink("tensorboard", full, node.lineno, 0.6)
        if context.environment and not wrapper:
            self.facts.environments.append(Hit(node.name, node.lineno))
        self._class_config(node, methods, base_words)
        named = set(words(node.name))
        if methods and not methods <= {"__init__"}:
            plain = named.isdisjoint({"cfg", "config", "test", "error", "term"})
            if plain and named & {"curriculum", "curricula"}:
                self._found("curriculum", node.name, node.lineno, 0.85)
            if plain and (named & {"randomizer", "randomization", "randomisation", "randomize"}):
                self._found("randomization", node.name, node.lineno, 0.8)
            if plain and "manager" in named and "reward" in named | {w.rstrip("s") for w in named}:
                self._found("reward", node.name, node.lineno, 0.55)
            if plain and "manager" in named and "termination" in named:
                self._found("termination", node.name, node.lineno, 0.55)
        for decorator in node.decorator_list:
            self._decorator(decorator, node.name, node.lineno)
        outer = self.depth, self.function, self.loops, self.label
        self.classes.append(context)
        for item in node.body:
            self.visit(item)
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
            if fields and name_words and name_words[-1] in _CONFIGS:
                self.facts.config.setdefault("dataclasses", Hit(node.name, node.lineno, 0.75))
        elif fields and bases & {"model", "settings"} and name_words[-1] in _CONFIGS:
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
            for slot, names in _NESTED.items():
                assigned = [part for part in ast.walk(item) if isinstance(part, ast.Assign)]
                if item.name.lower() in names and assigned:
                    self._found(slot, f"{owner}.{item.name}", item.lineno, 0.85)
                    for part in assigned if slot == "reward" else ():
                        if _number(part.value) and isinstance(part.targets[0], ast.Name):
                            self._term(slot, part.targets[0].id, "", part.lineno)
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
        outer = self.function, self.dicts, self.loops
        self.function, self.dicts, self.loops = node.name, {}, 0
        self.depth += 1
        self.children(node)
        self.depth -= 1
        self.function, self.dicts, self.loops = outer

    def _decorator(self, node: ast.AST, name: str, line: int) -> None:
        call = node.func if isinstance(node, ast.Call) else node
        full = self.dotted(call)
        tail = full.rpartition(".")[2]
        if "hydra" in full.lower():
            self.facts.config.setdefault("hydra", Hit(full, line, 0.95))
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
            self.function in _STEPS
            and isinstance(value, ast.Tuple)
            and isinstance(value.elts[-1], ast.Dict)
        ):
            self._keys(value.elts[-1], self.facts.infos, 0.6)
        self.children(node)

    # ------------------------------------------------------------------ what a function is for

    def _named(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: list[str], inside: bool
    ) -> None:
        name_words = words(node.name)
        if not name_words:
            return
        named = set(name_words)
        owner = self.classes[-1] if inside else None
        if owner is not None and "buffer" in words(owner.name):
            return
        qualified = f"{owner.name}.{node.name}" if owner else node.name
        tasked = (
            (owner is not None and owner.environment)
            or bool(_TASK_ARGUMENTS & set(arguments))
            or (self.place if owner else self.rewarding)
        )
        if owner is not None and owner.environment and node.name in _STEPS:
            self._step(node, qualified, owner)
        if named & {"reward", "rewards", "rew"} and not named & _NO_REWARD and _computes(node):
            prefix = re.match(r"_?(reward|rew)_\w", node.name) and owner is not None
            if prefix and owner is not None and owner.environment:
                self._found("reward", qualified, node.lineno, 0.95)
                self._term("reward", re.sub(r"^_?(reward|rew)_", "", node.name), "", node.lineno)
            elif name_words[-1] in ("reward", "rewards", "fn", "function") or named & {
                "compute", "calc", "calculate", "get", "penalty",
            }:  # fmt: skip
                if tasked:
                    self._found("reward", qualified, node.lineno, 0.85)
        ending = named & {
            "termination", "terminations", "terminated", "terminate", "done", "dones", "terminal",
            "truncated", "truncation",
        }  # fmt: skip
        verb = name_words[0] in {
            "check", "compute", "get", "is", "should", "calc", "has", "evaluate", "termination",
        } or len(name_words) == 1  # fmt: skip
        no = named & {"reward", "print", "log", "on", "process", "count", "buffer", "mask", "plot"}
        # `is_terminated` among reward functions pays for the end, it does not bring it about.
        paid = owner is None and {"reward", "rewards"} & set(words(self.facts.path))
        if ending and verb and not no and not paid and tasked and _computes(node):
            self._found("termination", qualified, node.lineno, 0.85)
        if named & {"curriculum", "curricula"} and _computes(node, strict=False):
            self._found("curriculum", qualified, node.lineno, 0.85)
        elif named & {"difficulty"} and named & {"update", "schedule", "increase", "adjust"}:
            self._found("curriculum", qualified, node.lineno, 0.6)
        random = named & {"randomize", "randomise", "randomization", "randomisation"} or {
            "domain", "rand",
        } <= named  # fmt: skip
        if random and not named & {"seed", "seeds", "weights", "layers", "order", "policy"}:
            if _computes(node, strict=False):
                self._found("randomization", qualified, node.lineno, 0.85)

    def _step(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, qualified: str, owner: _Class
    ) -> None:
        """Note where a step computes its reward and its end, not where it hands them on."""
        found: dict[str, int] = {}
        for item, branch in _assignments(node.body, False):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            for target in targets:
                name = _target(target)
                slot = (
                    "reward" if name in _REWARD_NAMES
                    else "termination" if name in _DONE_NAMES
                    else ""
                )  # fmt: skip
                if owner.wrapper and isinstance(item.value, ast.Call):
                    continue  # a wrapper converts what the environment gave it
                if slot and item.value is not None and slot not in found:
                    if _computed(item.value, branch or isinstance(item, ast.AugAssign), slot):
                        found[slot] = item.lineno
        for slot, line in found.items():
            self._found(slot, qualified, line, 0.6 if owner.wrapper else 0.8)

    def _found(self, slot: str, name: str, line: int, confidence: float) -> None:
        self.facts.code[slot].append(Hit(name, line, confidence))

    def _term(self, slot: str, name: str, function: str, line: int) -> None:
        self.facts.terms.append((slot, name, function, line))

    # ------------------------------------------------------------------ values

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        for target in targets:
            if isinstance(target, ast.Subscript):
                self._subscript(target)
            name = _target(target)
            if isinstance(target, ast.Name | ast.Attribute) and value is not None:
                keys = self._dict_keys(value)
                if keys:
                    self.dicts.setdefault(name, []).extend(keys)
                    if name in ("info", "infos"):
                        self.facts.infos.extend(keys)
                    if "metrics" in words(name):
                        for hit in keys:
                            if "/" in hit.name:
                                self._metric(hit.name, hit.line, 0.65)
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
                self._unpacked(target, value)
            if name in ("logger", "logger_type") and isinstance(value, ast.Constant):
                if value.value in ("wandb", "tensorboard", "csv"):
                    self._sink(value.value, name, node.lineno, 0.7)
            if name == "curriculum" and isinstance(value, ast.Constant) and value.value is True:
                self._found("curriculum", "curriculum = True", node.lineno, 0.75)
            self.label = name
            if isinstance(target, ast.Subscript):
                self.label = self._text(target.slice) or name
        if value is not None:
            self._weights(self.label, value)
            if not isinstance(value, _LEAVES):
                self.visit(value)
        self.label = ""
        for target in targets:
            self.visit(target)

    def _unpacked(self, target: ast.Tuple, call: ast.Call) -> None:
        """Note `obs, reward, ... = env.step(action)`."""
        full = self.dotted(call.func)
        receiver, _, tail = full.rpartition(".")
        if tail in ("step", "step_wait", "env_step") and 3 <= len(target.elts) <= 6:
            names = {_target(item) for item in target.elts}
            known = any(OUTCOME_WORDS & set(words(name)) for name in names)
            if known or {"env", "envs"} & set(words(receiver)):
                self.facts.rl.append(Hit("env.step", call.lineno))
                self.signal("env_step", call.lineno)

    def _subscript(self, target: ast.Subscript) -> None:
        key = self._text(target.slice)
        if not key:
            return
        base: ast.AST = target.value
        chain = []
        while isinstance(base, ast.Subscript):
            chain.append(self._text(base.slice) or "")
            base = base.value
        name = _target(base)
        hit = Hit(key, target.lineno, 0.7)
        if name in ("extras", "extra") and (set(chain) & {"log", "episode", "metrics"}):
            self.facts.metrics.append(hit)
        elif chain and name in ("info", "infos") and set(chain) & {"log", "metrics"}:
            self.facts.metrics.append(hit)
        elif not chain and name in ("info", "infos"):
            self.facts.infos.append(hit)
        elif not chain:
            self.dicts.setdefault(name, []).append(hit)

    def _dict_keys(self, value: ast.AST) -> list[Hit]:
        found: list[Hit] = []
        if isinstance(value, ast.Dict):
            self._keys(value, found, 0.85)
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            if value.func.id == "dict":
                found = [Hit(k.arg, value.lineno, 0.85) for k in value.keywords if k.arg]
        return found

    def _keys(self, node: ast.Dict, into: list[Hit], confidence: float) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            media = isinstance(value, ast.Call) and self.dotted(value.func).rpartition(".")[2] in (
                "Video", "Histogram", "Image", "Table", "Html", "Plotly", "Object3D",
            )  # fmt: skip
            name = self._text(key) if key is not None else ""
            if name and not media and not isinstance(value, ast.Dict):
                into.append(Hit(name, key.lineno if key else node.lineno, confidence))

    def _text(self, node: ast.AST | None) -> str:
        """Return the string of an expression; `{}` stands for what is filled in."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, "")
        if isinstance(node, ast.JoinedStr):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else _placeholder(part)
                for part in node.values
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left = self._text(node.left) or _placeholder(node.left)
            right = self._text(node.right) or _placeholder(node.right)
            return left + right if re.sub(r"\{\w*\}", "", left + right) else ""
        return ""

    def _weights(self, label: str, value: ast.AST) -> None:
        """Note `rewards = {"alive": 1.0, ...}` and `reward_config=create(scales=create(...))`."""
        if label.lower() not in _NESTED["reward"] or not isinstance(value, ast.Dict | ast.Call):
            return
        names: list[tuple[str, int]] = []
        nodes = list(ast.walk(value))
        if any(isinstance(node, ast.keyword) and node.arg == "func" for node in nodes):
            return  # terms of a manager, which are read as such
        for node in nodes:
            if isinstance(node, ast.keyword) and node.arg and _number(node.value):
                names.append((node.arg, node.value.lineno))
            elif isinstance(node, ast.Dict):
                for key, item in zip(node.keys, node.values, strict=True):
                    if (
                        isinstance(key, ast.Constant)
                        and isinstance(key.value, str)
                        and _number(item)
                    ):
                        names.append((key.value, key.lineno))
        terms = [entry for entry in names if entry[0] not in ("weight", "std", "sigma", "scale")]
        if len(terms) > 1:
            self._found("reward", label, value.lineno, 0.7)
            for name, line in terms:
                self._term("reward", name, "", line)

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
            if not isinstance(value, _LEAVES):
                self.visit(value)
        self.label = ""

    def _keyword(self, node: ast.keyword) -> None:
        name = node.arg or ""
        if name in ("tensorboard_log", "tensorboard_log_dir") and not _is_none(node.value):
            self._sink("tensorboard", name, node.value.lineno, 0.85)
        if name in ("randomization_fn", "randomize_fn"):
            tail = self.dotted(node.value).rpartition(".")[2]
            # A parameter that is handed on keeps its name.
            if {"randomize", "randomise", "randomizer"} & set(words(tail)):
                self._term("randomization", tail, tail, node.value.lineno)
        if name == "info_keywords" and isinstance(node.value, ast.Tuple | ast.List):
            for item in node.value.elts:
                if self._text(item):
                    self.facts.infos.append(Hit(self._text(item), node.value.lineno, 0.7))
        self._weights(name, node.value)
        outer, self.label = self.label, name or self.label
        if not isinstance(node.value, _LEAVES):
            self.visit(node.value)
        self.label = outer

    # ------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> None:
        full = self.dotted(node.func)
        label = self.label
        if full:
            receiver, _, tail = full.rpartition(".")
            match = _TERM.match(tail) if "Term" in tail else None
            slot = self.extra_terms.get(tail) or (match.lastgroup if match else None)
            if slot is None and match is not None:
                slot = next((s for s in SLOTS if match.group(s)), None)
            if slot == "randomization" and tail.startswith("Event") and not _random(node):
                slot = None
            if slot in SLOTS:
                self._term(slot, label, self._term_function(node), node.lineno)
            if tail == "command" and node.args and self._text(node.args[0]):
                self.facts.subcommands.setdefault(self._text(node.args[0]), node.lineno)
            root = full.partition(".")[0]
            self._config_call(node, full, root, tail)
            self._logging_call(node, full, root, receiver, tail)
            self._signal_call(node, full, root, receiver, tail)
            self._metric_call(node, full, receiver, tail)
        self.label = ""
        self.children(node)
        self.label = label

    def _term_function(self, node: ast.Call) -> str:
        values = [k.value for k in node.keywords if k.arg == "func"] or node.args[:1]
        if not values:
            return ""
        return re.split(r"[.:]", self._text(values[0]) or self.dotted(values[0]))[-1]

    def _config_call(self, node: ast.Call, full: str, root: str, tail: str) -> None:
        config, line = self.facts.config, node.lineno
        if tail.endswith("ArgumentParser") or full == "isaacgym.gymutil.parse_arguments":
            other = "custom" if root in OTHER_CONFIGS else "argparse"
            config.setdefault(other, Hit(full, line, 0.9))
        elif tail == "add_argument" and node.args:
            for argument in node.args:
                option = self._text(argument)
                if option.startswith("-"):
                    self.facts.options.setdefault(option, line)
        elif tail in ("Option", "option") and root in ("typer", "click"):
            for argument in node.args:
                if self._text(argument).startswith("--"):
                    self.facts.options.setdefault(self._text(argument).partition("/")[0], line)
        elif tail == "add_parser" and node.args and self._text(node.args[0]):
            self.facts.subcommands.setdefault(self._text(node.args[0]), line)
        elif full in (
            "tyro.cli",
            "tyro.extras.overridable_config_cli",
            "tyro.extras.subcommand_cli",
        ):
            config["tyro"] = config.get("tyro") or Hit(full, line, 0.95)
            for argument in node.args[:1]:
                self.constants[f"tyro:{line}"] = self.dotted(argument).rpartition(".")[2]
        elif root == "hydra":
            config.setdefault("hydra", Hit(full, line, 0.9))
        elif tail.startswith("DEFINE_"):
            config.setdefault("absl", Hit(full, line, 0.95))
            if node.args and self._text(node.args[0]):
                self.facts.options.setdefault("--" + self._text(node.args[0]), line)
            if tail == "DEFINE_config_file":
                config.setdefault("custom", Hit("ml_collections", line, 0.8))
        elif root == "gin":
            config.setdefault("gin", Hit(full, line, 0.95))
        elif full in ("yaml.safe_load", "yaml.load", "yaml.full_load", "yaml.unsafe_load") or (
            full.endswith(("OmegaConf.load", "YAML.load"))
        ):
            config.setdefault("yaml", Hit(full, line, 0.8))
        elif full.startswith("ml_collections.") or full.endswith("config_dict.create"):
            config.setdefault("custom", Hit("ml_collections", line, 0.8))

    def _sink(self, sink: str, name: str, line: int, confidence: float) -> None:
        known = self.facts.logging.get(sink)
        if known is None or known.confidence < confidence:
            self.facts.logging[sink] = Hit(name, line, confidence)

    def _logging_call(self, node: ast.Call, full: str, root: str, receiver: str, tail: str) -> None:
        line = node.lineno
        if root == "wandb" and tail in ("init", "log"):
            self._sink("wandb", full, line, 0.95)
        elif tail in ("WandbLogger", "WandbCallback", "WandbOutputFormat", "WandbWriter"):
            self._sink("wandb", full, line, 0.85)
        elif tail in ("SummaryWriter", "create_file_writer", "FileWriter") or (
            tail.lower().startswith("tensorboard") and tail[0].isupper()
        ):
            self._sink("tensorboard", full, line, 0.95)
        elif root in OTHER_LOGGERS:
            self._sink("custom", root, line, 0.8)
        elif full in ("csv.writer", "csv.DictWriter") or tail in ("CSVLogger", "CsvLogger"):
            sure = "csv" in tail.lower() or self._about_metrics(node)
            self._sink("csv", full, line, 0.9 if sure else 0.6)
            for keyword in node.keywords:
                if keyword.arg == "fieldnames":
                    self._header(keyword.value)
            for argument in node.args[1:2]:
                self._header(argument)
        elif tail == "to_csv" and self._about_metrics(node):
            self._sink("csv", full, line, 0.6)
        elif tail in ("Monitor", "VecMonitor") and root in ("stable_baselines3", "sb3_contrib"):
            if node.args[1:] or node.keywords:
                self._sink("csv", full, line, 0.7)
        elif tail == "writerow" and node.args:
            self._header(node.args[0])
        elif full == "json.dump" and self._about_metrics(node):
            self._sink("json", full, line, 0.75)
            self._logged(node.args[:1], 0.6)
        elif tail in ("write", "writelines") and node.args:
            self._json_line(node)
        elif full == "jsonlines.open":
            self._sink("jsonl", full, line, 0.8)
        elif tail == "configure" and root == "stable_baselines3":
            for item in ast.walk(node):
                if isinstance(item, ast.Constant) and item.value in ("csv", "json", "tensorboard"):
                    self._sink(str(item.value), full, line, 0.9)
        elif root in ("rsl_rl", "rl_games", "skrl") and tail.endswith(("Runner", "Trainer")):
            # These write TensorBoard files unless they are told otherwise.
            self._sink("tensorboard", full, line, 0.6)
        elif (full == "print" or tail == "info") and self.loops and node.args:
            self._printed(node)

    def _about_metrics(self, node: ast.Call) -> bool:
        """Return whether the names around a call speak of results rather than of settings."""
        around = [self.function, self.label, *(self.dotted(argument) for argument in node.args)]
        around += [c.name for c in self.classes]
        around += [self._text(item) for item in node.args]
        text = set(words(" ".join(around)))
        settings = text & {"config", "cfg", "args", "settings", "hyperparameters", "vocab"}
        return bool(text & METRIC_WORDS) and not settings

    def _header(self, node: ast.AST) -> None:
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            names = [self._text(item) for item in node.elts]
            if all(names):
                self.facts.metrics.extend(Hit(name, node.lineno, 0.75) for name in names)

    def _json_line(self, node: ast.Call) -> None:
        if {"stdout", "stderr", "wfile", "socket"} & set(words(self.dotted(node.func))):
            return
        for item in ast.walk(node):
            if isinstance(item, ast.Call) and self.dotted(item.func) == "json.dumps" and item.args:
                newline = any(
                    isinstance(part, ast.Constant) and str(part.value).endswith("\n")
                    for part in ast.walk(node)
                )
                if newline:
                    self._sink("jsonl", "json.dumps", node.lineno, 0.85)
                    self._logged(item.args[:1], 0.8)
                elif self._about_metrics(item):
                    self._sink("json", "json.dumps", node.lineno, 0.6)
                    self._logged(item.args[:1], 0.6)

    def _printed(self, node: ast.Call) -> None:
        text = "".join(self._text(argument) + " " for argument in node.args)
        filled = any(
            isinstance(part, ast.FormattedValue | ast.Name | ast.Subscript | ast.Call)
            for argument in node.args
            for part in ast.walk(argument)
        )
        if filled and OUTCOME_WORDS & set(words(re.sub(r"\{\w*\}", "", text))):
            self._sink("stdout", "print", node.lineno, 0.55)
            for name in re.findall(
                r"([A-Za-z][\w/ ]{1,30}?)\s*[:=]\s*(?:\{\w*\}|%[\d.]*[dfg])", text
            ):
                if OUTCOME_WORDS & set(words(name)):
                    self.facts.metrics.append(Hit("stdout:" + name.strip(), node.lineno, 0.5))

    def _signal_call(self, node: ast.Call, full: str, root: str, receiver: str, tail: str) -> None:
        line = node.lineno
        who = set(words(receiver))
        trainers = {
            "trainer", "agent", "algo", "algorithm", "runner", "learner", "tuner", "model", "ppo",
            "sac", "dqn", "td3", "trial", "experiment", "policy", "workspace",
        }  # fmt: skip
        given = bool(node.args or node.keywords)
        name = words(tail)
        if tail in ("backward", "apply_gradients", "apply_updates", "value_and_grad", "minimize"):
            self.signal("gradient", line)
        elif full in ("jax.grad",):
            self.signal("gradient", line)
        elif tail == "step" and who & {"env", "envs", "environment", "vec"}:
            self.signal("env_step", line)
        elif tail == "learn" and receiver:
            self.signal("learn", line)
        elif tail in ("train", "fit", "run", "train_loop", "run_training") and receiver:
            if who & trainers and (
                tail != "train" or given or who & trainers - {"model", "policy"}
            ):
                self.signal("learn", line)
            elif tail == "train" and given and root not in ("nn", "torch"):
                self.signal("learn", line)
        elif name[:1] in (("train",), ("learn",)) or name[-1:] in (("training",), ("train",)):
            if not receiver or who & {"train", "training", "trainer"} or "." in full:
                self.signal("train_call", line)
        if (tail in ("Tuner", "run_experiments") and root == "ray") or full == "ray.tune.run":
            self.signal("learn", line)
        if name[:1] in (("evaluate",), ("eval",), ("enjoy",)) and tail != "eval":
            self.signal("evaluate_call", line)
        loads = tail in _LOADS or full in ("torch.load", "pickle.load", "jax.numpy.load")
        last = receiver.rpartition(".")[2]
        if loads or (tail == "load" and (last[:1].isupper() or who & trainers)):
            self.signal("load", line)
        if tail in ("make", "make_vec", "make_env", "make_envs") or tail.endswith(
            ("Env", "VecEnv")
        ):
            self.signal("make_env", line)
        if root == "ray" and tail in ("init", "remote", "Tuner", "run"):
            self.facts.launchers.setdefault("ray", Hit(full, line, 0.8))
        if tail == "init_process_group":
            self.facts.launchers.setdefault("torchrun", Hit(full, line, 0.6))
        if full in ("subprocess.Popen", "subprocess.run", "subprocess.call", "os.system"):
            strings = [
                self._text(part) for part in ast.walk(node) if not isinstance(part, ast.Name)
            ]
            if any(re.search(r"\btrain\w*\.py\b|^python3?\s+\S+\.py", text) for text in strings):
                self.facts.launchers.setdefault("custom", Hit(full, line, 0.5))

    def _metric_call(self, node: ast.Call, full: str, receiver: str, tail: str) -> None:
        who = set(words(receiver))
        logger = who & {"logger", "writer", "wandb", "run", "tb", "summary", "log", "tracker"}
        several = len(node.args) + len(node.keywords) > 1
        first = node.args[0] if node.args else None
        if first is None:
            tags = [k.value for k in node.keywords if k.arg in ("tag", "name", "key")]
            first = tags[0] if tags else None
        text = self._text(first)
        if tail in ("add_scalar", "log_scalar", "log_metric", "scalar_summary", "logkv",
                    "logkv_mean", "record_mean", "record_tabular", "log_tabular",
                    "add_scalars") or tail in self.metric_calls:  # fmt: skip
            self._metric(text, node.lineno, 0.95)
            self._logged(node.args[:1], 0.9)
        elif tail == "scalar" and who & {"summary", "writer", "logger", "tb"}:
            self._metric(text, node.lineno, 0.9)
        elif tail == "record" and several and who & {"logger", "log", "writer"}:
            self._metric(text, node.lineno, 0.95)
        elif (
            tail == "log" and text and several and " " not in text and receiver not in ("math", "")
        ):
            if logger or receiver == "self":
                self._metric(text, node.lineno, 0.85)
        elif tail in ("log", "log_metrics", "log_dict", "log_scalars", "write_scalars", "track"):
            if receiver not in ("math", "np", "numpy", "torch", "jax.numpy", "numpy.random"):
                sure = bool(logger) or tail != "log"
                self._logged(node.args, 0.95 if "wandb" in who else 0.85 if sure else 0.6)
        elif tail == "store" and "logger" in who:
            for keyword in node.keywords:
                self._metric(keyword.arg or "", node.lineno, 0.85)
        elif tail == "report" and who & {"tune", "train", "session", "ray"}:
            self._logged(node.args, 0.85)
            for keyword in node.keywords:
                self._metric(keyword.arg or "", node.lineno, 0.8)
        elif tail == "update" and who & {"metrics"} and not who & {"self"}:
            for keyword in node.keywords:
                self._metric(keyword.arg or "", node.lineno, 0.65)
        elif {"progress", "log", "report"} & set(words(tail)) and not full.startswith("logging"):
            self._logged(node.args, 0.6, plain=False)

    def _logged(self, nodes: list[ast.expr], confidence: float, *, plain: bool = True) -> None:
        """Note the keys of dictionaries that are logged, also through a variable."""
        for node in nodes:
            if isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and plain):
                hits = self._dict_keys(node)
            elif isinstance(node, ast.Name | ast.Attribute):
                hits = self.dicts.get(_target(node), [])
            else:
                continue
            for hit in hits:
                self._metric(hit.name, hit.line, confidence)

    def _metric(self, name: str, line: int, confidence: float) -> None:
        name = name.strip()
        if name and re.fullmatch(r"[\w./ %()@\-\[\]{}+:&#|]{2,80}", name):
            if re.sub(r"\{\w*\}|\W", "", name):
                unsure = 0.2 if "{" in name else 0.0
                self.facts.metrics.append(Hit(name, line, max(confidence - unsure, 0.5)))


def _placeholder(node: ast.AST) -> str:
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    name = inner.id if isinstance(inner, ast.Name) else ""
    return f"{{{name}}}"


def _random(node: ast.Call) -> bool:
    """Return whether an event draws something, rather than to put things back where they were."""
    for part in ast.walk(node):
        text = part.arg if isinstance(part, ast.keyword) else getattr(part, "value", None)
        if isinstance(part, ast.Attribute):
            text = part.attr
        if isinstance(text, str):
            if text in ("startup", "prestartup", "interval"):
                return True
            if {"range", "ranges", "distribution", "random", "randomize"} & set(words(text)):
                return True
    return False


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    body = node.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body


def _computes(node: ast.FunctionDef | ast.AsyncFunctionDef, *, strict: bool = True) -> bool:
    """Return whether a function does more than to pass, to raise or to hand an attribute on."""
    body = [item for item in _body(node) if not isinstance(item, ast.Pass | ast.Raise)]
    if not body or (strict and not _yields(node)):
        return False
    if len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return False
    if len(body) == 1 and isinstance(body[0], ast.Return):
        value = body[0].value
        simple = (ast.Attribute, ast.Constant, ast.Name) if strict else (ast.Constant, ast.Name)
        return value is not None and not isinstance(value, simple)
    return True


def _yields(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function gives back a value or writes it into a buffer."""
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and part.value is not None:
            return True
        if isinstance(part, ast.Assign | ast.AugAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            if any(_target(target) in _REWARD_NAMES | _DONE_NAMES for target in targets):
                return True
    return False


def _target(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _assignments(
    body: list[ast.stmt], branch: bool
) -> Iterator[tuple[ast.Assign | ast.AugAssign | ast.AnnAssign, bool]]:
    """Yield the assignments of a body, and whether they stand in a branch."""
    for item in body:
        if isinstance(item, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield item, branch
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(item, name, None)
            if isinstance(inner, list):
                yield from _assignments(inner, branch or isinstance(item, ast.If))


def _computed(node: ast.AST, branch: bool, slot: str) -> bool:
    if isinstance(node, ast.Constant):
        # `reward = 0` and `done = False` set the stage; only a branch makes them a rule.
        return branch and node.value not in (0, False, None)
    if isinstance(node, ast.Call):
        name = node.func
        tail = (
            name.attr if isinstance(name, ast.Attribute)
            else name.id if isinstance(name, ast.Name) else ""
        )  # fmt: skip
        if isinstance(name, ast.Attribute) and "manager" in words(ast.unparse(name.value)):
            return False  # it is computed there
        if set(words(tail)) & _REPACKS:
            return any(
                _computed(argument, branch, slot)
                for argument in node.args
                if isinstance(argument, ast.BinOp | ast.Compare | ast.BoolOp)
            )
        return True
    if isinstance(node, ast.BoolOp | ast.BinOp) and slot == "termination":
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        return bool(names - _DONE_NAMES - {"self", "torch", "np", "jnp", "logical_or"})
    return isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp)
