"""Value rescaling against numbers by hand, the textbook forms in float64, and its own inverse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from assay.functional.rescaling import rescale, unrescale

EPS = [0.0, 1e-3, 0.5]
POINTS = [0.0, 1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 99.0, 1e4, 1e6]


def both_signs() -> torch.Tensor:
    return torch.tensor([*(-x for x in POINTS), *POINTS], dtype=torch.float32)


def test_by_hand() -> None:
    # sqrt(4) - 1 + 0.5 * 3 = 2.5; sqrt(9) - 1 + 0.5 * 8 = 6; sqrt(100) - 1 + 0.001 * 99 = 9.099
    found = rescale(torch.tensor([3.0, -3.0, 8.0, 0.0]), eps=0.5)
    assert found.tolist() == [2.5, -2.5, 6.0, 0.0]
    assert rescale(torch.tensor([99.0])).item() == pytest.approx(9.099)
    assert unrescale(torch.tensor([9.099])).item() == pytest.approx(99.0)
    assert unrescale(torch.tensor([2.5, -2.5, 6.0, 0.0]), eps=0.5).tolist() == [3, -3, 8, 0]


@pytest.mark.parametrize("eps", [1e-3, 0.5])
def test_is_the_textbook_form(eps: float) -> None:
    x = both_signs().numpy().astype(np.float64)
    h = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + eps * x
    inner = (np.sqrt(1 + 4 * eps * (np.abs(x) + 1 + eps)) - 1) / (2 * eps)
    np.testing.assert_allclose(rescale(both_signs(), eps), h, rtol=1e-6)
    exact = np.sign(x) * (inner**2 - 1)
    np.testing.assert_allclose(unrescale(both_signs(), eps), exact, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("eps", EPS)
def test_there_and_back(eps: float) -> None:
    """To float32's precision everywhere: the textbook inverse is off by 1e-4 near zero."""
    x = both_signs()
    torch.testing.assert_close(unrescale(rescale(x, eps), eps), x, rtol=2e-6, atol=0)
    torch.testing.assert_close(rescale(unrescale(x, eps), eps), x, rtol=2e-6, atol=0)


def test_slopes() -> None:
    x = torch.tensor([0.0, 3.0, -3.0], requires_grad=True)
    (slope,) = torch.autograd.grad(rescale(x, eps=0.25).sum(), x)
    # h' = 1 / (2 sqrt(|x| + 1)) + eps
    assert slope.tolist() == pytest.approx([0.75, 0.5, 0.5])
    y = rescale(x, eps=0.25)
    (back,) = torch.autograd.grad(unrescale(y, eps=0.25).sum(), y)
    assert (slope * back).tolist() == pytest.approx([1.0, 1.0, 1.0])
