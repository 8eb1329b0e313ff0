from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer, replay_bytes
from assay.core.errors import ConfigError
from assay.core.types import Spaces, Transition


class Stacks:
    """An environment's stacked frames, with random pixels and episode lengths."""

    def __init__(self, seed: int, shape: tuple[int, ...], stack: int, reset: str, mean: float):
        self.broken = reset == "broken"
        self.rng = np.random.default_rng(seed)
        self.shape, self.stack, self.kind, self.mean = shape, stack, reset, mean
        self.obs = self.reset()

    def frame(self) -> np.ndarray:
        return self.rng.integers(0, 256, self.shape).astype(np.uint8)

    def reset(self) -> np.ndarray:
        first = self.frame()
        if self.kind == "repeat":
            frames = [first] * self.stack
        elif self.kind == "zeros":
            frames = [np.zeros_like(first)] * (self.stack - 1) + [first]
        else:  # every frame is new, as after a random number of no-operations
            frames = [self.frame() for _ in range(self.stack)]
        return np.concatenate(frames)

    def step(self) -> tuple[np.ndarray, np.ndarray, bool, bool]:
        """Return (obs, next_obs, terminated, truncated) and go on."""
        obs = self.obs
        channels = self.shape[0]
        then = np.concatenate([obs[channels:], self.frame()])
        if self.broken and self.rng.random() < 0.3:  # a first frame from nowhere
            then[:channels] = self.frame()
        done = self.rng.random() < 1 / self.mean
        terminated = bool(done and self.rng.random() < 0.5)
        self.obs = self.reset() if done else then
        return obs, then, terminated, done and not terminated


def run(
    reset: str,
    *,
    steps: int,
    mean: float,
    capacity: int = 60,
    num_envs: int = 3,
    stack: int = 4,
    channels: int = 1,
    skip: float = 0.0,
    **options: Any,
) -> tuple[ReplayBuffer, list[list[tuple[np.ndarray, np.ndarray, float]]]]:
    """Fill a buffer and return it with everything added to each environment."""
    shape = (channels, 2, 3)
    spaces = Spaces(Box(0, 255, (stack * channels, 2, 3), np.uint8), Discrete(2))
    rng = np.random.default_rng(1)
    buffer = ReplayBuffer(spaces, capacity, num_envs, rng=rng, frame_stack=stack, **options)
    envs = [Stacks(seed, shape, stack, reset, mean) for seed in range(num_envs)]
    added: list[list[tuple[np.ndarray, np.ndarray, float]]] = [[] for _ in envs]
    chooser = np.random.default_rng(2)
    for t in range(steps):
        valid = chooser.random(num_envs) >= skip
        rows = [
            env.step() if valid[e] else (env.obs, env.obs, False, False)
            for e, env in enumerate(envs)
        ]
        obs, then, terminated, truncated = (np.stack(part) for part in zip(*rows, strict=True))
        reward = np.array([t + 1000 * e for e in range(num_envs)], np.float32)
        action = np.zeros(num_envs, int)
        buffer.add(Transition(obs, action, reward, then, terminated, truncated, valid=valid))
        for e in np.flatnonzero(valid):
            added[e].append((obs[e], then[e], float(reward[e])))
    return buffer, added


