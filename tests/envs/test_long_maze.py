"""The long maze: its walls, its rewards, and that one copy is like many."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.make import make_vector
from assay.envs.native.long_maze import LongMaze


def at(x: float, y: float, **settings: Any) -> LongMaze:
    """Return a maze with its point at a place."""
    maze = LongMaze(1, **settings)
    maze.reset(seed=0)
    state = maze.get_state()
    maze.set_state(state | {"physics": np.array([[x, y]])})
    return maze


def go(maze: LongMaze, *action: float) -> tuple[list[float], float, bool]:
    obs, reward, terminated, _, _ = maze.step(np.array([action], np.float32))
    return obs[0].tolist(), reward.item(), bool(terminated.item())


def test_corridors_are_joined_by_turns() -> None:
    rows = ["".join(".#"[int(cell)] for cell in row) for row in LongMaze(1, 200, 3, 4).walls]
    assert rows == ["....", "###.", "....", ".###", "...."]
    assert LongMaze(1, 200, 3, 4).goal.tolist() == [3.5, 4.5]
    assert LongMaze(1, 200, 2, 4).goal.tolist() == [0.5, 2.5]


def test_walls_and_edges_stop() -> None:
    maze = at(1.0, 0.9)
    assert go(maze, 1.0, 1.0)[0] == pytest.approx([1.25, 0.999])  # along the wall
    assert go(at(4.5, 0.9), 0.0, 1.0)[0] == pytest.approx([4.5, 1.15])  # through the turn
    assert go(at(4.1, 1.5), -1.0, 0.0)[0] == pytest.approx([4.001, 1.5])
    assert go(at(0.1, 0.5), -9.0, 0.0)[0] == pytest.approx([0.001, 0.5])


def test_rewards_by_hand() -> None:
    # From (3.5, 0.5) to the goal at (0.5, 2.5): sqrt(9 + 4) = 3.606
    assert go(at(3.5, 0.5), 0.0, 0.0)[1:] == (pytest.approx(-0.3605551), False)
    assert go(at(3.5, 0.5, reward="sparse"), 0.0, 0.0)[1:] == (0.0, False)
    for reward in ("dense", "sparse"):
        _, paid, over = go(at(1.2, 2.5, reward=reward), -1.0, 0.0)
        assert (paid, over) == (1.0, True)


def test_one_copy_is_like_many() -> None:
    single, many = gym.make("assay/LongMaze-v0"), make_vector("assay/LongMaze-v0", 2)
    alone, _ = single.reset(seed=5)
    np.testing.assert_array_equal(many.reset(5)[0], alone)
    for action in np.random.default_rng(0).uniform(-1, 1, (30, 2)).astype(np.float32):
        alone, reward, *_ = single.step(action)
        obs, rewards, *_ = many.step(np.stack([action, -action]))
        np.testing.assert_array_equal(obs[0], alone)
        assert rewards[0] == reward


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"length": 1}, "length is 1"), ({"corridors": 0}, "corridors is 0"),
     ({"reward": "some"}, "dense or sparse was expected")],
)  # fmt: skip
def test_refuses_what_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        LongMaze(1, **settings)


def test_refuses_bad_actions() -> None:
    maze = at(0.5, 0.5)
    for bad in (np.zeros((1, 3), np.float32), np.full((1, 2), np.nan, np.float32)):
        with pytest.raises(EnvError):
            maze.step(bad)
