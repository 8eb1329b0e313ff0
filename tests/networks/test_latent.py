"""Plans, against an independent calculation in NumPy on a model that can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.networks.latent import (
    LatentActor,
    LatentModel,
    LatentPlanner,
    PlanOptions,
    RunningScale,
)

GAMMA, EDGE = 0.9, 1.5


class Line:
    """A latent state is a place, an action a move; it pays to be at 1, and beyond 1.5 all ends."""

    @staticmethod
    def reward(z: Any, a: Any) -> Any:
        return -abs(z[..., 0] - 1.0) - 0.1 * a[..., 0] ** 2

    @staticmethod
    def value(z: Any, a: Any, member: int) -> Any:
        return (member + 1) * z[..., 0] + 0.3 * a[..., 0]


class LineModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critics = nn.Module()
        self.critics.weights = nn.ParameterList([nn.Parameter(torch.zeros(3))])  # three of them

    def encode(self, obs: Tensor) -> Tensor:
        return obs

    def next(self, z: Tensor, action: Tensor) -> Tensor:
        return z + action

    def reward_logits(self, z: Tensor, action: Tensor) -> Tensor:
        return Line.reward(z, action)

    def end_logits(self, z: Tensor) -> Tensor:
        return z[..., 0] - EDGE

    def q_logits(self, z: Tensor, action: Tensor, members: Tensor) -> Tensor:
        return torch.stack([Line.value(z, action, int(m)) for m in members])

    def number(self, logits: Tensor) -> Tensor:
        return logits


class LineActor(nn.Module):
    def sample(self, z: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return (0.5 * z + 0.2 * noise).tanh(), noise.sum(-1)


def planner(**changes: Any) -> LatentPlanner:
    options: dict[str, Any] = {
        "horizon": 3, "samples": 9, "policy_samples": 2, "elites": 4, "iterations": 3,
        "temperature": 0.5, "min_std": 0.05, "max_std": 0.5, "gamma": GAMMA, "episodic": True,
    } | changes  # fmt: skip
    return LatentPlanner(LineModel(), LineActor(), (1,), PlanOptions(**options))


def plan_value(start: float, plan: np.ndarray, noise: float, members: Any, ends: bool) -> float:
    """Return what one plan is worth, step by step."""
    z, total, discount = np.array([start]), 0.0, 1.0
    for action in plan:
        total += discount * Line.reward(z, action)
        z, discount = z + action, discount * GAMMA
        if ends and z[0] > EDGE:
            return total
    last = np.tanh(0.5 * z + 0.2 * noise)
    return total + discount * np.mean([Line.value(z, last, m) for m in members])


def plan_by_numpy(
    net: LatentPlanner, start: float, last: np.ndarray, noise: dict[str, np.ndarray], row: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and std of the plan for one state, and its elites with their weights."""
    o = net.options
    drawn = []
    for k in range(o.policy_samples):
        z, plan = np.array([start]), []
        for t in range(o.horizon):
            plan.append(np.tanh(0.5 * z + 0.2 * noise["policy"][row, k, t]))
            z = z + plan[-1]
        drawn.append(plan)
    mean = np.concatenate([last[1:], np.zeros((1, 1))])
    std = np.full_like(mean, o.max_std)
    for i in range(o.iterations):
        around = np.clip(mean + std * noise["samples"][row, i], -1, 1)
        plans = np.concatenate([np.reshape(drawn, (-1, o.horizon, 1)), around])
        members = noise["members"][i]
        values = np.array([
            plan_value(start, plan, noise["last"][row, i, s, 0], members, o.episodic)
            for s, plan in enumerate(plans)
        ])  # fmt: skip
        order = np.argsort(-values)[: o.elites]
        weight = np.exp(o.temperature * (values[order] - values.max()))
        weight /= weight.sum()
        elites = plans[order]
        mean = np.einsum("k,kha->ha", weight, elites)
        std = np.sqrt(np.einsum("k,kha->ha", weight, (elites - mean) ** 2))
        std = np.clip(std, o.min_std, o.max_std)
    return mean, std, elites, weight


