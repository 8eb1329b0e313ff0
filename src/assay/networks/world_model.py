"""The networks around the RSSM of DreamerV3: encoder, decoder, heads, actor and critic.

Images go through a CNN each, everything else through one MLP on symlog(x). The decoder predicts
images in [0, 1] and symlog(x). Sums over pixels and numbers are taken, means over observations.
What a loss or a return is computed from is float32, whatever the layers compute in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.core.errors import SpaceError
from assay.core.images import is_image
from assay.core.types import ACTION_MASK, Tree, action_mask, tree_map
from assay.functional.distributions import policy_distribution
from assay.functional.symlog import symexp_bins, symlog, two_hot_mean
from assay.functional.targets import mask_values
from assay.functional.world_models import mix_uniform, one_hot
from assay.networks.conv import ToChannels
from assay.networks.encoders import Encoder, make_encoder
from assay.networks.rnn import Carry, Remembering
from assay.networks.rssm import (
    RSSM,
    BlockLinear,
    RMSNorm,
    dense,
    dense_layers,
    dense_mlp,
    draw_weights,
    linear,
)

_MULTIPLES = (2, 3, 4, 4)  # channels of each stage, in multiples of the depth
_KERNEL = 5
_SMALLEST, _LARGEST = 3, 16  # pixels of an image that was halved as often as it can be
BINS = 255  # of rewards and values
_STD = (0.1, 1.0)  # bounds of the deviation of Box actions, in the unit box


class Pixels(ToChannels):
    """Bring images of a space to [B, C, H, W] in [0, 1], with a border that lets them be halved.

    Attributes:
        stages: How often they are halved.
        least: Height and width after that.
        size: Height and width without the border, which is below and on the right.
        padded: (C, H, W) with it.

    Raises:
        SpaceError: Halving does not bring them to a size that the encoder takes.
    """

    def __init__(self, space: spaces.Box, key: str) -> None:
        super().__init__(space)
        low, high = float(np.min(space.low)), float(np.max(space.high))
        self.shift, self.range = (0.0, 1.0) if self.scale != 1.0 else (low, max(high - low, 1e-8))
        channels, *size = self.shape
        stages = [
            k
            for k in range(1, len(_MULTIPLES) + 1)
            if min(size) >= _SMALLEST * 2**k and max(size) <= _LARGEST * 2**k
        ]
        if not stages:
            where = f" of '{key}'" if key else ""
            raise SpaceError(
                f"The images{where} are {size[0]} by {size[1]} pixels. The encoder halves an image "
                f"up to {len(_MULTIPLES)} times, to sides of {_SMALLEST} to {_LARGEST} pixels.",
                "Resize the images in the environment, such as to 64 by 64.",
            )
        self.stages = stages[-1]
        self.least = tuple(-(-n // 2**self.stages) for n in size)
        height, width = (n * 2**self.stages for n in self.least)
        self.size, self.border = tuple(size), (0, width - size[1], 0, height - size[0])
        self.padded = (channels, height, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return images in [0, 1]."""
        x = (super().forward(x) - self.shift) / self.range
        return nn.functional.pad(x, self.border) if any(self.border) else x


class ImageEncoder(nn.Module):
    """Convolutions, each of which is followed by a maximum over two by two pixels."""

    def __init__(self, pixels: Pixels, depth: int) -> None:
        super().__init__()
        channels = [pixels.shape[0], *(depth * n for n in _MULTIPLES[: pixels.stages])]
        self.convs = nn.ModuleList(_conv(*pair) for pair in pairwise(channels))
        self.norms = nn.ModuleList(RMSNorm(n, axis=-3) for n in channels[1:])
        self.out_features = channels[-1] * math.prod(pixels.least)

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, F] of images [B, C, H, W] in [0, 1]."""
        x = x - 0.5
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nn.functional.silu(norm(nn.functional.max_pool2d(conv(x), 2)))
        return x.flatten(1)


class ImageDecoder(nn.Module):
    """The way back: a layer from the state to small images, and convolutions that double them."""

    def __init__(self, pixels: Pixels, rssm: RSSM, depth: int, units: int) -> None:
        super().__init__()
        channels = [pixels.shape[0], *(depth * n for n in _MULTIPLES[: pixels.stages])][::-1]
        self.small = (channels[0], *pixels.least)
        size = math.prod(self.small)
        self.deter = rssm.deter
        # Blocks of h give channels of their own, which saves most of the largest layer.
        self.groups = math.gcd(rssm.blocks, channels[0])
        self.from_deter = BlockLinear(self.groups, rssm.deter, size)
        self.from_stoch = nn.Sequential(
            dense(rssm.out_features - rssm.deter, 2 * units), linear(2 * units, size)
        )
        self.norms = nn.ModuleList(RMSNorm(n, axis=-3) for n in channels[:-1])
        self.convs = nn.ModuleList(_conv(*pair) for pair in pairwise(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Return images [B, C, H, W] in [0, 1]."""
        deter, stoch = features[:, : self.deter], features[:, self.deter :]
        x = (self.from_deter(deter) + self.from_stoch(stoch)).view(-1, *self.small)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = nn.functional.silu(norm(x))
            x = conv(x.repeat_interleave(2, dim=-2).repeat_interleave(2, dim=-1))
        return torch.sigmoid(x)


