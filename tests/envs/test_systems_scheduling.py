"""The cluster by hand, its rules by hand, and the environment around it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.core.errors import EnvError
from assay.envs.checks import check_env
from assay.envs.make import make_env, make_vector
from assay.envs.systems import cluster as rules
from assay.envs.systems.cluster import BASELINES, Cluster, Rule, simulate
from assay.envs.systems.scheduling import (
    JobScheduling,
    judge,
    load_workload,
    tune_reserve,
    window_starts,
    windows_of,
)
from assay.envs.systems.splits import TRACE_SEEDS
from assay.envs.systems.workload import Job, Workload, lublin, write_swf
from assay.evaluation.evaluate import evaluate

ID = "assay/JobScheduling-v0"


def job(submit: float, size: int, run: float, requested: float | None = None) -> Job:
    return Job(0, submit, run, size, run if requested is None else requested)


# Four processors. The first job leaves one idle, the second needs all of them.
FIVE = [job(0, 3, 100), job(1, 4, 50), job(2, 1, 80), job(3, 1, 200), job(4, 2, 20)]

BY_HAND: dict[str, tuple[Rule, list[float]]] = {
    # The second job blocks all others until 100; they start together when it ends.
    "FCFS": (BASELINES["FCFS"], [0, 100, 150, 150, 150]),
    # Until 4 the second (50 s) is first, then the fifth (20 s); neither fits before 100.
    "SJF": (BASELINES["SJF"], [0, 120, 170, 170, 100]),
    # The second is promised 100; the third ends before that, the fourth would not.
    "EASY": (BASELINES["EASY"], [0, 100, 2, 150, 150]),
    # The fifth is promised 100, when it leaves two processors over: the fourth may have one.
    "EASY, SJF order": (BASELINES["EASY, SJF order"], [0, 282, 2, 82, 100]),
    "shortest that fits": (BASELINES["shortest that fits"], [0, 282, 2, 82, 100]),
    # One processor is kept from jobs of more than 90 s: the fourth has to wait for room at 100.
    "held back": (rules.held_back(0.25, 90.0), [0, 300, 2, 100, 100]),
}


class TestRulesByHand:
    @pytest.mark.parametrize("name", BY_HAND)
    def test_starts(self, name: str) -> None:
        rule, expected = BY_HAND[name]
        assert simulate(rule, FIVE, 4).start == expected

    def test_slowdowns(self) -> None:
        slowdowns = simulate(BASELINES["FCFS"], FIVE, 4).slowdowns()
        # (wait + run) / run
        expected = [1, (99 + 50) / 50, (148 + 80) / 80, (147 + 200) / 200, (146 + 20) / 20]
        assert slowdowns == pytest.approx(expected)

    def test_slowdown_is_bounded(self) -> None:
        jobs = [job(0, 1, 6), job(0, 1, 2), job(0, 1, 2, 60), job(0, 1, 0)]
        done = simulate(BASELINES["FCFS"], jobs, 1)
        assert done.start == [0, 6, 8, 10]
        # Of less than ten seconds in all: 1. (8 + 2) / 10 and (10 + 0) / 10 are just that.
        assert done.slowdowns() == [1, 1, 1, 1]
        late = simulate(BASELINES["FCFS"], [job(0, 1, 40), job(0, 1, 2)], 1)
        assert late.slowdowns() == pytest.approx([1, 4.2])

    def test_backfilling_goes_by_estimates(self) -> None:
        # The first ends at 50, not at 100; the third asks for too much to be let by at 2.
        jobs = [job(0, 3, 50, 100), job(1, 4, 50), job(2, 1, 40, 120), job(3, 1, 40, 90)]
        assert simulate(BASELINES["EASY"], jobs, 4).start == [0, 50, 100, 3]

    def test_backfilling_uses_what_the_first_leaves_over(self) -> None:
        # The second is promised 100 and leaves one processor: the third may have it for long.
        jobs = [job(0, 3, 100), job(1, 3, 50), job(2, 1, 500)]
        assert simulate(BASELINES["EASY"], jobs, 4).start == [0, 100, 2]

    def test_promise(self) -> None:
        cluster = Cluster([job(0, 1, 30), job(0, 2, 60), job(0, 1, 60), job(0, 3, 5)], 4)
        for number in range(3):
            cluster.begin(number)
        assert rules.promise(cluster, 3) == (60, 1)  # both that end at 60 count
        overdue = Cluster([job(0, 4, 100, 10), job(20, 2, 5)], 4)
        overdue.begin(0)
        overdue.advance()
        assert rules.promise(overdue, 1) == (20, 2)

    def test_scores(self) -> None:
        cluster = Cluster([job(0, 1, 9), job(0, 8, 100), job(5, 2, 1000), job(100, 4, 1)], 8)
        for _ in range(2):
            cluster.advance()
        assert cluster.now == 100
        assert rules.by_wfp3(cluster, 1) == -8.0  # (100 / 100)^3 x 8
        assert rules.by_unicep(cluster, 1) == pytest.approx(-100 / (3 * 100))
        assert rules.by_unicep(cluster, 0) == pytest.approx(-100 / 9)  # log2 of at least 2
        assert rules.by_f1(cluster, 1) == pytest.approx(2 * 8)
        assert rules.by_f1(cluster, 2) == pytest.approx(3 * 2 + 870 * math.log10(5))
        assert rules.by_arrival(cluster, 2) < rules.by_arrival(cluster, 3)


@pytest.mark.parametrize("name", BASELINES)
def test_no_processor_is_used_twice_and_every_job_runs_once(name: str) -> None:
    jobs = lublin(150, 32, load=1.2, seed=5).jobs
    done = simulate(BASELINES[name], jobs, 32)
    assert all(s >= j.submit for s, j in zip(done.start, jobs, strict=True))  # so none is NaN
    changes = [(s + j.run, -j.size) for s, j in zip(done.start, jobs, strict=True)]
    changes += [(s, j.size) for s, j in zip(done.start, jobs, strict=True)]
    used = np.cumsum([size for _, size in sorted(changes)])
    assert used.max() <= 32 and used.max() > 24 and used[-1] == 0 and used.min() >= 0


def test_known_orderings_on_the_shipped_workload() -> None:
    workload = load_workload()
    windows = window_starts(workload, 256)[7000::500]
    mean = {n: judge(rule, workload, windows).mean() for n, rule in BASELINES.items()}
    assert mean["EASY"] < 0.5 * mean["FCFS"]
    assert mean["EASY, SJF order"] < mean["EASY"]
    assert mean["EASY, SJF order"] < mean["SJF"]


class TestCluster:
    def test_refuses(self) -> None:
        cluster = Cluster(FIVE, 4)
        with pytest.raises(EnvError, match="Job 1 is not waiting"):
            cluster.begin(1)
        cluster.begin(0)
        cluster.advance()
        with pytest.raises(EnvError, match="Job 1 needs 4 processors; 1 are idle"):
            cluster.begin(1)
        with pytest.raises(EnvError, match="waits with 1 jobs"):
            simulate(lambda c: None, [job(0, 1, 1)], 4)

    def test_cost_is_the_growth_of_slowdowns(self) -> None:
        jobs = [job(0, 4, 30), job(0, 1, 20), job(10, 1, 4)]
        cluster = Cluster(jobs, 4)
        cluster.begin(0)
        assert cluster.advance() == pytest.approx(10 / 20)
        # The third: 4 s of run and 20 s of wait are 2.4 thresholds, of which the first is free.
        assert cluster.advance() == pytest.approx(20 / 20 + 1.4)
        assert cluster.now == 30 and cluster.free == 4

    def test_what_was_submitted_recently(self) -> None:
        cluster = Cluster(FIVE, 4)
        for _ in range(3):
            cluster.advance()
        assert cluster.now == 3
        assert [cluster.submitted_since(t) for t in (-1, 0, 1.5, 3)] == [4, 3, 2, 0]


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return a workload of twenty jobs, five at a time for testing."""
    jobs = [
        Job(n + 1, 1000 * (n // 5) + j.submit, j.run, j.size, j.requested)
        for n in range(20)
        for j in [FIVE[n % 5]]
    ]
    path = tmp_path / "small.swf"
    write_swf(path, Workload(tuple(jobs), 4))
    return str(path)


def play(env: Any, choose: Any, seed: int = 0) -> float:
    obs, info = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        obs, reward, over, truncated, info = env.step(choose(env.unwrapped, info["action_mask"]))
        assert env.observation_space.contains(obs) and not truncated
        total += reward
    return total


class TestEnvironment:
    def test_passes_the_environment_check(self) -> None:
        assert [result for result in check_env(ID) if not result.ok] == []

    def test_an_episode_by_hand(self, small: str) -> None:
        env = JobScheduling(workload=small, jobs=5, window=3, oldest=1)
        env.starts = range(0, 1)
        obs, info = env.reset(seed=0)
        assert info["action_mask"].tolist() == [1, 0, 0, 1] and env.rows == [0, -1, -1]
        day = math.log1p(86400)
        assert obs[:7].tolist() == pytest.approx(
            [1, math.log2(3) / 2, math.log1p(100) / day, 0, 0, 1, 0.25]
        )
        assert obs[7:21].tolist() == [0] * 14 and obs[21] == 1.0
        obs, reward, over, _, info = env.step(0)
        # On to the first moment with a choice: at 2 the third job fits, the second does not.
        assert env.cluster.now == 2 and env.rows == [2, 1, -1]
        assert info["action_mask"].tolist() == [1, 0, 0, 1]
        assert reward == pytest.approx(-(1 / 50) / 5)
        assert obs[21:26].tolist() == pytest.approx([0.25, 0.25, 1.0, 1.0, 1.0])
        obs, reward, over, _, info = env.step(0)
        # Nothing fits until 82, when the fourth does. It comes before the fifth, which is shorter,
        # and the last row is for the one that has waited longest.
        assert env.cluster.now == 82 and env.rows == [3, 4, 1]
        grown = 80 / 50 + 79 / 200 + 78 / 20
        assert reward == pytest.approx(-grown / 5)
        assert info["action_mask"].tolist() == [1, 0, 0, 1]
        _, reward, _, _, _ = env.step(3)
        assert env.cluster.now == 100 and env.rows == [4, 1, 3]
        assert reward == pytest.approx(-18 * (1 / 50 + 1 / 200 + 1 / 20) / 5)
        # The fourth, the second, the fifth: the last start is the end, and charges the ones.
        assert not env.step(2)[2]
        assert env.rows == [4, 1, -1]
        _, reward, over, _, _ = env.step(0)
        assert env.cluster.now == 300 and not over
        assert reward == pytest.approx(-200 / 50 / 5)
        _, reward, over, _, _ = env.step(0)
        assert over and reward == -1.0
        assert env.cluster.start == [0, 300, 2, 100, 100]

    def test_return_is_minus_the_mean_bounded_slowdown(self) -> None:
        rng = np.random.default_rng(1)
        env = make_env(ID, env_kwargs={"jobs": 60, "window": 5, "oldest": 2})
        for seed in range(5):
            total = play(env, lambda _, mask: int(rng.choice(np.flatnonzero(mask))), seed)
            done = env.unwrapped.cluster.slowdowns()  # type: ignore[attr-defined]
            assert total == pytest.approx(-np.mean(done), rel=1e-9)

    def test_a_rule_does_in_it_what_it_does_outside(self) -> None:
        def fcfs(env: JobScheduling, mask: np.ndarray) -> int:
            row = env.rows.index(env.cluster.queue[0])
            return row if mask[row] else env.window

        env = JobScheduling(jobs=80, window=80, oldest=0)
        [first] = windows_of([7], env.starts)
        expected = judge(BASELINES["FCFS"], env.workload, [first], 80)
        assert play(env, fcfs, seed=7) == pytest.approx(-expected[0])

    def test_waiting_without_an_event_is_masked(self, small: str) -> None:
        env = JobScheduling(workload=small, jobs=5, split="test")
        play(env, lambda e, mask: e.window if mask[-1] else int(mask.argmax()))
        assert not math.isnan(sum(env.cluster.start))

    def test_refuses_what_the_mask_forbids(self, small: str) -> None:
        env = JobScheduling(workload=small, jobs=5, window=3, oldest=1)
        env.starts = range(0, 1)
        env.reset(seed=0)
        for action in (1, -1, 4):
            with pytest.raises(EnvError, match="no job in row"):
                env.step(action)
        env.step(0)
        with pytest.raises(EnvError, match="needs 4 processors"):
            env.step(1)
        play(env, lambda e, mask: int(mask.argmax()))
        with pytest.raises(EnvError, match="over"):
            env.step(0)

    def test_splits(self) -> None:
        train, test = load_workload(), load_workload(split="test")
        assert "seed=1)" in train.header["Note"] and 1 in TRACE_SEEDS["train"]
        assert "seed=1000000)" in test.header["Note"] and 1_000_000 in TRACE_SEEDS["test"]
        assert train.processors == test.processors and abs(train.load - test.load) < 0.001
        assert len({job.submit for job in train.jobs} & {job.submit for job in test.jobs}) < 1000
        env = JobScheduling(split="test")
        assert env.workload == test
        for seed in range(20):
            env.reset(seed=seed)
            assert [env._first] == windows_of([seed], window_starts(test, 256))

    def test_splits_of_a_file(self, small: str) -> None:
        train, test = load_workload(small), load_workload(small, split="test")
        assert [len(train.jobs), len(test.jobs)] == [14, 6]
        assert [job.number for job in train.jobs + test.jobs] == list(range(1, 21))
        assert window_starts(train, 5) == range(10) and window_starts(test, 6) == range(1)

    @pytest.mark.parametrize(
        ("bad", "told"),
        [
            ({"jobs": 1}, "jobs is 1"),
            ({"window": 0}, "window is 0"),
            ({"window": 2, "oldest": 3}, "oldest is 3"),
            ({"split": "dev"}, "'train' or 'test'"),
            ({"jobs": 11_000}, "10000 jobs, fewer than the 11000"),
            ({"workload": "none.swf"}, "There is no workload"),
        ],
    )
    def test_refuses_settings(self, bad: dict[str, Any], told: str) -> None:
        with pytest.raises(Exception, match=told):
            make_env(ID, env_kwargs=bad)

    def test_masks_reach_the_agent(self) -> None:
        with make_vector(ID, 2, env_kwargs={"jobs": 20}) as envs:
            obs = envs.reset(seed=1)
            assert set(obs) == {"obs", "action_mask"} and obs["action_mask"].shape == (2, 9)

    def test_restores_exactly(self) -> None:
        kwargs = {"jobs": 40}
        rng = np.random.default_rng(3)
        with make_vector(ID, 2, env_kwargs=kwargs) as envs:
            obs = envs.reset(seed=4)
            trail, state = [], None
            for step in range(150):
                if step == 70:
                    state = envs.get_state()
                action = np.array([rng.choice(np.flatnonzero(m)) for m in obs["action_mask"]])
                obs, reward, terminated, *_ = envs.step(action)
                trail.append((action, obs["obs"].copy(), reward.copy(), terminated.copy()))
        assert any(row[3].any() for row in trail[70:])
        with make_vector(ID, 2, env_kwargs=kwargs) as envs:
            envs.reset(seed=9)
            assert state is not None
            envs.set_state(state)
            for action, *expected in trail[70:]:
                obs, reward, terminated, *_ = envs.step(action)
                for now, then in zip((obs["obs"], reward, terminated), expected, strict=True):
                    np.testing.assert_array_equal(now, then)


def test_the_reserve_is_tuned_on_the_training_split() -> None:
    workload = lublin(600, 64, load=0.9, seed=1)
    options: dict[str, Any] = {"reserves": (0.0, 0.25, 0.9), "limits": (60.0, 3600.0)}
    best = tune_reserve(workload, 100, **options)
    starts = window_starts(workload, 100)[::50]
    means = {
        (r, limit): judge(rules.held_back(r, limit), workload, starts, 100).mean()
        for r in options["reserves"]
        for limit in options["limits"]
    }
    assert means[best] == min(means.values()) < means[0.0, 60.0]


def test_no_torch() -> None:
    code = (
        "import sys, gymnasium as gym, assay.envs.tasks; "
        f"env = gym.make('{ID}'); env.reset(seed=1); gym.make('assay/CompactionRate-v0'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ppo_learns_to_schedule(tmp_path: Path) -> None:
    # In seconds, from a policy that starts jobs at random to far better than one.
    kwargs = {"jobs": 64}
    settings: dict[str, Any] = {"env_steps": 24_000, "num_envs": 16, "horizon": 64, "epochs": 6}
    settings |= {"minibatch_size": 256, "lr": "linear:2e-3:0", "eval_episodes": 1}
    run = assay.train("ppo", ID, root=tmp_path, seed=1, env_kwargs=kwargs, **settings)
    with make_vector(ID, 40, env_kwargs=kwargs) as envs:
        result = evaluate(run.agent().policy, envs, episodes=40, seed=3)
    rng = np.random.default_rng(0)
    env = make_env(ID, env_kwargs=kwargs)
    chance = np.mean(
        [
            play(env, lambda _, mask: int(rng.choice(np.flatnonzero(mask))), int(seed))
            for seed in result.seeds
        ]
    )
    assert result.mean > 0.65 * chance
