"""The one registry of algorithms: name -> class and facts about it.

Built-in algorithms are the modules of `assay.algorithms`; third parties add theirs through the
entry-point group `assay.algorithms`. Looking up a name imports that algorithm only. One that is not
installed is named by where it is: `my_package.my_module:MyAlgorithm`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from assay.core.config import Settings
from assay.core.errors import ConfigError, nearest
from assay.core.imports import find_named

Loop = Literal["on_policy", "off_policy", "offline", "game"]
# What an imitator needs of its expert: recorded episodes, or answers to what it meets.
Expert = Literal["episodes", "policy"]
ACTIONS = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")  # Gymnasium's spaces
Agents = Literal["one", "many"]  # whom an algorithm trains
# What distinguishes an algorithm from others of its loop, for who has to choose one.
TRAITS = {
    "baseline": "others of its kind improve on it",
    "central": "in training it sees all agents, or the state of the whole",
    "designs": "it draws the levels that it is trained in",
    "first": "the first choice of its kind",
    "frugal": "it needs few environment steps, at much computing for each",
    "hindsight": "it can relabel goals in hindsight",
    "lag": "it corrects for actors that lag behind",
    "levels": "it learns levels that decide at different intervals",
    "memory": "it acts on what it remembers",
    "novelty": "it can reward what is new",
    "recall": "it can have a memory",
    "recorded": "it learns from recorded data and an environment in one run",
    "returns": "it imitates given a return, so that the data must have rewards",
    "reward": "it finds the reward behind what it imitates",
    "risk": "it can act by the worst outcomes instead of the mean",
    "rivals": "it plays all seats of a game in which players hide something",
    "rules": "it asks the rules what actions lead to",
    "team": "it needs one reward for all agents",
    "vectors": "observations must be one vector of floats",
}
# Of these, whoever has them takes environments of one kind alone: mazes, games with known rules.
PARTICULAR = frozenset({"designs", "rivals", "rules"})
ENTRY_POINTS = "assay.algorithms"
HELPERS = frozenset({"base", "settings"})  # what algorithms are written with
_EXPERTS: dict[Loop, Expert] = {"on_policy": "episodes", "off_policy": "policy"}


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """Facts about an algorithm that the loops, the command line and the docs read."""

    name: str
    loop: Loop
    actions: tuple[str, ...]
    family: str
    paper: str
    summary: str
    expert: Expert | None = None
    agents: Agents = "one"
    traits: tuple[str, ...] = ()

    @property
    def own_actions(self) -> tuple[str, ...]:
        """Return the action spaces of one agent; Discrete ones of several are a MultiDiscrete."""
        if self.agents == "one":
            return self.actions
        return tuple("Discrete" if kind == "MultiDiscrete" else kind for kind in self.actions)


T = TypeVar("T")


def register(
    *,
    loop: Loop,
    actions: tuple[str, ...],
    family: str,
    paper: str,
    expert: Expert | None = None,
    agents: Agents = "one",
    traits: tuple[str, ...] = (),
) -> Callable[[type[T]], type[T]]:
    """Attach an `AlgorithmSpec` to an algorithm class.

    Args:
        loop: Which loop drives it: "on_policy", "off_policy", "offline" or "game".
        actions: Names of the Gymnasium action spaces it handles ("Box", "Discrete", ...).
        family: "policy-gradient", "value", "actor-critic", ...
        paper: Where it was published.
        expert: Whom it imitates, if anybody: "episodes" that are recorded (on-policy), or a
            "policy" that says what it would do (off-policy).
        agents: "many" for one that trains the agents of environments that have several; "one"
            for all others.
        traits: Some of `TRAITS`. Like everything else here they are written as literals, so that
            `spec_of` can read them without importing the algorithm.

    Raises:
        ConfigError: There is no such loop, action space or trait, the loop knows no such expert,
            or the class lacks `update`, `Hyperparameters` or a docstring.
    """

    def decorate(cls: type[T]) -> type[T]:
        name = cls.__module__.rpartition(".")[2]
        if loop not in get_args(Loop):
            raise ConfigError(
                f"The algorithm '{name}' is registered with loop='{loop}', which does not exist.",
                nearest(loop, get_args(Loop)),
            )
        if expert is not None and _EXPERTS.get(loop) != expert:
            raise ConfigError(
                f"The algorithm '{name}' is registered with loop='{loop}' and expert='{expert}'.",
                "Episodes are for on_policy, and a policy is for off_policy.",
            )
        for trait in traits:
            if trait not in TRAITS:
                raise ConfigError(
                    f"The algorithm '{name}' is registered with the trait '{trait}'.",
                    nearest(trait, TRAITS),
                )
        for kind in [actions] if isinstance(actions, str) else actions:
            if isinstance(actions, str) or kind not in ACTIONS:
                raise ConfigError(
                    f"The algorithm '{name}' is registered with actions={actions!r}; expected a "
                    f"tuple of some of {', '.join(ACTIONS)}.",
                    nearest(kind, ACTIONS),
                )
        lacking = sorted(getattr(cls, "__abstractmethods__", ()))
        if lacking:
            raise ConfigError(f"The algorithm '{name}' has no method {lacking[0]}.", "Write it.")
        hyperparameters = getattr(cls, "Hyperparameters", None)
        if not (isinstance(hyperparameters, type) and issubclass(hyperparameters, Settings)):
            raise ConfigError(
                f"The algorithm '{name}' has no class Hyperparameters of settings.",
                "Write one inside the class that inherits assay.core.config.Settings, or groups of "
                "assay.algorithms.settings.",
            )
        if not (cls.__doc__ or "").strip():
            raise ConfigError(
                f"The algorithm '{name}' has no docstring.",
                "Write one: its first line is what `assay algorithms` shows.",
            )
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        spec = AlgorithmSpec(name, loop, actions, family, paper, summary, expert, agents, traits)
        cls.spec = spec  # type: ignore[attr-defined]
        return cls

    return decorate


def names() -> list[str]:
    """Return the name of every algorithm, built-in and third-party, that is installed now."""
    _third_party.cache_clear()
    return sorted(_known())


def general(agents: Agents) -> dict[str, tuple[str, ...]]:
    """Return the algorithms that need no particular kind of environment, with their actions."""
    specs = (spec_of(name) for name in names())
    return {s.name: s.actions for s in specs if s.agents == agents and not PARTICULAR & {*s.traits}}


def _known() -> frozenset[str]:
    return built_in() | _third_party(tuple(sys.path)).keys()


@functools.cache
def built_in() -> frozenset[str]:
    """Return the names of the algorithms that come with Assay."""
    package = importlib.import_module("assay.algorithms")
    found = pkgutil.iter_modules(package.__path__)
    return frozenset(module.name for module in found if not module.ispkg) - HELPERS


@functools.lru_cache(maxsize=1)
def _third_party(path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the algorithms of other packages; for another `sys.path` they are looked for again."""
    # Which opens a file of every installed package, whatever it is about.
    return {e.name: e for e in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def get(name: str) -> Any:
    """Return the algorithm class called `name`.

    Raises:
        ConfigError: It is no text, or no algorithm has that name; the nearest one is suggested.
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"{name!r} is not the name of an algorithm.",
            "Give a name such as 'ppo'. A class trains by itself: PPO('CartPole-v1').train(50_000)",
        )
    if ":" in name:
        return _named(name)
    key = _key(name)
    entry = _third_party(tuple(sys.path)).get(key)
    module = entry.load() if entry else importlib.import_module(f"assay.algorithms.{key}")
    if isinstance(module, type):
        return module
    for value in vars(module).values():
        if isinstance(value, type) and getattr(getattr(value, "spec", None), "name", None) == key:
            return value
    raise ConfigError(f"The module of algorithm '{name}' registers no algorithm of that name.")


def spec_of(name: str) -> AlgorithmSpec:
    """Return the facts about an algorithm without importing it, and so without torch.

    They are read in its source, from the arguments of `register`. Where they are not literals, the
    algorithm is imported after all.

    Raises:
        ConfigError: No algorithm has that name; the nearest one is suggested.
    """
    key = _key(name)
    entry = _third_party(tuple(sys.path)).get(key)
    module = entry.module if entry else f"assay.algorithms.{key}"
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return get(name).spec  # type: ignore[no-any-return]
    facts = _facts_in(found.origin, Path(found.origin).stat().st_mtime_ns)
    if facts is None:
        return get(name).spec  # type: ignore[no-any-return]
    return AlgorithmSpec(name=module.rpartition(".")[2], **facts)


@functools.lru_cache(maxsize=256)
def _facts_in(path: str, changed: int) -> dict[str, Any] | None:
    """Return what a module registers; `changed` tells versions of the file apart."""
    for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        facts = _registered(node) if isinstance(node, ast.ClassDef) else None
        if facts is not None:
            return facts
    return None


def _registered(node: ast.ClassDef) -> dict[str, Any] | None:
    """Return the arguments of `register` above a class, and its summary."""
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "register":
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            try:
                values = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            except ValueError:
                return None
            return {**values, "summary": summary}
    return None


def _key(name: str) -> str:
    """Return the name as the registry has it.

    Raises:
        ConfigError: There is none; the nearest one is suggested.
    """
    key = name.lower().replace("-", "_")
    if key not in _known() and key not in (known := names()):
        raise ConfigError(
            f"Unknown algorithm '{name}'. {nearest(name, known)}",
            "Install the package that brings it, or name it as package.module:Class.",
        )
    return key


def _named(name: str) -> Any:
    """Return the algorithm class `package.module:Class`."""
    module, _, attribute = name.partition(":")
    found = find_named(name, f"The algorithm '{name}'")
    if not isinstance(getattr(found, "spec", None), AlgorithmSpec):
        raise ConfigError(
            f"'{module}' has no algorithm '{attribute}'.",
            "Name a class with the decorator assay.core.registry.register.",
        )
    return found
