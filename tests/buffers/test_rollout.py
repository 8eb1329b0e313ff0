from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from assay.buffers.allocation import Spec
from assay.buffers.rollout import Rollout, Runs
from assay.core.errors import ConfigError
from assay.core.types import Spaces

SPACES = Spaces(Box(-1e6, 1e6, (2,), np.float32), Discrete(4))


def obs_of(tags: Any) -> np.ndarray:
    return np.stack([tags, -np.asarray(tags)], axis=-1).astype(np.float32)


def fill(rollout: Rollout) -> None:
    n = rollout.num_envs
    for t in range(rollout.length):
        tags = 10 * t + np.arange(n)
        rollout.write(
            t,
            obs_of(tags),
            tags % 4,
            tags,
            tags % 3 == 0,
            tags % 5 == 0,
            tags % 7 != 0,
            {"log_prob": -tags.astype(np.float32), "logits": np.ones((n, 3)) * tags[:, None]},
        )


def test_what_is_written_is_read() -> None:
    rollout = Rollout(SPACES, 4, 3)
    fill(rollout)
    tags = 10 * np.arange(4)[:, None] + np.arange(3)
    np.testing.assert_array_equal(rollout.obs, np.stack([tags, -tags], -1))
    np.testing.assert_array_equal(rollout.action, tags % 4)
    np.testing.assert_array_equal(rollout.reward, tags)
    np.testing.assert_array_equal(rollout.terminated, tags % 3 == 0)
    np.testing.assert_array_equal(rollout.truncated, tags % 5 == 0)
    np.testing.assert_array_equal(rollout.valid, tags % 7 != 0)
    np.testing.assert_array_equal(rollout.policy_weight, np.ones((4, 3), np.float32))
    np.testing.assert_array_equal(rollout.extras["log_prob"], -tags)
    logits = rollout.extras["logits"]
    assert logits.shape == (4, 3, 3) and logits.dtype == np.float32
    assert rollout.env_steps == int((tags % 7 != 0).sum())
    assert rollout.columns["reward"] is rollout.reward
    assert rollout.columns["extras"]["logits"] is logits


def test_extras_may_be_known_beforehand() -> None:
    rollout = Rollout(SPACES, 4, 3, {"value": Spec((2,), np.dtype(np.float32))})
    assert rollout.extras["value"].shape == (4, 3, 2)
    with pytest.raises(ValueError, match="expected \\['value'\\]"):
        fill(rollout)


def test_reset_forgets() -> None:
    rollout = Rollout(SPACES, 4, 3)
    fill(rollout)
    rollout.add_final(1, 2, obs_of(5))
    rollout.last_obs = obs_of([1, 2, 3])
    rollout.policy_weight[2] = 0.0
    rollout.runs = Runs(np.array([1]), np.array([0]), np.array([2]))
    carry = {"h": np.array([[1.0], [2.0], [3.0]])}
    rollout.reset(carry)
    assert rollout.env_steps == 0 and rollout.finals is None and rollout.last_obs is None
    assert (rollout.policy_weight == 1).all() and rollout.runs.carry is carry
    assert rollout.runs.step.tolist() == [0, 0, 0] and rollout.runs.length.tolist() == [4, 4, 4]
    rollout.reset()
    assert rollout.runs.carry is None


def test_finals_are_kept_apart_and_in_order() -> None:
    rollout = Rollout(SPACES, 4, 3)
    assert rollout.finals is None
    row, carry = obs_of(5), {"h": np.array([1.0, 2.0])}
    rollout.add_final(0, 2, row, carry)
    rollout.add_final(
        3, np.array([0, 1]), obs_of([6, 7]), {"h": np.array([[3.0, 4.0], [5.0, 6.0]])}
    )
    row[:], carry["h"][:] = 0, 0  # the rollout has copies
    finals = rollout.finals
    assert finals is not None
    assert finals.step.tolist() == [0, 3, 3] and finals.env.tolist() == [2, 0, 1]
    np.testing.assert_array_equal(finals.obs, obs_of([5, 6, 7]))
    np.testing.assert_array_equal(finals.carry["h"], [[1, 2], [3, 4], [5, 6]])
    assert rollout.finals is finals
    rollout.finals = None
    assert rollout.finals is None


def test_dict_observations_with_action_masks() -> None:
    space = Dict({"x": Box(-9, 9, (2,), np.float32), "action_mask": MultiBinary(4)})
    rollout = Rollout(Spaces(space, Discrete(4)), 2, 2)
    mask = np.array([[1, 0, 1, 1], [0, 1, 1, 1]], np.int8)
    for t in range(2):
        obs = {"x": obs_of([t, t]), "action_mask": mask}
        zeros = np.zeros(2)
        rollout.write(t, obs, zeros, zeros, zeros, zeros)
    rollout.add_final(1, 0, {"x": obs_of(8), "action_mask": mask[0]})
    assert rollout.env_steps == 4
    np.testing.assert_array_equal(rollout.obs["action_mask"], [mask, mask])
    assert rollout.finals is not None
    np.testing.assert_array_equal(rollout.finals.obs["action_mask"], mask[:1])


def test_extras_must_be_the_same_every_step() -> None:
    rollout = Rollout(SPACES, 2, 2)
    row = (obs_of([0, 0]), np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="name of a field"):
        rollout.write(0, *row, extras={"reward": np.zeros(2)})
    with pytest.raises(ValueError, match=r"expected \[2, \.\.\.\]"):
        rollout.write(0, *row, extras={"value": np.zeros(3)})
    rollout.write(0, *row, extras={"value": np.zeros(2)})
    for other in (None, {"log_prob": np.zeros(2)}):
        with pytest.raises(ValueError, match="expected \\['value'\\]"):
            rollout.write(1, *row, extras=other)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="available"):
        Rollout(SPACES, 10**9, 10**6)


def test_memories_restart_after_ends_and_rows_that_are_not_transitions() -> None:
    rollout = Rollout(SPACES, 4, 3)
    rollout.valid[:] = True
    rollout.terminated[0, 0] = rollout.truncated[1, 1] = rollout.terminated[3, 1] = True
    rollout.valid[1, 2] = False
    assert rollout.restarts().T.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert (rollout.in_runs() == 1).all()


def test_runs_below_one_another() -> None:
    rollout = Rollout(SPACES, 8, 2)
    rollout.valid[:] = True
    rollout.valid[3, 0] = rollout.valid[7, 0] = False
    carry = {"h": np.array([[1.0], [2.0], [3.0]])}
    rollout.runs = Runs(np.array([0, 4, 0]), np.array([0, 0, 1]), np.array([3, 3, 8]), carry)
    # Where a run begins it has a carry of its own, whatever the row before was.
    assert rollout.restarts()[:, 0].tolist() == [0] * 8
    assert rollout.in_runs().T.tolist() == [[1, 1, 1, 0, 1, 1, 1, 0], [1] * 8]
    assert rollout.runs.beginning_at(1) is None
    for t, envs, carries in ((0, [0, 1], [[1], [3]]), (4, [0], [[2]])):
        found = rollout.runs.beginning_at(t)
        assert found is not None
        assert found[0].tolist() == envs and found[1]["h"].tolist() == carries
