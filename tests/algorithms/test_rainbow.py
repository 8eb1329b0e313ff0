"""Rainbow: the contract, its numbers by hand, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from families import (
    ACTIONS,
    QUICK,
    SMALL,
    STATES,
    Learning,
    four_steps,
)
from gymnasium import spaces

from assay.algorithms.rainbow import Rainbow
from assay.core.errors import ConfigError
from assay.core.types import Batch
from assay.networks.noisy import NoisyLinear
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Case,
    make_algorithm,
)
from assay.testing.envs import Corridor

SETTINGS = SMALL | {"streams": (16,), "atoms": 11}


class TestContract(AlgorithmContract):
    algorithm = "rainbow"
    settings = SETTINGS

    def cases(self) -> Iterator[Case]:
        yield Case("discrete", spaces.Discrete(4))
        yield Case("discrete_from_2_masked", spaces.Discrete(3, start=2), masked=True)
        yield Case("sees_image", spaces.Discrete(4), "image")
        yield Case("sees_dict_masked", spaces.Discrete(4), "dict", masked=True)


# Probabilities of the returns 0, 1 and 2 by state and action, and their means.
ONLINE = [
    [(0.25, 0.25, 0.5), (0.5, 0.25, 0.25)],  # state 0: 1.25, 0.75
    [(0.5, 0.25, 0.25), (0.25, 0.25, 0.5)],  # state 1: 0.75, 1.25
]
TARGET = [
    [(0.5, 0.25, 0.25), (0.25, 0.25, 0.5)],  # state 0: 0.75, 1.25
    [(0.25, 0.5, 0.25), (0.5, 0.25, 0.25)],  # state 1: 1, 0.75
]
# Where the target's mass of the action that the online network prefers comes to lie.
PROJECTED = [
    # (0.5, 0.25, 0.25) at 0.5, 1, 1.5
    (0.25, 0.625, 0.125),
    # terminated: all at 1.5
    (0.0, 0.5, 0.5),
    # truncated, so bootstrapped: (0.5, 0.25, 0.25) at 0, 0.5, 1
    (0.625, 0.375, 0.0),
    # gamma^k of a longer return: (0.5, 0.25, 0.25) at 1, 1.25, 1.5
    (0.0, 0.8125, 0.1875),
]
TAKEN = [ONLINE[0][0], ONLINE[0][1], ONLINE[1][0], ONLINE[1][1]]
DIVERGENCES = [
    sum(m * math.log(m / p) for m, p in zip(target, taken, strict=True) if m > 0)
    for target, taken in zip(PROJECTED, TAKEN, strict=True)
]


def table(sigma: float = 0.0, **settings: Any) -> Rainbow:
    """Return Rainbow on two states with the distributions above and noise of a given size."""
    plain = {"hidden": (), "streams": (), "atoms": 3, "v_min": 0.0, "v_max": 2.0, "batch_size": 4}
    algorithm = make_algorithm("rainbow", STATES, ACTIONS, **(plain | settings))
    for network, mass in ((algorithm.q, ONLINE), (algorithm.target, TARGET)):
        head, logits = network[1], torch.tensor(mass).log()  # [state, action, atom]
        with torch.no_grad():
            # V + A - mean A is the logits when V is their mean over actions.
            head.advantage[0].weight.copy_(logits.reshape(2, 6).T)
            head.value[0].weight.copy_(logits.mean(1).T)
            for layer in (head.advantage[0], head.value[0]):
                layer.bias.zero_()
                layer.weight_sigma.fill_(sigma)
                layer.bias_sigma.fill_(sigma)
    return algorithm


def items() -> Batch:
    return four_steps([0.5, 1.5, 0.0, 1.0], weight=[1.0, 0.5, 0.25, 0.0], index=[7, 8, 9, 3])


def noisy_layers(algorithm: Rainbow) -> list[NoisyLinear]:
    layers = [m for net in (algorithm.q, algorithm.target) for m in net.modules()]
    return [layer for layer in layers if isinstance(layer, NoisyLinear)]


def test_loss_by_hand() -> None:
    algorithm, batch = table(), items()
    loss, metrics = algorithm._loss(algorithm.replay_tensors(batch))
    assert metrics["priority"].tolist() == pytest.approx(DIVERGENCES, rel=1e-5)
    weighed = DIVERGENCES[0] + DIVERGENCES[1] / 2 + DIVERGENCES[2] / 4
    assert loss.item() == pytest.approx(weighed / 4, rel=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(1.0)


def test_dueling_by_hand() -> None:
    algorithm = table()
    head = algorithm.q[1]
    with torch.no_grad():
        head.value[0].weight.copy_(torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
        head.advantage[0].weight.copy_(torch.arange(12.0).reshape(6, 2))
    # State 0: V = (1, 2, 3); A = (0, 2, 4) and (6, 8, 10), whose mean over actions is (3, 5, 7)
    assert algorithm.q(torch.tensor([0])).tolist() == [[[-2.0, -1.0, 0.0], [4.0, 5.0, 6.0]]]


def test_priorities_are_the_divergences_before_the_step() -> None:
    algorithm, replay = table(lr=0.1), CannedReplay(items())
    algorithm.clock.env_steps = 500  # of 1000
    algorithm.update(replay)
    assert replay.calls == [(4, pytest.approx(0.7))]
    [(index, errors)] = replay.priorities
    assert index == [7, 8, 9, 3]
    assert errors == pytest.approx(DIVERGENCES, rel=1e-5)
    algorithm.clock.env_steps = 1000
    algorithm.update(replay)
    assert replay.calls[1] == (4, 1.0)


def test_asks_for_what_it_was_told() -> None:
    needs = table(n_step=5, priority_alpha=0.7, gamma=0.9).needs
    assert (needs.n_step, needs.prioritized, needs.gamma) == (5, 0.7, 0.9)
    needs = table().needs
    assert (needs.n_step, needs.prioritized) == (3, 0.5)  # the paper's


def test_noise_is_new_in_every_update_of_both_networks() -> None:
    algorithm = table(lr=0.0)
    layers = noisy_layers(algorithm)
    assert len(layers) == 4  # two streams in each network
    for _ in range(3):
        before = [layer.eps_out.clone() for layer in layers]
        algorithm.update(CannedReplay(items()))
        assert not any(torch.equal(a, b.eps_out) for a, b in zip(before, layers, strict=True))
    assert not torch.equal(layers[0].eps_out, layers[2].eps_out)


def test_noise_explores_and_is_silent_in_evaluation() -> None:
    algorithm, obs = table(sigma=20.0), np.array([0, 1])
    explored = {tuple(algorithm.act(obs, None, True).action) for _ in range(50)}
    assert len(explored) > 1
    assert {tuple(algorithm.act(obs, None, False).action) for _ in range(50)} == {(0, 1)}
    # Learning has its noise again.
    assert all(layer.noise_enabled for layer in noisy_layers(algorithm))


def test_encoder_is_plain() -> None:
    observation = spaces.Box(-1.0, 1.0, (3,), np.float32)
    algorithm = make_algorithm("rainbow", observation, ACTIONS)
    assert not any(isinstance(m, NoisyLinear) for m in algorithm.q[0].modules())
    assert sum(isinstance(m, NoisyLinear) for m in algorithm.q[1].modules()) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.01, "target_every": 5}, "target_every=5 has no effect"),
        ({"v_min": 2.0}, "v_min=2 and v_max=2"),
        ({"priority_beta": "linear:0.4:1.5"}, "priority_beta=.*reaches 1.5"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table(**settings)


class TestLearns(Learning):
    algorithm = "rainbow"
    quick = QUICK | {"streams": (), "atoms": 21, "v_min": 0.0}
    del quick["epsilon"]  # noise explores
    steps = (1200, 1600)  # half of them is not always enough here
    highest_returns = (8.0, None)

    def test_to_look_ahead(self) -> None:  # it has no options
        assert self.learns(Corridor, self.steps[1], 1.0, 2.0, self.quick)
