"""Deep Q-network (Mnih et al. 2015, doi:10.1038/nature14236), with its well-known options.

Options: double (arXiv:1509.06461), dueling (arXiv:1511.06581), noisy (arXiv:1706.10295), n-step
returns, prioritised replay (arXiv:1511.05952), random network distillation (arXiv:1810.12894): the
novelty of the next state, as it is when it is sampled, is added to the reward.

Deviations: the Huber loss has no error clipping beyond its delta; target copies are counted in
updates, not in environment steps; invalid actions (masks) are excluded from the greedy value.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import HindsightSettings, Unused, ValueSettings
from assay.algorithms.shared.novelty import Curiosity
from assay.algorithms.shared.value_learning import draw_transitions, learn_values
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces, Tree, action_mask, pack, tree_map, unpack
from assay.functional import losses, targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import DuelingHead
from assay.networks.mlp import mlp
from assay.networks.rnd import Distillation
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(
    loop="off_policy",
    actions=("Discrete",),
    family="value",
    paper="doi:10.1038/nature14236",
    traits=("baseline", "hindsight", "novelty"),
)
class DQN(Algorithm):
    """Q-learning from a replay. The baseline for discrete actions; extensions are options."""

    class Hyperparameters(HindsightSettings, ValueSettings):
        """Settings of DQN."""

        lr: Schedule = Field(constant(1e-4), description="Learning rate or schedule.")
        loss: Literal["huber", "mse"] = Field("huber", description="Loss of the TD error.")
        huber_delta: float = Field(
            1.0, gt=0, description="TD error beyond which the Huber loss is linear."
        )
        rnd: float = Field(0.0, ge=0, description="Weight of novelty (RND); 0 is none.")

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the bend of the Huber loss where the loss is another one."""
            if self.loss != "huber":
                yield "huber_delta", f"with loss={self.loss}"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        if hp.rnd and hp.gamma == 1:
            raise ConfigError(
                f"rnd={hp.rnd:g} with gamma=1: novelty that is never discounted adds up for ever.",
                "Use a gamma below 1 with rnd.",
            )
        if hp.rnd and hp.n_step > 1:
            raise ConfigError(
                f"rnd={hp.rnd:g} with n_step={hp.n_step}: the replay knows the last of n states "
                "alone, so the novelty of the others would be lost.",
                "Use n_step=1 with rnd.",
            )
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(her=hp.hindsight())
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        self.q = self._network().to(self.device)
        self.target = copy.deepcopy(self.q)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        objectives = [Objective("q", self.q, self._loss, rule)]
        if hp.rnd:
            distillation = Distillation(spaces.observation, hidden=hp.hidden, cnn=hp.cnn)
            self.distillation = distillation.to(self.device)
            predictor = self.distillation.predictor
            objectives.append(Objective("rnd", predictor, self.distillation.loss))
        self.step = self.make_step(objectives, polyak=hp.follow(self.target, self.q))
        self.policy = self.make_policy(self.q, GreedyHead(spaces.action, hp.explorer(self.clock)))
        self.curiosity = None
        if hp.rnd:
            self.curiosity = Curiosity(
                self.distillation, spaces.observation, context.num_envs, hp.gamma, self.device
            )

    def _network(self) -> nn.Module:
        hp = self.hp
        encoder = make_encoder(
            self.spaces.observation, **hp.encoder(), init="torch", noisy=hp.noisy
        )
        if hp.dueling:
            head: nn.Module = DuelingHead(encoder.out_features, self.actions, noisy=hp.noisy)
        else:
            head = mlp((encoder.out_features, self.actions), init="torch", noisy=hp.noisy)
        return nn.Sequential(encoder, head)

    @property
    def has_running_stats(self) -> bool:
        """Return whether collected data must be shown: novelty needs it as well."""
        return super().has_running_stats or self.curiosity is not None

    def update_obs_stats(self, obs: Tree, valid: Any = None) -> None:
        """See collected observations, and follow how novel they are."""
        super().update_obs_stats(obs, valid)
        if self.curiosity is not None:
            rows = None if valid is None else valid[None]
            self.curiosity.observe(tree_map(lambda x: x[None], obs), rows)

    def update(self, data: Replay[Batch]) -> None:
        """Take one gradient step on a replay batch; move the target when it is due."""
        sample, batch = draw_transitions(self, data)
        if self.curiosity is not None:
            batch |= pack("novel", self.curiosity.tensors(sample.next_obs))
            batch["bonus"] = torch.tensor(self.hp.rnd * self.curiosity.scale, device=self.device)
        lr = self.hp.lr(self.clock.progress)
        learn_values(self, data, sample, batch, lr, noisy=self.hp.noisy)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        mask = action_mask(next_obs)
        q = targets.action_value(self.q(obs), batch["action"])
        with torch.no_grad():
            target_q = self.target(next_obs)
            if self.hp.double:
                next_value = targets.double_q_value(self.q(next_obs), target_q, mask)
            else:
                next_value = targets.greedy_value(target_q, mask)
            reward = batch["reward"]
            if self.hp.rnd:  # novelty is what it is now, not what it was when the state was met
                reward = reward + batch["bonus"] * self.distillation.error(unpack("novel", batch))
            # y = r + gamma^k (1 - terminated) max_a Q'(s', a)
            y = targets.td_target(reward, batch["discount"], batch["terminated"], next_value)
        td_error = q - y
        if self.hp.loss == "huber":
            item = losses.huber(td_error, self.hp.huber_delta)
        else:
            item = 0.5 * td_error.square()  # what Huber is for a large delta
        loss = (item * batch.get("weight", 1.0)).mean()
        metrics = {"q_mean": q.mean()}
        if self.hp.prioritized:
            metrics["priority"] = td_error
        return loss, metrics
