"""What stands behind an encoder: policies, value streams and ensembles of critics."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import Tree
from assay.functional.distributions import DiagGaussian, Distribution
from assay.functional.layout import box_scale
from assay.networks.custom import DEFAULT, SIMBA
from assay.networks.encoders import make_encoder
from assay.networks.mlp import initialise, make_activation, mlp
from assay.networks.simba import ResidualEnsemble

if TYPE_CHECKING:
    import gymnasium as gym


POLICY_GAIN = 0.01  # so that a policy begins close to uniform, or to mean 0


class GaussianHead(nn.Module):
    """Mean from a linear layer, log-std as a free parameter: [B, in] -> (mean, log_std) [B, 2n].

    Args:
        in_features: Width of the features.
        size: Number of action dimensions n.
        log_std_init: Initial value of every log-std.
        scale: Centre and half-width [n] of the actions' ranges. The layer and the log-std then
            speak of [-1, 1], and what is returned of the actions' own units.
    """

    center: Tensor
    half_width: Tensor

    def __init__(
        self,
        in_features: int,
        size: int,
        *,
        log_std_init: float = 0.0,
        scale: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.mean = initialise(nn.Linear(in_features, size), POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((size,), log_std_init))
        self.scaled = scale is not None
        if scale is not None:
            # Constants of the environment: not a part of a checkpoint.
            for name, values in zip(("center", "half_width"), scale, strict=True):
                self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return mean and log-std side by side."""
        mean: Tensor = self.mean(x)
        log_std: Tensor = self.log_std
        if self.scaled:
            mean = mean * self.half_width + self.center
            log_std = log_std + self.half_width.log()
        return torch.cat([mean, log_std.expand_as(mean)], dim=-1)


class SquashedGaussianHead(nn.Module):
    """Mean and log-std from one linear layer: [B, in] -> (mean, clamped log_std) [B, 2n]."""

    log_std_bounds = (-20.0, 2.0)

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.linear = nn.Linear(in_features, 2 * size)

    def forward(self, x: Tensor) -> Tensor:
        """Return mean and log-std side by side."""
        y = self.linear(x)
        log_std = y[..., self.size :].clamp(*self.log_std_bounds)
        return torch.cat([y[..., : self.size], log_std], dim=-1)


