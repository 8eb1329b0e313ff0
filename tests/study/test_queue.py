"""Several runners share a queue, and nothing is run twice or forgotten."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from study_samples import make_study

from assay.study.files.documents import StudyError
from assay.study.record.kinds import ENDED, PREPARED
from assay.study.record.study import Study
from assay.study.run import launcher, recovery, switch
from assay.study.run.queue import ATTEMPTS, LEASE_SECONDS, Queue


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path, budget={"wall_clock_hours": 2.0, "runs": 60, "parallel": 4})


def states(queue: Queue) -> dict[str, str]:
    return {item.id: item.state for item in queue.manifest().items}


def die_before_the_launch(queue: Queue) -> None:
    def die(*facts: object, **options: object) -> None:
        os._exit(9)

    launcher.launch = die  # type: ignore[assignment]  # in this process alone
    queue.start(actor="runner")


class TestLeases:
    def test_earlier_phases_come_first_and_once(self, study: Study) -> None:
        queue = Queue(study)
        queue.add("c1", "promotion", [2, 1])
        queue.add("c1", "short", [0])
        assert queue.add("c1", "short", [0]) == []  # it is there already
        order = [queue.lease("me") for _ in range(4)]
        assert [lease and lease.item for lease in order] == [
            "c1-short-0", "c1-promotion-2", "c1-promotion-1", None,
        ]  # fmt: skip

    def test_a_lease_that_ran_out_goes_back_and_the_late_owner_is_told(self, study) -> None:
        clock = Clock()
        queue = Queue(study, clock)
        queue.add("c1", "short", [0])
        first = queue.lease("one")
        assert first is not None and queue.lease("two") is None
        clock.now += LEASE_SECONDS + 1
        second = queue.lease("two")
        assert second is not None and second.item == first.item
        with pytest.raises(StudyError, match="passed to another runner"):
            queue.move(first, "running")
        queue.move(second, "running")

    @pytest.mark.parametrize("machine", ["this one", "another"])
    def test_a_runner_that_was_killed_keeps_a_lease_on_another_machine_only(
        self, study: Study, monkeypatch: pytest.MonkeyPatch, machine: str
    ) -> None:
        queue = Queue(study, Clock())
        queue.add("c1", "short", [0])
        child = multiprocessing.get_context("fork").Process(
            target=die_before_the_launch, args=[queue]
        )
        child.start()
        child.join()
        assert child.exitcode == 9 and states(queue) == {"c1-short-0": "leased"}
        if machine == "another":
            monkeypatch.setattr("platform.node", lambda: "elsewhere")
        lease = queue.lease("two")
        assert (lease is not None) == (machine == "this one")

    def test_it_is_not_tried_for_ever(self, study: Study) -> None:
        clock = Clock()
        queue = Queue(study, clock)
        queue.add("c1", "short", [0])
        for i in range(ATTEMPTS):
            assert queue.lease(f"r{i}") is not None
            clock.now += LEASE_SECONDS + 1
        assert queue.lease("last") is None
        assert states(queue) == {"c1-short-0": "failed"}

    def test_a_runner_that_died_after_the_launch_does_not_cause_a_second(self, study) -> None:
        clock = Clock()
        queue = Queue(study, clock)
        queue.add("c1", "short", [0])
        lease = queue.lease("one")
        assert lease is not None
        planned = launcher.launch(
            study, "c1", "short", 0, confirm=None, actor="agent"
        )  # and here it dies
        recovery.wait(study, planned.run, 300)
        clock.now += LEASE_SECONDS + 1
        assert queue.lease("two") is None
        assert states(queue) == {"c1-short-0": "done"}

    def test_nonsense(self, study: Study) -> None:
        queue = Queue(study)
        with pytest.raises(StudyError, match="not in the development pool"):
            queue.add("c1", "short", [99])
        with pytest.raises(StudyError, match="no candidate 'c9'"):
            queue.add("c9", "short", [0])
        (study.path / "queue.sqlite").write_text("this is not a database, whatever its name says")
        with pytest.raises(StudyError, match="can be deleted"):
            queue.manifest()

    def test_cancelled_items_are_not_run(self, study: Study) -> None:
        queue = Queue(study)
        queue.add("c1", "promotion", [1, 2])
        assert queue.cancel("c1") == 2
        assert queue.lease("me") is None


def work(root: str) -> None:
    queue = Queue(Study(Path(root), "cartpole", "lr"))
    while queue.step(actor="runner") is not None:
        pass


def test_two_runners_share_the_work(study: Study) -> None:
    queue = Queue(study)
    queue.add("c1", "promotion", [1, 2, 3, 4, 5])
    context = multiprocessing.get_context("fork")
    runners = [context.Process(target=work, args=(str(study.root),)) for _ in range(2)]
    for child in runners:
        child.start()
    for child in runners:
        child.join()
        assert child.exitcode == 0
    assert set(states(queue).values()) == {"done"}
    events = list(study.ledger.events())
    for kind in (PREPARED, ENDED):
        seeds = [e.data["run"] for e in events if e.kind == kind]
        assert sorted(seeds) == [f"c1-promotion-{seed}" for seed in range(1, 6)]
    assert study.ledger.read().problems == []


def test_a_launch_that_is_refused_fails_its_item(study: Study) -> None:
    queue = Queue(study)
    queue.add("c1", "short", [0])
    switch.stop(study, "enough", "ada")
    with pytest.raises(StudyError, match="enough"):
        queue.step(actor="runner")
    assert states(queue) == {"c1-short-0": "failed"}
