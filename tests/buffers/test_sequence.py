from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from assay.buffers import storage
from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.sequence import SequenceReplay
from assay.core.errors import AssayError, ConfigError
from assay.core.types import Spaces, Transition

SPACES = Spaces(Box(-1e6, 1e6, (1,), np.float32), Discrete(4))


def make(num_envs: int = 1, **options: Any) -> SequenceReplay:
    defaults = {"capacity": 60, "length": 4, "rng": np.random.default_rng(0)}
    return SequenceReplay(SPACES, num_envs=num_envs, **(defaults | options))


def play(buffer: SequenceReplay, *episodes: int, start: int = 0, unfinished: bool = False) -> int:
    """Add episodes of one environment, tagged 0, 1, 2, ... with a carry of ten times the tag.

    The observation after an episode's end is the negative of its last tag.
    """
    tag = start
    for number, length in enumerate(episodes):
        for t in range(length):
            last = t == length - 1 and not (unfinished and number == len(episodes) - 1)
            step = Transition(
                np.array([[tag]], np.float32),
                np.array([tag % 4]),
                np.array([tag], np.float32),
                np.array([[-tag if last else tag + 1]], np.float32),
                np.array([last and number % 2 == 0]),
                np.array([last and number % 2 == 1]),
                extras={"latent": np.array([[0.5 * tag]], np.float32)},
                carry={"h": np.array([[10.0 * tag, 1.0]], np.float32)},
            )
            buffer.add(step)
            tag += 1
    return tag


def stored(buffer: SequenceReplay) -> dict[int, dict[str, list[float]]]:
    """Return all sequences by the tag of their first step."""
    found = {}
    for _ in range(40):
        batch = buffer.sample(8)
        for i in range(8):
            found[int(batch.obs[i, 0, 0])] = {
                "obs": batch.obs[i, :, 0].tolist(),
                "action": batch.action[i].tolist(),
                "reward": batch.reward[i].tolist(),
                "terminated": batch.terminated[i].tolist(),
                "truncated": batch.truncated[i].tolist(),
                "first": batch.is_first[i].tolist(),
                "valid": batch.valid[i].tolist(),
                "carry": batch.carry["h"][i].tolist(),
                "latent": batch.extras["latent"][i, :, 0].tolist(),
            }
    return found


def test_sequences_overlap_carry_their_state_and_stop_at_episode_ends() -> None:
    buffer = make(overlap=2)
    play(buffer, 7, 2)
    found = stored(buffer)
    # Episode 0..6, terminated: 0123, 2345, 456 padded. Episode 7, 8, truncated: 78 padded.
    assert sorted(found) == [0, 2, 4, 7] and len(buffer) == 4
    assert found[2] == {
        "obs": [2, 3, 4, 5, 6],
        "action": [2, 3, 0, 1],
        "reward": [2, 3, 4, 5],
        "terminated": [0, 0, 0, 0],
        "truncated": [0, 0, 0, 0],
        "first": [0, 0, 0, 0],
        "valid": [1, 1, 1, 1],
        "carry": [20, 1],
        "latent": [1, 1.5, 2, 2.5],
    }
    assert found[0]["first"] == [1, 0, 0, 0] and found[0]["carry"] == [0, 1]
    assert found[4] == {
        "obs": [4, 5, 6, -6, 0],  # the final observation, and then padding
        "action": [0, 1, 2, 0],
        "reward": [4, 5, 6, 0],
        "terminated": [0, 0, 1, 0],
        "truncated": [0, 0, 0, 0],
        "first": [0, 0, 0, 0],
        "valid": [1, 1, 1, 0],
        "carry": [40, 1],
        "latent": [2, 2.5, 3, 0],
    }
    assert found[7]["obs"][:3] == [7, 8, -8] and found[7]["truncated"] == [0, 1, 0, 0]
    assert found[7]["first"] == [1, 0, 0, 0] and found[7]["carry"] == [70, 1]


def test_an_episode_that_ends_with_its_sequence_leaves_nothing_behind() -> None:
    buffer = make(overlap=2)
    play(buffer, 4, 4)
    assert sorted(stored(buffer)) == [0, 4] and len(buffer) == 2


def test_overlaps_beyond_the_half_keep_the_right_carry() -> None:
    buffer = make(overlap=3)
    play(buffer, 7)
    found = stored(buffer)
    assert sorted(found) == [0, 1, 2, 3]
    assert {tag: row["carry"][0] for tag, row in found.items()} == {0: 0, 1: 10, 2: 20, 3: 30}


