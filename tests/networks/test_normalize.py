import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import CheckpointError
from assay.networks.normalize import RewardScaler, RunningMoments, RunningNormalizer, normalizable
from assay.testing.algorithms import Rig
from assay.testing.envs import Counting

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
DICT = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "kind": spaces.Discrete(3),
        "speed": BOX,
        "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    }
)


def test_moments_of_batches_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((100, 3)) * [1, 10, 0.1] + 1e4
    moments = RunningMoments((3,))
    for part in np.split(rows, [1, 7, 7, 60]):
        moments.update(part)
    assert moments.count == 100
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.var, rows.var(0), rtol=1e-8)


def test_normalizer_by_hand():
    normalizer = RunningNormalizer(BOX)
    raw = np.array([[20.0, -3.0]], np.float32)
    np.testing.assert_array_equal(normalizer.normalize(raw), [[10, -3]])  # nothing seen: only clip
    normalizer.update(np.array([[[0.0, 1.0]], [[4.0, 1.0]]], np.float32))  # [T=2, N=1, 2]
    # mean (2, 1), variance (4, 0): (x - 2) / 2, and what was constant has no scale: x - 1
    out = normalizer.normalize(np.array([[4.0, 1.0], [-2.0, 1.5]], np.float32))
    np.testing.assert_allclose(out, [[1, 0], [-2, 0.5]], rtol=1e-6)
    assert out.dtype == np.float32


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e6])
def test_numbers_of_any_scale_come_out_alike(scale):
    rng = np.random.default_rng(0)
    obs = (rng.standard_normal((500, 2)) * scale + [0.0, 3 * scale]).astype(np.float32)
    normalizer = RunningNormalizer(BOX)
    normalizer.update(obs)
    out = normalizer.normalize(obs)
    np.testing.assert_allclose(out.std(0), [1, 1], rtol=1e-4)
    np.testing.assert_allclose(out.mean(0), [0, 0], atol=1e-4)
    np.testing.assert_allclose(normalizer.normalize_torch(torch.from_numpy(obs)), out, rtol=1e-5)


def test_rewards_of_any_scale_come_out_alike():
    rng = np.random.default_rng(0)
    reward, done = rng.standard_normal((500, 2)), rng.random((500, 2)) < 0.1
    for scale in (1e-6, 1e-3, 1.0, 1e6):
        scaler = RewardScaler(2, gamma=0.9)
        scaler.update(reward * scale, done)
        np.testing.assert_allclose(
            scaler.scale(reward * scale), reward / np.sqrt(scaler.moments.var) * scale, rtol=1e-6
        )
        small = torch.tensor([0.5 * scale])
        by_torch = scaler.scale_torch(small).item()
        assert by_torch == pytest.approx(scaler.scale(small.numpy()).item(), rel=1e-6)


def test_what_differs_by_rounding_alone_is_constant():
    rng = np.random.default_rng(0)
    step, wider = np.spacing(np.float32(1e3)), np.spacing(np.float32(1024.5))
    column = {
        "constant": np.full(500, 1e3),
        "zero": np.zeros(500),
        "rounded at 1e3": 1e3 + step * rng.integers(-1, 2, 500),
        "rounded at -1e3": -1e3 + step * rng.integers(-1, 2, 500),
        "rounded beyond 2^10": 1024.5 + wider * rng.integers(-1, 2, 500),
        "residue": rng.standard_normal(500) * 1e-12,
    }
    rows = np.stack([*column.values()], 1).astype(np.float32)
    normalizer = RunningNormalizer(spaces.Box(-np.inf, np.inf, (len(column),), np.float32))
    for part in np.split(rows, 50):  # as a run shows them, a few at a time
        normalizer.update(part)
        np.testing.assert_allclose(normalizer.normalize(rows), 0, atol=5e-4)
    rows[0] += 0.5  # something new is clipped, not blown up
    np.testing.assert_allclose(normalizer.normalize(rows[:1]), 0.5, atol=5e-4)


def test_a_small_change_of_a_large_number_is_seen():
    rng = np.random.default_rng(0)
    obs = (1e3 + 1e-3 * rng.standard_normal((500, 2))).astype(np.float32)
    normalizer = RunningNormalizer(BOX)
    normalizer.update(obs)
    np.testing.assert_allclose(normalizer.normalize(obs).std(0), [1, 1], rtol=0.01)


