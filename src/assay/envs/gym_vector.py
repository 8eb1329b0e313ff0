"""Environments that are a `gymnasium.vector.VectorEnv`, in any of the three autoreset modes.

The mode decides what a step means for an episode that has ended, so it is read from
`metadata["autoreset_mode"]` and never guessed:

* SAME_STEP: the returned observation is already the reset one; the last one is in the info.
* NEXT_STEP: the returned observation is the last one. The next step ignores that row's action and
  only resets it, and is marked as not valid.
** DISABLED: the rows that are done are reset here, with `options={"reset_mask": ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.types import ACTION_MASK, State, Tree, tree_map
from assay.envs.env_errors import SEED_BITS, env_failure
from assay.envs.spaces import ActionMap, BadObservationError, ObservationMap, has_mask
from assay.envs.sync import SUCCESS, Step
from assay.envs.teams import Outcome, team_of

_Raw = tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class Batched:
    """The backends "native" and "vector", and a VectorEnv that the caller has made.

    Args:
        env: The vector environment.
        name: Its name in messages.
        trusted: Whether its arrays are known to be new, canonical and of the right type, with
            `final_obs` dense and present if and only if a row is done. That is true of the native
            ones, which also refuse actions that are not finite and cannot leave the finite range.
        text: The width of the array that a text in an observation becomes; 0 leaves it out.

    Raises:
        EnvError: It cannot be reset, or does not declare its autoreset mode.
        SpaceError: A space is not supported.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv[Any, Any, Any],
        name: str,
        trusted: bool = False,
        text: int = 0,
    ) -> None:
        self.env = env
        self.name = name
        self.num_envs = env.num_envs
        self.always_finite = trusted
        self.mode = autoreset_mode(env, name)
        self.resets_in_steps = self.mode is AutoresetMode.NEXT_STEP
        self.team = team_of(env)
        self.actions = ActionMap(env.single_action_space)
        self._masked = not trusted and self._finds_mask()
        size = self.actions.mask_size if self._masked else None
        self.observations = ObservationMap(env.single_observation_space, size, text)
        # Gymnasium's own vector environments can be set to return the same arrays every time.
        self._copies = getattr(env.unwrapped, "copy", True) is False
        self._nowhere = np.zeros(self.num_envs, np.bool_)
        self._resetting: NDArray[np.bool_] | None = None  # rows that the next step resets
        self.success: NDArray[np.float64] | None = None
        self.step: Callable[[NDArray[Any]], Step] = (
            self._step_trusted
            if trusted and self.mode is AutoresetMode.SAME_STEP
            else {
                AutoresetMode.SAME_STEP: self._step_same,
                AutoresetMode.NEXT_STEP: self._step_next,
                AutoresetMode.DISABLED: self._step_disabled,
            }[self.mode]
        )

    def _finds_mask(self) -> bool:
        if has_mask(self.env.single_observation_space) or self.actions.mask_size is None:
            return False
        return ACTION_MASK in self._call_reset(seed=0)[1]

    @property
    def outcome(self) -> Outcome:
        """Return what the last step did to each agent."""
        inner: Any = self.env.unwrapped
        outcome: Outcome = inner.outcome
        return outcome

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""
        self._resetting = None
        raw, info = self._call_reset(seed=seed & SEED_BITS)
        return self._convert(raw, info, self._nowhere)

    def _call_reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        try:
            raw, info = self.env.reset(**arguments)
        except Exception as error:
            raise env_failure(error, f"'{self.name}' failed in reset()") from error
        return raw, info

    def _step_trusted(self, actions: NDArray[Any]) -> Step:
        try:
            obs, reward, terminated, truncated, info = self.env.step(actions)
        except Exception as error:
            raise env_failure(error, f"'{self.name}' failed in step()") from error
        self.success = final = None
        if info:
            final, self.success = info["final_obs"], info.get("is_success")
        return obs, reward, terminated, truncated, None, final

    def _call_step(self, actions: NDArray[Any]) -> _Raw:
        try:
            raw, reward, terminated, truncated, info = self.env.step(actions)
            reward = np.asarray(reward)
            terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        except Exception as error:
            raise env_failure(error, f"'{self.name}' failed in step()") from error
        if reward.dtype.kind not in "fiub" or reward.shape != (self.num_envs,):
            raise EnvError(
                f"'{self.name}' returned rewards of dtype {reward.dtype} and shape {reward.shape};"
                f" numbers of shape {(self.num_envs,)} were expected.",
                "Return one number for each copy, such as reward.reshape(num_envs).",
            )
        if reward.dtype.kind != "f":
            reward = reward.astype(np.float64)
        return raw, reward, terminated, truncated, info

    def _step_same(self, actions: NDArray[Any]) -> Step:
        raw, reward, terminated, truncated, info = self._call_step(actions)
        self.success = self._success(info, info.get("final_info", {})) if info else None
        final = None
        done = terminated | truncated
        if np.count_nonzero(done):
            final = self._final(info, done)
        # The masks in the info belong to the reset observations, as those are what is returned;
        # those of the last observations are in info["final_info"].
        return self._convert(raw, info, self._nowhere), reward, terminated, truncated, None, final

    def _step_next(self, actions: NDArray[Any]) -> Step:
        raw, reward, terminated, truncated, info = self._call_step(actions)
        self.success = self._success(info) if info else None
        done = terminated | truncated
        obs = self._convert(raw, info, done)
        valid = None if self._resetting is None else ~self._resetting
        some_done = bool(np.count_nonzero(done))
        self._resetting = done if some_done else None
        return obs, reward, terminated, truncated, valid, obs if some_done else None

    def _step_disabled(self, actions: NDArray[Any]) -> Step:
        raw, reward, terminated, truncated, info = self._call_step(actions)
        self.success = self._success(info) if info else None
        done = terminated | truncated
        final = self._convert(raw, info, done)
        if not np.count_nonzero(done):
            return final, reward, terminated, truncated, None, None
        # A copy, because an environment may write the reset rows into the array it has returned.
        final = tree_map(np.copy, final)
        raw, info = self._call_reset(options={"reset_mask": done})
        fresh = self._convert(raw, info, ~done)
        obs = tree_map(lambda old, new: _merge(old, new, done), final, fresh)
        return obs, reward, terminated, truncated, None, final

    def _convert(self, raw: Any, info: dict[str, Any], excused: NDArray[np.bool_]) -> Tree:
        """Return a canonical observation; `excused` rows may lack an action mask."""
        try:
            mask = self._mask(info, excused) if self._masked else None
            obs = self.observations.batch(raw, mask)
        except BadObservationError as error:
            raise EnvError(f"'{self.name}' violates Gymnasium's API: {error}.") from None
        return tree_map(np.copy, obs) if self._copies else obs

    def _mask(self, info: dict[str, Any], excused: NDArray[np.bool_]) -> NDArray[np.int8]:
        size = self.actions.mask_size
        assert size is not None
        mask = np.ones((self.num_envs, size), np.int8)
        given = info.get(ACTION_MASK)
        present = np.zeros(self.num_envs, np.bool_)
        if given is not None:
            present = np.asarray(info.get(f"_{ACTION_MASK}", ~present), bool)
            try:
                for row in np.flatnonzero(present).tolist():
                    mask[row] = given[row]
            except (ValueError, TypeError) as error:
                raise BadObservationError(
                    f"its action mask is not one row of {size} entries each ({error})"
                ) from None
        absent = ~(present | excused)
        if absent.any():
            row = int(np.flatnonzero(absent)[0])
            raise BadObservationError(f"environment {row} gave no action mask, as it did at first")
        return mask

    def _success(self, *infos: Any) -> NDArray[np.float64]:
        """Return the success that infos report; later infos, of ended episodes, take precedence."""
        success = np.full(self.num_envs, np.nan)
        for info in infos:
            for key in SUCCESS:
                if key in info:
                    told = info.get(f"_{key}", np.ones(self.num_envs, np.bool_))
                    for row in np.flatnonzero(told):
                        success[row] = float(bool(info[key][row]))
                    break
        return success

    def _final(self, info: dict[str, Any], done: NDArray[np.bool_]) -> Tree:
        """Return the last observations of the rows that are done.

        A mask is all ones where `info["final_info"]` gives none.
        """
        given, told = info.get("final_obs"), info.get("final_info")
        if given is None:
            raise EnvError(
                f"'{self.name}' resets in the same step and gave no info['final_obs'].",
                "Return the last observation of an episode in info['final_obs'].",
            )
        final = self.observations.zeros(self.num_envs)
        try:
            mask = None
            if self._masked:
                mask = self._mask(told if isinstance(told, dict) else {}, excused=~self._nowhere)
            if isinstance(given, (Mapping, tuple)) or np.asarray(given).dtype != object:
                dense = self.observations.batch(given, mask)
                return tree_map(np.copy, dense) if self._copies else dense
            for row in np.flatnonzero(done).tolist():
                self.observations.write(final, row, given[row])
            if mask is not None:
                final[ACTION_MASK] = mask
        except BadObservationError as error:
            where = "in info['final_obs'] or its mask in info['final_info']"
            raise EnvError(f"'{self.name}' violates Gymnasium's API: {where}, {error}.") from None
        return final

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that the environment declares, each [num_envs]."""
        declared = getattr(self.env, "parameters", None)
        return declared() if callable(declared) else {}

    def set_parameters(self, values: Mapping[str, NDArray[Any]], later: bool = False) -> None:
        """Set parameters, each [num_envs], now or (`later`) at the start of next episodes."""
        env: Any = self.env
        try:
            env.set_parameters(values, later)
        except Exception as error:
            raise env_failure(error, f"'{self.name}' failed in set_parameters()") from error

    def get_state(self) -> State | None:
        """Return the environment's state if it can save itself, else None."""
        env: Any = self.env
        if not (hasattr(env, "get_state") and hasattr(env, "set_state")):
            return None
        state = env.get_state()
        resetting = self._resetting
        return {"own": state, "resetting": None if resetting is None else resetting.copy()}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        env: Any = self.env
        try:
            env.set_state(state["own"])
        except Exception as error:
            raise env_failure(error, f"'{self.name}' failed in set_state()") from error
        self._resetting = state["resetting"]

    def first_env(self) -> Any:
        """Return the vector if it has what is asked for, else its first environment, or None."""
        inner: Any = self.env.unwrapped
        if any(hasattr(inner, name) for name in ("compute_reward", "tree", "self_play")):
            return inner
        return next(iter(getattr(inner, "envs", None) or ()), None)

    def render(self) -> Any:
        """Render the first environment."""
        frames = self.env.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def autoreset_mode(env: gym.vector.VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    """Return the environment's autoreset mode.

    Raises:
        EnvError: It declares none, or an unknown one.
    """
    declared = env.metadata.get("autoreset_mode")
    if env.metadata is gym.vector.VectorEnv.metadata:
        # The base class's own dict is shared by all classes that declare none, and ALE's vector
        # environment writes its mode into it. Only what the object itself declares can be trusted.
        declared = getattr(env.unwrapped, "autoreset_mode", None)
    try:
        return AutoresetMode(declared)
    except ValueError:
        modes = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise EnvError(
            f"'{name}' does not declare its autoreset mode: metadata['autoreset_mode'] is "
            f"{declared!r}; expected one of {modes}.",
            "Set it in the environment's metadata.",
        ) from None


def _merge(old: NDArray[Any], new: NDArray[Any], rows: NDArray[np.bool_]) -> NDArray[Any]:
    merged = old.copy()
    merged[rows] = new[rows]
    return merged