class Observations(nn.Module):
    """What an observation consists of: images, and one flat vector of all the rest.

    Attributes:
        images: Brings each image to [0, 1]; the key is "" where the observation is an image.
        flat: Gives the rest as one row of numbers, or None.
        width: How many numbers.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        items: dict[str, Any] = {"": space}
        if isinstance(space, spaces.Dict):
            items = {k: space.spaces[k] for k in sorted(space.spaces) if k != ACTION_MASK}
        self.images = nn.ModuleDict(
            {_name(k): Pixels(part, k) for k, part in items.items() if is_image(part)}
        )
        rest = {k: part for k, part in items.items() if not is_image(part)}
        self.flat: Encoder | None = None
        self.width = 0
        if rest:
            whole = spaces.Dict(rest) if isinstance(space, spaces.Dict) else space
            made = make_encoder(whole, hidden=())
            assert isinstance(made, Encoder)
            self.flat, self.width = made, made.out_features

    def split(self, obs: Tree) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return images [B, C, H, W] in [0, 1] by name, and symlog of the rest [B, width]."""
        images = {name: part(_entry(obs, name)) for name, part in self.images.items()}
        return images, None if self.flat is None else symlog(self.flat.flat(obs))


class ObservationEncoder(nn.Module):
    """Observations to tokens [B, out_features]."""

    def __init__(self, parts: Observations, *, depth: int, units: int, layers: int) -> None:
        super().__init__()
        cnns = {name: ImageEncoder(p, depth) for name, p in parts.images.items()}  # type: ignore[arg-type]
        self.cnns = nn.ModuleDict(cnns)
        self.out_features = sum(cnn.out_features for cnn in cnns.values())
        self.mlp: nn.Sequential | None = None
        if parts.width:
            self.mlp = dense_layers(parts.width, units, layers)
            self.out_features += units

    def forward(self, images: Mapping[str, Tensor], flat: Tensor | None) -> Tensor:
        """Return the tokens of what `Observations.split` returned."""
        tokens = [self.cnns[name](x) for name, x in images.items()]
        if self.mlp is not None:
            tokens.append(self.mlp(flat))
        return torch.cat(tokens, dim=-1)


