"""Maps against arithmetic, a pixel that was planted, and weights that were made random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.explanation import sanity
from assay.explanation.functions import Function, inputs_of, policy_function
from assay.explanation.maps import (
    grad_cam,
    gradients,
    integrated_gradients,
    last_feature_maps,
    occlusion,
    patches_of,
    smooth_gradients,
)
from assay.explanation.states import States
from assay.testing.algorithms import make_algorithm

SIDE, ROW, COLUMN = 12, 4, 8
KEYS = ("",)
Planted = tuple[Function, States, Tensor]


def product(inputs: dict[str, Tensor]) -> Tensor:
    """Return [x0 x1, 3 x2]."""
    x = inputs[""]
    return torch.stack([x[:, 0] * x[:, 1], 3.0 * x[:, 2]], dim=1)


def test_maps_by_hand() -> None:
    x = {"": torch.tensor([[2.0, 5.0, 1.0]])}
    base = {"": torch.tensor([[0.0, 1.0, 0.0]])}
    slope = gradients(product, x, KEYS)[""]
    assert slope.tolist() == [[[5.0, 2.0, 0.0], [0.0, 0.0, 3.0]]]
    found = integrated_gradients(product, x, base, KEYS)
    # x0 = 2a, x1 = 1 + 4a: int 2 (1 + 4a) da = 6, int 4 (2a) da = 4; together x0 x1 - 0 = 10.
    expected = torch.tensor([[[6.0, 4.0, 0.0], [0.0, 0.0, 3.0]]])
    torch.testing.assert_close(found.maps[""], expected, atol=1e-4, rtol=0)
    assert float(found.error.max()) < 1e-4 and found.steps == 32
    hidden = occlusion(product, x, base, {"": patches_of((3,), None, 1)})[""]
    assert hidden.tolist() == [[[10.0, 8.0, 0.0], [0.0, 0.0, 3.0]]]
    noise = {"": torch.full((1, 3), 0.1)}
    rng = np.random.default_rng(0)
    smooth = smooth_gradients(product, x, noise, KEYS, draws=400, rng=rng)[""]
    torch.testing.assert_close(smooth, slope, atol=0.05, rtol=0)
    assert smooth[0, 1].tolist() == pytest.approx([0.0, 0.0, 3.0])  # no noise moves a constant


def test_squares_of_an_image_are_hidden_once_each() -> None:
    image = torch.arange(2 * 5 * 4, dtype=torch.float32).view(1, 2, 5, 4)
    places = patches_of((2, 5, 4), (1, 2), 2)
    assert len(places) == 3 * 2
    found = occlusion(
        lambda x: x[""].flatten(1).sum(1, keepdim=True),
        {"": image}, {"": torch.zeros(1, 2, 5, 4)}, {"": places},
    )[""]  # fmt: skip
    # The sum of each square, shared by its numbers: both channels of two by two pixels.
    assert found[0, 0, 0, 0, 0] == image[0, :, :2, :2].mean()
    assert found[0, 0, 1, 4, 3] == image[0, :, 4:, 2:].mean()
    assert float(found.sum()) == pytest.approx(float(image.sum()))


def test_too_few_points_are_told_from_enough() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)).requires_grad_(False)
    x, base = {"": 3.0 * torch.randn(20, 6)}, {"": torch.zeros(1, 6)}
    few = integrated_gradients(lambda x: net(x[""]).abs(), x, base, KEYS, complete=0, most_steps=32)
    enough = integrated_gradients(lambda x: net(x[""]).abs(), x, base, KEYS)
    assert float(few.error.max()) > 0.01 >= float(enough.error.max()) and enough.steps > 32


class Fixed(nn.Module):
    """The same parameters, whatever is seen, but for the sum of it."""

    def __init__(self, params: list[float]) -> None:
        super().__init__()
        self.params = nn.Parameter(torch.tensor(params))

    def forward(self, obs: Any) -> Tensor:
        total = obs["x"] if isinstance(obs, dict) else obs
        return self.params + 0.0 * total.flatten(1).sum(1, keepdim=True)


def explained(name: str, obs: Any, action: Any, params: list[float], states: States) -> Tensor:
    function = policy_function(make_algorithm(name, obs, action).policy)
    function = function.with_network(Fixed(params))
    return function.on(states)(inputs_of(function, states))


def test_what_speaks_for_an_action() -> None:
    seen = np.zeros((2, 3), np.float32)
    space = Box(-1, 1, (3,))
    chosen = States(seen, None, np.array([0, 2]))
    # 4 - (1 + 3) / 2, and 3 - (4 + 1) / 2
    scores = explained("dqn", space, Discrete(3), [4.0, 1.0, 3.0], chosen)
    assert scores.tolist() == [[2.0], [0.5]]
    masked = Dict({"x": space, "action_mask": MultiBinary(3)})
    mask = np.array([[1, 1, 0], [1, 0, 1]], np.int8)
    states = States({"x": seen, "action_mask": mask}, None, np.array([0, 2]))
    scores = explained("ppo", masked, Discrete(3), [4.0, 1.0, 3.0], states)
    assert scores.tolist() == [[3.0], [-1.0]]  # 4 - 1, and 3 - 4
    states = States(seen, None, np.array([[1, 0], [0, 1]]))
    scores = explained("ppo", space, MultiDiscrete([2, 2]), [1.0, 2.0, 5.0, 8.0], states)
    assert scores.tolist() == [[1.0, -3.0], [-1.0, 3.0]]
    scores = explained("ppo", space, MultiBinary(2), [1.5, -2.0], states)
    assert scores.tolist() == [[1.5, 2.0], [-1.5, -2.0]]
    # Means 1 and -9, clipped to the bounds -4 and 4, in units of half the range.
    box = States(seen, None, np.zeros((2, 2), np.float32))
    scores = explained("ppo", space, Box(-4, 4, (2,)), [1.0, -9.0, 0.0, 0.0], box)
    assert scores.tolist() == [[0.25, -1.0]] * 2


@pytest.mark.parametrize(
    ("name", "obs", "action", "reason"),
    [
        ("tdmpc2", Box(-1, 1, (2,)), Box(-1, 1, (1,)), "plans every action"),
        ("dreamerv3", Box(-1, 1, (2,)), Discrete(2), "a choice of classes"),
        ("dqn", Discrete(4), Discrete(2), "observations are choices"),
    ],
)
def test_policies_without_a_gradient_are_refused(
    name: str, obs: Any, action: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        policy_function(make_algorithm(name, obs, action).policy)


def test_a_network_that_cuts_the_gradient_is_refused() -> None:
    with pytest.raises(ConfigError, match="passes no gradient"):
        gradients(lambda x: x[""].detach(), {"": torch.ones(1, 2)}, KEYS)


# An image in which one pixel matters


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise in which one pixel says what to do, and what to do."""
    images = (rng.random((count, 1, SIDE, SIDE)) < 0.15).astype(np.uint8) * 255
    on = rng.random(count) < 0.5
    images[:, 0, ROW, COLUMN] = np.where(on, 255, 0)
    return images, on.astype(np.int64)


