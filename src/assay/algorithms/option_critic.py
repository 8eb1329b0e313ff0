"""Option-critic (Bacon et al. 2017, arXiv:1609.05140) with proximal updates (PPOC).

Options with policies pi_w(a|s) and terminations beta_w(s), and a policy pi_O(w|s) over them, are
learned together, end to end. In every state the current option ends with probability beta_w(s);
then pi_O chooses the next. The critic is Q_O(s, w), with V_O(s) = sum_w pi_O(w|s) Q_O(s, w).

Proximal policy option-critic (Klissarov et al. 2017, arXiv:1712.00004): PPO's clipped surrogate
for pi_w with generalised advantages of Q_O, and for pi_O where it chose. The deliberation cost is
that of Harb et al. 2017 (arXiv:1709.04571): every choice after the first of an episode costs eta.

Deviations: targets bootstrap from the value upon arrival, U(w, s') = (1 - beta) Q_O(s', w) + beta
(V_O(s') - eta), instead of from the option that was drawn in s'; both have the same mean. Both
levels read one encoder, and all of their losses train it. Without exploration nothing is drawn:
an option ends at the median of its lengths, and the most likely one follows.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.shared.proximal import (
    flat_batch,
    rollout_advantages,
    run_epochs,
    updates_per_rollout,
)
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import ARRIVED, DRAWN, OPTION, Spaces, Tree, action_mask, tree_map, unpack
from assay.functional import losses
from assay.functional.distributions import policy_distribution
from assay.networks.options import OptionActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead
from assay.policies.options import OptionPolicy


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="policy-gradient",
    paper="arXiv:1609.05140",
    traits=("levels",),
)
class OptionCritic(Algorithm):
    """Options that are learned end to end, with proximal updates. May help where goals move."""

    class Hyperparameters(ProximalSettings):
        """Settings of option-critic."""

        n_options: int = Field(4, ge=2, description="How many options there are.")
        deliberation_cost: float = Field(
            0.0, ge=0, description="What choosing another option costs, in units of rewards."
        )
        termination_reg: float = Field(
            0.01, description="Added to the advantage of going on, for the terminations alone."
        )
        termination_coef: float = Field(1.0, gt=0, description="Weight of the termination loss.")
        option_entropy_coef: float = Field(
            0.01, ge=0, description="Weight of the entropy of the policy over options."
        )

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(updates=updates_per_rollout(hp, context.num_envs))
        self.distribution = policy_distribution(spaces.action)
        net = OptionActorCritic(
            spaces.observation, self.distribution, hp.n_options,
            **hp.encoder(), **hp.gaussian(spaces.action),
        )  # fmt: skip
        self.net = net.to(self.device)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("option_critic", self.net, self._loss, rule)])
        self.policy = OptionPolicy(
            spaces, self.net, StochasticHead(spaces.action),
            device=self.device, rng=self.rng, normalizer=self.obs_norm,
        )  # fmt: skip

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        run_epochs(self, self.step, self._prepare(data), data.length * data.num_envs)
        self.note(**option_figures(data.extras, data.valid))

    # ------------------------------------------------------------------ the mathematics

    def _prepare(self, data: Rollout) -> dict[str, Tensor]:
        """Compute values, advantages and targets of both levels; flatten [T, N] to [T * N]."""
        hp, length, envs = self.hp, data.length, data.num_envs
        lam, cost = np.float32(hp.gae_lambda), np.float32(hp.deliberation_cost)
        option, arrived, drawn = (data.extras[name] for name in (OPTION, ARRIVED, DRAWN))
        flat = tree_map(lambda x: x.reshape(length * envs, *x.shape[2:]), data.obs)
        obs = self.inputs(flat)
        q, beta, v = (x.reshape(length, envs, *x.shape[1:]) for x in self._values(obs))
        value = (q * option).sum(-1)  # Q_O(s_t, w_t): [T, N]

        # U(w_t, s_{t+1}) and what was drawn there, mixed so that the recursion of GAE with
        # Q_O(s_{t+1}, w_{t+1}) gives the lambda-return that bootstraps from U.
        next_value = np.empty_like(value)
        upon_arrival = self._upon_arrival(option[:-1], q[1:], beta[1:], v[1:])
        followed = value[1:] - cost * drawn[1:]
        next_value[:-1] = (1 - lam) * upon_arrival + lam * followed
        last = self._values(self.inputs(data.last_obs))
        next_value[-1] = self._upon_arrival(option[-1], *last)
        if (finals := data.finals) is not None:
            acted = option[finals.step, finals.env]
            found = self._values(self.inputs(finals.obs))
            next_value[finals.step, finals.env] = self._upon_arrival(acted, *found)
        advantage, target = rollout_advantages(self, data, data.reward, value, next_value)

        own = {
            OPTION: option,
            ARRIVED: arrived,
            DRAWN: drawn * data.valid,
            "option_log_prob": data.extras["option_log_prob"],
            # G_t - V_O(s_t)
            "option_advantage": target - v,
            # A(s, w) + eta + xi, of the option that was there: why it should go on
            "going_on": (q * arrived).sum(-1) - v + cost + np.float32(hp.termination_reg),
        }
        size = length * envs
        tensors = {k: torch.from_numpy(x.reshape(size, *x.shape[2:])) for k, x in own.items()}
        batch = flat_batch(data, obs, value, advantage, target, self.device)
        return batch | {k: x.to(self.device) for k, x in tensors.items()}

    @torch.no_grad()
    def _values(self, obs: Tree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Q_O [B, K], beta [B, K] and V_O [B] of observations."""
        levels, q = self.net(obs)
        v = (levels.choice.softmax(-1) * q).sum(-1)
        return q.cpu().numpy(), levels.termination.sigmoid().cpu().numpy(), v.cpu().numpy()

    def _upon_arrival(
        self, option: np.ndarray, q: np.ndarray, beta: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        # U(w, s') = (1 - beta_w(s')) Q_O(s', w) + beta_w(s') (V_O(s') - eta)
        ends = (beta * option).sum(-1)
        goes_on = (q * option).sum(-1)
        return (1 - ends) * goes_on + ends * (v - np.float32(self.hp.deliberation_cost))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, weight, policy_weight = self.hp, batch.get("weight"), batch.get("policy_weight")
        obs, option, arrived = unpack("obs", batch), batch[OPTION], batch[ARRIVED]
        mask = action_mask(obs)
        levels, q = self.net(obs)
        # The lower level: pi_w of the option that acted.
        params = (levels.params * option.unsqueeze(-1)).sum(1)
        log_prob, entropy = self.distribution.log_prob_entropy(params, batch["action"], mask)
        advantage, entropy = losses.policy_terms(
            batch["advantage"], entropy, weight, policy_weight, normalize=hp.normalize_advantage
        )
        # L^CLIP = E[min(r A, clip(r, 1 - eps, 1 + eps) A)]
        clip = batch["clip"]
        policy = losses.ppo_policy_loss(log_prob, batch["log_prob"], advantage, clip, weight)
        value_loss = losses.value_loss(
            (q * option).sum(-1), batch["target"], weight,
            old_value=batch["value"], clip=hp.value_clip,
        )  # fmt: skip
        # The upper level: pi_O where it chose.
        choices, drawn = levels.choice.log_softmax(-1), batch[DRAWN]
        drawn = drawn if policy_weight is None else drawn * policy_weight
        followed = batch["option_advantage"]
        if hp.normalize_advantage:
            followed = losses.normalize_advantages(followed, drawn)
        chosen = (choices * option).sum(-1)
        upper = losses.ppo_policy_loss(chosen, batch["option_log_prob"], followed, clip, drawn)
        choice_entropy = losses.weighted_mean(-(choices.exp() * choices).sum(-1), weight)
        # d U / d beta = -(A(s, w) + eta): an option ends where another one is worth more.
        ends = (levels.termination.sigmoid() * arrived).sum(-1)
        termination = losses.weighted_mean(ends * batch["going_on"], weight)
        loss = (
            policy.loss
            + upper.loss
            + hp.termination_coef * termination
            + 2 * hp.value_coef * value_loss
            - batch["entropy_coef"] * entropy
            - hp.option_entropy_coef * choice_entropy
        )
        return loss, {
            "policy_loss": policy.loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": policy.approx_kl,
            "clip_fraction": policy.clip_fraction,
            "option_loss": upper.loss,
            "option_entropy": choice_entropy,
            "option_approx_kl": upper.approx_kl,
            "termination_loss": termination,
        }


def option_figures(extras: dict[str, np.ndarray], valid: np.ndarray) -> dict[str, float]:
    """Return how a rollout [T, N] was shared among options, and how long they lasted."""
    steps = max(int(valid.sum()), 1)
    shares = extras[OPTION][valid].sum(0) / steps
    chosen, there = extras[DRAWN][valid], extras[ARRIVED][valid].any(-1)
    figures = {f"option_{k}_share": float(share) for k, share in enumerate(shares)}
    figures["option_length"] = steps / max(float(chosen.sum()), 1.0)
    figures["termination_rate"] = float(chosen[there].mean()) if there.any() else 0.0
    return figures