def check(buffer: ReplayBuffer, added: list[list[Any]], draws: int = 60) -> None:
    known = {reward: (obs, then) for rows in added for obs, then, reward in rows}
    seen = set()
    for _ in range(draws):
        batch = buffer.sample(32)
        for i, reward in enumerate(batch.reward.tolist()):
            obs, then = known[reward]
            np.testing.assert_array_equal(batch.obs[i].numpy(), obs)
            np.testing.assert_array_equal(batch.next_obs[i].numpy(), then)
            seen.add(reward)
    # Each environment offers an unbroken run of its newest transitions.
    expected = set()
    for e, rows in enumerate(added):
        held = sum(reward // 1000 == e for reward in seen)
        expected |= {reward for *_, reward in rows[len(rows) - held :]}
    assert seen == expected
    assert len(seen) == len(buffer)


@pytest.mark.parametrize("reset", ["repeat", "zeros", "fresh", "broken"])
@pytest.mark.parametrize("steps", [7, 20, 173])
def test_stacks_come_back_byte_for_byte(reset: str, steps: int) -> None:
    check(*run(reset, steps=steps, mean=6))


@pytest.mark.parametrize("stack,channels", [(1, 3), (2, 3), (3, 1)])
def test_other_stacks_and_colour(stack: int, channels: int) -> None:
    check(*run("repeat", steps=90, mean=6, stack=stack, channels=channels))


def test_frames_with_an_axis_of_their_own_are_stored_once(array_bytes: Callable[..., int]) -> None:
    spaces = Spaces(Box(0, 255, (3, 4, 5, 3), np.uint8), Discrete(2))
    rng = np.random.default_rng(0)
    make = partial(ReplayBuffer, spaces, 200, rng=rng)
    assert array_bytes(partial(make, frame_stack=3)) < array_bytes(make) / 2
    buffer, frames = make(frame_stack=3), rng.integers(0, 256, (53, 4, 5, 3)).astype(np.uint8)
    flag, action = np.zeros(1, bool), np.zeros(1, int)
    rows = [(frames[t : t + 3], frames[t + 1 : t + 4], float(t)) for t in range(50)]
    for obs, then, t in rows:
        buffer.add(Transition(obs[None], action, np.array([t]), then[None], flag, flag))
    check(buffer, [rows])


def test_a_grey_image_is_not_a_stack_of_its_rows() -> None:
    spaces = Spaces(Box(0, 255, (8, 8), np.uint8), Discrete(2))
    with pytest.raises(ConfigError, match="frame_stack=4 needs"):
        ReplayBuffer(spaces, 100, rng=np.random.default_rng(0), frame_stack=4)


def test_rows_left_out_give_each_environment_its_own_head() -> None:
    check(*run("repeat", steps=150, mean=8, skip=0.3))


def test_prioritised_frames_are_never_drawn_once_lost() -> None:
    options = PrioritizedOptions()
    check(*run("fresh", steps=173, mean=4, prioritized=options), draws=150)


def test_usual_episodes_fill_the_whole_capacity() -> None:
    buffer, added = run("repeat", steps=400, mean=100, capacity=300, num_envs=3)
    assert len(buffer) == 300
    check(buffer, added, draws=200)


def test_short_episodes_cost_the_oldest_transitions_only() -> None:
    buffer, added = run("fresh", steps=300, mean=2, capacity=300, num_envs=1)
    assert 60 < len(buffer) < 300
    check(buffer, added, draws=200)


def test_observations_that_are_no_stacks_are_stored_all_the_same() -> None:
    spaces = Spaces(Box(0, 255, (4, 2, 2), np.uint8), Discrete(2))
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(spaces, 100, rng=rng, frame_stack=4)
    pixels = rng.integers(0, 256, (50, 2, 1, 4, 2, 2)).astype(np.uint8)
    for t, (obs, then) in enumerate(pixels):
        flag = np.zeros(1, bool)
        reward = np.array([t], np.float32)
        buffer.add(Transition(obs, np.zeros(1, int), reward, then, flag, flag))
    added = [[(obs[0], then[0], float(t)) for t, (obs, then) in enumerate(pixels)]]
    assert 10 <= len(buffer) < 50
    check(buffer, added)


def test_an_observation_of_zeros_at_the_very_start() -> None:
    spaces = Spaces(Box(0, 255, (2, 2, 2), np.uint8), Discrete(2))
    buffer = ReplayBuffer(spaces, 100, rng=np.random.default_rng(0), frame_stack=2)
    zeros, ones = np.zeros((1, 2, 2, 2), np.uint8), np.ones((1, 2, 2, 2), np.uint8)
    flag = np.zeros(1, bool)
    buffer.add(Transition(zeros, np.zeros(1, int), np.zeros(1), ones, flag, flag))
    batch = buffer.sample(4)
    assert not batch.obs.any() and bool((batch.next_obs == 1).all())


def test_frames_of_an_earlier_life_do_not_come_back() -> None:
    buffer, _ = run("fresh", steps=173, mean=4, num_envs=1, capacity=20)
    empty, _ = run("fresh", steps=0, mean=4, num_envs=1, capacity=20)
    buffer.load_state(empty.state())
    zeros, flag = np.zeros((1, 4, 2, 3), np.uint8), np.zeros(1, bool)
    buffer.add(Transition(zeros, np.zeros(1, int), np.zeros(1), zeros, flag, flag))
    batch = buffer.sample(4)
    assert not batch.obs.any() and not batch.next_obs.any()


def test_multi_step_windows_end_in_the_right_frames() -> None:
    buffer, added = run("zeros", steps=40, mean=1e9, num_envs=1, capacity=30, n_step=3, gamma=1.0)
    rows = added[0]
    for _ in range(20):
        batch = buffer.sample(16)
        for i in range(16):
            starts = [t for t, (obs, *_) in enumerate(rows) if (obs == batch.obs[i].numpy()).all()]
            last = min(starts[0] + 2, len(rows) - 1)
            np.testing.assert_array_equal(batch.next_obs[i].numpy(), rows[last][1])


def test_images_beside_vectors() -> None:
    spaces = Spaces(
        Dict({"cam": Box(0, 255, (2, 2, 2), np.uint8), "pos": Box(-9, 9, (2,), np.float32)}),
        Discrete(2),
    )
    buffer = ReplayBuffer(spaces, 50, rng=np.random.default_rng(0), frame_stack=2)
    camera = Stacks(0, (1, 2, 2), 2, "repeat", 5)
    known = {}
    for t in range(120):
        obs, then, terminated, truncated = camera.step()
        pos = np.full((1, 2), t, np.float32)
        step = Transition(
            {"cam": obs[None], "pos": pos},
            np.zeros(1, int),
            np.array([t]),
            {"cam": then[None], "pos": pos + 1},
            np.array([terminated]),
            np.array([truncated]),
        )
        buffer.add(step)
        known[t] = (obs, then)
    batch = buffer.sample(64)
    for i, t in enumerate(batch.reward.int().tolist()):
        np.testing.assert_array_equal(batch.obs["cam"][i].numpy(), known[t][0])
        np.testing.assert_array_equal(batch.next_obs["cam"][i].numpy(), known[t][1])
        assert batch.obs["pos"][i, 0] == t and batch.next_obs["pos"][i, 0] == t + 1


def test_a_million_atari_transitions_need_little_more_than_their_frames() -> None:
    atari = Spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(18))
    frames = 84 * 84 * 1_000_000
    for num_envs in (1, 8):
        needed = replay_bytes(atari, 1_000_000, num_envs, frame_stack=4, prioritized=True)
        assert frames < needed <= 1.1 * frames
    assert replay_bytes(atari, 1_000_000) > 8 * frames


def test_frame_stack_needs_images_of_so_many_frames() -> None:
    rng = np.random.default_rng(0)
    for space in (Box(-1, 1, (4,), np.float32), Box(0, 255, (3, 8, 8), np.uint8)):
        with pytest.raises(ConfigError, match="frame_stack=4 needs uint8 images"):
            ReplayBuffer(Spaces(space, Discrete(2)), 10, rng=rng, frame_stack=4)
    with pytest.raises(ConfigError, match="frame_stack=0"):
        ReplayBuffer(Spaces(space, Discrete(2)), 10, rng=rng, frame_stack=0)
