"""The world model of TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828), its policy and its planner.

No observation is reconstructed: a latent state is what predicts rewards, values, ends and the next
latent state.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.types import Tree
from assay.functional.percentiles import percentile_range
from assay.functional.planning import path_integral
from assay.functional.symlog import symexp, two_hot_mean, uniform_bins
from assay.networks.encoders import make_encoder
from assay.networks.rnn import Carry, Remembering
from assay.networks.simnorm import NormedEnsemble, SimNorm, normed_mlp

if TYPE_CHECKING:
    import gymnasium as gym

LOG_STD_BOUNDS = (-10.0, 2.0)
ASKED = 2  # critics that a value is the minimum or the mean of
_HALF_LOG_2PI = 0.9189385332046727


class LatentModel(nn.Module):
    """Encoder, latent dynamics, rewards, ends and critics.

    Numbers (rewards, values) are logits of bins that are evenly spaced in symlog space.

    Args:
        observation: What is seen.
        actions: Numbers of an action.
        latent: Width of a latent state.
        width: Width of hidden layers, but of the encoder.
        encoder_width: Width of the encoder's hidden layer.
        simplex: Numbers of a latent state that sum to 1.
        critics: How many.
        dropout: Of the critics.
        bins: How many.
        limit: Place of the last bin, in symlog space.
        cnn: The kind of image encoder.
    """

    bins: Tensor

    def __init__(
        self,
        observation: gym.Space[Any],
        actions: int,
        *,
        latent: int,
        width: int,
        encoder_width: int,
        simplex: int,
        critics: int,
        dropout: float,
        bins: int,
        limit: float,
        cnn: str,
    ) -> None:
        super().__init__()
        seen = make_encoder(observation, hidden=(), cnn=cnn, init="torch")
        layers = normed_mlp((seen.out_features, encoder_width, latent), SimNorm(latent, simplex))
        self.encoder = nn.Sequential(seen, layers)
        joined = latent + actions
        self.dynamics = normed_mlp((joined, width, width, latent), SimNorm(latent, simplex))
        self.reward = normed_mlp((joined, width, width, bins))
        self.termination = normed_mlp((latent, width, width, 1))
        self.critics = NormedEnsemble(critics, (joined, width, width, bins), dropout=dropout)
        nn.init.zeros_(self.reward[-1].get_parameter("weight"))
        self.register_buffer("bins", uniform_bins(bins, limit), persistent=False)

    def encode(self, obs: Tree) -> Tensor:
        """Return latent states [B, L] of observations [B, ...]."""
        return self.encoder(obs)

    def next(self, z: Tensor, action: Tensor) -> Tensor:
        """Return the latent states [..., L] that actions [..., A] lead to."""
        return self.dynamics(torch.cat([z, action], dim=-1))

    def reward_logits(self, z: Tensor, action: Tensor) -> Tensor:
        """Return logits [..., K] of the reward."""
        return self.reward(torch.cat([z, action], dim=-1))

    def end_logits(self, z: Tensor) -> Tensor:
        """Return the logit [...] that an episode has ended in z, above 0 if it is likely."""
        return self.termination(z).squeeze(-1)

    def q_logits(
        self,
        z: Tensor,
        action: Tensor,
        members: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return logits [members, ..., K] of the critics; see `NormedEnsemble`."""
        return self.critics(torch.cat([z, action], dim=-1), members, noise)

    def number(self, logits: Tensor) -> Tensor:
        """Return the numbers [...] that logits [..., K] stand for."""
        return symexp(two_hot_mean(logits, self.bins))


class LatentActor(nn.Module):
    """The policy prior, a = tanh(mean + std * noise), on latent states."""

    def __init__(self, latent: int, width: int, actions: int) -> None:
        super().__init__()
        self.net = normed_mlp((latent, width, width, 2 * actions))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-std [..., A]; the latter moves smoothly between its bounds."""
        mean, raw = self.net(z).chunk(2, dim=-1)
        low, high = LOG_STD_BOUNDS
        return mean, low + 0.5 * (high - low) * (raw.tanh() + 1.0)

    def sample(self, z: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit actions [..., A], and log-probabilities [...] from before the tanh."""
        mean, log_std = self(z)
        action = (mean + log_std.exp() * noise).tanh()
        log_prob = -(0.5 * noise.square() + log_std + _HALF_LOG_2PI).sum(dim=-1)
        return action, log_prob


