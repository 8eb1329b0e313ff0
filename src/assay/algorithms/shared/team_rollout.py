"""What on-policy algorithms of several agents do with a rollout.

Everything of a rollout is [T, N, A] here: the agent axis is one more axis of rows. A dead agent, or
one whose turn it is not, is never learned from as an actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.settings import Unused
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.types import (
    ACTION_MASK,
    AGENT_OBS,
    AGENT_REWARD,
    AGENT_TERMINATED,
    AGENT_TRUNCATED,
    ALIVE,
    Problem,
    Spaces,
    State,
    Tree,
    pack,
    tree_map,
    unpack,
)
from assay.functional import losses
from assay.functional.turns import turns_gae_numpy
from assay.networks.normalize import RunningMoments
from assay.policies.forward import Forward
from assay.policies.team import Crew, Sharing

_PLAIN = ("normalize_obs", "normalize_reward")


class TeamSettings(ProximalSettings):
    """PPO for several agents."""

    sharing: Sharing = Field("type", description="Who shares a network: all, each type, or none.")
    agent_id: bool = Field(True, description="Tell a shared network which agent acts.")
    reward: Literal["own", "team"] = Field(
        "own", description="Learn from an agent's own reward, or from the mean of all."
    )
    normalize_value: bool = Field(True, description="Standardise returns for the value function.")
    minibatch_size: int = Field(
        256, gt=0, description="Environment steps per gradient step, each with all agents."
    )

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what PPO takes, without normalised observations and rewards."""
        more = {"num_envs": 16, **given}
        fit = super().fitted(problem, more)
        return {k: v for k, v in fit.items() if k not in _PLAIN} | {
            k: v for k, v in more.items() if k == "num_envs"
        }

    def unused(self, spaces: Spaces) -> Unused:
        """Yield what several agents do not use."""
        for name in _PLAIN:
            yield name, "with several agents: normalize_value scales what they learn"
        if self.sharing == "none":
            yield "agent_id", "with sharing=none"


class ValueScales:
    """Mean and deviation of the returns of each crew, by which its values are predicted.

    Args:
        crews: How many.
        on: Whether they are used; else values are what they are.
    """

    def __init__(self, crews: int, on: bool) -> None:
        self.on = on
        self.moments = {str(i): RunningMoments(()) for i in range(crews)}

    def update(self, crew: int, returns: np.ndarray) -> None:
        """See returns [B]."""
        if self.on:
            self.moments[str(crew)].update(returns)

    def scaled(self, crew: int, values: np.ndarray) -> np.ndarray:
        """Return values in the units of the value network."""
        if not self.on:
            return values
        moments = self.moments[str(crew)]
        return ((values - moments.mean) / moments.scale).astype(np.float32)

    def real(self, crew: int, values: np.ndarray) -> np.ndarray:
        """Return predictions in the units of rewards."""
        if not self.on:
            return values
        moments = self.moments[str(crew)]
        return (values * moments.scale + moments.mean).astype(np.float32)

    def state(self) -> State:
        """Return what a checkpoint needs."""
        return {name: moments.state() for name, moments in self.moments.items()}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        for name, moments in self.moments.items():
            moments.load_state(state[name])


@torch.no_grad()
def team_values(values: Any, data: Rollout, tensors: Any) -> tuple[Tree, np.ndarray, np.ndarray]:
    """Return joint observations [T * N] as tensors, and V of each agent now and after, [T, N, A].

    Args:
        values: Gives [B, A] of joint observations [B, ...] in NumPy, in the units of rewards.
        data: The rollout.
        tensors: Turns NumPy observations into tensors.
    """
    length, envs, finals = data.length, data.num_envs, data.finals
    flat = tree_map(lambda x: x.reshape(length * envs, *x.shape[2:]), data.obs)
    obs = tensors(flat)
    value = values(flat).reshape(length, envs, -1)
    next_value = np.concatenate([value[1:], values(data.last_obs)[None]])
    if finals is not None:
        next_value[finals.step, finals.env] = values(finals.obs)
    return obs, value, next_value


def crew_values(
    crews: Sequence[Crew], critics: Sequence[Forward], scales: ValueScales, obs: Tree
) -> np.ndarray:
    """Return V [B, A] of what each agent sees of joint observations, in the units of rewards."""
    value = np.zeros(obs[AGENT_OBS].shape[:2], np.float32)
    for i, (crew, critic) in enumerate(zip(crews, critics, strict=True)):
        own = critic.call(crew.see(obs)).reshape(len(value), crew.size)
        value[:, list(crew.members)] = scales.real(i, own)
    return value


