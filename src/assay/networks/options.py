"""An actor-critic on two levels: options that act, and a policy that chooses among them."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.core.images import has_images
from assay.core.types import Tree
from assay.functional.distributions import DiagGaussian, Distribution
from assay.networks.custom import DEFAULT
from assay.networks.encoders import make_encoder
from assay.networks.heads import POLICY_GAIN
from assay.networks.mlp import initialise, mlp
from assay.networks.rnn import Carry, Memory, Remembering

HALF = 0.5  # the chance of having ended at which an option ends where nothing is drawn


class Levels(NamedTuple):
    """What both levels say about B observations.

    Attributes:
        params: [B, K, P], the parameters of every option's policy.
        termination: [B, K], logits of the chance that an option ends here.
        choice: [B, K], logits of the policy over options.
    """

    params: Tensor
    termination: Tensor
    choice: Tensor


class CurrentOption(Memory):
    """The option that acts, as a carry: [n, K], 1 at the option and zeros before the first choice.

    `ended` [n] is the chance that it would have ended by now, where ends are not drawn.
    """

    def __init__(self, options: int) -> None:
        super().__init__()
        self.options = options

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return the carry of an episode in which no option was chosen yet."""
        return {
            "ended": np.zeros(n, np.float32),
            "option": np.zeros((n, self.options), np.float32),
        }

    def forward(self, x: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Raise: options are not unrolled, an update reads the recorded ones."""
        raise NotImplementedError


class OptionActorCritic(Remembering):
    """K options with policies and terminations, a policy over them, and Q of each of them.

    One encoder and one linear layer give both levels; values have an encoder of their own, unless
    there are images or the user's own network. For the other arguments see `make_encoder` and
    `GaussianHead`; every option has its own log-std.
    """

    memory: CurrentOption
    center: Tensor
    half_width: Tensor

    def __init__(
        self,
        space: gym.Space[Any],
        distribution: Distribution,
        options: int,
        *,
        hidden: tuple[int, ...],
        activation: str,
        cnn: str,
        network: str = DEFAULT,
        log_std_init: float = 0.0,
        scale: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        given: dict[str, Any] = {
            "hidden": hidden, "activation": activation, "cnn": cnn, "network": network,
        }  # fmt: skip
        self.options = options
        self.encoder = make_encoder(space, **given)
        self.memory = CurrentOption(options)
        self.gaussian = isinstance(distribution, DiagGaussian)
        self.width = distribution.param_size // (2 if self.gaussian else 1)
        features = self.encoder.out_features
        self.head = initialise(nn.Linear(features, options * (self.width + 2)), POLICY_GAIN)
        if self.gaussian:
            self.log_std = nn.Parameter(torch.full((options, self.width), log_std_init))
            center, half_width = scale or (np.zeros(self.width), np.ones(self.width))
            # Constants of the environment: not a part of a checkpoint.
            for name, values in (("center", center), ("half_width", half_width)):
                numbers = torch.from_numpy(np.asarray(values, np.float32))
                self.register_buffer(name, numbers, persistent=False)
        self.shared = has_images(space) or network != DEFAULT
        self.value_encoder = nn.Identity() if self.shared else make_encoder(space, **given)
        self.value_head = mlp((features, options), output_gain=1.0)

    def forward(self, obs: Tree) -> tuple[Levels, Tensor]:
        """Return what both levels say, and Q [B, K] of every option."""
        features = self.encoder(obs)
        other = features if self.shared else self.value_encoder(obs)
        return self._levels(features), self.value_head(other)

    def step(self, obs: Tree, carry: Carry) -> tuple[Tensor, Carry]:
        """Return the parameters [B, P] of the best option, and the carry; nothing is drawn.

        An option ends once the chance that it would have ended by now exceeds one half: at the
        median of its lengths. The best is the most likely one.
        """
        levels, before = self._levels(self.encoder(obs)), carry["option"]
        ends = (levels.termination.sigmoid() * before).sum(-1)
        ended = 1.0 - (1.0 - carry["ended"]) * (1.0 - ends)
        new = (ended > HALF) | (before.sum(-1) == 0)
        places = torch.arange(self.options, device=before.device)
        best = (places == levels.choice.argmax(-1, keepdim=True)).to(before.dtype)
        option = torch.where(new.unsqueeze(-1), best, before)
        params = (levels.params * option.unsqueeze(-1)).sum(1)
        return params, {"ended": torch.where(new, 0.0, ended), "option": option}

    def _levels(self, features: Tensor) -> Levels:
        raw, k = self.head(features), self.options
        params, termination, choice = raw.split([k * self.width, k, k], dim=-1)
        params = params.unflatten(-1, (k, self.width))
        if self.gaussian:
            mean = params * self.half_width + self.center
            log_std = self.log_std + self.half_width.log()
            params = torch.cat([mean, log_std.expand_as(mean)], dim=-1)
        return Levels(params, termination, choice)
