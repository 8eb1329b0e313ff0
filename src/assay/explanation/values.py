"""What an agent expects of states, and what it then got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.algorithms.base import Algorithm
from assay.core.types import Tree, action_mask
from assay.core.wording import counted
from assay.explanation.functions import Compute, Function, frozen, inputs_of, parameters_of
from assay.explanation.states import States, Visited, join
from assay.functional.layout import box_scale
from assay.functional.rescaling import unrescale
from assay.functional.targets import mask_values
from assay.networks.actor_critic import ActorCritic
from assay.networks.heads import ValueEnsemble
from assay.networks.recurrent import RecurrentActorCritic
from assay.networks.tensors import to_device
from assay.policies.heads import GreedyHead

_CHUNK = 256
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class ValueReport:
    """Values against the returns that followed, in the environment's units.

    Attributes:
        value: [S] what was expected in each state.
        realised: [S] the discounted rewards that followed; behind an episode that was cut off, what
            the agent expects there.
        bootstrapped: Mean weight of that expectation.
        gamma: The discount.
        note: What the values hold besides, or "".
    """

    value: NDArray[np.float64]
    realised: NDArray[np.float64]
    bootstrapped: float
    gamma: float
    note: str

    @property
    def error(self) -> NDArray[np.float64]:
        """Return [S], above 0 where too much was expected."""
        return self.value - self.realised

    @property
    def bias(self) -> float:
        """Return the mean error."""
        return float(self.error.mean())

    @property
    def correlation(self) -> float:
        """Return the correlation; NaN where one of both does not vary."""
        if min(self.value.std(), self.realised.std()) == 0:
            return float("nan")
        return float(np.corrcoef(self.value, self.realised)[0, 1])

    @property
    def explained(self) -> float:
        """Return the explained variance, 1 - var(G - V) / var(G); NaN where G does not vary."""
        variance = self.realised.var()
        return float(1.0 - self.error.var() / variance) if variance > 0 else float("nan")

    def describe(self) -> list[str]:
        """Return the figures as sentences."""
        word = "too much" if self.bias > 0 else "too little"
        lines = [
            f"It expects {self.value.mean():.4g} on average, and gets {self.realised.mean():.4g}: "
            f"{abs(self.bias):.3g} {word}. Explained variance {self.explained:.2f}, correlation "
            f"{self.correlation:.2f}, over {counted(len(self.value), 'state')} (discount "
            f"{self.gamma:g})."
        ]
        if self.bootstrapped > 0.01:
            lines.append(
                f"Episodes were cut off: {self.bootstrapped:.0%} of a return is, on average, what "
                "the agent expects behind the cut."
            )
        return lines + ([self.note] if self.note else [])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "states": len(self.value), "mean_value": float(self.value.mean()),
            "mean_realised": float(self.realised.mean()), "bias": self.bias,
            "correlation": self.correlation, "explained_variance": self.explained,
            "bootstrapped": self.bootstrapped, "gamma": self.gamma, "note": self.note,
        }  # fmt: skip


def value_function(algorithm: Algorithm) -> Function | str:
    """Return what an algorithm expects of a state and its action, or why there is nothing."""
    found = _network(algorithm)
    if isinstance(found, str):
        return found
    network, compute = found
    space = algorithm.spaces.observation
    return Function(frozen(network), algorithm.obs_norm, compute, ("value",), space)


def _network(algorithm: Algorithm) -> tuple[nn.Module, Compute] | str:
    net, critic = getattr(algorithm, "net", None), getattr(algorithm, "critic", None)
    if algorithm.spec.expert is not None:
        return "it learned from an expert, not from the environment's rewards"
    if isinstance(net, ActorCritic):
        return net, lambda net, obs, states: _column(net.value(obs))
    if isinstance(net, RecurrentActorCritic):
        return net, _remembered_value
    # The scores of a decision transformer are logits, not values.
    if isinstance(algorithm.policy.head, GreedyHead) and not algorithm.policy.wants_rewards:
        hp = algorithm.hp
        epsilon = hp.rescale_eps if getattr(hp, "rescale", False) else None
        return algorithm.policy.network, lambda net, obs, states: _best_value(
            parameters_of(net, obs, states), action_mask(obs), epsilon
        )
    if isinstance(critic, ValueEnsemble):
        return critic, _chosen_value
    if critic is not None and isinstance(algorithm.spaces.action, spaces.Box):
        scale = box_scale(algorithm.spaces.action)
        return critic, lambda net, obs, states: _critics_value(net, obs, states, scale)
    return "it learned no values"


def _column(values: Tensor) -> Tensor:
    """Return [S, 1]; of several heads the first, which is that of the environment's rewards."""
    return values.reshape(len(values), -1)[:, :1]


def _remembered_value(net: Any, obs: Tree, states: States) -> Tensor:
    carry = to_device(states.carry, _CPU)
    y, _ = net.remember(obs, carry, torch.zeros(1, len(states)))
    return _column(net.value_head(y[0]))


def _best_value(values: Tensor, mask: Tensor | None, epsilon: float | None) -> Tensor:
    best = mask_values(values, mask).amax(1)
    return _column(best if epsilon is None else unrescale(best, epsilon))


def _chosen_value(net: nn.Module, obs: Tree, states: States) -> Tensor:
    action = torch.from_numpy(states.action).view(-1, 1)
    return net(obs).mean(0).gather(1, action)


def _critics_value(net: nn.Module, obs: Tree, states: States, scale: Any) -> Tensor:
    unit = torch.from_numpy((states.action - scale[0]) / scale[1]).to(torch.float32)
    values = net(obs, unit.flatten(1))  # [members, S], or quantiles [members, S, n]
    return _column(values.mean(0) if values.ndim == 2 else values.mean((0, 2)))


@torch.no_grad()
def values_of(function: Function, states: States, unit: float) -> NDArray[np.float64]:
    """Return values [S] in the environment's units: `unit` of them to one of the network's."""
    parts = [states.take(slice(i, i + _CHUNK)) for i in range(0, len(states), _CHUNK)]
    found = [function.on(part)(inputs_of(function, part))[:, 0] for part in parts]
    return unit * torch.cat(found).numpy().astype(np.float64)


def judge_values(algorithm: Algorithm, function: Function, visited: Visited) -> ValueReport:
    """Return values against realised returns, of all states of some episodes."""
    gamma = float(algorithm.hp.gamma)
    scale = algorithm.reward_scale
    unit = 1.0 if scale is None else float(scale.moments.scale)
    value = values_of(function, visited.states, unit)
    ends = values_of(function, join([one.last for one in visited.episodes]), unit)
    realised, weights = [], []
    for episode, end in zip(visited.episodes, ends, strict=True):
        total = 0.0 if episode.terminated else end
        weight = 0.0 if episode.terminated else 1.0
        returns = np.empty(len(episode.reward))
        shares = np.empty(len(episode.reward))
        # G_t = r_t + gamma G_{t+1}; after a cut, G is what the agent expects there.
        for t in reversed(range(len(returns))):
            total, weight = episode.reward[t] + gamma * total, gamma * weight
            returns[t], shares[t] = total, weight
        realised.append(returns)
        weights.append(shares)
    cut = float(np.concatenate(weights).mean())
    return ValueReport(value, np.concatenate(realised), cut, gamma, _note(algorithm))


def _note(algorithm: Algorithm) -> str:
    if hasattr(algorithm, "temperature"):
        return "The values include the bonus for entropy, which returns do not."
    if getattr(algorithm.hp, "rnd", None) and isinstance(algorithm.policy.head, GreedyHead):
        return "The values include the bonus for novelty, which returns do not."
    return ""
