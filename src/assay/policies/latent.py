"""Acting in the latent space of a world model, which is told what was done."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from assay.core.types import Action, Tree, action_mask, pack, tree_leaves, tree_map, unpack
from assay.functional.layout import box_scale
from assay.networks.tensors import to_device
from assay.networks.world_model import LatentActor
from assay.optim import cuda_graph
from assay.optim.compile_cache import Program
from assay.policies import description, distributions
from assay.policies.heads import Extras, Params, to_box
from assay.policies.numpy_network import Described
from assay.policies.parts import Array, ModelError
from assay.policies.policy import Policy

_TINY = np.float32(1e-30)  # an exponential number may round to zero, whose logarithm is infinite


@dataclass(eq=False, repr=False)
class LatentPolicy(Policy):
    """A policy that carries a latent state and the last action, in torch.

    Exploring, the latent state is drawn from its distribution, like the action; else both are the
    most likely ones.
    """

    network: LatentActor

    def __post_init__(self) -> None:
        """Prepare to act."""
        super().__post_init__()
        self._graphs: cuda_graph.ShapedGraphs | None = None

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose actions for N canonical observations (NumPy in, NumPy out)."""
        rng, rows = self.rng if explore else None, len(tree_leaves(obs)[0])
        gumbel = None if rng is None else self._gumbel(rng, rows)
        step = self._by_graph if self.device.type == "cuda" else self._by_layers
        numbers, carried = step(obs, carry, gumbel)
        action, extras = self.head.choose(lambda: numbers, rows, action_mask(obs), rng)
        return Action(action, self.acted(carried, action), extras)

    def _by_layers(self, obs: Tree, carry: Tree, gumbel: Array | None) -> tuple[Array, Tree]:
        """Return the actor's parameters [N, P] and the carry, layer by layer."""
        seen, before, noise = (to_device(x, self.device) for x in (obs, carry, gumbel))
        params, after = self.network.step(seen, before, noise)
        return params.cpu().numpy(), tree_map(lambda x: x.cpu().numpy(), after)

    def _by_graph(self, obs: Tree, carry: Tree, gumbel: Array | None) -> tuple[Array, Tree]:
        """Return the same with one launch, and one copy of all numbers to the GPU and back."""
        widths = {name: part.shape[1] for name, part in carry.items()}
        noise = [] if gumbel is None else [gumbel.reshape(len(gumbel), -1)]
        packed = np.concatenate([*carry.values(), *noise], axis=1)
        seen = pack("obs", to_device(obs, self.device))
        inputs = [*seen.values(), to_device(packed, self.device)]
        if self._graphs is None:
            self._graphs = cuda_graph.ShapedGraphs(self._packed(list(seen), widths))
        [out] = self._graphs(inputs)
        *after, params = np.split(out.cpu().numpy(), np.cumsum([*widths.values()]), axis=1)
        return params, dict(zip(widths, after, strict=True))

    def _packed(self, seen: list[str], widths: dict[str, int]) -> Program:
        """Return a step on observations and (carry, noise) [N, F], giving (carry, parameters)."""
        rssm, width = self.network.memory, sum(widths.values())

        def program(*tensors: Tensor) -> list[Tensor]:
            *obs, packed = tensors
            parts = packed[:, :width].split(list(widths.values()), dim=1)
            noise = packed[:, width:]
            gumbel = noise.unflatten(1, (rssm.stoch, rssm.classes)) if noise.shape[1] else None
            params, after = self.network.step(
                unpack("obs", dict(zip(seen, obs, strict=True))),
                dict(zip(widths, parts, strict=True)),
                gumbel,
            )
            return [torch.cat([*(after[name] for name in widths), params], dim=1)]

        return program

    def acted(self, carry: Tree, action: Array) -> Tree:
        """Return the carry after actions [N, ...] of the environment were taken."""
        space = self.spaces.action
        if isinstance(space, gym.spaces.Discrete):
            taken = np.eye(int(space.n), dtype=np.float32)[action]
        else:
            center, half_width = box_scale(space)
            taken = ((action - center) / half_width).reshape(len(action), -1).astype(np.float32)
        return {**carry, "action": taken}

    def _gumbel(self, rng: np.random.Generator, rows: int) -> Array:
        rssm = self.network.memory
        noise = rng.standard_exponential((rows, rssm.stoch, rssm.classes), dtype=np.float32)
        return -np.log(np.maximum(noise, _TINY))


class BoundedNormalHead:
    """A normal distribution in the unit box, cut at its bounds and scaled to those of a Box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self.space = space
        self._distribution = distributions.policy_distribution(space)
        self._scale = distributions.ActionScale(space)

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Sample with `rng`, or take the mean without one."""
        numbers, distribution = params(), self._distribution
        if rng is None:
            unit = distribution.mode(numbers)
        else:
            unit = distribution.sample(numbers, distribution.draw_noise(rng, (n,)))
        return self._scale.to_env(np.clip(unit, -1.0, 1.0)), {}

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mean."""
        mean = params.chunk(2, dim=-1)[0]
        return to_box(mean.reshape(-1, *self.space.shape), self.space)

    def describe(self, network: Described) -> description.Head:
        """Raise: a model file has no such distribution."""
        raise ModelError("A policy in the latent space of a world model has no model file.")
