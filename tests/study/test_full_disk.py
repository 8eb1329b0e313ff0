"""A machine that cannot run a candidate says nothing about the candidate."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from study_samples import make_study

from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.run import launcher, planning, recovery, supervisor


def lose(study, run: str, reason: str) -> None:
    """Put on record that a run was lost, and close it."""
    recovery._lose(study, run, reason, 0.0)
    recovery.finish(study, run)


class TestFullDisk:
    @pytest.mark.parametrize(("free", "outcome"), [(0, "lost"), (10**9, "failed")])
    def test_a_training_that_found_no_space_did_not_fail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
        found, reason = supervisor._ended_badly(1, True, tmp_path)
        assert found == outcome
        assert ("the disk is full" in reason) == (outcome == "lost")


class TestNeverStarted:
    def test_such_runs_do_not_use_up_a_seed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "start", lambda study, run, held: None)
        study = make_study(tmp_path)
        for _ in range(kinds.MOST_LOST + 1):
            planned = launcher.launch(study, "c1", "promotion", 1, confirm=None, actor="agent")
            lose(study, planned.run, kinds.UNSTARTED)
        assert study.history().exhausted("c1", "promotion") == set()
        assert planning.plan(study, "c1", "promotion", 1).run == "c1-promotion-1-4"
        for _ in range(kinds.MOST_LOST):
            planned = launcher.launch(study, "c1", "promotion", 1, confirm=None, actor="agent")
            lose(study, planned.run, "its supervisor was killed")
        assert study.history().exhausted("c1", "promotion") == {1}
        with pytest.raises(StudyError, match="was lost or failed 2 times"):
            planning.plan(study, "c1", "promotion", 1)
