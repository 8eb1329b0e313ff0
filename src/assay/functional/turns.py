"""Advantages of agents that do not act in every step."""

from __future__ import annotations

import numpy as np

from assay.functional.returns import FloatArray, gae_numpy

Flags = np.ndarray


def turns_gae_numpy(
    reward: FloatArray,
    value: FloatArray,
    next_value: FloatArray,
    terminated: Flags,
    truncated: Flags,
    acts: Flags,
    gamma: float,
    lam: float,
) -> tuple[FloatArray, FloatArray]:
    """Return generalised advantages and targets [T, M] over the steps in which an agent acts.

    A step of an agent goes from one of its turns to the next: it is paid the sum of what comes in
    between, discounted once, and followed by the value at its next turn. Rows in which it does not
    act get 0. Where it always acts, this is `gae_numpy`.

    Args:
        reward: [T, M].
        value: [T, M], V of what an agent sees.
        next_value: [T, M], V of what truly followed each row.
        terminated: [T, M], the agent, or its episode, ended in a terminal state with this row.
        truncated: [T, M], the agent, or its episode, was cut off with this row.
        acts: [T, M], whether the agent acts in this row.
        gamma: Discount from turn to turn.
        lam: Weight of longer returns.
    """
    if acts.all():
        return gae_numpy(reward, value, next_value, terminated, truncated, gamma, lam)
    advantage, target = np.zeros_like(value), np.zeros_like(value)
    # What follows a row, up to the agent's next turn: rewards, then a value and an advantage.
    paid, ahead, later = np.zeros_like(value[0]), next_value[-1], np.zeros_like(value[0])
    for t in range(len(reward) - 1, -1, -1):
        ended = terminated[t] | truncated[t]
        paid = reward[t] + np.where(ended, 0.0, paid)
        ahead = np.where(terminated[t], 0.0, np.where(truncated[t], next_value[t], ahead))
        later = np.where(ended, 0.0, later)
        # delta = sum r + gamma V(next turn) - V;  A = delta + gamma lambda A(next turn)
        own = paid + gamma * ahead - value[t] + gamma * lam * later
        advantage[t] = np.where(acts[t], own, 0.0)
        target[t] = np.where(acts[t], own + value[t], 0.0)
        paid = np.where(acts[t], 0.0, paid)
        ahead = np.where(acts[t], value[t], ahead)
        later = np.where(acts[t], own, later)
    return advantage, target
