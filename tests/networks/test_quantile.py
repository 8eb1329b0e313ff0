"""Quantile networks: the embedding, the fractions, and what acting computes from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from assay.functional.distributional import quantile_midpoints
from assay.networks.noisy import resample_noise, set_noise
from assay.networks.quantile import (
    ActionValues,
    CosineEmbedding,
    FractionProposal,
    QuantileNetwork,
    draw_levels,
    fraction_gradient,
)
from assay.policies.forward import Forward
from assay.policies.from_torch import describe
from assay.policies.numpy_network import NumpyNetwork

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
CPU = torch.device("cpu")


class TestEmbedding:
    def test_cosines_begin_with_the_constant(self) -> None:
        embedding = CosineEmbedding(4, cosines=4)
        with torch.no_grad():
            embedding.net[0].weight.copy_(torch.eye(4))
            embedding.net[0].bias.zero_()
        # cos(0), cos(pi / 4), cos(pi / 2), cos(3 pi / 4) -> 0 by the ReLU
        expected = [1.0, math.sqrt(0.5), 0.0, 0.0]
        found = embedding(torch.tensor([[0.25]]))
        assert found.shape == (1, 1, 4)
        assert found[0, 0].tolist() == pytest.approx(expected, abs=1e-6)

    def test_there_are_64(self) -> None:
        assert CosineEmbedding(5).frequency.tolist() == pytest.approx(
            [math.pi * i for i in range(64)]
        )

    def test_begins_at_about_one(self) -> None:
        torch.manual_seed(0)
        phi = CosineEmbedding(256)(torch.rand(8, 16))
        assert phi.mean().item() == pytest.approx(1.0, abs=0.1)


class TestQuantileNetwork:
    def test_value_by_hand(self) -> None:
        network = QuantileNetwork(spaces.Discrete(2), 2, hidden=(), cosines=2)
        with torch.no_grad():
            network.embedding.net[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
            network.embedding.net[0].bias.copy_(torch.tensor([0.0, 1.0]))
            network.head[0].weight.copy_(torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
            network.head[0].bias.copy_(torch.tensor([0.5, -0.5]))
        # phi = (1, 1 + 2 cos(pi tau)) = (1, 3), (1, 1) at tau = 0, 1/2; features are one-hot
        values = network(torch.tensor([0, 1]), torch.tensor([[0.0, 0.5], [0.0, 0.5]]))
        expected = [[[3.5, 3.5], [4.5, 4.5]], [[12.5, 4.5], [17.5, 5.5]]]
        torch.testing.assert_close(values, torch.tensor(expected))
        mass = torch.tensor([[0.25, 0.75]])
        found = network.expectation(torch.eye(2), torch.tensor([[0.0, 0.5]]), mass)
        # 0.25 * 12.5 + 0.75 * 4.5 = 6.5, 0.25 * 17.5 + 0.75 * 5.5 = 8.5
        torch.testing.assert_close(found, torch.tensor([[3.5, 4.5], [6.5, 8.5]]))

    @pytest.mark.parametrize("dueling", [False, True])
    @pytest.mark.parametrize("head_hidden", [(), (6,)])
    def test_expectation_is_the_weighted_sum(
        self, dueling: bool, head_hidden: tuple[int, ...]
    ) -> None:
        torch.manual_seed(0)
        network = QuantileNetwork(
            VECTOR, 3, hidden=(8,), head_hidden=head_hidden, dueling=dueling, noisy=True
        )
        resample_noise(network, np.random.default_rng(0))
        obs, tau = torch.randn(5, 3), torch.rand(5, 7)
        mass = torch.softmax(torch.randn(5, 7), 1)
        expected = (mass.unsqueeze(1) * network(obs, tau)).sum(2)
        found = network.expectation(network.encoder(obs), tau, mass)
        torch.testing.assert_close(found, expected)


class TestFractions:
    def test_by_hand(self) -> None:
        proposal = FractionProposal(1, 3)
        with torch.no_grad():
            proposal.linear.weight.copy_(torch.tensor([[2.0], [1.0], [1.0]]) * math.log(2))
            proposal.linear.bias.zero_()
        tau, middle, mass, entropy = proposal(torch.tensor([[1.0], [0.0]]))
        # softmax of log (4, 2, 2) is (1/2, 1/4, 1/4); of (0, 0, 0) it is thirds
        assert tau[0].tolist() == pytest.approx([0.0, 0.5, 0.75, 1.0])
        assert middle[0].tolist() == pytest.approx([0.25, 0.625, 0.875])
        assert mass[0].tolist() == pytest.approx([0.5, 0.25, 0.25])
        assert entropy.tolist() == pytest.approx([1.5 * math.log(2), math.log(3)])
        assert tau[1].tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
        assert not middle.requires_grad and not mass.requires_grad
        assert tau.requires_grad and entropy.requires_grad

    def test_begin_close_to_equal(self) -> None:
        torch.manual_seed(0)
        mass = FractionProposal(64, 32)(torch.randn(16, 64)).mass
        assert (mass - 1 / 32).abs().max() < 0.2 / 32


class TestLevels:
    def test_one_from_each_part(self) -> None:
        levels = draw_levels(np.random.default_rng(0), 5000, 4)
        assert levels.dtype == np.float32 and levels.shape == (5000, 4)
        low, high = levels.min(0), levels.max(0)
        np.testing.assert_allclose(low, [0.0, 0.25, 0.5, 0.75], atol=1e-3)
        np.testing.assert_allclose(high, [0.25, 0.5, 0.75, 1.0], atol=1e-3)
        np.testing.assert_allclose(levels.mean(0), quantile_midpoints(4), atol=5e-3)
        assert abs(np.corrcoef(levels.T)[0, 1:]).max() < 0.06  # drawn apart from each other


def wasserstein(quantile: Callable[[Tensor], Tensor], tau: Tensor, points: int = 20_000) -> Tensor:
    """Return W1 between a quantile function and its steps at the midpoints, by the midpoint rule.

    Every interval is integrated by itself, so that no point jumps over a border as tau moves.
    """
    share = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    total = torch.zeros((), dtype=torch.float64)
    for low, high in itertools.pairwise(tau):
        inside = low + (high - low) * share
        total += (quantile(inside) - quantile((low + high) / 2)).abs().mean() * (high - low)
    return total


def at(quantile: Callable[[Tensor], Tensor], tau: Tensor) -> Tensor:
    middle = (tau[1:] + tau[:-1]) / 2
    return fraction_gradient(quantile(tau[1:-1])[None], quantile(middle)[None])[0]


QUANTILES: dict[str, Callable[[Tensor], Tensor]] = {
    "convex": lambda x: 3 * x**3 + x,
    "tail": lambda x: torch.log(x + 1e-2),
    "normal": lambda x: torch.special.ndtri(0.01 + 0.98 * x),
}


class TestFractionGradient:
    @pytest.mark.parametrize("name", QUANTILES)
    def test_is_the_derivative_of_the_wasserstein_distance(self, name: str) -> None:
        quantile = QUANTILES[name]
        tau = torch.tensor([0.0, 0.1, 0.15, 0.5, 0.8, 1.0], dtype=torch.float64)
        found = at(quantile, tau)
        step = 1e-4
        for i in range(1, 5):
            nudge = torch.zeros(6, dtype=torch.float64)
            nudge[i] = step
            up, down = wasserstein(quantile, tau + nudge), wasserstein(quantile, tau - nudge)
            slope = ((up - down) / (2 * step)).item()
            assert found[i - 1].item() == pytest.approx(slope, rel=2e-3, abs=2e-4)

    def test_is_the_paper_s_where_values_do_not_decrease(self) -> None:
        rng = np.random.default_rng(0)
        values = torch.from_numpy(np.sort(rng.normal(size=(20, 11)), axis=1))
        fractions, middle = values[:, 1::2], values[:, ::2]
        # 2 Z(tau_i) - Z(tauhat_i) - Z(tauhat_{i-1})
        expected = 2 * fractions - middle[:, 1:] - middle[:, :-1]
        torch.testing.assert_close(fraction_gradient(fractions, middle), expected)

    def test_a_decreasing_function_is_no_other_than_its_mirror(self) -> None:
        # W1 does not change when a function is turned upside down; the paper's formula would.
        tau = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64)
        up = at(lambda x: x**2, tau)
        assert up.abs().min() > 0.01
        torch.testing.assert_close(at(lambda x: -(x**2), tau), up)

    def test_descending_it_shortens_the_distance(self) -> None:
        torch.manual_seed(0)
        quantile = QUANTILES["tail"]
        proposal = FractionProposal(1, 8).double()
        one = torch.ones(1, 1, dtype=torch.float64)
        before = wasserstein(quantile, proposal(one).tau[0].detach(), 1000)
        for _ in range(300):
            fractions = proposal(one)
            inner = fractions.tau[:, 1:-1]
            gradient = fraction_gradient(quantile(inner), quantile(fractions.midpoints))
            parameters = list(proposal.parameters())
            slopes = torch.autograd.grad((gradient * inner).sum(), parameters)
            with torch.no_grad():
                for parameter, slope in zip(parameters, slopes, strict=True):
                    parameter -= slope
        after = wasserstein(quantile, proposal(one).tau[0].detach(), 1000)
        # Equal fractions are not the best, and where the descent ends no border wants to move.
        assert after < 0.85 * before
        assert gradient.abs().max() < 1e-3
        # The function is steep on the left: that is where the fractions go.
        mass = proposal(one).mass[0]
        assert mass[0] < 0.25 * mass[-1]

    def test_has_no_gradient_of_its_own(self) -> None:
        z = torch.randn(2, 3, requires_grad=True)
        assert not fraction_gradient(z[:, :2], z).requires_grad
        with pytest.raises(ValueError, match="one column less"):
            fraction_gradient(z, z)


class TestActing:
    @pytest.mark.parametrize("proposes", [False, True])
    @pytest.mark.parametrize("head_hidden", [(), (6,)])
    @pytest.mark.parametrize("dueling", [False, True])
    def test_numpy_agrees_with_torch(
        self, proposes: bool, head_hidden: tuple[int, ...], dueling: bool
    ) -> None:
        torch.manual_seed(0)
        network = QuantileNetwork(
            VECTOR, 3, hidden=(8, 8), head_hidden=head_hidden, dueling=dueling, noisy=True
        )
        resample_noise(network, np.random.default_rng(0))
        proposal = FractionProposal(8, 5) if proposes else None
        levels = None if proposes else np.array([0.1, 0.4, 0.9], np.float32)
        for noise in (True, False):
            set_noise(network, noise)
            forward = NumpyNetwork(describe(ActionValues(network, proposal), noisy=noise))
            for n in (1, 4):
                obs = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
                given = None if levels is None else torch.from_numpy(levels)
                with torch.no_grad():
                    expected = ActionValues(network, proposal)(torch.from_numpy(obs), given)
                found = forward.call(obs, levels)
                np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)

    def test_images_go_through_torch(self) -> None:
        torch.manual_seed(0)
        space = spaces.Box(0, 255, (1, 36, 36), np.uint8)
        network = QuantileNetwork(space, 2)
        forward = Forward(ActionValues(network, levels=quantile_midpoints(4).numpy()), CPU)
        obs = np.random.default_rng(0).integers(0, 256, (3, 1, 36, 36)).astype(np.uint8)
        levels = quantile_midpoints(4).numpy()
        tau = torch.from_numpy(np.tile(levels, (3, 1)))
        with torch.no_grad():
            expected = network(torch.from_numpy(obs), tau).mean(2)
        np.testing.assert_allclose(forward.call(obs, levels), expected.numpy(), atol=1e-5)

    def test_exported_values_keep_their_levels(self) -> None:
        network = QuantileNetwork(VECTOR, 2, hidden=(4,))
        obs = torch.randn(3, 3)
        values = ActionValues(network, levels=quantile_midpoints(2).numpy())
        torch.testing.assert_close(values(obs), values(obs, torch.tensor([0.25, 0.75])))
        with pytest.raises(ValueError, match="levels"):
            ActionValues(network)(obs)
