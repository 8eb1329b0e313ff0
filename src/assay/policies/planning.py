"""A policy that plans: it explores by the random numbers of its plans."""

from __future__ import annotations

import torch

from assay.core.types import Action, Tree, tree_leaves, tree_map
from assay.networks.latent import LatentPlanner
from assay.networks.tensors import to_device
from assay.policies.policy import Policy


class PlanningPolicy(Policy):
    """Plan again for every action, in torch; the last plan is carried.

    Without exploration it is a function of observation and carry. Clients without torch cannot
    run it.
    """

    network: LatentPlanner

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose actions for N canonical observations, as `Policy.act` does."""
        if not explore:
            return super().act(obs, carry)
        seen = obs if self.normalizer is None else self.normalizer.normalize(obs)
        rows = len(tree_leaves(obs)[0])
        noise = self.network.draw(self.rng, rows)
        inputs = (to_device(tree, self.device) for tree in (seen, carry, noise))
        unit, after = self.network.plan(*inputs, explore=True)
        action, extras = self.head.choose(lambda: unit.cpu().numpy(), rows, None, None)
        return Action(action, tree_map(lambda x: x.cpu().numpy(), after), extras)
