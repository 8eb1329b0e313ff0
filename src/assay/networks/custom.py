"""Networks of a user's own as encoders: registered by name, or imported as `package.module:name`.

A factory takes an observation space and returns an `nn.Module` with an attribute `out_features`,
which turns observations (tensors as they are stored, bytes unscaled; a dict of them for a Dict
space, without the action mask) into float features [B, out_features]. Heads, memories and critics
are built behind it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError, nearest
from assay.core.imports import import_named
from assay.core.types import ACTION_MASK, Tree

if TYPE_CHECKING:
    import gymnasium as gym

Factory = Callable[[Any], nn.Module]
DEFAULT = "mlp"  # the encoder of `assay.networks.encoders`: an MLP, and CNNs for images
SIMBA = "simba"  # the same with residual blocks in place of the MLP
BUILT_IN = (DEFAULT, SIMBA)

_registered: dict[str, Factory] = {}


def register_network(name: str) -> Callable[[Factory], Factory]:
    """Let `network=NAME` build encoders with the decorated factory.

    Example:
        >>> @register_network("plain")
        ... class Plain(nn.Module):
        ...     def __init__(self, space):
        ...         super().__init__()
        ...         self.out_features = 8
        ...         self.net = nn.Linear(space.shape[0], 8)
        ...     def forward(self, obs):
        ...         return self.net(obs)
    """

    def register(factory: Factory) -> Factory:
        _registered[name] = factory
        return factory

    return register


class CustomEncoder(nn.Module):
    """A user's network as an encoder.

    Raises:
        ConfigError: There is no such factory, or what it makes is not an encoder.
    """

    def __init__(self, name: str, space: gym.Space[Any]) -> None:
        super().__init__()
        self.name = name
        try:
            net = find_factory(name)(space)
        except ConfigError:
            raise
        except Exception as error:  # a user's code may fail in any way
            raise ConfigError(
                f"network={name} cannot be made: {type(error).__name__}: {error}",
                "Its factory gets the observation space, and returns an nn.Module.",
            ) from error
        width = getattr(net, "out_features", None)
        if not isinstance(net, nn.Module) or not isinstance(width, int):
            raise ConfigError(
                f"network={name} makes a {type(net).__name__}; expected an nn.Module with an "
                "integer attribute out_features.",
                "Set self.out_features to the width of the features that forward returns.",
            )
        self.net, self.out_features = net, width
        _refuse_modes(name, net)
        self._check(space)

    def forward(self, obs: Tree) -> Tensor:
        """Return features [B, out_features]."""
        if isinstance(obs, Mapping):
            obs = {key: value for key, value in obs.items() if key != ACTION_MASK}
        return self.net(obs)

    def _check(self, space: gym.Space[Any]) -> None:
        training = self.net.training
        try:
            with torch.no_grad():
                found = self.eval()(_blank(space))
        except Exception as error:  # a user's code may fail in any way
            raise ConfigError(
                f"network={self.name} fails on a batch of two blank observations: {error}",
                f"Its forward gets tensors of {space}, with a leading batch axis.",
            ) from error
        finally:
            self.train(training)
        shape = tuple(getattr(found, "shape", ()))
        if shape != (2, self.out_features) or not found.is_floating_point():
            raise ConfigError(
                f"network={self.name} returns {type(found).__name__}{list(shape)} for two "
                f"observations; expected floats [2, {self.out_features}].",
                "Return features [batch, out_features].",
            )


def _refuse_modes(name: str, net: nn.Module) -> None:
    """Refuse layers that act otherwise in training: acting and learning use one network."""
    for kind in (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase):
        found = next((part for part in net.modules() if isinstance(part, kind)), None)
        if found is not None:
            raise ConfigError(
                f"network={name} has a {type(found).__name__}, which computes something else in "
                "training than in evaluation; an agent acts with the network that it trains.",
                "Use nn.LayerNorm to normalise, and leave dropout out.",
            )


def find_factory(name: str) -> Factory:
    """Return the factory of a registered name, or of `package.module:name`.

    Raises:
        ConfigError: There is none, or it cannot be imported.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        if name not in _registered:
            raise ConfigError(
                f"network='{name}' is not registered. {nearest(name, [*BUILT_IN, *_registered])}",
                "Use package.module:name for a class or function of your own, or "
                "assay.register_network.",
            )
        return _registered[name]
    try:
        module = import_named(module_name)
    except Exception as error:  # a user's module may fail in any way
        raise ConfigError(
            f"network='{name}': cannot import '{module_name}': {error}.",
            "Run from the directory that holds it, or install it.",
        ) from None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(
            f"network='{name}': '{module_name}' has no class or function '{attribute}'.",
            f"It has: {', '.join(sorted(n for n in vars(module) if n[0] != '_')[:20])}.",
        )
    return factory


def source_key(name: str) -> str:
    """Return what stands for a factory's code in the key of a compiled step."""
    if name in BUILT_IN:
        return ""
    factory = find_factory(name)
    try:
        source = Path(inspect.getsourcefile(inspect.unwrap(factory)) or "").read_bytes()
    except (OSError, TypeError):
        return f"{name}{id(factory)}"  # typed in: unknown to another process
    return name + hashlib.sha256(source).hexdigest()


def _blank(space: gym.Space[Any]) -> Tree:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {key: _blank(part) for key, part in space.spaces.items()}
    assert space.dtype is not None
    return torch.from_numpy(np.zeros((2, *(space.shape or ())), space.dtype))
