"""What an algorithm may lack, found before its run begins."""

from __future__ import annotations

from torch import nn

from assay.algorithms import base
from assay.core.errors import ConfigError
from assay.networks.state_dict import refuse_hidden, refuse_unsaved

# What each loop gives.
_NEEDS: dict[str, type] = {
    "on_policy": base.RolloutNeeds, "off_policy": base.ReplayNeeds, "offline": base.DatasetNeeds,
    "game": base.GameNeeds,
}  # fmt: skip


def refuse_mistakes(algorithm: base.Algorithm) -> None:
    """Refuse what would end the run later on, or be lost.

    Raises:
        ConfigError: `needs` or the policy is missing, or a checkpoint would not hold a part.
    """
    name, loop = type(algorithm).__name__, algorithm.spec.loop
    needs, expected = getattr(algorithm, "needs", None), _NEEDS[loop]
    if not isinstance(needs, expected):
        raise ConfigError(
            f"{name} is registered with loop='{loop}', and its needs are a "
            f"{type(needs).__name__}; expected {expected.__name__}.",
            f"Set self.needs to a {expected.__name__} in __init__.",
        )
    if not hasattr(algorithm, "policy") and type(algorithm).act is base.Algorithm.act:
        raise ConfigError(
            f"{name} has no policy to act with.", "Set self.policy by make_policy in __init__."
        )
    for key, value in vars(algorithm).items():
        if isinstance(value, nn.Module):
            refuse_hidden(name, value)
        elif not hasattr(value, "load_state"):
            refuse_unsaved(key, value)
