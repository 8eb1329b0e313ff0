"""FQF: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from families import (
    ACTIONS,
    MASKED_STATES,
    OPTIONS,
    QUICK,
    SMALL,
    STATES,
    WITHOUT_EFFECT,
    ContractOfEveryOption,
    Learning,
    check_target_is_copied,
    mask_next,
    two_steps,
)
from gymnasium import spaces

from assay.algorithms.fqf import FQF
from assay.core.errors import ConfigError
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
    make_batch,
)

SETTINGS = SMALL | {"fractions": 4, "cosines": 8, "lr": 1e-3, "fraction_lr": 1e-3}
EVERY_OPTION = OPTIONS | {"head_hidden": (8,)}
QUICKLY = QUICK | {"fractions": 8, "fraction_lr": 1e-3}


class TestContract(AlgorithmContract):
    algorithm = "fqf"
    settings = SETTINGS
    compiled_settings = EVERY_OPTION


class TestContractWithEveryOption(ContractOfEveryOption):
    algorithm = "fqf"
    settings = SETTINGS | EVERY_OPTION


def table(**settings: Any) -> FQF:
    """Return FQF whose values are known: Z = base[action, state] * phi, phi = 1 - cos(pi tau).

    There are two fractions: halves in state 0, of mass 1/3 and 2/3 in state 1.
    """
    options = {"hidden": (), "cosines": 2, "batch_size": 2, "fractions": 2, "entropy": 0.0}
    algorithm = make_algorithm("fqf", STATES, ACTIONS, **(options | settings))
    set_up(algorithm)
    return algorithm


def set_up(algorithm: FQF) -> None:
    fill(algorithm.q, [[1.0, 3.0], [2.0, 0.0]])
    fill(algorithm.target, [[4.0, 2.0], [1.0, 6.0]])
    with torch.no_grad():
        algorithm.proposal.linear.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, math.log(2)]]))
        algorithm.proposal.linear.bias.zero_()


def fill(network: Any, values: list[list[float]]) -> None:
    with torch.no_grad():
        network.embedding.net[0].weight.copy_(torch.tensor([[0.0, -1.0]] * 2))
        network.embedding.net[0].bias.fill_(1.0)
        network.head[0].weight.copy_(torch.tensor(values))
        network.head[0].bias.zero_()


# Midpoints are 1/4, 3/4 in state 0 and 1/6, 2/3 in state 1. The first phi is 1 - sqrt(1/2), ...
LOW, HIGH = 1 - math.sqrt(0.5), 1 + math.sqrt(0.5)
NEXT_LOW, NEXT_HIGH = 1 - math.sqrt(0.75), 1.5


def huber(x: float) -> float:
    return x * x / 2 if abs(x) <= 1 else abs(x) - 0.5


def expected_loss(z: list[float], y: list[float], mass: list[float]) -> float:
    """Return one item's loss at levels 1/4 and 3/4, term by term."""
    total = 0.0
    for tau, value in zip((0.25, 0.75), z, strict=True):
        for goal, share in zip(y, mass, strict=True):
            u = goal - value
            total += share * (1 - tau if u < 0 else tau) * huber(u)
    return total


GOES_ON = expected_loss([LOW, HIGH], [1 + 3 * NEXT_LOW, 1 + 3 * NEXT_HIGH], [1 / 3, 2 / 3])
ENDS = expected_loss([2 * LOW, 2 * HIGH], [1.5, 1.5], [1 / 3, 2 / 3])


