from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from executor_contract import gone, wait_until
from supervisor_world import SUMMING, World, await_state, world

from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.executor import make_executor
from assay.server.learner.messages import LearnerSettings
from assay.server.store.registry import Learner
from assay.server.supervisor import Patience, Supervisor

pytest.importorskip("google_crc32c")


# Learning


def test_all_that_is_committed_is_learned_once_and_in_order(any_world: World) -> None:
    any_world.register(publish_every=4)
    any_world.feed(10)
    supervisor = any_world.supervise()
    any_world.feed(10)
    any_world.await_committed(20)
    any_world.assert_exactly_once(20)
    await_state(supervisor, "idle")
    status = supervisor.status()
    assert (status.position, status.committed, status.behind, status.restarts) == (20, 20, 0, 0)
    assert status.version == 6  # the first one and one for every four batches
    assert status.last_error is None
    assert status.health is not None and status.health.alive
    assert status.metrics == {"train/sum": 210.0} == any_world.metrics[-1]
    assert [one.version for one in any_world.published] == [1, 2, 3, 4, 5, 6]
    assert any_world.published[-1].parent == 5
    assert any_world.store.registry.channel("p", "stable").version == 6


def test_the_first_version_comes_before_any_experience(inproc: World) -> None:
    inproc.register()
    inproc.supervise()
    wait_until(lambda: inproc.published, "version 1 is there")
    assert inproc.store.registry.learner("p").version == 1
    assert inproc.committed() == []


def test_the_channel_is_asked_for_at_each_version(inproc: World) -> None:
    inproc.register(publish_every=1)
    channels = iter(["stable", "canary", None])
    supervisor = Supervisor(
        inproc.store,
        inproc.executor,
        "p",
        LearnerSettings(),
        channel=lambda: next(channels),
        host=SUMMING,
    )
    inproc.supervisors.append(supervisor)
    inproc.feed(2)
    supervisor.start()
    inproc.await_committed(2)
    registry = inproc.store.registry
    assert registry.channel("p", "stable").version == 1
    assert registry.channel("p", "canary").version == 2
    assert registry.learner("p").version == 3


def test_what_is_behind_is_counted_in_batches_and_steps(inproc: World) -> None:
    inproc.register(publish_every=2)
    supervisor = inproc.supervise(start=False)
    supervisor.pause()
    supervisor.start()
    inproc.feed(3, steps=5)
    assert (supervisor.status().behind, supervisor.status().behind_steps) == (3, 15)
    inproc.feed(2, steps=7)
    assert (supervisor.status().behind, supervisor.status().behind_steps) == (5, 29)
    supervisor.resume()
    wait_until(lambda: supervisor.status().position == 5, "all is consumed")
    wait_until(lambda: supervisor.status().behind == 0, "nothing is behind")
    assert supervisor.status().behind_steps == 0
    inproc.feed(1, steps=9)
    wait_until(lambda: supervisor.status().position == 6, "all is consumed")
    assert (supervisor.status().behind, supervisor.status().behind_steps) == (0, 0)


def test_batches_go_in_portions(inproc: World) -> None:
    inproc.register(publish_every=1)
    inproc.feed(50, size=1000)
    inproc.supervise(batches=7, bytes=3000)
    inproc.await_committed(50)
    inproc.assert_exactly_once(50)
    wait_until(lambda: len(inproc.metrics) >= 50 / 3, "there were many calls")


def test_a_slow_learner_gets_less_at_a_time(inproc: World) -> None:
    inproc.register(publish_every=1, nap=0.05)
    inproc.feed(40)
    supervisor = inproc.supervise(answer_seconds=0.1)
    inproc.await_committed(40)
    wait_until(lambda: supervisor.status().state == "idle", "it is at rest")
    # 16, 8, 4, then two at a time: two naps are as long as a call should take.
    assert len(inproc.metrics) >= 9


# The store


