"""The store by hand, the rules that turn its knob, and the environment around it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.checks import check_env
from assay.envs.make import make_env, make_vector
from assay.envs.systems import tuning
from assay.envs.systems.tuning import (
    HOUR,
    LAG,
    RULES,
    STEPS,
    CompactionRate,
    Day,
    Store,
    judge,
    tune,
)

ID = "assay/CompactionRate-v0"


def flat_day(reads: float, writes: float, debt: float) -> Day:
    day = Day(np.random.default_rng(0))
    day.reads, day.writes, day.debt = [reads] * STEPS, [writes] * STEPS, debt
    return day


class TestStore:
    def test_an_interval(self) -> None:
        store = Store(flat_day(0.3, 0.05, 12.0))
        # Background 0.3 x 0.6 = 0.18 of the disk; demand 0.3 (1 + 12 / 60) + 0.05 = 0.41.
        assert store.step(1.0) == pytest.approx(1.0)  # rho = 0.41 / 0.82 = 0.5: twice as slow
        assert store.rho == pytest.approx(0.5)
        assert store.debt == pytest.approx(12.2)
        store.step(1.0)
        assert store.background == pytest.approx(0.7 * 0.18 + 0.18)

    def test_work_pays_only_when_it_is_complete(self) -> None:
        store = Store(flat_day(0.1, 0.0, 10.0))
        for _ in range(LAG):
            store.step(1.0)
        assert store.debt == 10.0  # and all this time the disk was busy with it
        store.step(0.0)
        assert store.debt == pytest.approx(10.0 - 0.18)

    def test_no_more_is_merged_than_there_is(self) -> None:
        store = Store(flat_day(0.1, 0.0, 1.0))
        done = 0.0
        for _ in range(3 * LAG):
            store.step(1.0)
            done += store.background
        assert done == pytest.approx(1.0) and store.debt == pytest.approx(0.0)
        assert store.background == 0.0

    def test_writes_are_throttled_not_lost(self) -> None:
        store = Store(flat_day(0.0, 0.1, 37.5))  # half way from 25 to 50
        cost = store.step(0.0)
        assert store.held == pytest.approx(0.05) and store.debt == pytest.approx(37.5 + 4 * 0.05)
        assert cost == pytest.approx(1 / 0.95 - 1 + 10 / 4)
        full = Store(flat_day(0.0, 0.1, 60.0))
        full.step(0.0)
        full.step(0.0)
        assert full.held == pytest.approx(0.2) and full.debt == 60.0

    def test_overload_costs_along_the_tangent(self) -> None:
        near = [(tuning.slowdown(0.9 + h) - 10.0) / h for h in (-1e-6, 1e-6)]
        assert near == pytest.approx([100, 100], rel=1e-3)
        assert tuning.slowdown(1.5) == pytest.approx(70)


class TestDay:
    def test_shape(self) -> None:
        days = [Day(np.random.default_rng(seed)) for seed in range(200)]
        reads = np.mean([day.reads for day in days], axis=0)
        assert 13 <= reads.argmax() / HOUR <= 17 and reads.max() > 2 * reads[int(2 * HOUR)]
        assert min(min(day.writes) for day in days) > 0
        work = np.mean([np.mean(day.reads) + 5 * np.mean(day.writes) for day in days])
        assert 0.4 < work < 0.8  # there is enough disk for all of it, but not at every hour

    def test_too_little_and_too_much_are_worse(self) -> None:
        low, middle, high = (
            judge(lambda k=knob: tuning.constant(k), range(10), "train").mean()  # type: ignore[misc]
            for knob in (0.1, 0.4, 1.0)
        )
        assert low < high < middle


class TestEnvironment:
    def test_is_sound(self) -> None:
        assert [result for result in check_env(ID, steps=1000) if not result.ok] == []

    def test_a_day(self) -> None:
        env = make_env(ID)
        obs, _ = env.reset(seed=1)
        for step in range(STEPS):
            assert env.observation_space.contains(obs)
            assert obs[8] == pytest.approx(math.sin(2 * math.pi * step / STEPS), abs=1e-6)
            obs, reward, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
            assert reward < 0 and not terminated and truncated == (step == STEPS - 1)
        with pytest.raises(EnvError, match="over"):
            env.step(np.array([0.5], np.float32))

    def test_reward_is_minus_a_tenth_of_the_cost(self) -> None:
        env = CompactionRate()
        env.reset(seed=2)
        twin = Store(env.store.day)
        # What is beyond the ends counts as the end.
        for action, knob in ((-0.5, 0.25), (1.7, 1.0), (-1.2, 0.0), (0.75, 0.875)):
            assert env.step(np.array([action]))[1] == -twin.step(knob) / 10

    def test_splits_and_seeds(self) -> None:
        loads = {}
        for split in ("train", "test"):
            env = CompactionRate(split)  # type: ignore[arg-type]
            for seed in range(3):
                env.reset(seed=seed)
                loads[split, seed] = tuple(env.store.day.reads)
                env.reset(seed=seed)
                assert tuple(env.store.day.reads) == loads[split, seed]
        assert len(set(loads.values())) == 6
        with pytest.raises(EnvError, match="'train' or 'test'"):
            make_env(ID, env_kwargs={"split": "dev"})

    def test_refuses_what_is_no_number(self) -> None:
        env = CompactionRate()
        env.reset(seed=0)
        with pytest.raises(EnvError, match="nan"):
            env.step(np.array([math.nan]))

    def test_goes_on_exactly(self) -> None:
        rng = np.random.default_rng(3)
        actions = rng.uniform(-1, 1, (600, 2, 1)).astype(np.float32)
        trail: list[Any] = []
        with make_vector(ID, 2) as envs:
            envs.reset(seed=4)
            for step, action in enumerate(actions):
                if step == 200:
                    state = envs.get_state()
                obs, reward, *_ = envs.step(action)
                trail.append((obs.copy(), reward.copy()))
        with make_vector(ID, 2) as envs:
            envs.reset(seed=9)
            envs.set_state(state)
            for action, expected in zip(actions[200:], trail[200:], strict=True):
                for now, then in zip(envs.step(action)[:2], expected, strict=True):
                    np.testing.assert_array_equal(now, then)


def seen(debt: float, hour: float = 0.0) -> np.ndarray:
    obs = np.zeros(11)
    angle = 2 * math.pi * hour / 24
    obs[5], obs[8], obs[9] = debt, math.sin(angle), math.cos(angle)
    return obs


class TestRules:
    def test_threshold_has_a_memory(self) -> None:
        control = tuning.threshold(0.2, 0.8, 0.1, 0.9)
        assert [control(seen(d)) for d in (0.5, 0.9, 0.5, 0.1, 0.5)] == [0.1, 0.9, 0.9, 0.1, 0.1]

    def test_pi(self) -> None:
        control = tuning.proportional_integral(0.5, 0.4, 0.1, 0.3)
        # 0.3 + 0.4 x 0.5 + 0.1 x 0.5, then the sum is 1, then 1 - 0.5
        assert [control(seen(d)) for d in (1.0, 1.0, 0.0)] == pytest.approx([0.55, 0.6, 0.15])

    def test_pi_does_not_wind_up(self) -> None:
        control = tuning.proportional_integral(0.0, 1.0, 0.1, 0.0)
        for _ in range(1000):
            assert control(seen(5.0)) == 1.0
        assert control(seen(0.0)) < 0.1

    def test_timetable(self) -> None:
        control = tuning.timetable(9.0, 18.0, 0.2, 0.7, 1.0)
        assert [control(seen(0.5, h)) for h in (0.5, 8.9, 9.1, 17.9, 18.1, 23.5)] == [
            0.7, 0.7, 0.2, 0.2, 0.7, 0.7,
        ]  # fmt: skip
        assert control(seen(1.1, 12.0)) == 1.0

    def test_search_finds_what_is_good_on_the_training_days(self) -> None:
        found = tune("constant", trials=16, days=3, seed=1)
        assert found == tune("constant", trials=16, days=3, seed=1)
        values = {
            k: judge(lambda k=k: tuning.constant(k), range(3), "train").mean()  # type: ignore[misc]
            for k in (0.1, 0.2, 0.7, 1.0, found[0])
        }
        assert max(values, key=lambda k: values[k]) == found[0]

    @pytest.mark.parametrize("name", RULES)
    def test_every_rule_runs_within_its_ranges(self, name: str) -> None:
        rule, ranges = RULES[name]
        for point in ([low for low, _ in ranges], [high for _, high in ranges]):
            assert np.isfinite(judge(lambda p=point: rule(*p), [0], "train")).all()  # type: ignore[misc]
