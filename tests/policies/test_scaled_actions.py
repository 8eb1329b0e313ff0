"""On-policy Box actions are scaled to their bounds: at first sight, in files, and in learning."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.functional.layout import gaussian_scale
from assay.server.client import policy as client
from assay.testing.algorithms import Rig, make_algorithm

SEEN = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(
    np.array([100.0, -0.001, -np.inf]), np.array([200.0, 0.001, np.inf]), dtype=np.float32
)
SMALL = {"horizon": 8, "minibatch_size": 8}


class Target(gym.Env):
    """Each step shows a number in [-1, 1]; the best action is that number in the action's units."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, low: float, high: float) -> None:
        self.action_space = spaces.Box(low, high, (1,), np.float32)
        self.center, self.half = (high + low) / 2, (high - low) / 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.shown = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.shown, {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action)
        unit = (action - self.center) / self.half
        return self.shown, -float(np.square(unit - self.shown).sum()), True, False, {}


def test_what_is_scaled() -> None:
    center, half = gaussian_scale(BOX)
    np.testing.assert_allclose(center, [150, 0, 0])
    np.testing.assert_allclose(half, [50, 0.001, 1])
    assert gaussian_scale(spaces.Box(-1.0, 1.0, (2,), np.float32)) is None
    assert gaussian_scale(spaces.Box(-np.inf, np.inf, (2,), np.float32)) is None


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "recurrent_ppo"])
def test_first_actions_spread_over_the_box(name: str) -> None:
    more = {"chunk": 8} if name == "recurrent_ppo" else {}
    size = {"horizon": 8} if name in ("a2c", "impala") else SMALL
    algorithm = make_algorithm(name, SEEN, BOX, num_envs=1, **size, **more)
    obs = np.random.default_rng(0).standard_normal((4000, 3), dtype=np.float32)
    action = algorithm.act(obs, algorithm.initial_carry(4000), True).action
    unit = (action[:, :2] - [150, 0]) / [50, 0.001]
    # A standard normal clipped to [-1, 1]: 68 % inside, both ends hit alike.
    inside = (np.abs(unit) < 0.999).mean(0)
    np.testing.assert_allclose(inside, 0.68, atol=0.04)
    np.testing.assert_allclose((unit > 0.999).mean(0), (unit < -0.999).mean(0), atol=0.04)
    raw = make_algorithm(name, SEEN, BOX, num_envs=1, scale_actions=False, **size, **more)
    assert (raw.act(obs, raw.initial_carry(4000), True).action[:, 0] == 100).all()


@pytest.mark.parametrize("name", ["ppo", "recurrent_ppo"])
def test_a_file_acts_as_the_learner(name: str) -> None:
    more = {"chunk": 8} if name == "recurrent_ppo" else {}
    algorithm = make_algorithm(name, SEEN, BOX, num_envs=1, **SMALL, **more)
    with torch.no_grad():
        for parameter in algorithm.policy.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    file = client.Policy(algorithm.policy.snapshot(name, version=1))
    torch_twin = algorithm.policy.module()
    carry, twin_carry = (algorithm.initial_carry(1) for _ in range(2))
    for obs in np.random.default_rng(1).standard_normal((5, 1, 3), dtype=np.float32):
        choice = algorithm.act(obs, carry, False)
        np.testing.assert_allclose(file.act(obs[0])[0], choice.action[0], rtol=1e-4, atol=1e-6)
        tensors = torch.from_numpy(obs)
        with torch.no_grad():
            if carry is None:
                found = torch_twin(tensors)
            else:
                given = {k: torch.from_numpy(v) for k, v in twin_carry.items()}
                found, after = torch_twin(tensors, given)
                twin_carry = {k: v.numpy() for k, v in after.items()}
        np.testing.assert_allclose(found, choice.action, rtol=1e-4, atol=1e-6)
        carry = choice.carry


def test_densities_of_client_and_learner_agree() -> None:
    algorithm = make_algorithm("ppo", SEEN, BOX, num_envs=1, **SMALL)
    file = client.Policy(algorithm.policy.snapshot("ppo", version=1))
    obs = np.array([[0.3, -0.2, 0.9]], np.float32)
    noise = [0.4, -1.2, 0.7]
    _, log_prob = file.decide(obs[0], None, noise)
    params = algorithm.policy.network(torch.from_numpy(obs)).detach()
    raw = torch.from_numpy(file.raw)[None]
    expected = algorithm.distribution.log_prob(params, raw)
    assert log_prob == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("low", "high"), [(100.0, 200.0), (-0.001, 0.001)])
def test_ppo_learns_in_any_units(low: float, high: float) -> None:
    # In raw units the policy only ever acts at a bound: -1.6 for [100, 200], -0.24 for the other.
    rig = Rig(
        "ppo", lambda: Target(low, high), num_envs=8, horizon=64, minibatch_size=128, lr=1e-2,
        env_steps=16_384,
    )  # fmt: skip
    rig.learn(32)
    obs = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
    action = rig.algorithm.act(obs, None, False).action
    unit = (action - (high + low) / 2) / ((high - low) / 2)
    assert -np.square(unit - obs).mean() > -0.08
