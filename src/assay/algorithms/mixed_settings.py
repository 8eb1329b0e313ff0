"""Groups of settings of algorithms that learn from recorded data, in part or alone."""

from __future__ import annotations

from pydantic import Field

from assay.algorithms.settings import Unused
from assay.core.config import Settings
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
