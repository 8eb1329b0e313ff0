"""Small tasks: they need memory, directed exploration, or eyes.

Importing this module registers them with Gymnasium; `assay.envs.make` does. Elsewhere,
`gymnasium.make("assay.envs.tasks:assay/Recall-v0")` imports it.

* `assay/CartPoleNoVel-v1`: CartPole-v1 whose velocities are hidden.
* `assay/Recall-v0`: answer with the cue that was shown at the start.
* `assay/Chain-v0`: a reward at the far end of a chain, which a random walk does not reach.
* `assay/TwoStep-v0`, `assay/Climbing-v0`, `assay/Penalty-v0`, `assay/PrisonersDilemma-v0`: games
  of two agents.
* `assay/Catch-v0`: catch a falling ball, seen as an image, and with `blind` only at first.
* `assay/Maze-v0`: find the goal among walls, in levels that have numbers (`envs.native.maze`).
* `assay/FourRooms-v0`: four rooms with a goal that can be moved (`envs.native.four_rooms`).
* `assay/LongMaze-v0`: go through corridors to a goal that is near but behind a wall
  (`envs.native.long_maze`).

It also registers the tasks of `assay.envs.systems` and the games of `assay.envs.boards`, which are
imported when they are made, and one seat of each game of `assay.envs.games`, by the game's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector.utils import batch_space

from assay.core.errors import EnvError
from assay.core.types import State
from assay.envs.arguments import require_integer
from assay.envs.games.registry import OWN, game_entry
from assay.envs.native.base import NativeVectorEnv
from assay.envs.native.cartpole import THETA_LIMIT, X_LIMIT, CartPole
from assay.envs.petting_zoo import make_named

_SEEN = [0, 2]  # x and theta, in the order of CartPole's observation
_ONWARD = 7  # seed of which action goes right in each cell of the chain
_FOREVER = 2**62  # no limit: Gymnasium's TimeLimit truncates these copies


class CartPoleNoVel(CartPole):
    """CartPole-v1 that shows the cart's position and the pole's angle, not their velocities."""

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 500) -> None:
        super().__init__(num_envs, max_episode_steps)
        high = np.array([X_LIMIT * 2, THETA_LIMIT * 2], np.float32)
        self.single_observation_space = Box(-high, high)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._start_obs = np.empty((len(self._starts), 2), np.float32)

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        states, observations = super()._begin(draws)
        return states, observations[:, _SEEN]

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        observations, rewards, terminated = super()._advance(actions)
        return observations.take(_SEEN, axis=1), rewards, terminated

    def _advance_scalar(self, actions: np.ndarray) -> tuple[tuple[float, ...], float, bool]:
        (x, _, theta, _), reward, terminated = super()._advance_scalar(actions)
        return (x, theta), reward, terminated


class Recall(NativeVectorEnv):
    """A cue is shown, `delay` blank observations follow, then the cue is asked for.

    Observation: the cue (one-hot) in the first step and nothing after, and a last number that is 1
    when the answer is due. Action: the cue's number; only that of the last step counts. It is
    rewarded with 1 if right, and ends the episode. Without memory one answer in `cues` is right.
    """

    state_size = 2  # the cue, and the steps since it was shown
    start_low = 0.0
    start_high = 1.0
    start_draws = 1

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = _FOREVER, delay: int = 10, cues: int = 4
    ) -> None:
        require_integer("delay", delay, 0)
        require_integer("cues", cues, 2)
        space = Box(0.0, 1.0, (cues + 1,), np.float32)
        super().__init__(num_envs, max_episode_steps, space, Discrete(cues))
        self._scalar = False  # arrays of length one are fast enough here
        self.delay, self.cues = delay, cues

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cue = np.floor(draws[:, 0] * self.cues)
        observations = np.zeros((len(cue), self.cues + 1), np.float32)
        observations[np.arange(len(cue)), cue.astype(np.int64)] = 1.0
        return np.stack([cue, np.zeros(len(cue))], axis=1), observations

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        answer = self._discrete(actions)
        cue, t = self._state
        over = t == self.delay + 1  # the question was shown
        rewards = (over & (answer == cue)).astype(np.float64)
        t += 1
        observations = np.zeros((self.num_envs, self.cues + 1), np.float32)
        observations[:, -1] = t == self.delay + 1
        return observations, rewards, over


class Chain(NativeVectorEnv):
    """A row of cells; the large reward is at the last one, and a small one at the first.

    In every cell one of the two actions goes right and the other left; which one differs from cell
    to cell and never changes, so that repeating one action leads nowhere. At the left end, going
    left stays there and gives 0.001. Reaching the right end gives 1 and ends the episode. The time
    limit is twice the chain's length, in which a random walk almost never reaches the end
    (with 40 cells, less than once in 10 000 episodes). Observation: a thermometer, 1 for every cell
    up to the present one.

    By default episodes are truncated after twice `length` steps.
    """

    state_size = 1
    start_low = 0.0
    start_high = 0.0
    start_draws = 1
    bait = 0.001

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int | None = None, length: int = 40
    ) -> None:
        require_integer("length", length, 2)
        limit = 2 * length if max_episode_steps is None else max_episode_steps
        space = Box(0.0, 1.0, (length,), np.float32)
        super().__init__(num_envs, limit, space, Discrete(2))
        self._scalar = False
        self.length = length
        self._shown = np.tri(length, dtype=np.float32)  # row i: the thermometer in cell i
        # The action that goes right in each cell: part of the task, not of a run.
        self.onward = np.random.default_rng(_ONWARD).integers(0, 2, length)

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return draws, self._shown.take(draws[:, 0].astype(np.int64), axis=0)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cell = self._state[0]
        right = self._discrete(actions) == self.onward[cell.astype(np.int64)]
        moves = np.where(right, 1.0, -1.0)
        rewards = np.where((cell == 0.0) & (moves < 0.0), self.bait, 0.0)
        np.maximum(cell + moves, 0.0, out=cell)
        terminated = cell == self.length - 1
        rewards[terminated] = 1.0
        return self._shown.take(cell.astype(np.int64), axis=0), rewards, terminated


class Catch(NativeVectorEnv):
    """A ball falls, one row in every step; a paddle in the last row has to be under it.

    Observation: an image uint8 [1, 2 cells, 2 cells], in which ball and paddle are squares of two
    by two pixels. In the last `blind` rows but the paddle's the ball is not shown, so that its
    column has to be remembered. Actions: left, stay, right. Catching the ball gives 1; the episode
    ends when it has reached the last row. Ball and paddle begin in any column.
    """

    state_size = 3  # row and column of the ball, column of the paddle
    start_low = 0.0
    start_high = 1.0
    start_draws = 2

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = _FOREVER, cells: int = 8, blind: int = 0
    ) -> None:
        require_integer("cells", cells, 3)
        require_integer("blind", blind, 0)
        if blind > cells - 2:
            raise EnvError(
                f"blind is {blind}; at most {cells - 2} were expected, or the ball of "
                f"{cells} rows is never seen."
            )
        shape = (1, 2 * cells, 2 * cells)
        super().__init__(num_envs, max_episode_steps, Box(0, 255, shape, np.uint8), Discrete(3))
        self._scalar = False
        self.cells, self.blind = cells, blind
        self._start_obs = np.empty((len(self._starts), *shape), np.uint8)

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ball, paddle = np.floor(draws * self.cells).T
        states = np.stack([np.zeros_like(ball), ball, paddle])
        return states.T, self._show(states)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moves = self._discrete(actions) - 1.0
        row, ball, paddle = self._state
        np.clip(paddle + moves, 0.0, self.cells - 1.0, out=paddle)
        row += 1.0
        over = row == self.cells - 1
        return self._show(self._state), (over & (ball == paddle)).astype(np.float64), over

    def _show(self, states: np.ndarray) -> np.ndarray:
        row, ball, paddle = states.astype(np.int64)
        every, last = np.arange(len(row)), self.cells - 1
        grid = np.zeros((len(row), 1, self.cells, self.cells), np.uint8)
        seen = (row < last - self.blind) | (row == last)
        grid[every[seen], 0, row[seen], ball[seen]] = 255
        grid[every, 0, last, paddle] = 255
        return grid.repeat(2, axis=2).repeat(2, axis=3)


class Single(gym.Env[np.ndarray, Any]):
    """One copy of a batched task as a plain Gymnasium environment, with the same episodes."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (typed so by Gymnasium)

    def __init__(self, envs: NativeVectorEnv) -> None:
        self.envs = envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        # A batched task has begun the next episode when one is over: its first observation.
        self._begun: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        obs = self._begun
        if obs is None or seed is not None or options is not None:
            obs = self.envs.reset(seed=seed, options=options)[0][0]
        self._begun = None
        return obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move by one step."""
        if self._begun is not None:
            raise EnvError("The episode is over.", "Call reset() before the next step.")
        obs, reward, terminated, truncated, info = self.envs.step(np.array([action]))
        shown = obs[0]
        if info:
            self._begun, shown = obs[0], info["final_obs"][0]
        over = bool(terminated[0])
        told = {"is_success": over} if self.envs.ends_at_goal else {}
        return shown, float(reward[0]), over, bool(truncated[0]), told

    def parameters(self) -> dict[str, float]:
        """Return its parameters by name."""
        return {name: float(value[0]) for name, value in self.envs.parameters().items()}

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Set parameters."""
        self.envs.set_parameters({name: np.array([value]) for name, value in values.items()})
        if self._begun is not None:  # the next episode began with the old ones
            self._begun = self.envs.reset()[0][0]

    def get_state(self) -> State:
        """Return the state that the next steps depend on."""
        return {"task": self.envs.get_state(), "begun": self._begun}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        self.envs.set_state(state["task"])
        self._begun = state["begun"]


