"""How versions are judged."""

from __future__ import annotations

import numpy as np
import pytest
from gateway_support import SPEC, batch

from assay.server.gateway.config import CanarySettings
from assay.server.gateway.guard import Guard, share_of
from assay.server.tensors import Experience, Layout, decode

LAYOUT = Layout(SPEC)


def guard(**settings: object) -> Guard:
    return Guard(CanarySettings.model_validate({"share": 0.1, "min_episodes": 4, **settings}))


def record(one: Guard, client: str = "ada", **options: object) -> None:
    one.record(client, decode(batch(1, 1, **options), LAYOUT))  # type: ignore[arg-type]


def test_episodes_are_added_up_over_batches() -> None:
    one = guard()
    record(one, rewards=[1, 2, 3, 4], ends=[1], version=5)
    assert (one.episodes(5), one.mean(5)) == (1, 3.0)
    record(one, rewards=[5, 6, 7, 8], ends=[0, 3], version=5, episode=1, start=2)
    # 3 + 4 + 5, then 6 + 7 + 8.
    assert (one.episodes(5), one.mean(5)) == (3, (3.0 + 12.0 + 21.0) / 3)


def test_an_episode_without_its_beginning_does_not_count() -> None:
    one = guard()
    record(one, rewards=[1, 1, 1, 1], ends=[3], version=5, start=7)
    assert one.episodes(5) == 0
    record(one, rewards=[1, 1, 1, 1], ends=[3], version=5, start=0)
    assert one.episodes(5) == 1


def test_an_episode_with_a_gap_does_not_count() -> None:
    one = guard()
    record(one, version=5)
    record(one, ends=[3], version=5, start=8)  # four steps are missing
    assert one.episodes(5) == 0
    record(one, version=5, episode=1)
    record(one, ends=[3], version=5, episode=2, start=4)  # so is the end of one
    assert one.episodes(5) == 0
    record(one, version=5, episode=3)
    record(one, ends=[3], version=5, episode=3, start=4)
    assert one.episodes(5) == 1


def steps(version: list[int], flags: list[int]) -> Experience:
    fields = dict(decode(batch(1, 1, ends=[3]), LAYOUT).fields)
    fields["version"] = np.array(version)
    fields["flags"] = np.array(flags, np.uint8)
    return Experience(1, 1, fields)


def test_an_episode_of_two_versions_counts_for_neither() -> None:
    one = guard()
    one.record("ada", steps([5, 5, 6, 6], [0, 0, 0, 0]))
    assert (one.episodes(5), one.episodes(6)) == (0, 0)
    one.record("ada", steps([6, 6, 6, 6], [0, 0, 0, 0]))
    assert (one.episodes(5), one.episodes(6)) == (0, 1)


def test_steps_of_the_shield_do_not_decide_whose_episode_it_is() -> None:
    one = guard()
    one.record("ada", steps([6, 0, 6, 6], [0, 8, 0, 0]))
    assert one.episodes(6) == 1
    one.record("ada", steps([6, 0, 6, 6], [0, 0, 0, 0]))
    assert one.episodes(6) == 1  # a fallback has decided one of them


def test_an_episode_in_which_something_else_stood_in_for_the_version_does_not_count() -> None:
    one = guard()
    one.record("ada", steps([6, 5, 5, 5], [0, 8, 8, 8]))  # version 6 failed three times of four
    one.record("ada", steps([6, 0, 0, 0], [0, 16, 16, 16]))
    assert one.episodes(6) == 0
    one.record("ada", steps([6, 6, 6, 6], [0, 1, 1, 4]))  # its own, within the shield's limits
    assert one.episodes(6) == 1


def test_late_rewards_are_part_of_the_return() -> None:
    one = guard()
    record(one, rewards=[1, 1, 1, 1], version=5)
    one.record("ada", Experience(1, 2, {}, patches={2: 10.0, 3: -3.0}))
    one.record("bob", Experience(1, 1, {}, patches={2: 100.0}))  # of whom nothing is known
    record(one, rewards=[1, 1, 1, 1], ends=[3], version=5, start=4, patches={4: 5.0})
    assert (one.episodes(5), one.mean(5)) == (1, 20.0)


def test_a_version_that_never_answers_does_not_stay_on_trial() -> None:
    one = guard()
    for _ in range(4):
        record(one, ends=[3], version=1)
    silent = steps([1] * 4, [8] * 4)  # the last good model stands in for version 2
    for _ in range(3):
        one.record("bob", silent, 2)
        one.record("eve", silent)  # who is not to try it
    assert one.judge(1, 2) is None
    one.record("bob", silent, 2)
    assert one.judge(1, 2) == "rollback"


def test_a_system_without_episodes_is_judged_by_stretches() -> None:
    one = guard(stretch=8)
    for number in range(4):
        record(one, rewards=[1, 1, 1, 1], version=3, start=4 * number)
    assert (one.episodes(3), one.mean(3)) == (2, 8.0)


def fill(one: Guard, version: int, returns: list[float]) -> None:
    for value in returns:
        record(one, rewards=[value, 0, 0, 0], ends=[3], version=version)


def test_worse_rolls_back_and_as_good_is_promoted() -> None:
    for returns, verdict in (
        ([10.0, 10.2, 9.8, 10.0], "promote"),
        ([12.0, 12.1, 11.9, 12.0], "promote"),
        ([9.7, 9.8, 9.6, 9.7], "promote"),  # within 5 %
        ([8.0, 8.1, 7.9, 8.0], "rollback"),
        ([1.0, 18.0, 2.0, 16.0], None),  # it looks worse, and nothing is clear
    ):
        one = guard()
        fill(one, 1, [10.0, 10.1, 9.9, 10.0])
        fill(one, 2, returns[:3])
        assert one.judge(1, 2) is None
        fill(one, 2, returns[3:])
        assert one.judge(1, 2) == verdict, returns
    # Five times as many episodes are enough to wait for.
    fill(one, 2, 3 * returns)
    assert one.judge(1, 2) is None
    fill(one, 2, returns)
    assert one.judge(1, 2) == "promote"


