"""What soft actor-critic does with Box actions, for all algorithms that improve their policy so.

Twin critics, a tanh-squashed Gaussian and a temperature (arXiv:1812.05905); log-probabilities are
those of the unit action in (-1, 1).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from assay.algorithms.base import bound
from assay.core.types import Clock, Spaces, unpack
from assay.functional import targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import QEnsemble
from assay.networks.squashed import SquashedActor
from assay.networks.temperature import Temperature
from assay.optim.objective import Loss
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak, Step

Losses = tuple[Loss, Loss, Loss]


class Tempered(Protocol):
    """Whose temperature holds an entropy."""

    temperature: Temperature
    target_entropy: float


class SoftLearner(Tempered, Protocol):
    """Whose networks the losses read and the step moves."""

    hp: Any
    clock: Clock
    step: Step
    actor: Any  # a SquashedActor
    critic: Any
    target: Any

    def noise(self, *shape: int) -> Tensor:
        """Draw standard normal noise."""

    def make_step(self, objectives: list[Objective], *, polyak: list[Polyak]) -> Step:
        """Return the optimizer step of some losses."""


class SoftNetworks(NamedTuple):
    """The networks of a soft actor-critic."""

    actor: SquashedActor
    critic: nn.Module
    target: nn.Module
    temperature: Temperature


def soft_networks(
    spaces: Spaces, hp: Any, device: torch.device, *, layer_norm: bool = False
) -> SoftNetworks:
    """Make the networks for Box actions, with critics that are normalised or not."""
    encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
    actor = SquashedActor(encoder, encoder.out_features, spaces.action)
    critic = QEnsemble(spaces.observation, actor.size, **hp.encoder(layer_norm=layer_norm))
    critic = critic.to(device)
    temperature = Temperature(hp.first_alpha).to(device)
    return SoftNetworks(actor.to(device), critic, copy.deepcopy(critic), temperature)


def target_entropy(hp: Any, actor: SquashedActor) -> float:
    """Return the entropy to hold: -dim(A) unless it is set."""
    return -float(actor.size) if hp.target_entropy == "auto" else float(hp.target_entropy)


def soft_step(learner: SoftLearner, hp: Any, losses: Losses) -> Step:
    """Return the step of critics, actor and targets, and of the temperature if it is learned."""
    rule = Adam(max_grad_norm=hp.max_grad_norm)
    objectives = [
        Objective("critic", learner.critic, losses[0], rule),
        Objective("actor", learner.actor, losses[1], rule),
    ]
    if hp.alpha == "auto":
        objectives.append(Objective("alpha", learner.temperature, losses[2]))
    return learner.make_step(objectives, polyak=[Polyak(learner.target, learner.critic, hp.tau)])


def soft_losses(learner: SoftLearner) -> Losses:
    """Return the losses of critics, actor and temperature as functions of a batch."""
    return bound(critic_loss, learner), bound(actor_loss, learner), bound(alpha_loss, learner)


def soft_update(learner: SoftLearner, batch: dict[str, Tensor]) -> None:
    """Move critics, actor, temperature and targets once."""
    shape = (len(batch["reward"]), *learner.actor.distribution.noise_shape)
    batch["noise"], batch["next_noise"] = learner.noise(*shape), learner.noise(*shape)
    learner.step(batch, learner.hp.rates(learner.step, learner.clock.progress))


def critic_loss(learner: SoftLearner, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the critics; the batch has `next_noise`."""
    obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
    with torch.no_grad():
        next_action, next_log_pi = learner.actor.sample(next_obs, batch["next_noise"])
        # y = r + gamma (1 - d) (min_i Q'_i(s', a') - alpha log pi(a'|s'))
        soft = learner.target(next_obs, next_action).amin(0) - learner.temperature() * next_log_pi
        y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], soft)
    q = learner.critic(obs, learner.actor.scale.to_unit(batch["action"]))  # q: [2, B]
    return 0.5 * (q - y).square().mean(1).sum(), {"q_mean": q.mean()}


def actor_loss(learner: SoftLearner, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the actor; the batch has `noise`, and gets `entropy`."""
    obs = unpack("obs", batch)
    action, log_pi = learner.actor.sample(obs, batch["noise"])
    alpha = learner.temperature().detach()
    # J = E[alpha log pi(a|s) - min_i Q_i(s, a)]
    loss = (alpha * log_pi - learner.critic(obs, action).amin(0)).mean()
    batch["entropy"] = -log_pi.detach().mean()  # the temperature's loss reads it
    return loss, {"entropy": batch["entropy"], "alpha": alpha}


def alpha_loss(learner: Tempered, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the temperature, after that of the actor."""
    return learner.temperature.loss(batch["entropy"], learner.target_entropy), {}
