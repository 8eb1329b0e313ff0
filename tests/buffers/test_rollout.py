from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from assay.buffers.rollout import Rollout, Segment, Starts
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


def test_what_is_written_is_read_as_tensors_that_share_memory() -> None:
    rollout = Rollout(SPACES, 4, 3)
    fill(rollout)
    tags = 10 * torch.arange(4)[:, None] + torch.arange(3)
    tensors = rollout.tensors()
    assert set(tensors) == {
        "obs", "action", "reward", "terminated", "truncated", "valid", "log_prob", "logits",
    }  # fmt: skip
    torch.testing.assert_close(tensors["obs"], torch.stack([tags, -tags], -1).float())
    torch.testing.assert_close(tensors["action"], tags % 4)
    torch.testing.assert_close(tensors["reward"], tags.float())
    torch.testing.assert_close(tensors["terminated"], tags % 3 == 0)
    torch.testing.assert_close(tensors["truncated"], tags % 5 == 0)
    torch.testing.assert_close(tensors["valid"], tags % 7 != 0)
    torch.testing.assert_close(tensors["log_prob"], -tags.float())
    assert tensors["logits"].shape == (4, 3, 3) and tensors["logits"].dtype == torch.float32
    assert rollout.env_steps == int((tags % 7 != 0).sum())
    rollout.reward[2, 1] = 77
    assert tensors["reward"][2, 1] == 77
    moved = rollout.tensors("meta")  # any device but the CPU gets copies
    assert moved["obs"].device.type == "meta"


def test_reset_forgets() -> None:
    rollout = Rollout(SPACES, 4, 3)
    fill(rollout)
    rollout.add_final(1, 2, obs_of(5))
    rollout.last_obs = obs_of([1, 2, 3])
    rollout.reset()
    assert rollout.env_steps == 0 and rollout.finals is None and rollout.last_obs is None


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
    np.testing.assert_array_equal(rollout.tensors()["obs"]["action_mask"].numpy(), [mask, mask])
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


def test_state_goes_round() -> None:
    rollout = Rollout(SPACES, 4, 3)
    fill(rollout)
    rollout.add_final(1, 2, obs_of(5), np.array([1.0]))
    rollout.initial_carry = np.arange(3.0)
    rollout.last_obs = obs_of([7, 8, 9])
    rollout.starts = Starts(np.array([2]), np.array([1]), np.array([4.0]))
    state = rollout.state()
    rollout.starts.carry[0] = 0
    rollout.reward.fill(0)
    copy = Rollout(SPACES, 4, 3)
    views = copy.tensors()
    copy.load_state(state)
    torch.testing.assert_close(views["obs"], rollout.tensors()["obs"])  # loaded in place
    assert copy.reward[2, 1] == 21 and copy.extras["log_prob"][2, 1] == -21
    np.testing.assert_array_equal(copy.last_obs, rollout.last_obs)
    np.testing.assert_array_equal(copy.initial_carry, rollout.initial_carry)
    assert copy.finals is not None and copy.last_carry is None
    np.testing.assert_array_equal(copy.finals.obs, obs_of([5]))
    assert copy.starts is not None and copy.starts.replace(2, np.zeros(3)).tolist() == [0, 4, 0]
    copy.load_state(Rollout(SPACES, 4, 3).state() | {"extras": state["extras"]})
    assert copy.finals is None and copy.starts is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="available"):
        Rollout(SPACES, 10**9, 10**6)


