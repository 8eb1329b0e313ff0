"""The interface has room: the two hardest shapes of algorithm run through the real loop.

These learners are trials, not products. They show that a carried state with sequence replay and
an agent axis need nothing from the loop that is not there.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.core.config import Settings
from assay.core.registry import register
from assay.core.types import Action, Clock, Spaces, Tree
from assay.envs.make import make_vector
from assay.loops.config import OnlineSettings
from assay.loops.off_policy import OffPolicyLoop
from assay.optim.update import Objective, Polyak, Step


class Recall(gym.Env):
    """Show a cue once, then nothing; the fourth action must name the cue."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return np.array([1.0, 2 * self.cue - 1], np.float32), {}

    def step(self, action: int) -> Any:
        self.time += 1
        last = self.time == 4
        reward = float(action == self.cue) if last else 0.0
        return np.zeros(2, np.float32), reward, last, False, {}


class Signals(gym.Env):
    """Two agents see a bit each; the team is paid for every agent that repeats its own."""

    observation_space = gym.spaces.Box(0, 1, (2, 2), np.float32)  # [agents, features]
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.bits = self.np_random.integers(2, size=2)
        return np.eye(2, dtype=np.float32)[self.bits], {}

    def step(self, action: np.ndarray) -> Any:
        return (
            np.eye(2, dtype=np.float32)[self.bits],
            float((action == self.bits).sum()),
            True,
            False,
            {},
        )


class NoSettings(Settings):
    """Nothing to set."""


@register(loop="off_policy", actions=("Discrete",), family="value", paper="trial")
class RecurrentQ(Algorithm):
    """Q-learning on sequences with the stored carry (R2D2 without its refinements)."""

    def __init__(self, spaces: Spaces, hp: Any, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = ReplayNeeds(
            capacity=8000, learning_starts=64, train_every=8, sequence=4, gamma=0.9
        )
        self.net = nn.ModuleDict({"cell": nn.GRUCell(2, 16), "head": nn.Linear(16, 2)})
        self.target = copy.deepcopy(self.net)
        self.step = Step(
            [Objective("q", self.net, self._loss)],
            reads=[self.target],
            polyak=[Polyak(self.target, self.net, 0.05)],
        )

    def initial_carry(self, n: int) -> Tree:
        return {"hidden": np.zeros((n, 16), np.float32)}

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        with torch.no_grad():
            hidden = self.net["cell"](torch.as_tensor(obs), torch.as_tensor(carry["hidden"]))
            action = self.net["head"](hidden).argmax(1).numpy()
        random = self.rng.random(len(action)) < (0.2 if explore else 0.0)
        action = np.where(random, self.rng.integers(0, 2, len(action)), action)
        return Action(action, {"hidden": hidden.numpy()})

    def update(self, data: Any) -> None:
        batch = data.sample(32)
        tensors = {
            "obs": torch.cat([batch.obs, batch.next_obs[:, -1:]], 1),
            "action": batch.action, "reward": batch.reward, "terminated": batch.terminated,
            "valid": batch.extras["valid"], "hidden": batch.extras["carry"]["hidden"],
        }  # fmt: skip
        self.record(self.step, self.step(tensors, 0.01))

    def _unroll(self, net: nn.ModuleDict, obs: Tensor, hidden: Tensor) -> Tensor:
        steps = []
        for t in range(obs.shape[1]):
            hidden = net["cell"](obs[:, t], hidden)
            steps.append(net["head"](hidden))
        return torch.stack(steps, 1)  # [B, L + 1, A]

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        q = self._unroll(self.net, batch["obs"], batch["hidden"])[:, :-1]
        q = q.gather(2, batch["action"].unsqueeze(2)).squeeze(2)
        with torch.no_grad():
            ahead = self._unroll(self.target, batch["obs"], batch["hidden"])[:, 1:].amax(2)
            y = batch["reward"] + 0.9 * (1 - batch["terminated"]) * ahead
        return ((q - y).square() * batch["valid"]).sum() / batch["valid"].sum(), {}


@register(loop="off_policy", actions=("MultiDiscrete",), family="value", paper="trial")
class ValueDecomposition(Algorithm):
    """Q_tot = sum_a Q_a with one shared network: the agent axis is folded into the batch."""

    def __init__(self, spaces: Spaces, hp: Any, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = ReplayNeeds(capacity=2000, learning_starts=32, train_every=4)
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        self.step = Step([Objective("q", self.net, self._loss)])

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        with torch.no_grad():
            action = self.net(torch.as_tensor(obs)).argmax(-1).numpy()  # [N, A]
        random = self.rng.random(action.shape) < (0.2 if explore else 0.0)
        return Action(np.where(random, self.rng.integers(0, 2, action.shape), action))

    def update(self, data: Any) -> None:
        self.record(self.step, self.step(self.replay_tensors(data.sample(32)), 0.01))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        q = self.net(batch["obs"])  # [B, A, actions]
        total = q.gather(2, batch["action"].unsqueeze(2)).sum((1, 2))
        return (total - batch["reward"]).square().mean(), {}  # every episode has one step


def learn(cls: type[Algorithm], env: type[gym.Env], env_steps: int, seed: int) -> float:
    """Train through the real loop and return the greedy policy's mean reward per episode."""
    torch.set_num_threads(1)
    clock = Clock(env_steps)
    vector = make_vector(env, 8)
    algorithm = cls(vector.spaces, NoSettings(), Context(clock, seed, 8))
    loop = OffPolicyLoop(algorithm, vector, OnlineSettings(seed=seed))
    loop.start()
    while clock.env_steps < env_steps:
        loop.iterate()
    total, episodes = 0.0, 0
    obs, carry = vector.reset(seed + 1), algorithm.initial_carry(8)
    while episodes < 64:
        choice = algorithm.act(obs, carry, False)
        obs, reward, terminated, truncated, _, _ = vector.step(choice.action)
        done = terminated | truncated
        total, episodes = total + float(reward.sum()), episodes + int(done.sum())
        carry = loop.collector._restart_carry(choice.carry, done)
    return total / episodes


@pytest.mark.parametrize("seed", [1, 2])
def test_carried_state_and_sequence_replay_solve_a_memory_task(seed: int) -> None:
    assert learn(RecurrentQ, Recall, 8000, seed) > 0.9  # without memory: 0.5


@pytest.mark.parametrize("seed", [1, 2])
def test_agent_axis_learns_a_team_task(seed: int) -> None:
    assert learn(ValueDecomposition, Signals, 2000, seed) > 1.9  # at random: 1.0
