"""A small decision process whose values are solved for, with policies of known probabilities."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from assay.core.types import Spaces
from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode
from assay.networks.encoders import make_encoder
from assay.policies.heads import StochasticHead
from assay.policies.policy import Policy

GAMMA = 0.9
STATES, ACTIONS = 4, 2
_RNG = np.random.default_rng(5)
MOVES = _RNG.dirichlet(np.full(STATES, 0.6), (STATES, ACTIONS))  # P(s'|s, a)
MOVES[3] = np.eye(STATES)[3]  # the last state is the end
GAINS = _RNG.normal(0.0, 1.0, (STATES, ACTIONS)).round(2)
GAINS[3] = 0.0
SPACES = Spaces(gym.spaces.Discrete(STATES), gym.spaces.Discrete(ACTIONS))


def solved(probabilities: np.ndarray) -> np.ndarray:
    """Return V = (I - gamma P_pi)^-1 r_pi [S]."""
    moves = np.einsum("sa,sat->st", probabilities, MOVES)
    moves[3] = 0.0
    return np.linalg.solve(np.eye(STATES) - GAMMA * moves, (probabilities * GAINS).sum(1))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities [S, A]."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def policy_of(logits: np.ndarray) -> Policy:
    """Return a policy with these logits [S, A]."""
    encoder = make_encoder(SPACES.observation, hidden=(), init="torch")
    layer = torch.nn.Linear(STATES, ACTIONS, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(logits.T))
    network = torch.nn.Sequential(encoder, layer)
    head = StochasticHead(SPACES.action)
    rng = np.random.default_rng(0)
    return Policy(SPACES, network, head, device=torch.device("cpu"), rng=rng)


def played(
    probabilities: np.ndarray, episodes: int, *, seed: int, limit: int = 50, log_prob: bool = False
) -> Dataset:
    """Return episodes from state 0, truncated after `limit` steps."""
    rng = np.random.default_rng(seed)
    return from_episodes(
        (_episode(probabilities, rng, limit, log_prob) for _ in range(episodes)),
        SPACES.observation,
        SPACES.action,
    )


def _episode(
    probabilities: np.ndarray, rng: np.random.Generator, limit: int, log_prob: bool
) -> Episode:
    obs, action, reward, logs = [0], [], [], []
    while obs[-1] != 3 and len(action) < limit:
        state = obs[-1]
        action.append(int(rng.choice(ACTIONS, p=probabilities[state])))
        reward.append(float(GAINS[state, action[-1]]))
        logs.append(float(np.log(probabilities[state, action[-1]])))
        obs.append(int(rng.choice(STATES, p=MOVES[state, action[-1]])))
    ended = np.zeros(len(action), bool)
    ended[-1] = obs[-1] == 3
    cut = np.zeros(len(action), bool)
    cut[-1] = not ended[-1]
    extras: dict[str, Any] = {"log_prob": np.array(logs)} if log_prob else {}
    return Episode(np.array(obs), np.array(action), np.array(reward), ended, cut, extras)