def test_segments_are_padded_and_bootstrap_where_they_are_cut() -> None:
    segments = [
        Segment(  # ends its episode
            obs_of([0, 1, 2]), np.array([0, 1, 2]), np.array([1.0, 2, 3]), True, False,
            {"value": np.array([0.1, 0.2, 0.3])}, initial_carry={"h": np.array([1.0])},
        ),
        Segment(  # cut by the batch: mid-episode to mid-episode
            obs_of([10]), np.array([3]), np.array([4.0]), False, False,
            {"value": np.array([0.4])}, initial_carry={"h": np.array([2.0])},
            last_obs=obs_of(11), last_carry={"h": np.array([5.0])},
        ),
        Segment(  # cut by a time limit
            obs_of([20, 21]), np.array([1, 1]), np.array([5.0, 6]), False, True,
            {"value": np.array([0.5, 0.6])}, initial_carry={"h": np.array([3.0])},
            last_obs=obs_of(22), last_carry={"h": np.array([6.0])},
        ),
    ]  # fmt: skip
    rollout = Rollout.segments(SPACES, segments)
    T, F = True, False
    assert rollout.valid.T.tolist() == [[T, T, T], [T, F, F], [T, T, F]]
    assert rollout.env_steps == 6
    assert rollout.terminated.T.tolist() == [[F, F, T], [F, F, F], [F, F, F]]
    assert rollout.truncated.T.tolist() == [[F, F, F], [T, F, F], [F, T, F]]
    assert rollout.reward.T.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert rollout.action.T.tolist() == [[0, 1, 2], [3, 0, 0], [1, 1, 0]]
    np.testing.assert_array_equal(rollout.obs[:2, 2], obs_of([20, 21]))
    np.testing.assert_allclose(rollout.extras["value"][:, 0], [0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_array_equal(rollout.initial_carry["h"], [[1], [2], [3]])
    finals = rollout.finals
    assert finals is not None
    assert list(zip(finals.step.tolist(), finals.env.tolist(), strict=True)) == [(0, 1), (1, 2)]
    np.testing.assert_array_equal(finals.obs, obs_of([11, 22]))
    np.testing.assert_array_equal(finals.carry["h"], [[5], [6]])
    assert rollout.last_obs.shape == (3, 2)


def test_bad_segments_are_refused() -> None:
    def segment(**changes: Any) -> Segment:
        fields = {
            "obs": obs_of([1, 2]),
            "action": np.zeros(2),
            "reward": np.zeros(2),
            "terminated": True,
            "truncated": False,
        }
        return Segment(**(fields | changes))

    for segments, message in (
        ([], "at least one step"),
        ([segment(reward=np.zeros(0))], "at least one step"),
        ([segment(terminated=False)], "no last_obs"),
        ([segment(action=np.zeros(1))], "2 rewards but 1 rows"),
        ([segment(extras={"value": np.zeros(2)}), segment()], "expected \\['value'\\]"),
    ):
        with pytest.raises(ValueError, match=message):
            Rollout.segments(SPACES, segments)


def test_steps_are_spread_to_multiples() -> None:
    data = Rollout(SPACES, 7, 1)
    for t in range(7):
        cut = np.array([t in (1, 4)])
        over = np.array([t == 6])
        extras = {"log_prob": np.array([-float(t)], np.float32)}
        data.write(t, np.full((1, 2), t), np.array([t % 3]), [10.0 * t], over, cut, True, extras)
        if cut[0]:
            data.add_final(t, 0, np.full(2, 100 + t))
    data.last_obs = np.full((1, 2), 9)
    wide = data.spread([0, 2, 5], multiple=4)
    rows = [0, 1, 4, 5, 6, 8, 9]
    assert (wide.length, wide.num_envs) == (12, 1)
    assert np.flatnonzero(wide.valid[:, 0]).tolist() == rows
    assert wide.obs[rows, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert wide.action[rows, 0].tolist() == [t % 3 for t in range(7)]
    assert wide.reward[rows, 0].tolist() == [10 * t for t in range(7)]
    assert wide.extras["log_prob"][rows, 0].tolist() == [-t for t in range(7)]
    assert np.flatnonzero(wide.truncated).tolist() == [1, 6]
    assert np.flatnonzero(wide.terminated).tolist() == [9]
    finals = wide.finals
    assert finals is not None
    assert (finals.step.tolist(), finals.env.tolist()) == ([1, 6], [0, 0])
    assert finals.obs[:, 0].tolist() == [101, 104]
    assert wide.last_obs.tolist() == [[9, 9]]
    wide.obs[0] = wide.last_obs[0] = -1
    assert data.obs[0, 0, 0] == 0 and data.last_obs[0, 0] == 9  # nothing is shared


def test_starts_replace_what_steps_before_left() -> None:
    carry = {"h": np.arange(3.0)[:, None]}
    starts = Starts(np.array([4, 8, 4]), np.array([0, 1, 2]), {"h": np.array([[10.0], [11], [12]])})
    assert starts.replace(3, carry) is carry
    assert starts.replace(4, carry)["h"].tolist() == [[10], [1], [12]]
    assert starts.replace(8, carry)["h"].tolist() == [[0], [11], [2]]
    assert carry["h"].tolist() == [[0], [1], [2]]
