"""symlog, bins and two-hot regression against numbers by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from assay.functional.symlog import (
    symexp,
    symexp_bins,
    symlog,
    two_hot,
    two_hot_cross_entropy,
    two_hot_mean,
    uniform_bins,
)


def test_symlog_by_hand() -> None:
    x = torch.tensor([-(math.e - 1), 0.0, math.e**2 - 1])
    assert symlog(x).tolist() == pytest.approx([-1.0, 0.0, 2.0], abs=1e-6)
    assert symexp(torch.tensor([-1.0, 0.0, 2.0])).tolist() == pytest.approx(x.tolist(), rel=1e-6)


def test_there_and_back() -> None:
    """Also near 0, where log(1 + x) and exp(x) - 1 lose all digits of float32."""
    x = torch.tensor([-1e6, -3.0, -1e-6, 0.0, 1e-7, 0.1, 5.0, 1e6])
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("count", [101, 255, 4])
def test_uniform_bins(count: int) -> None:
    bins = uniform_bins(count, 10.0)
    np.testing.assert_allclose(bins, np.linspace(-10, 10, count), rtol=1e-6, atol=1e-6)
    assert torch.equal(bins, -bins.flip(0))


def test_symexp_bins() -> None:
    bins = symexp_bins(255)
    assert len(bins) == 255
    assert bins[127] == 0
    assert bins[-1] == pytest.approx(math.exp(20) - 1, rel=1e-6)
    assert torch.equal(bins, -bins.flip(0))
    # The step next to 0 is symexp(20 / 127).
    assert bins[128] == pytest.approx(math.expm1(20 / 127), rel=1e-6)


def test_two_hot_by_hand() -> None:
    bins = torch.tensor([-2.0, 0.0, 1.0, 5.0])
    x = torch.tensor([[-2.0, -0.5], [2.0, 1.0]])
    expected = [
        [[1.0, 0.0, 0.0, 0.0], [0.25, 0.75, 0.0, 0.0]],
        [[0.0, 0.0, 0.75, 0.25], [0.0, 0.0, 1.0, 0.0]],
    ]
    assert two_hot(x, bins).tolist() == expected


def test_what_lies_outside_counts_as_the_end() -> None:
    bins = torch.tensor([-1.0, 0.0, 1.0])
    assert two_hot(torch.tensor([-7.0, 7.0]), bins).tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("bins", [symexp_bins(255), uniform_bins(255, 20.0)])
def test_the_encoding_has_the_mean_of_the_number(bins: torch.Tensor) -> None:
    x = torch.tensor([-19.0, -3.3, -0.01, 0.0, 0.4, 1.0, 17.3])
    weights = two_hot(x, bins)
    torch.testing.assert_close(weights.sum(-1), torch.ones(7))
    assert ((weights > 1e-6).sum(-1) <= 2).all()
    torch.testing.assert_close((weights * bins).sum(-1), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(two_hot_mean(weights.log(), bins), x, rtol=1e-5, atol=1e-5)


def test_both_kinds_of_regression_give_the_number_back() -> None:
    x = torch.tensor([-500.0, -0.3, 2.0, 12345.0])
    dreamer, uniform = symexp_bins(255), uniform_bins(101, 10.0)
    torch.testing.assert_close(two_hot_mean(two_hot(x, dreamer).log(), dreamer), x)
    logits = two_hot(symlog(x), uniform).log()
    torch.testing.assert_close(symexp(two_hot_mean(logits, uniform)), x, rtol=1e-4, atol=1e-4)


def test_cross_entropy_by_hand() -> None:
    bins = torch.tensor([-1.0, 0.0, 1.0])
    p = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])
    loss = two_hot_cross_entropy(p.log(), torch.tensor([0.25, -1.0]), bins)
    by_hand = [-(0.75 * math.log(0.3) + 0.25 * math.log(0.5)), -math.log(0.1)]
    assert loss.tolist() == pytest.approx(by_hand)


def test_zero_logits_predict_exactly_zero() -> None:
    for bins in (symexp_bins(255), symexp_bins(254), uniform_bins(101, 10.0)):
        assert two_hot_mean(torch.zeros(2, len(bins)), bins).tolist() == [0.0, 0.0]


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"logits has shape \(2, 3\); expected \(2, 1, 3\)"):
        two_hot_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 1), uniform_bins(3, 1.0))


def test_traces(assert_traces: Any) -> None:
    bins = symexp_bins(9)
    assert_traces(
        lambda logits, x: (two_hot_cross_entropy(logits, x, bins), two_hot_mean(logits, bins)),
        (torch.zeros(3, 9), torch.zeros(3)),
        (torch.randn(3, 9), 4 * torch.randn(3)),
    )
