"""Several single environments that are stepped one after the other.

A `Group` is used by two backends: "sync" has one in this process, "processes" has one in every
worker. It writes canonical observations straight into rows of arrays that it is given, resets an
environment in the step that ends its episode, and turns any failure of an environment into an
`EnvError` that names it and holds its traceback.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, EnvError
from assay.core.types import ACTION_MASK, State, Tree
from assay.envs.env_errors import SEED_BITS, env_failure, raised_here
from assay.envs.env_snapshot import load_env_state, save_env_state
from assay.envs.limits import EpisodeBound, Factory, own_limit, warn_unending
from assay.envs.one_env_parameters import read_parameters, write_parameters
from assay.envs.screen import refuse_human
from assay.envs.spaces import ActionMap, BadObservationError, ObservationMap, has_mask
from assay.envs.teams import Outcome, team_of
from assay.envs.text import plain_text

Step = tuple[
    Tree,
    NDArray[np.floating[Any]],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[np.bool_] | None,
    Tree,
]
TERM = "reward/"  # how keys of infos begin that are terms of the reward
Terms = dict[str, tuple[float, int]]  # the sum of a term, and its number of steps, by key
SUCCESS = ("is_success", "success")  # keys of infos; the first that is present counts
MaskSource = Literal["method", "info"] | None


class Group:
    """Environments made by `factories`, each in its own row.

    Args:
        factories: One per environment.
        name: The environment's name in messages.
        first: The number of the first one, for messages.
        bound: Where to truncate the episodes of environments without a time limit; None: nowhere.
        text: The width of the array that a text in an observation becomes; 0 leaves it out.

    Attributes:
        observations: How raw observations become canonical.
        actions: How canonical actions become the environment's own.
        team: The agents, where there are several.
        success: Success in the infos of the last step, 1 or 0; NaN where it is not reported.
        cut_off: Whether the bound has ended an episode, so far.

    Raises:
        EnvError: An environment cannot be made or reset, or they differ in their spaces.
        SpaceError: A space is not supported.
    """

    def __init__(
        self,
        factories: Sequence[Factory],
        name: str,
        first: int = 0,
        bound: int | None = None,
        text: int = 0,
    ) -> None:
        self.name = name
        self.first = first
        self.bound = bound
        self.cut_off = False
        self.envs: list[gym.Env[Any, Any]] = []
        self._planned: dict[int, dict[str, float]] = {}  # parameters of next episodes
        try:
            for index, factory in enumerate(factories):
                self.envs.append(self._make(index, factory))
            self.actions = ActionMap(self.envs[0].action_space)
            self.team = team_of(self.envs[0])
            self._mask_source = self._find_mask()
            size = None if self._mask_source is None else self.actions.mask_size
            self.observations = ObservationMap(self.envs[0].observation_space, size, text)
            self.success = np.full(len(self.envs), np.nan)
            self._terms: Terms = {}
        except BaseException:
            self.close()
            raise

    def _make(self, index: int, factory: Factory) -> gym.Env[Any, Any]:
        try:
            env = factory()
        except (Exception, SystemExit) as error:
            doing = f"Environment {self.first + index} of '{self.name}' could not be made"
            raise env_failure(error, doing) from error
        if not isinstance(env, gym.Env):
            raise EnvError(
                f"The factory of '{self.name}' returned a {type(env).__name__}; "
                "a gymnasium.Env was expected.",
                "Return a gymnasium.Env; pass a gymnasium.vector.VectorEnv itself, not a factory.",
            )
        for attribute in ("observation_space", "action_space"):
            space = getattr(env, attribute, None)
            if not isinstance(space, gym.Space):
                raise EnvError(
                    f"'{self.name}' has {attribute}={space!r}; a gymnasium space was expected.",
                    f"Set self.{attribute} in the environment's __init__.",
                )
            if self.envs and plain_text(space) != plain_text(getattr(self.envs[0], attribute)):
                raise EnvError(
                    f"Environment {self.first + index} of '{self.name}' has {attribute} {space}, "
                    f"environment {self.first} has {getattr(self.envs[0], attribute)}.",
                    "Make all copies with the same spaces.",
                )
        refuse_human(env, self.name)
        if self.bound is not None and own_limit(env) is None:
            return EpisodeBound(env, self.bound)
        return env

    def _find_mask(self) -> MaskSource:
        """Find out by one reset of the first environment where action masks come from."""
        env = self.envs[0]
        if has_mask(env.observation_space) or self.actions.mask_size is None:
            return None
        if env.has_wrapper_attr("action_masks") and callable(env.get_wrapper_attr("action_masks")):
            return "method"
        return "info" if ACTION_MASK in self._reset(0, seed=0)[1] else None

    def _reset(self, index: int, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        if self._planned:
            self._write_parameters(index, self._planned.get(index, {}))
        try:
            obs, info = self.envs[index].reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._failure(error, index, "reset()") from error
        if not isinstance(info, Mapping):  # two numbers of a bare observation, say
            raise EnvError(
                f"Environment {self.first + index} of '{self.name}' returned {info!r} as info from "
                "reset(); a dict was expected.",
                "Return (observation, info), where info may be {}.",
            )
        return obs, info

    def reset(self, seed: int, obs: Tree) -> None:
        """Reset environment `i` with `seed + i` and write its observation into row `i`."""
        for index in range(len(self.envs)):
            raw, info = self._reset(index, (seed & SEED_BITS) + self.first + index)
            try:
                self._write(obs, index, raw, info)
            except BadObservationError as error:
                raise self._failure(error, index, "reset()") from None

    def step(
        self,
        actions: NDArray[Any],
        obs: Tree,
        reward: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        final: Tree = None,
    ) -> Tree:
        """Step every environment and write row `i` of the arrays.

        Args:
            actions: The environment's own actions, [n, ...].
            obs: Receives the next observations; after the end of an episode, the reset one.
            reward: Receives the rewards.
            terminated: Receives whether an episode ended in a terminal state.
            truncated: Receives whether an episode was cut off.
            final: Receives the true last observations of the episodes that ended; made if None.

        Returns:
            `final`, or None where no episode ended.
        """
        index = 0
        some_done = False
        write = self.observations.write
        masked = self._mask_source is not None
        try:
            for index, env in enumerate(self.envs):
                raw, r, term, trunc, info = env.step(actions[index])
                self.success[index] = success_of(info) if info else np.nan
                if info:
                    add_terms(self._terms, info)
                if term or trunc:
                    if final is None:
                        final = self.observations.zeros(len(self.envs))
                    some_done = True
                    if env.__class__ is EpisodeBound and env.cut_off:
                        self.cut_off = True
                    if masked:
                        self._write_final(final, index, raw, info, terminated=term)
                    else:
                        write(final, index, raw)
                    raw, info = self._reset(index)
                if masked:
                    self._write(obs, index, raw, info)
                else:
                    write(obs, index, raw)
                reward[index] = r if r.__class__ is float else as_number(r)
                terminated[index] = term
                truncated[index] = trunc
        except AssayError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(error, index, "step()") from error
        return final if some_done else None

    def _write(self, obs: Tree, index: int, raw: Any, info: dict[str, Any]) -> None:
        self.observations.write(obs, index, raw)
        if self._mask_source is None:
            return
        if self._mask_source == "method":
            mask = self.envs[index].get_wrapper_attr("action_masks")()
        else:
            mask = info.get(ACTION_MASK)
        array = np.asarray(mask)
        size = self.actions.mask_size
        if mask is None or array.shape != (size,):
            found = "no action mask" if mask is None else f"an action mask of shape {array.shape}"
            raise BadObservationError(f"it gave {found}; {size} entries were expected every step")
        obs[ACTION_MASK][index] = array

    def _write_final(
        self, final: Tree, index: int, raw: Any, info: dict[str, Any], *, terminated: bool
    ) -> None:
        """Write a last observation; its mask is all ones where the environment gives none."""
        if self._mask_source == "method":
            # A game that is over may have no answer, and nothing is bootstrapped from its state.
            given = not terminated
        else:
            given = info.get(ACTION_MASK) is not None
        if given:
            self._write(final, index, raw, info)
        else:
            self.observations.write(final, index, raw)
            final[ACTION_MASK][index] = 1

    def _failure(self, error: BaseException, index: int, call: str) -> AssayError:
        who = f"Environment {self.first + index} of '{self.name}'"
        if isinstance(error, (BadObservationError, BadRewardError)):
            of = "Gymnasium" if team_of(self.envs[index]) is None else "PettingZoo"
            return EnvError(
                f"{who} violates {of}'s API in {call}: {error}.",
                f"Fix what the environment returns from {call}.",
            )
        if isinstance(error, ValueError) and "to unpack" in str(error) and raised_here(error):
            shape = "(observation, info)" if call == "reset()" else _STEP_SHAPE
            return EnvError(
                f"{who} does not return {shape} from {call}.",
                "Follow gymnasium's interface; the older gym's is different.",
            )
        return env_failure(error, f"{who} failed in {call}")

    def parameters(self, names: list[str] | None) -> dict[str, NDArray[np.float64]]:
        """Return parameters of every environment, [n] each; by default all."""
        found = [read_parameters(env, names) for env in self.envs]
        # One that was not reset yet may lack what a reset sets.
        return {
            name: np.array([one[name] for one in found])
            for name in found[0]
            if all(name in one for one in found)
        }

    def set_parameters(
        self, values: Mapping[str, NDArray[np.float64]], later: bool = False
    ) -> None:
        """Set parameters, [n] each, now or (`later`) when an environment is next reset."""
        for index in range(len(self.envs)):
            row = {name: float(column[index]) for name, column in values.items()}
            if self._planned or later:
                self._planned[index] = self._planned.get(index, {}) | row
            if not later:
                self._write_parameters(index, row)

    def _write_parameters(self, index: int, values: Mapping[str, float]) -> None:
        try:
            write_parameters(self.envs[index], values)
        except Exception as error:
            raise self._failure(error, index, "set_parameters()") from error

    def outcome(self) -> Outcome:
        """Return what the last step did to each agent, [n, A]."""
        parts = (env.unwrapped.outcome for env in self.envs)  # type: ignore[attr-defined]
        return Outcome(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))

    def take_terms(self) -> Terms:
        """Return sums and counts of the terms of the reward since the last time."""
        taken, self._terms = self._terms, {}
        return taken

    def get_state(self) -> list[State] | None:
        """Return the state of every environment, or None if one of them cannot be saved."""
        states = [save_env_state(env) for env in self.envs]
        return None if any(state is None for state in states) else states  # type: ignore[return-value]

    def set_state(self, states: list[State]) -> None:
        """Restore what `get_state` returned."""
        for index, (env, state) in enumerate(zip(self.envs, states, strict=True)):
            try:
                load_env_state(env, state)
            except Exception as error:
                raise self._failure(error, index, "set_state()") from error

    def render(self) -> Any:
        """Render the first environment."""
        return self.envs[0].render()

    def close(self) -> None:
        """Close every environment; a failure to close is ignored."""
        for env in self.envs:
            with contextlib.suppress(Exception):
                env.close()
        self.envs = []


_STEP_SHAPE = "(observation, reward, terminated, truncated, info)"


class BadRewardError(ValueError):
    """A reward that is not a number."""


def as_number(value: Any) -> float:
    """Return a reward of any numeric type as a float."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        if isinstance(value, (str, bytes)):  # which float() would read
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise BadRewardError(f"the reward is {value!r}; a number was expected") from None


