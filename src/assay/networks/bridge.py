"""From torch modules to torch-free forward passes that share their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.inference import layers
from assay.networks.batchnorm import BatchRenorm
from assay.networks.encoders import Encoder, FlatObservation
from assay.networks.heads import (
    AtomHead,
    AtomMean,
    DuelingHead,
    EnsembleMLP,
    GaussianHead,
    QEnsemble,
    SquashedGaussianHead,
    SupportMean,
)
from assay.networks.noisy import NoisyLinear

Forward = Callable[..., np.ndarray[Any, Any]]


class _UnsupportedError(Exception):
    """A module has no NumPy counterpart; the caller falls back to torch."""


def numpy_forward(module: nn.Module) -> Forward | None:
    """Return a NumPy forward pass over views of the module's parameters.

    The views share memory with the parameters: an in-place optimizer step is seen by the next call.
    Whoever re-points `parameter.data` (say, into a flat buffer) has to call this afterwards.

    The returned array is **reused** by the next call with the same batch size: copy what you keep.

    Args:
        module: A `Sequential` of linear layers, activations, layer norms, encoders without images
            and heads of this package, or one of these.

    Returns:
        A callable [B, ...] -> [B, ...] (for `QEnsemble`: of observation and action), or None when
        a layer is not supported or the parameters are not float32 on the CPU.
    """
    try:
        if isinstance(module, QEnsemble):
            return _critics(module)
        parts = _convert(module)
    except _UnsupportedError:
        return None
    if not (parts and isinstance(parts[0], layers.Flatten)):
        parts.insert(0, layers.AsFloat())
    return layers.Chain(parts)


def _convert(module: nn.Module) -> list[layers.Layer]:
    """Return the layers of a module, with activations fused into the dense layers before them."""
    if isinstance(module, nn.Sequential):
        parts: list[layers.Layer] = []
        for child in module:
            _append(parts, _convert(child))
        return parts
    if isinstance(module, nn.Identity):
        return []
    if isinstance(module, Encoder):
        if len(module.cnns) or module.flat is None or module.trunk is None:
            raise _UnsupportedError
        return [_flatten(module.flat), *_convert(module.trunk)]
    return [_layer(module)]


def _append(parts: list[layers.Layer], new: list[layers.Layer]) -> None:
    for part in new:
        before = parts[-1] if parts else None
        fusible = isinstance(before, layers.Dense) and before.activation is None
        if isinstance(part, layers.Activation) and fusible:
            before.activation = part.function  # type: ignore[union-attr]
        else:
            parts.append(part)


def _layer(module: nn.Module) -> layers.Layer:
    if isinstance(module, nn.Linear):
        bias = torch.zeros(module.out_features) if module.bias is None else module.bias
        return layers.Dense(_view(module.weight), _view(bias))
    if isinstance(module, NoisyLinear):
        return layers.NoisyDense(
            layers.Dense(_view(module.weight), _view(module.bias)),
            layers.Dense(_view(module.weight_sigma), _view(module.bias_sigma)),
            _view(module.eps_in),
            _view(module.eps_out),
            lambda: module.noisy,
        )
    if isinstance(module, nn.LayerNorm) and module.elementwise_affine and module.bias is not None:
        if len(module.normalized_shape) == 1:
            return layers.LayerNorm(_view(module.weight), _view(module.bias), module.eps)
        raise _UnsupportedError
    if isinstance(module, BatchRenorm):
        mean, variance = _view(module.mean), _view(module.variance)
        return layers.BatchNorm(
            _view(module.weight), _view(module.bias), mean, variance, module.eps
        )
    if isinstance(module, DuelingHead):
        return layers.Dueling(_chain(module.value), _chain(module.advantage))
    if isinstance(module, AtomHead):
        value = None if module.value is None else _chain(module.value)
        return layers.Atoms(_chain(module.advantage), value, module.actions, module.atoms)
    if isinstance(module, SupportMean):
        return layers.SupportMean(_view(module.support))
    if isinstance(module, AtomMean):
        return layers.AtomMean()
    if isinstance(module, GaussianHead):
        return layers.Gaussian(_layer(module.mean), _view(module.log_std))
    if isinstance(module, SquashedGaussianHead):
        return layers.SquashedGaussian(_layer(module.linear), module.size, module.log_std_bounds)
    if isinstance(module, EnsembleMLP):
        return _ensemble(module)
    if isinstance(module, FlatObservation):
        return _flatten(module)
    return layers.Activation(_activation(module))


def _activation(module: nn.Module) -> Callable[[np.ndarray[Any, Any]], None]:
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        return layers.gelu
    if isinstance(module, nn.ELU) and module.alpha == 1.0:
        return layers.elu
    plain = {nn.Tanh: layers.tanh, nn.ReLU: layers.relu, nn.SiLU: layers.silu}
    if type(module) in plain:
        return plain[type(module)]
    raise _UnsupportedError


def _chain(module: nn.Module) -> layers.Layer:
    parts = _convert(module)
    return parts[0] if len(parts) == 1 else layers.Chain(parts)


def _flatten(module: FlatObservation) -> layers.Flatten:
    return layers.Flatten([(e.key, e.width, e.scale, e.sizes, e.starts) for e in module.entries])


def _ensemble(module: EnsembleMLP) -> layers.Ensemble:
    norms = None
    if module.layer_norm:
        pairs = zip(module.norm_weights, module.norm_biases, strict=True)
        norms = [(_view(weight), _view(bias)) for weight, bias in pairs]
    weights = [_view(weight) for weight in module.weights]
    biases = [_view(bias) for bias in module.biases]
    return layers.Ensemble(weights, biases, _activation(module.activation), norms)


def _critics(module: QEnsemble) -> layers.Critics:
    encoder = module.encoder
    if len(encoder.cnns) or encoder.flat is None:
        raise _UnsupportedError
    return layers.Critics(_flatten(encoder.flat), _ensemble(module.ensemble))


def _view(tensor: Tensor) -> np.ndarray[Any, Any]:
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        raise _UnsupportedError
    return tensor.detach().numpy()
