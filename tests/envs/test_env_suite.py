"""The suite finds what shows only in copies of an environment and over time, and nothing else."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from assay.envs import suite, tasks  # noqa: F401 (registers them)
from assay.envs.checks import CheckResult
from assay.envs.suite import EnvReport, check_copies, check_suite
from assay.envs.suite_page import suite_page


class Walk(gym.Env[Any, Any]):
    """A random start, and an end after ten steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.left = float(self.np_random.normal()), 10
        return self.see(), {}

    def see(self) -> Any:
        return np.array([self.place], np.float32)

    def step(self, action: Any) -> Any:
        self.place += 1.0 if action else -1.0
        self.left -= 1
        return self.see(), 0.0, self.left == 0, False, {}


class Shared(Walk):
    steps = 0

    def step(self, action: Any) -> Any:
        Shared.steps += 1
        result = super().step(action)
        return result[0] + Shared.steps % 7, *result[1:]


class KnowsItsProcess(Walk):
    def see(self) -> Any:
        return np.array([self.place + os.getpid() % 1000], np.float32)


class GoesOn(Walk):
    """Never returns to a start."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        before = getattr(self, "place", None)
        super().reset(seed=seed)
        if before is not None:
            self.place = before
        return self.see(), {}


class IgnoresSeeds(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0 if seed is not None else getattr(self, "count", 0) + 1
        super().reset(seed=self.count)
        return self.see(), {}


class SeedsAgain(Walk):
    seed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = self.seed if seed is None else seed
        return super().reset(seed=self.seed)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    kinds = (Walk, GoesOn, IgnoresSeeds, SeedsAgain)
    for kind in kinds:
        gym.register(f"Suite{kind.__name__}-v0", entry_point=kind)
    yield
    for kind in kinds:
        del gym.registry[f"Suite{kind.__name__}-v0"]


def copies(env: Any, **options: Any) -> dict[str, CheckResult]:
    return {one.name: one for one in check_copies(env, 60, 0, **options)}


def test_a_good_environment_passes() -> None:
    (report,) = check_suite(["CartPole-v1"], steps=100)
    assert report.failed == []
    names = {one.name for one in report.results}
    of_copies = {"copies", "autoreset", "processes", "native", "seeding", "memory"}
    assert names >= {*of_copies, "determinism", "rewards", "speed"}


class TestCopies:
    def test_what_copies_share_is_found(self) -> None:
        found = copies(Shared, processes=False)
        assert not found["copies"].ok and "another observation" in found["copies"].detail
        assert copies(Walk, processes=False)["copies"].ok

    def test_what_differs_in_processes_is_found(self) -> None:
        found = copies(KnowsItsProcess)
        assert found["copies"].ok and not found["processes"].ok
        assert "not the same as in one process" in found["processes"].detail
        assert copies(Walk)["processes"].ok

    def test_an_episode_that_goes_on_after_its_end_is_found(self) -> None:
        assert (
            "begin with what the one before" in copies(GoesOn, processes=False)["autoreset"].detail
        )
        good = copies(Walk, processes=False)["autoreset"]
        assert good.ok and good.detail == "18 episodes ended, each followed by a new one"


class TestSeeds:
    @pytest.mark.parametrize(
        ("env", "ok", "advice", "detail"),
        [
            ("SuiteWalk-v0", True, False, "other seeds and later episodes differ"),
            ("assay/Recall-v0", True, False, "other seeds and later episodes differ"),
            ("SuiteIgnoresSeeds-v0", False, True, "two seeds give the same episode"),
            ("SuiteSeedsAgain-v0", True, True, "episodes of one seed are all the same"),
            ("CliffWalking-v1", True, False, "every episode is the same"),
        ],
    )
    def test_seeds(self, env: str, ok: bool, advice: bool, detail: str) -> None:
        found = suite._seeding(env, 3)
        assert (found.ok, found.fix is not None) == (ok, advice)
        assert detail in found.detail


class TestMemory:
    def test_growth_in_every_round_fails(self) -> None:
        sizes = iter([100 << 20, 104 << 20, 109 << 20, 115 << 20])
        found = suite._memory("SuiteWalk-v0", 20, 0, sizes.__next__)
        assert not found.ok and "+15.0 MiB over 4 rounds" in found.detail

    def test_growth_that_stops_does_not(self) -> None:
        sizes = iter([100 << 20, 130 << 20, 130 << 20, 130 << 20])
        assert suite._memory("SuiteWalk-v0", 20, 0, sizes.__next__).ok

    def test_the_memory_of_this_process_is_measured(self) -> None:
        before = suite.resident_bytes()
        with mmap.mmap(-1, 128 << 20) as block:  # new pages, whatever the process has kept
            block.write(b"1" * len(block))
            assert suite.resident_bytes() - before > 64 << 20


def test_an_environment_that_cannot_be_made_is_one_failure() -> None:
    unknown, good = check_suite(["Nowhere-v0", "SuiteWalk-v0"], steps=30, processes=False)
    assert [one.name for one in unknown.failed] == ["made"] and good.failed == []


def test_the_page_escapes_what_it_shows() -> None:
    bad = CheckResult("rewards", False, "reward is <b>NaN</b>", "Return a float.")
    page = suite_page([EnvReport("Odd<i>-v0", (bad,), 1.0), EnvReport("Fine-v0", (), 1.0)])
    assert "1 of 2 failed" in page and "Return a float." in page
    assert "<b>NaN</b>" not in page and "&lt;b&gt;NaN" in page and "Odd<i>" not in page
    assert "http" not in page  # nothing is loaded
