"""HIRO (Nachum et al. 2018, arXiv:1805.08296): two levels that learn off-policy, for Box actions.

Every `interval` steps the higher level sets a subgoal g: a difference in a part of the state. In
between it moves by h(s, g, s') = s + g - s', so that the place stays. The lower level is paid
-||s + g - s'|| and acts on observation and subgoal; the higher level is paid the environment's
rewards of the interval. Both are TD3.

The lower level changes, and what a subgoal once led to is no longer what it leads to. So the higher
level learns from corrected subgoals: of ten candidates (the one that was set, what was achieved,
eight around that) the one under which the lower level as it is now would likeliest have done what
was done. Intervals of the replay are aligned with subgoals, and both levels learn from them: the
lower one from a step of each, the higher one from the whole.

Deviations: squared errors in place of Huber's; one replay in place of two; the noises are shares of
the scales, and smaller; subgoals can also be drawn uniformly (`goal_epsilon`), and are while
actions are random; the higher actor can be kept from saturating (`goal_penalty`); the lower level
sees its place, which the authors' code blanks, but not an environment's `desired_goal`; it
bootstraps where an episode terminates, since its rewards are negative and an end would be something
to seek. An interval that an episode's end cuts short counts with the rewards it has.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.settings import ActorCriticSettings, SmoothingSettings, Unused
from assay.algorithms.shared.delayed import (
    delayed_steps,
    deterministic_networks,
    first_critic_loss,
    twin_critic_loss,
)
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import ProbabilitySchedule, Schedule, constant
from assay.core.types import SequenceBatch, Spaces, Tree, pack, tree_map, unpack
from assay.functional.subgoals import (
    action_likelihood,
    goal_candidates,
    goal_transition,
    intrinsic_reward,
    likeliest_goal,
)
from assay.networks.heads import ActionScale
from assay.networks.subgoals import GoalView, TwoLevels
from assay.optim.update import Step
from assay.policies.heads import DeterministicHead
from assay.policies.subgoals import GOAL, SubgoalPolicy

LOW, HIGH = "low_", "high_"  # the levels, as names of networks, steps and metrics begin


@register(
    loop="off_policy",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:1805.08296",
    traits=("levels",),
)
class HIRO(Algorithm):
    """A level that sets subgoals over one that reaches them, for long ways to rare rewards."""

    class Hyperparameters(SmoothingSettings, ActorCriticSettings):
        """Settings of HIRO."""

        learning_starts: int = Field(1000, ge=0, description="Random steps before learning.")
        gamma: float = Field(
            0.99, ge=0, le=1, description="Discount of the higher level, by interval."
        )
        low_gamma: float = Field(
            0.95, ge=0, le=1, description="Discount of the lower level, by step."
        )
        tau: float = Field(0.005, gt=0, le=1, description="Polyak rate of the targets.")
        interval: int = Field(10, gt=0, description="Steps between two subgoals (the paper's c).")
        goal_dims: tuple[int, ...] | None = Field(
            None,
            description="Numbers of the state that subgoals speak of; null: all of achieved_goal, "
            "or else of the vectors in the observation.",
        )
        goal_scale: float | tuple[float, ...] | None = Field(
            None,
            description="Largest subgoal, of all dimensions or each; null: a quarter of the range, "
            "or 1 without bounds.",
        )
        correction: bool = Field(True, description="Correct subgoals of the past (off-policy).")
        candidates: int = Field(8, ge=0, description="Gaussian candidates of a correction.")
        high_every: int = Field(
            10, gt=0, description="Updates of the lower level per update of the higher one."
        )
        high_reward_scale: float = Field(
            0.1, gt=0, description="Factor of the higher level's rewards."
        )
        exploration_noise: Schedule = Field(
            constant(0.1), description="Noise of acting, in units of the action scale."
        )
        goal_noise: Schedule = Field(
            constant(0.2), description="Noise of subgoals, in units of their scale."
        )
        goal_epsilon: ProbabilitySchedule = Field(
            constant(0.1), description="Share of uniform subgoals in exploring; a schedule."
        )
        goal_penalty: float = Field(
            0.0,
            ge=0,
            description="Weight of squared subgoals before tanh in the higher actor's "
            "loss; keeps it from saturating while rewards are rare.",
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield what belongs to other returns, or to a correction that is off."""
            yield "n_step", "because an interval is what the higher level sums over"
            if not self.correction:
                yield "candidates", "with correction=false"

        def rates(self, step: Step, progress: float) -> list[float]:
            """Return the learning rate of each objective of a step, on either level."""
            names = [one.name.split("_")[-1] for one in step.objectives]
            critic = self.lr if self.critic_lr is None else self.critic_lr
            return [(critic if name == "critic" else self.lr)(progress) for name in names]

        def scale(self, view: GoalView) -> np.ndarray:
            """Return the largest subgoal of each dimension, [G]."""
            if self.goal_scale is None:
                return view.default_scale()
            given = np.atleast_1d(np.array(self.goal_scale, np.float32))
            if len(given) not in (1, view.size) or not (given > 0).all():
                raise ConfigError(
                    f"goal_scale={self.goal_scale}: expected a number above 0, or {view.size} of "
                    "them, one for each dimension of a subgoal.",
                )
            return np.broadcast_to(given, view.size).copy()

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        # A sequence is an interval: it begins with an episode or where the last one ended.
        self.needs = hp.needs(sequence=hp.interval)
        self.view = GoalView(spaces.observation, hp.goal_dims)
        self.scale = ActionScale(spaces.action).to(self.device)
        scale = hp.scale(self.view)
        size = int(np.prod(spaces.action.shape))
        self.low_actor, self.low_critic = deterministic_networks(
            self.view.low_space, size, hp, self.device
        )
        self.high_actor, self.high_critic = deterministic_networks(
            spaces.observation, self.view.size, hp, self.device
        )
        for level in (LOW, HIGH):
            for name in ("actor", "critic"):
                setattr(self, f"{level}target_{name}", copy.deepcopy(getattr(self, level + name)))
        self.low_step, self.low_full_step = self._steps(LOW)
        self.high_step, self.high_full_step = self._steps(HIGH)
        levels = TwoLevels(self.high_actor, self.low_actor, self.view, scale, hp.interval)
        self.policy: SubgoalPolicy = SubgoalPolicy(
            spaces,
            levels.to(self.device),
            DeterministicHead(spaces.action, lambda: hp.exploration_noise(self.clock.progress)),
            goal_noise=lambda: hp.goal_noise(self.clock.progress),
            goal_epsilon=self._goal_epsilon,
            device=self.device,
            rng=self.rng,
        )

    def _steps(self, level: str) -> tuple[Step, Step]:
        losses = bound(self._critic_loss, level), bound(self._actor_loss, level)
        return delayed_steps(self, *losses, level)

    def _goal_epsilon(self) -> float:
        if self.clock.env_steps < self.hp.learning_starts:
            return 1.0  # as actions are
        return self.hp.goal_epsilon(self.clock.progress)

    @property
    def _goal_scale(self) -> Tensor:
        return self.policy.network.scale

    def update(self, data: Replay[SequenceBatch]) -> None:
        """Move the lower level once; every `high_every` updates also the higher one."""
        hp = self.hp
        self._learn(LOW, self._low_batch(data.sample(hp.batch_size)))
        if self._count(LOW) % hp.high_every == 0:
            self._learn(HIGH, self._high_batch(data.sample(hp.batch_size)))

    def _learn(self, level: str, batch: dict[str, Tensor]) -> None:
        """Move the critics of a level; every `policy_delay` updates also its actor and targets."""
        due = (self._count(level) + 1) % self.hp.policy_delay == 0
        step = self.steps[f"{level}full_step" if due else f"{level}step"]
        batch["noise"] = self.noise(*batch["action"].shape)
        step(batch, self.hp.rates(step, self.clock.progress))

    def _count(self, level: str) -> int:
        steps = self.steps
        return steps[f"{level}step"].updates + steps[f"{level}full_step"].updates

    # ------------------------------------------------------------------ batches

    def _low_batch(self, sample: SequenceBatch) -> dict[str, Tensor]:
        """Return one step of each interval, as the lower level sees it."""
        scale, rows = self._goal_scale, torch.arange(len(sample.reward), device=self.device)
        draw = torch.from_numpy(self.rng.random(len(rows), np.float32)).to(self.device)
        at = (draw * sample.valid.sum(1)).long()  # valid steps come first
        obs, next_obs = (tree_map(lambda x, t=t: x[rows, t], sample.obs) for t in (at, at + 1))
        goal, s, next_s = sample.extras[GOAL][rows, at], self.view(obs), self.view(next_obs)
        # r = -||s + g - s'||, and g' = h(s, g, s')
        reward, next_goal = intrinsic_reward(s, goal, next_s), goal_transition(s, goal, next_s)
        return (
            pack("obs", self.view.with_goal(obs, goal / scale))
            | pack("next_obs", self.view.with_goal(next_obs, next_goal / scale))
            | {
                "action": self.scale.to_unit(sample.action[rows, at]).flatten(1),
                "reward": reward,
                "terminated": torch.zeros_like(reward),
                "discount": torch.full_like(reward, self.hp.low_gamma),
            }
        )

    def _high_batch(self, sample: SequenceBatch) -> dict[str, Tensor]:
        """Return whole intervals, as the higher level sees them: s_t, g, sum of r, s_{t+c}."""
        hp, valid = self.hp, sample.valid
        rows, steps = torch.arange(len(valid), device=self.device), valid.sum(1).long()
        obs = tree_map(lambda x: x[:, 0], sample.obs)
        next_obs = tree_map(lambda x: x[rows, steps], sample.obs)
        goal = sample.extras[GOAL][:, 0]
        if hp.correction:
            goal = self._corrected(sample, goal, self.view(next_obs))
        reward = hp.high_reward_scale * (sample.reward * valid).sum(1)
        return (
            pack("obs", obs)
            | pack("next_obs", next_obs)
            | {
                "action": goal / self._goal_scale,
                "reward": reward,
                "terminated": (sample.terminated * valid).sum(1),
                "discount": torch.full_like(reward, hp.gamma),
            }
        )

    @torch.no_grad()
    def _corrected(self, sample: SequenceBatch, goal: Tensor, last_s: Tensor) -> Tensor:
        """Return the subgoals [B, G] under which the lower level would likeliest act as it did."""
        count, steps = sample.reward.shape
        obs = tree_map(lambda x: x[:, :-1].flatten(0, 1), sample.obs)  # [B L, ...]
        s = self.view(obs).unflatten(0, (count, steps))  # [B, L, G]
        noise = self.noise(count, self.hp.candidates, self.view.size)
        found = goal_candidates(goal, s[:, 0], last_s, self._goal_scale, noise)  # [B, K, G]
        mean = torch.stack([self._low_actions(obs, s, one) for one in found.unbind(1)], 1)
        action = self.scale.to_unit(sample.action).flatten(2)
        likelihood = action_likelihood(mean, action, sample.valid)
        self.note(corrected_share=(likelihood.argmax(1) > 0).float().mean().item())
        return likeliest_goal(found, likelihood)

    def _low_actions(self, obs: Tree, s: Tensor, goal: Tensor) -> Tensor:
        """Return what the lower level does in each step, [B, L, A], for a goal [B, G] at first."""
        # g_i = s_t + g - s_i, which is h from step to step
        goals = goal_transition(s[:, :1], goal.unsqueeze(1), s)  # [B, L, G]
        seen = self.view.with_goal(obs, goals.flatten(0, 1) / self._goal_scale)
        return self.low_actor(seen).unflatten(0, s.shape[:2])

    # ------------------------------------------------------------------ losses

    def _critic_loss(
        self, level: str, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # y = r + gamma (1 - d) min_i Q'_i(s', a'), a' = mu'(s') with clipped noise
        loss, metrics = twin_critic_loss(self, batch, batch["action"], level)
        return loss, metrics | {f"{level}reward": batch["reward"].mean()}

    def _actor_loss(self, level: str, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # J = -E[Q_1(s, mu(s))]
        loss, metrics = first_critic_loss(self, batch, level)
        if level == HIGH and self.hp.goal_penalty:
            before = self.high_actor[:-1](unpack("obs", batch))  # [B, G], before tanh
            loss = loss + self.hp.goal_penalty * before.square().mean()
        return loss, metrics
