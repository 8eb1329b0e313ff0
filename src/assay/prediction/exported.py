"""Acting on rows of observations with a file that `assay export --onnx` wrote, without torch.

Such a file knows canonical observations and actions alone (see `assay.envs.spaces`): the choices of
a Discrete are counted from 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError, MissingExtraError
from assay.core.types import ACTION_MASK, Tree, tree_leaves
from assay.envs.spaces import ActionMap, ObservationMap
from assay.policies.parts import CARRY, ONE_INPUT

_MANY = 1 << 31  # choices, where a file does not say how many there are


class ExportedActor:
    """Acts with an ONNX file.

    Raises:
        ConfigError: It is no such file, or takes whole numbers, whose range it does not say.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            runtime = importlib.import_module("onnxruntime")
        except ModuleNotFoundError:
            raise MissingExtraError("onnxruntime", "onnx", "Acting with an ONNX file") from None
        try:
            self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has no error of its own for a bad file
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"'{path}' is not an ONNX model: {reason}.",
                "Give a run, or what assay export wrote.",
            ) from None
        inputs = {one.name: one for one in self._session.get_inputs()}
        self._carried = {n: one for n, one in inputs.items() if n.startswith(f"{CARRY}/")}
        parts = {
            name: _observation(path, name, one)
            for name, one in inputs.items()
            if name not in self._carried
        }
        self._bare = list(parts) == [ONE_INPUT]
        self.observations = ObservationMap(
            parts[ONE_INPUT] if self._bare else gym.spaces.Dict(parts)
        )
        self.actions = ActionMap(_action(self._session.get_outputs()[0]))
        self.remembers = bool(self._carried)
        self._carry: dict[str, NDArray[Any]] = {}
        self.reset()

    def act(self, obs: Tree) -> NDArray[Any]:
        """Return canonical actions [N, ...]; a memory moves on."""
        given: Mapping[str, Any] = {ONE_INPUT: obs} if self._bare else obs
        assert not self.remembers or len(tree_leaves(obs)[0]) == 1
        action, *carry = self._session.run(None, {**given, **self._carry})
        self._carry = dict(zip(self._carried, carry, strict=True))
        return np.asarray(action)

    def reset(self) -> None:
        """Forget: an episode begins."""
        self._carry = {
            name: np.zeros((1, *one.shape[1:]), np.float32) for name, one in self._carried.items()
        }


def _observation(path: Path, name: str, given: Any) -> gym.Space[Any]:
    shape = tuple(given.shape[1:])
    if name == ACTION_MASK:
        return gym.spaces.MultiBinary(shape)
    if given.type == "tensor(float)":
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    if given.type == "tensor(uint8)":
        return gym.spaces.Box(0, 255, shape, np.uint8)
    raise ConfigError(
        f"The input '{name}' of '{path}' is a {given.type}, and the file does not say which values "
        "it may have.",
        "Give the run that it was exported from.",
    )


def _action(given: Any) -> gym.Space[Any]:
    shape = tuple(given.shape[1:])
    if given.type == "tensor(float)":
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    if given.type == "tensor(int8)":
        return gym.spaces.MultiBinary(shape)
    return gym.spaces.MultiDiscrete(np.full(shape, _MANY)) if shape else gym.spaces.Discrete(_MANY)
