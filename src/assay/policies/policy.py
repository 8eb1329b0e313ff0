"""What acts: the only part of a learner that leaves it.

A `Policy` is a network, a head that decides, and how both explore. It acts on NumPy observations:
in NumPy on a CPU where every layer can be described, else in torch. It gives itself away as a torch
module (for export and for a GPU) and as a model file (for clients, which need no torch).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.types import Action, Spaces, Tree, action_mask, tree_leaves
from assay.networks.noisy import has_noise, resample_noise, set_noise
from assay.networks.normalize import RunningNormalizer
from assay.networks.rnn import Remembering
from assay.policies.forward import Forward
from assay.policies.heads import Head
from assay.policies.model_file import Snapshot
from assay.policies.parts import Array
from assay.policies.snapshot import load_arrays, load_normalization, make_policy_snapshot


@dataclass(eq=False, repr=False)
class Policy:
    """Act, and hand out what acts.

    Build it after the parameters have been flattened (by an optimizer step), because it may hold
    views of them. A change of the parameters in place is seen by the next action.

    Attributes:
        spaces: What it sees and does.
        network: From observations to the parameters of the head.
        head: Decides by these.
        device: Where the network lives.
        rng: Explores.
        normalizer: Brings observations to what the network takes, if given.
        behaviour: The network that explores, where it is another one.
        levels: Draws the quantile levels of an exploring step, for a network that is given them.
    """

    spaces: Spaces
    network: nn.Module
    head: Head
    _: KW_ONLY
    device: torch.device
    rng: np.random.Generator
    normalizer: RunningNormalizer | None = None
    behaviour: nn.Module | None = None
    levels: Callable[[np.random.Generator], Array] | None = None

    def __post_init__(self) -> None:
        """Prepare the networks to be called on NumPy arrays."""
        network, other = self.network, self.behaviour
        self.noisy = has_noise(network)
        self._memory = network.memory if isinstance(network, Remembering) else None
        self._exploring = self._greedy = Forward(network, self.device, noisy=False)
        if self.noisy or other is not None:
            self._exploring = Forward(other or network, self.device, noisy=self.noisy)

    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose actions for N canonical observations (NumPy in, NumPy out).

        `carry` is what the previous call returned, `initial_carry(N)` at first. With `explore`,
        sample as in training; else take the best action.
        """
        rng = self.rng if explore else None
        if self._memory is None:
            params = partial(self._params, obs, rng)
        else:
            numbers, carry = self.advance(obs, carry)
            params = partial(_given, numbers)
        rows = len(tree_leaves(obs)[0])
        action, extras = self.head.choose(params, rows, action_mask(obs), rng)
        return Action(action, carry, extras)

    def advance(self, obs: Tree, carry: Tree) -> tuple[Array, Tree]:
        """Return the head's parameters [N, P] for one step of a memory, and the carry after it."""
        seen = obs if self.normalizer is None else self.normalizer.normalize(obs)
        return self._greedy.step(seen, carry)

    def parameters(self, obs: Tree) -> Array:
        """Return the head's parameters [N, P] for N canonical observations, without exploring.

        Not for a policy with a memory. The array may be overwritten by the next call.
        """
        return self._params(obs, None)

    def _params(self, obs: Tree, rng: np.random.Generator | None) -> Array:
        if self.normalizer is not None:
            obs = self.normalizer.normalize(obs)
        if rng is None:
            return self._greedy.call(obs)
        if self.noisy:
            resample_noise(self.network, rng)
        if self.levels is None:
            return self._exploring.call(obs)
        return self._exploring.call(obs, self.levels(rng))

    def initial_carry(self, n: int) -> Tree:
        """Return what the policy carries from step to step at an episode's start, or None."""
        return None if self._memory is None else self._memory.initial(n)

    @property
    def wants_rewards(self) -> bool:
        """Return whether acting depends on rewards, which `rewarded` has to be told."""
        return self._memory is not None and self._memory.wants_rewards

    def rewarded(self, carry: Tree, reward: Array) -> Tree:
        """Return what `act` carries on, after rewards [N] were given for its actions."""
        return self._memory.rewarded(carry, reward) if self._memory is not None else carry

    def module(self) -> nn.Module:
        """Return a torch module `observation -> best action`, normalisation included.

        With a memory it is `(observation, carry) -> (best action, carry)`. Its parameters are
        copies, on the network's device.
        """
        network = copy.deepcopy(self.network)
        set_noise(network, False)
        return PolicyModule(network, self.normalizer, self.head.best)

    def snapshot(
        self,
        algorithm: str,
        *,
        version: int,
        epoch: int = 0,
        noise: np.random.Generator | None = None,
    ) -> Snapshot:
        """Return the policy as one model version, which clients run without torch.

        Exploration goes with it as it is now: epsilon, or the noise of a deterministic policy. A
        network with noisy layers explores by its weights, so its noise is drawn here, once for each
        published version.

        Without `noise` that of the weights is left off.

        Raises:
            ModelError: The policy has a part that clients cannot run; it is named.
        """
        network = copy.deepcopy(self.network).to("cpu", torch.float32)
        if noise is not None:
            resample_noise(network, noise)
        return make_policy_snapshot(
            algorithm,
            self.spaces,
            network,
            self.head,
            self.normalizer,
            version=version,
            epoch=epoch,
            noisy=noise is not None,
        )

    def load(self, snapshot: Snapshot, seen: int) -> None:
        """Restore the weights and the normalisation of a model file, in place.

        Args:
            snapshot: What `snapshot` returned for a policy of this kind. The noise of noisy layers,
                which it holds folded into the weights, becomes a part of their means.
            seen: Observations that the file's normalisation comes from.

        Raises:
            ModelError: The file is one of another policy; the first difference is named.
        """
        network = copy.deepcopy(self.network).to("cpu", torch.float32)
        load_arrays(network, snapshot.arrays)
        self.network.load_state_dict(network.state_dict())
        if self.normalizer is not None:
            load_normalization(self.normalizer, snapshot, seen)


class PolicyModule(nn.Module):
    """The deterministic policy as one torch module: normalisation, network, decision."""

    def __init__(
        self,
        network: nn.Module,
        normalizer: RunningNormalizer | None,
        decide: Callable[[Tensor, Tensor | None], Tensor],
    ) -> None:
        super().__init__()
        self.network = network
        self.normalizer = normalizer
        self.decide = decide

    @property
    def remembers(self) -> bool:
        """Return whether `forward` takes and returns a carry."""
        return isinstance(self.network, Remembering)

    def forward(self, obs: Tree, carry: Tree = None) -> Any:
        """Return the best action [B, ...]; with a memory, and the carry after it."""
        mask = action_mask(obs)
        if self.normalizer is not None:
            obs = self.normalizer.normalize_torch(obs)
        if not isinstance(self.network, Remembering):
            return self.decide(self.network(obs), mask)
        params, carry = self.network.step(obs, carry)
        return self.decide(params, mask), carry


def _given(params: Array) -> Array:
    return params
