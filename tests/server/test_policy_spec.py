"""A spec is the same policy whoever writes it down, and says what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_samples import SPECS

from assay.core.errors import SpaceError
from assay.server.errors import Reason, RejectionError
from assay.server.spec import (
    Box,
    PolicySpec,
    canonical,
    first_difference,
    gym_space,
    leaves_of,
    read_spec,
    space_of,
)


def changed(base: str = "nested", **values: Any) -> str:
    return json.dumps(json.loads(SPECS[base].canonical()) | values)


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_survives_its_json(name: str) -> None:
    spec = SPECS[name]
    again = read_spec(spec.canonical())
    assert again == spec
    assert again.hash() == spec.hash()
    assert first_difference(spec, again) is None


def test_the_hash_ignores_order_number_style_and_left_out_defaults() -> None:
    one = read_spec(
        '{"name": "a", "action": {"kind": "discrete", "n": 4}, "algorithm": "ppo",'
        ' "observation": {"kind": "box", "shape": [2], "low": -1.0}, "settings": {"k": 1.0}}'
    )
    other = read_spec(
        '{"observation": {"low": -1, "high": null, "dtype": "float32", "shape": [2],'
        ' "kind": "box"}, "settings": {"k": 1}, "group": null, "algorithm": "ppo",'
        ' "action": {"start": 0, "n": 4, "kind": "discrete"}, "name": "a"}'
    )
    assert one.hash() == other.hash()


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ({"algorithm": "td3"}, 'algorithm is "sac" as registered, "td3" as given'),
        ({"settings": {"gamma": 0.9}}, "settings.gamma is 0.99 as registered, 0.9 as given"),
        ({"settings": {}}, "settings.gamma is 0.99 as registered, missing as given"),
        ({"group": "rack-1"}, 'group is null as registered, "rack-1" as given'),
        ({"bounds": {"high": 0.25}}, "bounds.high is 0.5 as registered, 0.25 as given"),
    ],
)
def test_the_first_difference_is_named(values: dict[str, Any], difference: str) -> None:
    other = read_spec(changed(**values))
    assert other.hash() != SPECS["nested"].hash()
    assert first_difference(SPECS["nested"], other) == difference


def test_true_and_one_differ() -> None:
    one, other = (read_spec(changed(settings={"x": x})) for x in (True, 1))
    assert one.hash() != other.hash()
    assert first_difference(one, other) == "settings.x is true as registered, 1 as given"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "../etc"}, "name='../etc'"),
        ({"name": "a\n"}, "name='a\\n'"),
        ({"action": {"kind": "box", "shape": [2], "low": [1]}}, "low has 1 number; expected 2"),
        ({"action": {"kind": "box", "shape": [2], "low": 1, "high": 0}}, "low is above high"),
        ({"action": {"kind": "dict", "spaces": {}}}, "'dict' found"),
        ({"bounds": {"low": -2}}, "beyond the action space"),
        ({"bounds": {"low": 0.9, "high": 0.1}}, "low is above high"),
        ({"algorithm": None}, "algorithm=None"),
        ({"colour": 1}, "unknown setting 'colour'"),
        ({"observation": {"kind": "box", "shape": [1 << 30, 1 << 30]}}, "bytes a step"),
        ({"observation": {"kind": "box", "shape": [0]}}, "greater than or equal to 1"),
        ({"settings": {"x": "\ud800"}}, "not plain JSON"),
    ],
)
def test_a_bad_spec_is_refused_with_its_value(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RejectionError) as refused:
        read_spec(changed(**values))
    assert refused.value.reason == Reason.BAD_SPEC
    assert words in str(refused.value)


def test_bounds_are_for_boxes() -> None:
    with pytest.raises(RejectionError, match="this action is discrete"):
        read_spec(changed("vector", bounds={"low": 0}))


def test_many_small_parts_cannot_add_up_to_a_huge_step() -> None:
    parts = {f"p{i}": {"kind": "box", "shape": [1 << 20]} for i in range(2)}
    with pytest.raises(RejectionError, match="an observation takes 8388608 bytes"):
        read_spec(changed(observation={"kind": "dict", "spaces": parts}))


@pytest.mark.parametrize(
    "text", ["[1]", "{", "[" * 100_000, b"\xff\xfe", '{"name": NaN}', " " * (2 << 20)]
)
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(RejectionError) as refused:
        read_spec(text)
    assert refused.value.reason == Reason.BAD_SPEC


def test_deep_nesting_is_refused() -> None:
    space: dict[str, Any] = {"kind": "discrete", "n": 2}
    for _ in range(300):
        space = {"kind": "tuple", "spaces": [space]}
    with pytest.raises(RejectionError):
        read_spec(changed(observation=space))


def test_another_schema_is_told_apart_from_a_mistake() -> None:
    with pytest.raises(RejectionError) as refused:
        read_spec(changed(schema=2))
    assert refused.value.reason == Reason.UNSUPPORTED_PROTOCOL


def test_limits_are_the_tighter_of_space_and_bounds() -> None:
    limits = SPECS["nested"].action_limits()
    assert limits is not None
    assert [limit.tolist() for limit in limits] == [[-1.0, 0.0], [0.5, 0.5]]
    assert SPECS["vector"].action_limits() is None


def test_gymnasium_spaces_become_json_and_come_back() -> None:
    space = gym.spaces.Dict(
        {
            "b": gym.spaces.Tuple([gym.spaces.Discrete(3, start=1), gym.spaces.MultiBinary(4)]),
            "a": gym.spaces.Box(np.array([0, -np.inf], np.float32), np.array([1, 5], np.float32)),
        }
    )
    actions = gym.spaces.MultiDiscrete([2, 3])
    spec = PolicySpec(
        name="x", observation=space_of(space), action=space_of(actions), algorithm="ppo"
    )
    read = read_spec(spec.canonical())
    assert (gym_space(read.observation), gym_space(read.action)) == (space, actions)
    leaves = dict(leaves_of(read.observation))
    assert list(leaves) == ["a", "b/0", "b/1"]
    assert leaves["a"] == Box(shape=(2,), low=(0.0, None), high=(1.0, 5.0))
    with pytest.raises(SpaceError, match="Text"):
        space_of(gym.spaces.Text(3))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), plain, max_size=4))
@settings(max_examples=40, deadline=None)
def test_no_plain_json_breaks_the_reader(values: dict[str, Any]) -> None:
    try:
        spec = read_spec(json.dumps(values))
    except (RejectionError, UnicodeEncodeError):
        return
    assert isinstance(spec, PolicySpec)


@given(st.dictionaries(st.text(max_size=3), plain, max_size=4))
@settings(max_examples=40, deadline=None)
def test_settings_keep_their_hash_through_json(settings: dict[str, Any]) -> None:
    try:
        spec = read_spec(changed(settings=settings))
    except RejectionError:
        return
    assert read_spec(spec.canonical()).hash() == spec.hash()
    assert canonical(json.loads(spec.canonical())) == spec.canonical()
