"""The standard preprocessing of Atari games (Machado et al., 2018, with DQN's conventions).

Up to 30 random no-ops at the start of an episode, every action for four frames, the maximum over
the last two of them, 84 x 84 pixels in grey, four such images stacked: uint8 [4, 84, 84], padded
with zeros at the start. In training, by default, a lost life is a terminal state (the game
continues, so later lives are learned from as well) and rewards are clipped to [-1, 1]; never in
evaluation.

There are two implementations that agree bit for bit: ALE's own vector environment, which is used
    where possible, and wrappers around a single environment, for rendering and for processes.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from pydantic import Field

from assay.core.config import Model
from assay.core.errors import EnvError

# Settings of an Atari environment that its vector version takes as well.
_SHARED = {
    "continuous",
    "continuous_action_threshold",
    "full_action_space",
    "game",
    "max_num_frames_per_episode",
    "repeat_action_probability",
}

_FRAMES = 108_000  # half an hour: ALE's limit where none is set


class AtariSettings(Model):
    """How Atari games are preprocessed."""

    preprocess: bool = Field(default=True, description="false leaves the game as ALE gives it")
    noop_max: int = Field(default=30, ge=0, description="most no-ops at the start of an episode")
    frame_skip: int = Field(default=4, ge=1, description="frames that an action is repeated for")
    size: int = Field(default=84, ge=1, description="height and width of the image")
    frame_stack: int = Field(default=4, ge=1, description="how many images are stacked")
    terminal_on_life_loss: bool = Field(
        default=True, description="in training, a lost life is a terminal state"
    )
    clip_reward: bool = Field(default=True, description="in training, rewards lie in [-1, 1]")


def is_atari(spec: EnvSpec) -> bool:
    """Return whether an id is one of ALE's."""
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("ale_py.")


def preprocesses(spec: EnvSpec, env_kwargs: dict[str, Any], settings: AtariSettings) -> bool:
    """Return whether the game's screen is to be preprocessed (its RAM never is)."""
    return is_atari(spec) and settings.preprocess and "obs_type" not in env_kwargs


def atari_limit(spec: EnvSpec, env_kwargs: dict[str, Any], settings: AtariSettings) -> int:
    """Return after how many steps ALE truncates a game that is to be preprocessed."""
    frames = {**spec.kwargs, **env_kwargs}.get("max_num_frames_per_episode") or _FRAMES
    return int(frames) // settings.frame_skip


def has_vector(spec: EnvSpec, env_kwargs: dict[str, Any]) -> bool:
    """Return whether ALE's vector environment supports these settings."""
    return {*spec.kwargs, *env_kwargs} - {"frameskip"} <= _SHARED


def make_atari_vector(
    spec: EnvSpec,
    num_envs: int,
    env_kwargs: dict[str, Any],
    settings: AtariSettings,
    training: bool,
    limit: int | None = None,
) -> VectorEnv[Any, Any, Any]:
    """Make ALE's vector environment, which steps the games in threads.

    Some of the preprocessing is for `training` only. Without a `limit` games are truncated as their
    spec says.
    """
    from ale_py.vector_env import AtariVectorEnv

    _refuse_frame_skip(env_kwargs)
    shared = {k: v for k, v in {**spec.kwargs, **env_kwargs}.items() if k in _SHARED}
    if limit is not None:  # it counts no-ops neither as steps nor as frames
        shared["max_num_frames_per_episode"] = limit * settings.frame_skip
    # It writes its mode into a dict that all vector environments share. Give it a copy, and restore
    # the shared one, or others would seem to declare a mode.
    before = dict(VectorEnv.metadata)
    env = AtariVectorEnv(
        num_envs=num_envs,
        num_threads=min(num_envs, os.cpu_count() or 1),
        autoreset_mode=AutoresetMode.SAME_STEP,
        frameskip=settings.frame_skip,
        img_height=settings.size,
        img_width=settings.size,
        stack_num=settings.frame_stack,
        noop_max=settings.noop_max,
        use_fire_reset=False,
        reward_clipping=training and settings.clip_reward,
        **shared,
    )
    env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    VectorEnv.metadata.clear()
    VectorEnv.metadata.update(before)
    return LifeLossVector(env) if training and settings.terminal_on_life_loss else env


def make_atari(
    spec: EnvSpec,
    env_kwargs: dict[str, Any],
    settings: AtariSettings,
    training: bool,
    limit: int | None = None,
) -> gym.Env[Any, Any]:
    """Make one preprocessed game; the arguments are those of `make_atari_vector`."""
    _refuse_frame_skip(env_kwargs)
    if limit is not None:  # ALE's own limit counts no-ops as well; it must not come first
        most = limit * settings.frame_skip + settings.noop_max
        env_kwargs = {**env_kwargs, "max_num_frames_per_episode": most}
    env = gym.make(spec, **env_kwargs, frameskip=1, disable_env_checker=True)
    env = gym.wrappers.AtariPreprocessing(
        env, noop_max=settings.noop_max, frame_skip=settings.frame_skip, screen_size=settings.size
    )
    env = gym.wrappers.FrameStackObservation(env, settings.frame_stack, padding_type="zero")
    if limit is not None:  # of the game, not of a life
        env = gym.wrappers.TimeLimit(env, limit)
    if training and settings.terminal_on_life_loss:
        env = LifeLoss(env)
    if training and settings.clip_reward:
        env = gym.wrappers.ClipReward(env, -1.0, 1.0)
    return env


def _refuse_frame_skip(env_kwargs: dict[str, Any]) -> None:
    if "frameskip" in env_kwargs:
        raise EnvError(
            f"frameskip={env_kwargs['frameskip']} clashes with the Atari preprocessing.",
            "Set the preprocessing's frame_skip instead.",
        )


class LifeLoss(gym.Wrapper[Any, Any, Any, Any]):
    """End an episode when a life is lost, and continue the game until none is left.

    Gymnasium's `AtariPreprocessing(terminal_on_life_loss=True)` restarts the game instead, so that
    nothing beyond the first life is ever seen. The next episode begins with the observation that
    the last one ended with.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._last: tuple[Any, dict[str, Any]] | None = None  # None once the game is over

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and report a lost life as termination."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._last = None if terminated or truncated else (obs, info)
        lives = info["lives"]
        lost, self._lives = lives < self._lives, lives
        return obs, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new game if the old one is over or a seed is given, else continue it."""
        if self._last is None or seed is not None:
            self._last = self.env.reset(seed=seed, options=options)
        self._lives = self._last[1]["lives"]
        return self._last


class LifeLossVector(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Do what `LifeLoss` does for ALE's vector environment.

    ALE has two such options, and neither works here (ale-py 0.12): `episodic_life` restarts the
    game, and `life_loss_info` reports an observation from some steps earlier as the last one.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._lives = np.zeros(env.num_envs, np.int32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new games."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = info["lives"]
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step, and report lost lives as termination."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        lives = info["lives"]  # of the new game, where one has just started
        lost = (lives < self._lives) & ~(terminated | truncated)
        self._lives = lives
        if np.count_nonzero(lost):
            final = info.get("final_obs")
            final = obs.copy() if final is None else final
            final[lost] = obs[lost]
            terminated = terminated | lost
            info = {**info, "final_obs": final}
        return obs, reward, terminated, truncated, info
