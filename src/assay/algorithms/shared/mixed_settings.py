"""Groups of settings of algorithms that learn from recorded data, in part or alone."""

from __future__ import annotations

from gymnasium.spaces import Box
from pydantic import Field

from assay.algorithms.settings import Unused
from assay.core.config import Settings
from assay.core.schedules import ProbabilitySchedule, Schedule, constant
from assay.core.types import Spaces
from assay.networks.custom import SIMBA


class LayerNormSettings(Settings):
    """Normalised critics; to be combined with `NetworkSettings`.

    They keep the values of actions that no data shows from growing (arXiv:2302.02948).
    """

    layer_norm: bool = Field(False, description="Normalise the hidden layers of the critics.")

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the setting for networks that are normalised anyway."""
        if getattr(self, "network", None) == SIMBA:
            yield "layer_norm", "with network=simba"


class NoiseSettings(Settings):
    """How a deterministic policy explores when it goes on with an environment."""

    exploration_noise: Schedule = Field(
        constant(0.1), description="Noise of Box actions with env_steps; a schedule."
    )

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the noise where actions are sampled."""
        if not isinstance(spaces.action, Box):
            yield "exploration_noise", "because the action space is not a Box"


class EpsilonSettings(Settings):
    """How a greedy policy explores when it goes on with an environment."""

    epsilon: ProbabilitySchedule = Field(
        constant(0.05), description="Share of random Discrete actions with env_steps; a schedule."
    )

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the share where actions are sampled."""
        if isinstance(spaces.action, Box):
            yield "epsilon", "because the action space is a Box"
