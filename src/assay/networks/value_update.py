"""The update that learners of action values share: draw, step, priorities, target.

The learner is an algorithm with the networks `q` and `target` and the optimizer step `step`. What
is its own (the loss, and what else the loss reads) stays in its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from assay.buffers.replay_protocol import Replay
from assay.core.types import Batch, SequenceBatch
from assay.networks.noisy import resample_noise


def draw_transitions(learner: Any, data: Replay[Batch]) -> tuple[Batch, dict[str, Tensor]]:
    """Draw a batch of transitions.

    Args:
        learner: Has the settings `batch_size` and `priority_beta`.
        data: Its replay; a uniform one has no use for beta.

    Returns:
        The sample, and its tensors by name, both for `learn_values`.
    """
    hp = learner.hp
    sample = data.sample(hp.batch_size, beta=hp.priority_beta(learner.clock.progress))
    return sample, learner.replay_tensors(sample)


def learn_values(
    learner: Any,
    data: Replay[Any],
    sample: Batch | SequenceBatch,
    batch: dict[str, Tensor],
    lr: float | Sequence[float],
    *,
    noisy: bool = False,
) -> None:
    """Take one gradient step, write priorities back, and move the target when it is due.

    Args:
        learner: Has the settings `tau` and `target_every`. With prioritised replay, its loss
            reports `priority` [B].
        data: The replay that `sample` is from.
        sample: What was drawn.
        batch: Its tensors, for the loss.
        lr: Learning rates of the optimizer step.
        noisy: Draw new noise for both networks before.
    """
    step, hp = learner.step, learner.hp
    if noisy:
        resample_noise(learner.q, learner.rng)
        resample_noise(learner.target, learner.rng)
    learner.record(step, step(batch, lr))
    if learner.needs.prioritized is not None:
        data.update(sample.index, priority=step.outputs["priority"])
    if hp.tau == 1 and learner.clock.updates % hp.target_every == 0:
        step.flats[learner.target].copy_(step.flats[learner.q])
