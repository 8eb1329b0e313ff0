"""Experts that say what they would do: the agent of a run, an ONNX file, a function, or chance.

A teacher is made for an environment: it is asked with canonical observations, as algorithms see
them, and answers with canonical actions.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from assay.agents import Agent
from assay.core.errors import AssayError, ConfigError, MissingExtraError, SpaceError
from assay.core.imports import find_named
from assay.core.types import Spaces, Tree, action_mask, pack, tree_leaves, tree_map
from assay.data.findings import bounds_of
from assay.envs.vector import Vector
from assay.evaluation.play import restored
from assay.experts.episodes import expert_config, load_known
from assay.loops.collect import random_actions
from assay.loops.config import RunConfig
from assay.loops.run_settings import OBJECT, ONNX, RANDOM, TaughtSettings, find_run
from assay.policies.parts import ONE_INPUT

_ROUNDING = 1e-4  # by which an answer may lie beyond a bound, relative to its range


class RandomTeacher:
    """Answers with uniform actions: the control."""

    def __init__(self, spaces: Spaces) -> None:
        self.space = spaces.action

    def label(self, obs: Tree, rng: np.random.Generator) -> Any:
        """Return what to do for each row."""
        return random_actions(rng, self.space, len(tree_leaves(obs)[0]), action_mask(obs))


class AgentTeacher:
    """Answers with the deterministic policy of an agent.

    Raises:
        SpaceError: It sees or does something else.
        ConfigError: It has a memory.
    """

    def __init__(self, agent: Agent, spaces: Spaces, name: str) -> None:
        own = agent.policy.spaces
        for what, theirs, ours in (
            ("sees", own.observation, spaces.observation),
            ("does", own.action, spaces.action),
        ):
            if theirs != ours:
                raise SpaceError(
                    f"expert='{name}' {what} {theirs}; expected {ours}.",
                    "Give an expert of the same environment.",
                )
        if agent.policy.initial_carry(1) is not None:
            raise ConfigError(
                f"expert='{name}' has a memory, and would be asked about single states.",
                "Give an expert without a memory.",
            )
        self.policy = agent.policy

    def label(self, obs: Tree, rng: np.random.Generator) -> Any:
        """Return what to do for each row."""
        return self.policy.act(obs, None, False).action


class FileTeacher:
    """Answers with a policy that `assay export --onnx` wrote.

    Raises:
        ConfigError: It is no such file, or takes other observations.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, path: Path, env: Vector) -> None:
        try:
            runtime = importlib.import_module("onnxruntime")
        except ModuleNotFoundError:
            raise MissingExtraError("onnxruntime", "onnx", "An ONNX file as an expert") from None
        self.path, self.env = path, env
        try:
            self.session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has no error of its own for a bad file
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"expert='{path}' is not an ONNX model: {reason}.") from None
        wanted = {one.name: tuple(one.shape[1:]) for one in self.session.get_inputs()}
        sample = pack(ONE_INPUT, env.observations.zeros(1))
        given = {name: part.shape[1:] for name, part in _unprefixed(sample).items()}
        if wanted != given:
            raise SpaceError(
                f"expert='{path}' takes {wanted}; this environment gives {given}.",
                "Export a policy of the same environment.",
            )

    def label(self, obs: Tree, rng: np.random.Generator) -> Any:
        """Return what to do for each row."""
        [answer, *_] = self.session.run(None, _unprefixed(pack(ONE_INPUT, obs)))
        return _checked(np.asarray(answer), self.env.spaces.action, str(self.path))


class FunctionTeacher:
    """Answers with a function of one observation, in the environment's own units."""

    def __init__(self, function: Callable[[Any], Any], env: Vector, name: str) -> None:
        self.function, self.env, self.name = function, env, name

    def label(self, obs: Tree, rng: np.random.Generator) -> Any:
        """Return what to do for each row."""
        own = restored(self.env.observations, obs)
        actions = self.env.actions
        answers = []
        for row in range(len(tree_leaves(obs)[0])):
            seen = tree_map(lambda part, row=row: part[row], own)
            answers.append(self._ask(seen))
        expected = tuple(actions.source.shape or ())
        given = np.stack(answers)
        if given.shape[1:] != expected:
            raise ConfigError(
                f"expert='{self.name}' answered with the shape {given.shape[1:]}; expected "
                f"{expected}, of {actions.source}."
            )
        return actions.from_env(_checked(given, actions.source, self.name))

    def _ask(self, seen: Any) -> Any:
        try:
            return np.asarray(self.function(seen))
        except AssayError:
            raise
        except Exception as error:  # the user's own code
            raise ConfigError(
                f"expert='{self.name}' failed: {type(error).__name__}: {error}.",
                "It is called with one observation of the environment, and returns an action.",
            ) from error


