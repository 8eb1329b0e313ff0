"""From a learner's policy to a `Snapshot`. This is the trainer's side: it knows torch.

What can be exported is what `assay.inference` runs: multi-layer perceptrons with layer or batch
normalisation, GRU and LSTM, and the heads of `model_architecture`. Not supported, and refused by
name: image encoders and transformer memories.

IQN explores at fresh levels in local training. A file holds the even ones, at which its evaluations
act: a client explores by epsilon, or by the noise of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from assay.algorithms.base import Algorithm
from assay.inference import layers as numpy_layers
from assay.networks import quantile
from assay.networks.acting import Exported
from assay.networks.bridge import numpy_forward
from assay.networks.conv import has_images
from assay.networks.encoders import FlatObservation
from assay.networks.greedy import GreedyActions
from assay.networks.noisy import NoisyLinear, resample_noise
from assay.networks.normalize import RunningNormalizer
from assay.networks.rnn import GRU, LSTM, Memory
from assay.networks.squashed import SquashedActor
from assay.server import model_architecture as arch
from assay.server.model_architecture import ModelError
from assay.server.model_file import Snapshot, make_snapshot

Array = np.ndarray[Any, Any]

_NAMES = {function: name for name, function in numpy_layers.ACTIVATIONS.items()}
_VARIANCE_EPS = 1e-8  # what `RunningNormalizer` adds to a variance
_UNLIMITED = float(np.finfo(np.float32).max)


def export_snapshot(
    algorithm: Algorithm,
    *,
    version: int,
    epoch: int = 0,
    noise: np.random.Generator | None = None,
) -> Snapshot:
    """Return the policy of an algorithm as one model version.

    Exploration goes with it as it is now: epsilon, or the noise of a deterministic policy. A
    network with noisy layers explores by its weights, so its noise is drawn here, once for each
    published version.

    Args:
        algorithm: Any algorithm whose policy runs without torch.
        version: Number of the version.
        epoch: Of the learner.
        noise: Draws the weights' noise of a network with noisy layers; None leaves it silent.

    Raises:
        ModelError: The policy has a part that clients cannot run; it is named.
    """
    name = algorithm.spec.name
    if has_images(algorithm.spaces.observation):
        raise ModelError(
            f"The policy of '{name}' sees images, and an image encoder cannot run in a client.",
            "Give clients observations that are vectors, or use remote inference.",
        )
    writer = _Writer()
    parts, squashed = _network(algorithm, noise)
    inputs: tuple[arch.Entry, ...] = ()
    for part in parts:
        if isinstance(part, Memory):
            writer.memory(part, name)
            continue
        if isinstance(part, quantile.ActionValues):
            writer.levels(part, name)
            continue
        for layer in _numpy_parts(part, name):
            if isinstance(layer, numpy_layers.Flatten):
                inputs = _entries(part)
            elif not isinstance(layer, numpy_layers.AsFloat):
                writer.add(layer)
    head = _head(algorithm, writer, squashed)
    normalization = _normalization(writer, algorithm.obs_norm, inputs)
    architecture = arch.Architecture(
        version=version,
        epoch=epoch,
        algorithm=name,
        observation=arch.describe_space(algorithm.spaces.observation),
        action=arch.describe_space(algorithm.spaces.action),
        inputs=inputs,
        normalization=normalization,
        layers=tuple(writer.layers),
        head=head,
    )
    return make_snapshot(architecture, writer.arrays)


class _Writer:
    """Collects layers and gives their tensors names."""

    def __init__(self) -> None:
        self.layers: list[arch.Layer] = []
        self.arrays: dict[str, Array] = {}
        self.log_std: str | None = None
        self.squash_bounds: tuple[float, float] | None = None

    def put(self, name: str, array: Array) -> str:
        self.arrays[name] = np.array(array, np.float32)
        return name

    def add(self, layer: Any) -> None:
        if isinstance(layer, numpy_layers.Gaussian):
            self.add(layer.mean)
            self.log_std = self.put("head.log_std", layer.log_std)
        elif isinstance(layer, numpy_layers.SquashedGaussian):
            self.add(layer.linear)
            self.squash_bounds = (float(layer.low), float(layer.high))
        elif isinstance(layer, numpy_layers.SupportMean | numpy_layers.AtomMean):
            self._close_atoms(layer)
        else:
            self.layers.append(self._describe(layer, f"layers.{len(self.layers)}"))

    def memory(self, memory: Memory, name: str) -> None:
        if not isinstance(memory, GRU | LSTM):
            raise ModelError(
                f"The policy of '{name}' remembers with a {type(memory).__name__}, which cannot "
                "run in a client.",
                "Train with memory=gru or memory=lstm.",
            )
        gates = []
        prefix = f"layers.{len(self.layers)}"
        for i, (project, hidden) in enumerate(zip(memory.inputs, memory.weights, strict=True)):
            weight, bias = project.get_parameter("weight"), project.get_parameter("bias")
            gates.append(
                arch.Gates(
                    input=self.put(f"{prefix}.{i}.input", _numpy(weight)),
                    bias=self.put(f"{prefix}.{i}.bias", _numpy(bias)),
                    hidden=self.put(f"{prefix}.{i}.hidden", _numpy(hidden)),
                )
            )
        kind: Any = "gru" if isinstance(memory, GRU) else "lstm"
        size = memory.out_features
        self.layers.append(arch.Recurrent(kind=kind, size=size, layers=tuple(gates)))

    def levels(self, values: quantile.ActionValues, name: str) -> None:
        """Add what a quantile network does behind its encoder."""
        prefix = f"layers.{len(self.layers)}"
        embed: Any = values.network.embedding.net[0]
        _, *parts = _numpy_parts(values.network.head, name)  # without the cast to float32
        value: Any = None
        advantage: Any = numpy_layers.Chain(parts)
        if isinstance(parts[0], numpy_layers.Dueling):
            value, advantage = parts[0].value, parts[0].advantage
        levels, proposal = None, None
        if values.proposal is not None:
            propose: Any = values.proposal.linear
            proposal = arch.Proposal(
                weight=self.put(f"{prefix}.proposal.weight", _numpy(propose.weight)),
                bias=self.put(f"{prefix}.proposal.bias", _numpy(propose.bias)),
            )
        else:
            assert values.levels is not None
            levels = self.put(f"{prefix}.levels", _numpy(values.levels))
        self.layers.append(
            arch.Levels(
                weight=self.put(f"{prefix}.weight", _numpy(embed.weight)),
                bias=self.put(f"{prefix}.bias", _numpy(embed.bias)),
                levels=levels,
                proposal=proposal,
                advantage=self._stream(advantage, f"{prefix}.advantage"),
                value=None if value is None else self._stream(value, f"{prefix}.value"),
            )
        )

    def _close_atoms(self, mean: Any) -> None:
        # Atoms and their mean are one layer of the file.
        last = self.layers.pop()
        assert isinstance(last, arch.Atoms)
        if isinstance(mean, numpy_layers.SupportMean):
            last = last.model_copy(update={"support": self.put("head.support", mean.support)})
        self.layers.append(last)

    def _describe(self, layer: Any, prefix: str) -> Any:
        if isinstance(layer, numpy_layers.Dense):
            activation: Any = None if layer.activation is None else _NAMES[layer.activation]
            return arch.Dense(
                weight=self.put(f"{prefix}.weight", layer.weight_t.T),
                bias=self.put(f"{prefix}.bias", layer.bias),
                activation=activation,
            )
        if isinstance(layer, numpy_layers.LayerNorm):
            return arch.LayerNorm(
                weight=self.put(f"{prefix}.weight", layer.weight),
                bias=self.put(f"{prefix}.bias", layer.bias),
                eps=float(layer.eps),
            )
        if isinstance(layer, numpy_layers.BatchNorm):
            return arch.BatchNorm(
                weight=self.put(f"{prefix}.weight", layer.weight),
                bias=self.put(f"{prefix}.bias", layer.bias),
                mean=self.put(f"{prefix}.mean", layer.mean),
                variance=self.put(f"{prefix}.variance", layer.variance),
                eps=float(layer.eps),
            )
        if isinstance(layer, numpy_layers.Activation):
            name: Any = _NAMES[layer.function]
            return arch.Activation(activation=name)
        if isinstance(layer, numpy_layers.Dueling):
            return arch.Dueling(
                value=self._stream(layer.value, f"{prefix}.value"),
                advantage=self._stream(layer.advantage, f"{prefix}.advantage"),
            )
        if isinstance(layer, numpy_layers.Atoms):
            value = layer.value
            return arch.Atoms(
                advantage=self._stream(layer.advantage, f"{prefix}.advantage"),
                value=None if value is None else self._stream(value, f"{prefix}.value"),
                actions=layer.shape[0],
                atoms=layer.shape[1],
            )
        raise ModelError(f"A layer of kind {type(layer).__name__} cannot run in a client.")

    def _stream(self, layer: Any, prefix: str) -> tuple[Any, ...]:
        parts = layer.layers if isinstance(layer, numpy_layers.Chain) else (layer,)
        return tuple(self._describe(part, f"{prefix}.{i}") for i, part in enumerate(parts))


def _network(
    algorithm: Algorithm, noise: np.random.Generator | None
) -> tuple[list[nn.Module], SquashedActor | None]:
    """Return the policy as modules on the CPU, one after another, and the squashed actor if any."""
    source: Any = getattr(algorithm, "net", getattr(algorithm, "q", None))
    if isinstance(getattr(source, "memory", None), Memory):
        parts = [source.encoder, source.memory, source.head]
        return [_on_cpu(part, noise) for part in parts], None
    exported = algorithm.policy_module()
    network = exported.network if isinstance(exported, Exported) else exported
    if isinstance(network, SquashedActor):
        return [_on_cpu(network.net, noise)], network
    module = _on_cpu(network, noise)
    if isinstance(module, quantile.ActionValues):
        return [module.network.encoder, module], None
    return [module], None


def _on_cpu(module: nn.Module, noise: np.random.Generator | None) -> nn.Module:
    module = copy.deepcopy(module).to("cpu", torch.float32)
    if any(isinstance(child, NoisyLinear) for child in module.modules()):
        _fold_noise(module, noise)
    return module


def _fold_noise(module: nn.Module, noise: np.random.Generator | None) -> None:
    """Turn noisy layers into plain ones, with one draw of their noise or without any."""
    if noise is not None:
        resample_noise(module, noise)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, NoisyLinear):
                continue
            plain = nn.Linear(child.in_features, child.out_features)
            with torch.no_grad():
                plain.weight.copy_(child.weight)
                plain.bias.copy_(child.bias)
                if noise is not None:
                    spread = torch.outer(child.eps_out, child.eps_in)
                    plain.weight.add_(child.weight_sigma * spread)
                    plain.bias.add_(child.bias_sigma * child.eps_out)
            setattr(parent, name, plain)


def _numpy_parts(module: nn.Module, name: str) -> Sequence[Any]:
    forward: Callable[..., Any] | None = numpy_forward(module)
    if not isinstance(forward, numpy_layers.Chain):
        raise ModelError(
            f"The policy of '{name}' cannot run in a client: its network "
            f"({type(module).__name__}) has a part other than linear layers, activations, layer "
            "and batch normalisation, memories and the known heads.",
            "Choose an algorithm whose policy is made of these, or use remote inference.",
        )
    return forward.layers


def _entries(module: nn.Module) -> tuple[arch.Entry, ...]:
    flat = next(child for child in module.modules() if isinstance(child, FlatObservation))
    return tuple(
        arch.Entry(key=e.key, width=e.width, scale=e.scale, sizes=e.sizes, starts=e.starts)
        for e in flat.entries
    )


def _normalization(
    writer: _Writer, normalizer: RunningNormalizer | None, inputs: tuple[arch.Entry, ...]
) -> arch.Normalization | None:
    """Spread the statistics over the flat input; what is not normalised passes unchanged."""
    if normalizer is None:
        return None
    means: list[Array] = []
    scales: list[Array] = []
    limits: list[Array] = []
    state = normalizer.state()
    for entry in inputs:
        moments = state.get(entry.key or "")
        mean, var = (0.0, 1.0) if moments is None else (moments["mean"], moments["var"])
        inverse_std = 1.0 if moments is None else 1.0 / np.sqrt(var + _VARIANCE_EPS)
        limit = _UNLIMITED if moments is None else normalizer.clip
        for numbers, value in ((means, mean), (scales, inverse_std), (limits, limit)):
            numbers.append(np.broadcast_to(np.reshape(value, -1), entry.width))
    return arch.Normalization(
        mean=writer.put("normalization.mean", np.concatenate(means)),
        inverse_std=writer.put("normalization.inverse_std", np.concatenate(scales)),
        limit=writer.put("normalization.limit", np.concatenate(limits)),
    )


def _head(algorithm: Algorithm, writer: _Writer, squashed: SquashedActor | None) -> arch.Head:
    space, hp = algorithm.spaces.action, algorithm.hp
    progress = algorithm.clock.progress
    if isinstance(space, gym.spaces.Box):
        low, high = arch.finite_or_none(space.low), arch.finite_or_none(space.high)
        if squashed is not None and writer.squash_bounds is not None:
            least, most = writer.squash_bounds
            return arch.SquashedGaussian(log_std_low=least, log_std_high=most, low=low, high=high)
        if writer.log_std is not None:
            return arch.Gaussian(log_std=writer.log_std, low=low, high=high)
        noise = float(hp.exploration_noise(progress)) if hasattr(hp, "exploration_noise") else 0.0
        return arch.Deterministic(noise=noise, low=low, high=high)
    if isinstance(space, gym.spaces.Discrete):
        n, start = int(space.n), int(space.start)
        if isinstance(getattr(algorithm, "choose", None), GreedyActions):
            noisy = getattr(hp, "noisy", False) or not hasattr(hp, "epsilon")
            epsilon = 0.0 if noisy else float(hp.epsilon(progress))
            return arch.ActionValues(n=n, start=start, epsilon=epsilon)
        return arch.Categorical(n=n, start=start)
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = tuple(int(v) for v in space.nvec.reshape(-1))
        starts = tuple(int(v) for v in np.asarray(space.start).reshape(-1))
        return arch.MultiCategorical(sizes=sizes, starts=starts)
    assert isinstance(space, gym.spaces.MultiBinary)
    return arch.Bernoulli(n=int(np.prod(space.shape)))


def _numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy()
