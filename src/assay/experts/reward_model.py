"""Rewards that were learned, and those among them that were fitted to preferences.

The latter are directories with `model.safetensors` and, written last, `reward.json`, which has the
hash of the first, the settings, what the model was fitted to and how well. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from assay.core.config import Model, parse
from assay.core.errors import CheckpointError, ConfigError, RunError, SpaceError
from assay.core.types import Spaces, State, Tree
from assay.envs.space_codec import space_from_state, space_to_state
from assay.envs.spaces import ActionMap, ObservationMap
from assay.networks.normalize import RunningNormalizer
from assay.networks.reward_ensemble import Bound, RewardEnsemble
from assay.networks.state_dict import load_module, to_array
from assay.networks.tensors import to_device
from assay.runs.checkpoint import state_from_bytes, state_to_bytes
from assay.runs.files import assay_version, dump_json, read_json_object, write_atomic

FILE = "reward.json"
FORMAT = "assay-reward-model"
SCHEMA = 1
_WEIGHTS = "model.safetensors"
_CPU = torch.device("cpu")


class LearnedReward(ABC):
    """A reward that was learned, frozen.

    Args:
        observations: Makes observations canonical.
        actions: Makes actions canonical.
        name: For messages.

    Attributes:
        identity: The same for the same reward.
        running: 0, or the steps that it was standardised by, where whoever learns from it is to go
            on with running statistics.
    """

    identity: str = ""
    running: int = 0

    def __init__(self, observations: ObservationMap, actions: ActionMap, name: str) -> None:
        self.observations, self.actions, self.name = observations, actions, name

    @property
    def spaces(self) -> Spaces:
        """Return the canonical spaces that it was learned with."""
        return Spaces(self.observations.space, self.actions.space)

    @abstractmethod
    def rewards(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B] of canonical observations and actions, on their device."""

    def __call__(self, obs: Any, action: Any) -> float:
        """Return the reward for an action in a state, both in the environment's own units."""
        return self.one(self.observations, self.actions, obs, action)

    def one(self, observations: ObservationMap, actions: ActionMap, obs: Any, action: Any) -> float:
        """Return the same, of an environment with these maps."""
        done = to_device(actions.from_env(np.asarray(action)[None]), _CPU)
        return float(self.rewards(to_device(observations.one(obs), _CPU), done)[0])

    def require(self, spaces: Spaces) -> None:
        """Refuse an environment with other spaces than those that it was learned with.

        Raises:
            SpaceError: They are others.
        """
        own = self.spaces
        for found, expected in (
            (spaces.observation, own.observation),
            (spaces.action, own.action),
        ):
            if found != expected:
                raise SpaceError(
                    f"The environment has the space {found}; the reward of '{self.name}' was "
                    f"learned with {expected}.",
                    "Use it in an environment with the same observations and actions.",
                )

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return the environment with this reward; its own is in `info["env_reward"]`.

        Raises:
            SpaceError: The environment has other spaces than those that it was learned with.
        """
        wrapped = RewardedBy(env, self)
        self.require(Spaces(wrapped.observations.space, wrapped.actions.space))
        return wrapped


class RewardedBy(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose reward is a learned one."""

    def __init__(self, env: gym.Env[Any, Any], reward: LearnedReward) -> None:
        super().__init__(env)
        self.observations = ObservationMap(env.observation_space)
        self.actions = ActionMap(env.action_space)
        self._reward, self._obs = reward, None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._obs, info = self.env.reset(**options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, and say what it is worth by the learned reward."""
        worth = self._reward.one(self.observations, self.actions, self._obs, action)
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        return self._obs, worth, terminated, truncated, {**info, "env_reward": float(reward)}


class FitSettings(Model):
    """How a reward model is built and fitted."""

    members: int = Field(3, gt=0, le=64, description="Networks whose mean is the reward.")
    hidden: tuple[int, ...] = Field((128, 128), description="Widths of their hidden layers.")
    bound: Bound = Field("tanh", description="How rewards are bounded.")
    limit: float = Field(5.0, gt=0, description="Where clip cuts, in standard deviations.")
    epochs: int = Field(30, gt=0, description="Passes over the comparisons.")
    batch_size: int = Field(64, gt=0, description="Comparisons per gradient step.")
    lr: float = Field(1e-3, gt=0, description="Learning rate.")
    weight_decay: float = Field(1e-2, ge=0, description="Decay of the weights (AdamW).")
    error: float = Field(
        0.1, ge=0, lt=1, description="Share of answers that are assumed to be given by chance."
    )
    seed: int = Field(0, ge=0, description="Fixes first weights and the order of comparisons.")


class RewardModel(LearnedReward):
    """A reward that was fitted to comparisons of segments.

    Args:
        observation: The space of recorded observations, in the environment's own units.
        action: The space of recorded actions.
        settings: How it is built and fitted.
        name: For messages.

    Attributes:
        ensemble: The networks.
        normalizer: What observations are standardised with, by the data.
        facts: What `reward.json` says, of one that was loaded.
    """

    def __init__(
        self,
        observation: gym.Space[Any],
        action: gym.Space[Any],
        settings: FitSettings,
        name: str = "the reward model",
    ) -> None:
        super().__init__(ObservationMap(observation), ActionMap(action), name)
        self.settings = settings
        self.ensemble = RewardEnsemble(
            self.spaces, settings.members,
            hidden=settings.hidden, bound=settings.bound, limit=settings.limit,
        )  # fmt: skip
        self.normalizer = RunningNormalizer(self.spaces.observation)
        self.facts: dict[str, Any] = {}

    @torch.no_grad()
    def rewards(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B] of canonical observations and actions, on their device."""
        found: Tensor = self.ensemble.to(action.device)(self.inputs(obs), action)
        return found

    def inputs(self, obs: Tree) -> Tree:
        """Return canonical observations as the networks take them."""
        return self.normalizer.normalize_torch(obs)

    def state(self) -> State:
        """Return all of it."""
        weights = {name: to_array(part) for name, part in self.ensemble.state_dict().items()}
        return {
            "observation": space_to_state(self.observations.source),
            "action": space_to_state(self.actions.source),
            "settings": self.settings.model_dump(mode="json"),
            "weights": weights,
            "normalizer": self.normalizer.state(),
            "running": self.running,
        }

    def save(self, path: Path, facts: Mapping[str, Any]) -> str:
        """Write it into a directory, which `learned_reward` reads, and return its identity.

        Args:
            path: The directory; made if missing.
            facts: What is known of it, for `reward.json`.

        Raises:
            RunError: It cannot be written.
        """
        data = state_to_bytes(self.state())
        head = {
            "format": FORMAT,
            "schema": SCHEMA,
            "assay": assay_version(),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        path.mkdir(parents=True, exist_ok=True)
        write_atomic(path / _WEIGHTS, data)
        write_atomic(path / FILE, dump_json(head | dict(facts), indent=1))
        return str(head["sha256"])


def load_model(path: Path) -> RewardModel:
    """Return the model that `RewardModel.save` wrote.

    Raises:
        RunError: It is damaged, altered or from a newer Assay.
    """
    facts = read_json_object(path / FILE)
    if facts.get("format") != FORMAT:
        raise ConfigError(
            f"'{path / FILE}' does not describe a reward model.", "Fit one with assay prefer fit."
        )
    if facts.get("schema", 0) > SCHEMA:
        raise ConfigError(f"'{path}' was written by a newer Assay.", "Upgrade Assay to load it.")
    try:
        data = (path / _WEIGHTS).read_bytes()
    except OSError as error:
        raise RunError(f"Cannot read '{path / _WEIGHTS}': {error.strerror}.") from None
    identity = hashlib.sha256(data).hexdigest()
    if identity != facts.get("sha256"):
        raise CheckpointError(
            f"'{path / _WEIGHTS}' is not what '{FILE}' describes: its SHA-256 is "
            f"{identity[:12]}..., expected {str(facts.get('sha256'))[:12]}....",
            "Fit the model again.",
        )
    state = state_from_bytes(data)
    model = from_state(state, str(path))
    model.identity, model.facts = identity, facts
    return model


def from_state(state: State, name: str) -> RewardModel:
    """Return the model of a state."""
    observation, action = (space_from_state(state[key]) for key in ("observation", "action"))
    settings = parse(FitSettings, state["settings"], what=name)
    model = RewardModel(observation, action, settings, name)
    load_module("ensemble", model.ensemble, state["weights"])
    model.normalizer.load_state(state["normalizer"])
    model.running = int(state["running"])
    return model
