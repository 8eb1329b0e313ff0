"""Groups of settings: what they refuse in which spaces, and that algorithms combine them well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from assay.algorithms.settings import (
    ActorCriticSettings,
    HeadSettings,
    NetworkSettings,
    NormalizeObsSettings,
    PolicyGradientSettings,
)
from assay.core import registry
from assay.core.config import Settings, UnusedSettingError
from assay.core.types import ACTION_MASK, Spaces

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
PICTURE = spaces.Box(0, 255, (1, 36, 36), np.uint8)
BOTH = spaces.Dict({"image": PICTURE, "vector": VECTOR})
MASKED = spaces.Dict({"image": PICTURE, ACTION_MASK: spaces.MultiBinary(2)})
BOX, DISCRETE = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


class Headed(HeadSettings, NetworkSettings):
    """Networks with hidden layers in the head."""


def refused(settings: Settings, observation: Any, action: Any = DISCRETE) -> str | None:
    """Return the setting that is refused."""
    try:
        settings.reject_unused(Spaces(observation, action))
    except UnusedSettingError as error:
        return error.setting
    return None


@pytest.mark.parametrize(
    ("observation", "hidden", "cnn"),
    [
        (VECTOR, None, "cnn"),
        (BOTH, None, None),
        (PICTURE, "hidden", None),
        (MASKED, "hidden", None),
    ],
)
def test_a_part_of_the_network_that_is_not_there_is_not_set(observation, hidden, cnn) -> None:
    assert refused(NetworkSettings(), observation) is None
    assert refused(NetworkSettings(hidden=(8,)), observation) == hidden
    assert refused(NetworkSettings(cnn="impala"), observation) == cnn
    # Critics have hidden layers behind the CNN.
    assert refused(ActorCriticSettings(hidden=(8,)), observation) is None


def test_the_message_says_why() -> None:
    message = r"hidden=\(8,\) has no effect because the observation is images alone"
    with pytest.raises(UnusedSettingError, match=message):
        NetworkSettings(hidden=(8,)).reject_unused(Spaces(PICTURE, DISCRETE))


def test_a_head_with_layers_reads_the_activation() -> None:
    assert refused(Headed(activation="elu"), PICTURE) == "activation"
    assert refused(Headed(activation="elu", head_hidden=(8,)), PICTURE) is None
    assert refused(Headed(hidden=(8,), head_hidden=(8,)), PICTURE) == "hidden"


def test_only_a_box_has_a_standard_deviation() -> None:
    settings = PolicyGradientSettings(log_std_init=-1.0)
    assert refused(settings, VECTOR, BOX) is None
    assert refused(settings, VECTOR, DISCRETE) == "log_std_init"


def test_only_floats_are_normalised() -> None:
    settings = NormalizeObsSettings(normalize_obs=True)
    for observation in (VECTOR, BOTH):
        assert refused(settings, observation) is None
    for observation in (PICTURE, DISCRETE):
        assert refused(settings, observation) == "normalize_obs"


@pytest.mark.parametrize("name", registry.names())
def test_each_field_is_that_of_the_nearest_class_that_declares_it(name: str) -> None:
    """Where two bases have a field, pydantic takes the first base's, even an inherited one."""
    model = registry.get(name).Hyperparameters
    for key, info in model.model_fields.items():
        owner = next(c for c in model.__mro__ if key in vars(c).get("__annotations__", {}))
        declared = owner.model_fields[key]
        assert (info.default, info.description) == (declared.default, declared.description), key
