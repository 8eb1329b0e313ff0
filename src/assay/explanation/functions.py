"""What is explained: a function of the observation that torch can differentiate.

Of a policy it is what speaks for the chosen action. Discrete: the score (logit or value) of the
chosen action, less the mean of the other valid ones. Box: each number of the action, in units of
its range. A normaliser is a part of the function, so that maps speak of the observations that the
environment gives. What a memory holds is a constant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import ACTION_MASK, Tree
from assay.explanation.states import States, entries
from assay.functional.layout import box_scale
from assay.networks.noisy import set_noise
from assay.networks.normalize import RunningNormalizer
from assay.networks.rnn import Remembering
from assay.networks.tensors import to_device
from assay.policies.latent import LatentPolicy
from assay.policies.planning import PlanningPolicy
from assay.policies.policy import Policy
from assay.policies.search import SearchPolicy

Inputs = dict[str, Tensor]  # entries of observations [S, ...]; "" where there is one array
Scores = Callable[[Inputs], Tensor]  # -> [S, K]
Compute = Callable[[nn.Module, Tree, States], Tensor]  # network, what it is given, the states

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Function:
    """A function of observations, with the network that computes it.

    Attributes:
        network: A copy, which neither learns nor explores.
        normalizer: Brings observations to what the network takes, if given.
        compute: Gives the outputs [S, K].
        outputs: Names of these.
        space: The canonical observation space.
    """

    network: nn.Module
    normalizer: RunningNormalizer | None
    compute: Compute
    outputs: tuple[str, ...]
    space: spaces.Space[Any]

    def on(self, states: States) -> Scores:
        """Return the function at S states: of their observations [S, ...], and nothing else."""
        return lambda inputs: self.compute(self.network, self.prepared(inputs, states), states)

    def prepared(self, inputs: Inputs, states: States) -> Tree:
        """Return observations as the network takes them: normalised, with the states' masks."""
        obs: Tree = inputs
        if not isinstance(states.obs, Mapping):
            obs = inputs[""]
        elif ACTION_MASK in states.obs:
            mask = torch.from_numpy(np.ascontiguousarray(states.obs[ACTION_MASK]))
            obs = {**inputs, ACTION_MASK: mask}
        return obs if self.normalizer is None else self.normalizer.normalize_torch(obs)

    def with_network(self, network: nn.Module) -> Function:
        """Return the same function of another network of this kind."""
        return replace(self, network=network)

    @property
    def smooth(self) -> tuple[str, ...]:
        """Return the entries of observations that are numbers; others are choices."""
        parts = self.space.spaces if isinstance(self.space, spaces.Dict) else {"": self.space}
        return tuple(
            key
            for key, part in parts.items()
            if key != ACTION_MASK and isinstance(part, spaces.Box | spaces.MultiBinary)
        )


def inputs_of(function: Function, states: States) -> Inputs:
    """Return the observations of states as tensors: numbers as floats, choices as they are."""
    smooth = set(function.smooth)
    found = {}
    for key, x in entries(states.obs).items():
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        found[key] = tensor.to(torch.float32) if key in smooth else tensor
    return found


def policy_function(policy: Any) -> Function:
    """Return what speaks for the actions of a policy.

    Raises:
        ConfigError: The policy has no gradient, or no numbers to take it by; the reason is named.
    """
    _refuse(policy)
    space = policy.spaces.action
    function = Function(
        frozen(policy.network),
        policy.normalizer,
        _policy_scores(policy.head, space),
        _output_names(space),
        policy.spaces.observation,
    )
    if not function.smooth:
        raise ConfigError(
            f"The observations are choices ({policy.spaces.observation}), which have no gradient.",
            "Explain a run that sees numbers or images.",
        )
    return function


def frozen(network: nn.Module) -> nn.Module:
    """Return a copy of a network that neither learns nor explores."""
    found = copy.deepcopy(network).cpu().eval()
    set_noise(found, False)
    return found.requires_grad_(False)


