from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from assay.buffers import storage
from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer, replay_bytes
from assay.core import system_memory
from assay.core.errors import AssayError, CheckpointError, ConfigError
from assay.core.types import Spaces, Transition
from assay.runs.checkpoint import Section, read_checkpoint, write_checkpoint

SPACES = Spaces(Box(-1e6, 1e6, (1,), np.float32), Discrete(4))


def make(capacity: int = 8, num_envs: int = 1, **options: Any) -> ReplayBuffer:
    options.setdefault("rng", np.random.default_rng(0))
    return ReplayBuffer(SPACES, capacity, num_envs, **options)


def add(
    buffer: ReplayBuffer,
    obs: list[float],
    reward: list[float],
    terminated: list[bool] | None = None,
    truncated: list[bool] | None = None,
    next_obs: list[float] | None = None,
    **options: Any,
) -> None:
    n = len(obs)
    now = np.array(obs, np.float32)[:, None]
    then = now + 1 if next_obs is None else np.array(next_obs, np.float32)[:, None]
    flags = [np.array(f or [False] * n) for f in (terminated, truncated)]
    action = np.arange(n) % 4
    step = Transition(now, action, np.array(reward, np.float32), then, *flags, **options)
    buffer.add(step)


def by_start(buffer: ReplayBuffer, draws: int = 40) -> dict[float, tuple[float, ...]]:
    """Return {obs: (reward, next_obs, terminated, truncated, discount)} of many samples."""
    found: dict[float, tuple[float, ...]] = {}
    for _ in range(draws):
        b = buffer.sample(16)
        rows = torch.stack(
            [b.obs[:, 0], b.reward, b.next_obs[:, 0], b.terminated, b.truncated, b.discount], 1
        )
        for obs, *rest in rows.tolist():
            assert found.setdefault(obs, tuple(rest)) == tuple(rest)
    return found


def approx(table: dict[float, tuple[float, ...]]) -> dict[float, Any]:
    return {obs: pytest.approx(values) for obs, values in table.items()}


def test_three_step_returns_stop_at_a_termination() -> None:
    buffer = make(n_step=3, gamma=0.5)
    for t in range(5):
        add(buffer, [t], [2.0**t], terminated=[t == 2])
    # Episode 0..2 with rewards 1, 2, 4, terminated; then 3, 4 with rewards 8, 16, unfinished.
    assert by_start(buffer) == approx(
        {
            0: (1 + 0.5 * 2 + 0.25 * 4, 3, 1, 0, 0.125),
            1: (2 + 0.5 * 4, 3, 1, 0, 0.25),
            2: (4, 3, 1, 0, 0.5),
            # The newest is 4: shorter windows, with the bootstrap of the steps really taken.
            3: (8 + 0.5 * 16, 5, 0, 0, 0.25),
            4: (16, 5, 0, 0, 0.5),
        }
    )


def test_three_step_returns_bootstrap_from_the_final_observation_of_a_truncation() -> None:
    buffer = make(n_step=3, gamma=0.5)
    add(buffer, [0], [1])
    add(buffer, [1], [2], truncated=[True], next_obs=[100])  # the true final observation
    add(buffer, [50], [4])  # another episode
    add(buffer, [51], [8])
    add(buffer, [52], [16])
    assert by_start(buffer) == approx(
        {
            0: (2, 100, 0, 1, 0.25),
            1: (2, 100, 0, 1, 0.5),
            50: (4 + 4 + 4, 53, 0, 0, 0.125),
            51: (8 + 8, 53, 0, 0, 0.25),
            52: (16, 53, 0, 0, 0.5),
        }
    )


def test_windows_wrap_around_the_ring_but_never_cross_the_write_head() -> None:
    buffer = make(capacity=4, n_step=3, gamma=1.0)
    for t in range(6):  # slots hold 4, 5 | 2, 3: the head is between 5 and 2
        add(buffer, [t], [10.0**t])
    assert len(buffer) == 4
    assert by_start(buffer) == approx(
        {
            2: (11100, 5, 0, 0, 1),
            3: (111000, 6, 0, 0, 1),  # slots 3, 0, 1
            4: (110000, 6, 0, 0, 1),
            5: (100000, 6, 0, 0, 1),  # and not 2, which lies behind it in the ring
        }
    )


