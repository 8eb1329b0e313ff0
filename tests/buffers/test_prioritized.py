from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from assay.buffers import prioritized
from assay.buffers.prioritized import Priorities, PrioritizedOptions, SumTree
from assay.buffers.replay import ReplayBuffer
from assay.core.errors import AssayError, ConfigError
from assay.core.types import Spaces, Transition

SIZES = [1, 2, 15, 16, 17, 100, 257]


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small trees several levels."""
    monkeypatch.setattr(prioritized, "_TOP", 4)
    monkeypatch.setattr(prioritized, "_FAN_OUT", 3)


@pytest.mark.parametrize("size", SIZES)
def test_find_agrees_with_a_plain_prefix_sum(size: int, deep: None) -> None:
    rng = np.random.default_rng(size)
    tree = SumTree(size)
    leaves = rng.integers(0, 5, size).astype(float)  # whole numbers: all sums are exact
    leaves[rng.integers(size)] = 2.0
    tree.update(np.arange(size), leaves)
    assert tree.total == leaves.sum()
    mass = np.arange(int(leaves.sum()) * 2) / 2  # on and between all boundaries
    expected = np.searchsorted(np.cumsum(leaves), mass, side="right")
    np.testing.assert_array_equal(tree.find(mass), expected)


def test_find_by_hand() -> None:
    tree = SumTree(5)
    tree.update(np.array([0, 2, 4]), np.array([1.0, 3.0, 0.5]))
    assert tree.total == 4.5
    found = tree.find(np.array([0.0, 0.999, 1.0, 3.999, 4.0, 4.49, 4.5, 99.0]))
    assert found.tolist() == [0, 0, 2, 2, 4, 4, 4, 4]


def test_the_tree_is_a_function_of_its_leaves(deep: None) -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(200)
    for _ in range(300):
        index = rng.integers(0, 200, rng.integers(1, 30))
        tree.update(index, rng.random(len(index)) * 10.0 ** rng.integers(-9, 9, len(index)))
        if rng.random() < 0.5:
            assert tree.total > 0  # some updates are applied together, some at once
    other = SumTree(200)
    other.rebuild(tree.leaves)
    assert tree.total == other.total
    for one, two in zip(tree._levels, other._levels, strict=True):
        np.testing.assert_array_equal(one, two)  # bit for bit
    np.testing.assert_array_equal(tree._running, other._running)


def test_many_pending_updates_are_applied_in_time() -> None:
    tree = SumTree(20_000)
    for start in range(0, 20_000, 10):
        tree.update(np.arange(start, start + 10), 1.0)
        assert tree._pending_count <= prioritized._MAX_PENDING
    assert tree.total == 20_000


def test_zero_leaves_are_never_found_however_sums_round(deep: None) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        size = int(rng.integers(2, 80))
        leaves = rng.random(size) * 10.0 ** rng.integers(-12, 6, size)
        leaves[rng.random(size) < 0.6] = 0.0
        if not leaves.any():
            continue
        tree = SumTree(size)
        tree.rebuild(leaves)
        edges = np.concatenate([np.cumsum(leaves), tree._running, [0.0, tree.total]])
        mass = np.concatenate([edges, np.maximum(np.nextafter(edges, -1), 0)])
        assert (leaves[tree.find(mass)] > 0).all()


def test_a_mass_that_rounds_up_to_the_sum_of_its_node_stays_inside(deep: None) -> None:
    # Nodes of three: 1.5 and v = 2^52 + 2. Their sum rounds to 2^52 + 4, so that 2^52 + 3 is a
    # mass within it; less 1.5 it rounds to v, and not below it.
    v = 2.0**52 + 2
    tree = SumTree(6)
    tree.rebuild(np.array([1.5, 0, 0, 0, v, 0]))
    assert tree.total == v + 2 and (v + 1) - 1.5 == v
    assert tree.find(np.array([v + 1])).tolist() == [4]


def test_repeated_indices_keep_the_last_value() -> None:
    tree = SumTree(3)
    tree.update(np.array([1, 1]), np.array([5.0, 2.0]))
    assert tree.total == 2.0


def test_an_empty_tree_finds_nothing() -> None:
    with pytest.raises(ValueError, match="zero"):
        SumTree(4).find(np.array([0.0]))


def test_draws_follow_the_priorities_exactly_in_strata() -> None:
    priorities = Priorities(4, PrioritizedOptions(alpha=1.0, eps=1e-9))
    priorities.insert(np.arange(4))
    priorities.update(np.arange(4), np.array([1.0, -2.0, 3.0, 4.0]))
    slots, _ = priorities.draw(np.random.default_rng(0), 1000, 0.5, 4)
    counts = np.bincount(slots, minlength=4)
    # One draw per thousandth of the mass: at most one on either side of a boundary differs.
    assert np.abs(counts - [100, 200, 300, 400]).max() <= 2


def test_importance_weights_by_hand() -> None:
    priorities = Priorities(4, PrioritizedOptions(alpha=0.5, eps=0.5))
    priorities.insert(np.arange(3))
    # p = (|delta| + 0.5)^0.5 = 1, 2, 3; P = 1/6, 2/6, 3/6; N = 3
    priorities.update(np.arange(3), np.array([0.5, -3.5, 8.5]))
    np.testing.assert_allclose(priorities.tree.leaves, [1, 2, 3, 0])
    slots, weights = priorities.draw(np.random.default_rng(0), 60, 0.5, 3)
    assert set(slots) == {0, 1, 2}
    # w = (3 P)^-0.5 = sqrt(2), 1, sqrt(2/3); divided by the largest
    expected = np.array([1.0, 1 / np.sqrt(2), 1 / np.sqrt(3)])
    np.testing.assert_allclose(weights, expected[slots])
    _, weights = priorities.draw(np.random.default_rng(0), 60, 1.0, 3)
    np.testing.assert_allclose(weights, np.array([1.0, 1 / 2, 1 / 3])[slots])


def test_settings_out_of_range_are_refused() -> None:
    for bad in ({"alpha": -1.0}, {"eps": 0.0}):
        with pytest.raises(ConfigError, match="prioritised"):
            PrioritizedOptions(**bad)


def test_new_items_get_the_largest_priority_so_far() -> None:
    priorities = Priorities(4, PrioritizedOptions(alpha=1.0, eps=1.0))
    priorities.insert(np.array([0]))
    assert priorities.tree.leaves[0] == 1.0
    priorities.update(np.array([0]), np.array([6.0]))
    priorities.update(np.array([0]), np.array([0.0]))
    priorities.insert(np.array([1]))
    assert priorities.tree.leaves.tolist() == [1.0, 7.0, 0.0, 0.0]


def test_errors_that_are_not_finite_are_refused_and_change_nothing() -> None:
    priorities = Priorities(2, PrioritizedOptions())
    priorities.insert(np.array([0]))
    with pytest.raises(AssayError, match="1 of 2 TD errors"):
        priorities.update(np.array([0, 1]), np.array([1.0, np.nan]))
    assert priorities.tree.leaves.tolist() == [1.0, 0.0]


def make(capacity: int = 4, num_envs: int = 1, n_step: int = 1) -> ReplayBuffer:
    return ReplayBuffer(
        Spaces(Box(-1e6, 1e6, (1,), np.float32), Discrete(2)),
        capacity,
        num_envs,
        rng=np.random.default_rng(0),
        n_step=n_step,
        prioritized=PrioritizedOptions(alpha=1.0, eps=1e-6),
    )


def add(buffer: ReplayBuffer, tag: float, valid: np.ndarray | None = None) -> None:
    n = buffer.num_envs
    tags = (tag + 100 * np.arange(n)).astype(np.float32)
    flag, action = np.zeros(n, bool), np.zeros(n, int)
    buffer.add(Transition(tags[:, None], action, tags, tags[:, None], flag, flag, valid=valid))


def shares(buffer: ReplayBuffer) -> dict[float, float]:
    """Return {tag: share of the draws}, exact to a thousandth because draws are stratified."""
    tags, counts = np.unique(buffer.sample(4000).obs.numpy(), return_counts=True)
    return dict(zip(tags.tolist(), (counts / 4000).tolist(), strict=True))


def test_replay_draws_in_proportion_and_reports_weights() -> None:
    buffer = make()
    for tag in range(3):
        add(buffer, tag)
    assert shares(buffer) == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3}, abs=1e-3)
    batch = buffer.sample(60)
    errors = torch.tensor([1.0, -2.0, 5.0])[batch.obs[:, 0].long()]
    buffer.update(batch.index, priority=errors)
    assert shares(buffer) == pytest.approx({0: 1 / 8, 1: 2 / 8, 2: 5 / 8}, abs=1e-3)
    batch = buffer.sample(60, beta=1.0)
    expected = torch.tensor([1.0, 1 / 2, 1 / 5])[batch.obs[:, 0].long()]
    torch.testing.assert_close(batch.weight, expected, rtol=1e-4, atol=0)
    add(buffer, 3)  # at the largest so far, 5
    assert shares(buffer) == pytest.approx({0: 1 / 13, 1: 2 / 13, 2: 5 / 13, 3: 5 / 13}, abs=1e-3)


def test_a_slot_overwritten_since_it_was_sampled_gets_no_stale_priority() -> None:
    buffer = make(capacity=4, num_envs=2)  # two slots each
    add(buffer, 0)
    add(buffer, 1)
    add(buffer, 2)  # overwrites 0 and 100
    batch = buffer.sample(64)
    index, tags = batch.index, batch.obs[:, 0].clone()
    assert set(tags.tolist()) == {1, 2, 101, 102}
    add(buffer, 3, valid=np.array([True, False]))  # overwrites 1, and not 101
    buffer.update(index, priority=torch.full((64,), 9.0))
    # 1 is gone; its slot now holds 3, still at the initial priority 1. The others have 9.
    assert shares(buffer) == pytest.approx(
        {2: 9 / 28, 3: 1 / 28, 101: 9 / 28, 102: 9 / 28}, abs=1e-3
    )


def test_empty_slots_have_no_probability() -> None:
    buffer = make(capacity=1000, n_step=3)
    for tag in range(5):
        add(buffer, tag)
    assert set(shares(buffer)) == {0, 1, 2, 3, 4}


def test_uniform_replay_has_no_priorities() -> None:
    spaces = Spaces(Box(-1, 1, (1,), np.float32), Discrete(2))
    buffer = ReplayBuffer(spaces, 4, rng=np.random.default_rng(0))
    with pytest.raises(ConfigError, match="no priorities"):
        buffer.update(np.zeros(1, int), priority=np.zeros(1))
