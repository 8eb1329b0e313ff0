"""Every replay-like buffer keeps the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer
from assay.buffers.sequence import SequenceReplay
from assay.core.types import Spaces, Tree
from assay.testing.buffers import EPISODE, LANE, BufferContract


class TestUniform(BufferContract):
    def make(self, *, capacity: int, num_envs: int, seed: int) -> ReplayBuffer:
        return ReplayBuffer(self.spaces, capacity, num_envs, rng=np.random.default_rng(seed))


class TestPrioritized(BufferContract):
    def make(self, *, capacity: int, num_envs: int, seed: int) -> ReplayBuffer:
        rng = np.random.default_rng(seed)
        options = PrioritizedOptions()
        return ReplayBuffer(self.spaces, capacity, num_envs, rng=rng, prioritized=options)


class TestDict(BufferContract):
    spaces = Spaces(
        Dict({"a": Box(-1e6, 1e6, (3,), np.float32), "n": Discrete(10_000)}),
        BufferContract.spaces.action,
    )

    def make(self, *, capacity: int, num_envs: int, seed: int) -> ReplayBuffer:
        return ReplayBuffer(self.spaces, capacity, num_envs, rng=np.random.default_rng(seed))

    def observe(self, tags: np.ndarray) -> Tree:
        return {"a": super().observe(tags), "n": tags}

    def identify(self, obs: Tree) -> np.ndarray:
        return obs["n"]


class TestFrames(BufferContract):
    """Stacks of four frames, repeated at the reset, whose pixels spell the tag."""

    spaces = Spaces(Box(0, 255, (4, 2, 3), np.uint8), BufferContract.spaces.action)
    prioritized: PrioritizedOptions | None = None

    def make(self, *, capacity: int, num_envs: int, seed: int) -> ReplayBuffer:
        rng = np.random.default_rng(seed)
        return ReplayBuffer(
            self.spaces, capacity, num_envs, rng=rng, frame_stack=4, prioritized=self.prioritized
        )

    def observe(self, tags: np.ndarray) -> Tree:
        # The last frame shows the tag, those before it the tags before; the first is repeated.
        shown = np.maximum(tags[:, None] - np.arange(3, -1, -1), tags[:, None] // LANE * LANE)
        digits = np.stack([shown // 256, shown % 256, shown % 7], axis=-1)
        return np.repeat(digits[:, :, None, :], 2, axis=2).astype(np.uint8)

    def identify(self, obs: Tree) -> np.ndarray:
        return obs[:, 3, 0, 0].astype(int) * 256 + obs[:, 3, 0, 1]


class TestPrioritizedFrames(TestFrames):
    prioritized = PrioritizedOptions()


class TestSequences(BufferContract):
    options: dict[str, Any] = {"overlap": 1}  # noqa: RUF012

    def make(self, *, capacity: int, num_envs: int, seed: int) -> SequenceReplay:
        rng = np.random.default_rng(seed)
        return SequenceReplay(self.spaces, capacity, num_envs, length=3, rng=rng, **self.options)


class TestPrioritizedSequences(TestSequences):
    options = {"overlap": 2, "prioritized": PrioritizedOptions()}  # noqa: RUF012


class TestCrossingSequences(TestSequences):
    options = {"cross_episodes": True}  # noqa: RUF012

    def make(self, *, capacity: int, num_envs: int, seed: int) -> SequenceReplay:
        rng = np.random.default_rng(seed)
        # One step long, since without an episode's end an incomplete sequence is not stored.
        return SequenceReplay(self.spaces, capacity, num_envs, length=1, rng=rng, **self.options)


def test_the_contract_is_fed_whole_episodes() -> None:
    assert 20 % EPISODE == 0 and 120 % EPISODE == 0
