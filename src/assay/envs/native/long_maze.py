"""A point in a maze of corridors that fold back: the goal is near as the crow flies, and far to go.

In the manner of the mazes of Nachum et al. 2018 (arXiv:1805.08296), without their physics.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box

from assay.core.errors import EnvError
from assay.envs.arguments import require_integer
from assay.envs.native.base import NativeVectorEnv

SPEED = 0.25  # cells that an action of 1 moves by
REACH = 0.6  # how near to the goal is near enough
_EDGE = 1e-3  # how near a wall can be come to
Reward = Literal["dense", "sparse"]


class LongMaze(NativeVectorEnv):
    """Corridors of `length` cells, joined at their ends by turns: a point has to go through all.

    Observation: x and y, in cells. Action: the move along both, of up to a quarter of a cell; walls
    stop it. The reward is the negative distance to the goal in cells over 10 (dense), through walls
    and so misleading, or 0 (sparse); reaching the goal pays 1 and ends the episode.
    """

    state_size = 2
    start_low = 0.25
    start_high = 0.75
    start_draws = 2
    ends_at_goal = True

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = 200,
        corridors: int = 2,
        length: int = 5,
        reward: Reward = "dense",
    ) -> None:
        require_integer("corridors", corridors, 1)
        require_integer("length", length, 2)
        if reward not in ("dense", "sparse"):
            raise EnvError(f"reward is {reward!r}; dense or sparse was expected.")
        rows = 2 * corridors - 1
        high = np.array([length, rows], np.float32)
        actions = Box(-1.0, 1.0, (2,), np.float32)
        super().__init__(num_envs, max_episode_steps, Box(np.zeros_like(high), high), actions)
        self._scalar = False  # arrays of length one are fast enough here
        self.dense = reward == "dense"
        self.walls = np.zeros((rows, length), np.bool_)
        self.walls[1::2] = True
        self.walls[1::4, -1] = self.walls[3::4, 0] = False  # turns right, left, right, ...
        self.goal = np.array([length - 0.5 if corridors % 2 else 0.5, rows - 0.5])

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return draws, draws.astype(np.float32)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        given = np.asarray(actions)
        if given.shape != self._action_shape or given.dtype.kind not in "fiu":
            self._refuse(given)
        broken = ~np.isfinite(given).all(1)
        if broken.any():
            self._refuse(given, int(np.flatnonzero(broken)[0]))
        moves = SPEED * np.clip(given.astype(np.float64), -1.0, 1.0)
        place = self._state  # [2, N]
        for axis in (0, 1):
            self._move(place, axis, moves[:, axis])
        away = np.linalg.norm(place - self.goal[:, None], axis=0)
        found = away < REACH
        rewards = np.where(found, 1.0, -0.1 * away if self.dense else 0.0)
        return place.T.astype(np.float32), rewards, found

    def _move(self, place: np.ndarray, axis: int, move: np.ndarray) -> None:
        """Move along one axis, up to the next wall or the edge."""
        limit = self.walls.shape[1 - axis]
        new = np.clip(place[axis] + move, _EDGE, limit - _EDGE)
        cells = np.floor(place).astype(np.int64)
        cells[axis] = np.floor(new)
        stop = np.where(move > 0, cells[axis] - _EDGE, cells[axis] + 1 + _EDGE)
        place[axis] = np.where(self.walls[cells[1], cells[0]], stop, new)


def make_long_maze(**settings: Any) -> Any:
    """Return one `LongMaze`; Gymnasium's TimeLimit truncates it."""
    from assay.envs.tasks import Single

    return Single(LongMaze(1, 2**62, **settings))