def test_environments_have_windows_and_heads_of_their_own() -> None:
    buffer = make(capacity=8, num_envs=2, n_step=2, gamma=0.5)
    add(buffer, [0, 100], [1, 10], terminated=[True, False])
    # The row after an episode's end is none of environment 0's.
    add(buffer, [-9, 101], [-9, 20], valid=np.array([False, True]))
    add(buffer, [5, 102], [2, 30])
    add(buffer, [6, 103], [4, 40])
    assert len(buffer) == 7
    assert by_start(buffer) == approx(
        {
            0: (1, 1, 1, 0, 0.5),
            5: (2 + 2, 7, 0, 0, 0.25),
            6: (4, 7, 0, 0, 0.5),
            100: (10 + 10, 102, 0, 0, 0.25),
            101: (20 + 15, 103, 0, 0, 0.25),
            102: (30 + 20, 104, 0, 0, 0.25),
            103: (40, 104, 0, 0, 0.5),
        }
    )


def test_all_that_is_held_comes_in_the_order_of_time() -> None:
    buffer = make(capacity=6, num_envs=2)
    for t in range(5):
        add(buffer, [t, 10 + t], [-t, -10 - t], valid=np.array([True, t != 1]))
    held = buffer.all()
    # Three transitions of each environment fit; the second was given four of them.
    assert held.obs[:, 0].tolist() == [2, 3, 4, 12, 13, 14]
    assert held.reward.tolist() == [-2, -3, -4, -12, -13, -14]
    assert held.terminated.shape == held.truncated.shape == (6,)
    assert held.next_obs.shape == held.obs.shape and len(held.action) == 6


def test_cut_episodes_end_windows() -> None:
    buffer = make(n_step=2, gamma=0.5)
    buffer.cut_episodes()  # nothing to cut yet
    add(buffer, [0], [1], terminated=[True])
    buffer.cut_episodes()  # it ended anyway
    add(buffer, [10], [2])
    buffer.cut_episodes()
    add(buffer, [20], [4])
    assert by_start(buffer) == approx(
        {0: (1, 1, 1, 0, 0.5), 10: (2, 11, 0, 1, 0.5), 20: (4, 21, 0, 0, 0.5)}
    )


def test_uniform_sampling_is_uniform_over_transitions_of_unequal_environments() -> None:
    buffer = make(capacity=40, num_envs=2)
    for t in range(20):  # environment 1 has a quarter of the transitions of environment 0
        add(buffer, [t, 100 + t], [0, 0], valid=np.array([True, t % 4 == 0]))
    counts = np.zeros(200)
    for _ in range(100):
        np.add.at(counts, buffer.sample(100).obs[:, 0].numpy().astype(int), 1)
    seen = counts[counts > 0]
    assert len(seen) == len(buffer) == 25
    # Chi-square with 24 degrees of freedom: 51 is exceeded once in a thousand seeds.
    assert ((seen - 400) ** 2 / 400).sum() < 51


def test_extras_come_back_and_must_be_the_same_names() -> None:
    buffer = make(num_envs=2)
    for t in range(3):
        extras = {"log_prob": np.array([t, -t], np.float32), "flag": np.array([t > 1, False])}
        add(buffer, [t, 10 + t], [t, t], extras=extras)
    batch = buffer.sample(32)
    sign = torch.where(batch.obs[:, 0] >= 10, -1, 1)
    torch.testing.assert_close(batch.extras["log_prob"], sign * batch.reward)
    assert batch.extras["flag"].dtype == torch.bool
    with pytest.raises(ValueError, match="expected \\['flag', 'log_prob'\\]"):
        add(buffer, [0, 0], [0, 0])
    copy = make(num_envs=2)
    copy.load_state(buffer.state())
    torch.testing.assert_close(copy.sample(8).extras, buffer.sample(8).extras)


