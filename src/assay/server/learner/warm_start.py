"""From a published model back to the weights of an algorithm: for a learner without a checkpoint.

A model file has the policy alone. Critics, optimizer and replay start from nothing.
"""

from __future__ import annotations

import torch
from torch import nn

from assay.algorithms.base import Algorithm
from assay.core.errors import CheckpointError
from assay.policies.model_file import Snapshot
from assay.policies.parts import ModelError


def load_weights(algorithm: Algorithm, snapshot: Snapshot, seen: int) -> None:
    """Give an algorithm that has just been built the policy of a model file.

    Args:
        algorithm: It must not have learned anything.
        snapshot: Of the same policy.
        seen: Observations that the file's normalisation comes from.

    Raises:
        CheckpointError: The file is not one of this policy.
    """
    modules = list(algorithm.modules.values())
    # Target networks begin as copies of what they follow, and do so again.
    copies = [
        (one, two) for one in modules for two in modules if one is not two and _same(one, two)
    ]
    acting = {id(p) for p in algorithm.policy.network.parameters()}
    try:
        algorithm.policy.load(snapshot, seen)
    except ModelError as error:
        raise CheckpointError(
            f"The model file is not one of this policy: {error.message}",
            "Use the version of Assay that published it.",
        ) from None
    for source, target in copies:
        if acting & {id(p) for p in source.parameters()}:
            target.load_state_dict(source.state_dict())


def _same(one: nn.Module, two: nn.Module) -> bool:
    own, theirs = list(one.parameters()), list(two.parameters())
    return len(own) == len(theirs) > 0 and all(map(torch.equal, own, theirs))
