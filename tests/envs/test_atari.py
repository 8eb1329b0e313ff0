"""Atari preprocessing, done twice over."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from assay.core.config import parse
from assay.core.errors import ConfigError, EnvError
from assay.envs.atari import AtariSettings, LifeLossVector
from assay.envs.gym_vector import Batched
from assay.envs.make import make_vector
from assay.envs.sync import Sync

QUIET = AtariSettings(noop_max=0)  # the two implementations draw no-ops differently
CERTAIN = {"repeat_action_probability": 0.0}


@pytest.mark.parametrize(("training", "lives"), [(True, True), (True, False), (False, True)])
def test_both_implementations_agree(training: bool, lives: bool) -> None:
    settings = AtariSettings(noop_max=0, terminal_on_life_loss=lives)
    options: dict = {"env_kwargs": CERTAIN, "atari": settings, "training": training}
    fast = make_vector("ALE/Breakout-v5", 2, **options)
    slow = make_vector("ALE/Breakout-v5", 2, backend="sync", **options)
    assert type(fast.backend) is Batched and type(slow.backend) is Sync
    assert fast.spaces.observation == slow.spaces.observation
    assert fast.spaces.observation == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    rng = np.random.default_rng(0)
    assert np.array_equal(fast.reset(seed=1), slow.reset(seed=1))
    ends = np.zeros(2, int)
    for _ in range(260):
        actions = rng.integers(4, size=2)
        one, two = fast.step(actions), slow.step(actions)
        for a, b in zip(one[:4], two[:4], strict=True):
            assert np.array_equal(a, b)
        done = one[2] | one[3]
        ends += done
        if done.any():
            assert np.array_equal(one[5][done], two[5][done])
    lives_end = training and lives
    assert (ends >= 5).all() if lives_end else (ends <= 2).all() and ends.any()


class Scripted(gym.vector.VectorEnv):
    """Environment 0 keeps its lives, 1 loses one, 2 loses its last: a new game begins."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 3
    single_observation_space = gym.spaces.Box(0, 255, (1,), np.uint8)
    single_action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((3, 1), np.uint8), {"lives": np.array([3, 3, 1])}

    def step(self, actions):
        obs = np.array([[10], [11], [12]], np.uint8)
        info = {"lives": np.array([3, 2, 3]), "final_obs": np.array([[90], [91], [92]], np.uint8)}
        return obs, np.zeros(3), np.array([False, False, True]), np.zeros(3, bool), info


def test_lost_lives_and_finished_games_in_one_step() -> None:
    envs = make_vector(LifeLossVector(Scripted()))
    envs.reset(seed=0)
    obs, _, terminated, _, _, final = envs.step(np.zeros(3, np.int64))
    assert terminated.tolist() == [False, True, True]
    assert obs.tolist() == [[10], [11], [12]]
    assert final[1:].tolist() == [[11], [92]]
    assert envs.step(np.zeros(3, np.int64))[2].tolist() == [False, False, True]


def test_a_game_continues_after_a_lost_life() -> None:
    envs = make_vector("ALE/Breakout-v5", 1, backend="sync", env_kwargs=CERTAIN, atari=QUIET)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    left = []
    while len(left) < 6:
        if envs.step(rng.integers(4, size=1))[2][0]:
            left.append(envs.backend.group.envs[0].unwrapped.ale.lives())
    assert left == [4, 3, 2, 1, 5, 4]
    # A seed starts a new game, whatever the state of the old one.
    envs.reset(seed=0)
    assert envs.backend.group.envs[0].unwrapped.ale.lives() == 5


@pytest.mark.parametrize("backend", ["vector", "sync"])
@pytest.mark.parametrize("training", [True, False])
def test_rewards_are_clipped_in_training_only(backend: str, training: bool) -> None:
    options: dict = {"backend": backend, "training": training}
    envs = make_vector("MsPacmanNoFrameskip-v4", 1, **options)
    envs.reset(seed=0)
    rewards = [float(envs.step(np.array([3]))[1][0]) for _ in range(120)]
    assert max(rewards) == (1.0 if training else 10.0)


@pytest.mark.parametrize("backend", ["vector", "sync"])
def test_old_and_new_ids_and_fresh_arrays(backend: str) -> None:
    for name in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        envs = make_vector(name, 2, backend=backend)
        first = envs.reset(seed=0)
        kept = first.copy()
        results = [envs.step(np.zeros(2, np.int64))[0] for _ in range(6)]
        assert first.shape == (2, 4, 84, 84) and first.dtype == np.uint8
        assert np.array_equal(first, kept)
        # Stacked in time: the newest image is the last.
        assert np.array_equal(results[4][:, 1:], results[5][:, :3])


def test_same_seed_same_game() -> None:
    def run(seed: int) -> list[bytes]:
        envs = make_vector("ALE/Pong-v5", 2)
        obs = [envs.reset(seed=seed)]
        obs += [envs.step(np.array([2, 3]))[0] for _ in range(30)]
        return [array.tobytes() for array in obs]

    assert run(1) == run(1) != run(2)


def test_settings() -> None:
    small = AtariSettings(size=42, frame_stack=2)
    for backend in ("vector", "sync"):
        envs = make_vector("ALE/Pong-v5", 1, backend=backend, atari=small)
        assert envs.reset(seed=0).shape == (1, 2, 42, 42)
    raw = make_vector("ALE/Pong-v5", 1, atari=AtariSettings(preprocess=False))
    assert raw.reset(seed=0).shape == (1, 210, 160, 3)
    ram = make_vector("ALE/Pong-v5", 1, env_kwargs={"obs_type": "ram"})
    assert ram.reset(seed=0).shape == (1, 128)
    with pytest.raises(EnvError, match="frameskip=2"):
        make_vector("ALE/Pong-v5", 1, env_kwargs={"frameskip": 2})
    with pytest.raises(ConfigError, match="frame_stack"):
        parse(AtariSettings, {"frame_stak": 3}, what="atari")


def test_the_shared_metadata_stays_clean(monkeypatch) -> None:
    monkeypatch.setattr(gym.vector.VectorEnv, "metadata", {})
    envs = make_vector("ALE/Pong-v5", 1)
    assert gym.vector.VectorEnv.metadata == {}
    assert envs.backend.mode is AutoresetMode.SAME_STEP


def test_lives_are_not_saved() -> None:
    envs = make_vector("ALE/Pong-v5", 1, backend="sync")
    envs.reset(seed=0)
    assert envs.get_state() is None
