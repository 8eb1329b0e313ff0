"""TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828): plan in a latent world model, for Box actions.

A model is learned by what it is used for: the next latent state, rewards, values and ends,
over short stretches of replayed episodes; nothing is reconstructed. To act, MPPI draws plans, some
of them from a policy that follows the critics, rolls them out in the model and adds the value of
where they end. Every environment's plan is made in one batch.

Episodes may end: a terminated step has no value behind it, in the targets and, by a head that
predicts ends (as in the authors' later code), in plans; a truncated one bootstraps. A stretch does
not reach into the next episode, and steps that an episode is too short for do not count.

Deviations: without exploration all steps share the same draws, and the mean of the elites is done,
where the paper draws one of them; the critics drop units in their own loss, not in the policy's;
images go through the encoders that all algorithms have, without random shifts; the entropy bonus
is that of the Gaussian before the tanh times dim(A), which is what the authors' scaling comes to.
One task, not many: there are no task embeddings.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import NormalizeObsSettings, ReplaySettings, Unused
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.images import has_images
from assay.core.registry import register
from assay.core.types import Action, Problem, SequenceBatch, Spaces, Tree, pack, tree_map, unpack
from assay.functional.symlog import symlog, two_hot, two_hot_cross_entropy
from assay.functional.targets import td_target
from assay.networks.heads import ActionScale
from assay.networks.latent import (
    ASKED,
    LatentActor,
    LatentModel,
    LatentPlanner,
    PlanOptions,
    RunningScale,
)
from assay.optim.noise import NoiseSpec
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak, Step
from assay.policies.heads import DeterministicHead
from assay.policies.planning import PlanningPolicy

EPISODE_SHARE = 5  # by default the horizon of the discount is an episode's length over this
MANY_ACTIONS = 20  # dimensions from which on plans take two iterations more


@register(
    loop="off_policy", actions=("Box",), family="model-based", paper="arXiv:2310.16828",
    traits=("frugal",),
)  # fmt: skip
class TDMPC2(Algorithm):
    """Planning in a learned latent model. For continuous control with few steps; costs compute."""

    acting_settings = frozenset(
        {"samples", "policy_samples", "elites", "iterations", "plan_temperature"}
    )

    class Hyperparameters(NormalizeObsSettings, ReplaySettings):
        """Settings of TD-MPC2."""

        max_grad_norm: float | None = Field(20.0, gt=0, description="Global gradient clip.")
        batch_size: int = Field(256, gt=0, description="Stretches of steps per gradient step.")
        learning_starts: int = Field(1000, ge=0, description="Random steps before learning.")
        train_every: int = Field(1, gt=0, description="Environment steps per round of updates.")
        pretrain: bool = Field(
            True, description="Begin with as many updates as there were random steps."
        )
        tau: float = Field(0.01, gt=0, le=1, description="Polyak rate of targets and value scale.")
        horizon: int = Field(3, gt=0, description="Steps that are learned from and planned for.")
        rho: float = Field(0.5, gt=0, le=1, description="Weight of a step over the one before it.")
        consistency_coef: float = Field(20.0, ge=0, description="Weight of latent predictions.")
        reward_coef: float = Field(0.1, ge=0, description="Weight of reward predictions.")
        value_coef: float = Field(0.1, ge=0, description="Weight of the critics' loss.")
        termination_coef: float = Field(1.0, ge=0, description="Weight of predicted ends.")
        episodic: bool = Field(True, description="Predict ends of episodes, and plan with them.")
        entropy_coef: float = Field(1e-4, ge=0, description="Weight of the policy's entropy.")
        encoder_lr_share: float = Field(0.3, gt=0, le=1, description="The encoder's share of lr.")
        latent: int = Field(512, gt=0, description="Width of a latent state.")
        width: int = Field(512, gt=0, description="Width of hidden layers.")
        encoder_width: int = Field(256, gt=0, description="Width of the encoder's hidden layer.")
        simplex: int = Field(8, gt=0, description="Numbers of a latent state that sum to 1.")
        critics: int = Field(5, gt=0, description="Critics; targets are the smaller of two.")
        dropout: float = Field(0.01, ge=0, lt=1, description="Dropout of the critics.")
        bins: int = Field(101, gt=1, description="Bins of rewards and values.")
        bin_limit: float = Field(10.0, gt=0, description="Symlog of the largest reward and value.")
        samples: int = Field(512, gt=0, description="Plans that an iteration compares.")
        policy_samples: int = Field(24, ge=0, description="Plans among them from the policy.")
        elites: int = Field(64, gt=0, description="Best plans, which the next iteration follows.")
        iterations: int = Field(6, gt=0, description="Iterations of a plan.")
        plan_temperature: float = Field(
            0.5, ge=0, description="How much the better elites count more; 0: all alike."
        )
        min_std: float = Field(0.05, ge=0, description="Least standard deviation of a plan.")
        max_std: float = Field(2.0, gt=0, description="Largest, which a plan begins with.")
        cnn: Literal["nature", "impala"] = Field("nature", description="Image encoder.")

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return a discount for the length of episodes, and iterations for the actions.

            Both are those of the authors' code.
            """
            fit = super().fitted(problem, given)
            if problem.episode_steps is not None:
                # gamma = (L / 5 - 1) / (L / 5), within bounds
                gamma = 1.0 - EPISODE_SHARE / problem.episode_steps
                fit["gamma"] = min(max(gamma, 0.95), 0.995)
            if int(np.prod(problem.spaces.action.shape or ())) >= MANY_ACTIONS:
                fit["iterations"] = cls.model_fields["iterations"].default + 2
            return fit

        def unused(self, spaces: Spaces) -> Unused:
            """Yield what belongs to other returns, to images or to ends."""
            yield "n_step", "because the model bridges the steps"
            if not has_images(spaces.observation):
                yield "cnn", "because the observation has no images"
            if not self.episodic:
                yield "termination_coef", "with episodic=false"

        def plan_options(self) -> PlanOptions:
            """Return how plans are made; a ConfigError names what does not fit together."""
            for name in ("elites", "policy_samples"):
                if getattr(self, name) > self.samples:
                    raise ConfigError(
                        f"{name}={getattr(self, name)} is more than samples={self.samples}.",
                        f"Lower {name}, or raise samples.",
                    )
            if self.min_std > self.max_std:
                raise ConfigError(
                    f"min_std={self.min_std:g} is above max_std={self.max_std:g}.",
                    "Lower min_std, or raise max_std.",
                )
            return PlanOptions(
                horizon=self.horizon, samples=self.samples, policy_samples=self.policy_samples,
                elites=self.elites, iterations=self.iterations, temperature=self.plan_temperature,
                min_std=self.min_std, max_std=self.max_std, gamma=self.gamma,
                episodic=self.episodic,
            )  # fmt: skip

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        options = hp.plan_options()
        # Each step begins a stretch that is stored whole, so that any can be drawn.
        self.needs = hp.needs(
            capacity=hp.buffer_size * hp.horizon, sequence=hp.horizon, overlap=hp.horizon - 1
        )
        self.scale = ActionScale(spaces.action).to(self.device)
        self.size = int(np.prod(spaces.action.shape))
        self.model = LatentModel(
            spaces.observation, self.size, latent=hp.latent, width=hp.width,
            encoder_width=hp.encoder_width, simplex=hp.simplex, critics=hp.critics,
            dropout=hp.dropout, bins=hp.bins, limit=hp.bin_limit, cnn=hp.cnn,
        ).to(self.device)  # fmt: skip
        # A step averages whole modules; of this one only the critics are read.
        self.target = copy.deepcopy(self.model)
        self.actor = LatentActor(hp.latent, hp.width, self.size).to(self.device)
        self.value_scale = RunningScale(hp.tau, hp.bin_limit).to(self.device)
        self.step = self._make_step()
        planner = LatentPlanner(self.model, self.actor, spaces.action.shape, options)
        self.policy = PlanningPolicy(
            spaces, planner.to(self.device), DeterministicHead(spaces.action, lambda: 0.0),
            device=self.device, rng=self.rng, normalizer=self.obs_norm,
        )  # fmt: skip

    def _make_step(self) -> Step:
        hp = self.hp
        rows = hp.horizon, hp.batch_size
        noise = {
            "next_noise": NoiseSpec((*rows, self.size)),
            "noise": NoiseSpec((hp.horizon + 1, hp.batch_size, self.size)),
        }
        if hp.dropout:
            shape = hp.critics, hp.horizon * hp.batch_size, hp.width
            noise["dropout"] = NoiseSpec(shape, "uniform")
        return self.make_step(
            [
                Objective(
                    "model", self.model, self._model_loss, Adam(max_grad_norm=hp.max_grad_norm),
                    shares=(("encoder", hp.encoder_lr_share),),
                ),
                Objective(
                    "policy", self.actor, self._policy_loss,
                    Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm),
                ),
            ],
            polyak=[Polyak(self.target, self.model, hp.tau)],
            noise=noise,
        )  # fmt: skip

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Plan; but not where the loop takes random actions and only asks for the carry."""
        if explore and self.clock.env_steps < self.hp.learning_starts:
            middle = np.zeros((len(carry["plan"]), *self.spaces.action.shape), np.float32)
            return Action(self.policy.head.choose(lambda: middle, 0, None, None)[0], carry)
        return super().act(obs, carry, explore)

    def update(self, data: Replay[SequenceBatch]) -> None:
        """Move model, policy and targets once; at first as often as there were random steps."""
        first = self.hp.pretrain and self.step.updates == 0
        for _ in range(max(1, self.hp.learning_starts) if first else 1):
            self.step(self._batch(data), self.hp.lr(self.clock.progress))

    def drain_metrics(self) -> dict[str, float]:
        """Return what was reported; warn of rewards and values that were clipped."""
        self.value_scale.warn_of_clipping()
        return super().drain_metrics()

    def _batch(self, data: Replay[SequenceBatch]) -> dict[str, Tensor]:
        """Draw stretches and the critics that are asked; time comes first: [H, B, ...]."""
        hp, sample = self.hp, data.sample(self.hp.batch_size)
        obs = sample.obs
        if self.obs_norm is not None:
            obs = self.obs_norm.normalize_torch(obs)
        batch = pack("obs", tree_map(lambda x: x.transpose(0, 1), obs))
        batch["action"] = self.scale.to_unit(sample.action).flatten(2).transpose(0, 1)
        for name in ("reward", "terminated", "valid"):
            batch[name] = getattr(sample, name).t()
        asked = [self.rng.choice(hp.critics, min(ASKED, hp.critics), False) for _ in range(2)]
        batch["members"] = torch.from_numpy(np.stack(asked)).to(self.device)
        return batch

    def _model_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, model, obs = self.hp, self.model, unpack("obs", batch)
        action, valid, terminated = batch["action"], batch["valid"], batch["terminated"]
        next_z, y = self._targets(batch)  # [H, B, L], [H, B]
        self.value_scale.watch(batch["reward"] * valid, y * valid)
        states = [model.encode(tree_map(lambda x: x[0], obs))]
        for t in range(hp.horizon):
            states.append(model.next(states[t], action[t]))
        zs = torch.stack(states)  # [H + 1, B, L]
        batch["zs"] = zs.detach()  # the policy's loss reads them
        weight = self._weights(hp.horizon, valid) * valid  # rho^t
        error = (zs[1:] - next_z).square().mean(-1)
        consistency = (weight * error).mean()
        logits = model.reward_logits(zs[:-1], action)
        reward = two_hot_cross_entropy(logits, symlog(batch["reward"]), model.bins)
        reward_loss = (weight * reward).mean()
        # The cross-entropy is linear in log p, so the mean over critics can be taken first.
        logits = model.q_logits(zs[:-1], action, noise=batch.get("dropout"))  # [critics, H, B, K]
        log_p = logits.log_softmax(-1).mean(0)
        value_loss = -(weight * (two_hot(symlog(y), model.bins) * log_p).sum(-1)).mean()
        loss = (
            hp.consistency_coef * consistency
            + hp.reward_coef * reward_loss
            + hp.value_coef * value_loss
        )
        metrics = {
            "consistency_loss": consistency, "reward_loss": reward_loss,
            "value_loss": value_loss, "target_mean": (y * valid).sum() / valid.sum(),
        }  # fmt: skip
        if hp.episodic:
            ends = model.end_logits(zs[1:])
            wrong = F.binary_cross_entropy_with_logits(ends, terminated, reduction="none")
            metrics["termination_loss"] = (wrong * valid).mean()
            loss = loss + hp.termination_coef * metrics["termination_loss"]
        return loss, metrics

    @torch.no_grad()
    def _targets(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the latent states that followed, [H, B, L], and the targets of values [H, B]."""
        reward = batch["reward"]
        after = tree_map(lambda x: x[1:].flatten(0, 1), unpack("obs", batch))
        next_z = self.model.encode(after).unflatten(0, reward.shape)
        action, _ = self.actor.sample(next_z, batch["next_noise"])
        logits = self.target.q_logits(next_z, action, batch["members"][0])
        # y = r + gamma (1 - d) min of two Q'(z', a'), a' ~ pi(z')
        q = self.target.number(logits).amin(0)
        discount = torch.full_like(q, self.hp.gamma)
        r, gamma, d, value = (x.flatten() for x in (reward, discount, batch["terminated"], q))
        return next_z, td_target(r, gamma, d, value).view_as(q)

    def _policy_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, zs, valid = self.hp, batch["zs"], batch["valid"]
        action, log_prob = self.actor.sample(zs, batch["noise"])
        q = self.model.number(self.model.q_logits(zs, action, batch["members"][1])).mean(0)
        self.value_scale.follow(q[0])
        reached = torch.cat([torch.ones_like(valid[:1]), valid])  # [H + 1, B]
        weight = self._weights(hp.horizon + 1, valid) * reached
        # J = E[sum_t rho^t (Q(z_t, a) / S + beta H)], H scaled by dim(A)
        entropy = -log_prob * self.size
        scale = self.value_scale.scale
        loss = -(weight * (q / scale + hp.entropy_coef * entropy)).mean()
        return loss, {"q_mean": q[0].mean(), "q_scale": scale, "entropy": -log_prob.mean()}

    def _weights(self, steps: int, like: Tensor) -> Tensor:
        """Return rho^t as a column [steps, 1]."""
        return self.hp.rho ** torch.arange(steps, device=like.device).unsqueeze(1)
