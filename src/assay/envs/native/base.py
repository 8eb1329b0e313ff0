"""What the native environments share: seeding, time limit, autoreset, checks, saving.

Equality with Gymnasium is bit for bit, and rests on three facts. NumPy's and Python's float64
arithmetic are both IEEE, so operations done in the same order give the same bits. NumPy's float64
sine and cosine are the C library's, as Python's are (`libm_agrees` checks it). And `x**2` on a
scalar, which is what Gymnasium writes in some places, is the C library's `pow`: that differs from
`x * x` in the last bit about once in a thousand, enough for a chaotic system to diverge, so those
squares go through `libm_squares` here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any, ClassVar, NoReturn

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from assay.core.errors import EnvError, nearest
from assay.core.seeding import rng_state, set_rng_state
from assay.envs.arguments import require_integer

Bound = float | np.ndarray
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]

# Starts are drawn this many at a time: a draw costs microseconds whatever its size, and a random
# policy ends a CartPole episode every twenty steps.
_BANK = 16
_TWO = repeat(2.0)
_MANTISSA_TO_TOP, _MARGIN, _TWICE_MARGIN = (np.array(x, np.uint64) for x in (13, 1 << 60, 1 << 61))


@cache
def libm_agrees() -> bool:
    """Return whether NumPy's float64 sine and cosine are the C library's on this machine.

    NumPy does not guarantee it. Where they are not, a single copy takes the batched path, so that
    it still behaves like a copy among many.
    """
    x = np.random.default_rng(0).uniform(-30.0, 30.0, 2000)
    return all(
        np.array_equal(batched(x), [scalar(v) for v in x.tolist()])
        for batched, scalar in ((np.sin, math.sin), (np.cos, math.cos))
    )


def libm_squares(x: np.ndarray, out: np.ndarray) -> None:
    """Write the squares of contiguous float64 `x` as a scalar `x**2` gives them, bit for bit.

    The `pow` of glibc and musl errs by at most 0.512 units in the last place where the result is
    of ordinary size, so it can differ from the correctly rounded product only where the exact
    square lies within 0.012 units of the middle between two floats. Only those are left to `pow`.

    The exact square of a 53-bit mantissa has 105 or 106 bits, of which 52 or 53 are rounded away,
    so near a middle its lowest 51 bits are near zero, from above or below. Multiplying the bit
    patterns modulo 2^64, one of them shifted by 13, leaves just those 51 bits: exponent and sign
    drop out at the top. The margin of 2^60 is at least 1/64 of a unit, and one square in eight
    falls within it.
    """
    if x.size < 64:  # too few for the sieve to be worth it
        out.ravel()[:] = np.fromiter(map(math.pow, x.ravel().tolist(), _TWO), x.dtype, x.size)
        return
    bits = x.view(np.uint64)
    low = bits << _MANTISSA_TO_TOP
    low *= bits
    low += _MARGIN
    doubtful = (low < _TWICE_MARGIN).ravel().nonzero()[0]
    np.square(x, out)
    if doubtful.size:
        powers = map(math.pow, x.take(doubtful).tolist(), _TWO)
        out.put(doubtful, np.fromiter(powers, x.dtype, doubtful.size))


class NativeVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Copies of one classic-control task, stepped together in NumPy.

    * **Equal to Gymnasium.** Copy `i` behaves bit for bit like `gymnasium.make(id)` reset with seed
      `seed + i` and reset again without a seed whenever an episode ends. It has its own random
      stream, so it depends neither on the number of copies nor on the others.
    * **Autoreset in the same step.** Rows that are done come back already reset. Their true last
      observation is in `info["final_obs"]`, with the mask `info["_final_obs"]`; the other rows
      of `final_obs` equal the returned observation. Both keys are there only if some row is done.
    * **Arrays.** Every returned array is new and is never written again by the environment, so an
      observation stays valid for as long as the caller keeps it.
    * **Success.** Where an episode ends by itself only if its goal is reached (`ends_at_goal`),
      `info["is_success"]` says for every row whether it was, as 1 or 0, in the same steps.
    * **Levels** with a name are `named_levels`: the arguments of the constructor that make each.
    * **Repeated actions** (`repeat`, `_advance` must draw nothing): their rewards are summed up.
    * **Rendering** is left to `gymnasium.make`, which draws the same episode from the same seed.
    * **Parameters** (`physical`, by the names of Gymnasium's attributes) differ between copies if
      they are set. Like the time limit they are no part of the saved state.

    A subclass names its spaces and bounds and implements `_begin`, `_advance` and
    `_advance_scalar`. A single copy takes the path of plain Python floats, which is several times
    faster than arrays of length one and gives the same bits.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (typed so by Gymnasium)
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    state_size: int
    start_low: ClassVar[Bound]
    start_high: ClassVar[Bound]
    start_draws: ClassVar[int]
    physical: ClassVar[Mapping[str, float]] = {}
    ends_at_goal: ClassVar[bool] = False
    named_levels: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(
        self,
        num_envs: int,
        max_episode_steps: int,
        observation_space: Box,
        action_space: Discrete | Box,
    ) -> None:
        require_integer("num_envs", num_envs)
        require_integer("max_episode_steps", max_episode_steps)
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)

        self._state = np.zeros((self.state_size, num_envs))  # one row per variable
        self._scalar = num_envs == 1 and libm_agrees()
        self._point: list[float] = []  # the state instead of `_state` on the scalar path
        self._running = False
        self.repeat = 1

        # A copy is truncated when the common clock reaches its deadline. No deadline is nearer than
        # `_next_deadline`, so most steps do not check them.
        self._clock = 0
        self._deadlines = np.zeros(num_envs, np.int64)
        self._next_deadline = 0

        self._rngs: list[np.random.Generator] = []
        # Starts drawn ahead from each copy's stream, `_BANK` lines of the table for each, and where
        # each copy's first unused one is; it has none left when that is at its end.
        self._starts = np.empty((num_envs * _BANK, self.state_size))
        self._start_obs = np.empty((num_envs * _BANK, *observation_space.shape), np.float32)
        self._ends = np.arange(1, num_envs + 1) * _BANK
        self._next = self._ends.copy()

        self._nowhere = np.zeros(num_envs, np.bool_)
        # Parameters, one row each, and those of the next episodes; None while nobody has set any.
        self._values: np.ndarray | None = None
        self._planned: np.ndarray | None = None
        self._action_shape = self.action_space.shape
        # The discrete actions; none if they are continuous.
        self._choices = np.arange(action_space.n if isinstance(action_space, Discrete) else 0)

    # What a subclass provides.

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return start states [m, state_size] and their observations for uniform draws [m, d]."""
        raise NotImplementedError

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Check the actions, move `_state`, return new (observations, rewards, terminated)."""
        raise NotImplementedError

    def _advance_scalar(self, actions: np.ndarray) -> tuple[Sequence[float], float, bool]:
        """Do what `_advance` does for the one copy in `_point`."""
        raise NotImplementedError

    def _use(self, **physical: np.ndarray) -> None:
        """Let `_advance` use other values [num_envs] of the parameters."""
        raise NotImplementedError

    def _start_bounds(self, options: dict[str, Any]) -> tuple[Bound, Bound]:
        """Return the bounds of the start distribution that the options of `reset` ask for."""
        low, high = self._numbers(options, low=self.start_low, high=self.start_high)
        if low > high:
            raise EnvError(f"The reset option low={low} is above high={high}.")
        return low, high

    # Gymnasium's interface.

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in every copy.

        Args:
            seed: Seeds copy `i` with `seed + i`, or with `seed[i]`. Without a seed a copy continues
                its stream, or takes one from the operating system if it has none yet.
            options: Bounds of the start distribution for this reset only, as in Gymnasium:
                `low` and `high` (Pendulum: `x_init` and `y_init`).

        Returns:
            Observations [num_envs, ...] and an empty dict.
        """
        seeds = self._seeds(seed)
        if self._planned is not None:
            self._adopt(np.arange(self.num_envs))
        low, high = self.start_low, self.start_high
        if options is not None:
            low, high = self._start_bounds(options)

        self._give_back_draws()
        draws = np.empty((self.num_envs, self.start_draws))
        for row, row_seed in enumerate(seeds):
            if row == len(self._rngs):
                self._rngs.append(np_random(row_seed)[0])
            elif row_seed is not None:
                self._rngs[row] = np_random(row_seed)[0]
            draws[row] = self._rngs[row].uniform(low, high, self.start_draws)
        states, observations = self._begin(draws)
        self._enter(states, np.zeros(self.num_envs, np.int64))
        return observations, {}

    def step(self, actions: np.ndarray) -> Step:
        """Move every copy by one step and reset those that are done.

        Args:
            actions: Integers [num_envs] for a discrete task, else floats [num_envs, 1], which are
                taken as float32 and clipped to the action space as Gymnasium does.

        Returns:
            Observations, rewards (float64), terminated, truncated, and the info described above.

        Raises:
            EnvError: The actions have another shape or type, are not among the discrete ones or
                are not finite; then nothing has moved. Or there was no reset yet.
        """
        if not self._running:
            raise EnvError("The environment was stepped before its first reset.", "Call reset().")
        observations, rewards, terminated, truncated = self._moved(actions)
        done = terminated | truncated
        for _ in range(1, self.repeat):
            if np.count_nonzero(done) == self.num_envs:
                break
            # Copies that are done move as well, which nobody sees: they are reset below.
            seen, paid, ends, cut = self._moved(actions)
            observations = np.where(done[:, None], observations, seen)
            rewards = np.where(done, rewards, rewards + paid)
            terminated, truncated = terminated | (ends & ~done), truncated | (cut & ~done)
            done = terminated | truncated

        info: dict[str, Any] = {}
        if np.count_nonzero(done):
            info = {"final_obs": observations.copy(), "_final_obs": done.copy()}
            if self.ends_at_goal:
                info["is_success"] = terminated.astype(np.float64)
            self._restart(done.nonzero()[0], observations)
        if self._clock >= self._next_deadline:
            self._next_deadline = int(self._deadlines.min())
        return observations, rewards, terminated, truncated, info

    def _moved(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Move every copy once; return new (observations, rewards, terminated, truncated)."""
        if self._scalar:
            point, reward, over = self._advance_scalar(actions)
            observations, rewards = np.array([point], np.float32), np.array([reward])
            terminated = np.array([over])
        else:
            observations, rewards, terminated = self._advance(actions)
        self._clock += 1
        if self._clock >= self._next_deadline:
            return observations, rewards, terminated, self._deadlines <= self._clock
        return observations, rewards, terminated, self._nowhere.copy()

    # Parameters.

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the physical parameters of all copies, each [num_envs]."""
        return dict(zip(self.physical, self._all_values().copy(), strict=True))

    def set_parameters(self, values: Mapping[str, np.ndarray], later: bool = False) -> None:
        """Set parameters, each [num_envs], now or (`later`) when a copy begins its next episode."""
        current, names = self._all_values(), list(self.physical)
        if self._planned is None:
            self._planned = current.copy()
        for name, value in values.items():
            self._planned[names.index(name)] = value
            if not later:
                current[names.index(name)] = value
        if self._scalar:  # which knows only the usual values
            self._scalar = False
            if self._running:
                self._state[:, 0] = self._point
        self._use(**dict(zip(self.physical, current, strict=True)))

    def _all_values(self) -> np.ndarray:
        if self._values is None:
            usual = np.array([*self.physical.values()], np.float64)
            self._values = usual[:, None].repeat(self.num_envs, axis=1)
        return self._values

    def _adopt(self, rows: np.ndarray) -> None:
        """Let copies have the parameters that were planned for them."""
        values = self._all_values()
        values[:, rows] = self._planned[:, rows]  # type: ignore[index]
        self._use(**dict(zip(self.physical, values, strict=True)))

    # Saving.

    def get_state(self) -> dict[str, Any]:
        """Return the state that the next steps depend on; `set_state` restores it exactly.

        Returns:
            Arrays `physics` [num_envs, state_size] and `elapsed` [num_envs], a list `rng` of plain
            dicts, and the task's name.
        """
        if not self._running:
            raise EnvError("There is no state to save before the first reset.", "Call reset().")
        self._give_back_draws()
        return {
            "task": type(self).__name__,
            "physics": self._physics(),
            "elapsed": self.max_episode_steps - (self._deadlines - self._clock),
            "rng": [rng_state(rng) for rng in self._rngs],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned, here or in another process."""
        missing = {"task", "physics", "elapsed", "rng"} - state.keys()
        if missing:
            raise EnvError(f"The saved environment state has no {sorted(missing)}.")
        if state["task"] != type(self).__name__:
            raise EnvError(f"The saved state is of {state['task']}, not of {type(self).__name__}.")
        physics = np.asarray(state["physics"], np.float64)
        elapsed = np.asarray(state["elapsed"], np.int64)
        wanted = (self.num_envs, self.state_size)
        if physics.shape != wanted or elapsed.shape != wanted[:1] or len(state["rng"]) != wanted[0]:
            raise EnvError(
                f"The saved state has physics of shape {physics.shape}, elapsed of shape "
                f"{elapsed.shape} and {len(state['rng'])} random streams; {wanted}, {wanted[:1]} "
                f"and {wanted[0]} were expected.",
                "Restore it into as many environments as it was saved from.",
            )
        rngs = [np.random.Generator(np.random.PCG64()) for _ in range(self.num_envs)]
        try:
            for rng, saved in zip(rngs, state["rng"], strict=True):
                set_rng_state(rng, saved)
        except (ValueError, TypeError, KeyError) as error:
            raise EnvError(f"A saved random state is not one of PCG64: {error}") from error
        self._rngs = rngs
        self._next[:] = self._ends
        self._enter(physics, elapsed)

    # Shared machinery.

    def _physics(self) -> np.ndarray:
        """Return a copy of the state, [num_envs, state_size]."""
        return np.array([self._point]) if self._scalar else self._state.T.copy()

    def _enter(self, states: np.ndarray, elapsed: np.ndarray) -> None:
        """Put every copy into a state [num_envs, state_size], `elapsed` steps into its episode."""
        self._state[:] = states.T
        self._point = states[0].tolist()
        self._clock = 0
        self._deadlines[:] = self.max_episode_steps - elapsed
        self._next_deadline = int(self._deadlines.min())
        self._running = True

    def _restart(self, rows: np.ndarray, observations: np.ndarray) -> None:
        """Start new episodes in some rows and write their first observations."""
        if self._planned is not None:
            self._adopt(rows)
        lines = self._next[rows]
        if np.count_nonzero(empty := lines == self._ends[rows]):
            for row in rows[empty].tolist():
                bank = slice(row * _BANK, (row + 1) * _BANK)
                draws = self._rngs[row].uniform(
                    self.start_low, self.start_high, (_BANK, self.start_draws)
                )
                self._starts[bank], self._start_obs[bank] = self._begin(draws)
            lines[empty] -= _BANK
        states = self._starts.take(lines, axis=0)
        if self._scalar:
            self._point = states[0].tolist()
        else:
            self._state[:, rows] = states.T
        observations[rows] = self._start_obs.take(lines, axis=0)
        self._next[rows] = lines + 1
        self._deadlines[rows] = self._clock + self.max_episode_steps

    def _give_back_draws(self) -> None:
        """Rewind each stream over the starts drawn ahead, to where Gymnasium's would be."""
        unused = self._ends - self._next
        for row in np.flatnonzero(unused).tolist():
            draws = int(unused[row]) * self.start_draws
            self._rngs[row].bit_generator.advance(-draws)  # type: ignore[attr-defined]
        self._next[:] = self._ends

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        """Return one seed per copy, or None to continue its stream."""
        if seed is None:
            return [None] * self.num_envs
        try:
            if isinstance(seed, Sequence | np.ndarray):
                seeds = [None if s is None else operator.index(s) for s in seed]
            else:
                seeds = [operator.index(seed) + i for i in range(self.num_envs)]
        except TypeError:
            raise EnvError(f"The seed {seed!r} is not an integer or a list of integers.") from None
        if len(seeds) != self.num_envs:
            raise EnvError(f"{len(seeds)} seeds were given for {self.num_envs} environments.")
        negative = [s for s in seeds if s is not None and s < 0]
        if negative:
            raise EnvError(f"The seed {negative[0]} is negative.", "Use a seed of zero or more.")
        return seeds

    @staticmethod
    def _numbers(options: dict[str, Any], **defaults: Bound) -> list[float]:
        """Return the options in the order of the defaults; refuse unknown and non-finite ones."""
        for name, value in options.items():
            if name not in defaults:
                raise EnvError(f"Unknown reset option '{name}'.", nearest(name, defaults))
            try:
                finite = math.isfinite(value)
            except TypeError:
                finite = False
            if not finite:
                raise EnvError(f"The reset option {name}={value!r} is not a finite number.")
        return [float(options.get(name, default)) for name, default in defaults.items()]

    def _discrete(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions as integers [num_envs] that are all among the choices."""
        if not isinstance(actions, np.ndarray):
            actions = np.asarray(actions)
        if actions.shape != self._action_shape or actions.dtype.kind not in "iu":
            self._refuse(actions)
        if actions.dtype != np.int64:
            # Values too large for int64 become negative here, and are refused below.
            actions = actions.astype(np.int64)
        # Clipping to the choices changes an action exactly if it is not one of them. Comparing
        # bytes takes half the time of comparing numbers.
        clipped = self._choices.take(actions, None, None, "clip")
        if clipped.tobytes() != actions.tobytes():
            self._refuse(actions, int(np.flatnonzero(clipped != actions)[0]))
        return actions

    def _discrete_scalar(self, actions: np.ndarray) -> int:
        """Return the one action as an integer among the choices."""
        if (
            isinstance(actions, np.ndarray)
            and actions.shape == self._action_shape
            and actions.dtype.kind in "iu"
        ):
            action = actions.item()
            if 0 <= action < len(self._choices):
                return action
        return int(self._discrete(actions)[0])

    def _continuous(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions as finite float32 [num_envs, 1]."""
        if not isinstance(actions, np.ndarray) or actions.dtype != np.float32:
            given = np.asarray(actions)
            if given.dtype.kind not in "fiu":
                self._refuse(given)
            actions = given.astype(np.float32)
        if actions.shape != self._action_shape:
            self._refuse(actions)
        finite = np.isfinite(actions)
        if np.count_nonzero(finite) != self.num_envs:
            row = int(np.flatnonzero(~finite)[0])
            self._refuse(actions, row)
        return actions

    def _continuous_scalar(self, actions: np.ndarray) -> np.float32:
        """Return the one action as a finite float32 scalar."""
        if (
            isinstance(actions, np.ndarray)
            and actions.shape == self._action_shape
            and actions.dtype == np.float32
        ):
            action = actions[0, 0]
            if math.isfinite(action):
                return action
        return self._continuous(actions)[0, 0]

    def _refuse(self, actions: np.ndarray, row: int | None = None) -> NoReturn:
        """Raise an error that names what is wrong with the actions, or with those of one row."""
        if not self._choices.size:
            kind, expected = "a float", "a finite number"
        else:
            kind, expected = "an integer", f"an integer from 0 to {len(self._choices) - 1}"
        if row is None:
            raise EnvError(
                f"The actions have shape {actions.shape} and type {actions.dtype}; shape "
                f"{self._action_shape} and {kind} type were expected."
            )
        raise EnvError(
            f"Environment {row} was given the action {actions[row]}; {expected} was expected."
        )
