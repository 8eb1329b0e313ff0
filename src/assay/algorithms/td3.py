"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

Three repairs of DDPG: the smaller of two critics in the target, a noisy (clipped) target action,
and an actor and targets that move only every other update.

Deviations: actions and both noises live in the unit box (-1, 1), so that noise 0.2 and clip 0.5
are shares of the environment's action scale.
"""

from __future__ import annotations

import copy

import numpy as np
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    HindsightSettings,
    NormalizeSettings,
    PolyakSettings,
    SmoothingSettings,
)
from assay.algorithms.shared.delayed import (
    delayed_steps,
    deterministic_networks,
    first_critic_loss,
    twin_critic_loss,
)
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces
from assay.networks.heads import ActionScale
from assay.policies.heads import DeterministicHead


@register(
    loop="off_policy",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:1802.09477",
    traits=("hindsight",),
)
class TD3(Algorithm):
    """Deterministic actor-critic: clipped double-Q targets, delayed updates. Cheaper than SAC."""

    class Hyperparameters(
        SmoothingSettings, HindsightSettings, NormalizeSettings, PolyakSettings, ActorCriticSettings
    ):
        """Settings of TD3."""

        learning_starts: int = Field(1000, ge=0, description="Random steps before learning.")
        exploration_noise: Schedule = Field(
            constant(0.1), description="Noise of acting, in units of the action scale."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(her=hp.hindsight())
        size = int(np.prod(spaces.action.shape))
        self.actor, self.critic = deterministic_networks(spaces.observation, size, hp, self.device)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.scale = ActionScale(spaces.action).to(self.device)
        losses = self._critic_loss, self._actor_loss
        self.critic_step, self.full_step = delayed_steps(self, *losses)
        head = DeterministicHead(
            spaces.action, noise=lambda: hp.exploration_noise(self.clock.progress)
        )
        self.policy = self.make_policy(self.actor, head)

    def update(self, data: Replay[Batch]) -> None:
        """Move the critics; every `policy_delay` updates also the actor and the targets."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        batch["noise"] = self.noise(self.hp.batch_size, *self.spaces.action.shape)
        due = (self.updates + 1) % self.hp.policy_delay == 0
        step = self.full_step if due else self.critic_step
        step(batch, self.hp.rates(step, self.clock.progress))

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # y = r + gamma (1 - d) min_i Q'_i(s', a'),  a' = clip(mu'(s') + clip(eps, -c, c), -1, 1)
        return twin_critic_loss(self, batch, self.scale.to_unit(batch["action"]))

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # J = -E[Q_1(s, mu(s))]
        return first_critic_loss(self, batch)