def test_extras_are_written_back_to_what_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 4)  # two rows
    buffer = make(capacity=8, num_envs=2)
    for t in range(4):
        add(buffer, [t, 10 + t], [0, 0], extras={"cost": np.array([t, t], np.float32)})
    batch = buffer.sample(60)
    index, first = batch.index, batch.obs[:, 0].clone()
    add(buffer, [4, 14], [0, 0], extras={"cost": np.zeros(2, np.float32)})  # over 0 and 10
    buffer.update(index, cost=100 + first)
    found = {}
    for _ in range(20):
        batch = buffer.sample(16)
        found |= dict(zip(batch.obs[:, 0].tolist(), batch.extras["cost"].tolist(), strict=True))
    assert found == {
        tag: 0 if tag in (4, 14) else 100 + tag for tag in (1, 2, 3, 4, 11, 12, 13, 14)
    }
    with pytest.raises(ValueError, match=r"'value' cannot be updated; expected one of \['cost'\]"):
        buffer.update(index, value=first)
    before = {name: version for name, (_, version) in buffer.sections().items()}
    buffer.update(np.array([2 * 2 + 1]), cost=np.array([7.0]))  # the third of environment 1
    after = {name: version for name, (_, version) in buffer.sections().items()}
    assert [name for name in after if after[name] != before[name]] == ["replay-00001"]


def test_a_uniform_replay_without_extras_names_nothing() -> None:
    buffer = make()
    add(buffer, [0], [0])
    assert buffer.sample(2).index is None and buffer.sample(2).weight is None


def test_the_first_add_refuses_rows_of_another_shape_or_kind() -> None:
    with pytest.raises(ValueError, match="obs is float32\\[1\\]; expected float32\\[2, 1\\]"):
        make(num_envs=2).add(Transition(np.zeros(1, np.float32), *[None] * 5))
    image = Spaces(Box(0, 255, (1, 2, 2), np.uint8), Discrete(2))
    buffer = ReplayBuffer(image, 4, rng=np.random.default_rng(0))
    floats = np.zeros((1, 1, 2, 2), np.float32)
    with pytest.raises(ValueError, match="obs is float32"):
        zeros = [np.zeros(1)] * 2
        buffer.add(Transition(floats, np.zeros(1, int), np.zeros(1), floats, *zeros))


def test_tensors_have_the_dtypes_promised() -> None:
    buffer = make()
    add(buffer, [0], [1])
    batch = buffer.sample(4)
    assert batch.action.dtype == torch.int64
    for part in (batch.obs, batch.reward, batch.terminated, batch.truncated, batch.discount):
        assert part.dtype == torch.float32


@pytest.mark.parametrize(
    "options", [{"n_step": 0}, {"n_step": 9}, {"gamma": 1.5}, {"num_envs": 0}, {"num_envs": 9}]
)
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Bad replay"):
        make(**options)


def test_an_empty_buffer_has_nothing_to_sample() -> None:
    with pytest.raises(AssayError, match="empty"):
        make().sample(1)


@pytest.mark.parametrize("frame_stack", [None, 4])
@pytest.mark.parametrize("prioritized", [None, PrioritizedOptions()])
def test_the_estimate_is_what_is_allocated(
    frame_stack: int | None, prioritized: PrioritizedOptions | None, array_bytes: Callable[..., int]
) -> None:
    spaces = Spaces(Box(0, 255, (4, 5, 5), np.uint8), Box(-1, 1, (3,), np.float32))
    options = {"frame_stack": frame_stack, "prioritized": prioritized}
    rng = np.random.default_rng(0)
    found = array_bytes(lambda: ReplayBuffer(spaces, 10_000, 3, rng=rng, **options))
    estimate = replay_bytes(
        spaces, 10_000, 3, frame_stack=frame_stack, prioritized=prioritized is not None
    )
    assert estimate <= found < estimate + 2_000  # a few small arrays besides


