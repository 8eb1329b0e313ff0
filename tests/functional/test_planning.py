import numpy as np
import pytest
import torch

from assay.functional.percentiles import percentile_range
from assay.functional.planning import path_integral


def by_numpy(plans, values, elites, temperature, low, high):
    """Return mean, std, elites and weights of one state, one at a time and in float64."""
    order = sorted(range(len(values)), key=lambda i: -values[i])[:elites]
    best = values[order[0]]
    weight = np.array([np.exp(temperature * (values[i] - best)) for i in order])
    weight /= weight.sum()
    mean = sum(w * plans[i] for w, i in zip(weight, order, strict=True))
    variance = sum(w * (plans[i] - mean) ** 2 for w, i in zip(weight, order, strict=True))
    return mean, np.clip(np.sqrt(variance), low, high), plans[order], weight


@pytest.mark.parametrize("temperature", [0.0, 0.5, 3.0])
def test_each_state_follows_its_own_elites(temperature):
    rng = np.random.default_rng(1)
    plans, values = rng.normal(size=(3, 7, 2, 4)), rng.normal(size=(3, 7)) * 2
    found = path_integral(
        torch.tensor(plans), torch.tensor(values), elites=3, temperature=temperature,
        min_std=0.3, max_std=0.9,
    )  # fmt: skip
    for n in range(3):
        expected = by_numpy(plans[n], values[n], 3, temperature, 0.3, 0.9)
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[n].numpy(), two, rtol=1e-12)


def test_two_elites_by_hand():
    # Values 0, log 3 and -9: at temperature 1, of the best two the weights are 3/4 and 1/4.
    plans = torch.tensor([0.0, 4.0, 100.0]).view(1, 3, 1, 1)
    values = torch.tensor([[0.0, np.log(3.0), -9.0]], dtype=torch.float32)
    fit = path_integral(plans, values, elites=2, temperature=1.0, min_std=0.0, max_std=9.0)
    assert fit.score.tolist() == [pytest.approx([0.75, 0.25])]
    assert fit.elites.flatten().tolist() == [4.0, 0.0]
    assert fit.mean.item() == pytest.approx(3.0)
    assert fit.std.item() == pytest.approx(np.sqrt(0.75 * 1 + 0.25 * 9))


def test_values_of_another_rank_are_refused():
    with pytest.raises(ValueError, match="values has shape"):
        path_integral(
            torch.zeros(1, 3, 1, 1), torch.zeros(1, 3, 1), elites=2, temperature=1.0,
            min_std=0.0, max_std=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 7, 256])
def test_percentiles_are_those_of_numpy(count):
    x = np.random.default_rng(count).normal(size=count)
    low, high = np.percentile(x, [5, 95])
    assert percentile_range(torch.tensor(x)).item() == pytest.approx(high - low, abs=1e-12)