def parameters_of(network: nn.Module, obs: Tree, states: States) -> Tensor:
    """Return the head's parameters [S, P], with what a memory held as a constant."""
    if isinstance(network, Remembering):
        return network.step(obs, to_device(states.carry, _CPU))[0]
    return network(obs)


@torch.no_grad()
def policy_parameters(function: Function, states: States) -> Tensor:
    """Return the parameters [S, P] by which the head of an explained policy decides."""
    return parameters_of(
        function.network, function.prepared(inputs_of(function, states), states), states
    )


def same_actions(space: spaces.Space[Any], one: Any, other: Any, close: float) -> np.ndarray:
    """Return [S] whether actions are the same; of a Box, up to a share of half its range."""
    a, b = (np.asarray(x).reshape(len(x), -1) for x in (one, other))
    if isinstance(space, spaces.Box):
        return (np.abs(a - b) <= close * _ranges(space)).all(1)
    return (a == b).all(1)


def _refuse(policy: Any) -> None:
    reason = None
    if not isinstance(policy, Policy):
        reason = "it acts by a table, not by a network"
    elif isinstance(policy, SearchPolicy) and policy.options.simulations:
        reason = "it searches the game's tree before every move"
    elif isinstance(policy, PlanningPolicy):
        reason = "it plans every action by sampling in its model"
    elif isinstance(policy, LatentPolicy):
        reason = "its latent state is a choice of classes, which jumps where the observation moves"
    if reason is not None:
        raise ConfigError(
            f"The policy has no gradient to explain it by: {reason}.",
            "Give a run whose actions are a differentiable function of what it sees.",
        )


def _policy_scores(head: Any, space: spaces.Space[Any]) -> Compute:
    def scores(network: nn.Module, obs: Tree, states: States) -> Tensor:
        params = parameters_of(network, obs, states)
        action = torch.from_numpy(np.asarray(states.action))
        mask = obs.get(ACTION_MASK) if isinstance(obs, dict) else None
        if isinstance(space, spaces.Box):
            half = torch.from_numpy(_ranges(space))
            return head.best(params, None).flatten(1) / half
        if isinstance(space, spaces.MultiBinary):
            return params * (2.0 * action.flatten(1) - 1.0)
        sizes = [int(n) for n in np.ravel(space.nvec if _multi(space) else space.n)]  # type: ignore[attr-defined]
        chosen = action.reshape(len(action), -1).long()
        logits = params[:, : sum(sizes)].split(sizes, dim=1)
        allowed = [None] * len(sizes) if mask is None else mask.bool().split(sizes, dim=1)
        parts = zip(logits, chosen.unbind(1), allowed, strict=True)
        return torch.stack([_margin(*part) for part in parts], dim=1)

    return scores


def _margin(scores: Tensor, chosen: Tensor, valid: Tensor | None) -> Tensor:
    """Return [S]: the score of the chosen action, less the mean of the other valid ones."""
    one = torch.nn.functional.one_hot(chosen, scores.shape[1]).bool()
    others = ~one if valid is None else ~one & valid
    weight = others / others.sum(1, keepdim=True).clamp(min=1)
    return scores[one] - (scores * weight).sum(1)


def _multi(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.MultiDiscrete)


def _ranges(space: spaces.Box) -> np.ndarray:
    """Return half of the range of each number of an action; 1 where it has no bounds."""
    if space.is_bounded():
        return np.asarray(box_scale(space)[1], np.float32).reshape(-1)
    return np.ones(int(np.prod(space.shape)), np.float32)


def _output_names(space: spaces.Space[Any]) -> tuple[str, ...]:
    if isinstance(space, spaces.Discrete):
        return ("action",)
    count = int(np.prod(space.shape or ()))
    return ("action",) if count == 1 else tuple(f"action[{i}]" for i in range(count))