def test_crossing_sequences_run_on_and_mark_first_steps() -> None:
    buffer = make(overlap=1, cross_episodes=True)
    play(buffer, 3, 2, 5)
    found = stored(buffer)
    # 0, 1, 2, -2 (final), 3, 4, -4 (final), 5, 6, 7, 8, 9, -9 (final)
    assert sorted(found) == [-4, -2, 0, 7]
    assert found[0] == {
        "obs": [0, 1, 2, -2, 0],  # what comes next was not known
        "action": [0, 1, 2, 0],
        "reward": [0, 1, 2, 0],
        "terminated": [0, 0, 1, 0],
        "truncated": [0, 0, 0, 0],
        "first": [1, 0, 0, 0],
        "valid": [1, 1, 1, 0],
        "carry": [0, 1],
        "latent": [0, 0.5, 1, 0],
    }
    assert found[-2]["obs"] == [-2, 3, 4, -4, 0] and found[-2]["truncated"] == [0, 0, 1, 0]
    assert found[-2]["first"] == [0, 1, 0, 0] and found[-2]["valid"] == [0, 1, 1, 0]
    assert found[-4]["obs"] == [-4, 5, 6, 7, 8] and found[-4]["valid"] == [0, 1, 1, 1]
    assert found[7]["obs"] == [7, 8, 9, -9, 0] and found[7]["carry"] == [70, 1]


def test_a_final_observation_that_a_sequence_ends_with_is_not_repeated() -> None:
    buffer = make(length=3, cross_episodes=True)
    play(buffer, 3, 5)
    found = stored(buffer)
    assert sorted(found) == [0, 3, 6]
    assert found[0]["obs"] == [0, 1, 2, -2] and found[3]["obs"] == [3, 4, 5, 6]
    assert found[6]["obs"] == [6, 7, -7, 0] and found[6]["valid"] == [1, 1, 0]


def test_crossing_sequences_of_cut_episodes() -> None:
    buffer = make(cross_episodes=True)
    tag = play(buffer, 2, unfinished=True)
    buffer.cut_episodes()
    buffer.cut_episodes()  # nothing is under way
    play(buffer, 3, start=tag)
    found = stored(buffer)
    assert found[0]["obs"] == [0, 1, 2, 2, 3]  # 2 was to come next, and is where a reset begins
    assert found[0]["truncated"] == [0, 1, 0, 0] and found[0]["valid"] == [1, 1, 0, 1]
    assert found[0]["first"] == [1, 0, 0, 1]


@pytest.mark.parametrize("cross", [False, True])
def test_observations_are_stored_once(cross: bool, array_bytes: Callable[..., int]) -> None:
    spaces = Spaces(Box(-1, 1, (1000,), np.float32), Discrete(4))
    options = {"length": 4, "rng": np.random.default_rng(0), "cross_episodes": cross}
    found = array_bytes(lambda: SequenceReplay(spaces, 400, **options))
    rows = 5 * (100 + 1)  # five observations of a sequence and of the open window
    assert 4000 * rows <= found < 4000 * rows * 1.02


def test_columns_are_written_back_to_what_is_still_there() -> None:
    buffer = make(capacity=12)
    tag = play(buffer, 12)
    batch = buffer.sample(30)
    index, first = batch.index, batch.obs[:, 0, 0].clone()
    tag = play(buffer, 4, start=tag)  # overwrites the sequence of tag 0
    latent = first[:, None, None].expand(-1, 4, 1) + torch.arange(4)[None, :, None] / 8
    buffer.update(index, latent=latent, carry={"h": torch.stack([first, first], 1)})
    found = stored(buffer)
    assert {key: row["latent"] for key, row in found.items()} == {
        4: [4, 4.125, 4.25, 4.375],
        8: [8, 8.125, 8.25, 8.375],
        12: [6, 6.5, 7, 7.5],
    }
    assert {key: row["carry"] for key, row in found.items()} == {4: [4, 4], 8: [8, 8], 12: [120, 1]}
    with pytest.raises(ValueError, match=r"'value' cannot be updated.*\['carry', 'latent'\]"):
        buffer.update(index, value=first)


def test_a_chunk_that_was_written_back_to_is_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 8)  # two sequences
    one = make()
    play(one, 24)
    before = {name: version for name, (_, version) in one.sections().items()}
    one.update(np.array([3]), latent=np.full((1, 4, 1), 9.0))
    sections = one.sections()
    changed = {name for name, (_, version) in sections.items() if version != before[name]}
    assert changed == {"replay-00000", "replay-00001", "replay-00002"}  # that latents count at all
    before = {name: version for name, (_, version) in sections.items()}
    one.update(np.array([3]), latent=np.full((1, 4, 1), 8.0))
    sections = one.sections()
    changed = {name for name, (_, version) in sections.items() if version != before[name]}
    assert changed == {"replay-00001"}
    two = make()
    two.load_sections({name: state for name, (state, _) in sections.items()})
    assert stored(two)[12]["latent"] == [8.0] * 4