def test_a_full_disk_at_publication_is_waited_out(
    any_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    publish = any_world.store.publish
    failed: list[int] = []
    during: list[Any] = []

    def full_at_first(policy: str, epoch: int, position: int, *args: Any, **kw: Any) -> int:
        if position == 6 and len(failed) < 3:
            failed.append(position)
            during.append(supervisor.status())
            raise StoreError("No space left on device.")
        return publish(policy, epoch, position, *args, **kw)

    monkeypatch.setattr(any_world.store, "publish", full_at_first)
    any_world.register(publish_every=2)
    any_world.feed(10)
    supervisor = any_world.supervise()
    any_world.await_committed(10)
    any_world.assert_exactly_once(10)
    assert len(failed) == 3
    assert supervisor.status().restarts == 0, "the learner had nothing to do with it"
    assert during[-1].last_error == during[-1].unsaved == "No space left on device."
    await_state(supervisor, "idle")
    assert supervisor.status().last_error is supervisor.status().unsaved is None, "it is over"
    assert caplog.text.count("p: nothing can be saved. No space left on device.") == 1
    assert caplog.text.count("p: what was learned can be saved again") == 1


def test_a_publication_that_went_through_unseen_is_not_made_twice(
    inproc: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = inproc.store.publish
    once: list[int] = []

    def cut_off(policy: str, epoch: int, position: int, *args: Any, **kw: Any) -> int:
        version = publish(policy, epoch, position, *args, **kw)
        if position == 4 and not once:
            once.append(version)
            raise StoreError("The connection to the database was lost.")
        return version

    monkeypatch.setattr(inproc.store, "publish", cut_off)
    inproc.register(publish_every=2)
    inproc.feed(8)
    inproc.supervise()
    inproc.await_committed(8)
    inproc.assert_exactly_once(8)
    assert once == [3]
    # A version is announced after its commit, so that the last one may be on its way still.
    wait_until(lambda: len(inproc.published) == 5, "all versions are announced")
    assert [one.version for one in inproc.published] == [1, 2, 3, 4, 5]


def test_a_drain_with_a_full_disk_ends_in_time_and_says_so(
    inproc: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inproc.register(publish_every=100)
    inproc.feed(3)
    supervisor = inproc.supervise()
    wait_until(lambda: supervisor.status().position == 3, "all is consumed")

    def full(*args: Any, **kw: Any) -> int:
        raise StoreError("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(inproc.store, "publish", full)
        assert not supervisor.drain(0.5)
    assert inproc.committed() == []
    # Nothing is lost: it is in the log.
    again = inproc.supervise()
    wait_until(lambda: again.status().position == 3, "all is consumed")
    assert again.drain(30.0)
    inproc.assert_exactly_once(3)


def test_a_newer_trainer_fences_the_supervisor(
    any_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    any_world.register(publish_every=2)
    any_world.feed(4)
    supervisor = any_world.supervise()
    any_world.await_committed(4)
    await_state(supervisor, "idle")
    any_world.store.registry.open_learner("p")
    any_world.feed(4)
    await_state(supervisor, "stopped")
    assert "epoch" in (supervisor.status().last_error or "")
    assert "p: the supervisor ends. The trainer of 'p' has epoch 1" in caplog.text
    assert supervisor.status().health is None
    assert any_world.committed() == [1, 2, 3, 4]
    any_world.supervise()
    any_world.await_committed(8)
    any_world.assert_exactly_once(8)


def test_the_supervisor_of_a_deleted_policy_stops(inproc: World) -> None:
    inproc.register(publish_every=1)
    supervisor = inproc.supervise()
    inproc.feed(2)
    inproc.await_committed(2)
    inproc.store.delete("p")
    await_state(supervisor, "stopped")
    assert supervisor.status().health is None
    assert "deleted" in (supervisor.status().last_error or "")


def test_a_new_server_goes_on_where_the_last_one_was(any_world: World) -> None:
    any_world.register(publish_every=3, window=4)
    any_world.feed(8)
    supervisor = any_world.supervise()
    any_world.await_committed(6)
    wait_until(lambda: supervisor.status().position == 8, "all is consumed")
    before = any_world.store.registry.learner("p")
    any_world.restart()  # without a drain: what was not committed is learned again
    again = any_world.supervise()
    any_world.feed(4)
    any_world.await_committed(12)
    any_world.assert_exactly_once(12)
    after = any_world.store.registry.learner("p")
    assert after.epoch > before.epoch
    assert [one["at"] for one in any_world.notes() if one["what"] == "started"] == [0, 6]
    replayed = [one["numbers"] for one in any_world.notes() if one["what"] == "replayed"]
    assert replayed[-1] == [3, 4, 5, 6], "the replay is what stands behind keep_after"
    assert again.status().restarts == 0


def test_the_replay_is_filled_in_portions_and_before_anything_new(process: World) -> None:
    process.register(publish_every=10, window=25)
    process.feed(30)
    process.supervise()
    process.await_committed(30)
    process.restart()
    process.feed(10)
    process.supervise(batches=7)
    process.await_committed(40)
    process.assert_exactly_once(40)
    replayed = [one["numbers"] for one in process.notes() if one["what"] == "replayed"]
    assert replayed[-1] == list(range(6, 31))


def test_what_is_no_longer_needed_is_trimmed(tmp_path: Path) -> None:
    with world(tmp_path, make_executor("inproc"), segment_bytes=2000) as made:
        made.register(publish_every=5, window=10)
        supervisor = made.supervise(trim_seconds=0.05, batches=5)
        for _ in range(10):
            made.feed(5, size=500)
        made.await_committed(50)
        wait_until(lambda: made.store.read("p", after=0)[0].position > 30, "the log was trimmed")
        kept = [one.position for one in made.store.read("p", after=0)]
        assert kept[0] <= 41, "ten batches are needed again"
        assert kept == list(range(kept[0], 51))
        wait_until(lambda: supervisor.status().keep_after == 40, "it is known what to keep")
        # And what is kept is enough for a new one.
        made.restart()
        made.supervise()
        made.feed(5)
        made.await_committed(55)
        made.assert_exactly_once(55)
        replayed = [one["numbers"] for one in made.notes() if one["what"] == "replayed"]
        assert replayed[-1] == list(range(41, 51))


def test_nothing_is_trimmed_that_is_not_committed(tmp_path: Path) -> None:
    with world(tmp_path, make_executor("inproc"), segment_bytes=1000) as made:
        made.register(publish_every=10, checkpoint_every=100, window=3)
        supervisor = made.supervise(trim_seconds=0.02)
        made.feed(30, size=500)
        wait_until(lambda: supervisor.status().version == 4, "three versions were learned")
        supervisor.notify()
        for _ in range(3):  # rounds of the supervisor
            made.feed(1, size=500)
            wait_until(lambda: supervisor.status().behind == 0, "it is consumed")
        assert made.store.read("p", after=0)[0].position == 1


# Orders


def test_pause_and_resume(any_world: World) -> None:
    any_world.register(publish_every=1)
    supervisor = any_world.supervise()
    any_world.feed(2)
    any_world.await_committed(2)
    supervisor.pause()
    await_state(supervisor, "paused")
    any_world.feed(3)
    health = supervisor.status().health
    assert health is not None and health.alive, "it waits with what it has in memory"
    assert supervisor.status().behind == 3
    assert any_world.committed() == [1, 2]
    supervisor.resume()
    any_world.await_committed(5)
    any_world.assert_exactly_once(5)


def test_a_policy_that_is_paused_in_the_registry_begins_paused(inproc: World) -> None:
    inproc.register(publish_every=1)
    inproc.feed(1)
    inproc.store.registry.set_state("p", "paused")
    supervisor = inproc.supervise()
    await_state(supervisor, "paused")
    assert supervisor.status().health is None
    inproc.store.registry.set_state("p", "active")
    supervisor.resume()
    inproc.await_committed(1)


def test_drain_commits_what_was_learned(any_world: World) -> None:
    any_world.register(publish_every=100)
    any_world.feed(7)
    supervisor = any_world.supervise()
    wait_until(lambda: supervisor.status().position == 7, "all is consumed")
    assert any_world.committed() == []
    pid = supervisor.status().health.pid  # type: ignore[union-attr]
    assert supervisor.drain(30.0)
    any_world.assert_exactly_once(7)
    assert supervisor.status().state == "stopped"
    assert supervisor.status().health is None
    if pid != os.getpid():
        wait_until(lambda: gone(pid), "the process is gone")
    assert supervisor.drain(1.0), "again does no harm"


def test_a_paused_policy_is_drained_too(inproc: World) -> None:
    inproc.register(publish_every=100)
    inproc.feed(2)
    supervisor = inproc.supervise()
    wait_until(lambda: supervisor.status().position == 2, "all is consumed")
    supervisor.pause()
    await_state(supervisor, "paused")
    assert supervisor.drain(30.0)
    inproc.assert_exactly_once(2)


def test_a_drain_that_takes_too_long_kills_the_learner_and_loses_nothing(process: World) -> None:
    process.register(publish_every=1, hang=2)
    (process.directory / "p" / "hang").touch()
    process.feed(2)
    supervisor = process.supervise(batches=1)
    process.await_committed(1)
    wait_until(
        lambda: (health := supervisor.status().health) and health.busy_since is not None,
        "it is busy with the second",
    )
    assert not supervisor.drain(0.3)
    assert supervisor.status().health is None
    (process.directory / "p" / "hang").unlink()
    process.supervise()
    process.await_committed(2)
    process.assert_exactly_once(2)


def test_drain_of_what_never_started_or_failed(inproc: World) -> None:
    inproc.register("p", lr=-1)
    inproc.register("q")
    failed = inproc.supervise("p")
    await_state(failed, "failed")
    assert failed.drain(10.0)
    never = inproc.supervise("q", start=False)
    assert never.drain(1.0)
    never.start()
    assert never.status().state == "stopped"


def test_stop_does_not_wait_for_a_busy_learner(process: World) -> None:
    process.register(hang=1)
    (process.directory / "p" / "hang").touch()
    process.feed(1)
    supervisor = process.supervise()
    wait_until(
        lambda: (health := supervisor.status().health) and health.busy_since is not None, "it hangs"
    )
    pid = supervisor.status().health.pid  # type: ignore[union-attr]
    supervisor.stop()
    assert supervisor.status().state == "stopped"
    wait_until(lambda: gone(pid), "the process is gone")
    supervisor.stop()


def test_versions_can_be_asked_for_by_the_clock(inproc: World) -> None:
    inproc.register(publish_every=100)
    inproc.supervise(publish_seconds=0.05)
    inproc.feed(3)
    inproc.await_committed(3)
    inproc.assert_exactly_once(3)


# Registration


def test_a_spec_that_the_learner_refuses_is_a_bad_spec(any_world: World) -> None:
    supervisor = any_world.supervise(start=False)
    with pytest.raises(RejectionError) as caught:
        supervisor.validate(any_world.spec(lr=-1))
    assert caught.value.reason is Reason.BAD_SPEC
    assert caught.value.message == "lr=-1: expected a positive number."
    assert caught.value.fix == "Give a larger lr."
    assert any_world.store.registry.policies() == []


def test_a_learner_that_crashes_at_the_start_is_no_fault_of_the_spec(any_world: World) -> None:
    with pytest.raises(RejectionError, match="ZeroDivisionError") as caught:
        any_world.supervise(start=False).validate(any_world.spec(broken=True))
    assert caught.value.reason is Reason.RESOURCE_EXHAUSTED


def test_the_learner_that_took_the_spec_becomes_that_of_the_policy(process: World) -> None:
    supervisor = process.supervise(start=False)
    spec = process.spec(publish_every=1)
    thread = threading.Thread(target=supervisor.validate, args=(spec,))  # as a server does
    thread.start()
    thread.join()
    process.store.register(spec)
    supervisor.start()
    process.feed(2)
    process.await_committed(2)
    process.assert_exactly_once(2)
    started = [one for one in process.notes() if one["what"] == "started"]
    assert len(started) == 1
    assert started[0]["epoch"] == process.store.registry.learner("p").epoch == 1
    health = supervisor.status().health
    assert health is not None and health.pid == started[0]["pid"]


def test_a_validated_learner_that_is_not_the_first_is_not_used(inproc: World) -> None:
    spec = inproc.spec(publish_every=1)
    supervisor = inproc.supervise(start=False)
    supervisor.validate(spec)
    inproc.store.register(spec)
    inproc.store.registry.open_learner("p")  # somebody was faster
    supervisor.start()
    inproc.feed(1)
    inproc.await_committed(1)
    assert [one["epoch"] for one in inproc.notes() if one["what"] == "started"] == [1, 2]


def test_stop_after_validation_leaves_no_process(process: World) -> None:
    supervisor = process.supervise(start=False)
    supervisor.validate(process.spec())
    (note,) = process.notes()
    assert not gone(note["pid"])
    supervisor.stop()
    assert gone(note["pid"])


def test_pauses_between_crashes_grow_to_a_limit() -> None:
    patience = Patience(first_pause=0.5, longest_pause=30.0)
    assert [patience.pause(n) for n in (1, 2, 5, 7, 8, 10_000)] == [0.5, 1.0, 8.0, 30.0, 30.0, 30.0]


# Damage on the disk


def test_a_batch_that_cannot_be_read_is_passed_over_and_named(
    inproc: World, caplog: pytest.LogCaptureFixture
) -> None:
    inproc.register(publish_every=3)
    inproc.feed(9, size=20)
    for position in (2, 8, 9):
        inproc.damage(position)
    supervisor = inproc.supervise(crashes=1)
    inproc.await_committed(6)
    wait_until(lambda: supervisor.status().behind == 0, "all is consumed")
    status = supervisor.status()
    assert inproc.committed() == [1, 3, 4, 5, 6, 7]
    assert (status.skipped, status.restarts, status.last_error) == (3, 0, None)
    for position in (2, 8, 9):
        assert f"p: batch {position} (of 'ada', session 1, {position}) is passed" in caplog.text
    assert caplog.text.count("is passed over") == 3
    assert "Record 8 in" in caplog.text
    inproc.feed(3)
    inproc.await_committed(9)
    assert inproc.committed() == [1, 3, 4, 5, 6, 7, 10, 11, 12]


def test_a_batch_that_is_needed_again_and_cannot_be_read_is_left_out(inproc: World) -> None:
    inproc.register(publish_every=3, window=5)
    inproc.feed(6, size=20)
    inproc.supervise()
    inproc.await_committed(6)
    inproc.damage(4)
    inproc.restart()
    inproc.supervise(crashes=1)
    inproc.feed(3)
    inproc.await_committed(9)
    replayed = [one["numbers"] for one in inproc.notes() if one["what"] == "replayed"]
    assert replayed[-1] == [2, 3, 5, 6]
    assert inproc.committed() == list(range(1, 10))


def stopped_after(made: World, count: int, **settings: Any) -> Learner:
    """Let a policy learn some batches, with a version for each, and end its server."""
    made.register(publish_every=1, **settings)
    made.feed(count)
    supervisor = made.supervise(batches=1)
    made.await_committed(count)
    assert supervisor.drain(30.0)
    made.restart()
    return made.store.registry.learner("p")


def await_recovery(supervisor: Supervisor) -> None:
    """Wait until the damaged checkpoint is the committed one no more."""
    wait_until(lambda: supervisor.status().recovered, "it goes on from something else")


def begun(made: World) -> dict[str, Any]:
    """Return what the last learner began with."""
    return [one for one in made.notes() if one["what"] == "started"][-1]


def test_behind_a_damaged_checkpoint_there_is_an_earlier_one(
    inproc: World, caplog: pytest.LogCaptureFixture
) -> None:
    before = stopped_after(inproc, 5, window=2)
    inproc.store.prune_models("p", keep=1)  # which keeps both
    inproc.spoil(before.checkpoint)
    supervisor = inproc.supervise(crashes=1)
    await_recovery(supervisor)
    inproc.feed(2)
    inproc.await_committed(7)
    assert inproc.committed() == list(range(1, 8)), "each batch once"
    assert begun(inproc)["at"] == 4
    replayed = [one["numbers"] for one in inproc.notes() if one["what"] == "replayed"]
    assert replayed[-1] == [3, 4]
    status = supervisor.status()
    said = "cannot be read. Learning goes on from the one before it, behind batch 4."
    assert said in (status.recovered or "") and str(before.checkpoint)[:12] in str(status.recovered)
    assert f"p: {status.recovered}" in caplog.text
    assert status.last_error is None and status.restarts == 0
    # Versions only grow: those that were published before stay.
    assert inproc.store.registry.learner("p").version == before.version + 3


def test_without_a_checkpoint_learning_goes_on_from_the_published_weights(inproc: World) -> None:
    before = stopped_after(inproc, 5)
    newest = inproc.store.registry.model("p", before.version)
    inproc.spoil(before.checkpoint)
    inproc.spoil(before.earlier)
    inproc.spoil(newest.sha256)  # nor can this one be read
    supervisor = inproc.supervise(crashes=1)
    await_recovery(supervisor)
    inproc.feed(1)
    inproc.await_committed(5)
    assert begun(inproc)["weights"] and begun(inproc)["at"] == 5
    assert inproc.committed() == [1, 2, 3, 4, 6]  # as the version knew four of five
    said = f"from the weights of version {before.version - 1}"
    assert said in (supervisor.status().recovered or "")
    assert inproc.store.registry.learner("p").version == before.version + 1


def test_without_anything_learning_begins_from_nothing(inproc: World) -> None:
    before = stopped_after(inproc, 3)
    for path in (inproc.directory / "store" / "policies" / "p" / "blobs").iterdir():
        path.unlink()
    supervisor = inproc.supervise(crashes=1)
    await_recovery(supervisor)
    inproc.feed(2)
    inproc.await_committed(2)
    assert not begun(inproc)["weights"]
    assert "begins from nothing" in (supervisor.status().recovered or "")
    assert inproc.store.registry.learner("p").version == before.version + 2


def test_what_the_earlier_checkpoint_needs_is_not_trimmed(tmp_path: Path) -> None:
    with world(tmp_path, make_executor("inproc"), segment_bytes=600) as made:
        made.register(publish_every=1, window=2)
        supervisor = made.supervise(trim_seconds=0.01, batches=1)
        for _ in range(20):
            made.feed(1, size=500)
        made.await_committed(20)
        wait_until(lambda: made.store.read("p", after=0)[0].position > 10, "the log was trimmed")
        assert supervisor.drain(30.0)
        made.restart()
        learner = made.store.registry.learner("p")
        made.spoil(learner.checkpoint)
        await_recovery(made.supervise())
        made.feed(1)
        made.await_committed(21)
        assert made.committed() == list(range(1, 22))
        replayed = [one["numbers"] for one in made.notes() if one["what"] == "replayed"]
        assert replayed[-1] == [18, 19]


def test_a_checkpoint_that_cannot_be_read_just_now_is_not_given_up(
    inproc: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stopped_after(inproc, 3)
    read = Path.read_bytes
    left = [3]

    def too_many(path: Path) -> bytes:
        ours = threading.current_thread().name == "assay-p"
        if ours and path.name == before.checkpoint and left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", too_many)
    supervisor = inproc.supervise()
    inproc.feed(1)
    inproc.await_committed(4)
    inproc.assert_exactly_once(4)
    assert supervisor.status().recovered is None