def test_what_does_not_fit_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_memory, "available_bytes", lambda: 3 * 2**30)
    atari = Spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(6))
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(atari, 1_000_000, rng=np.random.default_rng(0))
    assert caught.value.fix is not None
    offered = int(caught.value.fix.split("at most ")[1].split(", or")[0].replace(",", ""))
    assert replay_bytes(atari, offered) <= 3 * 2**30 < replay_bytes(atari, offered + 2)
    assert "frame_stack=4" in caught.value.fix


def test_chunks_change_their_version_only_when_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 8)
    buffer = make(capacity=40, num_envs=2, prioritized=PrioritizedOptions())  # 5 chunks of 4 rows
    versions = []
    for steps in (0, 6, 2, 0, 12, 1):
        for t in range(steps):
            add(buffer, [t, 10 + t], [t, t])
        if len(buffer):
            batch = buffer.sample(4)
            buffer.update(batch.index, priority=batch.reward)
        sections = buffer.sections("replay")
        versions.append({n: v for n, (_, v) in sections.items() if v is not None})
    assert versions[0] == {}
    assert list(versions[1]) == ["replay-00000", "replay-00001"]
    changed = [
        {n for n in new if new[n] != old.get(n)} for old, new in itertools.pairwise(versions)
    ]
    assert changed[1] == {"replay-00001"}
    assert changed[2] == set()
    assert changed[3] == {"replay-00002", "replay-00003", "replay-00004"}
    assert changed[4] == {"replay-00000"}  # wrapped
    before = buffer.sections("replay")["replay-00000"][1]
    buffer.cut_episodes()  # rewrites a flag of the newest row
    assert buffer.sections("replay")["replay-00000"][1] != before


def test_sections_go_through_a_checkpoint_and_unchanged_ones_are_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 8)
    options = {"capacity": 40, "num_envs": 2, "n_step": 2, "prioritized": PrioritizedOptions()}
    buffer = make(**options)
    previous = None
    for save in range(2):
        for t in range(9):
            add(buffer, [t, 10 + t], [t, t], extras={"cost": np.array([t, t], np.float32)})
        batch = buffer.sample(8)
        buffer.update(batch.index, priority=batch.reward)
        sections = {n: Section(s, v) for n, (s, v) in buffer.sections("replay").items()}
        previous = write_checkpoint(tmp_path, save, sections, previous)
    assert (previous / "replay-00000.safetensors").stat().st_nlink == 2
    assert (previous / "replay-00002.safetensors").stat().st_nlink == 1
    copy = make(**options)
    copy.load_sections(read_checkpoint(previous), "replay")
    for _ in range(3):
        one, two = buffer.sample(8), copy.sample(8)
        torch.testing.assert_close(one.obs, two.obs, rtol=0, atol=0)
        torch.testing.assert_close(one.extras, two.extras, rtol=0, atol=0)
        for each, batch in ((buffer, one), (copy, two)):
            each.update(batch.index, priority=batch.reward)


def test_a_missing_or_misfitting_section_is_named() -> None:
    buffer = make()
    add(buffer, [0], [0])
    state = buffer.state()
    chunk = state.pop("00000")
    with pytest.raises(CheckpointError, match="'00000' of the buffer is missing"):
        make().load_state(state)
    with pytest.raises(CheckpointError, match="lacks 'reward'"):
        make().load_state({**state, "00000": {k: v for k, v in chunk.items() if k != "reward"}})
    with pytest.raises(CheckpointError, match="expected float32\\[1, 1\\]"):
        make().load_state({**state, "00000": {**chunk, "reward": np.zeros((2, 1), np.float32)}})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_equal_those_on_a_cpu() -> None:
    cpu, gpu = make(1000), make(1000, device="cuda")
    for t in range(100):
        for buffer in (cpu, gpu):
            add(buffer, [t], [t])
    kept = []
    for _ in range(50):
        a, b = cpu.sample(256), gpu.sample(256)
        assert b.obs.is_cuda and b.reward.is_cuda
        kept.append((a.obs.clone(), b.obs))
    # Copies are asynchronous: a gather that overtook one would show here.
    for a, b in kept:
        torch.testing.assert_close(a, b.cpu(), rtol=0, atol=0)