def test_environments_are_kept_apart_and_invalid_rows_left_out() -> None:
    buffer = make(num_envs=2, length=2)
    for t in range(5):
        tags = np.array([t, 100 + t], np.float32)
        flag = np.array([t == 2, False])
        valid = np.array([t != 3, True])  # environment 0 resets at t = 3
        none = np.zeros(2, bool)
        action, then = np.zeros(2, int), tags[:, None] + 1
        buffer.add(Transition(tags[:, None], action, tags, then, flag, none, valid))
    seen = {tuple(row) for _ in range(20) for row in buffer.sample(8).reward.tolist()}
    assert seen == {(0, 1), (2, 0), (100, 101), (102, 103)}  # 4 waits for its second step


def test_cut_episodes_store_what_is_open_as_truncated() -> None:
    buffer = make(overlap=2)
    tag = play(buffer, 3, unfinished=True)
    buffer.cut_episodes()
    tag = play(buffer, 4, start=tag, unfinished=True)
    buffer.cut_episodes()  # only the overlap is open, and it is stored already
    buffer.cut_episodes()  # nothing is open
    play(buffer, 4, start=tag, unfinished=True)
    found = stored(buffer)
    assert sorted(found) == [0, 3, 7]
    assert found[0]["truncated"] == [0, 0, 1, 0] and found[0]["valid"] == [1, 1, 1, 0]
    assert found[3]["first"] == found[7]["first"] == [1, 0, 0, 0]


def test_the_oldest_sequences_go_first() -> None:
    buffer = make(capacity=12)
    play(buffer, 20)
    assert len(buffer) == 3 and sorted(stored(buffer)) == [8, 12, 16]
    play(buffer, 1, start=20)  # padded, over an older sequence
    found = stored(buffer)
    assert sorted(found) == [12, 16, 20] and found[20]["reward"] == [20, 0, 0, 0]
    assert found[20]["obs"] == [20, -20, 0, 0, 0] and found[20]["valid"] == [1, 0, 0, 0]


def test_priorities_of_sequences() -> None:
    buffer = make(capacity=12, prioritized=PrioritizedOptions(alpha=1.0, eps=1e-6))
    tag = play(buffer, 12)
    batch = buffer.sample(30)
    index, first = batch.index, batch.obs[:, 0, 0].clone()
    tag = play(buffer, 4, start=tag)  # overwrites the sequence of tag 0
    buffer.update(index, priority=torch.where(first == 4, 5.0, 2.0))
    tags, counts = np.unique(buffer.sample(8000).obs[:, 0, 0].numpy(), return_counts=True)
    assert tags.tolist() == [4, 8, 12]
    assert counts / 8000 == pytest.approx([5 / 8, 2 / 8, 1 / 8], abs=1e-3)
    weights = buffer.sample(40, beta=1.0).weight
    assert sorted(set(weights.tolist())) == pytest.approx([1 / 5, 1 / 2, 1], rel=1e-4)
    with pytest.raises(ConfigError, match="no priorities"):
        make().update(index, priority=first)


@pytest.mark.parametrize("cross", [False, True])
def test_state_goes_round_with_open_windows_and_carry(
    cross: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CHUNK_ITEMS", 8)
    options = {"overlap": 2, "cross_episodes": cross, "prioritized": PrioritizedOptions()}
    one = make(**options)
    tag = play(one, 9, 30, 6, unfinished=True)
    batch = one.sample(4)
    one.update(batch.index, priority=batch.reward[:, 0])
    sections = one.sections("replay")
    assert len(sections) > 3
    two = make(**options)
    two.load_sections({name: state for name, (state, _) in sections.items()}, "replay")
    for buffer in (one, two):
        play(buffer, 5, start=tag)
    assert stored(one) == stored(two)
    for _ in range(3):
        torch.testing.assert_close(one.sample(4).extras, two.sample(4).extras, rtol=0, atol=0)


def test_settings_and_calls_that_make_no_sense_are_refused() -> None:
    for options in ({"length": 0}, {"overlap": 4}, {"length": 99}):
        with pytest.raises(ConfigError, match="Bad sequence replay"):
            make(**options)
    with pytest.raises(AssayError, match="no sequence is complete"):
        make().sample(1)
    buffer = make()
    play(buffer, 1)
    with pytest.raises(ValueError, match="expected \\['latent'\\]"):
        buffer.add(Transition(*[np.zeros((1, 1))] * 6, extras={"x": np.zeros(1)}))
