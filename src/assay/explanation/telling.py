"""The states that tell most about an agent: clear and close decisions, and surprises."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from assay.core.types import action_mask
from assay.explanation.functions import Function, inputs_of, policy_parameters
from assay.explanation.states import States, Visited
from assay.functional.targets import mask_values
from assay.policies.policy import Policy

Floats = NDArray[np.float64]
_APART = 5  # steps between two states of an episode
_CHUNK = 256


@torch.no_grad()
def scores_of(function: Function, states: States) -> Floats:
    """Return what is explained in each state, [S, K]."""
    parts = [states.take(slice(i, i + _CHUNK)) for i in range(0, len(states), _CHUNK)]
    found = [function.on(part)(inputs_of(function, part)) for part in parts]
    return torch.cat(found).numpy().astype(np.float64)


@torch.no_grad()
def decisions(policy: Policy, function: Function, states: States) -> dict[str, Floats]:
    """Return how telling the decision in each state is, by reason.

    Discrete: what the worst action would cost (max - min of the scores, "Highlights", Amir and Amir
    2018), and how close the second best is. Else: how far the action is from the usual one.
    """
    space = policy.spaces.action
    if not isinstance(space, spaces.Discrete):
        scores = scores_of(function, states)
        return {"unusual action": np.linalg.norm(scores - scores.mean(0), axis=1)}
    spread, gap = [], []
    for i in range(0, len(states), _CHUNK):
        part = states.take(slice(i, i + _CHUNK))
        values = policy_parameters(function, part)[:, : int(space.n)]
        mask = action_mask(part.obs)
        valid = mask_values(values, None if mask is None else torch.from_numpy(mask))
        best = valid.sort(1, descending=True).values
        lowest = torch.where(valid.isfinite(), valid, torch.inf).amin(1)
        spread.append((best[:, 0] - lowest).numpy())
        gap.append((best[:, 0] - best[:, 1]).numpy())
    return {
        "most at stake": np.concatenate(spread).astype(np.float64),
        "closest call": -np.concatenate(gap).astype(np.float64),
    }


def choose(reasons: Mapping[str, Floats], visited: Visited, each: int) -> list[tuple[int, str]]:
    """Return rows of states with the reason: of every reason the `each` that have most of it.

    States of one episode are some steps apart.
    """
    found: list[tuple[int, str]] = []
    orders = {
        reason: [int(row) for row in np.argsort(-score, kind="stable") if np.isfinite(score[row])]
        for reason, score in reasons.items()
    }
    for _ in range(each):  # in turn, so that few states serve every reason
        for reason, order in orders.items():
            free = (row for row in order if all(_apart(visited, row, other) for other, _ in found))
            found += [(row, reason) for row in [next(free, None)] if row is not None]
    return sorted(found, key=lambda one: list(orders).index(one[1]))


def _apart(visited: Visited, row: int, other: int) -> bool:
    if visited.episode[row] != visited.episode[other]:
        return True
    return abs(int(visited.time[row]) - int(visited.time[other])) >= _APART
