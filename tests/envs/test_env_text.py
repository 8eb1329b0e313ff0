"""Texts in observations are left out, embedded or refused."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_zoo import Constant
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import assay
from assay.core.errors import AssayError, EnvError, SpaceError
from assay.envs.checks import check_env
from assay.envs.make import make_vector
from assay.envs.space_codec import space_from_state, space_to_state
from assay.envs.spaces import BadObservationError, ObservationMap
from assay.envs.text import TEXT, embed, is_text, plain_text
from assay.loops.events import CheckpointSaved
from assay.testing.algorithms import assert_same_run

POINT = spaces.Box(-1, 1, (2,), np.float32)
MIXED = spaces.Dict({"point": POINT, "order": spaces.Text(40)})
PAIR = spaces.Tuple((spaces.Text(40), POINT, spaces.Dict({"a": spaces.Text(9)})))
X = np.array([0.5, -0.5], np.float32)
RAW = {"point": X, "order": "Go left, then right!"}
QUICK: dict[str, Any] = {
    "env_steps": 128, "num_envs": 2, "horizon": 16, "minibatch_size": 16, "hidden": (8,),
    "eval_episodes": 2, "checkpoint_every": 32, "sinks": (), "compile": False,
    "max_episode_steps": 9,
}  # fmt: skip


def mixed(order: Any = RAW["order"]) -> Constant:
    return Constant(MIXED, {"point": X, "order": order})


class Foreign(spaces.Space[str]):
    """A space of strings as packages have them: it cannot be compared, sent or saved."""

    def __init__(self) -> None:
        super().__init__(dtype=str)
        self.trap = lambda: None

    def __eq__(self, other: Any) -> bool:
        raise AttributeError("order_placeholder")


def test_the_words_and_their_order_count() -> None:
    vectors = [embed(text, 64) for text in ("go left", "GO, left!", "left go", "go", "")]
    assert np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[3])
    assert [round(float(np.linalg.norm(v)), 5) for v in vectors] == [1, 1, 1, 1, 0]
    # crc32("go") = 0xb6689356 is even, so -1; 0xb6689356 >> 1 = 0x5b3449ab, and 0xb % 8 = 3
    assert embed("go", 8).tolist() == [0, 0, 0, -1, 0, 0, 0, 0]


def test_texts_are_left_out_by_default() -> None:
    envs = make_vector(mixed, 2)
    assert envs.spaces.observation == spaces.Dict({"point": POINT})
    assert envs.observations.left_out == ("order",)
    assert envs.reset(seed=0)["point"].tolist() == [[0.5, -0.5]] * 2
    pair = ObservationMap(PAIR, text=0)
    assert (list(pair.space), pair.left_out) == (["1"], ("0", "2/a"))
    assert pair.one(("x", X, {"a": "y"}))["1"].tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_texts_become_arrays(backend: Any) -> None:
    with make_vector(mixed, 2, backend=backend, embed_text=16) as envs:
        assert envs.observations.left_out == ()
        obs = envs.reset(seed=0)
        assert np.array_equal(obs["order"], [embed(RAW["order"], 16)] * 2)
        assert envs.spaces.observation["order"] == spaces.Box(-1, 1, (16,), np.float32)
        assert np.array_equal(envs.step(np.zeros(2, np.int64))[0]["order"], obs["order"])


def test_vector_environments_have_texts_too() -> None:
    obs = make_vector(SyncVectorEnv([mixed] * 2), embed_text=16).reset(seed=0)
    assert np.array_equal(obs["order"], [embed(RAW["order"], 16)] * 2)


def test_an_observation_of_text_alone_needs_the_setting() -> None:
    bare = partial(Constant, spaces.Text(9), "go")
    with pytest.raises(SpaceError, match=r"text alone.*\nSet embed_text"):
        make_vector(bare)
    assert np.array_equal(make_vector(bare, embed_text=8).reset(seed=0), [embed("go", 8)])


def test_a_text_that_is_none_is_named() -> None:
    with pytest.raises(EnvError, match="entry 'order' of the observation is a int, not a string"):
        make_vector(partial(mixed, 3), embed_text=8).reset(seed=0)


def test_the_setting_is_refused_where_there_is_no_text() -> None:
    for env in ("CartPole-v1", partial(Constant, POINT, X)):
        with pytest.raises(SpaceError, match=r"embed_text=8, but .* has no text"):
            make_vector(env, embed_text=8)


def test_who_has_no_use_for_texts_refuses_them() -> None:
    with pytest.raises(SpaceError, match="Entry 'order' of the observation space is a Text"):
        ObservationMap(MIXED)
    with pytest.raises(BadObservationError):
        ObservationMap(MIXED, text=8).one({"point": X, "order": None})


@pytest.mark.parametrize("backend", ["sync", "processes"])
def test_strings_of_a_foreign_space_are_texts(backend: Any) -> None:
    assert is_text(Foreign()) and is_text(spaces.Text(3)) and not is_text(POINT)
    space = spaces.Dict({"point": POINT, "order": Foreign()})
    with make_vector(partial(Constant, space, RAW), 2, backend=backend, embed_text=8) as envs:
        assert envs.reset(seed=0)["order"].shape == (2, 8)
    assert plain_text(POINT) is POINT
    saved = json.loads(json.dumps(space_to_state(spaces.Tuple([Foreign()]))))
    assert space_from_state(saved) == spaces.Tuple([TEXT])


@pytest.mark.parametrize("width", [0, 8])
def test_a_run_trains_resumes_and_acts(width: int, tmp_path: Path) -> None:
    settings = QUICK | {"embed_text": width}

    def stop(event: Any) -> Any:
        return assay.STOP if isinstance(event, CheckpointSaved) else None

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        whole = assay.train("ppo", mixed, root=tmp_path, name="whole", **settings)
    said = [str(one.message) for one in seen if "text" in str(one.message)]
    assert len(said) == (width == 0)
    assert width or "'order', which is left out. Set embed_text=64" in said[0]
    parts = assay.train("ppo", mixed, root=tmp_path, name="parts", callbacks=[stop], **settings)
    assert_same_run(whole.path, assay.resume(parts.path, env=mixed).path)
    agent = whole.agent()
    assert agent.act(RAW) in (0, 1)
    batch = {"point": np.stack([X, X]), "order": [RAW["order"]] * 2}
    assert agent.act(batch).shape == (2,)
    assert whole.evaluate(2).lengths.tolist() == [9, 9]
    if width:
        with pytest.raises(AssayError, match="not a string"):
            agent.act({"point": X, "order": 1})


def test_the_check_says_what_is_left_out() -> None:
    results = {result.name: result for result in check_env(mixed, steps=20)}
    assert results["spaces"].ok and "texts are left out: order" in results["spaces"].detail
    assert "embed_text" in (results["spaces"].fix or "")