def find_teacher(
    config: RunConfig, given: Any
) -> tuple[Callable[[Vector], Any], dict[str, dict[str, Any]]]:
    """Return what makes the teacher for an environment, and what provenance keeps of it.

    Args:
        config: Of the run.
        given: The function, if it was given as an object.

    Raises:
        ConfigError: There is no such expert.
    """
    run = config.run
    assert isinstance(run, TaughtSettings)
    name = run.expert
    if name == RANDOM:
        return lambda env: RandomTeacher(env.spaces), {}
    if name.startswith(OBJECT):
        function = _require_function(given, name)
        return lambda env: FunctionTeacher(function, env, name), _facts(name, _source(function))
    place = find_run(name)
    if place is not None:
        expert_config(config, place)
        agent, digest = load_known(place)
        return lambda env: AgentTeacher(agent, env.spaces, name), _facts(name, digest)
    if name.endswith(ONNX):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"expert='{name}': there is no such file.", "Check the path.")
        return lambda env: FileTeacher(path, env), _facts(name, _sha256(path.read_bytes()))
    if ":" in name:
        function = _named(name)
        return lambda env: FunctionTeacher(function, env, name), _facts(name, _source(function))
    if Path(name).exists():
        raise ConfigError(
            f"expert='{name}' is not a run: {config.algorithm} asks an expert what it would do, "
            "which recorded episodes cannot answer.",
            "Give a run, a policy.onnx, package.module:function, or random; gail, airl and bc "
            "imitate episodes.",
        )
    raise ConfigError(
        f"expert='{name}': there is no run of this name.",
        "Give a run, a policy.onnx, package.module:function, or random.",
    )


def _require_function(given: Any, name: str) -> Callable[[Any], Any]:
    if callable(given):
        function: Callable[[Any], Any] = given
        return function
    raise ConfigError(
        f"expert='{name}' was given as an object, which is not stored."
        if given is None
        else f"expert is a {type(given).__name__}; expected a run, a file or a function.",
        "Pass the function as expert= to assay.train or assay.resume.",
    )


def _named(name: str) -> Callable[[Any], Any]:
    """Return the function `package.module:function`."""
    module, _, attribute = name.partition(":")
    found = find_named(name, f"expert='{name}'")
    if not callable(found):
        raise ConfigError(
            f"expert='{name}': '{module}' has no function '{attribute}'.",
            "Name a function of one observation that returns an action.",
        )
    function: Callable[[Any], Any] = found
    return function


def _source(function: Callable[[Any], Any]) -> str:
    """Return a digest of the file that a function is defined in; of its name if there is none."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
        text = Path(path).read_bytes() if path else b""
    except (TypeError, OSError):
        text = b""
    return _sha256(text or repr(type(function)).encode())


def _facts(name: str, digest: str) -> dict[str, dict[str, Any]]:
    return {"expert": {"path": name, "sha256": digest}}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _unprefixed(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs by the names that an export gives them."""
    return {name.removeprefix(f"{ONE_INPUT}/"): part for name, part in inputs.items()}


def _checked(answers: Any, space: gym.Space[Any], name: str) -> Any:
    """Return answers that are values of the space, cut to bounds that rounding missed."""
    low, high = bounds_of(space)
    room = _ROUNDING * np.maximum(1.0, np.minimum(np.abs(high - low), 1e6))
    inside = np.isfinite(answers) & (answers >= low - room) & (answers <= high + room)
    if not inside.all():
        raise ConfigError(
            f"expert='{name}' answered {np.ravel(answers[~inside])[0]}; "
            f"expected a value of {space}."
        )
    return np.clip(answers, low, high)
