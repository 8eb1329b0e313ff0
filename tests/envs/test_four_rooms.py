"""Four rooms: walls, noise, a goal that moves, and saved states."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.make import make_vector
from assay.envs.native.four_rooms import CELLS, HALLWAYS, SIDE, WALLS, FourRooms
from assay.envs.parameters import parameters, set_parameters

UP, RIGHT, DOWN, LEFT = range(4)


def quiet(start: int, goal: Any = "east", copies: int = 1) -> FourRooms:
    """Return rooms without noise in which all copies begin in one cell."""
    rooms = FourRooms(copies, goal=goal, noise=0.0)
    rooms.set_parameters({"start": np.full(copies, start)})
    rooms.reset(seed=0)
    return rooms


def place(obs: np.ndarray) -> tuple[int, int]:
    assert obs.sum() == 1
    return divmod(int(obs.argmax()), SIDE)


def test_the_grid_is_the_one_of_the_paper() -> None:
    assert len(CELLS) == 104
    places = {name: divmod(int(CELLS[cell]), SIDE) for name, cell in HALLWAYS.items()}
    assert places == {"north": (3, 6), "west": (6, 2), "east": (7, 9), "south": (10, 6)}
    # A hallway joins two rooms: it has walls on two opposite sides.
    for y, x in places.values():
        sides = [WALLS[y - 1, x], WALLS[y, x + 1], WALLS[y + 1, x], WALLS[y, x - 1]]
        assert sides in ([True, False, True, False], [False, True, False, True])


def test_walls_stop_and_the_goal_pays() -> None:
    rooms = quiet(0)  # the upper left corner
    for action, expected in ((UP, (1, 1)), (LEFT, (1, 1)), (RIGHT, (1, 2)), (DOWN, (2, 2))):
        obs, reward, terminated, *_ = rooms.step(np.array([action]))
        assert place(obs[0]) == expected and reward[0] == 0 and not terminated[0]
    rooms = quiet(int(np.flatnonzero(CELLS == 6 * SIDE + 9)[0]))  # above the eastern hallway
    _, reward, terminated, truncated, info = rooms.step(np.array([DOWN]))
    assert (reward[0], terminated[0], truncated[0]) == (1, True, False)
    assert place(info["final_obs"][0]) == (7, 9)


def test_noise_goes_each_other_way_as_often() -> None:
    copies = 9000
    rooms = FourRooms(copies)
    centre = int(np.flatnonzero(CELLS == 3 * SIDE + 3)[0])
    rooms.set_parameters({"start": np.full(copies, centre)})
    rooms.reset(seed=1)
    obs, *_ = rooms.step(np.full(copies, RIGHT))
    shares = obs.mean(0)[[2, 3, 4, 3], [3, 4, 3, 2]]  # up, right, down, left
    # A standard deviation is sqrt(2/9 / 9000) = 0.005 at most.
    np.testing.assert_allclose(shares, [1 / 9, 2 / 3, 1 / 9, 1 / 9], atol=0.02)


def test_episodes_begin_anywhere_but_at_the_goal() -> None:
    rooms = FourRooms(3000, goal=50)
    obs, _ = rooms.reset(seed=3)
    found = np.unique(obs.reshape(3000, -1).argmax(1))
    assert set(found) == set(CELLS) - {CELLS[50]}


def test_the_goal_moves_at_once() -> None:
    with make_vector("assay/FourRooms-v0", 2, env_kwargs={"goal": "east", "noise": 0.0}) as envs:
        assert parameters(envs, ["goal"])["goal"].tolist() == [62, 62]
        set_parameters(envs, {"goal": HALLWAYS["south"], "start": HALLWAYS["south"] - 1})
        envs.reset(seed=0)
        _, reward, terminated, *_ = envs.step(np.array([RIGHT, UP]))
        assert reward.tolist() == [1, 0] and terminated.tolist() == [True, False]


def test_a_saved_state_goes_on_with_the_same_noise() -> None:
    one, two = FourRooms(4), FourRooms(4)
    one.reset(seed=5)
    actions = np.random.default_rng(0).integers(4, size=(300, 4))
    for action in actions[:20]:
        one.step(action)
    two.reset(seed=9)
    two.set_state(one.get_state())
    for action in actions[20:]:
        expected, found = one.step(action), two.step(action)
        assert all(np.array_equal(a, b) for a, b in zip(expected[:4], found[:4], strict=True))


def test_a_copy_does_not_depend_on_the_others() -> None:
    many, single = FourRooms(3), gym.make("assay.envs.tasks:assay/FourRooms-v0")
    first, _ = many.reset(seed=7)
    alone, _ = single.reset(seed=9)
    assert np.array_equal(first[2], alone)
    for action in np.random.default_rng(1).integers(4, size=60):
        obs, reward, terminated, *_ = many.step(np.full(3, action))
        seen, paid, over, *_ = single.step(action)
        assert paid == reward[2] and over == terminated[2]
        if over:
            break
        assert np.array_equal(seen, obs[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goal": "centre"}, "goal is 'centre'; a cell from 0 to 103 or one of the hallways"),
        ({"goal": 104}, "goal is 104; the number of a cell from 0 to 103"),
        ({"noise": 1.5}, "noise is 1.5; a number from 0 to 1"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        FourRooms(2, **settings)
    rooms = FourRooms(1)
    with pytest.raises(EnvError, match=r"goal is 3\.5"):
        rooms.set_parameters({"goal": np.array([3.5])})
    assert rooms.parameters()["goal"].tolist() == [62]
