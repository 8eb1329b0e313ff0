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
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError, nearest
from assay.core.imports import import_named
from assay.core.types import ACTION_MASK, Tree
from assay.networks.state_dict import refuse_hidden

if TYPE_CHECKING:
    import gymnasium as gym

Factory = Callable[[Any], nn.Module]
DEFAULT = "mlp"  # the encoder of `assay.networks.encoders`: an MLP, and CNNs for images
SIMBA = "simba"  # the same with residual blocks in place of the MLP
BUILT_IN = (DEFAULT, SIMBA)

_registered: dict[str, Factory] = {}
_made: WeakSet[nn.Module] = WeakSet()  # what factories returned


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

    Raises:
        ConfigError: The name is none, or means something else.
    """
    if not isinstance(name, str) or name in BUILT_IN or ":" in name or not name:
        raise ConfigError(
            f"register_network({name!r}): expected a name of your own, without a colon.",
            'Write @assay.register_network("my_name") above the class.',
        )

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
        if not isinstance(net, nn.Module) or not isinstance(width, Integral) or width < 1:
            raise ConfigError(
                f"network={name} makes a {type(net).__name__} with out_features={width!r}; "
                "expected an nn.Module whose attribute out_features is an integer of at least 1.",
                "Set self.out_features to the width of the features that forward returns.",
            )
        if net in _made:
            raise ConfigError(
                f"network={name} returns the same {type(net).__name__} twice; expected a new one "
                "from each call, because an agent has several encoders.",
                "Build the module inside the function.",
            )
        _made.add(net)
        self.net, self.out_features = net, int(width)
        _refuse_modes(name, net)
        refuse_hidden(f"network={name}", net)
        self._check(space)
        _freeze(net)

    def forward(self, obs: Tree) -> Tensor:
        """Return features [B, out_features]."""
        if isinstance(obs, Mapping):
            obs = {key: value for key, value in obs.items() if key != ACTION_MASK}
        return self.net(obs)

    def _check(self, space: gym.Space[Any]) -> None:
        training, obs = self.net.training, _blank(space)
        try:
            with torch.no_grad():
                found, again, learning = [self.train(mode)(obs) for mode in (False, False, True)]
        except Exception as error:  # a user's code may fail in any way
            raise ConfigError(
                f"network={self.name} fails on a batch of two blank observations: "
                f"{type(error).__name__}: {error}",
                f"Its forward gets tensors of {space}, with a leading batch axis.",
            ) from error
        finally:
            self.train(training)
        shape, kind = list(getattr(found, "shape", ())), getattr(found, "dtype", "")
        expected = [2, self.out_features]
        if not isinstance(found, Tensor) or shape != expected or kind != torch.float32:
            raise ConfigError(
                f"network={self.name} returns {type(found).__name__}{shape} {kind} for two "
                f"observations; expected Tensor{expected} torch.float32.",
                "Return features [batch, out_features].",
            )
        if not (torch.equal(found, again) and torch.equal(found, learning)):
            raise ConfigError(
                f"network={self.name} returns other features for the same observations when it is "
                "asked again, or in training; an agent acts with the network that it trains.",
                "Leave out of forward: random numbers, dropout, and what counts calls.",
            )
        if not torch.allclose(found[0], found[1]):
            raise ConfigError(
                f"network={self.name} returns other features for the second of two equal "
                "observations; expected each row of a batch by itself.",
                "The first axis is the batch: nn.LSTM takes it for time, without batch_first=True "
                "and a time axis.",
            )
        entries = obs if isinstance(obs, Mapping) else {"obs": obs}
        if any(entry._version for entry in entries.values()):
            raise ConfigError(
                f"network={self.name} changes the observations that it is given, from which others "
                "learn as well.",
                "Make new tensors in forward: obs = obs / 255 in place of obs /= 255.",
            )
        for key, parameter in self.net.named_parameters():
            if parameter.dtype != torch.float32:
                raise ConfigError(
                    f"network={self.name} has the parameter {key} of {parameter.dtype}; expected "
                    "torch.float32.",
                    "Call .float() on the module.",
                )


def _refuse_modes(name: str, net: nn.Module) -> None:
    """Refuse layers that act otherwise in training: acting and learning use one network."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    for part in net.modules():
        if isinstance(part, kinds) and getattr(part, "p", True):  # p=0 turns a Dropout off
            raise ConfigError(
                f"network={name} has a {type(part).__name__}, which computes something else in "
                "training than in evaluation; an agent acts with the network that it trains.",
                "Use nn.LayerNorm to normalise, and leave dropout out.",
            )


def _freeze(net: nn.Module) -> None:
    """Make parameters that need no gradient buffers, which are saved and which no step moves."""
    for part in net.modules():
        for key, parameter in [*part.named_parameters(recurse=False)]:
            if not parameter.requires_grad:
                delattr(part, key)
                part.register_buffer(key, parameter.detach())


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
            f"network='{name}': cannot import '{module_name}': {type(error).__name__}: {error}.",
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
