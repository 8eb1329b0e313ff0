"""Datasets for the tests: small, and different in every field."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode

OBS = spaces.Box(-5.0, 5.0, (2,), np.float32)
CHOICE = spaces.Discrete(3, start=2)
PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4, 1), np.uint8),
        "arm": spaces.Dict({"joints": spaces.Box(-1, np.inf, (2,), np.float64)}),
        "gear": spaces.Discrete(3, start=1),
        "lamps": spaces.MultiBinary((2, 2)),
    }
)
THRUST = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 1.0], np.float32))


def play(rng: np.random.Generator, space: Any, action: Any, steps: int) -> Episode:
    """Return an episode of random values of these spaces."""
    space.seed(int(rng.integers(1 << 30)))
    action.seed(int(rng.integers(1 << 30)))
    over = np.arange(steps) == steps - 1
    terminated = over & (steps % 2 == 0)
    frames = [space.sample() for _ in range(steps + 1)]
    return Episode(
        _stack(frames),
        np.array([action.sample() for _ in range(steps)]),
        rng.normal(size=steps),
        terminated,
        over & ~terminated,
        {"log_prob": rng.normal(size=steps).astype(np.float32)},
    )


def _stack(frames: list[Any]) -> Any:
    if isinstance(frames[0], dict):
        return {key: _stack([frame[key] for frame in frames]) for key in frames[0]}
    return np.array(frames)


def sample(count: int = 5, observation: Any = OBS, action: Any = CHOICE, seed: int = 0) -> Dataset:
    """Return episodes of 3, 4, 5, ... steps."""
    rng = np.random.default_rng(seed)
    episodes = [play(rng, observation, action, steps) for steps in range(3, 3 + count)]
    metadata = {"env": "Test-v0", "note": "random"}
    return from_episodes(episodes, observation, action, metadata=metadata, name="the sample")


def parts() -> Dataset:
    """Return episodes of several parts and continuous actions."""
    return sample(3, PARTS, THRUST)


def assert_same(one: Dataset, two: Dataset) -> None:
    """Compare the content of two datasets, field by field."""
    np.testing.assert_array_equal(one.lengths, two.lengths)
    assert one.schema.fields == two.schema.fields
    assert one.schema.observation == two.schema.observation
    assert one.schema.action == two.schema.action
    for first, second in zip(one.episodes(), two.episodes(), strict=True):
        ours, theirs = first.columns(), second.columns()
        assert ours.keys() == theirs.keys()
        for name, rows in ours.items():
            np.testing.assert_array_equal(rows, theirs[name], strict=True)
