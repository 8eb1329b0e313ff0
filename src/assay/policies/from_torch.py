"""From torch modules to descriptions whose arrays share the parameters' memory.

This is the one place that knows which module is which kind of layer. A description is either run
beside the learner by `assay.policies.numpy_network`, or folded and written into a model file.
"""

from __future__ import annotations

import dataclasses
from functools import singledispatchmethod
from typing import Any

import torch
from torch import Tensor, nn

from assay.networks.batchnorm import BatchRenorm
from assay.networks.custom import CustomEncoder
from assay.networks.encoders import Encoder
from assay.networks.heads import (
    AtomHead,
    AtomMean,
    DuelingHead,
    GaussianHead,
    SquashedGaussianHead,
    SupportMean,
)
from assay.networks.mlp import Tanh
from assay.networks.noisy import NoisyLinear
from assay.networks.quantile import ActionValues
from assay.networks.rnn import GRU, LSTM
from assay.networks.simba import ResidualBlock
from assay.policies.description import Entry
from assay.policies.layers import Activation, BatchNorm, Dense, LayerNorm, NoisyDense, Residual
from assay.policies.numpy_network import Described, GaussianParams, SquashedParams
from assay.policies.parts import MAX_WIDTH, ActivationName, Layer
from assay.policies.recurrent import Gates, Recurrent
from assay.policies.value_layers import Atoms, Dueling, Levels, Proposal

_ACTIVATIONS: dict[type[nn.Module], ActivationName] = {
    nn.Tanh: "tanh", Tanh: "tanh", nn.ReLU: "relu", nn.SiLU: "silu",
}  # fmt: skip


class UnsupportedError(Exception):
    """A module has no description, so that only torch can run it; it is named."""


def describe(*modules: nn.Module, noisy: bool = False, fold: bool = False) -> Described:
    """Describe modules that follow each other.

    Arrays are views: an in-place optimizer step is seen by whoever runs the description. Whoever
    re-points `parameter.data` (say, into a flat buffer) has to call this afterwards.

    With `noisy`, noisy layers keep their noise; else they are their means. With `fold`, noise and
    the scale of actions are written into the weights, which are then copies.

    Raises:
        UnsupportedError: A module has no description, is too wide for one, or is not float32 on
            the CPU.
    """
    writer = _Writer(noisy, fold)
    for module in modules:
        writer.add(module)
    if writer.open_atoms:
        raise UnsupportedError("atoms without their mean")
    return writer.described


