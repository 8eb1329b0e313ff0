"""A maze whose levels have numbers: find the goal among walls that differ from episode to episode.

In the manner of the mazes of Dennis et al. 2020 (arXiv:2012.02096): walls are put at random, the
agent sees only what is near it, and reaching the goal sooner pays more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.core.errors import EnvError, nearest
from assay.envs.native.base import NativeVectorEnv
from assay.envs.native.named_mazes import DRAWINGS, drawn
from assay.functional.mazes import (
    MOVES,
    distances,
    from_words,
    level_names,
    picture,
    to_words,
    word_count,
)

Kind = Literal["walls", "corridors"]
ANY = -1.0  # a parameter that is drawn with the level
PATIENCE = 100  # steps over which the reward of the goal falls from 1 to 0.1
_VIEW = 2  # cells that are seen in each direction
_LEVELS = 2**31
_NUMBERED = ("level", "walls", "reach")
_TRAIL_BITS = 2  # visits of a cell are counted to 3


def _corridors(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return a maze with exactly one way between any two free cells, by depth-first search."""
    walls = np.ones((size, size), np.bool_)
    walls[0, 0] = False
    way = [(0, 0)]
    while way:
        y, x = way[-1]
        steps = [(y + 2 * dy, x + 2 * dx) for dy, dx in MOVES.tolist()]
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
    square; with `trail` also how often it was in each of the 25 cells, in thirds up to 1. Reaching
    the goal pays 1 - 0.9 t / 100 after t steps (0.1 after more than 100), and ends the episode.

    Parameters: `level`, the number of the level (negative: any); `walls`, how many there are
    (negative: up to `max_walls`); `reach`, how many steps the goal is away at most (negative: any).
    A level can be given cell by cell as well (`assay.functional.mazes.Levels.parameters`): `ends_9`
    (of size 9) is start * size^2 + goal (negative: a level by its number), and `cells_0` and so on
    hold the walls as bits, 48 cells each. Such a level need not be solvable. `maze` names one of
    `assay.envs.native.named_mazes`, with its own size, in which all episodes are.
    """

    start_low = 0.0
    start_high = 1.0
    start_draws = 1
    ends_at_goal = True
    named_levels: ClassVar = {name: {"maze": name} for name in DRAWINGS}

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = PATIENCE,
        size: int = 9,
        max_walls: int = 30,
        kind: Kind = "walls",
        trail: bool = False,
        maze: str | None = None,
    ) -> None:
        if not isinstance(size, int) or size < 3 or (kind == "corridors" and size % 2 == 0):
            raise EnvError(
                f"size is {size!r}; at least 3 was expected, and an odd number for corridors."
            )
        if not isinstance(max_walls, int) or not 0 <= max_walls <= size * size // 2:
            raise EnvError(f"max_walls is {max_walls!r}; 0 to {size * size // 2} were expected.")
        if kind not in ("walls", "corridors"):
            raise EnvError(f"kind is {kind!r}; walls or corridors was expected.")
        if maze is not None and maze not in DRAWINGS:
            raise EnvError(f"There is no maze '{maze}'.", nearest(str(maze), DRAWINGS))
        self.size = size if maze is None else len(drawn(maze)[0])
        self.max_walls, self.kind, self.maze, self.trail = max_walls, kind, maze, bool(trail)
        cells = self.size**2
        # What a level is made from, in this order; then position, steps and the trail as numbers.
        names = (*_NUMBERED, *level_names(self.size))
        self.physical = dict.fromkeys(names, ANY)  # type: ignore[misc]  # as many as cells need
        self._place = len(self.physical)
        self._words = word_count(cells, _TRAIL_BITS) if trail else 0
        self.state_size = self._place + 2 + self._words
        seen = (2 * _VIEW + 1) ** 2
        low = [0.0] * seen + [-1.0, -1.0] + [0.0] * (seen if trail else 0)
        space = Box(np.array(low, np.float32), 1.0)
        super().__init__(num_envs, max_episode_steps, space, Discrete(4))
        self._scalar = False  # arrays of length one are fast enough here
        side = self.size + 2 * _VIEW
        self._inner = slice(_VIEW, _VIEW + self.size)
        self._walls = np.ones((num_envs, side, side), np.bool_)  # with what is outside
        self._visits = np.zeros((num_envs, side, side), np.float32)
        self._goals = np.zeros(num_envs, np.int64)
        self._window = np.arange(2 * _VIEW + 1)

    def _use(self, **physical: np.ndarray) -> None:
        """Do nothing: a level is built where an episode begins."""

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(self.num_envs)
        states = self._first(rows, draws[:, 0])
        if self.trail:
            states[:, self._place + 2 :] = self._trail_words()
        return states, self._seen(rows, states[:, self._place].astype(np.int64))

    def _first(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Build levels in some rows and return their first states."""
        states = np.zeros((len(rows), self.state_size))
        states[:, : self._place] = np.rint(self._all_values()[:, rows]).T
        states[:, 0] = np.where(states[:, 0] < 0, np.floor(draws * _LEVELS), states[:, 0])
        states[:, self._place] = starts = self._build(rows, states)
        self._visits[rows] = 0.0
        self._visit(rows, starts)
        return states

    def _build(self, rows: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Put up the walls of some rows and return where they begin."""
        starts = np.zeros(len(rows), np.int64)
        inner = self._inner
        for place, (row, state) in enumerate(zip(rows.tolist(), states, strict=True)):
            self._walls[row, inner, inner], starts[place], self._goals[row] = self._level(state)
        return starts

    def _level(self, state: np.ndarray) -> tuple[np.ndarray, int, int]:
        """Return walls, start and goal of the level that a state is in."""
        if self.maze is not None:
            return drawn(self.maze)
        level, count, reach, ends = (int(x) for x in state[:4])
        if ends < 0:
            return layout(level, count, reach, self.size, self.max_walls, self.kind)
        cells = self.size**2
        words = state[None, len(_NUMBERED) + 1 : self._place]
        return from_words(words, cells).reshape(self.size, self.size) > 0, *divmod(ends, cells)

    def _visit(self, rows: np.ndarray, position: np.ndarray) -> None:
        if self.trail:
            y, x = np.divmod(position, self.size)
            self._visits[rows, y + _VIEW, x + _VIEW] += 1.0

    def _trail_words(self) -> np.ndarray:
        visits = self._visits[:, self._inner, self._inner].reshape(self.num_envs, -1)
        counts = np.minimum(visits, 2**_TRAIL_BITS - 1).astype(np.int64)
        return to_words(counts, _TRAIL_BITS)

    def _physics(self) -> np.ndarray:
        states = super()._physics()
        if self.trail:
            states[:, self._place + 2 :] = self._trail_words()
        return states

    def _enter(self, states: np.ndarray, elapsed: np.ndarray) -> None:
        super()._enter(states, elapsed)
        self._build(np.arange(self.num_envs), states)
        if self.trail:
            words = states[:, self._place + 2 :]
            counts = from_words(words, self.size**2, _TRAIL_BITS)
            shape = (self.num_envs, self.size, self.size)
            self._visits[:, self._inner, self._inner] = counts.reshape(shape)

    def _restart(self, rows: np.ndarray, observations: np.ndarray) -> None:
        if self._planned is not None:
            self._adopt(rows)
        draws = np.array([self._rngs[row].uniform() for row in rows.tolist()])
        states = self._first(rows, draws)
        self._state[:, rows] = states.T
        observations[rows] = self._seen(rows, states[:, self._place].astype(np.int64))
        self._deadlines[rows] = self._clock + self.max_episode_steps

    def _seen(self, rows: np.ndarray, position: np.ndarray) -> np.ndarray:
        y, x = np.divmod(position, self.size)
        goal_y, goal_x = np.divmod(self._goals[rows], self.size)
        lines = y[:, None, None] + self._window[:, None]
        columns = x[:, None, None] + self._window
        place = (rows[:, None, None], lines, columns)
        near = self._walls[place].reshape(len(rows), -1)
        offset = np.stack([goal_y - y, goal_x - x], 1) / self.size
        parts = [near, offset]
        if self.trail:
            most = 2.0**_TRAIL_BITS - 1.0
            parts.append(np.minimum(self._visits[place] / most, 1.0).reshape(len(rows), -1))
        return np.concatenate(parts, 1).astype(np.float32)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moves = MOVES[self._discrete(actions)]
        rows, position = np.arange(self.num_envs), self._state[self._place].astype(np.int64)
        y, x = np.divmod(position, self.size)
        free = ~self._walls[rows, y + moves[:, 0] + _VIEW, x + moves[:, 1] + _VIEW]
        position = np.where(free, position + moves @ [self.size, 1], position)
        steps = self._state[self._place + 1]
        self._state[self._place] = position
        steps += 1
        self._visit(rows, position)
        found = position == self._goals
        rewards = np.where(found, 1.0 - 0.9 * np.minimum(steps / PATIENCE, 1.0), 0.0)
        return self._seen(rows, position), rewards, found

    def drawing(self, row: int = 0) -> str:
        """Return a level as text: # is a wall, A the agent, G the goal."""
        walls = self._walls[row, self._inner, self._inner]
        return picture(walls, int(self._state[self._place, row]), int(self._goals[row]))


def make_maze(**settings: Any) -> Any:
    """Return one `Maze`; Gymnasium's TimeLimit truncates it."""
    from assay.envs.tasks import Single

    return Single(Maze(1, 2**62, **settings))
