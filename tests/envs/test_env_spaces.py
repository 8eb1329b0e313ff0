"""Canonical spaces and the way to them."""

from __future__ import annotations

import doctest
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from env_zoo import Constant
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import assay.envs.spaces
from assay.core.errors import EnvError, SpaceError
from assay.envs.make import make_vector
from assay.envs.spaces import ActionMap, ObservationMap

IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)


def test_examples() -> None:
    assert doctest.testmod(assay.envs.spaces).failed == 0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3,), np.float32),
        IMAGE,
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
    ],
)
def test_canonical_spaces_are_left_alone(space: gym.Space) -> None:
    assert ObservationMap(space).space is space
    if space is not IMAGE:
        assert ActionMap(space).space is space and ActionMap(space).to_env is None


NESTED = spaces.Dict(
    {
        "arm": spaces.Dict(
            {
                "joints": spaces.Box(-2, 2, (2,), np.float64),
                "grip": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary((2, 2)))),
            }
        ),
        "eye": IMAGE,
        "level": spaces.Box(0, 9, (), np.int32),
        "kind": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 0], [0, 0]]),
    }
)
RAW = {
    "arm": {
        "joints": np.array([0.5, -1.5]),
        "grip": (np.int64(7), np.array([[0, 1], [1, 0]], np.int8)),
    },
    "eye": np.array([[1, 2], [3, 4]], np.uint8),
    "level": np.array(3, np.int32),
    "kind": np.array([[2, 3], [4, 5]]),
}
FLAT = {
    "arm/grip/0": (2, np.int64),
    "arm/grip/1": ([0, 1, 1, 0], np.int8),
    "arm/joints": ([0.5, -1.5], np.float32),
    "eye": ([[1, 2], [3, 4]], np.uint8),
    "kind": ([1, 3, 4, 5], np.int64),
    "level": ([3.0], np.float32),
}


@pytest.mark.parametrize("batched", [False, True])
def test_nested_spaces_become_a_flat_dict(batched: bool) -> None:
    factories = [lambda: Constant(NESTED, RAW)] * 2
    envs = make_vector(SyncVectorEnv(factories)) if batched else make_vector(factories[0], 2)
    assert envs.spaces.observation == spaces.Dict(
        {
            "arm/grip/0": spaces.Discrete(3),
            "arm/grip/1": spaces.MultiBinary(4),
            "arm/joints": spaces.Box(-2, 2, (2,), np.float32),
            "eye": IMAGE,
            "kind": spaces.MultiDiscrete([3, 4, 5, 6]),
            "level": spaces.Box(0, 9, (1,), np.float32),
        }
    )
    for obs in (envs.reset(seed=0), envs.step(np.zeros(2, np.int64))[0]):
        assert obs.keys() == FLAT.keys()
        for key, (value, dtype) in FLAT.items():
            assert obs[key].dtype == dtype, key
            assert obs[key].tolist() == [value, value], key
            assert envs.spaces.observation[key].contains(
                int(obs[key][0]) if key == "arm/grip/0" else obs[key][0]
            )


def test_one_raw_observation_becomes_a_batch_of_one() -> None:
    obs = ObservationMap(NESTED).one(RAW)
    assert obs["arm/joints"].tolist() == [[0.5, -1.5]]
    masked = ObservationMap(spaces.Discrete(3), mask_size=2).one(1)
    assert masked["obs"].tolist() == [1] and masked["action_mask"].tolist() == [[1, 1]]


def test_a_tuple_at_the_top_has_numbered_keys() -> None:
    space = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,))))
    assert list(ObservationMap(space).space) == ["0", "1"]


def test_a_mask_inside_the_observation_is_left_there_as_int8() -> None:
    space = spaces.Dict(
        observation=spaces.Box(0, 1, (1,)), action_mask=spaces.Box(0, 1, (2,), np.float32)
    )
    raw = {"observation": np.zeros(1, np.float32), "action_mask": np.array([0, 1], np.float32)}
    envs = make_vector(lambda: Constant(space, raw))
    assert envs.spaces.observation["action_mask"] == spaces.MultiBinary(2)
    mask = envs.reset(seed=0)["action_mask"]
    assert mask.tolist() == [[0, 1]] and mask.dtype == np.int8


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Graph(spaces.Box(0, 1), None), "Graph"),
        (spaces.Dict(words=spaces.Sequence(spaces.Discrete(2))), "'words'.*Sequence"),
    ],
)
def test_unsupported_observations_are_refused(space: gym.Space, name: str) -> None:
    with pytest.raises(SpaceError, match=name) as caught:
        make_vector(lambda: Constant(space, None))
    assert "MultiBinary" in caught.value.fix


def test_names_that_clash_are_refused() -> None:
    part = spaces.Discrete(2)
    with pytest.raises(SpaceError, match="'a/b'"):
        ObservationMap(spaces.Dict({"a": spaces.Dict(b=part), "a/b": part}))
    with pytest.raises(SpaceError, match="no entries"):
        ObservationMap(spaces.Dict())