def test_rewards_that_are_all_the_same_stay_what_they_are():
    scaler = RewardScaler(2, gamma=0.9)
    scaler.update(np.full((50, 2), 3.0), np.ones((50, 2), bool))
    assert scaler.scale(np.array([3.0, 30.0])).tolist() == [3.0, 10.0]
    assert scaler.scale_torch(torch.tensor([3.0])).item() == 3.0


def test_normalizer_ignores_invalid_rows_and_never_changes_by_use():
    normalizer = RunningNormalizer(BOX)
    obs = np.array([[[0.0, 0.0]], [[9e9, np.nan]], [[2.0, 2.0]]], np.float32)
    normalizer.update(obs, valid=np.array([[True], [False], [True]]))
    before = normalizer.state()
    normalizer.normalize(obs[0])
    normalizer.normalize_torch(torch.from_numpy(obs[0]))
    assert normalizer.state()[""]["count"] == before[""]["count"] == 2
    np.testing.assert_allclose(normalizer.normalize(obs[2]), [[1, 1]], rtol=1e-6)


def test_normalizer_touches_only_float_numbers():
    normalizer = RunningNormalizer(DICT)
    assert normalizable(DICT)
    assert not normalizable(spaces.Discrete(2))
    assert not normalizable(DICT["image"])
    obs = {
        "image": np.full((2, 4, 4, 3), 200, np.uint8),
        "kind": np.array([0, 2]),
        "speed": np.array([[0.0, 0.0], [2.0, 4.0]], np.float32),
        "matrix": np.ones((2, 2, 2), np.float32),
    }
    normalizer.update(obs)
    out = normalizer.normalize(obs)
    assert all(out[k] is obs[k] for k in ("image", "kind"))
    np.testing.assert_array_equal(out["matrix"], np.zeros((2, 2, 2)))  # a constant is its mean
    np.testing.assert_allclose(out["speed"], [[-1, -1], [1, 1]], rtol=1e-6)
    assert obs["speed"][1, 1] == 4
    image = obs["image"]
    assert RunningNormalizer(DICT["image"]).normalize(image) is image


def test_numpy_and_torch_paths_agree_also_after_an_update():
    rng = np.random.default_rng(0)
    normalizer = RunningNormalizer(BOX)
    for _ in range(2):
        obs = rng.standard_normal((50, 2)).astype(np.float32) * 5 + 3
        normalizer.update(obs)
        expected = normalizer.normalize_torch(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(normalizer.normalize(obs), expected, rtol=1e-6)


def test_normalizer_state_round_trip():
    rng = np.random.default_rng(0)
    first, second = RunningNormalizer(DICT), RunningNormalizer(DICT)
    obs = {
        "speed": rng.standard_normal((9, 2)).astype(np.float32),
        "matrix": rng.standard_normal((9, 2, 2)).astype(np.float32),
    }
    first.update(obs)
    second.load_state(first.state())
    np.testing.assert_array_equal(first.normalize(obs)["speed"], second.normalize(obs)["speed"])
    first.update(obs)
    assert second.state()["speed"]["count"] == 9  # no array is shared
    json.dumps({"count": first.state()["speed"]["count"]})
    with pytest.raises(CheckpointError, match="same observation space"):
        RunningNormalizer(BOX).load_state(first.state())
    with pytest.raises(CheckpointError, match=r"shape \(2,\); expected \(3,\)"):
        RunningNormalizer(spaces.Box(-1, 1, (3,))).load_state({"": first.state()["speed"]})


def test_normalizer_traces(assert_traces):
    normalizer = RunningNormalizer(BOX)
    normalizer.update(np.random.default_rng(0).standard_normal((9, 2)))
    assert_traces(normalizer.normalize_torch, (torch.randn(3, 2),), (torch.randn(3, 2),))


def test_reward_scaler_by_hand():
    scaler = RewardScaler(2, gamma=0.5)
    # Returns of env 0: 1, 2 + 0.5 = 2.5, done, then 4 afresh. Env 1: 0, 0, 0.
    reward = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]])
    done = np.array([[False, False], [True, False], [False, False]])
    scaler.update(reward, done)
    returns = [1, 0, 2.5, 0, 4, 0]
    assert scaler.moments.count == 6
    assert scaler.moments.var == pytest.approx(np.var(returns))
    scaled = scaler.scale(np.array([1.0, -1000.0]))
    assert scaled[0] == pytest.approx(1 / np.std(returns), rel=1e-6)
    assert scaled[1] == -10
    assert scaled.dtype == np.float32
    # The next reward of env 0 continues: 1 + 0.5 * 4 = 3.
    scaler.update(np.array([1.0, 0.0]), np.array([False, False]))
    assert scaler.moments.mean == pytest.approx(np.mean([*returns, 3, 0]))


