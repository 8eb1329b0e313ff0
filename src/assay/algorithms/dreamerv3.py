"""DreamerV3 (Hafner et al. 2023, arXiv:2301.04104): learn a world model, and behave by dreaming.

A recurrent state-space model is learned from replayed sequences. From every state that it infers,
`imagination` steps are imagined, and actor and critic learn from those alone:

    L(world)  = 1 max(1, KL(sg(q) || p)) + 0.1 max(1, KL(q || sg(p))) + L(x) + L(r) + L(c)
    R_t       = r_t + gamma c_t ((1 - lambda) V(s_{t+1}) + lambda R_{t+1}),  gamma = 1 - 1 / horizon
    L(actor)  = -sum_t w_t (log pi(a_t|s_t) sg(R_t - V(s_t)) / max(1, S) + eta H(pi))
    L(critic) = sum_t w_t (CE(V(s_t), R_t) + CE(V(s_t), V_slow(s_t)))

w_t is the probability that the imagined episode has gone on so far, S the running range between the
5th and the 95th percentile of returns. Rewards and values are two-hot over symexp-spaced bins. The
critic also learns from the replayed rewards, with a weight of 0.3, and the world model through it.
This is the authors' present code (block GRU, RMS norm, LaProp with adaptive gradient clipping).

Deviations: sequences begin at fixed places of the stream, with the latent state that was acted with
(the authors begin anywhere, write newer states back, and first replay every new sequence once). The
first steps are random. Every image has a CNN of its own. The observation after the last step of a
sequence trains the world model, and returns bootstrap from its value; nothing is imagined from it.
Without exploration, latent state and action are the most likely ones (the authors sample). Small
images are halved less than four times, others are padded until they can be. Whole numbers are
predicted as one-hot numbers, not as categories. Action masks hold where one acts; the imagination
does not know them. On a GPU layers compute in bfloat16, like the authors', and on a CPU in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.algorithms.settings import Unused
from assay.buffers.replay_protocol import Replay
from assay.core.config import Settings
from assay.core.errors import ConfigError
from assay.core.images import has_images
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Problem, SequenceBatch, Spaces, Tree, pack, tree_map, unpack
from assay.functional.symlog import two_hot, two_hot_cross_entropy, two_hot_mean
from assay.functional.world_models import balanced_kl, lambda_returns, one_hot
from assay.networks.heads import ActionScale
from assay.networks.world_model import (
    Actor,
    LatentActor,
    ReturnScale,
    TwoHotHead,
    WorldModel,
    action_size,
)
from assay.optim.mode import can_fuse
from assay.optim.noise import NoiseSpec
from assay.optim.rules import LaProp
from assay.optim.update import Objective, Polyak
from assay.policies.heads import Head, StochasticHead
from assay.policies.latent import BoundedNormalHead, LatentPolicy

LONGEST_COMPILED = 16  # steps, observed and imagined: unrolled code takes its time to compile
Losses = tuple[Tensor, dict[str, Tensor]]


class Size(NamedTuple):
    """Widths of the networks: those of the authors' sizes 1m, 12m, 25m, 50m and 100m."""

    deter: int
    hidden: int
    classes: int
    depth: int
    units: int


SIZES = {
    "nano": Size(512, 64, 4, 4, 64),
    "XS": Size(2048, 256, 16, 16, 256),
    "S": Size(3072, 384, 24, 24, 384),
    "M": Size(4096, 512, 32, 32, 512),
    "L": Size(6144, 768, 48, 48, 768),
}


