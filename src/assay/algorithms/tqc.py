"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269).

Soft actor-critic whose critics predict the distribution of the return as quantiles. The target
pools the quantiles of all target critics, sorts them and drops the largest, which is a finer
cure for overestimation than the minimum of two critics:

    y_i = r + gamma (1 - d) (z_(i) - alpha log pi(a'|s')),  i = 1 .. N (n - dropped per critic)

and each critic's quantiles are regressed on all y_i with the quantile Huber loss. The actor
climbs the mean of all quantiles of all critics, truncated nowhere.

Deviations: as in our SAC, log-probabilities are those of the action in (-1, 1), without the
Jacobian of the scale to the environment's bounds; the target entropy -dim(A) belongs to that
space; the temperature's gradient is taken with respect to log alpha. The loss is a mean over
quantiles and targets as in the paper, and a sum over critics. Hidden layers are (256, 256), for
the paper's three of 512.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    EntropySettings,
    HindsightSettings,
    NormalizeSettings,
    PolyakSettings,
)
from assay.algorithms.shared import soft
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.types import Batch, Spaces, Tree, unpack
from assay.functional.distributional import atom_targets, quantile_midpoints
from assay.networks.encoders import make_encoder
from assay.networks.heads import make_ensemble
from assay.networks.squashed import SquashedActor
from assay.networks.temperature import Temperature
from assay.policies.heads import SquashedHead


class QuantileCritic(nn.Module):
    """Critics that predict quantiles of the return: (obs, action) -> [members, B, quantiles].

    Attributes:
        tau: The quantiles' levels, the midpoints (2i - 1) / 2n.
    """

    tau: Tensor

    def __init__(self, space: Any, action_size: int, hp: Any) -> None:
        super().__init__()
        self.encoder, self.members = make_ensemble(
            space, action_size, hp.n_quantiles, members=hp.n_critics, **hp.encoder()
        )
        self.register_buffer("tau", quantile_midpoints(hp.n_quantiles), persistent=False)

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the quantiles of every member."""
        flat = action.reshape(action.shape[0], -1)
        return self.members(torch.cat([self.encoder(obs), flat], dim=1))


@register(
    loop="off_policy",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:2005.04269",
    traits=("hindsight",),
)
class TQC(Algorithm):
    """SAC with truncated quantile critics. Often better than SAC, at a higher cost per update."""

    class Hyperparameters(
        EntropySettings, HindsightSettings, NormalizeSettings, PolyakSettings, ActorCriticSettings
    ):
        """Settings of TQC."""

        n_critics: int = Field(5, gt=0, description="Critics in the ensemble.")
        n_quantiles: int = Field(25, gt=0, description="Quantiles that each critic predicts.")
        top_quantiles_to_drop_per_net: int = Field(
            2, ge=0, description="Largest pooled target quantiles dropped, per critic."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        if hp.top_quantiles_to_drop_per_net >= hp.n_quantiles:
            raise ConfigError(
                f"top_quantiles_to_drop_per_net={hp.top_quantiles_to_drop_per_net} leaves nothing "
                f"of n_quantiles={hp.n_quantiles}.",
                f"Drop at most {hp.n_quantiles - 1}; 2 of 25 is the usual choice.",
            )
        self.needs = hp.needs(her=hp.hindsight())
        self.kept = hp.n_critics * (hp.n_quantiles - hp.top_quantiles_to_drop_per_net)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
        self.actor = SquashedActor(encoder, encoder.out_features, spaces.action).to(self.device)
        size, self.target_entropy = self.actor.size, soft.target_entropy(hp, self.actor)
        self.critic = QuantileCritic(spaces.observation, size, hp).to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.temperature = Temperature(hp.first_alpha).to(self.device)
        losses = self._critic_loss, self._actor_loss, self._alpha_loss
        self.step = soft.soft_step(self, hp, losses)
        self.policy = self.make_policy(self.actor.net, SquashedHead(spaces.action))

    def update(self, data: Replay[Batch]) -> None:
        """Move critics, actor, temperature and targets once, on one replay batch."""
        soft.soft_update(self, self.replay_tensors(data.sample(self.hp.batch_size)))

    _alpha_loss = soft.alpha_loss

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            next_action, next_log_pi = self.actor.sample(next_obs, batch["next_noise"])
            pooled = self.target(next_obs, next_action).transpose(0, 1).flatten(1)  # [B, members n]
            # The smallest of the pool: those that no critic's optimism has reached. [B, kept]
            kept = pooled.sort(dim=1).values[:, : self.kept]
            soft_q = kept - (self.temperature() * next_log_pi).unsqueeze(1)
            y = atom_targets(batch["reward"], batch["discount"], batch["terminated"], soft_q)
        z = self.critic(obs, self.actor.scale.to_unit(batch["action"]))  # z: [members, B, n]
        tau = self.critic.tau.repeat(len(z))
        errors = sorted_quantile_huber(z.transpose(0, 1).flatten(1), y, tau)  # [B, members n]
        return errors.mean(0).sum() / self.hp.n_quantiles, {"q_mean": z.mean()}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        action, log_pi = self.actor.sample(obs, batch["noise"])
        alpha = self.temperature().detach()
        # J = E[alpha log pi(a|s) - mean of all quantiles of all critics]
        loss = (alpha * log_pi - self.critic(obs, action).mean((0, 2))).mean()
        batch["entropy"] = -log_pi.detach().mean()  # the temperature's loss reads it
        return loss, {"entropy": batch["entropy"], "alpha": alpha}


def sorted_quantile_huber(predicted: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """Return the quantile Huber loss (kappa 1) of each quantile, averaged over sorted targets.

    `functional.losses.quantile_huber` compares each quantile with each target. Here the targets
    are sorted already, so that those below, near and above a quantile are ranges whose sums are
    differences of running sums: K log M work in place of K M, which is most of an update.

    Args:
        predicted: [B, K], with gradient.
        target: [B, M], ascending along M.
        tau: [K], the levels of `predicted`.

    Returns:
        [B, K].
    """
    # The sums of squares cancel: take all relative to the middle of the item's targets.
    middle = target.mean(1, keepdim=True)
    y, z = target - middle, predicted - middle
    edges = torch.cat([z - 1.0, z, z + 1.0], dim=1).detach()
    below = torch.searchsorted(y, edges)  # how many targets are below each edge
    n_far, n_under, n_near = below.to(y.dtype).chunk(3, dim=1)
    # In float64, since differences of long sums cancel.
    sums = F.pad(y.double().cumsum(1), (1, 0))
    s_far, s_under, s_near = sums.gather(1, below).chunk(3, dim=1)
    squares = F.pad(y.double().square().cumsum(1), (1, 0))
    q_far, q_under, q_near = squares.gather(1, below).chunk(3, dim=1)

    def half_squares(n: Tensor, s: Tensor, q: Tensor) -> Tensor:
        # sum of (z - y)^2 / 2 over n targets of sum s and sum of squares q
        return 0.5 * (n * z * z + q) - z * s

    # huber(u) = u^2 / 2 within 1, |u| - 1/2 beyond; weight 1 - tau where y < z, tau above
    under = half_squares(n_under - n_far, s_under - s_far, q_under - q_far)
    under = under + n_far * (z - 0.5) - s_far
    over = half_squares(n_near - n_under, s_near - s_under, q_near - q_under)
    over = over + sums[:, -1:] - s_near - (y.shape[1] - n_near) * (z + 0.5)
    return (((1.0 - tau) * under + tau * over) / y.shape[1]).to(predicted.dtype)
