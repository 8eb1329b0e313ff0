"""Deep Q-network (Mnih et al. 2015, doi:10.1038/nature14236), with its well-known options.

Options: double (arXiv:1509.06461), dueling (arXiv:1511.06581), noisy (arXiv:1706.10295), n-step
returns, prioritised replay (arXiv:1511.05952), random network distillation (arXiv:1810.12894): the
novelty of the next state, as it is when it is sampled, is added to the reward.

Deviations: the Huber loss has no error clipping beyond delta 1; target copies are counted in
updates, not in environment steps; invalid actions (masks) are excluded from the greedy value.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.algorithms.novelty import Curiosity
from assay.buffers.hindsight import HindsightOptions
from assay.core.config import Model, reject_unused_setting
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import Schedule, linear
from assay.core.types import Spaces, Tree, action_mask, pack, tree_map, unpack
from assay.functional import losses, targets
from assay.networks.encoders import make_encoder, refuse_without_vectors
from assay.networks.heads import DuelingHead
from assay.networks.mlp import mlp
from assay.networks.rnd import Distillation
from assay.networks.value_update import draw_transitions, learn_values
from assay.optim.update import Objective, Polyak, Step
from assay.policies.exploration import ProbabilitySchedule
from assay.policies.heads import GreedyHead


@register(loop="off_policy", actions=("Discrete",), family="value", paper="doi:10.1038/nature14236")
class DQN(Algorithm):
    """Deep Q-network: double, dueling, noisy, n-step and prioritised are options."""

    class Hyperparameters(Model):
        """Settings of DQN."""

        lr: Schedule = Field(Schedule.parse(1e-4), description="Learning rate or schedule.")
        batch_size: int = Field(32, gt=0, description="Transitions per gradient step.")
        buffer_size: int = Field(1_000_000, gt=0, description="Transitions kept in the replay.")
        learning_starts: int = Field(100, ge=0, description="Random steps before learning.")
        train_every: int = Field(4, gt=0, description="Environment steps per round of updates.")
        updates: int = Field(1, gt=0, description="Gradient steps per round.")
        target_every: int = Field(2500, gt=0, description="Updates between target copies.")
        tau: float = Field(1.0, gt=0, le=1, description="Below 1: Polyak target every update.")
        gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
        epsilon: ProbabilitySchedule = Field(
            linear(1.0, 0.05, 0.1), description="Share of random actions; a schedule."
        )
        double: bool = Field(False, description="Choose with the online network (double DQN).")
        dueling: bool = Field(False, description="Separate value and advantage streams.")
        noisy: bool = Field(False, description="Explore with noisy layers, not epsilon.")
        n_step: int = Field(1, gt=0, description="Steps before bootstrapping.")
        rnd: float = Field(0.0, ge=0, description="Weight of novelty (RND); 0 is none.")
        her: Literal["future", "final", "episode"] | None = Field(
            None, description="Relabel goals in hindsight with goals that were reached."
        )
        her_ratio: float = Field(0.8, gt=0, le=1, description="Share of relabelled samples.")
        prioritized: bool = Field(False, description="Sample by TD error.")
        priority_alpha: float = Field(0.6, ge=0, le=1, description="How much priorities count.")
        priority_beta: ProbabilitySchedule = Field(
            linear(0.4, 1.0), description="Importance correction, annealed to 1."
        )
        max_grad_norm: float | None = Field(10.0, gt=0, description="Global gradient clip.")
        normalize_obs: bool = Field(False, description="Standardise float observations.")
        normalize_reward: bool = Field(False, description="Divide by the std of returns.")
        hidden: tuple[int, ...] = Field((64, 64), description="Widths of the hidden layers.")
        activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = Field(
            "relu", description="Nonlinearity of the hidden layers."
        )
        cnn: Literal["nature", "impala"] = Field("nature", description="Image encoder.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        reject_unused_setting(hp, "epsilon", active=not hp.noisy, why="noisy=true")
        reject_unused_setting(hp, "target_every", active=hp.tau == 1, why=f"tau={hp.tau:g}")
        for name in ("priority_alpha", "priority_beta"):
            reject_unused_setting(hp, name, active=hp.prioritized, why="prioritized=false")
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
        self.needs = ReplayNeeds(
            capacity=hp.buffer_size, learning_starts=hp.learning_starts,
            train_every=hp.train_every, updates=hp.updates, n_step=hp.n_step, gamma=hp.gamma,
            prioritized=hp.priority_alpha if hp.prioritized else None,
            her=HindsightOptions.of(hp),
        )  # fmt: skip
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        self.q = self._network().to(self.device)
        self.target = copy.deepcopy(self.q)
        soft = [Polyak(self.target, self.q, hp.tau)] if hp.tau < 1 else []
        updates = context.clock.total_env_steps / hp.train_every * hp.updates
        objectives = [Objective("q", self.q, self._loss, hp.max_grad_norm)]
        reads = [self.target]
        if hp.rnd:
            distillation = Distillation(spaces.observation, hidden=hp.hidden, cnn=hp.cnn)
            self.distillation = distillation.to(self.device)
            predictor = self.distillation.predictor
            objectives.append(Objective("rnd", predictor, self.distillation.loss))
            reads.append(self.distillation.target)
        self.step = Step(
            objectives, reads=reads, polyak=soft, mode=self.mode(updates), key=self.step_key
        )
        epsilon = None if hp.noisy else (lambda n: hp.epsilon(self.clock.progress))
        self.policy = self.make_policy(self.q, GreedyHead(spaces.action, epsilon))
        self.curiosity = None
        if hp.rnd:
            self.curiosity = Curiosity(
                self.distillation, spaces.observation, context.num_envs, hp.gamma, self.device
            )

    def _network(self) -> nn.Module:
        hp = self.hp
        encoder = make_encoder(
            self.spaces.observation, hidden=hp.hidden, activation=hp.activation, cnn=hp.cnn,
            init="torch", noisy=hp.noisy,
        )  # fmt: skip
        refuse_without_vectors(hp, encoder, "hidden", "activation")
        if hp.dueling:
            head: nn.Module = DuelingHead(
                encoder.out_features, self.actions, init="torch", noisy=hp.noisy
            )
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

    def update(self, data: Any) -> None:
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
        loss = (losses.huber(td_error) * batch.get("weight", 1.0)).mean()
        metrics = {"q_mean": q.mean()}
        if self.hp.prioritized:
            metrics["priority"] = td_error
        return loss, metrics