@register(
    loop="off_policy",
    actions=("Discrete", "Box"),
    family="model-based",
    paper="arXiv:2301.04104",
    traits=("memory", "frugal", "first"),
)
class DreamerV3(Algorithm):
    """Learn a world model and behave by imagining. For few steps, images and partial views."""

    policy: LatentPolicy

    class Hyperparameters(Settings):
        """Settings of DreamerV3."""

        size: Literal["nano", "XS", "S", "M", "L"] = Field(
            "XS", description="Widths of all networks; each can be given by itself."
        )
        deter: int | None = Field(None, gt=0, description="Width of the GRU; null: by size.")
        hidden: int | None = Field(None, gt=0, description="Width of its layers; null: by size.")
        classes: int | None = Field(None, gt=1, description="Classes of a latent; null: by size.")
        depth: int | None = Field(None, gt=0, description="Channels of the CNN; null: by size.")
        units: int | None = Field(None, gt=0, description="Width of the MLPs; null: by size.")
        stoch: int = Field(32, gt=0, description="Categorical latents.")
        blocks: int = Field(8, gt=0, description="Blocks of the GRU's recurrent layer.")
        layers: int = Field(
            3, gt=0, description="Layers of encoder, decoder, actor and critic on vectors."
        )
        lr: Schedule = Field(constant(4e-5), description="Learning rate or schedule.")
        warmup: int = Field(1000, ge=0, description="Updates in which lr rises to its value.")
        agc: float = Field(0.3, gt=0, description="Adaptive gradient clip.")
        precision: Literal["auto", "bfloat16", "float32"] = Field(
            "auto", description="What layers compute in; auto is bfloat16 on a GPU, else float32."
        )
        batch_size: int = Field(16, gt=0, description="Sequences per gradient step.")
        sequence: int = Field(64, gt=1, description="Steps of a sequence.")
        buffer_size: int = Field(1_000_000, gt=0, description="Steps kept in the replay.")
        learning_starts: int = Field(1024, ge=0, description="Random steps before learning.")
        train_ratio: int = Field(32, gt=0, description="Replayed steps per environment step.")
        imagination: int = Field(15, gt=1, description="Steps that are imagined.")
        horizon: float = Field(333.0, gt=1, description="The discount is 1 - 1 / horizon.")
        lam: float = Field(0.95, ge=0, le=1, description="Weight of longer returns (lambda).")
        entropy_coef: float = Field(3e-4, ge=0, description="Weight of the entropy bonus.")
        dynamics_coef: float = Field(1.0, ge=0, description="Weight of the prior's KL loss.")
        representation_coef: float = Field(
            0.1, ge=0, description="Weight of the posterior's KL loss."
        )
        free_nats: float = Field(1.0, ge=0, description="KL below which neither is trained.")
        unimix: float = Field(0.01, ge=0, lt=1, description="Uniform share of latents and policy.")
        replay_value_coef: float = Field(
            0.3, ge=0, description="Weight of the critic's loss on replayed rewards."
        )
        return_decay: float = Field(0.99, ge=0, lt=1, description="Decay of the returns' range.")
        tau: float = Field(0.02, gt=0, le=1, description="Rate at which the slow critic follows.")

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return a replay that holds the run, and small networks for vectors."""
            images = has_images(problem.spaces.observation)
            most = 100_000 if images else 1_000_000
            return {
                "size": "XS" if images else "nano",
                "buffer_size": min(most, max(problem.env_steps, 10_000)),
                "learning_starts": min(1024, problem.env_steps // 10),
            }

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the width of the CNN where there is none."""
            if not has_images(spaces.observation):
                yield "depth", "because the observation has no images"

        def widths(self) -> Size:
            """Return the widths of the size, or those given."""
            own = {name: getattr(self, name) for name in Size._fields}
            given = {name: width for name, width in own.items() if width is not None}
            return SIZES[self.size]._replace(**given)

        def needs(self) -> ReplayNeeds:
            """Return the replay, and updates as often as `train_ratio` says."""
            batch = self.batch_size * self.sequence
            share = math.gcd(batch, self.train_ratio)
            return ReplayNeeds(
                capacity=self.buffer_size,
                learning_starts=self.learning_starts,
                train_every=batch // share,
                updates=self.train_ratio // share,
                gamma=1.0 - 1.0 / self.horizon,
                sequence=self.sequence,
                cross_episodes=True,
            )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        _refuse(hp, context)
        self.needs = hp.needs()
        self.gamma = self.needs.gamma
        self.auto_compiles = hp.sequence + hp.imagination <= LONGEST_COMPILED
        widths = hp.widths()
        head = {"units": widths.units, "layers": hp.layers}
        self.world = WorldModel(
            spaces.observation, action_size(spaces.action), depth=widths.depth, **head,
            deter=widths.deter, hidden=widths.hidden, classes=widths.classes, stoch=hp.stoch,
            blocks=hp.blocks, unimix=hp.unimix,
        ).to(self.device)  # fmt: skip
        self.world.rssm.fused = self.mode() == "cuda_graph" and can_fuse()
        features = self.world.rssm.out_features
        self.actor = Actor(features, spaces.action, unimix=hp.unimix, **head).to(self.device)
        self.critic = TwoHotHead(features, **head).to(self.device)
        self.slow = copy.deepcopy(self.critic)
        self.range = ReturnScale(hp.return_decay).to(self.device)
        self.discrete = isinstance(spaces.action, Discrete)
        if not self.discrete:
            self.scale = ActionScale(spaces.action).to(self.device)
        rule = LaProp(agc=hp.agc, warmup=hp.warmup)
        self.step = self.make_step(
            [
                Objective("world", self.world, self._world_loss, rule),
                Objective("actor", self.actor, self._actor_loss, rule),
                Objective("critic", self.critic, self._critic_loss, rule),
            ],
            polyak=[Polyak(self.slow, self.critic, hp.tau)],
            noise=self._noise_specs(),
            low_precision=self._low_precision(),
        )
        self.policy = self._make_policy()

    def _low_precision(self) -> torch.dtype | None:
        wanted = self.hp.precision
        if wanted == "auto":
            wanted = "bfloat16" if self.device.type == "cuda" else "float32"
        return torch.bfloat16 if wanted == "bfloat16" else None

    def _noise_specs(self) -> dict[str, NoiseSpec]:
        hp, latent = self.hp, (self.hp.stoch, self.hp.widths().classes)
        starts = (hp.imagination, hp.batch_size * hp.sequence)
        kind: Literal["gumbel", "normal"] = "gumbel" if self.discrete else "normal"
        return {
            "posterior_noise": NoiseSpec((hp.sequence + 1, hp.batch_size, *latent), "gumbel"),
            "prior_noise": NoiseSpec((*starts, *latent), "gumbel"),
            "action_noise": NoiseSpec((*starts, *self.actor.distribution.noise_shape), kind),
        }

    def _make_policy(self) -> LatentPolicy:
        space = self.spaces.action
        head: Head = (
            StochasticHead(space, log_prob=False) if self.discrete else BoundedNormalHead(space)
        )
        network = LatentActor(self.world, self.actor)
        return LatentPolicy(self.spaces, network, head, device=self.device, rng=self.rng)

    def acted(self, carry: Tree, action: Any) -> Tree:
        """Return the carry after other actions than its own were taken."""
        return self.policy.acted(carry, action)

    def update(self, data: Replay[SequenceBatch]) -> None:
        """Take one gradient step of world model, actor and critic on a batch of sequences."""
        sample = data.sample(self.hp.batch_size)
        self.step(self.moments(sample), self.hp.lr(self.clock.progress))

    def moments(self, sample: SequenceBatch) -> dict[str, Tensor]:
        """Return L steps as T = L + 1 moments [T, B]: what was done before each, and what it gave.

        The row after an episode's end is its final moment, and no step. What the first moment gave
        is not known, unless it begins an episode. The last one is not `real` behind such a row.
        """
        action, reward, terminated, truncated, is_first, valid = (
            getattr(sample, name).transpose(0, 1)
            for name in ("action", "reward", "terminated", "truncated", "is_first", "valid")
        )
        taken = (
            one_hot(action, self.actor.size)
            if self.discrete
            else self.scale.to_unit(action).flatten(2)
        )
        zero = torch.zeros_like(reward[:1])
        real = torch.cat([torch.ones_like(valid), valid[-1:]])
        return pack("obs", sample.obs) | {
            "action": torch.cat([sample.carry["action"].unsqueeze(0), taken]),
            "deter": sample.carry["deter"],
            "stoch": sample.carry["stoch"],
            "reward": torch.cat([zero, reward]),
            "is_first": torch.cat([is_first, zero]),
            "is_terminal": torch.cat([zero, terminated]),
            # A row that is not a step is an episode's last moment; the last row has its flags.
            "is_last": torch.cat([1.0 - valid, (terminated + truncated)[-1:].clamp(max=1.0)]),
            "real": real,
            "reward_known": torch.cat([is_first[:1], real[1:]]),
            "terminal_known": torch.cat([valid[:1], real[1:]]),
        }

    # ------------------------------------------------------------------ losses

    def _world_loss(self, batch: dict[str, Tensor]) -> Losses:
        hp, world, real = self.hp, self.world, batch["real"]
        # obs: [B * T, ...], the rest [T, B, ...]
        images, flat = world.parts.split(tree_map(lambda x: x.flatten(0, 1), unpack("obs", batch)))
        tokens = world.encoder(images, flat).unflatten(0, (hp.batch_size, -1)).transpose(0, 1)
        state = world.rssm.observe(
            tokens, batch["action"], batch["is_first"], batch, batch["posterior_noise"]
        )
        prior = world.rssm.prior(state.deter)
        dynamics, representation = balanced_kl(state.posterior, prior, hp.free_nats)
        features = state.features
        rows = features.transpose(0, 1).flatten(0, 1)
        seen = world.decoder.loss(rows, images, flat).unflatten(0, (hp.batch_size, -1)).t()
        reward = two_hot_cross_entropy(world.reward(features), batch["reward"], world.reward.bins)
        goes_on = self.gamma * (1.0 - batch["is_terminal"])
        proceed = F.binary_cross_entropy_with_logits(
            world.continuation(features), goes_on, reduction="none"
        )
        losses = {
            "dynamics_loss": _mean(dynamics, real),
            "representation_loss": _mean(representation, real),
            "reconstruction_loss": _mean(seen, real),
            "reward_loss": _mean(reward, batch["reward_known"]),
            "continue_loss": _mean(proceed, batch["terminal_known"]),
        }
        imagined = self._imagine(batch, state.deter, state.stoch)
        self._replayed_targets(batch, features)
        losses["replay_value_loss"] = self._replay_value_loss(batch, features[:-1])
        batch["replayed"] = features[:-1].detach()
        scales = {
            "dynamics_loss": hp.dynamics_coef,
            "representation_loss": hp.representation_coef,
            "replay_value_loss": hp.replay_value_coef,
        }
        total = torch.stack([scales.get(k, 1.0) * v for k, v in losses.items()]).sum()
        entropies = {
            "prior_entropy": -(prior.exp() * prior).sum((-2, -1)).mean(),
            "posterior_entropy": -(state.posterior.exp() * state.posterior).sum((-2, -1)).mean(),
        }
        return total, losses | entropies | imagined

    @torch.no_grad()
    def _imagine(self, batch: dict[str, Tensor], deter: Tensor, stoch: Tensor) -> dict[str, Tensor]:
        """Imagine from every state of the sequences, and leave what to learn from in the batch."""
        hp, world = self.hp, self.world
        # features: [H + 1, N, F], taken: [H, N, A], N = L B
        features, taken = world.rssm.imagine(
            deter[:-1].flatten(0, 1), stoch[:-1].flatten(0, 1), self.actor.sample,
            batch["action_noise"], batch["prior_noise"],
        )  # fmt: skip
        reward = world.reward.mean(features[1:])
        proceed = torch.sigmoid(world.continuation(features))  # gamma c, as it was learned
        value = self.critic.mean(features)
        target = lambda_returns(reward, proceed[1:], torch.ones_like(reward), value[1:], hp.lam)
        scale = self.range(target)
        batch["features"], batch["taken"], batch["target"] = features[:-1], taken, target
        batch["advantage"] = (target - value[:-1]) / scale
        # w_t = prod_{i <= t} gamma c_i
        batch["weight"] = torch.cumprod(proceed[:-1], dim=0)
        return {
            "imagined_reward": reward.mean(), "imagined_return": target.mean(),
            "return_scale": scale, "value_mean": value.mean(),
        }  # fmt: skip

    @torch.no_grad()
    def _replayed_targets(self, batch: dict[str, Tensor], features: Tensor) -> None:
        """Leave the returns of the replayed rewards in the batch, [L, B]."""
        last = self.critic.mean(features[-1:])
        imagined = batch["target"][0].unflatten(0, (-1, features.shape[1]))  # of each moment
        batch["replay_target"] = lambda_returns(
            batch["reward"][1:],
            self.gamma * (1.0 - batch["is_terminal"][1:]),
            1.0 - batch["is_last"][1:],
            torch.cat([imagined[1:], last]),
            self.hp.lam,
        )

    def _replay_value_loss(self, batch: dict[str, Tensor], features: Tensor) -> Tensor:
        weight = 1.0 - batch["is_last"][:-1]  # no step follows an episode's last moment
        return (weight * self._value_loss(features, batch["replay_target"])).mean()

    def _value_loss(self, features: Tensor, target: Tensor) -> Tensor:
        bins = self.critic.bins
        with torch.no_grad():
            slow = two_hot_mean(self.slow(features), bins)
            # Both cross-entropies are of one prediction.
            wanted = two_hot(target, bins) + two_hot(slow, bins)
        return -(wanted * self.critic(features).log_softmax(dim=-1)).sum(dim=-1)

    def _actor_loss(self, batch: dict[str, Tensor]) -> Losses:
        log_pi, entropy = self.actor.log_prob_entropy(batch["features"], batch["taken"])
        gain = log_pi * batch["advantage"] + self.hp.entropy_coef * entropy
        advantage = batch["advantage"].abs().mean()
        return -(batch["weight"] * gain).mean(), {
            "entropy": entropy.mean(), "advantage_size": advantage,
        }  # fmt: skip

    def _critic_loss(self, batch: dict[str, Tensor]) -> Losses:
        imagined = (batch["weight"] * self._value_loss(batch["features"], batch["target"])).mean()
        replayed = self._replay_value_loss(batch, batch["replayed"])
        return imagined + self.hp.replay_value_coef * replayed, {}


def _mean(loss: Tensor, known: Tensor) -> Tensor:
    """Return the mean over what is known; nothing known gives 0."""
    return (loss * known).sum() / known.sum().clamp(min=1.0)


def _refuse(hp: DreamerV3.Hyperparameters, context: Context) -> None:
    if hp.sequence > hp.buffer_size:
        raise ConfigError(
            f"sequence={hp.sequence} is longer than the replay: buffer_size={hp.buffer_size}.",
            "Shorten the sequences or enlarge the replay.",
        )
    steps = context.clock.total // context.num_envs
    if context.learns and steps < hp.sequence:
        raise ConfigError(
            f"sequence={hp.sequence} is longer than the {steps:,} steps that each of "
            f"{context.num_envs} environments takes in the run.",
            "Shorten the sequences, or raise env_steps.",
        )