@pytest.mark.parametrize(
    ("space", "given", "arrives"),
    [
        (spaces.Discrete(3, start=4), np.array([0, 2]), [4, 6]),
        (
            spaces.MultiDiscrete([[2, 2], [3, 3]], start=[[0, 0], [5, 0]]),
            np.array([[0, 1, 2, 0], [1, 1, 0, 2]]),
            [[[0, 1], [7, 0]], [[1, 1], [5, 2]]],
        ),
        (spaces.MultiBinary((2, 1)), np.array([[0, 1], [1, 1]], np.int8), [[[0], [1]], [[1], [1]]]),
        (
            spaces.Box(-1, 1, (2, 1), np.float64),
            np.array([[0.5, 1], [0, -1]], np.float32),
            [[[0.5], [1]], [[0], [-1]]],
        ),
        (spaces.Box(-1, 1, (1,)), np.array([[0.25], [1]], np.float32), [[0.25], [1]]),
    ],
)
def test_actions_arrive_in_the_environments_own_terms(
    space: gym.Space, given: np.ndarray, arrives: list
) -> None:
    made = [Constant(spaces.Discrete(2), 0, space) for _ in range(2)]
    pending = list(made)
    envs = make_vector(lambda: pending.pop(0), 2)
    assert len(envs.spaces.action.shape) <= 1
    envs.reset(seed=0)
    before = given.copy()
    envs.step(given)
    assert [env.actions[0].tolist() for env in made] == arrives
    assert all(env.actions[0].dtype == space.dtype for env in made)
    assert np.array_equal(given, before)  # though the environments overwrite what they get


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (spaces.Dict(a=spaces.Discrete(2)), "Dict"),
        (spaces.Tuple((spaces.Discrete(2),)), "Tuple"),
        (spaces.Box(0, 5, (2,), np.int64), "int64"),
    ],
)
def test_unsupported_actions_are_refused(space: gym.Space, match: str) -> None:
    with pytest.raises(SpaceError, match=match):
        make_vector(lambda: Constant(spaces.Discrete(2), 0, space))


@pytest.mark.parametrize(
    ("space", "obs", "match"),
    [
        (spaces.Box(0, 1, (2,)), np.float32(1), r"shape \(\).*shape \(2,\)"),
        (IMAGE, np.full((2, 2), 0.5), "float64.*uint8"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, "lacks an entry.*a"),
    ],
)
def test_observations_that_do_not_fit_are_refused(space, obs, match) -> None:
    envs = make_vector(lambda: Constant(space, obs), 2)
    with pytest.raises(EnvError, match=match) as caught:
        envs.reset(seed=0)
    assert "Environment 0" in caught.value.message


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_actions_of_other_floats_stay_in_the_environments_box(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        low = rng.normal(size=2) * 10.0 ** rng.integers(-2, 4)
        high = low + rng.exponential(size=2) + 1e-2
        source = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
        actions = ActionMap(source)
        assert actions.to_env is not None and isinstance(actions.space, spaces.Box)
        for edge in (actions.space.low, actions.space.high):
            assert source.contains(actions.to_env(edge[None])[0]), source
        np.testing.assert_allclose(actions.space.low, source.low, rtol=2e-7)
        np.testing.assert_allclose(actions.space.high, source.high, rtol=2e-7)


def test_bounds_that_float32_does_not_have() -> None:
    wide = ActionMap(spaces.Box(-1e300, np.inf, (1,), np.float64)).space
    assert wide.low.tolist() == [-np.inf] and wide.high.tolist() == [np.inf]
    narrow = ActionMap(spaces.Box(0.1, 0.1 + 1e-12, (1,), np.float64)).space
    assert narrow.low == narrow.high == np.float32(0.1)


def test_mask_sizes() -> None:
    assert ActionMap(spaces.Discrete(4)).mask_size == 4
    assert ActionMap(spaces.MultiDiscrete([2, 3])).mask_size == 5
    assert ActionMap(spaces.MultiBinary(3)).mask_size == 3
    assert ActionMap(spaces.Box(-1, 1, (2,))).mask_size is None


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete(np.array([[2, 3], [3, 2]]), start=np.array([[1, 1], [0, -1]])),
        spaces.MultiBinary([2, 2]),
        spaces.Box(0.0, 3.0, (2, 2), np.float64),
        spaces.Box(-1.0, 1.0, (3,), np.float32),
    ],
)
def test_from_env_undoes_to_env(space: gym.Space) -> None:
    space.seed(0)
    actions = ActionMap(space)
    raw = np.stack([space.sample() for _ in range(20)])
    canonical = actions.from_env(raw)
    assert all(actions.space.contains(row) for row in canonical)
    back = canonical if actions.to_env is None else actions.to_env(canonical)
    np.testing.assert_allclose(back, raw, rtol=1e-6)


def test_fields_are_named_as_in_flat_files() -> None:
    assert list(ObservationMap(IMAGE).fields("obs")) == ["obs"]
    nested = spaces.Dict({"arm": spaces.Dict({"joints": IMAGE}), "gear": spaces.Discrete(3)})
    fields = ObservationMap(nested, mask_size=4).fields("next_obs")
    assert list(fields) == ["next_obs/arm/joints", "next_obs/gear", "next_obs/action_mask"]
    assert fields["next_obs/action_mask"].shape == (4,)


def test_observations_are_restored_as_the_environment_gave_them() -> None:
    space = spaces.Dict(
        {
            "grid": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 2], [3, 4]]),
            "kind": spaces.Discrete(4, start=-1),
        }
    )
    raw = {"grid": np.array([[[1, 4], [7, 9]], [[3, 2], [3, 4]]]), "kind": np.array([-1, 2])}
    observations = ObservationMap(space)
    seen = observations.batch(raw)
    assert seen["grid"].tolist() == [[0, 2, 4, 5], [2, 0, 0, 0]]
    for leaf in observations.leaves:
        back = leaf.restore(seen[leaf.key])
        assert back.dtype == raw[leaf.key].dtype
        np.testing.assert_array_equal(back, raw[leaf.key])
