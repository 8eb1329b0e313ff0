"""A policy that plans: it explores by the random numbers of its plans."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from assay.core.types import Action, Tree, pack, tree_leaves, tree_map, unpack
from assay.networks.latent import LatentPlanner
from assay.networks.tensors import to_device
from assay.optim import cuda_graph
from assay.optim.wide import has_wide_layers, wide_products
from assay.policies.policy import Policy


class PlanningPolicy(Policy):
    """Plan again for every action, in torch; the last plan is carried.

    Without exploration it is a function of observation and carry. On a GPU a plan is one CUDA
    graph. Clients without torch cannot run it.
    """

    network: LatentPlanner

    def __post_init__(self) -> None:
        """Prepare to act."""
        super().__post_init__()
        self._graphs: dict[bool, cuda_graph.ShapedGraphs] = {}
        self._wide = has_wide_layers([self.network])

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose actions for N canonical observations, as `Policy.act` does."""
        rows = len(tree_leaves(obs)[0])
        seen = obs if self.normalizer is None else self.normalizer.normalize(obs)
        noise = self.network.draw(self.rng, rows) if explore else {}
        trees = {"obs": seen, "carry": carry, "noise": noise}
        inputs = {
            name: x
            for part, tree in trees.items()
            for name, x in pack(part, to_device(tree, self.device)).items()
        }
        plan = self._by_graph if self.device.type == "cuda" else self._plan
        with wide_products(self._wide):
            unit, after = plan(inputs)
        action, extras = self.head.choose(lambda: unit.cpu().numpy(), rows, None, None)
        return Action(action, tree_map(lambda x: x.cpu().numpy(), after), extras)

    def _plan(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tree]:
        """Return unit actions and the carry; noise among the inputs means exploration."""
        obs, carry, noise = (unpack(part, inputs) for part in ("obs", "carry", "noise"))
        if noise:
            return self.network.plan(obs, carry, noise, explore=True)
        return self.network.step(obs, carry)

    def _by_graph(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tree]:
        """Return the same with one launch."""
        names = list(inputs)

        def program(*tensors: Tensor) -> list[Tensor]:
            unit, after = self._plan(dict(zip(names, tensors, strict=True)))
            return [unit, after["plan"]]

        explore = any(name.startswith("noise/") for name in names)
        graphs = self._graphs.setdefault(explore, cuda_graph.ShapedGraphs(program))
        unit, plan = graphs(list(inputs.values()))
        return unit, {"plan": plan}