def test_negative_returns_are_judged_the_same_way() -> None:
    one = guard()
    fill(one, 1, [-100.0, -101.0, -99.0, -100.0])
    fill(one, 2, [-130.0, -131.0, -129.0, -130.0])
    fill(one, 3, [-102.0, -103.0, -101.0, -102.0])
    assert (one.judge(1, 2), one.judge(1, 3)) == ("rollback", "promote")


# Slow decay


def play(one: Guard, version: int, returns: np.ndarray) -> None:
    """Record episodes of one step each."""
    count = len(returns)
    fields = {
        "reward": returns,
        "version": np.full(count, version),
        "flags": np.zeros(count, np.uint8),
        "terminated": np.ones(count, bool),
        "truncated": np.zeros(count, bool),
    }
    one.record("ada", Experience(1, 1, fields))


def trained(drift: float, seed: int, versions: int = 60) -> tuple[float, int]:
    """Try versions that each do a little worse than the one before.

    Of five clients one tries; returns scatter by 30 of 100.

    Returns:
        What the version returns that is stable in the end, and how many were rolled back.
    """
    rng = np.random.default_rng(seed)
    one = guard(share=0.2, min_episodes=20)

    def value(version: int) -> float:
        return 100.0 * (1.0 - drift) ** (version - 1)

    def add(version: int, count: int) -> None:
        play(one, version, value(version) + 30.0 * rng.standard_normal(count))

    stable, rollbacks = 1, 0
    add(stable, 20)
    for version in range(2, versions + 1):
        add(version, 20)
        add(stable, 80)
        while (verdict := one.judge(stable, version)) is None:
            add(version, 5)
            add(stable, 20)
        stable = version if verdict == "promote" else stable
        rollbacks += verdict == "rollback"
    return value(stable), rollbacks


@pytest.mark.parametrize(("drift", "without"), [(0.03, 17.0), (0.01, 55.0)])
def test_slow_decay_is_stopped(drift: float, without: float) -> None:
    ends = [trained(drift, seed)[0] for seed in range(3)]
    assert min(ends) > 65.0 > without and float(np.mean(ends)) > 75.0


def test_versions_that_are_as_good_pass() -> None:
    rollbacks = sum(trained(0.0, seed)[1] for seed in range(3))
    assert rollbacks <= 7  # of 177; judged by the last stable one alone it is one
    assert trained(-0.01, 0)[1] <= 2


def test_the_verdict_names_the_best_version_if_that_was_the_judge() -> None:
    one = guard()
    level = {1: 10.0, 2: 9.7, 3: 9.4, 4: 9.1}
    for version, mean in level.items():
        fill(one, version, 5 * [mean, mean + 0.1, mean - 0.1, mean])
    assert (one.judge(1, 2), one.judge(2, 3)) == ("promote", "rollback")
    failed = one.failure(2, 3)
    assert (failed.stable, failed.stable_mean, failed.best) == (1, pytest.approx(10.0), True)
    assert "against 10 of version 1 over 20, the best stable version of late;" in str(failed)
    # Clearly worse than the last one is said as before.
    fill(one, 5, 5 * [1.0, 1.1, 0.9, 1.0])
    assert one.judge(2, 5) == "rollback"
    assert (one.failure(2, 5).stable, one.failure(2, 5).best) == (2, False)
    # An operator who chooses a version knows better.
    one.forget_best()
    assert one.judge(2, 3) == "promote"


def test_the_best_is_remembered_for_some_hours() -> None:
    now = [0.0]
    for hours, verdict in ((2.0, "rollback"), (1.0, "promote"), (0.0, "promote")):
        settings = {"share": 0.1, "min_episodes": 4, "best_hours": hours}
        one = Guard(CanarySettings.model_validate(settings), now=lambda: now[0])
        now[0] = 0.0
        for version, mean in ((1, 10.0), (2, 9.7), (3, 9.4)):
            fill(one, version, 5 * [mean, mean + 0.1, mean - 0.1, mean])
        assert one.judge(1, 2) == "promote"
        now[0] = 3600.0
        assert one.judge(2, 3) == verdict, hours


def test_the_stable_version_is_not_forgotten_however_many_fail() -> None:
    one = guard()
    fill(one, 1, [10.0, 10.1, 9.9, 10.0])
    for version in range(2, 40):
        fill(one, version, [1.0, 1.1, 0.9, 1.0])
        assert one.judge(1, version) == "rollback"
    assert one.has_baseline(1)


def test_memory_is_bounded() -> None:
    one = guard()
    for version in range(1, 40):
        fill(one, version, [1.0])
    assert one.episodes(39) == 1 and one.episodes(1) == 0
    fill(one, 40, [1.0] * 500)
    assert one.episodes(40) == 400


def test_the_share_of_clients_is_steady() -> None:
    names = [f"client-{number}" for number in range(1000)]
    one = guard(share=0.2)
    lowest = min(map(share_of, names))
    chosen = [name for name in names if one.tries(name, lowest)]
    assert 150 < len(chosen) < 250
    assert all(one.tries(name, share_of(name)) for name in names[:5])  # alone, each of them
    few = guard(share=1e-9)
    assert [name for name in names if few.tries(name, lowest)] == [min(names, key=share_of)]