def team_advantages(
    data: Rollout, hp: TeamSettings, value: np.ndarray, next_value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return advantages, targets, and the weights of actor and critic, each [T, N, A].

    With an agent's own reward its return ends when it is out. With the team's, the return goes on
    to the episode's end, and the value of a dead agent is learned as well (arXiv:2103.01955).
    """
    shape = value.shape
    alive = (data.obs[ALIVE] != 0) & data.valid[..., None]
    ended, cut = (np.repeat(x[..., None], shape[2], 2) for x in (data.terminated, data.truncated))
    if hp.reward == "team":
        reward = np.repeat(data.reward[..., None], shape[2], 2)
        terminated, truncated = ended, cut & ~ended
        acts = np.repeat(data.valid[..., None], shape[2], 2)
    else:
        reward = data.extras[AGENT_REWARD]
        out, off = data.extras[AGENT_TERMINATED], data.extras[AGENT_TRUNCATED]
        terminated = out | (ended & ~off)
        truncated = (off | cut) & ~terminated
        acts = alive
    flat = (shape[0], shape[1] * shape[2])
    pair = turns_gae_numpy(
        reward.reshape(flat), value.reshape(flat), next_value.reshape(flat),
        terminated.reshape(flat), truncated.reshape(flat), acts.reshape(flat),
        hp.gamma, hp.gae_lambda,
    )  # fmt: skip
    advantage, target = (x.reshape(shape).astype(np.float32) for x in pair)
    return advantage, target, alive.astype(np.float32), acts.astype(np.float32)


class TeamLearner(Protocol):
    """What `prepare_team` needs of an algorithm."""

    hp: Any
    crews: tuple[Crew, ...]
    scales: ValueScales
    device: torch.device
    central: bool  # whether the loss reads more than what single agents see

    def tensors(self, tree: Tree) -> Tree:
        """Return NumPy arrays as tensors."""

    def note(self, **values: float) -> None:
        """Report values."""

    def team_value(self, obs: Tree) -> np.ndarray:
        """Return V [B, A] of joint observations in NumPy, in the units of rewards."""


def team_columns(
    learner: TeamLearner,
    data: Rollout,
    value: np.ndarray,
    next_value: np.ndarray,
    only: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Return what a loss takes besides observations, [T, N, ...], with advantages and returns.

    Args:
        learner: Whose settings count, and whose values are scaled.
        data: The rollout.
        value: [T, N, A] of every state, in the units of rewards; it is scaled in place.
        next_value: [T, N, A] of its true successor.
        only: [T, N, A] of all that agents did, what is learned from.
    """
    advantage, target, acts, counts = team_advantages(data, learner.hp, value, next_value)
    if only is not None:
        acts, counts = acts * only, counts * only
    fit = losses.explained_variance(value, target, counts)
    learner.note(explained_variance=float(fit))
    scales = learner.scales
    for i, crew in enumerate(learner.crews):
        own = list(crew.members)
        scales.update(i, target[..., own][counts[..., own] > 0])
        value[..., own] = scales.scaled(i, value[..., own])
        target[..., own] = scales.scaled(i, target[..., own])
    action = data.action
    if "raw_action" in data.extras:
        action = data.extras["raw_action"].reshape(action.shape)
    return {
        "action": action, "log_prob": data.extras["log_prob"], "value": value,
        "advantage": advantage, "target": target, "weight": acts, "value_weight": counts,
    }  # fmt: skip


def prepare_team(
    learner: TeamLearner, data: Rollout, only: np.ndarray | None = None
) -> dict[str, Tensor]:
    """Return a rollout as rows [T * N] of all agents, with values, advantages and returns.

    Of all that agents did, `only` [T, N, A] is learned from, if it is given.
    """
    obs, value, next_value = team_values(learner.team_value, data, learner.tensors)
    columns = team_columns(learner, data, value, next_value, only)
    size = data.length * data.num_envs
    rows = {k: torch.from_numpy(v.reshape(size, *v.shape[2:])) for k, v in columns.items()}
    if not learner.central:  # what is not read need not be gathered for every minibatch
        obs = {k: v for k, v in obs.items() if k in (AGENT_OBS, ACTION_MASK)}
    return pack("obs", obs) | {k: v.to(learner.device) for k, v in rows.items()}


def crew_batch(crew: Crew, batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a crew's part of a batch of joint rows, as rows of single agents."""
    folded = pack("obs", crew.see(unpack("obs", batch)))
    folded["action"] = crew.actions(batch["action"])
    for name in ("log_prob", "value", "advantage", "target", "weight", "value_weight"):
        folded[name] = crew.fold(batch[name])
    folded["policy_weight"] = folded["weight"]
    return folded | {name: batch[name] for name in ("clip", "entropy_coef")}


def named_metrics(
    crews: Sequence[Crew], crew: Crew, metrics: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return metrics under the crew's name, where there are several."""
    return metrics if len(crews) == 1 else {f"{crew.name}/{k}": v for k, v in metrics.items()}
