"""A maze whose levels have numbers: find the goal among walls that differ from episode to episode.

In the manner of the mazes of Dennis et al. 2020 (arXiv:2012.02096): walls are put at random, the
agent sees only what is near it, and reaching the goal sooner pays more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.core.errors import EnvError
from assay.envs.native.base import NativeVectorEnv

Kind = Literal["walls", "corridors"]
ANY = -1.0  # a parameter that is drawn with the level
PATIENCE = 100  # steps over which the reward of the goal falls from 1 to 0.1
_MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])  # up, right, down, left
_VIEW = 2  # cells that are seen in each direction
_LEVELS = 2**31


def distances(walls: np.ndarray, goal: int) -> np.ndarray:
    """Return the steps from every cell of a grid to the goal, -1 where it cannot be reached."""
    size = len(walls)
    found = np.full(walls.shape, -1)
    found[divmod(goal, size)] = 0
    edge, steps = [divmod(goal, size)], 0
    while edge:
        steps += 1
        beyond = []
        for y, x in edge:
            for dy, dx in _MOVES.tolist():
                place = (y + dy, x + dx)
                inside = 0 <= place[0] < size and 0 <= place[1] < size
                if inside and not walls[place] and found[place] < 0:
                    found[place] = steps
                    beyond.append(place)
        edge = beyond
    return found


def _corridors(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return a maze with exactly one way between any two free cells, by depth-first search."""
    walls = np.ones((size, size), np.bool_)
    walls[0, 0] = False
    way = [(0, 0)]
    while way:
        y, x = way[-1]
        steps = [(y + 2 * dy, x + 2 * dx) for dy, dx in _MOVES.tolist()]
        new = [(a, b) for a, b in steps if 0 <= a < size and 0 <= b < size and walls[a, b]]
        if not new:
            way.pop()
            continue
        a, b = new[rng.integers(len(new))]
        walls[a, b] = walls[(y + a) // 2, (x + b) // 2] = False
        way.append((a, b))
    return walls


@lru_cache(65536)
def layout(
    level: int, count: int, reach: int, size: int, most: int, kind: Kind
) -> tuple[np.ndarray, int, int]:
    """Return the walls [size, size], the start and the goal of a level; it can be solved.

    Args:
        level: Its number, which everything is drawn from.
        count: How many walls there are; a negative number is up to `most`.
        reach: How many steps the goal is from the start at most; a negative number is any.
        size: Cells of a side.
        most: The largest number of walls.
        kind: Single walls, or corridors.
    """
    rng = np.random.default_rng(level)
    while True:
        if kind == "corridors":
            walls = _corridors(rng, size)
        else:
            walls = np.zeros(size * size, np.bool_)
            number = int(rng.integers(most + 1)) if count < 0 else min(count, most)
            walls[rng.choice(size * size, number, replace=False)] = True
            walls = walls.reshape(size, size)
        goal = int(rng.choice(np.flatnonzero(~walls)))
        away = distances(walls, goal).reshape(-1)
        starts = np.flatnonzero((away > 0) & (away <= (reach if reach > 0 else size * size)))
        if len(starts):
            return walls, int(rng.choice(starts)), goal


class Maze(NativeVectorEnv):
    """A square of cells with walls, a start and a goal.

    Actions: up, right, down, left; a wall or the edge stops the agent. Observation: the 5 x 5 cells
    around it (1 is a wall or outside), and how far down and right the goal is, in sides of the
    square. Reaching the goal pays 1 - 0.9 t / 100 after t steps, and ends the episode.

    Parameters: `level`, the number of the level (negative: any); `walls`, how many there are
    (negative: up to `max_walls`); `reach`, how many steps the goal is away at most (negative: any).
    """

    state_size = 5  # level, walls, reach, position, steps
    start_low = 0.0
    start_high = 1.0
    start_draws = 1
    physical: ClassVar = {"level": ANY, "walls": ANY, "reach": ANY}

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = PATIENCE,
        size: int = 9,
        max_walls: int = 30,
        kind: Kind = "walls",
    ) -> None:
        if not isinstance(size, int) or size < 3 or (kind == "corridors" and size % 2 == 0):
            raise EnvError(
                f"size is {size!r}; at least 3 was expected, and an odd number for corridors."
            )
        if not isinstance(max_walls, int) or not 0 <= max_walls <= size * size // 2:
            raise EnvError(f"max_walls is {max_walls!r}; 0 to {size * size // 2} were expected.")
        if kind not in ("walls", "corridors"):
            raise EnvError(f"kind is {kind!r}; walls or corridors was expected.")
        seen = (2 * _VIEW + 1) ** 2
        low = np.array([0.0] * seen + [-1.0, -1.0], np.float32)
        super().__init__(num_envs, max_episode_steps, Box(low, 1.0), Discrete(4))
        self._scalar = False  # arrays of length one are fast enough here
        self.size, self.max_walls, self.kind = size, max_walls, kind
        side = size + 2 * _VIEW
        self._walls = np.ones((num_envs, side, side), np.bool_)  # with what is outside
        self._goals = np.zeros(num_envs, np.int64)
        self._window = np.arange(2 * _VIEW + 1)

    def _use(self, **physical: np.ndarray) -> None:
        """Do nothing: a level is built where an episode begins."""

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(self.num_envs)
        states = self._first(rows, draws[:, 0])
        return states, self._seen(rows, states[:, 3].astype(np.int64))

    def _first(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Build levels in some rows and return their first states."""
        levels, walls, reach = np.rint(self._all_values()[:, rows])
        levels = np.where(levels < 0, np.floor(draws * _LEVELS), levels)
        states = np.stack([levels, walls, reach, *np.zeros((2, len(rows)))], 1)
        states[:, 3] = self._build(rows, states)
        return states

    def _build(self, rows: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Put up the walls of some rows and return where they begin."""
        starts = np.zeros(len(rows), np.int64)
        inner = slice(_VIEW, _VIEW + self.size)
        for place, (row, state) in enumerate(zip(rows.tolist(), states.tolist(), strict=True)):
            level, count, reach = (int(x) for x in state[:3])
            fixed = (self.size, self.max_walls, self.kind)
            self._walls[row, inner, inner], starts[place], self._goals[row] = layout(
                level, count, reach, *fixed
            )
        return starts

    def _enter(self, states: np.ndarray, elapsed: np.ndarray) -> None:
        super()._enter(states, elapsed)
        self._build(np.arange(self.num_envs), states)

    def _restart(self, rows: np.ndarray, observations: np.ndarray) -> None:
        if self._planned is not None:
            self._adopt(rows)
        draws = np.array([self._rngs[row].uniform() for row in rows.tolist()])
        states = self._first(rows, draws)
        self._state[:, rows] = states.T
        observations[rows] = self._seen(rows, states[:, 3].astype(np.int64))
        self._deadlines[rows] = self._clock + self.max_episode_steps

    def _seen(self, rows: np.ndarray, position: np.ndarray) -> np.ndarray:
        y, x = np.divmod(position, self.size)
        goal_y, goal_x = np.divmod(self._goals[rows], self.size)
        lines = y[:, None, None] + self._window[:, None]
        columns = x[:, None, None] + self._window
        near = self._walls[rows[:, None, None], lines, columns].reshape(len(rows), -1)
        offset = np.stack([goal_y - y, goal_x - x], 1) / self.size
        return np.concatenate([near, offset], 1).astype(np.float32)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moves = _MOVES[self._discrete(actions)]
        rows, position = np.arange(self.num_envs), self._state[3].astype(np.int64)
        y, x = np.divmod(position, self.size)
        free = ~self._walls[rows, y + moves[:, 0] + _VIEW, x + moves[:, 1] + _VIEW]
        position = np.where(free, position + moves @ [self.size, 1], position)
        self._state[3] = position
        self._state[4] += 1
        found = position == self._goals
        rewards = np.where(found, 1.0 - 0.9 * np.minimum(self._state[4] / PATIENCE, 1.0), 0.0)
        return self._seen(rows, position), rewards, found

    def drawing(self, row: int = 0) -> str:
        """Return a level as text: # is a wall, A the agent, G the goal."""
        inner = slice(_VIEW, _VIEW + self.size)
        cells = np.where(self._walls[row, inner, inner], "#", ".").reshape(-1)
        cells[self._goals[row]] = "G"
        cells[int(self._state[3, row])] = "A"
        return "\n".join("".join(line) for line in cells.reshape(self.size, self.size))


def make_maze(**settings: Any) -> Any:
    """Return one `Maze`; Gymnasium's TimeLimit truncates it."""
    from assay.envs.tasks import Single

    return Single(Maze(1, 2**62, **settings))
