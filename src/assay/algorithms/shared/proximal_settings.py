"""Settings of PPO and of all that learn like it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim
from pydantic import Field

from assay.algorithms.settings import PolicyGradientSettings
from assay.core.images import has_images, has_large_images
from assay.core.schedules import Schedule, constant, linear
from assay.core.types import Problem
from assay.networks.normalize import normalizable

ROLLOUT = 2048  # transitions of a rollout of PPO without a preset
MANY = 6  # actions of a Box from which on they explore half as far at first


class ProximalSettings(PolicyGradientSettings):
    """PPO, with and without a memory."""

    normalize_advantage: bool = Field(True, description="Standardise per minibatch.")
    epochs: int = Field(4, gt=0, description="Passes over each rollout.")
    minibatch_size: int = Field(128, gt=0, description="Transitions per gradient step.")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="Lambda of GAE: 0 is the TD error, 1 the full return."
    )
    clip: Schedule = Field(constant(0.2), description="Clip range of the probability ratio.")
    value_clip: float | None = Field(None, gt=0, description="Clip value changes to this.")
    target_kl: float | None = Field(None, gt=0, description="End epochs beyond this KL.")

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return rollouts of one size, however many environments there are, cut to fit.

        The noise of many actions adds up, and makes robots fall.
        """
        fit = super().fitted(problem, given)
        observation, action = problem.spaces.observation, problem.spaces.action
        large = has_large_images(observation)
        if has_images(observation):
            fit |= {"entropy_coef": constant(0.01), "epochs": 4}
        else:
            fit |= {"epochs": 10, "normalize_obs": bool(normalizable(observation))}
            fit |= {"normalize_reward": True}
        if large:
            fit |= {"lr": linear(2.5e-4, 0.0)}
        elif not isinstance(action, Box):
            fit |= {"lr": linear(1e-3, 0.0)}  # better than constants on choices
        if isinstance(action, Box) and flatdim(action) >= MANY and problem.spaces.team is None:
            fit |= {"log_std_init": -0.7}
        chunk = given.get(
            "chunk", cls.model_fields["chunk"].default if "chunk" in cls.model_fields else 1
        )
        return fit | _cut({**fit, **given}, chunk, 256 if large else 64, problem.env_steps)


def _cut(given: Mapping[str, Any], chunk: int, minibatch: int, budget: int) -> dict[str, int]:
    """Return a horizon and a size of minibatches that divide each other as they must.

    Args:
        given: `num_envs`, and what is decided of `horizon` and `minibatch_size`.
        chunk: Steps that stay together.
        minibatch: About so many transitions are wanted, and no more than 32 minibatches.
        budget: Environment steps of the run, which no rollout is much larger than.
    """
    count = given["num_envs"]
    unit = chunk  # the horizon is a multiple of it
    if "minibatch_size" in given:
        unit = math.lcm(chunk, given["minibatch_size"] // math.gcd(given["minibatch_size"], count))
    whole = max(1, round(ROLLOUT / count / unit)) * unit
    if budget < ROLLOUT:  # rounded up, to what many sizes of minibatches divide
        even = math.lcm(unit, 8)
        whole = min(whole, math.ceil(budget / count / even) * even)
    horizon = given.get("horizon", whole)
    chunks = horizon * count // chunk
    most = max(minibatch, horizon * count // 32) // chunk
    best = next(n for n in range(max(1, min(most, chunks)), 0, -1) if chunks % n == 0)
    return {"horizon": horizon, "minibatch_size": best * chunk}
