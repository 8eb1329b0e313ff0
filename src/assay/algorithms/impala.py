"""IMPALA: importance-weighted actor-learner (Espeholt et al. 2018, arXiv:1802.01561).

Actors act with a policy mu that is some updates behind the learner's pi. V-trace corrects for it:

    rho_t = min(rho_bar, pi/mu), c_t = lambda min(c_bar, pi/mu)
    v_t = V(s_t) + delta_t + gamma c_t (v_{t+1} - V(s_{t+1})),
    delta_t = rho_t (r_t + gamma V(s_{t+1}) - V(s_t))

The policy follows grad log pi(a_t|s_t) rho_t (r_t + gamma v_{t+1} - V(s_t)), the value regresses to
v_t, and an entropy bonus keeps the policy from collapsing; one gradient step per rollout.

In one process there is no lag of its own. `actor_lag` makes one: actions are those of the policy
from so many updates ago. Evaluation always uses the newest policy.

Deviations: losses are means over the rollout, not sums (so is the gradient clip meant); rewards are
not clipped (`normalize_reward` is there instead); the advantage may be standardised. RMSprop has
its epsilon inside the root, as in the reference implementation.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import PolicyGradientSettings, Unused
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, Tree, action_mask, pack, tree_map, unpack
from assay.functional import losses, returns
from assay.functional.distributions import policy_distribution
from assay.networks.actor_critic import ActorCritic
from assay.optim.parameters import flatten_parameters
from assay.optim.rules import Adam, RMSprop
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="policy-gradient",
    paper="arXiv:1802.01561",
    traits=("lag",),
)
class IMPALA(Algorithm):
    """Actor-critic with V-trace. For actors whose policy lags behind the learner's."""

    class Hyperparameters(PolicyGradientSettings):
        """Settings of IMPALA."""

        lr: Schedule = Field(constant(6e-4), description="Learning rate or schedule.")
        horizon: int = Field(20, gt=0, description="Steps of each environment per rollout.")
        entropy_coef: Schedule = Field(
            constant(0.01), description="Weight of the entropy bonus; a schedule."
        )
        optimizer: Literal["rmsprop", "adam"] = Field("rmsprop", description="Optimizer.")
        actor_lag: int = Field(0, ge=0, description="Updates the acting policy is behind.")
        correction: Literal["vtrace", "none"] = Field(
            "vtrace", description="Correct for the lag, or take the data as on-policy."
        )
        rho_bar: float = Field(1.0, gt=0, description="Bound of the weight of an error.")
        c_bar: float = Field(1.0, gt=0, description="Bound of the weight of a trace.")
        trace_lambda: float = Field(1.0, ge=0, le=1, description="Weight of longer returns.")

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the bounds of the correction where there is none."""
            if self.correction == "none":
                for name in ("rho_bar", "c_bar"):
                    yield name, "with correction=none"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        self.distribution = policy_distribution(spaces.action)
        net = ActorCritic(
            spaces.observation, self.distribution, **hp.encoder(), **hp.gaussian(spaces.action)
        )
        self.net = net.to(self.device)
        updates = math.ceil(self.needs.expected_updates(self.clock.total, self.num_envs))
        if hp.actor_lag >= updates:
            raise ConfigError(
                f"actor_lag={hp.actor_lag} is no less than the {updates} updates of this run: it "
                "would act with its initial policy all along.",
                "Lower actor_lag, or give the run more env_steps.",
            )
        kind = RMSprop if hp.optimizer == "rmsprop" else Adam
        rule = kind(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("impala", self.net, self._loss, rule)])
        self.past = LaggedNetwork(self.net, hp.actor_lag) if hp.actor_lag else None
        behaviour = None if self.past is None else self.past.net.actor()
        self.policy = self.make_policy(
            self.net.actor(), StochasticHead(spaces.action), behaviour=behaviour
        )

    def update(self, data: Rollout) -> None:
        """Take one gradient step on the whole rollout."""
        batch = self._prepare(data)
        if self.past is not None:
            self.past.store(self.step.flats[self.net], self.step.updates)
        self.step(batch, self.hp.lr(self.clock.progress))
        if self.past is not None:
            self.past.load(self.step.updates)

    # ------------------------------------------------------------------ the mathematics

    def _prepare(self, data: Rollout) -> dict[str, Tensor]:
        """Name a rollout for the loss: observations and actions [T * N], the rest [T, N]."""
        size = data.length * data.num_envs
        obs = tree_map(lambda x: x.reshape(size, *x.shape[2:]), data.obs)
        action = data.extras.get("raw_action", data.action)
        reward = data.reward
        if self.reward_scale is not None:
            reward = self.reward_scale.scale(reward)
        bootstrap, cut = self._bootstraps(data)
        arrays = {
            "action": action.reshape(size, *action.shape[2:]),
            "log_prob": data.extras["log_prob"],
            "reward": reward,
            "terminated": data.terminated,
            "truncated": data.truncated,
            "weight": data.valid.astype(np.float32),
            "bootstrap": bootstrap,
            "cut": cut,
            "policy_weight": data.policy_weight.reshape(size),
        }
        tensors = {k: torch.from_numpy(v).to(self.device) for k, v in arrays.items()}
        entropy_coef = torch.tensor(self.hp.entropy_coef(self.clock.progress), device=self.device)
        return pack("obs", self.inputs(obs)) | tensors | {"entropy_coef": entropy_coef}

    def _bootstraps(self, data: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """Return values [T, N] of successors that are not rows of the rollout, and where they are.

        Those are what followed the last row, and the final observations of truncated episodes.
        """
        value = np.zeros((data.length, data.num_envs), np.float32)
        cut = np.zeros_like(value, bool)
        parts: list[tuple[Any, Any, Tree]] = [(-1, slice(None), data.last_obs)]
        if data.finals is not None:
            parts.append((data.finals.step, data.finals.env, data.finals.obs))
        for step, env, obs in parts:
            with torch.no_grad():
                found = self.net.value(self.inputs(obs))
            value[step, env], cut[step, env] = found.cpu().numpy(), True
        return value, cut

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, shape = self.hp, batch["reward"].shape
        weight, policy_weight = batch["weight"].reshape(-1), batch["policy_weight"]
        obs = unpack("obs", batch)
        mask = action_mask(obs)
        params, value = self.net(obs)
        log_prob = self.distribution.log_prob(params, batch["action"], mask)
        entropy = self.distribution.entropy(params, mask)
        log_ratio = log_prob.detach() - batch["log_prob"].reshape(-1)
        # v: [T, N], V(s_t); what follows the last row is in the batch
        v = value.detach().reshape(shape)
        next_v = torch.where(batch["cut"], batch["bootstrap"], torch.cat([v[1:], v[:1]]))
        target, advantage = returns.vtrace(
            batch["reward"], v, next_v, batch["terminated"], batch["truncated"],
            log_ratio.reshape(shape) if hp.correction == "vtrace" else torch.zeros_like(v),
            hp.gamma, hp.trace_lambda, hp.rho_bar, hp.c_bar,
        )  # fmt: skip
        target = target.reshape(-1)
        advantage, entropy = losses.policy_terms(
            advantage.reshape(-1), entropy, weight, policy_weight, normalize=hp.normalize_advantage
        )
        # grad log pi(a|s) rho (r + gamma v' - V(s)); rho is in the advantage
        policy_loss = -losses.weighted_mean(log_prob * advantage, weight)
        value_loss = losses.value_loss(value, target, weight)
        loss = policy_loss + 2 * hp.value_coef * value_loss - batch["entropy_coef"] * entropy
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "behaviour_kl": losses.weighted_mean(losses.approx_kl(log_ratio), weight),
        }


class LaggedNetwork(nn.Module):
    """A network as it was some updates ago, with the parameters of all updates since."""

    ring: Tensor

    def __init__(self, net: ActorCritic, lag: int) -> None:
        super().__init__()
        self.lag = lag
        self.net = copy.deepcopy(net)
        # Row k % lag is the newest one whose number has that remainder.
        self.register_buffer("ring", flatten_parameters(self.net).repeat(lag, 1))

    def store(self, parameters: Tensor, update: int) -> None:
        """Remember the parameters after `update` updates."""
        self.ring[update % self.lag] = parameters

    def load(self, update: int) -> None:
        """Load the parameters from `lag` updates before `update`."""
        flatten_parameters(self.net).copy_(self.ring[update % self.lag])
