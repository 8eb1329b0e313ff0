"""How learners of action values act: the best action, a random one, or one of the two by chance.

Everything here takes plain values [N, A] and action masks, so that it serves every network that
can produce values: a table of expectations, sampled quantiles, a recurrent network with a carry.
A row whose mask allows nothing is read as one without a mask, here as in the losses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium.spaces import Discrete
from torch import Tensor

from assay.functional.targets import mask_values


class GreedyActions:
    """Choose among the actions of a Discrete space by their values.

    Attributes:
        count: Number of actions A.

    Example:
        >>> choose = GreedyActions(Discrete(3))
        >>> choose.best(np.array([[1.0, 9.0, 2.0]]), mask=np.array([[1, 0, 1]])).tolist()
        [2]
    """

    def __init__(self, space: Discrete) -> None:
        self.count = int(space.n)

    def best(self, values: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the valid action [N] of the highest of `values` [N, A]."""
        if mask is not None:
            values = np.where(_allowed(mask), values, -np.inf)
        return values.argmax(1)

    def random(
        self, rng: np.random.Generator, n: int, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Return uniform draws [n] from the valid actions."""
        if mask is None:
            return rng.integers(self.count, size=n)
        return (rng.random((n, self.count)) * _allowed(mask)).argmax(1)

    def explore(
        self,
        rng: np.random.Generator,
        epsilon: float | np.ndarray,
        n: int,
        values: Callable[[], np.ndarray],
        mask: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return actions [n] that are random with probability epsilon and else the best.

        Args:
            rng: Source of randomness.
            epsilon: One probability for all rows, or [n].
            n: Number of rows.
            values: Gives the action values [n, A]; not called when every row is random.
            mask: [n, A] of valid actions, or None.
        """
        random = rng.random(n) < epsilon
        explorers = np.count_nonzero(random)
        if explorers == n:
            return self.random(rng, n, mask)
        action = self.best(values(), mask)
        if explorers:
            action[random] = self.random(rng, n, mask)[random]
        return action

    def decide(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the best valid action [N] in torch, as the `decide` of an exported policy."""
        return mask_values(values, mask).argmax(1)


def _allowed(mask: np.ndarray) -> np.ndarray:
    """Return which actions [N, A] may be taken; where a mask allows none, all."""
    allowed = mask != 0
    nothing = ~allowed.any(1, keepdims=True)
    return allowed | nothing
