"""Episodes and models that are made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode
from assay.experts.reward_model import FitSettings, RewardModel
from assay.preferences.files import PreferenceSet
from assay.preferences.oracle import ask_oracle
from assay.preferences.sample import Source, sample

OBS, ACTION = gym.spaces.Box(-2, 2, (2,)), gym.spaces.Box(-1, 1, (1,))


def episodes(count: int = 12, steps: int = 20, seed: int = 0) -> Dataset:
    """Return random walks, rewarded with the first number of an observation less the action."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        walk = rng.uniform(-1, 1, (1, 2)) + rng.normal(0, 0.1, (steps + 1, 2)).cumsum(0)
        obs = np.clip(walk, -2, 2).astype(np.float32)
        action = rng.uniform(-1, 1, (steps, 1)).astype(np.float32)
        ends = np.arange(steps) == steps - 1
        reward = (obs[:-1, 0] - action[:, 0]).astype(np.float64)
        made.append(Episode(obs, action, reward, np.zeros(steps, bool), ends))
    return from_episodes(made, OBS, ACTION)


def source(dataset: Dataset | None = None, env: str = "none") -> Source:
    dataset = episodes() if dataset is None else dataset
    return Source(dataset, env, {}, {"made": "by hand"})


def answered(path: Path, pairs: int = 80, length: int = 4, **options: Any) -> PreferenceSet:
    """Return a set whose pairs the oracle has answered."""
    sample(path, [source()], pairs=pairs, length=length)
    found = PreferenceSet.open(path)
    ask_oracle(found, **options)
    return found


def linear(
    observation: gym.Space[Any],
    action: gym.Space[Any],
    *members: tuple[list[float], float],
    bound: Any = "none",
    running: int = 0,
) -> RewardModel:
    """Return a model whose members are linear: the weights of observation and action, the bias."""
    settings = FitSettings(members=len(members), hidden=(), bound=bound)
    model = RewardModel(observation, action, settings)
    model.running = running
    for net, (weights, bias) in zip(model.ensemble.members, members, strict=True):
        [layer] = [part for part in net.modules() if isinstance(part, torch.nn.Linear)]
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([weights]))
            layer.bias.fill_(bias)
    return model
