"""Batches that are drawn from recorded data and a replay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.buffers.dataset import DatasetBuffer
from assay.buffers.mixed import MixedReplay
from assay.buffers.replay import ReplayBuffer
from assay.core.types import Spaces, Transition
from assay.data.collect import from_episodes
from assay.data.dataset import Episode
from assay.envs.spaces import ActionMap, ObservationMap

OBS, ACTION = spaces.Box(-100.0, 100.0, (1,), np.float32), spaces.Discrete(3, start=2)


def recorded(next_action: bool = False, seed: int = 0) -> DatasetBuffer:
    """Return an episode of three steps with rewards 1, 2, 3."""
    episode = Episode(
        np.arange(4, dtype=np.float32)[:, None],
        np.array([2, 3, 4]),
        np.array([1.0, 2.0, 3.0]),
        np.array([False, False, True]),
        np.zeros(3, bool),
        {"weight": np.ones(3)},
    )
    data = from_episodes([episode], OBS, ACTION)
    maps = ObservationMap(OBS, None), ActionMap(ACTION)
    return DatasetBuffer(
        data, *maps, gamma=0.9, next_action=next_action, rng=np.random.default_rng(seed)
    )


def mixed(share: float = 0.5, steps: int = 0, seed: int = 0, **options: bool) -> MixedReplay:
    """Return such data beside a replay whose rewards are -1."""
    canonical = Spaces(OBS, spaces.Discrete(3))
    replay = ReplayBuffer(canonical, 100, gamma=0.9, rng=np.random.default_rng(seed))
    both = MixedReplay(recorded(seed=seed, **options), replay, share)
    for _ in range(steps):
        add(both)
    return both


def add(both: MixedReplay) -> None:
    row = np.zeros((1, 1), np.float32)
    over = np.zeros(1, bool)
    both.add(Transition(row, np.array([1]), np.array([-1.0]), row + 1, over, over))


def collected(both: MixedReplay, size: int) -> int:
    return int((both.sample(size).reward == -1).sum())


@pytest.mark.parametrize(("share", "expected"), [(0.5, 8), (0.25, 12), (0.0, 16), (0.99, 1)])
def test_the_share_of_every_batch_is_exact(share: float, expected: int) -> None:
    both = mixed(share, steps=50)
    assert len(both) == 53
    assert {collected(both, 16) for _ in range(20)} == {expected}


def test_a_replay_gives_no_more_than_it_holds() -> None:
    both = mixed()
    found = []
    for _ in range(10):
        found.append(collected(both, 16))
        add(both)
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_rows_stay_whole() -> None:
    batch = mixed(steps=50).sample(64)
    new = batch.reward == -1
    assert torch.equal(batch.next_obs, batch.obs + 1)
    assert torch.equal(batch.action[new], torch.ones(32, dtype=torch.int64))
    assert torch.equal(batch.action[~new], batch.obs[~new, 0].long())  # canonical: from 0 on
    assert torch.equal(batch.terminated, (batch.reward == 3).float())
    assert torch.equal(batch.discount, torch.full((64,), 0.9))
    assert torch.equal(batch.extras["weight"], (~new).to(torch.float64))  # the replay has none


def test_collected_steps_have_no_next_action() -> None:
    batch = mixed(steps=50, next_action=True).sample(64)
    old = batch.reward != -1
    known = old & (batch.reward != 3)  # nothing follows the last step
    assert torch.equal(batch.extras["has_next"], known.float())
    follows = torch.where(known, batch.action + 1, 0)
    assert torch.equal(batch.extras["next_action"], follows)


def test_without_recorded_rows_the_columns_are_the_same() -> None:
    some, none = (mixed(share, steps=50, next_action=True).sample(16) for share in (0.5, 0.0))
    assert none.extras.keys() == some.extras.keys() and not none.extras["has_next"].any()
    assert none.obs.shape == (16, 1) and none.obs.dtype == some.obs.dtype


def test_goes_on_where_it_was() -> None:
    one, two = mixed(steps=20), mixed(steps=3, seed=5)
    one.sample(8)
    two.load_sections({name: part[0] for name, part in one.sections().items()})
    for _ in range(3):
        assert torch.equal(one.sample(8).reward, two.sample(8).reward)
        assert torch.equal(one.sample(8).obs, two.sample(8).obs)
