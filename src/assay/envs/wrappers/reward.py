"""Wrappers of rewards, for training."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from assay.core.errors import ConfigError
from assay.envs.wrappers.layers import RandomLayer, RewardLayer, Wrapper


class ClipReward(Wrapper):
    """Rewards between two bounds."""

    of_rewards: ClassVar[bool] = True
    bound: float = Field(1.0, gt=0, description="The largest absolute reward.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return RewardLayer(inner, lambda reward: np.clip(reward, -self.bound, self.bound))


class ScaleReward(Wrapper):
    """Rewards times a factor."""

    of_rewards: ClassVar[bool] = True
    factor: float = Field(
        ge=-1e15, le=1e15, examples=[0.1], description="The factor; not 0."
    )  # rewards are learned from in float32

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        if self.factor == 0:
            raise ConfigError(
                "The wrapper scale_reward has factor=0, which leaves no reward.",
                "Give another one, such as {scale_reward: 0.1}.",
            )
        return RewardLayer(inner, lambda reward: reward * self.factor)


class SignReward(Wrapper):
    """-1, 0 or 1 in place of rewards."""

    of_rewards: ClassVar[bool] = True

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return RewardLayer(inner, np.sign)


class _FlippedLayer(RandomLayer, RewardLayer):
    stream = "flip"

    def __init__(self, inner: Any, share: float) -> None:
        super().__init__(inner, self._flipped)
        self._share = share

    def _flipped(self, reward: NDArray[Any]) -> NDArray[Any]:
        return np.where(self.rng.random(len(reward)) < self._share, -reward, reward)


class FlipReward(Wrapper):
    """Rewards of which some have the wrong sign, by chance."""

    of_rewards: ClassVar[bool] = True
    probability: float = Field(gt=0, le=1, examples=[0.1], description="How often.")

    def layer(self, inner: Any) -> Any:
        """Return a backend around another one."""
        return _FlippedLayer(inner, self.probability)
