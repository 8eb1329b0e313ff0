"""Data for the offline loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import assay
from assay.data.collect import from_transitions
from assay.data.dataset import Dataset
from assay.data.files import save
from assay.testing import offline
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


BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32))


def trainer(root: Path, algorithm: str, defaults: dict[str, Any]) -> Callable[..., Any]:
    """Return what trains by name in an `Identity` environment, with random actions as data."""

    def train(name: str, algorithm: str = algorithm, env: Any = None, **options: Any) -> Any:
        env = partial(Identity, BOX) if env is None else env
        path = root / "random.npz"
        if not path.exists():
            save(offline.record(env), path)
        settings = {**defaults, "data": str(path), **options}
        return assay.train(algorithm, env, name=name, root=root, **settings)

    return train