class TestQuantileLoss:
    def test_by_hand(self) -> None:
        algorithm = table()
        batch = algorithm.replay_tensors(two_steps())
        loss, metrics = algorithm._quantile_loss(batch)
        # The target prefers action 1 (6 to 2): y = 1 + 6 phi / 2, of mass 1/3 and 2/3.
        assert loss.item() == pytest.approx((GOES_ON + ENDS) / 2)
        assert metrics["q_mean"].item() == pytest.approx(1.5 * (LOW + HIGH) / 2)
        # What the fraction loss will need, as it was before any step:
        assert batch["at_midpoints"].flatten().tolist() == pytest.approx(
            [LOW, HIGH, 2 * LOW, 2 * HIGH]
        )
        assert batch["at_fractions"].flatten().tolist() == pytest.approx([1.0, 2.0])  # tau_1 = 1/2

    def test_actions_are_valued_by_mass(self) -> None:
        algorithm = table()
        # Action 0 of state 1 is worth 3 phi - 1.3, action 1 is worth 1.5 phi. With masses of 1/3
        # and 2/3 the mean of phi is 1.0447: 1.83 to 1.57. With halves it is 0.817: 1.15 to 1.23.
        with torch.no_grad():
            algorithm.target.head[0].weight.copy_(torch.tensor([[0.0, 3.0], [0.0, 1.5]]))
            algorithm.target.head[0].bias.copy_(torch.tensor([-1.3, 0.0]))
        loss, _ = algorithm._quantile_loss(algorithm.replay_tensors(two_steps()))
        y = [1 + (3 * phi - 1.3) / 2 for phi in (NEXT_LOW, NEXT_HIGH)]
        first = expected_loss([LOW, HIGH], y, [1 / 3, 2 / 3])
        assert loss.item() == pytest.approx((first + ENDS) / 2)
        with torch.no_grad():
            algorithm.q.head[0].weight.copy_(algorithm.target.head[0].weight)
            algorithm.q.head[0].bias.copy_(algorithm.target.head[0].bias)
        assert algorithm.act(np.array([1]), None, False).action.tolist() == [0]

    def test_double_by_hand(self) -> None:
        algorithm = table(double=True)
        loss, _ = algorithm._quantile_loss(algorithm.replay_tensors(two_steps()))
        # The online network prefers action 0 (3 to 0), of which the target thinks 2.
        y = [1 + NEXT_LOW, 1 + NEXT_HIGH]
        first = expected_loss([LOW, HIGH], y, [1 / 3, 2 / 3])
        assert loss.item() == pytest.approx((first + ENDS) / 2)

    def test_masked_actions_are_not_bootstrapped_from(self) -> None:
        algorithm = make_algorithm(
            "fqf", MASKED_STATES, ACTIONS, hidden=(), cosines=2, batch_size=2, fractions=2
        )
        set_up(algorithm)
        batch = mask_next(two_steps(), [[1, 0], [1, 1]])
        loss, _ = algorithm._quantile_loss(algorithm.replay_tensors(batch))
        # Action 0 is left, as in the test of double
        first = expected_loss([LOW, HIGH], [1 + NEXT_LOW, 1 + NEXT_HIGH], [1 / 3, 2 / 3])
        assert loss.item() == pytest.approx((first + ENDS) / 2)

    def test_importance_weights_and_priorities(self) -> None:
        algorithm = table(prioritized=True)
        batch = algorithm.replay_tensors(two_steps()) | {"weight": torch.tensor([0.5, 1.0])}
        loss, metrics = algorithm._quantile_loss(batch)
        assert loss.item() == pytest.approx((GOES_ON / 2 + ENDS) / 2)
        assert metrics["priority"].tolist() == pytest.approx([GOES_ON, ENDS])


class TestFractionLoss:
    def gradient(self, algorithm: FQF, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        algorithm._quantile_loss(batch)
        loss, _ = algorithm._fraction_loss(batch)
        return torch.autograd.grad(loss, algorithm.proposal.linear.bias)[0]

    def test_by_hand(self) -> None:
        algorithm = table()
        with torch.no_grad():  # a bent Z: phi = relu(-cos(pi tau)), 0 below the middle
            algorithm.q.embedding.net[0].bias.zero_()
        # Z(1/4) = 0, Z(1/2) = 0, Z(3/4) = sqrt(1/2), twice that for the second item:
        # dW1/dtau_1 = 2 * 0 - 0 - sqrt(1/2) is negative: the border wants to the right.
        # tau_1 = softmax(b)_0, dtau_1/db = (1/4, -1/4); the mean over both items
        slope = -1.5 * math.sqrt(0.5)
        batch = algorithm.replay_tensors(two_steps())
        assert self.gradient(algorithm, batch).tolist() == pytest.approx([slope / 4, -slope / 4])
        weighted = batch | {"weight": torch.tensor([1.0, 0.0])}
        slope = -0.5 * math.sqrt(0.5)
        assert self.gradient(algorithm, weighted).tolist() == pytest.approx([slope / 4, -slope / 4])

    def test_entropy_draws_fractions_apart(self) -> None:
        algorithm = table(entropy=3.0)
        batch = algorithm.replay_tensors(two_steps(obs=[1, 1]))
        algorithm._quantile_loss(batch)
        batch["at_fractions"], batch["at_midpoints"] = torch.zeros(2, 1), torch.zeros(2, 2)
        loss, metrics = algorithm._fraction_loss(batch)
        entropy = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)
        assert metrics["fraction_entropy"].item() == pytest.approx(entropy)
        assert loss.item() == pytest.approx(-3 * entropy)
        # dH/db_i = -p_i (log p_i + H); descending the loss gives the smaller fraction more.
        slopes = [3 * p * (math.log(p) + entropy) for p in (1 / 3, 2 / 3)]
        found = torch.autograd.grad(loss, algorithm.proposal.linear.bias)[0]
        assert found.tolist() == pytest.approx(slopes)
        assert found[0] < 0 < found[1]

    def test_trains_the_proposal_alone(self) -> None:
        def moved(**settings: Any) -> tuple[bool, bool]:
            algorithm = table(target_every=100, **settings)
            flats = algorithm.step.flats
            modules = (algorithm.q, algorithm.proposal)
            before = [flats[m].clone() for m in modules]
            algorithm.update(CannedReplay(two_steps()))
            one, two = (not torch.equal(flats[m], b) for m, b in zip(modules, before, strict=True))
            return one, two

        assert moved(lr=0.0, fraction_lr=0.1) == (False, True)
        assert moved(lr=0.1, fraction_lr=0.0) == (True, False)

    def test_no_gradient_leaves_its_own_network(self) -> None:
        algorithm = make_algorithm(
            "fqf", spaces.Box(-1.0, 1.0, (3,), np.float32), ACTIONS, hidden=(4,), fractions=3
        )
        columns = {"obs": [[0.1, 0.2, 0.3]], "next_obs": [[0.3, 0.2, 0.1]], "action": [1]}
        batch = algorithm.replay_tensors(make_batch(**columns, reward=[1.0], discount=[0.9]))
        quantile, _ = algorithm._quantile_loss(batch)
        fraction, _ = algorithm._fraction_loss(batch)
        for loss, own, other in (
            (quantile, algorithm.q, algorithm.proposal),
            (fraction, algorithm.proposal, algorithm.q),
        ):
            options = {"allow_unused": True, "retain_graph": True}
            grads = torch.autograd.grad(loss, list(other.parameters()), **options)
            assert all(g is None for g in grads)
            grads = torch.autograd.grad(loss, list(own.parameters()), **options)
            assert all(g is not None and g.abs().sum() > 0 for g in grads)

    def test_both_losses_see_the_weights_before_the_step(self) -> None:
        one, two = table(lr=0.0, fraction_lr=0.1), table(lr=0.5, fraction_lr=0.1)
        for algorithm in (one, two):
            algorithm.update(CannedReplay(two_steps()))
        assert not torch.equal(one.step.flats[one.q], two.step.flats[two.q])
        assert torch.equal(one.step.flats[one.proposal], two.step.flats[two.proposal])


