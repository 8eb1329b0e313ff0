"""What PPO does with a rollout, for all algorithms that improve their policy in this way.

The clipped surrogate of arXiv:1707.06347, equation 7, on minibatches of a rollout whose advantages
are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from assay.algorithms.base import Algorithm
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.types import Tree, action_mask, pack, unpack
from assay.functional import losses, returns
from assay.functional.distributions import Distribution
from assay.optim.objective import gathered
from assay.optim.update import Step


def updates_per_rollout(hp: ProximalSettings, num_envs: int) -> int:
    """Return how many optimizer steps a rollout leads to.

    Raises:
        ConfigError: Minibatches do not divide the rollout.
    """
    size = hp.horizon * num_envs
    if size % hp.minibatch_size:
        raise ConfigError(
            f"minibatch_size={hp.minibatch_size} does not divide the rollout of "
            f"{size} = horizon {hp.horizon} x num_envs {num_envs} transitions.",
            "Choose a minibatch_size that divides horizon x num_envs.",
        )
    return hp.epochs * (size // hp.minibatch_size)


def rollout_advantages(
    algorithm: Algorithm,
    data: Rollout,
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the advantages and the targets of the value function, both [T, N].

    Args:
        algorithm: Whose settings count, and who scales rewards and notes how well values fit.
        data: The rollout.
        reward: [T, N], before it is scaled.
        value: [T, N], of each state.
        next_value: [T, N], of its true successor.
    """
    hp = algorithm.hp
    if algorithm.reward_scale is not None:
        reward = algorithm.reward_scale.scale(reward)
    advantage, target = returns.gae_numpy(
        reward, value, next_value, data.terminated, data.truncated,
        hp.gamma, hp.gae_lambda, None if data.valid.all() else data.valid,
    )  # fmt: skip
    data.advantage = advantage
    fit = losses.explained_variance(value, target, data.valid)
    algorithm.note(explained_variance=float(fit))
    return advantage, target


def flat_batch(
    data: Rollout,
    obs: Tree,
    value: np.ndarray,
    advantage: np.ndarray,
    target: np.ndarray,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return what `clipped_loss` takes, flattened from [T, N] to [T * N]."""
    flat = {
        "action": data.extras.get("raw_action", data.action),
        "log_prob": data.extras["log_prob"],
        "value": value,
        "advantage": advantage,
        "target": target,
    }
    if not data.whole:  # plain means are cheaper than weighted ones
        flat["weight"] = data.valid.astype(np.float32)
        flat["policy_weight"] = data.policy_weight
    size = data.length * data.num_envs
    tensors = {k: torch.from_numpy(v.reshape(size, *v.shape[2:])) for k, v in flat.items()}
    return pack("obs", obs) | {k: v.to(device) for k, v in tensors.items()}


def run_epochs(
    algorithm: Algorithm, step: Step, batch: dict[str, Tensor], size: int, chunk: int = 1
) -> None:
    """Take the optimizer steps on one rollout of `size` rows, each of `chunk` transitions."""
    hp, device, progress = algorithm.hp, algorithm.device, algorithm.clock.progress
    batch["clip"] = torch.tensor(hp.clip(progress), device=device)
    batch["entropy_coef"] = torch.tensor(hp.entropy_coef(progress), device=device)
    lr = hp.lr(progress)
    for _ in range(hp.epochs):
        order = torch.from_numpy(algorithm.rng.permutation(size)).to(device)
        kls = []
        for rows, index in minibatches(batch, order, hp.minibatch_size // chunk):
            metrics = step(rows, lr, index)
            if hp.target_kl is not None:
                found = step.metrics(metrics).items()  # of every policy that is learned
                kls += [value for name, value in found if name.endswith("approx_kl")]
        if hp.target_kl is not None and np.mean(kls) > hp.target_kl:
            break


def minibatches(
    batch: dict[str, Tensor], order: Tensor, size: int
) -> Iterator[tuple[dict[str, Tensor], Tensor | None]]:
    """Yield parts of `size` rows of a batch, in `order`: what a `Step` takes.

    On a GPU, gathering rows is left to the step. Elsewhere all are copied once: that is faster than
    one copy per part, and takes the memory of one more rollout.
    """
    if order.device.type != "cpu":
        yield from ((batch, index) for index in order.split(size))
        return
    scalars = {k: v for k, v in batch.items() if not v.ndim}
    columns = {k: v.split(size) for k, v in gathered(batch, order).items() if v.ndim}
    for rows in zip(*columns.values(), strict=True):
        yield dict(zip(columns, rows, strict=True)) | scalars, None


def clipped_loss(
    net: Callable[[Tree], tuple[Tensor, Tensor]],
    distribution: Distribution,
    hp: ProximalSettings,
    batch: dict[str, Tensor],
    heads: int = 1,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss on a minibatch.

    `net` gives the policy's parameters and the values of observations; with several value `heads`,
    values are [B, heads].
    """
    weight, policy_weight = batch.get("weight"), batch.get("policy_weight")
    obs = unpack("obs", batch)
    mask = action_mask(obs)
    params, value = net(obs)
    log_prob, entropy = distribution.log_prob_entropy(params, batch["action"], mask)
    advantage, entropy = losses.policy_terms(
        batch["advantage"], entropy, weight, policy_weight, normalize=hp.normalize_advantage
    )
    # L^CLIP = E[min(r A, clip(r, 1 - eps, 1 + eps) A)]
    policy = losses.ppo_policy_loss(log_prob, batch["log_prob"], advantage, batch["clip"], weight)
    value_weight = batch.get("value_weight", weight)  # other rows may count for the values
    if weight is not None and heads > 1:
        value_weight = weight[:, None].expand_as(value)
    value_loss = losses.value_loss(
        value, batch["target"], value_weight, old_value=batch["value"], clip=hp.value_clip
    )
    # value_loss carries the paper's one half; the customary coefficient 0.5 does not. It is a
    # mean over the heads, whose losses are to be added.
    loss = policy.loss + 2 * hp.value_coef * heads * value_loss
    return loss - batch["entropy_coef"] * entropy, {
        "policy_loss": policy.loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": policy.approx_kl,
        "clip_fraction": policy.clip_fraction,
    }
