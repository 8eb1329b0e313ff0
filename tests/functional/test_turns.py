"""Advantages of agents that do not act in every step."""

from __future__ import annotations

import numpy as np
import pytest

from assay.functional.returns import gae_numpy
from assay.functional.turns import turns_gae_numpy


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def test_it_is_gae_where_an_agent_always_acts() -> None:
    rng = np.random.default_rng(0)
    numbers = [rng.standard_normal((7, 3)).astype(np.float32) for _ in range(3)]
    ends = [rng.random((7, 3)) < 0.2 for _ in range(2)]
    ends[1] &= ~ends[0]
    # What follows a row is the next one, unless the episode was cut off there.
    numbers[2][:-1] = np.where(ends[1][:-1], numbers[2][:-1], numbers[1][1:])
    # One more column never acts, so that the other way of computing is taken.
    wide = [np.concatenate([x, x[:, :1]], 1) for x in (*numbers, *ends)]
    acts = np.ones((7, 4), bool)
    acts[:, 3] = False
    found = turns_gae_numpy(*wide, acts, 0.9, 0.8)
    expected = gae_numpy(*numbers, *ends, 0.9, 0.8)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[:, :3], two, rtol=1e-5, atol=1e-6)
        assert not one[:, 3].any()


def test_a_step_goes_from_turn_to_turn() -> None:
    # Acts in rows 0 and 2; what comes in row 1 belongs to row 0, what comes in row 3 to row 2.
    acts = np.array([[True], [False], [True], [False]])
    nothing = np.zeros((4, 1), bool)
    last = np.array([[False], [False], [False], [True]])
    reward, value = column(1, 2, 3, 4), column(10, 99, 20, 99)
    next_value = column(99, 20, 99, 50)
    # Terminated: delta_2 = 3 + 4 - 20 = -13; delta_0 = 1 + 2 + 0.5 * 20 - 10 = 3;
    # A_0 = 3 + 0.5 * 0.8 * (-13) = -2.2
    advantage, target = turns_gae_numpy(reward, value, next_value, last, nothing, acts, 0.5, 0.8)
    assert advantage[:, 0].tolist() == pytest.approx([-2.2, 0, -13, 0])
    assert target[:, 0].tolist() == pytest.approx([7.8, 0, 7, 0])
    # Truncated in the last row: V of what followed is bootstrapped: delta_2 = 7 + 0.5 * 50 - 20.
    advantage, _ = turns_gae_numpy(reward, value, next_value, nothing, last, acts, 0.5, 0.8)
    assert advantage[:, 0].tolist() == pytest.approx([3 + 0.4 * 12, 0, 12, 0])


def test_what_comes_after_death_does_not_count() -> None:
    # Dies with row 0; row 1 and 2 are the same episode, row 3 begins the next one.
    acts = np.array([[True], [False], [False], [True]])
    out = np.array([[True], [False], [True], [True]])
    nothing = np.zeros((4, 1), bool)
    advantage, _ = turns_gae_numpy(
        column(1, 100, 100, 5), column(3, 0, 0, 2), column(9, 9, 9, 9), out, nothing, acts, 0.9, 1.0
    )
    assert advantage[:, 0].tolist() == pytest.approx([-2, 0, 0, 3])