class TestUpdate:
    def test_priorities_are_written_after_the_loss(self) -> None:
        algorithm = table(prioritized=True, priority_beta="linear:0.4:1", lr=0.1)
        algorithm.clock.env_steps = 500  # of 1000
        replay = CannedReplay(two_steps(weight=[1.0, 1.0], index=[7, 3]))
        algorithm.update(replay)
        assert replay.calls == [(2, pytest.approx(0.7))]
        [(index, priority)] = replay.priorities
        assert index == [7, 3]
        assert priority == pytest.approx([GOES_ON, ENDS])

    def test_target_is_copied_when_due_and_the_fractions_are_nobody_s(self) -> None:
        algorithm = table(target_every=3, lr=0.1)
        check_target_is_copied(algorithm, two_steps, every=3)

    @pytest.mark.parametrize(
        ("settings", "message"), [*WITHOUT_EFFECT, ({"fractions": 1}, "fractions=1")]
    )
    def test_settings_without_effect_are_refused(
        self, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            table(**settings)


class Jackpot(gym.Env[Any, Any]):
    """One step: action 0 pays 1; action 1 pays 0 in four of five cases, and else 10."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin again."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pay out."""
        reward = (10.0 if self.np_random.random() < 0.2 else 0.0) if action else 1.0
        return np.ones(1, np.float32), reward, True, False, {}


class TestLearns(Learning):
    algorithm = "fqf"
    quick = QUICKLY
    options = EVERY_OPTION

    def test_fractions_go_where_the_return_is_steep(self) -> None:
        settings = QUICKLY | {
            "epsilon": 1.0, "lr": "linear:0.005:0.0005", "fraction_lr": "linear:0.01:0",
            "entropy": 0.01,
        }  # fmt: skip
        algorithm = Rig("fqf", Jackpot, env_steps=2000, **settings).train().algorithm
        assert isinstance(algorithm, FQF)
        with torch.no_grad():
            features = algorithm.q.encoder(torch.ones(1, 1))
            tau, middle, mass, _ = algorithm.proposal(features)
            values = algorithm.q.quantiles(features, middle)[0, 1]
            equal = torch.linspace(0.0, 1.0, 9)
            learned, fixed = (steps_distance(algorithm, t) for t in (tau[0], equal))
        # Equal fractions stay at a ratio of 1, and a wrong sign goes above it.
        assert learned < 0.9 * fixed
        assert mass.min() > 1e-3  # none is lost
        # The value is the mean by mass, 2; that of the atoms is higher, as they are not equal.
        assert (mass[0] * values).sum().item() == pytest.approx(2.0, abs=0.7)
        assert algorithm.act(np.ones((1, 1), np.float32), None, False).action.tolist() == [1]


def steps_distance(algorithm: FQF, tau: torch.Tensor, points: int = 200) -> float:
    """Return the distance W1 between the learned quantile function and its steps."""
    features = algorithm.q.encoder(torch.ones(1, 1))
    share = (torch.arange(points) + 0.5) / points
    total = 0.0
    for low, high in itertools.pairwise(tau):
        levels = torch.cat([low + (high - low) * share, (low + high)[None] / 2])
        *inside, middle = algorithm.q.quantiles(features, levels[None])[0, 1]
        total += float((torch.stack(inside) - middle).abs().mean() * (high - low))
    return total
