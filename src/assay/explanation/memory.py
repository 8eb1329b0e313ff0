"""What a memory is used for: how far back it looks, and whether it earns its cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.core.types import Tree, action_mask, tree_map
from assay.evaluation import statistics
from assay.explanation.functions import Function, inputs_of, policy_parameters, same_actions
from assay.explanation.states import States, Visited
from assay.networks.decision import Block as DecisionBlock
from assay.networks.rnn import Block, Memory, Remembering, Transformer
from assay.networks.tensors import to_device
from assay.policies.policy import Policy

AGREES = 0.95  # share of the actions that a window must keep
_CLOSE = 0.05  # of the range of a Box action: closer counts as the same
_QUERIES = 128
_LONGEST = 64  # steps that are looked back
_TOKENS = 3  # of a step of a decision transformer
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """How a policy uses its memory.

    Attributes:
        kind: Of the memory.
        parameters: The memory's share of the policy's parameters.
        norms: Of each part of the carry: its mean norm in the first and last quarter of episodes.
        agreement: Steps of history -> share of actions that stay the same if only these are known;
            empty if the memory cannot be given a shorter history.
        influence: [lags] share of the gradient that falls on the observation so many steps ago;
            empty likewise.
        attention: [lags] mean weight that a transformer gives to each step back; empty without one.
        with_memory: [episodes] returns.
        without: [episodes] returns if the memory is emptied before every step, from the same seeds.
    """

    kind: str
    parameters: float
    norms: dict[str, tuple[float, float]]
    agreement: dict[int, float]
    influence: tuple[float, ...]
    attention: tuple[float, ...]
    with_memory: NDArray[np.float64]
    without: NDArray[np.float64]

    @property
    def window(self) -> int | None:
        """Return the shortest history that keeps 95 % of the actions; None if none did."""
        return next((k for k, share in sorted(self.agreement.items()) if share >= AGREES), None)

    @property
    def reach(self) -> int | None:
        """Return the steps back that hold 90 % of the influence."""
        if not self.influence:
            return None
        return int(np.searchsorted(np.cumsum(self.influence), 0.9 - 1e-9))

    @property
    def lost(self) -> tuple[float, float, float]:
        """Return the mean return that is lost without the memory, and its 95 % interval."""
        difference = self.with_memory - self.without
        mean = float(difference.mean())
        if len(difference) < 2 or difference.std() == 0:
            return mean, mean, mean
        interval = statistics.t_interval(difference)
        return mean, float(interval.low), float(interval.high)

    @property
    def verdict(self) -> str:
        """Return "earns its cost", "does not earn its cost" or "not shown"."""
        _, low, high = self.lost
        if low > 0:
            return "earns its cost"
        scale = max(abs(float(self.with_memory.mean())), float(self.with_memory.std()), 1e-8)
        return "does not earn its cost" if high <= 0.05 * scale else "not shown"

    def describe(self) -> list[str]:
        """Return the findings as sentences, the verdict first."""
        mean, low, high = self.lost
        lines = [
            f"The memory {_VERDICTS[self.verdict]}: without it the return falls by {mean:.4g} "
            f"(95 % interval {low:.4g} to {high:.4g}), from {self.with_memory.mean():.4g}. "
            f"It has {self.parameters:.0%} of the parameters ({self.kind}).",
            _NEXT[self.verdict],
        ]
        if self.agreement:
            shares = ", ".join(f"{k}: {share:.0%}" for k, share in sorted(self.agreement.items()))
            need = "more steps than were tried" if self.window is None else f"{self.window}"
            lines.append(
                f"Steps of history that keep {AGREES:.0%} of the actions: {need} ({shares})."
            )
        if self.influence:
            lines.append(
                f"{self.influence[0]:.0%} of the influence on an action comes from the present "
                f"observation, and 90 % from at most {self.reach} steps back."
            )
        if self.attention:
            far = float(np.dot(np.arange(len(self.attention)), self.attention))
            lines.append(
                f"Attention: {self.attention[0]:.0%} to the present step; {far:.1f} steps back on "
                "average."
            )
        for name, (early, late) in self.norms.items():
            lines.append(f"Norm of '{name}': {early:.3g} early in episodes, {late:.3g} late.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        mean, low, high = self.lost
        return {
            "kind": self.kind, "verdict": self.verdict, "parameters": self.parameters,
            "lost": {"mean": mean, "low": low, "high": high},
            "with_memory": self.with_memory.tolist(), "without": self.without.tolist(),
            "window": self.window, "agreement": self.agreement, "reach": self.reach,
            "influence": list(self.influence), "attention": list(self.attention),
            "norms": {name: {"early": a, "late": b} for name, (a, b) in self.norms.items()},
        }  # fmt: skip


_VERDICTS = {
    "earns its cost": "earns its cost",
    "does not earn its cost": "does not earn its cost",
    "not shown": "is not shown to earn its cost",
}
_NEXT = {
    "earns its cost": "A policy that was trained without one may still do as well: train one, and "
    "compare both (assay compare).",
    "does not earn its cost": "This very policy acts as well with an empty memory: train without.",
    "not shown": "Give more --episodes to decide it.",
}


def judge_memory(
    policy: Policy, function: Function, visited: Visited, without: NDArray[np.float64], seed: int
) -> MemoryReport:
    """Return how a policy uses its memory.

    Args:
        policy: Has one.
        function: What speaks for its actions.
        visited: Episodes that it played.
        without: Returns of the same episodes with the memory emptied before every step.
        seed: Fixes which states are looked at.
    """
    network = function.network
    assert isinstance(network, Remembering)
    memory: Any = network.memory
    rng = np.random.default_rng(seed)
    count = len(visited.states)
    queries = np.sort(rng.choice(count, min(count, _QUERIES), replace=False))
    agreement: dict[int, float] = {}
    influence: tuple[float, ...] = ()
    attention: tuple[float, ...] = ()
    longest = min(_LONGEST, int(visited.time.max()) + 1)
    if isinstance(memory, Memory):
        lengths = [2**i for i in range(12) if 2**i < longest] + [longest]
        agreement = {k: _agreement(policy, function, visited, queries, k) for k in lengths}
        influence = _influence(function, visited, queries, longest)
        if isinstance(memory, Transformer):
            attention = _attention(function, visited, queries, min(longest, memory.context + 1))
    elif any(isinstance(part, DecisionBlock) for part in network.modules()):
        attention = _decision_attention(function, visited.states.take(queries))
    own, every = (sum(p.numel() for p in part.parameters()) for part in (memory, network))
    return MemoryReport(
        type(memory).__name__, own / max(1, every), _norms(visited), agreement, influence,
        attention, visited.returns, without,
    )  # fmt: skip


def _norms(visited: Visited) -> dict[str, tuple[float, float]]:
    lengths = np.array([len(one.states) for one in visited.episodes])
    place = visited.time / lengths[visited.episode]
    early, late = place < 0.25, place >= 0.75
    found = {}
    for name, x in visited.states.carry.items():
        if x.ndim == 1:  # a count, not a state
            continue
        size = np.linalg.norm(x.reshape(len(x), -1), axis=1)
        found[name] = (float(size[early].mean()), float(size[late].mean()) if late.any() else 0.0)
    return found


def _windows(
    function: Function, visited: Visited, queries: NDArray[np.int64], length: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the last `length` observations of queries [length * Q, ...], step by step.

    Where an episode is younger, its first observation stands before it; `is_first` [length, Q] says
    where it begins.
    """
    steps = np.arange(length - 1, -1, -1)[:, None]
    back = np.minimum(steps, visited.time[queries])
    rows = (queries - back).reshape(-1)
    x = inputs_of(function, visited.states.take(rows))
    begins = (steps == np.minimum(visited.time[queries], length - 1)).astype(np.float32)
    return x, torch.from_numpy(begins)


