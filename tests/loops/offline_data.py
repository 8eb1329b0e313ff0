"""Data for the offline loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from assay.data.collect import from_transitions
from assay.data.dataset import Dataset
from assay.testing.envs import Identity


def record(env: gym.Env, policy: Callable[[Any], Any], steps: int) -> Dataset:
    """Play and return what happened."""
    rows: dict[str, list[Any]] = {}
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        action = policy(obs)
        after, reward, terminated, truncated, _ = env.step(action)
        row = {
            "obs": obs, "action": action, "reward": reward, "next_obs": after,
            "terminated": terminated, "truncated": truncated,
        }  # fmt: skip
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
        obs = after if not terminated and not truncated else env.reset()[0]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return from_transitions(**{name: np.array(values) for name, values in rows.items()}, **spaces)


def answers(env: Identity) -> Dataset:
    """Return episodes of somebody who always knows the right answer."""
    return record(env, lambda obs: env.answers[env.context], 200)
