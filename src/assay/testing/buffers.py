"""The contract tests that every replay-like buffer must pass.

Subclass `BufferContract` in a test module and give it a `make`:

    class TestMyReplay(BufferContract):
        def make(self, *, capacity, num_envs, seed):
            return MyReplay(self.spaces, capacity, num_envs, rng=np.random.default_rng(seed))

Transitions are tagged: transition i of an environment carries its tag in observation, action and
reward, and tag + 1 in its next observation, so that whatever is sampled shows whether its parts
belong together and whether it was ever added.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from assay.core.errors import CheckpointError, ConfigError
from assay.core.types import SequenceBatch, Spaces, Transition, Tree, tree_map

EPISODE = 5  # steps; every second episode is terminated, the others are truncated
LANE = 1_000  # tags of environment e start at e * LANE


class BufferContract:
    """Checks of a buffer with `add`, `sample`, `state` and `load_state`, for single steps.

    Override `make`, and where observations are not vectors also `spaces`, `observe` and `identify`.
    """

    spaces = Spaces(Box(-1e6, 1e6, (3,), np.float32), Box(-1e6, 1e6, (2,), np.float32))
    huge = 10**14

    def make(self, *, capacity: int, num_envs: int, seed: int) -> Any:
        """Return an empty buffer for single transitions (n_step = 1) of `self.spaces`."""
        raise NotImplementedError

    def observe(self, tags: np.ndarray) -> Tree:
        """Return observations [N, ...] that show their tags [N]."""
        return (tags[:, None] + np.array([0.0, 0.25, 0.5])).astype(np.float32)

    def identify(self, obs: Tree) -> np.ndarray:
        """Return the tags [N] of observations [N, ...] as they came back, as arrays."""
        return obs[:, 0].astype(int)

    def feed(
        self,
        buffer: Any,
        steps: range,
        num_envs: int,
        invalid: Collection[tuple[int, int]] = (),
    ) -> set[int]:
        """Add tagged transitions, leave `invalid` (step, env) ones out, and return their tags."""
        added = set()
        for step in steps:
            tags = step + LANE * np.arange(num_envs)
            last, odd = step % EPISODE == EPISODE - 1, (step // EPISODE) % 2 == 1
            valid = np.array([(step, env) not in invalid for env in range(num_envs)])
            buffer.add(
                Transition(
                    self.observe(tags),
                    np.stack([tags, -tags], axis=1).astype(np.float32),
                    tags.astype(np.float32),
                    self.observe(tags + 1),
                    np.full(num_envs, last and not odd),
                    np.full(num_envs, last and odd),
                    valid=None if valid.all() else valid,
                )
            )
            added |= set(tags[valid].tolist())
        return added

    def collect(self, buffer: Any, batches: int = 60, batch_size: int = 16) -> set[int]:
        """Sample, check that the parts of each transition belong together, return the tags seen."""
        seen: set[int] = set()
        for _ in range(batches):
            batch = buffer.sample(batch_size)
            if isinstance(batch, SequenceBatch):
                mask = batch.valid.numpy() > 0
                obs = tree_map(lambda x, m=mask: x[:, :-1].numpy()[m], batch.obs)
                next_obs = tree_map(lambda x, m=mask: x[:, 1:].numpy()[m], batch.obs)
            else:
                mask = np.ones(batch.reward.shape, bool)
                obs, next_obs = (tree_map(np.asarray, x) for x in (batch.obs, batch.next_obs))
            tags = self.identify(obs)
            _assert_equal_trees(obs, self.observe(tags))
            _assert_equal_trees(next_obs, self.observe(tags + 1))
            np.testing.assert_array_equal(batch.reward.numpy()[mask], tags)
            np.testing.assert_array_equal(batch.action.numpy()[mask], np.stack([tags, -tags], 1))
            step = tags % LANE
            last, odd = step % EPISODE == EPISODE - 1, (step // EPISODE) % 2 == 1
            np.testing.assert_array_equal(batch.terminated.numpy()[mask], last & ~odd)
            np.testing.assert_array_equal(batch.truncated.numpy()[mask], last & odd)
            seen |= set(tags.tolist())
        return seen

    def test_returns_what_was_added(self) -> None:
        """Every transition comes back complete, and none that was not added."""
        for num_envs in (1, 3):
            buffer = self.make(capacity=60 * num_envs, num_envs=num_envs, seed=0)
            added = self.feed(buffer, range(20), num_envs)
            assert self.collect(buffer) == added

    def test_wraps_around(self) -> None:
        """Once full, the newest transitions replace the oldest."""
        for num_envs in (1, 3):
            buffer = self.make(capacity=40 * num_envs, num_envs=num_envs, seed=0)
            added = self.feed(buffer, range(3 * 40), num_envs)
            seen = self.collect(buffer, batches=120)
            assert seen <= added
            for env in range(num_envs):
                lane = {tag - env * LANE for tag in seen if tag // LANE == env}
                assert max(lane) == 119 and min(lane) >= 60

    def test_leaves_invalid_rows_out(self) -> None:
        """A row marked invalid is never sampled; the other environments' rows are."""
        # The rows after an episode's end, as under next-step autoreset, at different times.
        invalid = {(5, 0), (10, 0), (5, 2), (15, 1)}
        buffer = self.make(capacity=180, num_envs=3, seed=0)
        added = self.feed(buffer, range(20), 3, invalid)
        assert added.isdisjoint({5, 10, LANE + 15, 2 * LANE + 5})
        assert self.collect(buffer, batches=120) == added

    def test_is_deterministic(self) -> None:
        """One seed gives one series of batches; another seed gives another."""
        series = []
        for seed in (3, 3, 4):
            buffer = self.make(capacity=120, num_envs=2, seed=seed)
            self.feed(buffer, range(30), 2)
            series.append([buffer.sample(8).reward.numpy().copy() for _ in range(5)])
        np.testing.assert_array_equal(series[0], series[1])
        assert not np.array_equal(series[0], series[2])

    def test_state_round_trip(self) -> None:
        """A buffer loaded from a state continues exactly like the one that was saved."""
        invalid = {(25, 0), (30, 1)}
        for steps in (0, 17, 130):  # empty, partly filled, wrapped
            one = self.make(capacity=80, num_envs=2, seed=5)
            self.feed(one, range(steps), 2, invalid)
            if steps:
                one.sample(8)
            state = one.state()
            new = self.make(capacity=80, num_envs=2, seed=99)
            new.load_state(state)
            used = self.make(capacity=80, num_envs=2, seed=99)
            used.load_state(state)
            self.feed(used, range(steps, steps + 70), 2)
            used.load_state(state)  # which no buffer changes
            more, after_an_end = range(steps, steps + 13), {(-(-steps // EPISODE) * EPISODE, 1)}
            for batches in (5 if steps else 0, 5):
                for _ in range(batches):
                    batch = one.sample(8)
                    _assert_equal_batches(batch, new.sample(8))
                    _assert_equal_batches(batch, used.sample(8))
                for buffer in (one, new, used):
                    self.feed(buffer, more, 2, after_an_end)
                _assert_equal_trees(one.state(), new.state())

    def test_refuses_a_state_of_another_size(self) -> None:
        """The state of a buffer of another size is refused, and the setting is named."""
        state = self.make(capacity=80, num_envs=2, seed=0).state()
        with pytest.raises(CheckpointError):
            self.make(capacity=40, num_envs=1, seed=0).load_state(state)

    def test_refuses_more_than_the_memory(self) -> None:
        """A buffer beyond the machine's memory is refused before it is allocated."""
        with pytest.raises(ConfigError, match="available"):
            self.make(capacity=self.huge, num_envs=1, seed=0)


def _assert_equal_batches(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    for field in fields(one):
        _assert_equal_trees(getattr(one, field.name), getattr(two, field.name))


def _assert_equal_trees(one: Tree, two: Tree) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            _assert_equal_trees(one[key], two[key])
    elif hasattr(one, "__array__"):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    else:
        assert one == two