def test_reward_scaler_forgets_returns_in_flight():
    scaler = RewardScaler(2, gamma=0.5)
    scaler.update(np.array([4.0, 8.0]), np.zeros(2, bool))
    scaler.restart()
    scaler.update(np.array([1.0, 1.0]), np.zeros(2, bool))
    # Returns 4, 8, then 1, 1 afresh, not 3 and 5
    assert scaler.moments.mean == pytest.approx(14 / 4)


def test_a_reset_of_all_environments_restarts_the_returns():
    """Environments that cannot save themselves are reset when a checkpoint is written."""
    rig = Rig("a2c", Counting, normalize_reward=True, horizon=5)
    rig.loop.iterate()
    assert rig.algorithm.reward_scale.state()["carry"].all()
    rig.collector.start()
    assert not rig.algorithm.reward_scale.state()["carry"].any()


def test_normalizer_takes_any_number_of_axes():
    normalizer = RunningNormalizer(spaces.Box(-9, 9, (2, 3), np.float32))  # [agents, features]
    rng = np.random.default_rng(0)
    obs = (rng.standard_normal((40, 5, 2, 3)) * np.arange(1, 7).reshape(2, 3)).astype(np.float32)
    normalizer.update(obs)
    out = normalizer.normalize(obs)
    np.testing.assert_allclose(out.mean((0, 1)), np.zeros((2, 3)), atol=1e-5)
    np.testing.assert_allclose(out.std((0, 1)), np.ones((2, 3)), rtol=1e-4)
    image = RunningNormalizer(DICT["image"], images=True)
    assert normalizable(DICT["image"], images=True)
    image.update(np.full((2, 4, 4, 3), 200, np.uint8))
    assert not image.normalize(np.full((1, 4, 4, 3), 200, np.uint8)).any()


def test_reward_scaler_is_the_same_step_by_step_and_in_one_go():
    rng = np.random.default_rng(0)
    reward, done = rng.standard_normal((40, 3)), rng.random((40, 3)) < 0.2
    valid = rng.random((40, 3)) < 0.8
    whole, steps = RewardScaler(3, 0.9), RewardScaler(3, 0.9)
    whole.update(reward, done, valid)
    for t in range(40):
        steps.update(reward[t], done[t], valid[t])
    assert whole.moments.count == steps.moments.count == valid.sum()
    np.testing.assert_allclose(whole.moments.var, steps.moments.var)
    np.testing.assert_allclose(whole.state()["carry"], steps.state()["carry"])


def test_reward_scaler_skips_invalid_rows():
    skipping, plain = RewardScaler(1, 0.5), RewardScaler(1, 0.5)
    reward = np.array([[1.0], [np.nan], [3.0], [np.nan], [4.0]])
    done = np.array([[True], [True], [False], [True], [False]])
    skipping.update(reward, done, valid=np.isfinite(reward))
    plain.update(reward[::2], done[::2])
    assert skipping.moments.var == plain.moments.var
    assert skipping.state()["carry"] == plain.state()["carry"]


def test_reward_scaler_state_round_trip():
    rng = np.random.default_rng(0)
    first, second = RewardScaler(2, 0.9), RewardScaler(2, 0.9)
    first.update(rng.standard_normal((5, 2)), np.zeros((5, 2), bool))
    second.load_state(first.state())
    for scaler in (first, second):
        scaler.update(np.ones(2), np.zeros(2, bool))
    assert first.moments.var == second.moments.var
    with pytest.raises(CheckpointError, match="2 environments; expected 3"):
        RewardScaler(3, 0.9).load_state(first.state())
    with pytest.raises(ValueError, match=r"expected \[T, 3\]"):
        RewardScaler(3, 0.9).update(np.ones(2), np.ones(2))
