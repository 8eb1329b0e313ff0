"""Batches and sequences that are drawn from a dataset."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.buffers.dataset import DatasetBuffer
from assay.core import system_memory
from assay.data import dataset, prefetch
from assay.data.collect import from_episodes, map_rows
from assay.data.dataset import Dataset, Episode, FlatSource
from assay.envs.spaces import ActionMap, ObservationMap

OBS = spaces.Box(-1.0, 1.0, (2,), np.float32)
CHOICE = spaces.Discrete(3, start=2)
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([0.5, np.inf]), dtype=np.float64)


def episode(start: int, steps: int, terminated: bool = True) -> Episode:
    """Return steps that count on from `start`: each field tells which one it belongs to."""
    number = np.arange(start, start + steps + 1)
    over = np.arange(steps) == steps - 1
    return Episode(
        np.stack([number, number + 0.5], 1).astype(np.float32),
        number[:-1] % 3 + 2,
        number[:-1] * 10.0,
        over & terminated,
        over & (not terminated),
        {"weight": number[:-1] * 2.0},
    )


EPISODES = [episode(0, 3), episode(10, 2, terminated=False), episode(20, 1)]


def buffer(
    episodes: list[Episode] = EPISODES,
    observation: Any = OBS,
    action: Any = CHOICE,
    mask_size: int | None = None,
    stored: Any = None,
    next_action: bool = False,
) -> DatasetBuffer:
    data = from_episodes(episodes, stored if stored is not None else observation, action)
    maps = ObservationMap(observation, mask_size), ActionMap(action)
    return DatasetBuffer(
        data, *maps, gamma=0.9, next_action=next_action, rng=np.random.default_rng(0)
    )


def test_next_actions_stay_within_their_episode() -> None:
    batch = buffer(next_action=True).sample(200)
    number = batch.obs[:, 0].long()
    last = torch.isin(number, torch.tensor([2, 11, 20]))
    assert torch.equal(batch.extras["has_next"], (~last).float())
    follows = torch.where(last, 0, (number + 1) % 3)  # canonical: it starts at 0
    assert torch.equal(batch.extras["next_action"], follows)
    assert "next_action" not in buffer().sample(2).extras


def test_returns_to_go_are_sums_to_the_end_of_the_episode() -> None:
    data = buffer()
    assert data.dataset.returns_to_go.tolist() == [30, 30, 20, 210, 110, 200]
    assert data.dataset.returns.tolist() == [30, 210, 200]
    batch = data.sample_sequences(100, 2, returns_to_go=True)
    sums = {0: 30, 1: 30, 2: 20, 10: 210, 11: 110, 20: 200}
    expected = [
        [sums[int(o)] if v else 0 for o, v in zip(obs, valid, strict=True)]
        for obs, valid in zip(batch.obs[:, :2, 0].tolist(), batch.valid.tolist(), strict=True)
    ]
    assert batch.extras["return_to_go"].tolist() == expected
    assert batch.extras["return_to_go"].dtype == torch.float32


class TestTransitions:
    def test_come_back_whole(self) -> None:
        data = buffer()
        assert len(data) == 6
        batch = data.sample(200)
        number = batch.obs[:, 0]
        assert set(number.tolist()) == {0.0, 1.0, 2.0, 10.0, 11.0, 20.0}
        assert torch.equal(batch.obs[:, 1], number + 0.5)
        assert torch.equal(batch.next_obs, batch.obs + 1)  # also at the end of an episode
        assert torch.equal(batch.reward, 10 * number)
        assert torch.equal(batch.action, number.long() % 3)  # canonical: it starts at 0
        assert torch.equal(batch.terminated, ((number == 2) | (number == 20)).float())
        assert torch.equal(batch.truncated, (number == 11).float())
        assert torch.equal(batch.discount, torch.full((200,), 0.9))
        assert torch.equal(batch.extras["weight"], 2 * number.double())
        assert {batch.obs.dtype, batch.reward.dtype, batch.discount.dtype} == {torch.float32}

    def test_a_batch_is_the_caller_s(self) -> None:
        data = buffer()
        data.sample(50).obs.fill_(7.0)
        assert float(data.sample(50).obs.max()) == 20.5

    def test_state_goes_round(self) -> None:
        one, two = buffer(), buffer()
        one.sample(7)
        two.load_state(one.state())
        assert torch.equal(one.sample(9).obs, two.sample(9).obs)

    def test_of_a_box(self) -> None:
        """Actions of float64 become float32."""
        action = np.array([[-2.0, 0.0], [0.5, 1e6], [0.1, 3.0]])
        one = Episode(*episode(0, 3).columns().values())
        one = Episode(one.obs, action, one.reward, one.terminated, one.truncated)
        batch = buffer([one], action=BOX).sample(50)
        assert batch.action.dtype == torch.float32
        expected = torch.from_numpy(action).float()[batch.obs[:, 0].long()]
        assert torch.equal(batch.action, expected)

    def test_of_parts(self) -> None:
        space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (4, 4, 1), np.uint8),
                "arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2,), np.float64)}),
                "gear": spaces.Discrete(3, start=1),
            }
        )
        rng = np.random.default_rng(0)
        parts = {
            "camera": rng.integers(0, 256, (4, 4, 4, 1), np.uint8),
            "arm": {"joints": rng.uniform(-1, 1, (4, 2))},
            "gear": rng.integers(1, 4, 4),
        }
        plain = episode(0, 3)
        one = Episode(parts, plain.action, plain.reward, plain.terminated, plain.truncated)
        batch = buffer([one], space).sample(40)
        at = (batch.reward / 10).long().numpy()
        np.testing.assert_array_equal(batch.obs["camera"], parts["camera"][at])
        np.testing.assert_array_equal(batch.next_obs["gear"], parts["gear"][at + 1] - 1)
        assert batch.next_obs["arm/joints"].dtype == torch.float32
        assert batch.obs["camera"].shape == (40, 4, 4, 1)

    def test_of_an_environment_with_masks(self) -> None:
        plain = episode(0, 3)
        mask = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], np.int8)
        parts = {"obs": plain.obs, "action_mask": mask}
        one = Episode(parts, plain.action, plain.reward, plain.terminated, plain.truncated)
        stored = spaces.Dict({"obs": OBS, "action_mask": spaces.MultiBinary(3)})
        batch = buffer([one], mask_size=3, stored=stored).sample(20)
        at = (batch.reward / 10).long().numpy()
        assert batch.obs["action_mask"].dtype == torch.int8
        np.testing.assert_array_equal(batch.obs["action_mask"], mask[at])


class TestSequences:
    def test_end_anywhere_and_never_leave_their_episode(self) -> None:
        batch = buffer().sample_sequences(300, 2)
        assert batch.obs.shape == (300, 3, 2) and batch.action.shape == (300, 2)
        last = batch.reward[:, 1] / 10
        assert set(last.tolist()) == {0.0, 1.0, 2.0, 10.0, 11.0, 20.0}
        alone = (last == 0) | (last == 10) | (last == 20)
        assert torch.equal(batch.valid, torch.stack([~alone, torch.ones(300)], 1).float())
        assert torch.equal(batch.obs[:, 1, 0], last) and torch.equal(batch.obs[:, 2, 0], last + 1)
        before = batch.obs[~alone, 0, 0]
        assert torch.equal(before, last[~alone] - 1)

    def test_padding_is_zero(self) -> None:
        batch = buffer().sample_sequences(100, 4)
        padded = batch.valid == 0
        assert padded.any()
        for rows in (batch.obs[:, :4], batch.action, batch.reward, batch.terminated):
            assert not rows[padded].any()

    def test_timesteps_are_of_the_episode(self) -> None:
        batch = buffer().sample_sequences(100, 3)
        number = batch.reward / 10
        expected = torch.where(batch.valid > 0, number % 10, 0)
        assert torch.equal(batch.extras["timestep"], expected.long())
        assert torch.equal(batch.is_first, ((expected == 0) & (batch.valid > 0)).float())


class TestReadingAhead:
    """Rows of a mapped file are asked for before they are drawn, which changes no draw."""

    @pytest.fixture(autouse=True)
    def only_flags_are_narrow(self, monkeypatch) -> None:
        monkeypatch.setattr(dataset, "_NARROW", 1)

    def mapped(self, tmp_path: Path) -> Dataset:
        data, columns = from_episodes(EPISODES, OBS, CHOICE), {}
        for number, (name, rows) in enumerate(data._flat().items()):
            rows.tofile(tmp_path / str(number))
            columns[name] = map_rows(tmp_path / str(number), rows.dtype, rows.shape, 0)
        return Dataset(data.schema, data.lengths, FlatSource(columns, data.lengths))

    def make(self, data: Dataset) -> DatasetBuffer:
        maps = ObservationMap(OBS), ActionMap(CHOICE)
        return DatasetBuffer(data, *maps, gamma=0.9, rng=np.random.default_rng(0))

    def test_each_batch_is_asked_for_once_and_earlier(self, tmp_path, monkeypatch) -> None:
        data, asked, drawn = self.mapped(tmp_path), [], []
        rows = data.transitions
        monkeypatch.setattr(data, "will_need", lambda index, length: asked.append(index))
        monkeypatch.setattr(data, "transitions", lambda index: drawn.append(index) or rows(index))
        made = self.make(data)
        for _ in range(5):
            made.sample(4)
            assert len(asked) - len(drawn) == 8
        np.testing.assert_array_equal(asked[:5], drawn)
        state = made.state()
        made.sample(4)
        asked.clear()
        made.load_state(state)
        made.sample(4)
        np.testing.assert_array_equal(asked[0], drawn[5])
        np.testing.assert_array_equal(drawn[6], drawn[5])

    def test_what_is_asked_for_are_the_pages_of_the_rows(self, tmp_path, monkeypatch) -> None:
        data, found = self.mapped(tmp_path), []
        monkeypatch.setattr(prefetch, "will_need", found.append)
        data.will_need(np.array([4]), length=3)  # the second step of the second episode
        columns = data._flat()
        wide = [name for name, one in data.schema.fields.items() if one.dtype != bool]
        for (start, size), name in zip(found[0], wide, strict=True):
            one, rows = data.schema.fields[name], columns[name]
            first, last = (4, 6) if one.more else (3, 4)  # within its episode, which begins at 3
            begin = rows[first:].ctypes.data
            assert start % mmap.PAGESIZE == 0 and begin - mmap.PAGESIZE < start <= begin
            assert start + size == rows[last:].ctypes.data + rows.strides[0]

    def test_the_system_takes_it_and_what_is_in_memory_is_not_asked_for(self, tmp_path) -> None:
        in_memory = self.make(from_episodes(EPISODES, OBS, CHOICE))
        assert in_memory.dataset.will_need(np.array([0])) is None  # nothing is mapped
        mapped = self.make(self.mapped(tmp_path))
        for _ in range(3):
            one, other = mapped.sample(2000), in_memory.sample(2000)  # more than one call takes
            assert torch.equal(one.obs, other.obs) and torch.equal(one.action, other.action)

    @pytest.mark.parametrize("free", [1_000, 60])
    def test_narrow_rows_are_held_where_they_take_little_memory(
        self, tmp_path, monkeypatch, free: int
    ) -> None:
        monkeypatch.setattr(system_memory, "available_bytes", lambda: free)
        data = self.mapped(tmp_path)
        held = [name for name in data._flat() if name not in data._mapped]
        # Six steps each: the first fits into an eighth of 60 bytes, both do of 1,000.
        assert held == ["terminated", "truncated"][: 1 if free == 60 else 2]

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")
    def test_a_cold_page_is_read(self, tmp_path) -> None:
        path, shape = tmp_path / "rows", (64, mmap.PAGESIZE)
        np.memmap(path, np.uint8, "w+", 0, shape).flush()
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        rows = np.memmap(path, np.uint8, "r", 0, shape)
        rows.base.madvise(mmap.MADV_RANDOM)
        if any(resident(rows)):
            pytest.skip("this file system has its files in memory")
        wanted = np.array([40])
        prefetch.will_need(prefetch.ranges(rows, wanted, wanted))
        wait_until(lambda: resident(rows)[40])
        assert not resident(rows)[20]


def resident(rows: np.ndarray) -> list[bool]:
    """Return which pages of a mapping are in memory."""
    found = (ctypes.c_ubyte * len(rows))()
    size = ctypes.c_size_t(rows.nbytes)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(rows.ctypes.data), size, found) == 0
    return [bool(one & 1) for one in found]


def wait_until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
