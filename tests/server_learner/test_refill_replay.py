"""A replay that is filled again from a log, and rewards that come late."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from assay.core.types import Spaces, Transition
from assay.server.learner.replay_feed import RefillReplay

SPACES = Spaces(Box(-1000, 1000, (1,), np.float32), Discrete(2))


def make(capacity: int = 5, n_step: int = 1) -> RefillReplay:
    rng = np.random.default_rng(0)
    return RefillReplay(SPACES, capacity, 1, rng=rng, n_step=n_step, gamma=0.5)


def add(replay: RefillReplay, *numbers: int) -> None:
    for n in numbers:
        obs, off = np.array([[n]], np.float32), np.zeros(1, bool)
        reward = np.array([n], np.float32)
        replay.add(Transition(obs, np.array([0]), reward, obs + 1, off, off))


@pytest.mark.parametrize("n_step", [1, 3])
def test_draws_are_those_of_the_replay_that_was(n_step: int) -> None:
    whole, again = make(n_step=n_step), make(n_step=n_step)
    add(whole, *range(13))
    again.start_at(6)  # older than the five that count
    add(again, *range(6, 13))
    for _ in range(3):
        one, other = whole.sample(50), again.sample(50)
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.next_obs, other.next_obs)
        add(whole, 20)
        add(again, 20)


def test_while_it_fills_only_what_is_there_is_drawn() -> None:
    replay = make()
    replay.start_at(8)
    add(replay, 8, 9)  # slots 3 and 4; the first three are empty
    assert len(replay) == 2
    assert set(replay.sample(50).obs[:, 0].tolist()) == {8, 9}
    add(replay, 10)
    assert len(replay) == 3
    assert set(replay.sample(50).obs[:, 0].tolist()) == {8, 9, 10}
    add(replay, 11, 12, 13)
    assert len(replay) == 5
    assert set(replay.sample(90).obs[:, 0].tolist()) == {9, 10, 11, 12, 13}


def test_only_an_empty_one_starts_elsewhere() -> None:
    replay = make()
    add(replay, 0)
    with pytest.raises(ValueError, match="holds transitions"):
        replay.start_at(3)


def test_a_late_reward_is_part_of_every_return_over_its_step() -> None:
    replay = make(n_step=2)
    add(replay, 0, 1, 2)
    assert replay.add_reward(1, 100.0)
    found = {}
    batch = replay.sample(60)
    for obs, reward in zip(batch.obs[:, 0].tolist(), batch.reward.tolist(), strict=True):
        found[obs] = reward
    # 0 + 101 / 2, 101 + 2 / 2, 2 alone
    assert found == {0: 50.5, 1: 102, 2: 2}


def test_a_reward_of_what_is_gone_is_refused() -> None:
    replay = make()
    add(replay, *range(7))
    assert [replay.add_reward(serial, 1.0) for serial in (1, 2, 6, 7)] == [False, True, True, False]
