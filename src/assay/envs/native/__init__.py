"""Batched NumPy versions of Gymnasium's classic-control tasks, equal to them step for step.

Import stays light: neither NumPy nor Gymnasium is loaded before `make_native` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.envs.native.base import NativeVectorEnv

NATIVE: dict[str, str] = {
    "Acrobot-v1": "assay.envs.native.acrobot:Acrobot",
    "CartPole-v0": "assay.envs.native.cartpole:CartPole",
    "CartPole-v1": "assay.envs.native.cartpole:CartPole",
    "MountainCar-v0": "assay.envs.native.mountain_car:MountainCar",
    "MountainCarContinuous-v0": "assay.envs.native.mountain_car:MountainCarContinuous",
    "Pendulum-v1": "assay.envs.native.pendulum:Pendulum",
}
"""Gymnasium ids that have a native version, each as `module:Class`."""


def make_native(
    id: str, num_envs: int, max_episode_steps: int | None = None, *, repeat: int = 1
) -> NativeVectorEnv:
    """Build the native version of an id in `NATIVE`, with that id's spec and time limit.

    Every action is done `repeat` times, as far as an episode goes.

    Raises:
        EnvError: The id has no native version, or `num_envs` is not a positive integer.

    Example:
        >>> envs = make_native("CartPole-v1", num_envs=3)
        >>> observations, _ = envs.reset(seed=1)
        >>> observations.shape
        (3, 4)
    """
    import importlib

    from assay.core.errors import EnvError, nearest

    if id not in NATIVE:
        raise EnvError(f"'{id}' has no native version.", nearest(id, NATIVE))

    import gymnasium

    spec = gymnasium.spec(id)
    module, name = NATIVE[id].split(":")
    env: NativeVectorEnv = getattr(importlib.import_module(module), name)(
        num_envs, max_episode_steps=max_episode_steps or spec.max_episode_steps
    )
    env.spec, env.repeat = spec, repeat
    return env
