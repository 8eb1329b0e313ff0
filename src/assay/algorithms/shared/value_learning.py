"""The update that learners of action values share: draw, step, priorities, target.

What is a learner's own (the loss, and what else the loss reads) stays in its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from assay.buffers.replay_protocol import Replay
from assay.core.types import Batch, Clock, SequenceBatch
from assay.networks.noisy import resample_noise
from assay.optim.parameters import flatten_parameters
from assay.optim.update import Step


class ValueLearner(Protocol):
    """What `learn_values` needs of an algorithm."""

    step: Step
    hp: Any  # has `ReplaySettings`, `TargetSettings` and `priority_beta`
    clock: Clock
    rng: np.random.Generator

    @property
    def q(self) -> nn.Module:
        """Return the network that `step` moves."""

    @property
    def target(self) -> nn.Module:
        """Return the network that it bootstraps from."""

    def replay_tensors(self, batch: Batch) -> dict[str, Tensor]:
        """Name a replay batch for a loss."""


def draw_transitions(learner: ValueLearner, data: Replay[Batch]) -> tuple[Batch, dict[str, Tensor]]:
    """Draw a batch of transitions.

    Returns:
        The sample, and its tensors by name, both for `learn_values`.
    """
    hp = learner.hp
    sample = data.sample(hp.batch_size, beta=hp.priority_beta(learner.clock.progress))
    return sample, learner.replay_tensors(sample)


def learn_values(
    learner: ValueLearner,
    data: Replay[Any],
    sample: Batch | SequenceBatch,
    batch: dict[str, Tensor],
    lr: float | Sequence[float],
    *,
    noisy: bool = False,
) -> None:
    """Take one gradient step, write priorities back, and move the target when it is due.

    Args:
        learner: Who learns. With prioritised replay, its loss reports `priority` [B].
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
    step(batch, lr)
    if "priority" in step.outputs:
        data.update(sample.index, priority=step.outputs["priority"])
    if hp.tau == 1 and step.updates % hp.target_every == 0:
        flatten_parameters(learner.target).copy_(step.flats[learner.q])
