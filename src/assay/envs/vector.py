"""N copies of an environment behind one interface, for the collector."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.types import Spaces, State, Team, Termination, Tree
from assay.envs.goals import GoalFunctions
from assay.envs.spaces import ActionMap, Leaf, ObservationMap
from assay.envs.sync import Step, Terms
from assay.envs.termination import named_rule, own_rule
from assay.functional.boards import GAMES
from assay.functional.games.tree import GameTree

__all__ = ["Backend", "Step", "Vector"]


class Backend(Protocol):
    """The interface that `Vector` builds on; its methods mean the same as those of `Vector`.

    `always_finite` says that values need no check: NaN and infinity cannot occur.
    """

    num_envs: int
    always_finite: bool
    observations: ObservationMap
    actions: ActionMap

    @property
    def success(self) -> NDArray[np.float64] | None:
        """Return the success that the infos of the last step report."""

    def reset(self, seed: int) -> Tree:
        """Reset all environments."""

    @property
    def step(self) -> Callable[[NDArray[Any]], Step]:
        """Step all environments."""

    def get_state(self) -> State | None:
        """Return the state of all environments, or None."""

    def set_state(self, state: State) -> None:
        """Restore a state."""

    def render(self) -> Any:
        """Render the first environment."""

    def first_env(self) -> Any:
        """Return an environment to call methods on, or None if there is none."""

    def close(self) -> None:
        """Release the environments."""


class Vector:
    """N copies of an environment with canonical spaces.

    `step(actions)` returns a plain tuple `(obs, reward, terminated, truncated, valid, final_obs)`:

    * `obs`: what to act on next, one array [N, ...] or a flat dict of them.
    * `reward`: floats [N], raw.
    * `terminated`, `truncated`: bools [N]; an episode is over where either is True.
    * `valid`: None where every row is a real transition, else bools [N]. A row that is False was
      only reset (NEXT_STEP autoreset): its action was ignored, and it must not be recorded.
    * `final_obs`: None where no episode is over, else a full-size observation whose rows hold the
      true last observation wherever an episode is over; other rows hold anything. Its action
      masks are those of that observation; all ones where the environment gives none for it.

    All arrays are new: nothing that was returned is written again. The arrays are checked for NaN
    and infinity. The actions are the canonical ones of `spaces.action`; they are not clipped.

    Args:
        backend: The environments.
        name: Their name in messages.
        frame_stack: How many frames an image observation stacks, newest last; None if it is not a
            stack. A replay then stores each frame once.
        limit: The time limit of their episodes, if it is known.

    Attributes:
        num_envs: N.
        spaces: The canonical observation and action space of one agent; of several, the joint
            ones, with their `team`.
        observations: Converts raw observations of a single environment or a batch.
        actions: Converts canonical actions to the environment's own.
        plain: Whether they were made from an id of Gymnasium, with its own settings.
        steps: How often `step` was called.
        resets_in_steps: Whether rows may be resets in place of transitions (NEXT_STEP autoreset).
    """

    def __init__(
        self, backend: Backend, name: str, frame_stack: int | None = None, limit: int | None = None
    ) -> None:
        self.backend = backend
        self.name = name
        self.frame_stack = frame_stack
        self.limit = limit
        self.num_envs = backend.num_envs
        self.observations = backend.observations
        self.actions = backend.actions
        team: Team | None = getattr(backend, "team", None)
        self.spaces = Spaces(backend.observations.space, backend.actions.space, team)
        self.plain = False
        self.steps = 0
        self.resets_in_steps = bool(getattr(backend, "resets_in_steps", False))
        self._choices = [
            (leaf, most)
            for leaf in backend.observations.leaves
            if team is None and (most := _largest_choice(leaf)) is not None
        ]
        self.step: Callable[[NDArray[Any]], Step] = self._stepper()

    def reset(self, seed: int) -> Tree:
        """Start a new episode in every copy; copy `i` is seeded with `seed + i`.

        Close seeds therefore share streams; derive them (`core.seeding.derive_seed`).
        """
        obs = self.backend.reset(seed)
        self._check(obs, None, None, "in reset()")
        return obs

    def distrust(self) -> None:
        """Check all values from now on: native physics stays finite only as it is."""
        self.backend.always_finite = False
        self.step = self._stepper()

    def _stepper(self) -> Callable[[NDArray[Any]], Step]:
        """Return `step`, specialised to the spaces: it runs once per environment step."""
        inner, to_env, vdot = self.backend.step, self.actions.to_env, np.vdot
        keys = self.observations.float_keys
        bare = self.observations.bare and bool(keys)
        choices = self._choices

        def step_unchecked(actions: NDArray[Any]) -> Step:
            self.steps += 1
            return inner(actions)

        # x . x is finite if and only if every x is, unless it overflows, and costs a third of
        # np.isfinite(x).all(). Where it is not finite, a closer look decides.
        def step(actions: NDArray[Any]) -> Step:
            self.steps += 1
            result = inner(actions if to_env is None else to_env(actions))
            obs, reward = result[0], result[1]
            fine = isfinite(vdot(reward, reward))
            if bare:
                fine = fine and isfinite(vdot(obs, obs))
            else:
                for key in keys:
                    fine = fine and isfinite(vdot(obs[key], obs[key]))
            if not fine:
                self._check(obs, reward, actions, f"at step {self.steps}")
            if choices:
                self._check_choices(obs)
            if result[5] is not None and result[5] is not obs:
                self._check_final(result, actions)
            return result

        return step_unchecked if self.backend.always_finite and to_env is None else step

    def _check_choices(self, obs: Tree) -> None:
        """Raise an error where a choice is none: a network has no input for it, and sees zeros."""
        for leaf, most in self._choices:
            array = obs if self.observations.bare else obs[leaf.key]
            # One comparison: as an unsigned number, one below 0 is very large.
            wrong = array.view(most.dtype) > most
            if wrong.any():
                row = int(np.argwhere(wrong)[0][0])
                raw = leaf.restore(array[row : row + 1])[0]
                entry = f"entry '{leaf.key}' of an observation" if leaf.path else "an observation"
                raise EnvError(
                    f"Environment {row} of '{self.name}' returned {raw} in {entry} at step "
                    f"{self.steps}, outside of {leaf.source}.",
                    "Widen the space, or clip what you return.",
                )

    def _check_final(self, result: Step, actions: NDArray[Any]) -> None:
        for key in self.observations.float_keys:
            leaf = result[5] if self.observations.bare else result[5][key]
            if not isfinite(np.vdot(leaf, leaf)):
                # It may come from a row that does not count.
                done = (result[2] | result[3]).reshape(-1, *[1] * (leaf.ndim - 1))
                when = f"at step {self.steps}, at the end of an episode"
                self._check_leaf(key, np.where(done, leaf, 0), actions, when)

    def _check(
        self, obs: Tree, reward: NDArray[Any] | None, actions: NDArray[Any] | None, when: str
    ) -> None:
        """Raise an error that names the first environment with a value that is not finite."""
        if reward is not None:
            bad = np.flatnonzero(~np.isfinite(reward))
            if bad.size:
                self._refuse(int(bad[0]), f"the reward {reward[bad[0]]}", actions, when)
        for key in self.observations.float_keys:
            leaf = obs if self.observations.bare else obs[key]
            self._check_leaf(key, leaf, actions, when)

    def _check_leaf(
        self, key: str, leaf: NDArray[Any], actions: NDArray[Any] | None, when: str
    ) -> None:
        bad = np.argwhere(~np.isfinite(leaf))
        if len(bad):
            row, *index = bad[0].tolist()
            where = f"[{', '.join(map(str, index))}]"
            entry = f"entry '{key}'{where}" if key else f"component {where}"
            value = leaf[tuple(bad[0])]
            self._refuse(row, f"an observation whose {entry} is {value}", actions, when)

    def _refuse(self, row: int, what: str, actions: NDArray[Any] | None, when: str) -> None:
        fix = "Check where the environment divides by zero, overflows or leaves its range."
        if actions is not None:
            action = np.asarray(actions[row])
            if action.dtype.kind == "f" and not np.isfinite(action).all():
                fix = (
                    f"It was given the action {action}, so the policy has diverged: try a lower "
                    "learning rate, gradient clipping, or normalised observations."
                )
        raise EnvError(f"Environment {row} of '{self.name}' returned {what} {when}.", fix)

    def get_state(self) -> State | None:
        """Return the state of all environments, or None if one of them cannot be saved.

        Where it is None, exact resumption needs a `reset` with a known seed at every checkpoint.
        """
        state = self.backend.get_state()
        return None if state is None else {"steps": self.steps, "envs": state}

    def set_state(self, state: State) -> None:
        """Restore a state that `get_state` returned, here or in another process.

        The observation to act on next is not part of it: the caller has it.
        """
        self.backend.set_state(state["envs"])
        self.steps = int(state["steps"])

    @property
    def success(self) -> NDArray[np.float64] | None:
        """Return whether the last step was a success, [N] of 1, 0, or NaN if not reported.

        It is what the environment's info has under "is_success" or "success"; at an episode's end,
        that of the episode which ended. None where environments have no infos.
        """
        return self.backend.success

    def take_terms(self) -> Terms:
        """Return the terms of the reward that infos had since the last time, by `reward/NAME`.

        Each is a sum and its number of steps. Environments that are stepped as one have none.
        """
        terms: Terms = getattr(self.backend, "take_terms", dict)()
        return terms

    @property
    def curriculum(self) -> Any:
        """Return what draws the parameters of the next episodes, or None if they stay."""
        return getattr(self.backend, "curriculum", None)

    def score(self, advantage: NDArray[Any]) -> None:
        """Tell the curriculum the advantages [T, N] of the steps since the last time."""
        backend: Any = self.backend
        backend.score(advantage)

    def outcomes(self) -> dict[str, NDArray[Any]]:
        """Return what the last step did to each agent of a team, by name, each [N, A].

        They are `agent_reward`, `agent_terminated` and `agent_truncated`. An agent may be out of an
        episode that goes on; where the episode is over, all that were in it are out.
        """
        backend: Any = self.backend
        named: dict[str, NDArray[Any]] = backend.outcome.named()
        return named

    def goal_functions(self) -> GoalFunctions:
        """Return the functions that compute rewards and terminations for other goals.

        Raises:
            EnvError: They are not goal environments.
        """
        return GoalFunctions(self.backend.first_env(), self.observations, self.name)

    def game_tree(self) -> GameTree:
        """Return the game that these are a seat of, written out.

        Raises:
            EnvError: They are not a game, or one that is too large.
        """
        tree = self._tree()
        if tree is None:
            raise EnvError(
                f"'{self.name}' is not a game that can be written out.",
                "Choose a game, such as kuhn_poker, or another algorithm.",
            )
        found: GameTree = tree()
        return found

    @property
    def plays_all_seats(self) -> bool:
        """Return whether agents play all seats of a game that `game_tree` writes out."""
        return self.spaces.team is not None and self._tree() is not None

    def _tree(self) -> Any:
        return getattr(getattr(self.backend.first_env(), "unwrapped", None), "tree", None)

    @property
    def self_play(self) -> bool:
        """Return whether one agent plays all seats of a board game, one after the other.

        Observations and rewards are then those of who moves.
        """
        inside: Any = self.backend
        while hasattr(inside, "inner"):  # wrappers
            inside = inside.inner
        if not GAMES.keys() & getattr(inside.observations.space, "spaces", {}).keys():
            return False  # before an environment is made to be asked
        return bool(getattr(inside.first_env().unwrapped, "self_play", False))

    def termination_rule(self) -> Termination | None:
        """Return which observations end an episode, or None if that is not known."""
        known = named_rule(self.name) if self.plain else None
        return own_rule(self.backend.first_env()) if known is None else known

    def render(self) -> Any:
        """Return a frame of the first environment, in its `render_mode`."""
        return self.backend.render()

    def close(self) -> None:
        """Release the environments; may be called twice."""
        self.backend.close()

    def __enter__(self) -> Vector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _largest_choice(leaf: Leaf) -> NDArray[Any] | None:
    """Return the largest value of each component of a leaf that is one-hot in networks, or None."""
    if isinstance(leaf.space, gym.spaces.Discrete):
        most: Any = leaf.space.n - 1
    elif isinstance(leaf.space, gym.spaces.MultiDiscrete):
        most = leaf.space.nvec - 1
    else:
        return None
    return np.asarray(most).astype(np.dtype(f"u{leaf.dtype.itemsize}"))
