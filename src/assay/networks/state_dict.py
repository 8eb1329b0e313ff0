"""From modules to the arrays of a checkpoint and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError, ConfigError
from assay.core.types import State


def to_array(tensor: Tensor) -> Any:
    """Return a tensor as an array of the host."""
    return tensor.detach().cpu().numpy()


def load_module(name: str, module: nn.Module, saved: State) -> None:
    """Put saved arrays into a module, in place.

    Raises:
        CheckpointError: They are of another module than this one.
    """
    own = module.state_dict()
    expected = {key: tuple(tensor.shape) for key, tensor in own.items()}
    found = {key: tuple(np.shape(array)) for key, array in saved.items()}
    if found != expected:
        odd = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
        raise CheckpointError(
            f"The checkpoint does not fit this agent: '{name}.{odd[0]}' has shape "
            f"{found.get(odd[0])}; expected {expected.get(odd[0])}.",
            "Use the checkpoint with the configuration, environment and code it was made with.",
        )
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(torch.as_tensor(saved[key]))


def refuse_unsaved(name: str, value: Any) -> None:
    """Refuse attributes that a checkpoint would silently lose.

    Raises:
        ConfigError: The value is one, or holds one.
    """
    parts = value.values() if isinstance(value, dict) else value
    inner = list(parts) if isinstance(value, (list, tuple, dict)) else [value]
    kinds = (nn.Module, Tensor, torch.Generator, torch.optim.Optimizer)
    if any(isinstance(part, kinds) or hasattr(part, "load_state") for part in inner):
        raise ConfigError(
            f"The attribute '{name}' holds state that no checkpoint would contain.",
            "Use nn.ModuleList or nn.ModuleDict, register a buffer of a module, give each part an "
            "attribute of its own, or make_step in place of an optimizer of torch.",
        )


def refuse_hidden(name: str, module: nn.Module) -> None:
    """Refuse modules and tensors that are neither trained nor saved, as nn.Module does not see.

    Raises:
        ConfigError: An attribute of the module, or of one in it, is one or holds one.
    """
    known = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    for part in module.modules():
        for key, value in vars(part).items():
            if key in ("_modules", "_parameters", "_buffers"):
                continue
            inner = value.values() if isinstance(value, dict) else value
            for one in inner if isinstance(value, list | tuple | dict) else [value]:
                if isinstance(one, nn.Module | Tensor) and id(one) not in known:
                    raise ConfigError(
                        f"{name} holds a {type(one).__name__} in the attribute '{key}' of "
                        f"{type(part).__name__}, where it is neither trained nor saved.",
                        "Use nn.ModuleList or nn.ModuleDict for modules; for tensors nn.Parameter, "
                        "or register_buffer if they are not trained.",
                    )
