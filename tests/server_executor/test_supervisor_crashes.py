"""Learners that die, hang, refuse and miscount."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import forking
import pytest
from executor_contract import wait_until
from supervisor_world import SUMMING, World, await_state

from assay.core.system_memory import total_bytes
from assay.server.executor.base import ExecutorError, Handle
from assay.server.learner.messages import LearnerSettings
from assay.server.supervisor import Supervisor

pytest.importorskip("google_crc32c")


def test_kill_9_at_random_moments_loses_nothing_and_doubles_nothing(process: World) -> None:
    process.register("p", publish_every=3, checkpoint_every=2, window=5, nap=0.001)
    process.register("other", publish_every=3, nap=0.001)
    # On a slow machine three learners in a row may be killed at one batch, which is not its fault.
    supervisor = process.supervise("p", batches=8, crashes=10**6, poison=10**6)
    other = process.supervise("other")
    rng = random.Random(0)
    kills, fed, killed = 8, 0, set()
    for _ in range(kills):
        process.feed(5, "p")
        process.feed(2, "other")
        fed += 5
        handle = wait_until(
            lambda: (
                (health := supervisor.status().health)
                and health.alive
                and health.pid not in killed
                and health
            ),
            "there is a new learner",
        )
        # Somewhere between its first breath and its last batch.
        threading.Event().wait(rng.random() * 0.4)
        os.kill(handle.pid, signal.SIGKILL)
        killed.add(handle.pid)
    process.feed(10, "p")
    process.feed(2, "other")
    wait_until(lambda: supervisor.status().position == fed + 10, "all is consumed")
    assert supervisor.drain(30.0)
    process.assert_exactly_once(fed + 10)
    status = supervisor.status()
    assert status.restarts == kills, "every kill is a restart"
    versions = [one.version for one in process.published if one.policy == "p"]
    assert versions == list(range(1, len(versions) + 1)), "versions are monotonic"
    epochs = [one.epoch for one in process.published if one.policy == "p"]
    assert epochs == sorted(epochs)
    # The neighbour has not noticed.
    process.await_committed(2 * kills + 2, "other")
    process.assert_exactly_once(2 * kills + 2, "other")
    assert other.status().restarts == 0
    assert other.status().last_error is None


def test_an_idle_learner_that_dies_is_begun_again_at_once(
    process: World, caplog: pytest.LogCaptureFixture
) -> None:
    process.register()
    supervisor = process.supervise()
    await_state(supervisor, "idle")
    first = supervisor.status().health
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    wait_until(
        lambda: (health := supervisor.status().health) and health.alive and health.pid != first.pid,
        "there is another one",
    )
    assert supervisor.status().restarts == 1
    (line,) = [one for one in caplog.messages if "nothing to do" in one]
    assert line.startswith("p: The learner 'p'") and "The next learner begins in 0.01 s" in line
    await_state(supervisor, "idle")
    wait_until(lambda: supervisor.status().last_error is None, "that is over")


def test_crashes_with_a_commit_in_between_are_not_in_a_row(process: World) -> None:
    process.register(publish_every=1)
    supervisor = process.supervise(crashes=3)
    for number in range(1, 6):
        process.feed(1)
        process.await_committed(number)
        await_state(supervisor, "idle")
        health = supervisor.status().health
        assert health is not None
        os.kill(health.pid, signal.SIGKILL)
        wait_until(
            lambda number=number: supervisor.status().restarts == number,  # type: ignore[misc]
            "it is begun again",
        )
    process.feed(1)
    process.await_committed(6)
    process.assert_exactly_once(6)


def test_versions_without_a_checkpoint_leave_the_cursor_where_it_is(process: World) -> None:
    process.register(publish_every=2, checkpoint_every=3)
    process.feed(10)
    supervisor = process.supervise()
    wait_until(lambda: supervisor.status().position == 10, "all is consumed")
    await_state(supervisor, "idle")
    # Version 1 had one, then the third: version 4, at batch 6.
    learner = process.store.registry.learner("p")
    assert (learner.version, learner.position) == (6, 6)
    health = supervisor.status().health
    assert health is not None
    os.kill(health.pid, signal.SIGKILL)
    process.feed(2)
    wait_until(lambda: process.store.registry.learner("p").position == 12, "it has gone on")
    process.assert_exactly_once(12)
    assert process.store.registry.learner("p").version == 9  # 7 and 8 are 5 and 6 again


def test_a_batch_that_always_kills_the_learner_is_passed_over(
    process: World, caplog: pytest.LogCaptureFixture
) -> None:
    process.register(publish_every=2, poison=8, window=3)
    (process.directory / "p" / "poison").touch()
    process.feed(13)
    supervisor = process.supervise()
    learned = [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]
    process.await_committed(len(learned))
    assert process.committed() == learned
    status = supervisor.status()
    assert (status.skipped, status.restarts, status.behind) == (1, 4, 0)
    assert "batch 8 (of 'ada', session 1, 8)" in caplog.text and "passed over" in caplog.text
    assert [one for one in caplog.messages if "crashes in a row" in one][-1].count("batch 8") == 1
    # Also when it is the newest, and by who comes later.
    os.kill(status.health.pid if status.health else 0, signal.SIGKILL)
    process.feed(2)
    process.await_committed(len(learned) + 2)
    assert supervisor.status().restarts == 5
    # A new server has forgotten it, and needs it no more.
    process.restart()
    again = process.supervise()
    process.feed(2)
    process.await_committed(len(learned) + 4)
    assert 8 not in process.committed() and again.status().skipped == 0


def test_poison_that_is_the_newest_batch_is_no_backlog(process: World) -> None:
    process.register(publish_every=2, poison=4)
    (process.directory / "p" / "poison").touch()
    process.feed(4)
    supervisor = process.supervise()
    wait_until(lambda: supervisor.status().behind == 0, "it is passed over")
    await_state(supervisor, "idle")
    assert supervisor.status().position == 4 and process.committed() == [1, 2]
    # After a restart of the server it is found again, by the same rule.
    process.restart()
    again = process.supervise()
    process.feed(1)
    process.await_committed(4)
    assert process.committed() == [1, 2, 3, 5] and again.status().skipped == 1


def test_poison_that_works_later_costs_what_was_not_committed(
    process: World, caplog: pytest.LogCaptureFixture
) -> None:
    process.register(publish_every=4, venom=6)
    (process.directory / "p" / "venom").touch()
    process.feed(13)
    supervisor = process.supervise()
    # Learners die at 8, then, without it, at 9; what they have not committed goes.
    process.await_committed(8)
    assert process.committed() == [1, 2, 3, 4, 10, 11, 12, 13]
    assert supervisor.status().skipped == 5
    assert "Batches 5 to 9 are passed over" in caplog.text


def test_a_learner_that_dies_of_everything_makes_the_policy_fail(
    process: World, caplog: pytest.LogCaptureFixture
) -> None:
    process.register(publish_every=1)
    deadly = process.directory / "p" / "deadly"
    deadly.touch()
    process.feed(12)
    supervisor = process.supervise()
    await_state(supervisor, "failed")
    assert supervisor.status().restarts == 7 and process.committed() == []
    crashes = [one for one in caplog.messages if "crashes in a row" in one]
    assert len(crashes) == 7 and "exited with status 3" in crashes[-1]
    (end,) = [one for one in caplog.records if "The policy has failed" in one.getMessage()]
    assert end.levelname == "ERROR" and "`assay server resume p`" in end.getMessage()
    deadly.unlink()
    supervisor.resume()
    process.await_committed(12)
    process.assert_exactly_once(12)  # what was passed over on the way there as well
    assert supervisor.status().skipped == 0


def test_a_batch_that_always_kills_the_learner_makes_the_policy_fail(process: World) -> None:
    process.register(publish_every=2, poison=8)
    process.register("other", publish_every=1)
    poison = process.directory / "p" / "poison"
    poison.touch()
    process.feed(12)
    supervisor = process.supervise(crashes=3, poison=10**6)
    await_state(supervisor, "failed")
    status = supervisor.status()
    assert process.committed() == [1, 2, 3, 4, 5, 6], "what came before it is learned"
    assert "exited with status 3" in (status.last_error or "")
    assert "batch 8 (of 'ada', session 1, 8)" in (status.last_error or "")
    assert status.health is None
    # What clients send is still taken, and others learn.
    process.feed(3)
    assert supervisor.status().behind == 9
    process.supervise("other")
    process.feed(1, "other")
    process.await_committed(1, "other")
    # Trying again does not help as long as it is there, and helps afterwards.
    before = status.restarts
    supervisor.resume()
    wait_until(lambda: supervisor.status().restarts > before, "it has tried")
    await_state(supervisor, "failed")
    poison.unlink()
    supervisor.resume()
    process.await_committed(14)
    process.assert_exactly_once(14)


def test_a_learner_that_hangs_is_replaced(
    any_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    any_world.register(publish_every=1, hang=3)
    hang = any_world.directory / "p" / "hang"
    hang.touch()
    any_world.feed(5)
    supervisor = any_world.supervise(call_seconds=1.0, crashes=10**6)
    wait_until(lambda: supervisor.status().restarts >= 1, "it was replaced")
    assert "did not answer within 1 seconds" in caplog.text
    hang.unlink()
    any_world.await_committed(5)
    any_world.assert_exactly_once(5)


@pytest.mark.parametrize("given", [{"memory_mb": 300}, {}, {"device": "cuda"}, {"memory_mb": None}])
def test_the_memory_of_a_learner_is_limited(
    process: World, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(forking.PLAIN, "yes")
    process.register()
    supervisor = process.supervise(settings=LearnerSettings(**given))
    await_state(supervisor, "idle")
    health = supervisor.status().health
    assert health is not None
    limits = Path(f"/proc/{health.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max data size")]
    limit = line.split()[3]
    if given.get("device") or given.get("memory_mb", 1) is None:
        assert limit == "unlimited"
    else:
        expected = given.get("memory_mb", total_bytes() // 2 >> 20) << 20
        assert expected < int(limit) < expected + (100 << 20)


def test_a_learner_that_refuses_its_policy_makes_it_fail_at_once(
    inproc: World, caplog: pytest.LogCaptureFixture
) -> None:
    inproc.register(lr=-1)
    supervisor = inproc.supervise()
    await_state(supervisor, "failed")
    assert supervisor.status().last_error == "lr=-1: expected a positive number."
    assert "p: lr=-1: expected a positive number. The policy has failed" in caplog.text
    assert supervisor.status().restarts == 0


def test_a_place_that_is_not_there_yet_is_waited_for(
    inproc: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = inproc.executor.spawn
    free = threading.Event()
    asked: list[str] = []

    def crowded(name: str, **options: Any) -> Handle:
        asked.append(name)
        if not free.is_set():
            raise ExecutorError("There is no place.")
        return spawn(name, **options)

    monkeypatch.setattr(inproc.executor, "spawn", crowded)
    inproc.register(publish_every=1)
    inproc.feed(1)
    supervisor = inproc.supervise(crashes=2)
    wait_until(lambda: len(asked) > 4, "it was asked often")
    assert supervisor.status().state == "starting"
    assert supervisor.status().last_error == "There is no place."
    free.set()
    inproc.await_committed(1)


def test_a_listener_that_fails_does_no_harm(inproc: World) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a bug of the gateway")

    inproc.register(publish_every=1)
    supervisor = Supervisor(
        inproc.store,
        inproc.executor,
        "p",
        LearnerSettings(),
        on_published=fail,
        on_metrics=fail,
        host=SUMMING,
    )
    inproc.supervisors.append(supervisor)
    supervisor.start()
    inproc.feed(3)
    inproc.await_committed(3)
    assert supervisor.status().restarts == 0


def test_a_learner_that_miscounts_its_versions_is_not_believed(
    inproc: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import summing_host

    publish = summing_host.SummingHost.publish

    def skip_one(self: Any, **options: Any) -> Any:
        self.version += self.version == 2
        return publish(self, **options)

    monkeypatch.setattr(summing_host.SummingHost, "publish", skip_one)
    inproc.register(publish_every=1)
    inproc.feed(4)
    supervisor = inproc.supervise(crashes=2)
    await_state(supervisor, "failed")
    assert "publishes version 4; expected 3" in (supervisor.status().last_error or "")
    assert inproc.store.registry.learner("p").version == 2
