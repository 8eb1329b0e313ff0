"""What learners of action values with a memory do with replayed sequences (R2D2).

Sequences are replayed with the memory's state as it was when they were played (stored state). Their
first steps only bring that state up to date with today's weights, and no gradient flows through
them; but a sequence that begins its episode begins with the right state, and learns from all steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from assay.core.errors import ConfigError
from assay.core.types import SequenceBatch, Tree, pack
from assay.networks.rnn import Remembering

ETA = 0.9  # a sequence's priority: ETA max |delta| + (1 - ETA) mean |delta|
LONGEST_COMPILED = 16  # steps: unrolled code grows with them, and so does the time to compile it


def draw_sequences(learner: Any, data: Any) -> tuple[SequenceBatch, dict[str, Tensor]]:
    """Draw a batch of sequences [B, L], normalised as the learner does.

    Returns:
        The sample, and its tensors by name, both for `learn_values`.
    """
    hp = learner.hp
    sample = data.sample(hp.batch_size, beta=hp.priority_beta(learner.clock.progress))
    obs = sample.obs  # [B, L + 1]
    if learner.obs_norm is not None:
        obs = learner.obs_norm.normalize_torch(obs)
    batch = pack("obs", obs) | pack("carry", sample.carry)
    for name in ("is_first", "valid", "action", "reward", "terminated", "truncated"):
        batch[name] = getattr(sample, name)
    if learner.reward_scale is not None:
        batch["reward"] = learner.reward_scale.scale_torch(sample.reward)
    if sample.weight is not None:
        batch["weight"] = sample.weight
    return sample, batch


def unroll(net: Remembering, obs: Tree, carry: Tree, is_first: Tensor, burn_in: int) -> Tensor:
    """Return what a network's head says at every step and after the last, [L + 1, B, ...].

    Args:
        net: The network.
        obs: Observations [(L + 1) * B, ...], step by step.
        carry: Memories before the first step, leading axis B.
        is_first: [L, B], 1 where an episode begins.
        burn_in: Steps without a gradient, but in sequences that begin their episode.
    """
    features = net.encoder(obs).view(len(is_first) + 1, is_first.shape[1], -1)
    first = torch.cat([is_first, torch.zeros_like(is_first[:1])])
    states = []
    if burn_in:
        warm, carry = net.memory(features[:burn_in], carry, first[:burn_in])
        # Only sequences that begin their episode learn from these steps, and through them.
        begins = is_first[0] > 0
        carry = {name: _joined(x, begins) for name, x in carry.items()}
        states.append(warm)
    states.append(net.memory(features[burn_in:], carry, first[burn_in:])[0])
    return net.head(torch.cat(states))


def learned_steps(valid: Tensor, is_first: Tensor, burn_in: int) -> Tensor:
    """Return 1 for steps that are learned from, else 0; all are [L, B]."""
    late = torch.arange(len(valid), device=valid.device) >= burn_in
    return valid * torch.where(late.unsqueeze(1), 1.0, is_first[:1])


def sequence_priority(td_error: Tensor, learned: Tensor) -> Tensor:
    """Return ETA max_t |delta_t| + (1 - ETA) mean_t |delta_t|, [B], of errors [L, B]."""
    size = td_error.abs()
    return ETA * size.amax(0) + (1 - ETA) * size.sum(0) / learned.sum(0)


def require_n_step_within(n_step: int, sequence: int) -> None:
    """Refuse returns that are longer than what is learned from.

    Raises:
        ConfigError: They are.
    """
    if n_step > sequence:
        raise ConfigError(
            f"n_step={n_step} is longer than sequence={sequence}.",
            "Returns are cut at a sequence's end: use n_step <= sequence.",
        )


def _joined(x: Tensor, rows: Tensor) -> Tensor:
    """Return x [B, ...] with a gradient in `rows` [B] only."""
    return torch.where(rows.view(-1, *[1] * (x.ndim - 1)), x, x.detach())
