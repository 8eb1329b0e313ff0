"""The environments that algorithms are tested on have the answers they are said to have."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from assay.envs.env_snapshot import load_env_state, save_env_state
from assay.testing.algorithms import ACTION_SPACES
from assay.testing.envs import (
    CONTEXTS,
    Corridor,
    Counting,
    Drifting,
    Identity,
    Reach,
    Recall,
    show,
)

SPACES = {name: space for group in ACTION_SPACES.values() for name, space in group.items()}
ENVS: dict[str, Any] = {name: partial(Identity, space) for name, space in SPACES.items()}
ENVS |= {kind: partial(Identity, observe=kind) for kind in ("discrete", "image", "dict")}
ENVS |= {"corridor": Corridor, "reach": partial(Reach, 2), "recall": Recall, "counting": Counting}
ENVS |= {"drifting": Drifting, "drifting_discrete": partial(Drifting, True)}


def play(env: gym.Env, policy: Any, seed: int = 0, episodes: int = 1) -> float:
    """Return the mean return of `policy(obs)`."""
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total += reward
            over = terminated or truncated
    return total / episodes


@pytest.mark.parametrize("name", ENVS)
def test_follows_the_interface(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a box is not symmetric is the point
        check_env(ENVS[name](), skip_render_check=True)


@pytest.mark.parametrize("name", [n for n in ENVS if n != "counting"])
def test_saves_itself(name: str) -> None:
    if name.startswith("drifting"):
        assert save_env_state(ENVS[name]()) is None
        return
    one, two = ENVS[name](), ENVS[name]()
    actions = one.action_space
    actions.seed(0)
    one.reset(seed=1)
    one.step(actions.sample())
    load_env_state(two, save_env_state(one))  # type: ignore[arg-type]
    for _ in range(30):
        action = actions.sample()
        results = [env.step(action) for env in (one, two)]
        assert repr(results[0]) == repr(results[1])
        if results[0][2] or results[0][3]:
            observations = [env.reset() for env in (one, two)]
            assert repr(observations[0]) == repr(observations[1])


class TestIdentity:
    @pytest.mark.parametrize("name", SPACES)
    @pytest.mark.parametrize("masked", [False, True])
    def test_the_right_answer_is_worth_one(self, name: str, masked: bool) -> None:
        space = SPACES[name]
        if masked and isinstance(space, gym.spaces.Box):
            pytest.skip("no masks")
        env = Identity(space, "discrete", masked=masked)
        assert play(env, lambda context: env.answers[context]) == 8.0
        wrong = play(Identity(space, "discrete"), lambda c: env.answers[(c + 1) % CONTEXTS])
        assert wrong < 6.0

    @pytest.mark.parametrize("observe", ["vector", "discrete", "image"])
    def test_an_observation_shows_the_context(self, observe: Any) -> None:
        seen = {np.asarray(show(context, observe)).tobytes() for context in range(CONTEXTS)}
        assert len(seen) == CONTEXTS

    def test_each_half_of_a_dict_shows_half(self) -> None:
        shown = [show(context, "dict") for context in range(CONTEXTS)]
        halves = [{o[key].tobytes() for o in shown} for key in ("image", "vector")]
        assert [len(half) for half in halves] == [2, 2]
        assert len({tuple(v.tobytes() for v in o.values()) for o in shown}) == CONTEXTS

    @pytest.mark.parametrize("name", ["discrete", "multi_discrete_table", "multi_binary"])
    def test_what_the_mask_forbids_is_an_error(self, name: str) -> None:
        env = Identity(SPACES[name], masked=True)
        env.action_space.seed(0)
        allowed = forbidden = 0
        for seed in range(40):
            env.reset(seed=seed)
            try:
                env.step(env.action_space.sample())
                allowed += 1
            except ValueError as error:
                assert "forbids" in str(error)
                forbidden += 1
        assert allowed and forbidden

    def test_an_action_that_is_out_of_bounds_is_an_error(self) -> None:
        env = Identity(SPACES["box"])
        env.reset(seed=0)
        with pytest.raises(ValueError, match="is not in"):
            env.step(np.array([1.0, 1.0], np.float32))


def test_corridor() -> None:
    assert play(Corridor(), lambda obs: 1) == 1.0
    assert play(Corridor(), lambda obs: 0) == 0.2
    assert play(Corridor(), lambda obs: int(obs < 2)) == 0.0  # back and forth until it is cut off


def test_reach() -> None:
    best = play(
        Reach(), lambda o: np.clip(1 + 4 * (o[1:] - o[:1]), -1, 3).astype(np.float32), 0, 50
    )
    still = play(Reach(), lambda o: np.ones(1, np.float32), 0, 50)
    assert -1.5 < best < -0.8 and still < -6


def test_recall_needs_a_memory() -> None:
    cues: list[float] = []

    def remember(obs: np.ndarray) -> int:
        if obs[0]:
            cues.append(obs[0])
        return int(cues[-1] > 0)

    assert play(Recall(), remember, 0, 50) == 1.0
    assert 0.2 < play(Recall(), lambda obs: 0, 0, 50) < 0.8


def test_counting() -> None:
    env = Counting(2, truncates=True)
    assert env.reset(seed=0)[0].tolist() == [0]
    assert [v if isinstance(v, (float, bool)) else v.tolist() for v in env.step(0)[:4]] == [
        [1], 1.0, False, False,
    ]  # fmt: skip
    assert env.step(0)[1:4] == (2.0, False, True)
    assert env.reset()[0].tolist() == [100]
