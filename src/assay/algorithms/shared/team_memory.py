"""Agents with a memory each: what on-policy algorithms of several agents do with their rollouts.

Every agent has a memory of its own, also where agents share a network. It restarts with the episode
and takes part in every step of it: where an agent is dead, or where it is not its turn, it sees
what the environment shows then, which is zeros. Such steps count in no loss.

As in recurrent PPO, one pass without gradient gives the values and the memories at the start of
every chunk of steps; gradients run through time within chunks, and a minibatch is whole chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.settings import MemorySettings, Unused
from assay.algorithms.shared.proximal import clipped_loss, run_epochs
from assay.algorithms.shared.team_rollout import (
    TeamLearner,
    TeamSettings,
    crew_batch,
    named_metrics,
    prepare_team,
    team_columns,
)
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.types import ALIVE, Problem, Spaces, Tree, pack, tree_map, unpack
from assay.functional.distributions import policy_distribution
from assay.functional.recurrent import by_step, chunks_of
from assay.networks.rnn import Kind
from assay.policies.team import Crew, own_carry

_NEEDS_MEMORY = ("memory_size", "memory_layers", "head_hidden", "chunk")


class TeamMemorySettings(MemorySettings, TeamSettings):
    """PPO for several agents, with a memory each as an option."""

    memory: Kind | None = Field(  # type: ignore[assignment]
        None, description="Kind of memory that each agent has; or none."
    )
    chunk: int = Field(8, gt=0, description="Steps that gradients run back through (memory).")

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what PPO for several agents takes; rollouts are cut into chunks for a memory."""
        return super().fitted(problem, given if given.get("memory") else {**given, "chunk": 1})

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the settings of a memory where there is none."""
        if self.memory is None:
            for name in _NEEDS_MEMORY:
                yield name, "without memory"

    def memory_options(self) -> dict[str, Any]:
        """Return what `RecurrentActorCritic` takes of these settings."""
        names = ("memory", "memory_size", "memory_layers", "heads", "context", "head_hidden")
        return {name: getattr(self, name) for name in names}

    def require_whole_chunks(self) -> None:
        """Refuse chunks that do not divide rollouts and minibatches.

        Raises:
            ConfigError: They do not.
        """
        if self.memory is not None and (
            self.horizon % self.chunk or self.minibatch_size % self.chunk
        ):
            raise ConfigError(
                f"chunk={self.chunk} does not divide horizon={self.horizon} and "
                f"minibatch_size={self.minibatch_size}.",
                "Choose a chunk that divides both.",
            )


class RememberingTeam(TeamLearner, Protocol):
    """What the functions here need of an algorithm."""

    nets: Any

    def remembered_value(self, crew: Crew, net: Any, y: Tensor, joint: Tree) -> Tensor:
        """Return V [B * k] in the network's units.

        Args:
            crew: Whose.
            net: Its network.
            y: [B * k, H] what the agents remember.
            joint: Joint observations [B, ...].
        """


def learn_from_team(learner: Any, data: Rollout) -> None:
    """Run the epochs of clipped updates over one rollout, with or without memories."""
    rows = data.length * data.num_envs
    if learner.hp.memory is None:
        run_epochs(learner, learner.step, prepare_team(learner, data), rows)
    else:
        chunk = learner.hp.chunk
        run_epochs(learner, learner.step, _prepare(learner, data), rows // chunk, chunk)


def _prepare(learner: RememberingTeam, data: Rollout) -> dict[str, Tensor]:
    """Return a rollout in chunks [C, steps, ...] of all agents, and each memory at their starts."""
    chunk = learner.hp.chunk
    obs = learner.tensors(data.obs)
    is_first = torch.from_numpy(data.restarts()).to(learner.device)
    value, next_value, carries = _remembered_values(learner, data, obs, is_first)
    columns = team_columns(learner, data, value, next_value)
    rows = pack("obs", obs) | learner.tensors(columns) | {"is_first": is_first}
    return {name: chunks_of(x, chunk) for name, x in rows.items()} | pack("carry", carries)


@torch.no_grad()
def _remembered_values(
    learner: RememberingTeam, data: Rollout, obs: Tree, is_first: Tensor
) -> tuple[np.ndarray, np.ndarray, dict[str, Tensor]]:
    """Return V [T, N, A] of every state and of its true successor, and the chunks' memories."""
    chunk, envs = learner.hp.chunk, data.num_envs
    value = np.zeros(data.obs[ALIVE].shape, np.float32)
    begun = learner.tensors(data.runs.carry)
    carries: dict[str, Tensor] = {}
    for i, (crew, net) in enumerate(zip(learner.crews, learner.nets, strict=True)):
        carry = own_carry(crew, begun)
        first = is_first.repeat_interleave(crew.size, 1)
        starts, parts = [], []
        for begin in range(0, data.length, chunk):
            now = slice(begin, begin + chunk)
            joint = tree_map(lambda x, now=now: x[now].flatten(0, 1), obs)
            starts.append(carry)
            y, carry = net.remember(crew.see(joint), carry, first[now])
            parts.append(learner.remembered_value(crew, net, y.flatten(0, 1), joint))
        own = torch.cat(parts).cpu().numpy().reshape(data.length, envs, crew.size)
        value[..., list(crew.members)] = learner.scales.real(i, own)
        # Chunks are numbered by time, then by environment, as `chunks_of` lays them out.
        for name in carry:
            whole = torch.cat([start[name] for start in starts])
            carries[f"{crew.name}/{name}"] = whole.unflatten(0, (-1, crew.size))
    following = _following(learner, data.last_obs, data.last_carry)
    next_value = np.concatenate([value[1:], following[None]])
    if (finals := data.finals) is not None:
        # With the memories from before the reset.
        next_value[finals.step, finals.env] = _following(learner, finals.obs, finals.carry)
    return value, next_value, carries


def _following(learner: RememberingTeam, obs: Tree, carry: Tree) -> np.ndarray:
    """Return V [K, A] of joint observations that nobody has acted on."""
    joint, begun = learner.tensors(obs), learner.tensors(carry)
    count = len(joint[ALIVE])
    value = np.zeros(joint[ALIVE].shape, np.float32)
    for i, (crew, net) in enumerate(zip(learner.crews, learner.nets, strict=True)):
        nowhere = torch.zeros(1, count * crew.size, device=learner.device)
        y, _ = net.remember(crew.see(joint), own_carry(crew, begun), nowhere)
        own = learner.remembered_value(crew, net, y[0], joint).cpu().numpy()
        value[:, list(crew.members)] = learner.scales.real(i, own.reshape(count, crew.size))
    return value


def memory_team_loss(
    learner: RememberingTeam, crew: Crew, net: Any, batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's loss of a crew on chunks [C, steps, ...]."""
    carry = own_carry(crew, unpack("carry", batch))
    is_first = batch["is_first"].transpose(0, 1).repeat_interleave(crew.size, 1)
    kept = ("is_first", "clip", "entropy_coef")
    # The network unrolls [T, C * k]; all else is flat, step by step.
    flat = {
        name: by_step(x)
        for name, x in batch.items()
        if name not in kept and not name.startswith("carry/")
    }
    joint = unpack("obs", flat)

    def both(seen: Tree) -> tuple[Tensor, Tensor]:
        y = net.remember(seen, carry, is_first)[0].flatten(0, 1)
        return net.head(y), learner.remembered_value(crew, net, y, joint)

    own = crew_batch(crew, flat | {name: batch[name] for name in kept})
    loss, metrics = clipped_loss(both, policy_distribution(crew.spaces.action), learner.hp, own)
    return loss, named_metrics(learner.crews, crew, metrics)