@pytest.fixture(scope="module")
def planted() -> Planted:
    """Return a policy that learned to act by that pixel, states in which it is on, a mean image."""
    algorithm = make_algorithm("dqn", Box(0, 255, (1, SIDE, SIDE), np.uint8), Discrete(2))
    rng, net = np.random.default_rng(0), algorithm.policy.network
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(150):
        images, action = (torch.from_numpy(x) for x in draw(rng, 64))
        loss = nn.functional.cross_entropy(net(images), action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, action = draw(rng, 100)
    assert (net(torch.from_numpy(images)).argmax(1).numpy() == action).mean() > 0.98
    on = action == 1
    mean = torch.from_numpy(images.mean(0, keepdims=True, dtype=np.float32))
    return policy_function(algorithm.policy), States(images[on], None, action[on]), mean


def hits(heat: Tensor) -> float:
    """Return the share of maps [S, height, width] that are largest at the pixel or beside it."""
    place = heat.flatten(1).argmax(1)
    near = ((place // SIDE - ROW).abs() <= 1) & ((place % SIDE - COLUMN).abs() <= 1)
    return float(near.float().mean())


def test_maps_find_the_planted_pixel(planted: Planted) -> None:
    function, states, mean = planted
    scores, x = function.on(states), inputs_of(function, states)
    base = {"": mean}
    found = integrated_gradients(scores, x, base, KEYS)
    assert float(found.error.max()) <= 0.01
    assert hits(found.maps[""].abs().sum((1, 2))) > 0.95
    hidden = occlusion(scores, x, base, {"": patches_of((1, SIDE, SIDE), (1, 2), 1)})[""]
    assert hits(hidden.sum((1, 2))) > 0.95
    (layer,) = last_feature_maps(function.network)
    ones = torch.ones(len(states), 1)
    cam = grad_cam(scores, x, layer, (SIDE, SIDE), ones, elementwise=True)
    assert cam.shape == (len(states), SIDE, SIDE) and float(cam.min()) >= 0
    assert hits(cam) > 0.8
    # The same features lie elsewhere: averaged gradients cannot tell where they count.
    assert hits(grad_cam(scores, x, layer, (SIDE, SIDE), ones)) < 0.5


def test_random_weights_change_the_maps(planted: Planted) -> None:
    function, states, mean = planted
    states = states.take(slice(0, 16))
    x = inputs_of(function, states)
    ones = torch.ones(len(states), 1)

    def slopes(network: nn.Module) -> Any:
        return gradients(function.with_network(network).on(states), x, KEYS)

    def cam(network: nn.Module) -> Any:
        layer = last_feature_maps(network)[0]
        scores = function.with_network(network).on(states)
        return grad_cam(scores, x, layer, (SIDE, SIDE), ones, elementwise=True)

    def edges(network: nn.Module) -> Any:  # a picture of the image, not of the network
        return x[""].diff(dim=3)

    net, rng = function.network, np.random.default_rng(0)
    for make in (slopes, cam):
        assert abs(sanity.weights_matter(net, make, make(net), rng)) < sanity.DEPENDS
    assert sanity.weights_matter(net, edges, edges(net), rng) == pytest.approx(1.0)
    layers = sanity.cascade(net, slopes, slopes(net), rng)
    assert len(layers) == len(sanity.parts_with_weights(net)) == 3
    assert layers[0][0] == sanity.parts_with_weights(net)[-1][0]  # the output first
    assert abs(layers[-1][1]) < sanity.DEPENDS
    scores, base = function.on(states), {"": mean}
    good = integrated_gradients(scores, x, base, KEYS).maps
    top, chance = sanity.deletion(scores, x, base, good, rng)
    assert top > 2 * chance
    worst = {"": -good[""].abs() + 1e6}  # ranks what matters last
    assert sanity.deletion(scores, x, base, worst, rng)[0] < chance
