"""Four rooms with a hallway between each two neighbours, and a goal that can be moved.

The grid of Sutton, Precup and Singh, "Between MDPs and semi-MDPs" (1999), in which options were
studied first. As in the experiment of Bacon et al. 2017 (arXiv:1609.05140), an episode begins in
any cell, reaching the goal pays 1 and nothing else pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from assay.core.errors import EnvError
from assay.envs.native.base import NativeVectorEnv

LAYOUT = """\
#############
#     #     #
#     #     #
#           #
#     #     #
#     #     #
## ####     #
#     ### ###
#     #     #
#     #     #
#           #
#     #     #
#############"""
SIDE = 13
WALLS = np.array([[mark == "#" for mark in line] for line in LAYOUT.splitlines()])
CELLS = np.flatnonzero(~WALLS)  # where each of the 104 free cells lies in the grid
HALLWAYS = {"north": 25, "west": 51, "east": 62, "south": 88}
ANY = -1.0  # a start that is drawn for every episode
PATIENCE = 500
_MOVES = np.array([-SIDE, 1, SIDE, -1])  # up, right, down, left
_GOLDEN, _FIRST, _SECOND = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class FourRooms(NativeVectorEnv):
    """Four rooms of about 5 by 5 cells; the goal is not seen.

    Actions: up, right, down, left; a wall stops the agent. With probability `noise` it goes one of
    the three other ways instead. Observation: the grid [13, 13], 1 where the agent is. Reaching the
    goal pays 1 and ends the episode.

    Parameters: `goal`, the number of a free cell, counted line by line from 0; `noise`; and
    `start`, the number of a cell (negative: any but the goal). All hold at once when they are set.

    Args:
        num_envs: How many copies.
        max_episode_steps: Where episodes are truncated.
        goal: The goal as a number, or a hallway: north, west, east or south.
        noise: How often the agent goes another way.
    """

    state_size = 3  # position in the grid, key of the episode's noise, steps
    start_low = 0.0
    start_high = 1.0
    start_draws = 2
    ends_at_goal = True
    physical: ClassVar = {"goal": float(HALLWAYS["east"]), "noise": 1 / 3, "start": ANY}

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = PATIENCE,
        goal: int | str = "east",
        noise: float = 1 / 3,
    ) -> None:
        super().__init__(
            num_envs, max_episode_steps, Box(0.0, 1.0, (SIDE, SIDE), np.float32), Discrete(4)
        )
        self._scalar = False  # arrays of length one are fast enough here
        if isinstance(goal, str) and goal not in HALLWAYS:
            raise EnvError(
                f"goal is {goal!r}; a cell from 0 to {len(CELLS) - 1} or one of the hallways "
                f"{', '.join(HALLWAYS)} was expected."
            )
        cell = HALLWAYS[goal] if isinstance(goal, str) else goal
        given = {"goal": np.array([cell]), "noise": np.array([noise])}
        _require(given)
        self._all_values()[:2] = [[cell], [noise]]

    def set_parameters(self, values: Mapping[str, np.ndarray], later: bool = False) -> None:
        """Set parameters, each [num_envs], now or (`later`) when a copy begins its next episode."""
        _require(values)
        super().set_parameters(values, later)

    def _use(self, **physical: np.ndarray) -> None:
        """Do nothing: steps read the parameters as they are."""

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        states = self._first(np.arange(self.num_envs), draws)
        return states, _seen(states[:, 0])

    def _first(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Return first states [m, 3] of some rows for draws [m, 2]."""
        goal, _, start = np.rint(self._all_values()[:, rows]).astype(np.int64)
        drawn = np.floor(draws[:, 0] * (len(CELLS) - 1)).astype(np.int64)
        drawn += drawn >= goal  # any cell but the goal
        position = CELLS[np.where(start < 0, drawn, start)]
        return np.stack([position, draws[:, 1], np.zeros(len(rows))], 1)

    def _restart(self, rows: np.ndarray, observations: np.ndarray) -> None:
        if self._planned is not None:
            self._adopt(rows)
        draws = np.array([self._rngs[row].uniform(size=2) for row in rows.tolist()])
        states = self._first(rows, draws)
        self._state[:, rows] = states.T
        observations[rows] = _seen(states[:, 0])
        self._deadlines[rows] = self._clock + self.max_episode_steps

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        actions = self._discrete(actions)
        goal, noise, _ = self._all_values()
        draw = _uniform(self._state[1], self._state[2])
        # One draw says whether the agent slips, and then which of the three other ways it goes.
        share = draw / np.where(noise > 0, noise, 1.0)
        other = (actions + 1 + np.floor(3 * share).astype(np.int64)) % 4
        taken = np.where(draw < noise, other, actions)
        position = self._state[0].astype(np.int64)
        ahead = position + _MOVES[taken]
        position = np.where(WALLS.reshape(-1)[ahead], position, ahead)
        self._state[0] = position
        self._state[2] += 1
        found = position == CELLS[np.rint(goal).astype(np.int64)]
        return _seen(position), found.astype(np.float64), found

    def drawing(self, row: int = 0) -> str:
        """Return the grid as text: # is a wall, A the agent, G the goal."""
        marks = np.where(WALLS, "#", ".").reshape(-1)
        marks[CELLS[int(self._all_values()[0, row])]] = "G"
        marks[int(self._state[0, row])] = "A"
        return "\n".join("".join(line) for line in marks.reshape(SIDE, SIDE))


def make_four_rooms(**settings: Any) -> Any:
    """Return one `FourRooms`; Gymnasium's TimeLimit truncates it."""
    from assay.envs.tasks import Single

    return Single(FourRooms(1, 2**62, **settings))


def _seen(position: np.ndarray) -> np.ndarray:
    """Return observations [m, 13, 13] of positions [m]."""
    grid = np.zeros((len(position), SIDE * SIDE), np.float32)
    grid[np.arange(len(position)), position.astype(np.int64)] = 1.0
    return grid.reshape(-1, SIDE, SIDE)


def _uniform(key: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each key and step: SplitMix64 (Steele et al. 2014).

    So the noise of an episode is drawn for all copies at once, and a saved state is three numbers.
    """
    x = key.view(np.uint64) + step.astype(np.uint64) * _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _require(values: Mapping[str, np.ndarray]) -> None:
    last = len(CELLS) - 1
    ranges = {"goal": (0.0, last), "noise": (0.0, 1.0), "start": (ANY, last)}
    for name, value in values.items():
        low, high = ranges.get(name, (-np.inf, np.inf))
        numbers = np.asarray(value)
        wrong = (numbers < low) | (numbers > high)
        if name != "noise":
            wrong |= np.rint(numbers) != numbers
        if wrong.any():
            kind = "a number" if name == "noise" else "the number of a cell"
            raise EnvError(
                f"{name} is {numbers[wrong][0]}; {kind} from {low:g} to {high:g} was expected."
            )
