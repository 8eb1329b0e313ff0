"""Cloning of a heuristic: while it acts for a client, the policy learns to do what it does.

The policy gradient leaves these steps out, since the policy did not choose them. Behaviour cloning
with an optimizer of its own takes their place, the less the smaller the heuristic's share is, and
is silent once the policy acts alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from assay.algorithms.base import Algorithm
from assay.core.types import State, Tree, action_mask, tree_map
from assay.networks.actor_critic import Policy
from assay.networks.saving import to_array

LEARNING_RATE = 1e-3
EPOCHS = 10
MINIBATCH = 64

Array = np.ndarray[Any, Any]


class Imitation:
    """Behaviour cloning for an actor-critic.

    Args:
        algorithm: Whose policy learns; its critic is left alone.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        policy = getattr(algorithm, "policy", None)
        assert isinstance(policy, Policy)
        self.algorithm = algorithm
        self.policy = policy
        self.distribution: Any = getattr(algorithm, "distribution", None)
        self.parameters = list(policy.actor.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, LEARNING_RATE)

    def update(self, obs: Tree, action: Array, share: float) -> None:
        """Take some epochs over what the heuristic did.

        Args:
            obs: [K, ...] canonical.
            action: [K, ...] canonical.
            share: Of the heuristic in all steps of the rollout; scales the learning rate.
        """
        count = len(action)
        if not count:
            return
        self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * share
        tensors = self.policy.forward.tensors(self.algorithm.normalized(obs))
        actions = torch.from_numpy(np.ascontiguousarray(action)).to(self.algorithm.device)
        loss = torch.zeros(())
        for _ in range(EPOCHS):
            order = torch.from_numpy(self.algorithm.rng.permutation(count)).to(actions.device)
            for index in torch.split(order, MINIBATCH):
                some = tree_map(lambda x, index=index: x[index], tensors)
                params = self.policy.actor(some)
                # -E[log pi(a|s)], a of the heuristic
                loss = -self.distribution.log_prob(params, actions[index], action_mask(some)).mean()
                self.optimizer.zero_grad()
                loss.backward()
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
        """Put back what `state` returned."""
        for i, parameter in enumerate(self.parameters):
            for name, value in state.get(str(i), {}).items():
                self.optimizer.state[parameter][name] = torch.as_tensor(np.array(value)).to(
                    "cpu" if name == "step" else parameter.device
                )
