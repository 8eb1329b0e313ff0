"""All maps of observations with several entries: numbers, an image, a choice and a mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from assay.explanation.functions import policy_function
from assay.explanation.look import METHODS, Look
from assay.explanation.maps import COMPLETE, Integrated
from assay.explanation.states import Episode, States, Visited
from assay.testing.algorithms import make_algorithm

SPACE = Dict(
    {
        "action_mask": MultiBinary(3),
        "camera": Box(0, 255, (8, 8, 3), np.uint8),
        "gear": Discrete(4),
        "speed": Box(-np.inf, np.inf, (2,)),
    }
)


@pytest.fixture(scope="module")
def look() -> Look:
    rng, count = np.random.default_rng(0), 12
    mask = np.ones((count, 3), np.int8)
    mask[:, 2] = 0
    obs = {
        "action_mask": mask,
        "camera": rng.integers(0, 256, (count, 8, 8, 3), np.uint8),
        "gear": np.arange(count) % 4,
        "speed": np.zeros((count, 2), np.float32),
    }
    obs["speed"][:, 0] = rng.standard_normal(count)  # the second number never changes
    algorithm = make_algorithm("ppo", SPACE, Discrete(3), normalize_obs=True)
    with torch.no_grad():  # a new policy is nearly uniform
        algorithm.net.head.weight *= 100.0
    algorithm.update_obs_stats(obs)
    states = States(obs, None, algorithm.act(obs, None, False).action)
    visited = Visited([Episode(states, np.zeros(count), True, states.take(slice(0, 1)))])
    return Look(policy_function(algorithm.policy), visited, [5], 8, "mean", (), 0)


def test_every_entry_has_its_share(look: Look) -> None:
    shares = {one.name: one.share for one in look.features()}
    assert set(shares) == {"camera", "gear", "speed[0]", "speed[1]"}  # a mask is not looked at
    for method in METHODS:
        known = [share[method] for share in shares.values() if share[method] is not None]
        assert sum(known) == pytest.approx(1.0)
        assert shares["speed[1]"][method] == 0.0
    assert shares["gear"]["gradient"] is None and shares["gear"]["integrated"] is None
    assert (shares["gear"]["occlusion"] or 0.0) > 0.0


def test_maps_are_of_the_telling_states_and_of_others(look: Look) -> None:
    assert look.count == 8 and len(look.scores) == 9
    assert look.maps["integrated"]["camera"].shape == (9, 1, 8, 8, 3)
    assert look.cams["camera"].shape == (9, 8, 8)
    assert [name for name, _, _ in look.parts(0)] == ["speed[0]", "speed[1]"]
    np.testing.assert_allclose(look.parts(0)[0][1], look.states.obs["speed"][0, 0])
    pictures = look.pictures(0)
    seen = pictures["camera: seen"]  # in colours, each pixel a square of 20
    np.testing.assert_array_equal(seen[::20, ::20], look.states.obs["camera"][0])
    assert set(pictures) == {
        f"camera: {name}"
        for name in ("seen", "integrated", "occlusion", "Grad-CAM", "Grad-CAM, element-wise")
    }


def test_the_checks_can_fail(look: Look) -> None:
    assert float(look.integrated.error.max()) <= COMPLETE
    assert len(look.cascade()) >= 3
    found = look.integrated
    look.integrated = Integrated(found.maps, found.error + 0.1, found.steps)
    checks = {check.name: check for check in look.checks()}
    look.integrated = found
    assert not checks["completeness"].passed and checks["random weights: gradient"].passed
