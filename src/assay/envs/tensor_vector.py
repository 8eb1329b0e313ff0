"""Vector environments whose arrays are tensors, perhaps on a GPU, as one of Gymnasium's.

Isaac Lab, mjlab, Brax and MJX step thousands of copies on a GPU and answer with arrays of torch,
JAX or another library that speaks DLPack, such as CuPy or Warp. What they have in common is enough
to train on them: `num_envs`, spaces of one copy, `reset` and `step`. Arrays are copied to NumPy,
and actions back to the library and device that observations come from.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from assay.core.errors import EnvError

_FINAL = ("final_obs", "final_observation", "terminal_observation")
_ON_HOST = (1, 3)  # DLPack's numbers of a CPU's memory, and of such that a GPU can read
_CUT = ("time_outs", "truncation", "TimeLimit.truncated")  # with a single `done`


class TensorVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector environment of tensors.

    It resets a copy in the step that ends its episode, as these libraries do. Few of them tell the
    last observation of an episode; then the one before it stands in, from which values of truncated
    episodes are bootstrapped.

    Args:
        env: Has `num_envs`, `single_observation_space` and `single_action_space` (or spaces of one
            copy by the names without `single_`), `reset`, and `step`, which returns
            `(obs, reward, terminated, truncated, info)` or `(obs, reward, done, info)`. In the
            second case `info["time_outs"]` or `info["truncation"]` tells truncated episodes. Seeds
            go to `reset(seed=)`, or else to `seed(seed)`. With `get_state()`, which returns a
            mapping of arrays, and `set_state(state)` runs are saved in the middle of episodes.

    Raises:
        EnvError: Something of that is missing, or its spaces are of an unknown kind.

    Example:
        >>> class Drift:  # a point on a line, in tensors
        ...     num_envs = 2
        ...     single_observation_space = gym.spaces.Box(-9, 9, (1,))
        ...     single_action_space = gym.spaces.Discrete(2)
        ...     def reset(self):
        ...         import torch
        ...         self.x = torch.zeros(2, 1)
        ...         return self.x
        >>> TensorVectorEnv(Drift())
        Traceback (most recent call last):
        assay.core.errors.EnvError: 'Drift' has no step().
        Write it, as assay.envs.tensor_vector.TensorVectorEnv describes it.
    """

    def __init__(self, env: Any) -> None:
        self.inner, self._name = env, type(getattr(env, "unwrapped", env)).__name__
        count = getattr(env, "num_envs", None)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise self._lacks(f"has num_envs={count!r}; a positive integer was expected")
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise self._lacks(f"has no {name}()")
        self.num_envs: int = count
        self.single_observation_space = self._space("observation_space")
        self.single_action_space = self._space("action_space")
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._seeded = "seed" in inspect.signature(env.reset).parameters
        self._like: Any = None  # an array as the environment has them
        self._last: Any = None  # what was seen last, in NumPy
        self._warned = False
        if callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None)):
            self.get_state, self.set_state = self._get_state, self._set_state

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies, with the seed where the environment takes one."""
        if not self._seeded and seed is not None and callable(getattr(self.inner, "seed", None)):
            self.inner.seed(seed)
        found = self.inner.reset(seed=seed) if self._seeded else self.inner.reset()
        raw = found[0] if isinstance(found, tuple) else found
        self._like = next(_leaves(raw))
        self._last = _tree(raw)
        return self._last, {}

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies."""
        raw, reward, *ends, given = self.inner.step(self._sent(actions))
        info = given if isinstance(given, Mapping) else {}
        done = as_numpy(ends[0]).astype(bool).reshape(self.num_envs)
        if len(ends) == 2:
            terminated, truncated = done, as_numpy(ends[1]).astype(bool).reshape(self.num_envs)
        else:
            cut = next((as_numpy(info[name]) for name in _CUT if name in info), np.zeros(1))
            truncated = done & cut.astype(bool).reshape(-1)
            terminated = done & ~truncated
        before, self._last = self._last, _tree(raw)
        told: dict[str, Any] = {}
        if (terminated | truncated).any():
            told["final_obs"] = self._final(info, before, bool(truncated.any()))
        return self._last, as_numpy(reward).reshape(self.num_envs), terminated, truncated, told

    def _final(self, info: Mapping[str, Any], before: Any, cut: bool) -> Any:
        for name in _FINAL:
            if info.get(name) is not None:
                return _tree(info[name])
        if cut and not self._warned:
            self._warned = True
            warnings.warn(
                f"'{self._name}' does not report the last observation of an episode "
                f"(info['{_FINAL[0]}']); the one before it stands in for truncated episodes.",
                stacklevel=2,
            )
        return before

    def _sent(self, actions: NDArray[Any]) -> Any:
        """Return actions as an array of the library and on the device that observations have."""
        library = type(self._like).__module__.partition(".")[0]
        if library == "torch":  # a copy: the environment may write into it
            return sys.modules["torch"].tensor(actions, device=self._like.device)
        if library.startswith("jax"):
            devices = self._like.devices()  # one, or those that an array is spread over
            return sys.modules["jax"].device_put(
                actions, next(iter(devices)) if len(devices) == 1 else None
            )
        taken = getattr(sys.modules.get(library), "from_dlpack", None)
        if taken is None or library == "numpy":
            return actions.copy()
        import torch

        kind, number = self._like.__dlpack_device__()
        device = "cpu" if kind in _ON_HOST else f"cuda:{number}"
        return taken(torch.tensor(actions, device=device))

    def _get_state(self) -> dict[str, Any]:
        return {"own": _tree(self.inner.get_state()), "last": self._last}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.inner.set_state(state["own"])
        self._last = state["last"]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        if callable(getattr(self.inner, "close", None)):
            self.inner.close()

    def _space(self, name: str) -> spaces.Space[Any]:
        """Return a space of one copy; of another library's, its bounds or its choices."""
        found: Any = getattr(self.inner, f"single_{name}", None) or getattr(self.inner, name, None)
        if isinstance(found, spaces.Space):
            return found
        if hasattr(found, "low") and hasattr(found, "high"):
            low, high = np.asarray(found.low, np.float32), np.asarray(found.high, np.float32)
            return spaces.Box(low, high, dtype=np.float32)
        if hasattr(found, "n"):
            return spaces.Discrete(int(found.n))
        raise self._lacks(f"has single_{name}={found!r}; a Box or Discrete was expected")

    def _lacks(self, what: str) -> EnvError:
        return EnvError(
            f"'{self._name}' {what}.",
            "Write it, as assay.envs.tensor_vector.TensorVectorEnv describes it.",
        )


def as_numpy(array: Any) -> NDArray[Any]:
    """Return a copy of an array of any library and device, which nobody else writes to."""
    if hasattr(array, "detach"):
        host = array.detach().cpu().numpy()
        return host.copy() if array.device.type == "cpu" else host
    if hasattr(array, "__array__") or not hasattr(array, "__dlpack__"):  # JAX has both
        return np.array(array)
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(array).cpu().numpy().copy()


def _tree(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        return {key: _tree(value) for key, value in raw.items()}
    return as_numpy(raw)


def _leaves(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        for value in raw.values():
            yield from _leaves(value)
    else:
        yield raw