def _unrolled(function: Function, x: dict[str, Tensor], is_first: Tensor) -> Tensor:
    """Return the head's parameters [Q, P] after windows that begin with an empty memory."""
    network: Any = function.network
    obs: Tree = x[""] if set(x) == {""} else x
    seen = obs if function.normalizer is None else function.normalizer.normalize_torch(obs)
    carry = to_device(network.memory.initial(is_first.shape[1]), _CPU)
    y, _ = network.remember(seen, carry, is_first)
    return network.head(y[-1])


@torch.no_grad()
def _agreement(
    policy: Policy, function: Function, visited: Visited, queries: NDArray[np.int64], length: int
) -> float:
    states = visited.states.take(queries)
    mask = action_mask(to_device(states.obs, _CPU))
    full = policy.head.best(policy_parameters(function, states), mask)
    short = policy.head.best(
        _unrolled(function, *_windows(function, visited, queries, length)), mask
    )
    return float(same_actions(policy.spaces.action, full, short, _CLOSE).mean())


def _influence(
    function: Function, visited: Visited, queries: NDArray[np.int64], length: int
) -> tuple[float, ...]:
    """Return the share of |gradient| x deviation that falls on each step back."""
    x, is_first = _windows(function, visited, queries, length)
    keys, count = function.smooth, len(queries)
    leaves = {key: x[key].requires_grad_() for key in keys}
    params = _unrolled(function, x, is_first)
    total = torch.zeros(length)
    for k in range(params.shape[1]):
        centred = params[:, k] - params.mean(1)
        slopes = torch.autograd.grad(
            centred.sum(), list(leaves.values()), retain_graph=True, allow_unused=True
        )
        for key, slope in zip(keys, slopes, strict=True):
            if slope is None:
                continue
            spread = x[key].detach().std(0, keepdim=True)
            size = (slope * spread).abs().view(length, count, -1).sum(2)
            total += size.sum(1)
    shares = (total / total.sum().clamp(min=1e-12)).flip(0)  # from the present one backwards
    return tuple(float(share) for share in shares)


