"""Recurrent proximal policy optimisation: PPO (arXiv:1707.06347) whose policy has a memory.

The memory is an LSTM, a GRU or a gated transformer (GTrXL, arXiv:1910.06764). The loss is PPO's
clipped surrogate; gradients run through time within chunks of `chunk` steps (truncated
back-propagation). A minibatch is made of whole chunks.

When an update begins, one pass without gradient over the rollout, from the state that acting
began it with, gives the values and the state at every chunk's start: the parameters have not moved
since acting, so these are the numbers that acting computed. Episodes that begin inside a chunk
restart the memory there. A truncated episode is bootstrapped from its last observation with the
memory from before the reset.

Deviations: policy and value share encoder and memory, and have heads of their own. The states at
chunk starts are not renewed between epochs.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import MemorySettings
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.types import Spaces, Tree, action_mask, pack, tree_leaves, tree_map, unpack
from assay.functional import losses, returns
from assay.functional.distributions import policy_distribution
from assay.functional.recurrent import by_step, chunks_of
from assay.networks.recurrent import RecurrentActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead


@register(
    loop="on_policy",
    actions=("Discrete", "MultiDiscrete", "MultiBinary", "Box"),
    family="policy-gradient",
    paper="arXiv:1707.06347",
    traits=("memory", "first"),
)
class RecurrentPPO(Algorithm):
    """PPO with an LSTM, GRU or transformer. For partially observable tasks."""

    class Hyperparameters(MemorySettings, ProximalSettings):
        """Settings of recurrent PPO."""

        chunk: int = Field(16, gt=0, description="Steps that gradients run back through.")
        hidden: tuple[int, ...] = Field((64,), description="Widths of layers before the memory.")
        head_hidden: tuple[int, ...] = Field((64,), description="Widths of each head's layers.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        size = hp.horizon * context.num_envs
        _require_whole_chunks(hp, context.num_envs)
        minibatches = size // hp.minibatch_size
        self.needs = hp.needs(updates=hp.epochs * minibatches, chunk=hp.chunk)
        self.distribution = policy_distribution(spaces.action)
        net = RecurrentActorCritic(
            spaces.observation, self.distribution, **hp.encoder(), **hp.gaussian(spaces.action),
            memory=hp.memory, memory_size=hp.memory_size, memory_layers=hp.memory_layers,
            heads=hp.heads, context=hp.context, head_hidden=hp.head_hidden,
        )  # fmt: skip
        self.net = net.to(self.device)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("ppo", self.net, self._loss, rule)])
        self.policy = self.make_policy(self.net, StochasticHead(spaces.action))

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        hp = self.hp
        batch = self._prepare(data)
        # A minibatch has so many rows of runs; padding does not count. Chunks by time, then by
        # environment, as `chunks_of` lays them out.
        size = data.in_runs().reshape(-1, hp.chunk, data.num_envs).sum(1).reshape(-1)
        chunks = np.flatnonzero(size)
        progress = self.clock.progress
        batch["clip"] = torch.tensor(hp.clip(progress), device=self.device)
        batch["entropy_coef"] = torch.tensor(hp.entropy_coef(progress), device=self.device)
        lr = hp.lr(progress)
        for _ in range(hp.epochs):
            order = self.rng.permutation(chunks)
            before = np.cumsum(size[order]) - size[order]
            cuts = np.flatnonzero(np.diff(before // hp.minibatch_size)) + 1
            kls = []
            for some in np.split(order, cuts):
                index = torch.from_numpy(some).to(self.device)
                metrics = self.step(batch, lr, index)
                if hp.target_kl is not None:
                    kls.append(self.step.metrics(metrics)["approx_kl"])
            if hp.target_kl is not None and np.mean(kls) > hp.target_kl:
                break

    # ------------------------------------------------------------------ the mathematics

    def _prepare(self, data: Rollout) -> dict[str, Tensor]:
        """Compute values, advantages, returns and the state at each chunk's start.

        Returns:
            Tensors [chunks, steps, ...], and `carry/...` [chunks, ...].
        """
        hp = self.hp
        reward = data.reward
        if self.reward_scale is not None:
            reward = self.reward_scale.scale(reward)
        obs = self.inputs(data.obs)
        first = torch.from_numpy(data.restarts()).to(self.device)
        value, next_value, carries = self._values(data, obs, first)
        advantage, target = returns.gae_numpy(
            reward, value, next_value, data.terminated, data.truncated,
            hp.gamma, hp.gae_lambda, None if data.valid.all() else data.valid,
        )  # fmt: skip
        data.advantage = advantage
        self.note(explained_variance=float(losses.explained_variance(value, target, data.valid)))
        arrays = {
            "action": data.extras.get("raw_action", data.action),
            "log_prob": data.extras["log_prob"],
            "value": value,
            "advantage": advantage,
            "target": target,
            "weight": data.valid.astype(np.float32),
            "policy_weight": data.policy_weight,
        }
        steps = {k: torch.from_numpy(v).to(self.device) for k, v in arrays.items()}
        rows = pack("obs", obs) | steps | {"is_first": first}
        return {k: chunks_of(v, hp.chunk) for k, v in rows.items()} | pack("carry", carries)

    @torch.no_grad()
    def _values(
        self, data: Rollout, obs: Tree, is_first: Tensor
    ) -> tuple[np.ndarray, np.ndarray, dict[str, Tensor]]:
        """Return V [T, N] of every state and of its true successor, and the chunks' states."""
        net, length = self.net, self.hp.chunk
        carry = self.tensors(self.initial_carry(data.num_envs))
        starts, parts = [], []
        for begin in range(0, data.length, length):
            if (begun := data.runs.beginning_at(begin)) is not None:
                env, given = (self.tensors(part) for part in begun)
                carry = {k: x.index_copy(0, env, given[k]) for k, x in carry.items()}
            part = tree_map(lambda x, t=begin: x[t : t + length].flatten(0, 1), obs)
            starts.append(carry)
            y, carry = net.remember(part, carry, is_first[begin : begin + length])
            parts.append(net.value_head(y).squeeze(-1))
        value = torch.cat(parts).cpu().numpy()
        following = self._next_value(data.last_obs, data.last_carry)
        next_value = np.concatenate([value[1:], following[None]])
        if (finals := data.finals) is not None:
            # With the memory from before the reset.
            next_value[finals.step, finals.env] = self._next_value(finals.obs, finals.carry)
        # Chunks are numbered by time, then by environment, as `chunks_of` lays them out.
        carries = {k: torch.cat([start[k] for start in starts]) for k in carry}
        return value, next_value, carries

    def _next_value(self, obs: Tree, carry: Tree) -> np.ndarray:
        """Return V [K] of observations that nobody has acted on."""
        count = len(tree_leaves(obs)[0])
        # Where there is no last carry, nothing bootstraps from what follows the last row.
        state = self.tensors(self.initial_carry(count) if carry is None else carry)
        nowhere = torch.zeros(1, count, device=self.device)
        y, _ = self.net.remember(self.inputs(obs), state, nowhere)
        return self.net.value_head(y[0]).squeeze(-1).cpu().numpy()

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp = self.hp
        # The network unrolls [T, B]; all else is flat, step by step.
        is_first = batch["is_first"].transpose(0, 1)
        obs = tree_map(by_step, unpack("obs", batch))
        params, value = self.net(obs, unpack("carry", batch), is_first)
        names = ("action", "log_prob", "value", "advantage", "target", "weight", "policy_weight")
        action, old_log_prob, old_value, advantage, target, weight, policy_weight = (
            by_step(batch[k]) for k in names
        )
        mask = action_mask(obs)
        log_prob = self.distribution.log_prob(params, action, mask)
        entropy = self.distribution.entropy(params, mask)
        advantage, entropy = losses.policy_terms(
            advantage, entropy, weight, policy_weight, normalize=hp.normalize_advantage
        )
        # L^CLIP = E[min(r A, clip(r, 1 - eps, 1 + eps) A)]
        policy = losses.ppo_policy_loss(log_prob, old_log_prob, advantage, batch["clip"], weight)
        value_loss = losses.value_loss(
            value, target, weight, old_value=old_value, clip=hp.value_clip
        )
        # value_loss carries the paper's one half; the customary coefficient 0.5 does not.
        loss = policy.loss + 2 * hp.value_coef * value_loss - batch["entropy_coef"] * entropy
        return loss, {
            "policy_loss": policy.loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": policy.approx_kl,
            "clip_fraction": policy.clip_fraction,
        }


def _require_whole_chunks(hp: RecurrentPPO.Hyperparameters, num_envs: int) -> None:
    size = hp.horizon * num_envs
    if hp.horizon % hp.chunk:
        raise ConfigError(
            f"chunk={hp.chunk} does not divide horizon={hp.horizon}.",
            "Choose a chunk that divides the horizon.",
        )
    if size % hp.minibatch_size or hp.minibatch_size % hp.chunk:
        raise ConfigError(
            f"minibatch_size={hp.minibatch_size} does not divide the rollout of {size} = horizon "
            f"{hp.horizon} x num_envs {num_envs} transitions into whole chunks of {hp.chunk}.",
            "Choose a multiple of chunk that divides horizon x num_envs.",
        )
