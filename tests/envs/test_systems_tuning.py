"""The store by hand, the rules that turn its knob, and the environment around it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.core.errors import EnvError
from assay.envs.checks import check_env
from assay.envs.make import make_env, make_vector
from assay.envs.systems import tuning
from assay.envs.systems.splits import TRACE_SEEDS
from assay.envs.systems.tuning import (
    ANNOUNCED,
    BACKGROUND,
    COSINE,
    DEBT,
    HELD,
    HOUR,
    LAG,
    NOTICE,
    READS_LATELY,
    RULES,
    SEEN_DEBT,
    SINE,
    STEPS,
    WRITES,
    CompactionRate,
    draw_day,
    interval,
    judge,
    tune,
)
from assay.evaluation.evaluate import evaluate

ID = "assay/CompactionRate-v0"


class Store:
    """One store under a load that does not change."""

    def __init__(self, reads: float, writes: float, debt: float) -> None:
        self.load = np.array([reads]), np.array([writes])
        self.state = np.zeros((CompactionRate.state_size, 1))
        self.state[DEBT] = debt

    def step(self, knob: float) -> float:
        return float(interval(self.state, *self.load, np.array([knob]))[0])

    def __getitem__(self, row: int) -> float:
        return float(self.state[row, 0])


class TestStore:
    def test_an_interval(self) -> None:
        store = Store(0.24, 0.03, 10.0)
        # Background 0.7 x 0.6 = 0.42 of the disk. Debt of 10 is a sixth of the way from 9 to 15, so
        # a sixth of the writes wait: demand is 0.24 (1 + 10 / 40) + 0.025. A store without debt
        # and background work would be at 0.27.
        demand = 0.24 * 1.25 + 0.025
        cost = 1 / (1 - demand / 0.58) - 1 / (1 - 0.27) + 10 / 36
        assert store.step(1.0) == pytest.approx(cost)
        assert store[DEBT] == pytest.approx(10.0 + 4 * 0.025)
        store.step(1.0)
        assert store[BACKGROUND] == pytest.approx(0.3 * 0.42 + 0.42)

    def test_unavoidable_slowdown_costs_nothing(self) -> None:
        for load in (0.0, 0.3, 0.7):
            assert Store(load, 0.05, 0.0).step(0.0) == 0.0
        assert Store(0.3, 0.01, 0.0).step(1.0) == 0.0  # there is nothing to merge
        # 0.2 (1 + 8 / 40) + 0.05 = 0.29 of 0.58, instead of 0.25 of 1
        assert Store(0.2, 0.05, 8.0).step(1.0) == pytest.approx(2 - 1 / 0.75)

    def test_work_helps_only_when_it_is_complete(self) -> None:
        store = Store(0.1, 0.0, 8.0)
        for _ in range(LAG):
            store.step(1.0)
        assert store[DEBT] == 8.0  # and all this time the disk was busy with it
        store.step(0.0)
        assert store[DEBT] == pytest.approx(8.0 - 0.42)

    def test_no_more_is_merged_than_there_is(self) -> None:
        store = Store(0.1, 0.0, 1.0)
        done = 0.0
        for _ in range(4 * LAG):
            store.step(1.0)
            done += store[BACKGROUND]
        assert done == pytest.approx(1.0) and store[DEBT] == pytest.approx(0.0)
        assert store[BACKGROUND] == 0.0

    def test_writes_are_throttled_not_lost(self) -> None:
        store = Store(0.0, 0.1, 12.0)  # half way from 9 to 15
        cost = store.step(0.0)
        assert store[HELD] == pytest.approx(0.05)
        assert store[DEBT] == pytest.approx(12.0 + 4 * 0.05)
        assert cost == pytest.approx(1 / 0.95 - 1 / 0.9 + 10 / 4)
        full = Store(0.0, 0.1, 20.0)
        full.step(0.0)
        full.step(0.0)
        assert full[HELD] == pytest.approx(0.2) and full[DEBT] == 20.0

    def test_overload_costs_along_the_tangent(self) -> None:
        near = [(tuning.slowdown(np.array(0.8 + h)) - 5.0) / h for h in (-1e-6, 1e-6)]
        assert near == pytest.approx([25, 25], rel=1e-3)
        assert tuning.slowdown(np.array(1.6)) == pytest.approx(25)


class TestDay:
    def test_shape(self) -> None:
        days = [draw_day(seed) for seed in range(200)]
        reads = np.mean([day.reads for day in days], axis=0)
        assert 13 <= reads.argmax() / HOUR <= 17 and reads.max() > 2 * reads[int(2 * HOUR)]
        assert min(day.writes.min() for day in days) > 0
        work = np.mean([day.reads.mean() + 5 * day.writes.mean() for day in days])
        assert 0.4 < work < 0.8  # there is enough disk for all of it, but not at every hour

    def test_bulk_loads_are_announced(self) -> None:
        risen, calm = [], []
        for day in map(draw_day, range(200)):
            told = day.seen[:, ANNOUNCED]
            for t in np.flatnonzero((told[:-1] == 0) & (told[1:] > 0)):
                if t + 2 + NOTICE < STEPS:
                    # It has just come into sight, so it begins in NOTICE intervals.
                    risen.append(day.writes[t + NOTICE])
                    calm.append(day.writes[t + NOTICE - 1])
        assert len(risen) > 200 and np.mean(risen) > np.mean(calm) + 0.08

    def test_measurements_are_of_the_interval_before(self) -> None:
        day = draw_day(3)
        ratio = 0.1 * day.seen[1:, WRITES] / day.writes
        assert abs(ratio.mean() - 1) < 0.05 and 0.05 < ratio.std() < 0.15
        lately = 0.5 * day.seen[0, READS_LATELY]
        assert lately == pytest.approx(0.5 * day.seen[0, 0])
        second = 0.5 * day.seen[0, 0] + 0.5 * day.seen[1, 0]
        assert day.seen[1, READS_LATELY] == pytest.approx(second)

    def test_too_little_and_too_much_are_worse(self) -> None:
        low, middle, high = (
            judge(lambda k=knob: tuning.constant(k), range(20), "train").mean()  # type: ignore[misc]
            for knob in (0.1, 0.45, 1.0)
        )
        assert low < middle and high < middle


class TestEnvironment:
    def test_passes_the_environment_check(self) -> None:
        assert [result for result in check_env(ID, steps=500) if not result.ok] == []

    def test_a_day(self) -> None:
        env = make_env(ID)
        obs, _ = env.reset(seed=1)
        for step in range(STEPS):
            assert env.observation_space.contains(obs)
            assert obs[SINE] == pytest.approx(math.sin(2 * math.pi * step / STEPS), abs=1e-6)
            obs, reward, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
            assert math.isfinite(reward) and not terminated and truncated == (step == STEPS - 1)
        with pytest.raises(EnvError, match="over"):
            env.step(np.array([0.5], np.float32))

    def test_reward_is_minus_a_tenth_of_the_cost(self) -> None:
        envs = CompactionRate()
        envs.reset(seed=2)
        day = draw_day(envs.days[0])
        twin = Store(0.0, 0.0, day.debt)
        # What is beyond the ends counts as the end.
        for t, (action, knob) in enumerate(((-0.5, 0.25), (1.7, 1.0), (-1.2, 0.0), (0.75, 0.875))):
            twin.load = day.reads[t : t + 1], day.writes[t : t + 1]
            assert envs.step(np.array([[action]]))[1][0] == pytest.approx(-twin.step(knob) / 10)

    def test_splits_and_seeds(self) -> None:
        for split in ("train", "test"):
            envs = CompactionRate(50, split=split)
            envs.reset(seed=0)
            days = envs.days
            assert all(day in TRACE_SEEDS[split] for day in days) and len(set(days)) > 45
            for _ in range(STEPS):
                envs.step(np.zeros((50, 1), np.float32))
            assert all(day in TRACE_SEEDS[split] for day in envs.days) and envs.days != days
            envs.reset(seed=0)
            assert envs.days == days
        assert max(TRACE_SEEDS["train"]) < 10_000 and min(TRACE_SEEDS["test"]) >= 1_000_000
        with pytest.raises(EnvError, match="'train' or 'test'"):
            make_env(ID, env_kwargs={"split": "dev"})

    def test_refuses(self) -> None:
        envs = CompactionRate()
        envs.reset(seed=0)
        with pytest.raises(EnvError, match="nan"):
            envs.step(np.array([[math.nan]]))
        with pytest.raises(EnvError, match="a day has 144"):
            CompactionRate(max_episode_steps=145)

    @pytest.mark.parametrize("backend", ["sync", "vector"])
    def test_restores_exactly(self, backend: Any) -> None:
        rng = np.random.default_rng(3)
        actions = rng.uniform(-1, 1, (400, 2, 1)).astype(np.float32)
        trail: list[Any] = []
        with make_vector(ID, 2, backend=backend) as envs:
            envs.reset(seed=4)
            for step, action in enumerate(actions):
                if step == 100:
                    state = envs.get_state()
                obs, reward, *_ = envs.step(action)
                trail.append((obs.copy(), reward.copy()))
        with make_vector(ID, 2, backend=backend) as envs:
            envs.reset(seed=9)
            assert state is not None
            envs.set_state(state)
            for action, expected in zip(actions[100:], trail[100:], strict=True):
                for now, then in zip(envs.step(action)[:2], expected, strict=True):
                    np.testing.assert_array_equal(now, then)

    def test_batched_and_single_are_the_same(self) -> None:
        actions = np.random.default_rng(3).uniform(-1, 1, (300, 3, 1)).astype(np.float32)
        with make_vector(ID, 3) as fast, make_vector(ID, 3, backend="sync") as slow:
            np.testing.assert_array_equal(fast.reset(seed=4), slow.reset(seed=4))
            for action in actions:
                for one, two in zip(fast.step(action)[:4], slow.step(action)[:4], strict=True):
                    np.testing.assert_array_equal(one, two)


def seen(debt: float, hour: float = 0.0, **columns: float) -> np.ndarray:
    obs = np.zeros((1, 14))
    angle = 2 * math.pi * hour / 24
    obs[0, SEEN_DEBT], obs[0, SINE], obs[0, COSINE] = debt, math.sin(angle), math.cos(angle)
    for name, value in columns.items():
        obs[0, getattr(tuning, name)] = value
    return obs


class TestRules:
    def test_threshold_has_hysteresis(self) -> None:
        control = tuning.threshold(0.2, 0.8, 0.1, 0.9)
        assert [control(seen(d))[0] for d in (0.5, 0.9, 0.5, 0.1, 0.5)] == [0.1, 0.9, 0.9, 0.1, 0.1]

    def test_pi(self) -> None:
        control = tuning.proportional_integral(0.5, 0.4, 0.1, 0.3)
        # 0.3 + 0.4 x 0.5 + 0.1 x 0.5, then the sum is 1, then 1 - 0.5
        assert [control(seen(d))[0] for d in (1.0, 1.0, 0.0)] == pytest.approx([0.55, 0.6, 0.15])

    def test_pi_does_not_wind_up(self) -> None:
        control = tuning.proportional_integral(0.0, 1.0, 0.1, 0.0)
        for _ in range(1000):
            assert control(seen(5.0)) == 1.0
        assert control(seen(0.0)) < 0.1

    def test_timetable(self) -> None:
        control = tuning.timetable(9.0, 18.0, 0.2, 0.7, 1.0)
        assert [control(seen(0.5, h))[0] for h in (0.5, 8.9, 9.1, 17.9, 18.1, 23.5)] == [
            0.7, 0.7, 0.2, 0.2, 0.7, 0.7,
        ]  # fmt: skip
        assert control(seen(1.1, 12.0)) == 1.0

    def test_headroom(self) -> None:
        control = tuning.headroom(0.7, 2.0, 0.1, 0.2, 1.2)
        # 2 (0.7 - 0.5 x 0.8 - 0.1 x 0.5) + 0.1 x 0.5 + 0.2 x 0.25
        busy = seen(0.5, READS_LATELY=0.8, WRITES_LATELY=0.5, ANNOUNCED=0.25)
        assert control(busy)[0] == pytest.approx(0.5 + 0.05 + 0.05)
        assert control(seen(0.5))[0] == 1.0 and control(seen(0.5, READS_LATELY=2.0))[0] == 0.0
        assert control(seen(1.3, READS_LATELY=2.0))[0] == 1.0

    def test_search_finds_what_is_good_on_the_training_days(self) -> None:
        found = tune("constant", trials=16, days=3, seed=1)
        assert found == tune("constant", trials=16, days=3, seed=1)
        values = {
            k: judge(lambda k=k: tuning.constant(k), range(3), "train").mean()  # type: ignore[misc]
            for k in (0.1, 0.2, 0.8, 1.0, found[0])
        }
        assert max(values, key=lambda k: values[k]) == found[0]

    @pytest.mark.parametrize("name", RULES)
    def test_every_rule_runs_within_its_ranges(self, name: str) -> None:
        rule, ranges = RULES[name]
        for point in ([low for low, _ in ranges], [high for _, high in ranges]):
            assert np.isfinite(judge(lambda p=point: rule(*p), [0], "train")).all()  # type: ignore[misc]

    def test_rows_do_not_mix(self) -> None:
        for name, (rule, ranges) in RULES.items():
            middle = [(low + high) / 2 for low, high in ranges]
            together = judge(lambda r=rule, m=middle: r(*m), range(3), "train")  # type: ignore[misc]
            alone = [judge(lambda r=rule, m=middle: r(*m), [k], "train")[0] for k in range(3)]  # type: ignore[misc]
            assert together == pytest.approx(alone), name


def test_ppo_learns_to_work_in_quiet_hours(tmp_path: Path) -> None:
    # In seconds: what no constant knob reaches, however well it is chosen.
    settings: dict[str, Any] = {"env_steps": 80_000, "num_envs": 16, "minibatch_size": 288}
    settings |= {"lr": "linear:1e-3:0", "eval_episodes": 1}
    run = assay.train("ppo", ID, root=tmp_path, seed=1, **settings)
    with make_vector(ID, 50) as envs:
        result = evaluate(run.agent().policy, envs, episodes=100, seed=3)
    knobs = (0.35, 0.4, 0.45, 0.5, 0.55)
    fixed = [judge(lambda k=k: tuning.constant(k), result.seeds, "train").mean() for k in knobs]  # type: ignore[misc]
    assert result.mean > 0.85 * max(fixed)
