"""R2D2 (Kapturowski et al. 2019, openreview.net/forum?id=r1lyTjAqYX): deep Q-learning with memory.

Sequences are replayed with the memory's state as it was when they were played (stored state). The
first `burn_in` steps only bring that state up to date with today's weights, in the online and in
the target network; no gradient flows through them. The `sequence` steps after them are learned:

    Q(s_t, a_t) -> h(sum_{j<k} gamma^j r_{t+j} + gamma^k h^-1(Q'(s_{t+k}, argmax_a Q(s_{t+k}, a))))

with h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, where k is n or less at the end of the episode or
of the sequence; `rescale=false` leaves h out. Sequences are drawn by
0.9 max_t |delta_t| + 0.1 mean_t |delta_t|.

Deviations: a sequence that begins its episode begins with the right state, so that all its steps
are learned from (elsewhere the first `burn_in` steps of every episode never are); new sequences get
the largest priority instead of one computed by actors; the memory is not shown the last action and
reward (an environment can put them into its observation); the loss is a mean over steps, not a sum;
truncated episodes bootstrap; invalid actions (masks) are excluded from the greedy value.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ON_VECTORS,
    MemorySettings,
    NetworkSettings,
    NormalizeSettings,
    PrioritySettings,
    ReplaySettings,
    TargetSettings,
    Unused,
)
from assay.algorithms.shared.sequences import (
    LONGEST_COMPILED,
    draw_sequences,
    learned_steps,
    require_n_step_within,
    sequence_priority,
    unroll,
)
from assay.algorithms.shared.value_learning import learn_values
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.images import has_images
from assay.core.registry import register
from assay.core.schedules import ProbabilitySchedule, Schedule, constant, linear
from assay.core.types import (
    Problem,
    SequenceBatch,
    Spaces,
    Tree,
    action_mask,
    tree_map,
    unpack,
)
from assay.functional import returns, targets
from assay.functional.rescaling import rescale, unrescale
from assay.networks.encoders import make_encoder
from assay.networks.heads import DuelingHead
from assay.networks.mlp import mlp
from assay.networks.rnn import Remembering, make_memory
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead


@register(
    loop="off_policy", actions=("Discrete",), family="value",
    paper="https://openreview.net/forum?id=r1lyTjAqYX",
    traits=("memory",),
)  # fmt: skip
class R2D2(Algorithm):
    """Recurrent Q-learning from replayed sequences. For partially observable tasks."""

    class Hyperparameters(
        NormalizeSettings,
        PrioritySettings,
        MemorySettings,
        TargetSettings,
        NetworkSettings,
        ReplaySettings,
    ):
        """Settings of R2D2."""

        lr: Schedule = Field(constant(1e-4), description="Learning rate or schedule.")
        gamma: float = Field(0.997, ge=0, le=1, description="Discount.")
        max_grad_norm: float | None = Field(40.0, gt=0, description="Global gradient clip.")
        batch_size: int = Field(64, gt=0, description="Sequences per gradient step.")
        buffer_size: int = Field(1_000_000, gt=0, description="Steps kept in the replay.")
        learning_starts: int = Field(5000, ge=0, description="Random steps before learning.")
        train_every: int = Field(64, gt=0, description="Environment steps per round of updates.")
        n_step: int = Field(5, gt=0, description="Steps before bootstrapping.")
        prioritized: bool = Field(True, description="Sample sequences by TD error.")
        priority_alpha: float = Field(0.9, ge=0, le=1, description="How much priorities count.")
        priority_beta: ProbabilitySchedule = Field(
            constant(0.6), description="Importance correction."
        )
        hidden: tuple[int, ...] = Field((64,), description="Widths of layers before the memory.")
        memory_size: int = Field(128, gt=0, description="Width of the memory.")
        dueling: bool = Field(True, description="Separate value and advantage streams.")
        adam_eps: float = Field(1e-3, gt=0, description="Adam's epsilon.")
        sequence: int = Field(80, gt=0, description="Steps of a sequence that are learned from.")
        burn_in: int = Field(40, ge=0, description="Steps before them that warm the memory up.")
        overlap: int = Field(
            40, ge=0, description="Of the steps learned from, how many the next sequence repeats."
        )
        rescale: bool = Field(True, description="Learn rescaled values h(Q), not Q itself.")
        rescale_eps: float = Field(1e-3, ge=0, description="Linear part of the value rescaling h.")
        epsilon: ProbabilitySchedule = Field(
            linear(1.0, 0.05, 0.1), description="Share of random actions; a schedule."
        )
        epsilon_alpha: float = Field(
            0.0, ge=0,
            description="Environment i of N explores with epsilon^(1 + alpha i / (N - 1)).",
        )  # fmt: skip

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return short sequences and frequent updates on vectors; the fields suit images."""
            fit = super().fitted(problem, given)
            if has_images(problem.spaces.observation):
                return fit
            sequences = {"sequence": 16, "burn_in": 8, "overlap": 8, "batch_size": 32}
            return fit | ON_VECTORS | sequences | {
                "num_envs": 8, "train_every": 16, "updates": 1, "n_step": 3, "adam_eps": 1e-5,
                "epsilon": linear(1.0, 0.05, 0.3),
            }  # fmt: skip

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the shape of the rescaling where there is none."""
            if not self.rescale:
                yield "rescale_eps", "with rescale=false"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        _refuse(hp, context.num_envs)
        length = hp.burn_in + hp.sequence
        self.needs = hp.needs(
            n_step=1, sequence=length, overlap=hp.burn_in + hp.overlap, prioritized=hp.priority()
        )  # the loss sums the n steps
        assert isinstance(spaces.action, Discrete)
        self.actions = int(spaces.action.n)
        self.q = _RecurrentValues(spaces.observation, self.actions, hp).to(self.device)
        self.target = copy.deepcopy(self.q)
        self.auto_compiles = length <= LONGEST_COMPILED
        rule = Adam(eps=hp.adam_eps, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [Objective("q", self.q, self._loss, rule)], polyak=hp.follow(self.target, self.q)
        )
        self.policy = self.make_policy(self.q, GreedyHead(spaces.action, self.epsilons))

    def epsilons(self, n: int) -> float | np.ndarray:
        """Return the share of random actions of each of n environments."""
        epsilon, alpha = self.hp.epsilon(self.clock.progress), self.hp.epsilon_alpha
        if alpha == 0:
            return epsilon
        # epsilon_i = epsilon^(1 + alpha i / (N - 1)) (Ape-X, arXiv:1803.00933)
        return epsilon ** (1.0 + alpha * np.arange(n) / max(1, n - 1))

    def update(self, data: Replay[SequenceBatch]) -> None:
        """Take one gradient step on a batch of sequences; move the target when it is due."""
        sample, batch = draw_sequences(self, data)
        learn_values(self, data, sample, batch, self.hp.lr(self.clock.progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, carry = self.hp, unpack("carry", batch)
        obs = tree_map(lambda x: x.transpose(0, 1), unpack("obs", batch))  # [L + 1, B, ...]
        names = ("action", "reward", "terminated", "truncated", "valid", "is_first")
        action, reward, terminated, truncated, valid, is_first = (batch[k].t() for k in names)
        online = self.q(obs, carry, is_first)  # [L + 1, B, A]
        q = online[:-1].gather(2, action.long().unsqueeze(2)).squeeze(2)  # [L, B]
        with torch.no_grad():
            target, mask = self.target(obs, carry, is_first), action_mask(obs)
            value = targets.double_q_value(
                online[1:].flatten(0, 1), target[1:].flatten(0, 1),
                None if mask is None else mask[1:].flatten(0, 1),
            ).view_as(q)  # fmt: skip
            if hp.rescale:
                value = unrescale(value, hp.rescale_eps)
            # y = h(sum_j gamma^j r_{t+j} + gamma^k (1 - terminated) h^-1(Q'))
            y = returns.n_step_return(reward, value, terminated, truncated, hp.gamma, hp.n_step)
            if hp.rescale:
                y = rescale(y, hp.rescale_eps)
            learned = learned_steps(valid, is_first, hp.burn_in)  # [L, B]
        td_error = (q - y) * learned
        weight = batch.get("weight", 1.0)
        loss = 0.5 * (td_error.square() * weight).sum() / learned.sum()
        metrics = {"q_mean": (q * learned).sum() / learned.sum()}
        if hp.prioritized:
            metrics["priority"] = sequence_priority(td_error, learned)
        return loss, metrics


class _RecurrentValues(Remembering):
    """Action values of sequences: encoder, memory, head."""

    def __init__(self, space: Any, actions: int, hp: R2D2.Hyperparameters) -> None:
        super().__init__()
        self.burn_in = hp.burn_in
        self.encoder = make_encoder(space, **hp.encoder(), init="torch")
        self.memory = make_memory(
            hp.memory, self.encoder.out_features, hp.memory_size, layers=hp.memory_layers,
            heads=hp.heads, context=hp.context,
        )  # fmt: skip
        width, hidden = self.memory.out_features, hp.head_hidden
        self.head: nn.Module = (
            DuelingHead(width, actions, hidden=hidden, activation=hp.activation)
            if hp.dueling
            else mlp((width, *hidden, actions), hp.activation, init="torch")
        )

    def forward(self, obs: Tree, carry: dict[str, Tensor], is_first: Tensor) -> Tensor:
        """Return q [L + 1, B, A] for observations [L + 1, B, ...] and flags [L, B]."""
        flat = tree_map(lambda x: x.flatten(0, 1), obs)
        return unroll(self, flat, carry, is_first, self.burn_in)


def _refuse(hp: R2D2.Hyperparameters, num_envs: int) -> None:
    if hp.overlap >= hp.sequence:
        raise ConfigError(
            f"overlap={hp.overlap} is not less than sequence={hp.sequence}.",
            "Every sequence must bring a step that is new: lower overlap.",
        )
    require_n_step_within(hp.n_step, hp.sequence)
    if num_envs == 1:
        hp.reject_changed("epsilon_alpha", "with num_envs=1")
