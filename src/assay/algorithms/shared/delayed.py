"""What algorithms share whose actor and targets move less often than their critics (TD3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from assay.core.types import unpack
from assay.functional import targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import QEnsemble
from assay.networks.mlp import mlp
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak, Step

Loss = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


def deterministic_networks(
    space: gym.Space[Any], size: int, hp: Any, device: torch.device, **critics: Any
) -> tuple[nn.Sequential, QEnsemble]:
    """Return an actor with `size` numbers in (-1, 1), and critics, with more settings of these."""
    encoder = make_encoder(space, **hp.encoder(), init="torch")
    actor = nn.Sequential(encoder, mlp((encoder.out_features, size), init="torch"), nn.Tanh())
    return actor.to(device), QEnsemble(space, size, **hp.encoder(**critics)).to(device)


def delayed_steps(
    algorithm: Any, critic_loss: Loss, actor_loss: Loss, level: str = ""
) -> tuple[Step, Step]:
    """Return the step of the critics alone, and the one of critics, actor and targets.

    `algorithm` has `actor`, `critic`, `target_actor` and `target_critic`, each with `level` before
    its name, and the settings of `SmoothingSettings` with `tau`.
    """
    hp, rule = algorithm.hp, Adam(max_grad_norm=algorithm.hp.max_grad_norm)
    networks = {name: getattr(algorithm, level + name) for name in _NETWORKS}
    critic = Objective(f"{level}critic", networks["critic"], critic_loss, rule)
    actor = Objective(f"{level}actor", networks["actor"], actor_loss, rule)
    soft = [
        Polyak(networks["target_critic"], networks["critic"], hp.tau),
        Polyak(networks["target_actor"], networks["actor"], hp.tau),
    ]
    first = algorithm.make_step([critic])
    return first, algorithm.make_step([critic, actor], polyak=soft, share=first)


_NETWORKS = ("actor", "critic", "target_actor", "target_critic")


def twin_critic_loss(
    algorithm: Any, batch: dict[str, Tensor], action: Tensor, level: str = ""
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of TD3's critics for unit actions, with a target action that is smoothed.

    `algorithm` is that of `delayed_steps`; the batch has standard normal `noise`.
    """
    hp = algorithm.hp
    _, critic, target_actor, target_critic = (getattr(algorithm, level + n) for n in _NETWORKS)
    obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
    with torch.no_grad():
        # a' = clip(mu'(s') + clip(eps, -c, c), -1, 1)
        next_action = targets.smoothed_action(
            target_actor(next_obs), batch["noise"], hp.target_noise, hp.target_noise_clip
        )
        # y = r + gamma (1 - d) min_i Q'_i(s', a')
        next_q = target_critic(next_obs, next_action).amin(0)
        y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], next_q)
    q = critic(obs, action)  # q: [2, B]
    return (q - y).square().mean(1).sum(), {f"{level}q_mean": q.mean()}


def first_critic_loss(
    algorithm: Any, batch: dict[str, Tensor], level: str = ""
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of TD3's actor."""
    actor, critic = (getattr(algorithm, level + name) for name in ("actor", "critic"))
    obs = unpack("obs", batch)
    # J = -E[Q_1(s, mu(s))]
    return -critic(obs, actor(obs))[0].mean(), {}
