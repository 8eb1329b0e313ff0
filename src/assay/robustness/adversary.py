"""An adversary that is trained against a run: it sees the true state and moves what the run sees.

It is an agent like any other (arXiv:2101.08452): its action moves every number of the observation
within the budget, and its reward is what the run does not get. PPO learns it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from assay.agents import load
from assay.api import train
from assay.core.errors import ConfigError
from assay.core.types import Tree
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Agent, clip_to_space, restart_carry, rewarded_carry
from assay.robustness.disturbed import Room

_MOST_NUMBERS = 400  # that an adversary can learn to move


class Deceiving(gym.vector.VectorEnv[Any, Any, Any]):
    """The task of an adversary: `vector` is played by `agent`, which sees what it is shown.

    Raises:
        ConfigError: There is too much to move, or the environments reset themselves in steps.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (typed so by Gymnasium)
        "autoreset_mode": AutoresetMode.SAME_STEP
    }

    def __init__(self, vector: Vector, agent: Agent, room: Room, budget: float) -> None:
        size = sum(int(np.prod(box.shape)) for box in room.boxes.values())
        if size > _MOST_NUMBERS:
            raise ConfigError(
                f"An adversary would have to learn {size:,} numbers, one for each of the "
                f"observation; at most {_MOST_NUMBERS} are possible.",
                "Choose other attacks: --attacks random,fgsm,pgd.",
            )
        if vector.resets_in_steps:
            raise ConfigError(
                f"'{vector.name}' spends a step on each reset, which an adversary cannot learn in.",
                "Set backend=sync where the run is trained.",
            )
        self.vector, self.agent, self.room, self.budget = vector, agent, room, budget
        self.num_envs = vector.num_envs
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.single_action_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        batch = gym.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, self.num_envs)
        self.action_space = batch(self.single_action_space, self.num_envs)
        self._obs: Tree = None
        self._carry: Tree = None

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes."""
        self._obs = self.vector.reset(0 if seed is None else int(seed))
        self._carry = self.agent.initial_carry(self.num_envs)
        return flat(self.room, self._obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Show the agent something else, and let it act."""
        shown = shift(self.room, self._obs, np.asarray(actions), self.budget)
        choice = self.agent.act(shown, self._carry, False)
        action = clip_to_space(choice.action, self.vector.spaces.action)
        obs, reward, terminated, truncated, _, final = self.vector.step(action)
        done = terminated | truncated
        carry = rewarded_carry(self.agent, choice.carry, reward)
        self._obs, self._carry = obs, restart_carry(self.agent, carry, done)
        info: dict[str, Any] = {}
        if final is not None:
            last = flat(self.room, final)
            info = {"final_obs": last, "_final_obs": done}
        return flat(self.room, obs), -np.asarray(reward), terminated, truncated, info


def learned(adversary: Agent, room: Room, budget: float, obs: Tree, carry: Tree) -> Tree:
    """Return what a trained adversary shows."""
    choice = adversary.act(flat(room, obs), None, False)
    return shift(room, obs, np.asarray(choice.action), budget)


def train_adversary(
    vector: Vector,
    agent: Agent,
    room: Room,
    budget: float,
    *,
    env_steps: int,
    seed: int,
    root: Path,
) -> Agent:
    """Train an adversary and return it; its run is kept in `root`.

    Raises:
        ConfigError: The observations are too large.
    """
    env = Deceiving(vector, agent, room, budget)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The environment object cannot be copied")
        run = train(
            "ppo",
            env,
            name="adversary",
            root=root,
            env_steps=env_steps,
            seed=seed,
            normalize_obs=True,
            eval_every=0,
            checkpoint_every=0,
            sinks=(),
        )
    return load(run.path).policy


def flat(room: Room, obs: Tree) -> NDArray[np.float32]:
    """Return all numbers that can be moved, [N, D]."""
    parts = room.parts(obs).values()
    return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)


def shift(room: Room, obs: Tree, moves: NDArray[Any], budget: float) -> Tree:
    """Return observations whose numbers are moved by `moves` [N, D] of the budget, -1 to 1."""
    parts, start = room.parts(obs), 0
    for key, part in parts.items():
        size = int(np.prod(part.shape[1:]))
        move = np.clip(moves[:, start : start + size], -1, 1).reshape(part.shape)
        parts[key], start = part + room.radius(key, budget) * move, start + size
    return room.put(obs, parts)