class RunningScale(nn.Module):
    """The range between the 5th and the 95th percentile of values, followed; at least 1.

    It also watches for what is beyond the bins of rewards and values, which is clipped.

    Args:
        tau: How fast it follows.
        limit: Symlog of the largest number that the bins hold.
    """

    scale: Tensor
    largest: Tensor

    def __init__(self, tau: float, limit: float) -> None:
        super().__init__()
        self.tau, self.limit, self.warned = tau, limit, False
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("largest", torch.zeros(()), persistent=False)  # for the warning alone

    def follow(self, x: Tensor) -> None:
        """See values [B]. It is a buffer that moves in place, whichever way a step runs."""
        self.scale.lerp_(percentile_range(x.detach()).clamp(min=1.0), self.tau)

    def watch(self, *numbers: Tensor) -> None:
        """See what the bins are to hold, without waiting for a GPU."""
        for x in numbers:
            self.largest.clamp_(min=x.detach().abs().max())

    def warn_of_clipping(self) -> None:
        """Warn once if the bins did not reach."""
        largest, most = self.largest.item(), math.expm1(self.limit)
        if largest > most and not self.warned:
            self.warned = True
            warnings.warn(
                f"A reward or value of {largest:,.0f} is beyond the bins, which end at "
                f"{most:,.0f} (bin_limit={self.limit:g}), and is clipped. Set "
                f"bin_limit={math.ceil(math.log1p(largest)) + 1}, or make rewards smaller: "
                "wrappers='[{scale_reward: 0.01}]'.",
                stacklevel=2,
            )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a planner searches.

    Attributes:
        horizon: H, actions of a plan.
        samples: S, plans of an iteration, those of the policy included.
        policy_samples: Plans that are drawn from the policy.
        elites: K, plans that the next iteration follows.
        iterations: Rounds of drawing and following.
        temperature: How much better elites count more.
        min_std: Least standard deviation of an action.
        max_std: Largest, and that of the first iteration.
        gamma: Discount.
        episodic: Whether predicted ends count.
    """

    horizon: int
    samples: int
    policy_samples: int
    elites: int
    iterations: int
    temperature: float
    min_std: float
    max_std: float
    gamma: float
    episodic: bool


class LastPlan(nn.Module):
    """What a planner carries from step to step: the mean [N, H, A] of its last plan."""

    wants_rewards: ClassVar[bool] = False

    def __init__(self, horizon: int, actions: int) -> None:
        super().__init__()
        self.shape = horizon, actions

    def initial(self, n: int) -> dict[str, np.ndarray]:
        """Return no plan: zeros."""
        return {"plan": np.zeros((n, *self.shape), np.float32)}

    def rewarded(self, carry: Tree, reward: np.ndarray) -> Tree:
        """Return the carry: a plan does not depend on rewards."""
        return carry


class LatentPlanner(Remembering):
    """Model predictive control by MPPI in latent space, for many observations at once.

    Every iteration draws plans around the last one, moved on by a step, and adds plans of the
    policy. Plans are valued by predicted rewards and, behind the horizon, by the critics. Without
    exploration the same draws serve every step, and the mean of the elites is what is done.
    """

    memory: Any

    def __init__(
        self, model: LatentModel, actor: LatentActor, shape: tuple[int, ...], options: PlanOptions
    ) -> None:
        super().__init__()
        self.model, self.actor = model, actor
        self.shape, self.actions = shape, int(np.prod(shape))
        self.options = options
        self.memory = LastPlan(options.horizon, self.actions)
        # A constant, and so no part of a checkpoint.
        for name, array in self.draw(np.random.default_rng(0), 1).items():
            self.register_buffer(f"fixed_{name}", torch.from_numpy(array), persistent=False)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        """Return what would have to be described to act without torch."""
        return self.model, self.memory, self.actor

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
        """Return the random numbers of a plan for n observations."""
        o, size = self.options, self.actions
        members = len(self.model.critics.weights[0])
        rounds, own = o.iterations, o.samples - o.policy_samples

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal((n, *shape), dtype=np.float32)

        asked = [
            rng.choice(members, min(ASKED, members), replace=False, shuffle=False)
            for _ in range(rounds)
        ]
        return {
            "policy": normal(o.policy_samples, o.horizon, size),
            "samples": normal(rounds, own, o.horizon, size),
            "last": normal(rounds, o.samples, size),
            "members": np.stack(asked).astype(np.int64),
            "choice": rng.gumbel(size=(n, o.elites)).astype(np.float32),
            "action": normal(size),
        }

    def step(self, obs: Tree, carry: Carry) -> tuple[Tensor, Carry]:
        """Return unit actions [N, ...] for the next step of episodes, and the carry after it."""
        noise = {
            name.removeprefix("fixed_"): x
            for name, x in self.named_buffers(recurse=False)
            if name.startswith("fixed_")
        }
        return self.plan(obs, carry, noise, explore=False)

    def plan(self, obs: Tree, carry: Carry, noise: Carry, *, explore: bool) -> tuple[Tensor, Carry]:
        """Return unit actions [N, ...] and the carry after them, given what `draw` returned.

        Noise for one observation serves all.
        """
        o = self.options
        z = self.model.encode(obs)  # [N, L]
        drawn = self._policy_plans(z, noise["policy"])
        last = carry["plan"]
        mean = torch.cat([last[:, 1:], torch.zeros_like(last[:, :1])], dim=1)  # [N, H, A]
        std = torch.full_like(mean, o.max_std)
        for i in range(o.iterations):
            around = mean.unsqueeze(1) + std.unsqueeze(1) * noise["samples"][:, i]
            plans = torch.cat([drawn, around.clamp(-1.0, 1.0)], dim=1)  # [N, S, H, A]
            values = self.value(z, plans, noise["last"][:, i], noise["members"][i])
            mean, std, elites, score = path_integral(
                plans, values, elites=o.elites, temperature=o.temperature,
                min_std=o.min_std, max_std=o.max_std,
            )  # fmt: skip
        unit = mean[:, 0]
        if explore:
            # An elite drawn by its weight: the argmax of log w + Gumbel noise
            pick = (score.log() + noise["choice"]).argmax(dim=1)
            rows = torch.arange(len(pick), device=pick.device)
            unit = elites[rows, pick, 0] + std[:, 0] * noise["action"]
        return unit.clamp(-1.0, 1.0).unflatten(1, self.shape), {"plan": mean}

    def _policy_plans(self, z: Tensor, noise: Tensor) -> Tensor:
        """Return plans [N, P, H, A] of the policy from latent states [N, L]."""
        count, steps = noise.shape[1:3]
        z = z.unsqueeze(1).expand(-1, count, -1)  # [N, P, L]
        actions: list[Tensor] = []
        for t in range(steps):
            if actions:
                z = self.model.next(z, actions[-1])
            actions.append(self.actor.sample(z, noise[:, :, t])[0])
        return torch.stack(actions, dim=2)

    def value(self, z: Tensor, plans: Tensor, noise: Tensor, members: Tensor) -> Tensor:
        """Return what plans [N, S, H, A] from latent states [N, L] are worth, [N, S].

        Args:
            z: Where they begin.
            plans: In unit actions.
            noise: [N, S, A] of the policy's action behind the horizon.
            members: [M] critics that are asked; their mean counts.
        """
        o, model = self.options, self.model
        z = z.unsqueeze(1).expand(-1, plans.shape[1], -1)  # [N, S, L]
        total, weight = torch.zeros_like(z[..., 0]), torch.ones_like(z[..., 0])
        for t in range(o.horizon):
            action = plans[:, :, t]
            # G = sum_t gamma^t r_t, as long as the episode goes on
            total = total + weight * model.number(model.reward_logits(z, action))
            z = model.next(z, action)
            weight = weight * o.gamma
            if o.episodic:
                weight = weight * (model.end_logits(z) <= 0.0)
        action = self.actor.sample(z, noise)[0]
        q = model.number(model.q_logits(z, action, members)).mean(dim=0)
        return total + weight * q