def success_of(info: Mapping[str, Any]) -> float:
    """Return the success that an info reports: 1, 0, or NaN if it reports none."""
    for key in SUCCESS:
        if info.get(key) is not None:
            return float(bool(info[key]))
    return math.nan


def add_terms(terms: Terms, info: Mapping[str, Any]) -> None:
    """Add the numbers that an info has under `reward/NAME` to sums and counts by that name.

    Infos of several agents, by their names, are added one after the other. What is not a finite
    number is left out, as it is no fault of the environment's to have other things there.
    """
    for key, value in info.items():
        if isinstance(value, Mapping):
            add_terms(terms, value)
        elif key.__class__ is str and key.startswith(TERM):
            number = np.asarray(value)
            if number.ndim == 0 and number.dtype.kind in "biuf" and np.isfinite(number):
                merge_terms(terms, {key: (float(number), 1)})


def merge_terms(terms: Terms, more: Terms) -> None:
    """Add sums and counts to others."""
    for key, (total, count) in more.items():
        before, steps = terms.get(key, (0.0, 0))
        terms[key] = before + total, steps + count


class Sync:
    """The backend "sync": all environments in this process, one after the other."""

    always_finite = False

    def __init__(
        self, factories: Sequence[Factory], name: str, bound: int | None = None, text: int = 0
    ) -> None:
        self.group = Group(factories, name, bound=bound, text=text)
        self._bound = bound  # None once it was warned of
        self.num_envs = len(factories)
        self.observations = self.group.observations
        self.actions = self.group.actions
        self.team = self.group.team
        self.set_parameters, self.take_terms = self.group.set_parameters, self.group.take_terms
        self.render, self.close = self.group.render, self.group.close

    @property
    def outcome(self) -> Outcome:
        """Return what the last step did to each agent."""
        return self.group.outcome()

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""
        obs = self.observations.empty(self.num_envs)
        self.group.reset(seed, obs)
        return obs

    def step(self, actions: NDArray[Any]) -> Step:
        """Step all environments; every returned array is new."""
        n = self.num_envs
        obs = self.observations.empty(n)
        reward = np.empty(n)
        terminated, truncated = np.empty(n, np.bool_), np.empty(n, np.bool_)
        # A copy, because an environment may change the action that it is given.
        final = self.group.step(actions.copy(), obs, reward, terminated, truncated)
        if self.group.cut_off and self._bound is not None:
            warn_unending(self.group.name, self._bound)
            self._bound = None
        return obs, reward, terminated, truncated, None, final

    def parameters(self) -> dict[str, NDArray[np.float64]]:
        """Return the parameters of all environments, each [num_envs]."""
        return self.group.parameters(None)

    def named_parameters(self, names: list[str]) -> dict[str, NDArray[np.float64]]:
        """Return parameters by name, also such as are not listed."""
        return self.group.parameters(names)

    def get_state(self) -> State | None:
        """Return the state of all environments, or None if one cannot be saved."""
        states = self.group.get_state()
        return None if states is None else {str(i): state for i, state in enumerate(states)}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        self.group.set_state(in_order(state))

    @property
    def success(self) -> NDArray[np.float64]:
        """Return what the infos of the last step say."""
        return self.group.success

    def first_env(self) -> gym.Env[Any, Any]:
        """Return the first environment."""
        return self.group.envs[0]


def in_order(state: State) -> list[State]:
    """Return the entries "0", "1", ... of a state in the order of their numbers."""
    return [state[key] for key in sorted(state, key=int)]