class _Writer:
    """Collects layers and gives their tensors names."""

    def __init__(self, noisy: bool, fold: bool) -> None:
        self.noisy = noisy
        self.fold = fold
        self.described = Described()
        self.open_atoms = False  # a head of atoms waits for their mean

    @property
    def prefix(self) -> str:
        """Return what the names of the next layer's tensors begin with."""
        return f"layers.{len(self.described.layers)}"

    def put(self, name: str, array: Tensor) -> str:
        if array.device.type != "cpu" or array.dtype != torch.float32:
            raise UnsupportedError(f"tensors of {array.dtype} on {array.device}")
        self.described.arrays[name] = array.detach().numpy()
        return name

    @singledispatchmethod
    def add(self, module: nn.Module) -> None:
        """Append a module to the layers."""
        _append(self.described.layers, self.plain(module, self.prefix))

    @add.register
    def _(self, module: nn.Identity) -> None:
        pass

    @add.register
    def _(self, module: nn.Sequential) -> None:
        for child in module:
            self.add(child)

    @add.register
    def _(self, module: Encoder) -> None:
        if len(module.cnns):
            raise UnsupportedError("an image encoder")
        widest = max((entry.width for entry in module.entries), default=0)
        if widest > MAX_WIDTH:
            raise UnsupportedError(f"an input of {widest:,} numbers, more than {MAX_WIDTH:,}")
        self.described.inputs = tuple(
            Entry(**dataclasses.asdict(entry), starts=(0,) * len(entry.sizes))
            for entry in module.entries
        )
        self.add(module.trunk)

    @add.register
    def _(self, module: CustomEncoder) -> None:
        raise UnsupportedError(f"the network {module.name}")

    @add.register
    def _(self, module: SquashedGaussianHead) -> None:
        self.add(module.linear)
        self.described.params = SquashedParams(module.log_std_bounds)

    @add.register
    def _(self, module: GaussianHead) -> None:
        mean: Any = module.mean
        weight, bias = mean.weight, mean.bias
        log_std: Tensor = module.log_std
        scale: tuple[str, str] | None = None
        if module.scaled and self.fold:
            weight = weight * module.half_width[:, None]
            bias = bias * module.half_width + module.center
            log_std = log_std + module.half_width.log()
        elif module.scaled:
            center = self.put("head.center", module.center)
            scale = center, self.put("head.half_width", module.half_width)
        self.described.layers.append(self._dense(self.prefix, weight, bias))
        self.described.params = GaussianParams(self.put("head.log_std", log_std), scale)

    @add.register
    def _(self, module: DuelingHead) -> None:
        value = self._stream(module.value, f"{self.prefix}.value")
        advantage = self._stream(module.advantage, f"{self.prefix}.advantage")
        self.described.layers.append(Dueling(value=value, advantage=advantage))

    @add.register
    def _(self, module: AtomHead) -> None:
        self.open_atoms = True
        advantage = self._stream(module.advantage, f"{self.prefix}.advantage")
        value = self._optional_stream(module.value, f"{self.prefix}.value")
        atoms = Atoms(advantage=advantage, value=value, actions=module.actions, atoms=module.atoms)
        self.described.layers.append(atoms)

    @add.register(SupportMean)
    @add.register(AtomMean)
    def _(self, module: SupportMean | AtomMean) -> None:
        # Atoms and their mean are one layer.
        layers = self.described.layers
        if not self.open_atoms:
            raise UnsupportedError("a mean of atoms without their head")
        self.open_atoms = False
        if isinstance(module, SupportMean):
            support = self.put("head.support", module.support)
            layers[-1] = layers[-1].model_copy(update={"support": support})

    @add.register(GRU)
    @add.register(LSTM)
    def _(self, module: GRU | LSTM) -> None:
        gates = []
        for i, (project, hidden) in enumerate(zip(module.inputs, module.weights, strict=True)):
            tensors = {
                "input": project.get_parameter("weight"),
                "bias": project.get_parameter("bias"),
                "hidden": hidden,
            }
            names = {key: self.put(f"{self.prefix}.{i}.{key}", t) for key, t in tensors.items()}
            gates.append(Gates(**names))
        kind: Any = "gru" if isinstance(module, GRU) else "lstm"
        memory = Recurrent(kind=kind, size=module.out_features, layers=tuple(gates))
        self.described.layers.append(memory)

    @add.register
    def _(self, module: ActionValues) -> None:
        network = module.network
        self.add(network.encoder)
        prefix = self.prefix
        head: Any = network.head
        dueling = isinstance(head, DuelingHead)
        levels, proposal = None, None
        if module.proposal is not None:
            linear = self._named(module.proposal.linear, f"{prefix}.proposal", "weight", "bias")
            proposal = Proposal(**linear)
        elif module.levels is not None and self.fold:
            levels = self.put(f"{prefix}.levels", module.levels)
        layer = Levels(
            **self._named(network.embedding.net[0], prefix, "weight", "bias"),
            levels=levels,
            proposal=proposal,
            advantage=self._stream(head.advantage if dueling else head, f"{prefix}.advantage"),
            value=self._optional_stream(head.value if dueling else None, f"{prefix}.value"),
        )
        self.described.layers.append(layer)

    @singledispatchmethod
    def plain(self, module: nn.Module, prefix: str) -> Layer:
        """Return a layer that may also stand in a stream of a head."""
        return Activation(activation=_activation(module))

    @plain.register
    def _(self, module: nn.Linear, prefix: str) -> Layer:
        bias = torch.zeros(module.out_features) if module.bias is None else module.bias
        return self._dense(prefix, module.weight, bias)

    @plain.register
    def _(self, module: NoisyLinear, prefix: str) -> Layer:
        if not self.noisy:
            return self._dense(prefix, module.weight, module.bias)
        if self.fold:
            spread = torch.outer(module.eps_out, module.eps_in)
            weight = module.weight + module.weight_sigma * spread
            return self._dense(prefix, weight, module.bias + module.bias_sigma * module.eps_out)
        names = ("weight", "bias", "weight_sigma", "bias_sigma", "eps_in", "eps_out")
        return NoisyDense(**self._named(module, prefix, *names))

    @plain.register
    def _(self, module: nn.LayerNorm, prefix: str) -> Layer:
        if not module.elementwise_affine:
            raise UnsupportedError("a layer of the kind LayerNorm")
        if module.bias is None or len(module.normalized_shape) != 1:
            raise UnsupportedError("a layer normalisation without bias or over several axes")
        return LayerNorm(**self._named(module, prefix, "weight", "bias"), eps=module.eps)

    @plain.register
    def _(self, module: ResidualBlock, prefix: str) -> Layer:
        norm: Any = self.plain(module.norm, f"{prefix}.norm")
        up: Any = self.plain(module.up, f"{prefix}.up")
        down: Any = self.plain(module.down, f"{prefix}.down")
        return Residual(norm=norm, up=up.model_copy(update={"activation": "relu"}), down=down)

    @plain.register
    def _(self, module: BatchRenorm, prefix: str) -> Layer:
        named = self._named(module, prefix, "weight", "bias", "mean", "variance")
        return BatchNorm(**named, eps=module.eps)

    def _named(self, module: nn.Module, prefix: str, *names: str) -> dict[str, Any]:
        return {name: self.put(f"{prefix}.{name}", getattr(module, name)) for name in names}

    def _dense(self, prefix: str, weight: Tensor, bias: Tensor) -> Dense:
        return Dense(
            weight=self.put(f"{prefix}.weight", weight), bias=self.put(f"{prefix}.bias", bias)
        )

    def _stream(self, module: nn.Module, prefix: str) -> tuple[Any, ...]:
        layers: list[Any] = []
        for child in module if isinstance(module, nn.Sequential) else (module,):
            _append(layers, self.plain(child, f"{prefix}.{len(layers)}"))
        return tuple(layers)

    def _optional_stream(self, module: nn.Module | None, prefix: str) -> tuple[Any, ...] | None:
        return None if module is None else self._stream(module, prefix)


def _append(layers: list[Any], new: Layer) -> None:
    """Append a layer; an activation becomes part of the dense layer before it."""
    last = layers[-1] if layers else None
    if isinstance(new, Activation) and isinstance(last, Dense) and last.activation is None:
        layers[-1] = last.model_copy(update={"activation": new.activation})
    else:
        layers.append(new)


def _activation(module: nn.Module) -> ActivationName:
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return "gelu"
    if isinstance(module, nn.ELU) and module.alpha == 1.0:
        return "elu"
    if type(module) not in _ACTIVATIONS:
        raise UnsupportedError(f"a layer of the kind {type(module).__name__}")
    return _ACTIVATIONS[type(module)]