@pytest.mark.parametrize("episodic", [True, False])
def test_plans_of_several_states_are_those_of_numpy(episodic: bool) -> None:
    net, starts = planner(episodic=episodic), np.array([-1.0, 0.4, 1.2])
    rng = np.random.default_rng(3)
    noise, last = net.draw(rng, 3), rng.normal(size=(3, 3, 1)) * 0.3
    tensors = {name: torch.from_numpy(x) for name, x in noise.items()}
    obs = torch.tensor(starts, dtype=torch.float32).unsqueeze(1)
    carry = {"plan": torch.tensor(last, dtype=torch.float32)}
    calm, after = net.plan(obs, carry, tensors, explore=False)
    bold, _ = net.plan(obs, carry, tensors, explore=True)
    for row, start in enumerate(starts):
        mean, std, elites, weight = plan_by_numpy(net, start, last[row], noise, row)
        np.testing.assert_allclose(after["plan"][row].numpy(), mean, atol=1e-5)
        assert calm[row].item() == pytest.approx(mean[0, 0], abs=1e-5)
        chosen = elites[np.argmax(np.log(weight) + noise["choice"][row])]
        wanted = np.clip(chosen[0] + std[0] * noise["action"][row], -1, 1)
        assert bold[row].item() == pytest.approx(wanted[0], abs=1e-5)


def test_what_lies_behind_an_end_is_worth_nothing() -> None:
    net = planner()
    plans = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, -1.0], [-1.0, 0.0, 0.0]]).view(1, 3, 3, 1)
    found = net.value(torch.tensor([[1.0]]), plans, torch.zeros(1, 3, 1), torch.tensor([0, 2]))
    # The first two end with their first move, at 2: 0 for the place, -0.1 for the move.
    left = -0.1 - GAMMA * 1.0 - GAMMA**2 * 1.0  # the third stands at 0, whose value is 0
    assert found.tolist() == [pytest.approx([-0.1, -0.1, left])]


def test_without_exploration_the_number_of_states_does_not_matter() -> None:
    torch.manual_seed(1)
    model = LatentModel(
        spaces.Box(-1.0, 1.0, (3,), np.float32), 2, latent=16, width=16, encoder_width=16,
        simplex=8, critics=3, dropout=0.0, bins=11, limit=5.0, cnn="nature",
    )  # fmt: skip
    options = planner().options
    net = LatentPlanner(model, LatentActor(16, 16, 2), (2,), options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
        obs, carry = torch.randn(4, 3), {"plan": torch.randn(4, 3, 2)}
        together, after = net.step(obs, carry)
        for row in range(4):
            one = slice(row, row + 1)
            alone, kept = net.step(obs[one], {"plan": carry["plan"][one]})
            torch.testing.assert_close(alone, together[one])
            torch.testing.assert_close(kept["plan"], after["plan"][one])
    assert together.unique(dim=0).shape[0] == 4
    assert not net.memory.initial(2)["plan"].any()


def test_the_policy_prior_by_hand() -> None:
    actor = LatentActor(1, 1, 2)
    with torch.no_grad():
        actor.net[-1].weight.zero_()
        actor.net[-1].bias.copy_(torch.tensor([0.5, -1.0, 0.0, 20.0]))  # the mean, then the raw std
    noise = torch.tensor([[1.0, -0.5]])
    with torch.no_grad():
        action, log_prob = actor.sample(torch.zeros(1, 1), noise)
    log_std = np.array([-4.0, 2.0])  # the middle of -10 and 2, and the upper bound
    u = np.array([0.5, -1.0]) + np.exp(log_std) * noise.numpy()[0]
    np.testing.assert_allclose(action[0].numpy(), np.tanh(u), rtol=1e-5)
    density = -0.5 * noise.numpy()[0] ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    assert log_prob.item() == pytest.approx(density.sum(), rel=1e-5)


def test_the_scale_follows_and_is_at_least_one() -> None:
    scale = RunningScale(0.1, limit=10.0)
    scale.follow(torch.linspace(0.0, 0.5, 21))  # a range of 0.45, which counts as 1
    assert scale.scale.item() == 1.0
    scale.follow(torch.arange(21.0))
    assert scale.scale.item() == pytest.approx(0.9 + 0.1 * 18.0)