def policy_head(
    distribution: Distribution,
    in_features: int,
    *,
    log_std_init: float = 0.0,
    scale: tuple[np.ndarray, np.ndarray] | None = None,
) -> nn.Module:
    """Return the head whose output [B, param_size] are the parameters of `distribution`.

    `log_std_init` and `scale` are those of `GaussianHead`.
    """
    size = distribution.param_size
    if isinstance(distribution, DiagGaussian):
        return GaussianHead(in_features, size // 2, log_std_init=log_std_init, scale=scale)
    return initialise(nn.Linear(in_features, size), POLICY_GAIN)


class DuelingHead(nn.Module):
    """Q = V + A - mean(A) (arXiv:1511.06581): [B, in] -> [B, actions]."""

    def __init__(
        self,
        in_features: int,
        actions: int,
        *,
        hidden: Sequence[int] = (),
        activation: str = "relu",
        noisy: bool = False,
    ) -> None:
        super().__init__()
        self.value = mlp((in_features, *hidden, 1), activation, init="torch", noisy=noisy)
        self.advantage = mlp((in_features, *hidden, actions), activation, init="torch", noisy=noisy)

    def forward(self, x: Tensor) -> Tensor:
        """Return the action values."""
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(dim=-1, keepdim=True)


class AtomHead(nn.Module):
    """A distribution of returns per action, as numbers of its atoms: [B, in] -> [B, A, K].

    Atoms are logits of fixed ones, or quantiles. With `dueling`, separate streams give V_k + A_ak -
    mean_a A_ak for each atom k (arXiv:1710.02298).
    """

    def __init__(
        self,
        in_features: int,
        actions: int,
        atoms: int,
        *,
        dueling: bool = False,
        hidden: Sequence[int] = (),
        activation: str = "relu",
        noisy: bool = False,
    ) -> None:
        super().__init__()
        self.actions, self.atoms = actions, atoms
        sizes = (in_features, *hidden)
        self.advantage = mlp((*sizes, actions * atoms), activation, init="torch", noisy=noisy)
        self.value: nn.Module | None = None
        if dueling:
            self.value = mlp((*sizes, atoms), activation, init="torch", noisy=noisy)

    def forward(self, x: Tensor) -> Tensor:
        """Return the numbers of every action's atoms."""
        advantage = self.advantage(x).unflatten(1, (self.actions, self.atoms))
        if self.value is None:
            return advantage
        return self.value(x).unsqueeze(1) + advantage - advantage.mean(dim=1, keepdim=True)


class SupportMean(nn.Module):
    """Expected returns over K evenly spaced ones: logits [B, A, K] -> [B, A].

    Raises:
        ConfigError: The returns do not rise from atom to atom, as float32 has them.
    """

    support: Tensor

    def __init__(self, low: float, high: float, atoms: int) -> None:
        super().__init__()
        support = torch.linspace(low, high, atoms)
        if not (support.diff() > 1e-30).all():
            raise ConfigError(
                f"v_min={low:.9g} and v_max={high:.9g} leave no room for {atoms} returns.",
                "Set v_min below the lowest discounted return and v_max above the highest.",
            )
        # A constant of the settings: no part of a checkpoint.
        self.register_buffer("support", support, persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        """Return sum_k z_k softmax(logits)_k."""
        return torch.mv(logits.softmax(-1).flatten(0, -2), self.support).view(logits.shape[:-1])


class AtomMean(nn.Module):
    """Expected returns of atoms that weigh the same: [B, A, K] -> [B, A]."""

    def forward(self, atoms: Tensor) -> Tensor:
        """Return the mean of each action's atoms."""
        return atoms.mean(-1)


class EnsembleMLP(nn.Module):
    """Several MLPs of one shape whose parameters lie together; `sizes` are from input to output.

    With `layer_norm`, each hidden layer is normalised behind its activation.
    """

    def __init__(
        self,
        members: int,
        sizes: Sequence[int],
        activation: str = "relu",
        *,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.activation = make_activation(activation)
        self.gains, self.shifts = nn.ParameterList(), nn.ParameterList()
        for width in sizes[1:-1] if layer_norm else ():
            self.gains.append(nn.Parameter(torch.ones(members, width)))
            self.shifts.append(nn.Parameter(torch.zeros(members, width)))
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in itertools.pairwise(sizes):
            singles = [nn.Linear(n_in, n_out) for _ in range(members)]
            # weight: [members, in, out], bias: [members, 1, out]
            weight = torch.stack([single.weight.detach().T for single in singles])
            bias = torch.stack([single.bias.detach()[None] for single in singles])
            self.weights.append(nn.Parameter(weight.contiguous()))
            self.biases.append(nn.Parameter(bias))

    def forward(
        self, x: Tensor, members: Tensor | None = None, *, rest: Tensor | None = None
    ) -> Tensor:
        """Return [members, B, out] for inputs [B, in]; of `members` [M] only those, if given.

        Where an input is joined with N others in turn, `rest` [B, N, more] has these, and the
        result is [members, B N, out]: what the first layer makes of `x` is computed once.
        """
        parameters = [*self.weights, *self.biases, *self.gains, *self.shifts]
        if members is not None:
            parameters = [p.index_select(0, members) for p in parameters]
        # Taken apart at once: the gradient of a single slice would be as large as the whole.
        each = zip(*(p.unbind(0) for p in parameters), strict=True)
        # A product per member: on a CPU a batched one is no faster at width 256 (measured).
        return torch.stack([self._member(own, x, rest) for own in each])

    def _member(self, own: Sequence[Tensor], x: Tensor, rest: Tensor | None) -> Tensor:
        layers, norms = len(self.weights), len(self.gains)
        last, biases, norm = layers - 1, own[layers : 2 * layers], own[2 * layers :]
        for i, (weight, bias) in enumerate(zip(own[:layers], biases, strict=True)):
            if i == 0 and rest is not None:
                x = _joined_product(x, rest, weight, bias[0])
            elif i == last and weight.shape[1] == 1:
                # One output: a matrix-vector product, which a compiled step fuses with the rest.
                return (torch.mv(x, weight[:, 0]) + bias[0]).unsqueeze(1)
            else:
                x = torch.addmm(bias[0], x, weight)
            if i < last:
                x = self.activation(x)
                if norms:
                    x = F.layer_norm(x, x.shape[1:], norm[i], norm[norms + i])
        return x


def _joined_product(x: Tensor, rest: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return [x_b, rest_bn] W + bias as [B N, out], with the product of `x` [B, in] taken once."""
    of_x, of_rest = weight.split([x.shape[1], rest.shape[2]])
    shared = torch.addmm(bias, x, of_x).unsqueeze(1)  # [B, 1, out]
    own = torch.mm(rest.flatten(0, 1), of_rest).unflatten(0, rest.shape[:2])  # [B, N, out]
    return (own + shared).flatten(0, 1)


def make_ensemble(
    observation_space: gym.Space[Any],
    more: int,
    outputs: int,
    *,
    members: int = 2,
    hidden: Sequence[int] = (256, 256),
    activation: str = "relu",
    cnn: str = "nature",
    network: str = DEFAULT,
    layer_norm: bool = False,
) -> tuple[nn.Module, nn.Module]:
    """Return an encoder of observations, and networks of what it gives and `more` numbers.

    Images go through one CNN that the members share; everything else is flattened. The members
    are residual networks with `network="simba"`, which have layer norms of their own, else MLPs.
    """
    encoder = make_encoder(observation_space, hidden=(), cnn=cnn, network=network, init="torch")
    sizes = (encoder.out_features + more, *hidden, outputs)
    if network == SIMBA:
        return encoder, ResidualEnsemble(members, sizes)
    return encoder, EnsembleMLP(members, sizes, activation, layer_norm=layer_norm)


class QEnsemble(nn.Module):
    """Critics Q_i(s, a) that share an input: (obs, action [B, n]) -> [members, B].

    The settings are those of `make_ensemble`.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_size: int, **settings: Any
    ) -> None:
        super().__init__()
        self.encoder, self.ensemble = make_ensemble(observation_space, action_size, 1, **settings)

    def forward(self, obs: Tree, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the value of each critic, or of those whose indices `members` [M] gives."""
        flat = action.reshape(action.shape[0], -1)
        x = torch.cat([self.encoder(obs), flat], dim=1)
        return self.ensemble(x, members).squeeze(-1)

    def of_many(self, obs: Tree, actions: Tensor) -> Tensor:
        """Return the values [members, B, N] of N actions [B, N, ...] in each state."""
        x, flat = self.encoder(obs), actions.flatten(2)
        if isinstance(self.ensemble, EnsembleMLP):
            q = self.ensemble(x, rest=flat)
        else:
            each = x.unsqueeze(1).expand(-1, flat.shape[1], -1)
            q = self.ensemble(torch.cat([each, flat], dim=2).flatten(0, 1))
        return q.unflatten(1, flat.shape[:2]).squeeze(-1)


class ValueEnsemble(nn.Module):
    """Functions of the observation alone, such as Q of every action: obs -> [members, B, outputs].

    The settings are those of `make_ensemble`.
    """

    def __init__(self, observation_space: gym.Space[Any], outputs: int, **settings: Any) -> None:
        super().__init__()
        self.encoder, self.members = make_ensemble(observation_space, 0, outputs, **settings)

    def forward(self, obs: Tree) -> Tensor:
        """Return the outputs of every member."""
        return self.members(self.encoder(obs))


class ActionScale(nn.Module):
    """The affine map from a bounded Box to the unit box [-1, 1]; policies have its inverse.

    Raises:
        SpaceError: A bound is infinite.
    """

    center: Tensor
    half_width: Tensor

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__()
        center, half_width = box_scale(space)
        # Constants of the environment: not part of a checkpoint.
        self.register_buffer("center", torch.from_numpy(center), persistent=False)
        self.register_buffer("half_width", torch.from_numpy(half_width), persistent=False)

    def to_unit(self, action: Tensor) -> Tensor:
        """Return an action of the environment in the unit box."""
        return (action - self.center) / self.half_width
