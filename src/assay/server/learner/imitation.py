"""Cloning of a heuristic: while it acts for a client, the policy learns to do what it does.

The policy gradient leaves these steps out, since the policy did not choose them. Behaviour cloning
with an optimizer of its own takes their place, the less the smaller the heuristic's share is, and
is silent once the policy acts alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from assay.algorithms.base import Algorithm
from assay.core.types import State
from assay.networks.state_dict import to_array

LEARNING_RATE = 1e-3
EPOCHS = 10
MINIBATCH = 64


class Imitation:
    """Behaviour cloning for an actor-critic.

    Args:
        algorithm: Whose policy learns.
        parameters: Of the policy. What a critic shares with it moves along.
    """

    def __init__(self, algorithm: Algorithm, parameters: list[nn.Parameter]) -> None:
        self.algorithm = algorithm
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, LEARNING_RATE)

    def update(
        self, loss_of: Callable[[Tensor], Tensor], count: int, share: float, size: int = MINIBATCH
    ) -> None:
        """Take some epochs over what the heuristic did.

        Args:
            loss_of: Returns -E[log pi(a|s)] over examples [K], a of the heuristic.
            count: Of the examples; at least one.
            share: Of the heuristic in all steps of the rollout; scales the learning rate.
            size: Examples per minibatch.
        """
        self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * share
        loss = torch.zeros(())
        for _ in range(EPOCHS):
            order = torch.from_numpy(self.algorithm.rng.permutation(count))
            for index in torch.split(order.to(self.algorithm.device), size):
                loss = loss_of(index)
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
        self.optimizer.zero_grad()
        self.algorithm.note(imitation_loss=float(loss.detach()), imitation_share=share)

    def state(self) -> State:
        """Return the optimizer's moments."""
        return {
            str(i): {name: to_array(value) for name, value in self.optimizer.state[p].items()}
            for i, p in enumerate(self.parameters)
            if p in self.optimizer.state
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        for i, parameter in enumerate(self.parameters):
            for name, value in state.get(str(i), {}).items():
                self.optimizer.state[parameter][name] = torch.as_tensor(np.array(value)).to(
                    "cpu" if name == "step" else parameter.device
                )
