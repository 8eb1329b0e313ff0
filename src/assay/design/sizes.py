"""How large things are: widths, bytes, rewards per episode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.design.problem import Bound, Problem, RewardTerm, State, StateEntry

_BYTES = {"float32": 4, "float64": 8, "uint8": 1, "int32": 4, "int64": 8, "bool": 1}


def limits(bound: Bound) -> tuple[float, ...]:
    """Return the numbers of a bound, none if it is missing."""
    if bound is None:
        return ()
    return tuple(bound) if isinstance(bound, Sequence) else (float(bound),)


def in_order(low: Bound, high: Bound) -> bool:
    """Return whether every lower bound is below its upper one; what is missing is in order."""
    bounds = limits(low), limits(high)
    size = max(map(len, bounds))
    lows, highs = (one * size if len(one) == 1 else one for one in bounds)
    return all(a < b for a, b in zip(lows, highs, strict=False))


def width(entry: StateEntry) -> int:
    """Return how many numbers a network gets of an entry."""
    if entry.kind == "category":
        return (entry.size or 0) * entry.history
    return math.prod(entry.shape or (0,)) * entry.history if entry.kind != "text" else 0


def step_bytes(entry: StateEntry) -> int:
    """Return the bytes that an entry takes in a buffer, per step."""
    if entry.kind == "category":
        return 8 * entry.history
    default = "uint8" if entry.kind in ("image", "binary") else "float32"
    return width(entry) * _BYTES[entry.dtype or default]


def state_bytes(state: State) -> int:
    """Return the bytes of one observation; what is privileged is stored as well."""
    return sum(step_bytes(entry) for entry in state.entries)


def action_numbers(problem: Problem) -> int:
    """Return how many numbers an action is stored as."""
    action = problem.action
    if action is None:
        return 0
    if action.kind == "hybrid":
        return sum(math.prod(part.shape or (1,)) for part in action.parts)
    if action.kind == "multi_discrete":
        return len(action.sizes or ())
    return math.prod(action.shape) if action.shape else (action.n or 1 if _bits(problem) else 1)


def _bits(problem: Problem) -> bool:
    return problem.action is not None and problem.action.kind == "multi_binary"


def transition_bytes(problem: Problem, *, both: bool) -> int:
    """Return the bytes of one stored step; `both` if the next observation is stored as well."""
    observed = state_bytes(problem.state) if problem.state is not None else 0
    # Reward, ends and discount: 4 numbers of 4 bytes.
    return observed * (2 if both else 1) + 4 * action_numbers(problem) + 16


def episode_sum(gamma: float, steps: int) -> float:
    """Return the discounted sum of 1 per step: (1 - gamma^T) / (1 - gamma).

    Example:
        >>> round(episode_sum(0.5, 3), 3), episode_sum(1.0, 10)
        (1.75, 10.0)
    """
    return float(steps) if gamma == 1 else (1 - gamma**steps) / (1 - gamma)


def term_range(term: RewardTerm) -> tuple[float, float] | None:
    """Return the smallest and largest weighted value of a term at one step, if it is known."""
    if term.low is None or term.high is None:
        return None
    one, two = term.weight * term.low, term.weight * term.high
    return min(one, two), max(one, two)


def term_size(term: RewardTerm, gamma: float, steps: int) -> float | None:
    """Return the largest discounted size of a term over an episode.

    A dense term counts at every step, a sparse one once in the middle, a terminal one at the end.
    """
    spread = term_range(term)
    if spread is None:
        return None
    largest = max(map(abs, spread))
    if term.kind == "dense":
        return largest * episode_sum(gamma, steps)
    return float(largest * gamma ** (steps // 2 if term.kind == "sparse" else steps))


def assumed_gamma(problem: Problem) -> float:
    """Return the discount, or what most algorithms take where it is not said."""
    return problem.mdp.gamma if problem.mdp is not None and problem.mdp.gamma else 0.99


def assumed_steps(problem: Problem) -> int:
    """Return the steps of an episode, or 1000 where nothing says."""
    mdp = problem.mdp
    return (mdp.horizon or mdp.limit or 1000) if mdp is not None else 1000