def make_cartpole_no_vel() -> Single:
    """Return one `CartPoleNoVel`; Gymnasium's TimeLimit truncates it."""
    return Single(CartPoleNoVel(1, _FOREVER))


def make_recall(delay: int = 10, cues: int = 4) -> Single:
    """Return one `Recall`."""
    return Single(Recall(1, delay=delay, cues=cues))


def make_chain(length: int = 40) -> Single:
    """Return one `Chain`."""
    return Single(Chain(1, length=length))


def make_catch(cells: int = 8, blind: int = 0) -> Single:
    """Return one `Catch`."""
    return Single(Catch(1, cells=cells, blind=blind))


_NATIVE = "assay.envs.native"
for _name, _module, _single, _class, _limit in (
    ("CartPoleNoVel-v1", __name__, "make_cartpole_no_vel", "CartPoleNoVel", 500),
    ("Recall-v0", __name__, "make_recall", "Recall", None),
    ("Chain-v0", __name__, "make_chain", "Chain", None),
    ("Catch-v0", __name__, "make_catch", "Catch", None),
    ("TwoStep-v0", f"{_NATIVE}.games", "make_two_step", "TwoStep", None),
    ("Climbing-v0", f"{_NATIVE}.games", "make_climbing", "Climbing", None),
    ("Penalty-v0", f"{_NATIVE}.games", "make_penalty", "Penalty", None),
    ("PrisonersDilemma-v0", f"{_NATIVE}.games", "make_prisoners_dilemma", "PrisonersDilemma", None),
    ("Maze-v0", f"{_NATIVE}.maze", "make_maze", "Maze", 100),
    ("FourRooms-v0", f"{_NATIVE}.four_rooms", "make_four_rooms", "FourRooms", 500),
    ("LongMaze-v0", f"{_NATIVE}.long_maze", "make_long_maze", "LongMaze", 200),
    # Named, not imported: reading a workload needs SciPy, which is slow to import.
    ("CompactionRate-v0", "assay.envs.systems.tuning", "make_compaction_rate", "CompactionRate",
     None),
):  # fmt: skip
    gym.register(
        f"assay/{_name}",
        entry_point=f"{_module}:{_single}",
        vector_entry_point=f"{_module}:{_class}",
        max_episode_steps=_limit,
    )
gym.register("assay/JobScheduling-v0", entry_point="assay.envs.systems.scheduling:JobScheduling")
# One copy is MPE2's own, which can be rendered; many are ours, and equal to it.
for _name, _class in (
    ("simple_spread_v3", "SimpleSpread"),
    ("simple_speaker_listener_v4", "SimpleSpeakerListener"),
):
    gym.register(
        _name,
        entry_point=partial(make_named, f"mpe2.{_name}"),
        vector_entry_point=f"assay.envs.native.particles:{_class}",
    )

for _game in OWN:
    gym.register(_game, **game_entry(_game))
for _game in ("tictactoe", "connect_four"):
    gym.register(_game, entry_point="assay.envs.boards.vector:Board", kwargs={"game": _game})
