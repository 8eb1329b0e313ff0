"""Bradley-Terry by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from assay.functional.preferences import bradley_terry_loss, calibration


def test_the_loss_is_the_cross_entropy_of_the_difference_of_sums() -> None:
    left, right = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0])
    # sigmoid(1) = 0.731059 and the left one is chosen; sigmoid(-3) = 0.047426, and neither is
    first = -math.log(0.731059)
    second = -0.5 * math.log(0.047426) - 0.5 * math.log(0.952574)
    found = bradley_terry_loss(left, right, torch.tensor([1.0, 0.5]))
    assert float(found) == pytest.approx((first + second) / 2, abs=1e-5)


def test_answers_by_chance_bound_the_loss() -> None:
    # P' = 0.9 * 0.731059 + 0.05 = 0.707953
    one = bradley_terry_loss(torch.ones(1), torch.zeros(1), torch.ones(1), 0.1)
    assert float(one) == pytest.approx(-math.log(0.707953), abs=1e-5)
    wrong = bradley_terry_loss(torch.full((1,), 1000.0), torch.zeros(1), torch.zeros(1), 0.1)
    assert float(wrong) == pytest.approx(-math.log(0.05), abs=1e-5)


def test_the_gradient_is_that_of_the_sums() -> None:
    left = torch.tensor([0.0], requires_grad=True)
    bradley_terry_loss(left, torch.zeros(1), torch.ones(1)).backward()
    assert left.grad is not None and float(left.grad) == pytest.approx(-0.5)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="three"):
        bradley_terry_loss(torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(2))


def test_calibration_compares_confidence_with_the_share_that_is_right() -> None:
    left = np.array([0.95, 0.95, 0.05, 0.05, 0.55, 0.45])
    answer = np.array([True, False, False, False, True, True])
    found = calibration(left, answer)
    # Confidence 0.95: 3 of 4 are right. Confidence 0.55: 1 of 2.
    assert found.rows == [(pytest.approx(0.55), 0.5, 2), (pytest.approx(0.95), 0.75, 4)]
    assert found.error == pytest.approx((2 * 0.05 + 4 * 0.2) / 6)