@torch.no_grad()
def _attention(
    function: Function, visited: Visited, queries: NDArray[np.int64], length: int
) -> tuple[float, ...]:
    x, is_first = _windows(function, visited, queries, length)
    with _inputs_of_blocks(function.network, Block) as seen:
        _unrolled(function, x, is_first)
    found = []
    for block, (given, unseen) in seen:
        weights, _ = block.attention(block.norm(given), unseen)
        found.append(weights[:, :, -1].mean((0, 1)).flip(0)[:length])  # of the last query
    return tuple(float(share) for share in torch.stack(found).mean(0))


@torch.no_grad()
def _decision_attention(function: Function, states: States) -> tuple[float, ...]:
    with _inputs_of_blocks(function.network, DecisionBlock) as seen:
        policy_parameters(function, states)
    found = []
    for block, (given, unseen) in seen:
        weights, _ = block.attention(block.norm(given), unseen)
        last = weights[:, :, -2].mean((0, 1))  # of the last observation's token
        found.append(last.view(-1, _TOKENS).sum(1).flip(0))
    return tuple(float(share) for share in torch.stack(found).mean(0))


@contextmanager
def _inputs_of_blocks(network: nn.Module, kind: type[nn.Module]) -> Iterator[list[Any]]:
    """Keep each block of a transformer with what it was given."""
    seen: list[Any] = []
    hooks = [
        part.register_forward_pre_hook(lambda block, given: seen.append((block, given)))
        for part in network.modules()
        if isinstance(part, kind)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def forgotten(states: States, policy: Policy) -> States:
    """Return the same states with an empty memory."""
    fresh = tree_map(np.array, policy.initial_carry(len(states)))
    return States(states.obs, fresh, states.action)
