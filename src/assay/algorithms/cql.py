"""Conservative Q-learning (Kumar et al. 2020, arXiv:2006.04779), for Box and Discrete actions.

CQL(H): the critics are pushed down on all actions (a log-sum-exp) and up on the recorded ones, so
that actions outside the data look bad. With Box actions on top of SAC, with the log-sum-exp
estimated from uniform actions and those of the policy at s and s', all valued at s; with Discrete
actions on top of double DQN, where it is exact.

Deviations: the squared TD error has no factor 1/2 and the target no entropy, as in the paper's
code. The policy does not begin with imitation. For Discrete actions the paper has quantiles.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import EntropySettings, OfflineActorCriticSettings, Unused
from assay.algorithms.shared import soft
from assay.algorithms.shared.mixed_settings import EpsilonSettings
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, action_mask, unpack
from assay.functional import losses, targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import QEnsemble
from assay.networks.mlp import mlp
from assay.networks.squashed import SquashedActor
from assay.networks.temperature import Temperature
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak, Step
from assay.policies.heads import GreedyHead, SquashedHead

_LARGEST = 1e6  # weight of the conservative term, where it is learned
_OF_BOX = ("samples", "least_gap", "actor_lr", "alpha", "alpha_init", "alpha_lr", "target_entropy")


@register(
    loop="offline",
    actions=("Box", "Discrete"),
    family="actor-critic",
    paper="arXiv:2006.04779",
    traits=("recorded",),
)
class CQL(Algorithm):
    """Critics that distrust what the data does not show. For mixed data; slower than IQL."""

    takes_both = True

    class Hyperparameters(EpsilonSettings, EntropySettings, OfflineActorCriticSettings):
        """Settings of CQL."""

        actor_lr: Schedule | None = Field(
            constant(1e-4), description="Learning rate of the policy; null: the same as lr."
        )
        cql_alpha: float = Field(5.0, ge=0, description="Weight of the conservative term.")
        target_gap: float | None = Field(
            None, description="Learn that weight so that the term stays near this number."
        )
        samples: int = Field(10, gt=0, description="Actions of each kind in the log-sum-exp.")
        least_gap: float | None = Field(
            None, description="Where the term of a transition is below this, leave it alone."
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the weight where it is learned, and what Discrete actions have no use for."""
            if self.target_gap is not None:
                yield "cql_alpha", f"with target_gap={self.target_gap}"
            if not isinstance(spaces.action, Box):
                for name in _OF_BOX:
                    yield name, "because the action space is Discrete"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        self.continuous = isinstance(spaces.action, Box)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
        self.lagrange = None if hp.target_gap is None else Temperature(1.0).to(self.device)
        if self.continuous:
            actor: Any = SquashedActor(encoder, encoder.out_features, spaces.action)
            self.actor: Any = actor.to(self.device)
            critic: nn.Module = QEnsemble(spaces.observation, actor.size, **hp.encoder())
            self.temperature = Temperature(hp.first_alpha).to(self.device)
            self.target_entropy = soft.target_entropy(hp, actor)
        else:
            actions = int(spaces.action.n)
            critic = nn.Sequential(encoder, mlp((encoder.out_features, actions), init="torch"))
        self.critic: Any = critic.to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.step = self._make_step()
        if self.continuous:
            self.policy = self.make_policy(self.actor.net, SquashedHead(spaces.action))
        else:
            greedy = GreedyHead(spaces.action, lambda n: hp.epsilon(self.clock.progress))
            self.policy = self.make_policy(self.critic, greedy)

    def _make_step(self) -> Step:
        hp, rule = self.hp, Adam(max_grad_norm=self.hp.max_grad_norm)
        loss = self._critic_loss if self.continuous else self._discrete_critic_loss
        objectives = [Objective("critic", self.critic, loss, rule)]
        if self.lagrange is not None:
            objectives.append(Objective("lagrange", self.lagrange, self._lagrange_loss))
        if self.continuous:
            objectives.append(Objective("actor", self.actor, self._actor_loss, rule))
            if hp.alpha == "auto":
                objectives.append(Objective("alpha", self.temperature, self._alpha_loss))
        return self.make_step(objectives, polyak=[Polyak(self.target, self.critic, hp.tau)])

    def update(self, data: Any) -> None:
        """Move the critics, the policy, what weighs their losses, and the targets, on one batch."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        if self.continuous:
            size, many = self.hp.batch_size, self.hp.samples
            shape = self.actor.distribution.noise_shape
            batch["noise"], batch["next_noise"] = self.noise(size, *shape), self.noise(size, *shape)
            batch["drawn"] = self.noise(size, many, *shape)
            batch["next_drawn"] = self.noise(size, many, *shape)
            uniform = self.rng.uniform(-1.0, 1.0, (size, many, *shape)).astype("float32")
            batch["uniform"] = torch.from_numpy(uniform).to(self.device)
        self.step(batch, self.hp.rates(self.step, self.clock.progress))

    _actor_loss = soft.actor_loss
    _alpha_loss = soft.alpha_loss

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            own = self.actor.sample_many(obs, batch["drawn"])
            following = batch["next_noise"].unsqueeze(1)
            after, (next_action, _) = self.actor.sample_many(
                next_obs, batch["next_drawn"], following
            )
            # y = r + gamma (1 - d) min_i Q'_i(s', a'), a' ~ pi(s')
            next_q = self.target(next_obs, next_action.squeeze(1)).amin(0)
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], next_q)
        # The density of a uniform action in (-1, 1)^d is 0.5^d.
        log_uniform = torch.full_like(own[0][1], self.actor.size * math.log(0.5))
        kinds = [
            (batch["uniform"], log_uniform),
            *own,
            after,
        ]  # actions, log-densities [B, samples]
        recorded = self.actor.scale.to_unit(batch["action"]).unsqueeze(1)
        actions = torch.cat([recorded, *(action for action, _ in kinds)], dim=1)
        every = self.critic.of_many(obs, actions)  # [2, B, 1 + 3 samples], all at s
        q, sampled = every[:, :, 0], every[:, :, 1:] - torch.cat([log for _, log in kinds], dim=1)
        gap = losses.conservative_gap(sampled, q)  # [2, B]
        if self.hp.least_gap is not None:
            # Of narrow data the term has no least: Q of a recorded action rises without end over
            # that of its neighbours, which the targets are made of, and all values sink.
            gap = gap.clamp(min=self.hp.least_gap)
        gap = gap.mean(1)  # [2]
        loss = (q - y).square().mean(1).sum() + self._weight() * gap.sum()
        return self._reported(loss, q, gap.mean(), batch)

    def _discrete_critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            # y = r + gamma (1 - d) Q'(s', argmax_a Q(s', a))
            mask = action_mask(next_obs)
            next_q = targets.double_q_value(self.critic(next_obs), self.target(next_obs), mask)
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], next_q)
        every = self.critic(obs)  # [B, A]
        q = targets.action_value(every, batch["action"])
        valid = targets.mask_values(every, action_mask(obs))
        gap = losses.conservative_gap(valid, q).mean()
        loss = (q - y).square().mean() + self._weight() * gap
        return self._reported(loss, q, gap, batch)

    def _weight(self) -> Tensor | float:
        """Return what the conservative term is multiplied by."""
        if self.lagrange is None:
            return self.hp.cql_alpha
        return self.lagrange().detach().clamp(max=_LARGEST)

    def _reported(
        self, loss: Tensor, q: Tensor, gap: Tensor, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        batch["gap"] = gap.detach()  # the loss of the weight reads it
        return loss, {"q_mean": q.mean(), "gap": batch["gap"]}

    def _lagrange_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        assert self.lagrange is not None
        # The weight rises while the gap is above its target: max over the weight of w (gap - tau)
        weight = self.lagrange().clamp(max=_LARGEST)
        return -weight * (batch["gap"] - self.hp.target_gap), {"cql_alpha": weight.detach()}
