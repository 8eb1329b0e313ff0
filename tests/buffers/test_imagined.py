"""The replay of imagined transitions: what it keeps, draws and saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from assay.buffers import storage
from assay.buffers.imagined import ImaginedReplay
from assay.core.errors import AssayError, CheckpointError
from assay.core.types import Spaces

SPACES = Spaces(Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float64))


def replay(capacity: int = 8, seed: int = 0) -> ImaginedReplay:
    return ImaginedReplay(SPACES, capacity, gamma=0.9, rng=np.random.default_rng(seed))


def put(buffer: ImaginedReplay, numbers: Any) -> None:
    """Add transitions that are told apart by their reward."""
    reward = torch.tensor([float(n) for n in numbers])
    obs = torch.stack([reward, -reward], 1)
    buffer.add(
        obs=obs, action=reward[:, None], reward=reward, next_obs=obs + 1,
        terminated=(reward % 2 == 0).float(),
    )  # fmt: skip


def held(buffer: ImaginedReplay) -> set[float]:
    return set(buffer.sample(500).reward.tolist())


def test_the_newest_are_kept_whatever_number_comes_at_a_time() -> None:
    buffer = replay()
    put(buffer, range(3))
    assert len(buffer) == 3 and held(buffer) == {0, 1, 2}
    put(buffer, range(3, 10))
    assert len(buffer) == 8 and held(buffer) == set(range(2, 10))
    put(buffer, [])
    put(buffer, range(10, 30))
    assert held(buffer) == set(range(22, 30))
    put(buffer, [30])
    assert held(buffer) == set(range(23, 31))


def test_a_batch_is_whole_rows() -> None:
    buffer = replay()
    put(buffer, range(8))
    batch = buffer.sample(64)
    assert batch.action.dtype == torch.float32
    torch.testing.assert_close(batch.obs, torch.stack([batch.reward, -batch.reward], 1))
    torch.testing.assert_close(batch.next_obs, batch.obs + 1)
    assert batch.terminated.tolist() == [float(n % 2 == 0) for n in batch.reward.tolist()]
    assert batch.discount.tolist() == pytest.approx([0.9] * 64)
    assert not batch.truncated.any()


def test_fewer_can_be_drawn_from_than_are_held() -> None:
    buffer = replay()
    put(buffer, range(12))
    buffer.keep = 3
    assert len(buffer) == 3 and held(buffer) == {9, 10, 11}


def test_nothing_to_draw() -> None:
    with pytest.raises(AssayError, match="imagined"):
        replay().sample(1)


def test_draws_go_on_after_it_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 3)
    one, two = replay(), replay(seed=9)
    put(one, range(13))
    one.keep = 6
    one.sample(3)
    put(two, range(100, 104))
    two.load_sections({name: part for name, (part, _) in one.sections("x").items()}, "x")
    for _ in range(3):
        assert one.sample(5).reward.tolist() == two.sample(5).reward.tolist()
    put(one, [50])
    put(two, [50])
    assert held(one) == held(two)
    three = replay()
    three.load_state(replay().state())  # before anything was imagined
    assert len(three) == 0


def test_only_what_changed_has_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 4)
    buffer = replay()
    put(buffer, range(5))
    before = {name: version for name, (_, version) in buffer.sections().items()}
    put(buffer, [5, 6])
    after = {name: version for name, (_, version) in buffer.sections().items()}
    assert before.keys() == after.keys() == {"replay-head", "replay-00000", "replay-00001"}
    assert before["replay-00000"] == after["replay-00000"] is not None
    assert before["replay-00001"] != after["replay-00001"]


def test_another_capacity_is_refused() -> None:
    with pytest.raises(CheckpointError, match="capacity=8"):
        replay(9).load_state(replay(8).state())
