"""The parts of the world model: layers by independent formulas, states, sizes of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from assay.core.errors import ConfigError, SpaceError
from assay.networks.rssm import RSSM, BlockLinear, RMSNorm, dense_mlp, linear
from assay.networks.world_model import (
    Actor,
    Observations,
    ReturnScale,
    TwoHotHead,
    WorldModel,
)


def make_rssm(**options: Any) -> RSSM:
    torch.manual_seed(0)
    sizes = {"deter": 12, "hidden": 5, "stoch": 3, "classes": 4, "blocks": 2, "unimix": 0.01}
    return RSSM(6, 2, **(sizes | options))


def test_block_linear_is_a_block_diagonal_matrix() -> None:
    layer = BlockLinear(2, 6, 4)
    with torch.no_grad():
        layer.bias.copy_(torch.arange(4.0))
    matrix = torch.block_diag(*layer.weight)  # [6, 4]
    x = torch.randn(5, 6)
    torch.testing.assert_close(layer(x), x @ matrix + layer.bias)


def test_rms_norm_by_hand() -> None:
    norm = RMSNorm(2)
    with torch.no_grad():
        norm.scale.copy_(torch.tensor([1.0, 2.0]))
    found = norm(torch.tensor([[3.0, 4.0]]))
    root = (12.5 + 1e-4) ** 0.5
    assert found[0].tolist() == pytest.approx([3 / root, 8 / root])
    image = torch.randn(2, 3, 4, 4)
    of_pixels = RMSNorm(3, axis=-3)(image).permute(0, 2, 3, 1)
    torch.testing.assert_close(of_pixels, RMSNorm(3)(image.permute(0, 2, 3, 1)))


def test_initial_weights() -> None:
    torch.manual_seed(0)
    weight = linear(400, 300).weight
    assert weight.std().item() == pytest.approx(1 / 20, rel=0.02)
    assert weight.abs().max().item() <= 2 * 1.1368 / 20 + 1e-6
    head = dense_mlp(4, 8, 1, 3, scale=0.0)
    assert not head(torch.randn(5, 4)).any()


def test_the_gru_by_an_independent_formula() -> None:
    rssm = make_rssm()
    deter, stoch, action = torch.randn(4, 12), torch.randn(4, 12), torch.rand(4, 2)
    moves = rssm.from_action(action)
    x = torch.cat([rssm.from_deter(deter), rssm.from_stoch(stoch), moves], 1)
    parts = []
    for block in range(2):  # each block sees its part of h and all inputs
        own = slice(6 * block, 6 * block + 6)
        y = deter[:, own] @ rssm.mix_deter.weight[block] + rssm.mix_deter.bias[own]
        parts.append(y + x @ rssm.mix_inputs.weight[own].t() + rssm.mix_inputs.bias[own])
    x = torch.nn.functional.silu(rssm.mix_norm(torch.cat(parts, 1)))
    after = torch.empty(4, 12)
    for block in range(2):
        own = slice(6 * block, 6 * block + 6)
        bias = rssm.gates.bias[18 * block : 18 * block + 18]
        reset, new, update = (x[:, own] @ rssm.gates.weight[block] + bias).split(6, dim=1)
        update = torch.sigmoid(update - 1)
        candidate = torch.tanh(torch.sigmoid(reset) * new)
        after[:, own] = update * candidate + (1 - update) * deter[:, own]
    torch.testing.assert_close(rssm._advance(deter, stoch, moves), after)


def observe(rssm: RSSM, is_first: list[list[float]], **changed: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    inputs: dict[str, Any] = {
        "tokens": normal(3, 2, 6), "action": normal(3, 2, 2), "is_first": torch.tensor(is_first),
        "carry": {"deter": normal(2, 12), "stoch": normal(2, 12)}, "gumbel": normal(3, 2, 3, 4),
    }  # fmt: skip
    return rssm.observe(**(inputs | changed))


def test_states_have_their_shapes_and_latents_are_one_hot() -> None:
    state = observe(make_rssm(), [[0.0, 0.0]] * 3)
    assert state.deter.shape == (3, 2, 12) and state.stoch.shape == (3, 2, 12)
    assert state.features.shape == (3, 2, 24)
    assert state.stoch.unflatten(-1, (3, 4)).sum(-1).allclose(torch.ones(3, 2, 3))
    assert state.posterior.exp().sum(-1).allclose(torch.ones(3, 2, 3))
    assert state.posterior.exp().min() >= 0.01 / 4 - 1e-6


def test_an_episode_begins_with_zeros_whatever_came_before() -> None:
    rssm = make_rssm()
    first = [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]  # the first sequence, in its second step
    one = observe(rssm, first)
    carry = {"deter": torch.ones(2, 12), "stoch": torch.ones(2, 12)}
    other = torch.full((3, 2, 2), 0.5)
    other[2] = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1))[2]
    base = observe(rssm, first, action=other)
    two = observe(rssm, first, carry=carry, action=other)
    assert not base.deter[1:, 1].allclose(two.deter[1:, 1])
    torch.testing.assert_close(base.deter[1:, 0], two.deter[1:, 0])
    # The action before the first step counts as zeros, too.
    torch.testing.assert_close(one.deter[1, 0], two.deter[1, 0])
    zeros = {"deter": torch.zeros(2, 12), "stoch": torch.zeros(2, 12)}
    fresh = observe(rssm, [[1.0, 1.0], *first[1:]], carry=zeros)
    torch.testing.assert_close(fresh.deter[1, 0], one.deter[1, 0])


def test_one_step_after_another_is_the_whole_sequence() -> None:
    rssm = make_rssm()
    whole = observe(rssm, [[0.0, 1.0]] * 3)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(3, 2, 6, generator=generator)
    action = torch.randn(3, 2, 2, generator=generator)
    carry = {k: torch.randn(2, 12, generator=generator) for k in ("deter", "stoch")}
    gumbel = torch.randn(3, 2, 3, 4, generator=generator)
    for t in range(3):
        state = rssm.observe(
            tokens[t : t + 1], action[t : t + 1], torch.tensor([[0.0, 1.0]]), carry,
            gumbel[t : t + 1],
        )  # fmt: skip
        carry = {"deter": state.deter[0], "stoch": state.stoch[0]}
        torch.testing.assert_close(carry["deter"], whole.deter[t])
        torch.testing.assert_close(carry["stoch"], whole.stoch[t])


def test_imagination_follows_the_prior_and_the_policy() -> None:
    rssm = make_rssm()
    seen = []

    def act(features: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        seen.append(features)
        return noise

    noise, gumbel = torch.randn(3, 5, 2), torch.randn(3, 5, 3, 4)
    deter, stoch = torch.randn(5, 12), torch.randn(5, 12)
    features, actions = rssm.imagine(deter, stoch, act, noise, gumbel)
    assert features.shape == (4, 5, 24) and torch.equal(actions, noise)
    torch.testing.assert_close(features[0], torch.cat([deter, stoch], 1))
    for t in range(3):
        assert torch.equal(seen[t], features[t])
        h = rssm._advance(
            features[t, :, :12], features[t, :, 12:], rssm.from_action(noise[t].clamp(-1, 1))
        )
        torch.testing.assert_close(features[t + 1, :, :12], h)
        chosen = (rssm.prior(h) + gumbel[t]).argmax(-1)
        assert torch.equal(features[t + 1, :, 12:].unflatten(1, (3, 4)).argmax(-1), chosen)


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="blocks=5 does not divide deter=12"):
        make_rssm(blocks=5)


# ---------------------------------------------------------------------- observations


def make_world(space: Any) -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(
        space, 2, depth=2, units=8, layers=1, deter=16, hidden=8, stoch=2, classes=3, blocks=2,
        unimix=0.01,
    )  # fmt: skip


BYTES = Box(0, 255, (16, 24, 3), np.uint8)
SPACES: dict[str, Any] = {
    "vector": Box(-np.inf, np.inf, (5,), np.float32),
    "whole number": Discrete(4),
    "image": BYTES,
    "grey": Box(0, 255, (16, 16), np.uint8),
    "float image": Box(-1.0, 1.0, (1, 16, 16), np.float32),
    "both": Dict({"a.b": BYTES, "speed": Box(-9.0, 9.0, (2,), np.float32), "n": Discrete(3)}),
}


@pytest.mark.parametrize("name", SPACES)
def test_what_is_encoded_is_what_is_decoded(name: str) -> None:
    space = SPACES[name]
    world = make_world(space)
    draws = [space.sample() for _ in range(3)]
    obs: Any
    if isinstance(space, Dict):
        obs = {k: torch.as_tensor(np.stack([d[k] for d in draws])) for k in space.spaces}
    else:
        obs = torch.as_tensor(np.stack(draws))
    images, flat = world.parts.split(obs)
    assert world.encode(obs).shape == (3, world.encoder.out_features)
    features = torch.randn(3, world.rssm.out_features)
    predicted, numbers = world.decoder(features)
    assert {k: v.shape for k, v in predicted.items()} == {k: v.shape for k, v in images.items()}
    for image in [*images.values(), *predicted.values()]:
        assert 0 <= image.min() and image.max() <= 1
    assert (numbers is None) == (flat is None)
    error = sum((predicted[k] - images[k]).square().flatten(1).sum(1) for k in images)
    if flat is not None and numbers is not None:
        assert numbers.shape == flat.shape
        error = error + (numbers - flat).square().sum(1)
    torch.testing.assert_close(world.decoder.loss(features, images, flat), error)


def test_vectors_are_seen_through_symlog() -> None:
    parts = Observations(SPACES["vector"])
    _, flat = parts.split(torch.tensor([[0.0, np.e - 1, 1 - np.e, np.e**2 - 1, 0.0]]))
    assert flat is not None
    assert flat[0].tolist() == pytest.approx([0, 1, -1, 2, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("size", "stages", "least"),
    [((64, 64), 4, (4, 4)), ((84, 60), 4, (6, 4)), ((36, 36), 3, (5, 5)), ((16, 16), 2, (4, 4))],
)
def test_images_are_halved_as_often_as_they_can_be(
    size: tuple[int, int], stages: int, least: tuple[int, int]
) -> None:
    parts = Observations(Box(0, 255, (3, *size), np.uint8))
    (pixels,) = parts.images.values()
    assert (pixels.stages, pixels.least) == (stages, least)
    image = parts.split(torch.full((2, 3, *size), 255, dtype=torch.uint8))[0]["image"]
    assert image.shape == (2, 3, *(n * 2**stages for n in least))
    assert image[:, :, : size[0], : size[1]].eq(1).all()
    assert image.sum() == 2 * 3 * size[0] * size[1]  # the border is 0


@pytest.mark.parametrize("size", [(5, 64), (4, 4), (512, 512), (8, 80)])
def test_images_that_cannot_be_halved_are_refused(size: tuple[int, int]) -> None:
    space = Dict({"eye": Box(0, 255, (3, *size), np.uint8)})
    with pytest.raises(SpaceError, match=f"images of 'eye' are {size[0]} by {size[1]} pixels"):
        Observations(space)


# ---------------------------------------------------------------------- heads


def test_numbers_are_zero_at_first() -> None:
    head = TwoHotHead(7, units=8, layers=2)
    assert head.mean(torch.randn(4, 7)).tolist() == [0.0] * 4


def test_discrete_actor() -> None:
    actor = Actor(5, Discrete(3), units=8, layers=1, unimix=0.3)
    with torch.no_grad():
        actor.mlp[-1].bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    x = torch.randn(2, 5)
    probs = actor(x).exp()
    assert probs[0].tolist() == pytest.approx([0.8, 0.1, 0.1], abs=1e-5)
    taken = actor.sample(x, torch.tensor([[0.0, 90.0, 0.0], [0.0, 0.0, 0.0]]))
    assert taken.tolist() == [[0, 1, 0], [1, 0, 0]]
    log_pi, entropy = actor.log_prob_entropy(x, taken)
    assert log_pi.tolist() == pytest.approx([np.log(0.1), np.log(0.8)], abs=1e-4)
    assert entropy[0].item() == pytest.approx(-0.8 * np.log(0.8) - 0.2 * np.log(0.1), abs=1e-4)
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert actor.best(actor(x), mask)[:, 0].tolist() == [0, 1]


def test_box_actor() -> None:
    actor = Actor(5, Box(-3.0, 5.0, (2, 1), np.float32), units=8, layers=1, unimix=0.01)
    with torch.no_grad():
        actor.mlp[-1].weight.zero_()
        actor.mlp[-1].bias.copy_(torch.tensor([0.0, 1.0, -2.0, 90.0]))
    x = torch.randn(1, 5)
    mean, log_std = actor(x)[0].chunk(2)
    assert mean.tolist() == pytest.approx([0.0, np.tanh(1.0)])
    assert log_std.exp().tolist() == pytest.approx([0.9 * 0.5 + 0.1, 1.0])  # sigmoid(0), (90)
    taken = actor.sample(x, torch.tensor([[1.0, -2.0]]))
    assert taken[0].tolist() == pytest.approx([0.55, np.tanh(1.0) - 2.0])
    log_pi, entropy = actor.log_prob_entropy(x, taken)
    log_2pi = np.log(2 * np.pi)
    assert log_pi.item() == pytest.approx(-0.5 * (1 + 4) - np.log(0.55) - log_2pi)
    assert entropy.item() == pytest.approx(np.log(0.55) + 1 + log_2pi)


def test_return_scale_by_hand() -> None:
    scale = ReturnScale(0.9)
    returns = torch.arange(0.0, 101.0)  # percentiles 5 and 95
    assert scale(returns).item() == pytest.approx(9.0)  # a tenth of 90
    assert scale(returns).item() == pytest.approx(0.9 * 9.0 + 9.0)
    assert (scale.low.item(), scale.high.item()) == pytest.approx((0.95, 18.05))
    assert ReturnScale(0.9)(torch.tensor([0.5, 0.6])).item() == 1.0  # small returns stay small