class ObservationDecoder(nn.Module):
    """States to predicted observations."""

    def __init__(
        self, parts: Observations, rssm: RSSM, *, depth: int, units: int, layers: int
    ) -> None:
        super().__init__()
        self.cnns = nn.ModuleDict(
            {name: ImageDecoder(p, rssm, depth, units) for name, p in parts.images.items()}  # type: ignore[arg-type]
        )
        self.mlp: nn.Sequential | None = None
        if parts.width:
            self.mlp = dense_mlp(rssm.out_features, units, layers, parts.width)

    def forward(self, features: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return what `Observations.split` returns, as it is predicted from features [B, F]."""
        images = {name: cnn(features) for name, cnn in self.cnns.items()}
        return images, None if self.mlp is None else self.mlp(features)

    def loss(self, features: Tensor, images: Mapping[str, Tensor], flat: Tensor | None) -> Tensor:
        """Return the squared error [B], summed over pixels and numbers."""
        predicted, numbers = self(features)
        errors = [(predicted[name] - x).square().sum((1, 2, 3)) for name, x in images.items()]
        if numbers is not None:
            errors.append((numbers - flat).square().sum(1))
        return torch.stack(errors).sum(0)


class TwoHotHead(nn.Module):
    """A number of any size from features, as logits of symexp-spaced bins; 0 at first."""

    bins: Tensor

    def __init__(self, features: int, *, units: int, layers: int) -> None:
        super().__init__()
        self.mlp = dense_mlp(features, units, layers, BINS, scale=0.0)
        self.register_buffer("bins", symexp_bins(BINS), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [..., BINS]."""
        return self.mlp(features).float()

    def mean(self, features: Tensor) -> Tensor:
        """Return the predicted number [...]."""
        return two_hot_mean(self(features), self.bins)


class WorldModel(nn.Module):
    """Encoder, RSSM, decoder, and the heads of reward and continuation."""

    def __init__(
        self, observation: spaces.Space[Any], actions: int, *, depth: int, units: int, layers: int,
        **rssm: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.parts = Observations(observation)
        widths: dict[str, int] = {"depth": depth, "units": units, "layers": layers}
        self.encoder = ObservationEncoder(self.parts, **widths)
        self.rssm = RSSM(self.encoder.out_features, actions, **rssm)
        self.decoder = ObservationDecoder(self.parts, self.rssm, **widths)
        self.reward = TwoHotHead(self.rssm.out_features, units=units, layers=1)
        self.proceed = dense_mlp(self.rssm.out_features, units, 1, 1)

    def encode(self, obs: Tree) -> Tensor:
        """Return the tokens [B, F] of observations."""
        return self.encoder(*self.parts.split(obs))

    def continuation(self, features: Tensor) -> Tensor:
        """Return the logit [...] that the episode goes on, the discount included."""
        return self.proceed(features).squeeze(-1).float()


class Actor(nn.Module):
    """The policy on states: a categorical distribution, or a bounded normal one in the unit box.

    Attributes:
        size: Numbers of an action as the world model takes it: one-hot, or of the unit box.
        distribution: Of actions: their number, or [size] numbers of the unit box.
    """

    def __init__(
        self, features: int, action: spaces.Space[Any], *, units: int, layers: int, unimix: float
    ) -> None:
        super().__init__()
        self.discrete = isinstance(action, spaces.Discrete)
        self.unimix = unimix
        self.size = action_size(action)
        plain = action if self.discrete else spaces.Box(-1.0, 1.0, (self.size,), np.float32)
        self.distribution = policy_distribution(plain)
        self.mlp = dense_mlp(features, units, layers, self.distribution.param_size, scale=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Return the distribution's parameters: log-probabilities, or means and log-deviations."""
        raw = self.mlp(features).float()
        if self.discrete:
            return mix_uniform(raw, self.unimix)
        mean, std = raw.chunk(2, dim=-1)
        low, high = _STD
        std = (high - low) * torch.sigmoid(std + 2.0) + low
        return torch.cat([mean.tanh(), std.log()], dim=-1)

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions as the world model takes them, [N, size]."""
        chosen = self.distribution.sample(self(features), noise)
        return one_hot(chosen, self.size) if self.discrete else chosen

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the most likely actions as the world model takes them, [N, size]."""
        if self.discrete:
            return one_hot(mask_values(params, mask).argmax(-1), self.size)
        return self.distribution.mode(params)

    def log_prob_entropy(self, features: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Return log pi(a) and the entropy [...] for actions `taken` [..., size]."""
        params = self(features)
        if not self.discrete:
            return self.distribution.log_prob_entropy(params, taken)
        return (params * taken).sum(-1), -(params.exp() * params).sum(-1)


class LatentActor(Remembering):
    """World model and actor as one network that acts; it shares the parameters of both."""

    memory: Any

    def __init__(self, world: WorldModel, actor: Actor) -> None:
        super().__init__()
        self.encoder, self.memory, self.head = world, world.rssm, actor
        self.actor = actor

    def step(self, obs: Tree, carry: Carry, gumbel: Tensor | None = None) -> tuple[Tensor, Carry]:
        """Return the actor's parameters [N, P], and the carry with the best action in it.

        `gumbel` [N, S, C] draws the latent state; without it the most likely one is taken.
        """
        tokens = self.encoder.encode(obs).unsqueeze(0)
        state = self.memory.observe(
            tokens,
            carry["action"].unsqueeze(0),
            tokens.new_zeros(tokens.shape[:2]),
            carry,
            None if gumbel is None else gumbel.unsqueeze(0),
        )
        params = self.actor(state.features[0])
        best = self.actor.best(params, action_mask(obs))
        return params, {"deter": state.deter[0], "stoch": state.stoch[0], "action": best}


class Dreams(NamedTuple):
    """Images of N episodes, each {name: [T, N, C, H, W]} in [0, 1], borders cut off.

    Attributes:
        truth: What was seen.
        reconstruction: What the model makes of each observation.
        open_loop: The same up to `context` moments; from there on, predicted by the actions alone.
        imagined: The same, with actions that the actor chooses in the model.
    """

    truth: dict[str, Tensor]
    reconstruction: dict[str, Tensor]
    open_loop: dict[str, Tensor]
    imagined: dict[str, Tensor]


@torch.no_grad()
def dream(
    world: WorldModel, actor: Actor, obs: Tree, action: Tensor, context: int, gumbel: Tensor
) -> Dreams:
    """Return what the world model sees and predicts of episodes from their start.

    Args:
        world: The model.
        actor: Acts in it.
        obs: [T, N, ...].
        action: [T, N, A], what was done before each observation.
        context: How many observations are seen before predictions begin.
        gumbel: [T - context, N, S, C] noise of the predicted latents.
    """
    count = action.shape[1]
    tokens = world.encode(tree_map(lambda x: x.flatten(0, 1), obs)).unflatten(0, (-1, count))
    first = torch.zeros_like(action[..., 0])
    first[0] = 1.0
    start = {k: torch.from_numpy(v).to(tokens.device) for k, v in world.rssm.initial(count).items()}
    state = world.rssm.observe(tokens, action, first, start, None)
    known, last = state.features[:context], (state.deter[context - 1], state.stoch[context - 1])
    told, _ = world.rssm.imagine(*last, lambda _, given: given, action[context:], gumbel)
    own, _ = world.rssm.imagine(
        *last, lambda x, _: actor.best(actor(x), None), action[context:], gumbel
    )
    seen = tree_map(lambda x: x.flatten(0, 1), obs)
    truth = {k: v.unflatten(0, (-1, count)) for k, v in world.parts.split(seen)[0].items()}
    predicted = [torch.cat([known, ahead[1:]]) for ahead in (told, own)]
    drawn = [_decoded(world, features) for features in (state.features, *predicted)]
    return Dreams(*(_without_border(world, images) for images in (truth, *drawn)))


def _decoded(world: WorldModel, features: Tensor) -> dict[str, Tensor]:
    images, _ = world.decoder(features.flatten(0, 1))
    return {name: x.unflatten(0, features.shape[:2]) for name, x in images.items()}


def _without_border(world: WorldModel, images: dict[str, Tensor]) -> dict[str, Tensor]:
    sizes: dict[str, Any] = {name: part.size for name, part in world.parts.images.items()}
    return {k: x[..., : sizes[k][0], : sizes[k][1]] for k, x in images.items()}


class ReturnScale(nn.Module):
    """A running range of returns: max(1, EMA of the 95th less the 5th percentile)."""

    low: Tensor
    high: Tensor

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, returns: Tensor) -> Tensor:
        """Take note of returns, and return what to divide advantages by."""
        for running, share in ((self.low, 0.05), (self.high, 0.95)):
            now = torch.quantile(returns.detach().flatten(), share)
            running.copy_(self.decay * running + (1.0 - self.decay) * now)
        return (self.high - self.low).clamp(min=1.0)


def action_size(space: spaces.Space[Any]) -> int:
    """Return how many numbers an action is for a world model."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(np.prod(space.shape or ()))


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, _KERNEL, padding="same")
    draw_weights(conv.weight, inputs * _KERNEL**2)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def _name(key: str) -> str:
    """Return a key as the name of a module, which may be neither empty nor contain a dot."""
    return "image" if key == "" else f"image:{key}".replace(".", "{dot}")


def _entry(obs: Tree, name: str) -> Tensor:
    if not isinstance(obs, Mapping):
        return obs
    return obs[name.removeprefix("image:").replace("{dot}", ".")]
