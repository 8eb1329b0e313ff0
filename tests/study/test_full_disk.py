"""A machine that cannot run a candidate says nothing about the candidate."""

from __future__ import annotations

import errno
import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from study_samples import make_study
from test_study_commands import place, repository, study, told

from assay.study.files import documents
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.ledger import GitRef
from assay.study.record.opening import open_study
from assay.study.run import launcher, planning, recovery, supervisor

__all__ = ["repository"]  # a fixture


def lose(found, run: str, reason: str) -> None:
    """Put on record that a run was lost, and close it."""
    recovery._lose(found, run, reason, 0.0)
    recovery.finish(found, run)


class TestFullDisk:
    @pytest.mark.parametrize(("free", "outcome"), [(0, "lost"), (10**9, "failed")])
    def test_a_training_that_found_no_space_did_not_fail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
        found, reason = supervisor._ended_badly(1, True, tmp_path)
        assert found == outcome
        assert ("the disk is full" in reason) == (outcome == "lost")


class TestApproval:
    """The disk is full at each of the places that an approval is written to."""

    @pytest.fixture
    def approved(self, repository: Path) -> Path:
        study("contract", "approve", "all", "--by", "Ada")
        return repository

    def full(self, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def unchanged(self, root: Path, code: int = 2) -> str:
        """Try to approve as somebody else; what Ada approved must still count."""
        files = [place(root) / name for name in ("ledger.jsonl", "contract.yaml", "state.json")]
        before = [path.read_bytes() for path in files]
        said = study("contract", "approve", "metrics", "--by", "Eve", code=code)
        assert [path.read_bytes() for path in files] == before
        assert not list(place(root).glob("*.new"))
        return said

    def test_the_contract(self, approved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(documents, "write_atomic", self.full)
            said = self.unchanged(approved)
        assert "the disk is full.\nFree some space and try again." in said
        assert told("next")["action"] == "baseline" and "intact" in study("verify")

    def test_the_ledger(self, approved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", self.full)
            said = self.unchanged(approved)
        assert "the disk is full" in said and said.count("Error") == 1
        assert told("next")["action"] == "baseline" and "intact" in study("verify")

    def test_the_head_in_git(self, approved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ref = open_study(approved).ref
        with monkeypatch.context() as patched:
            patched.setattr(GitRef, "note", lambda *_, **__: False)
            said = study("contract", "approve", "metrics", "--by", "Eve", code=2)
        assert "the ledger is whole" in said and "run `assay study status`, which notes it" in (
            " ".join(said.split())
        )
        study("status")
        assert ref.head() == open_study(approved).ledger.head()


class TestNeverStarted:
    def test_such_runs_do_not_use_up_a_seed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervisor, "start", lambda study, run, held: None)
        found = make_study(tmp_path)
        for _ in range(kinds.MOST_LOST + 1):
            planned = launcher.launch(found, "c1", "promotion", 1, confirm=None, actor="agent")
            lose(found, planned.run, kinds.UNSTARTED)
        assert found.history().exhausted("c1", "promotion") == set()
        assert planning.plan(found, "c1", "promotion", 1).run == "c1-promotion-1-4"
        for _ in range(kinds.MOST_LOST):
            planned = launcher.launch(found, "c1", "promotion", 1, confirm=None, actor="agent")
            lose(found, planned.run, "its supervisor was killed")
        assert found.history().exhausted("c1", "promotion") == {1}
        with pytest.raises(StudyError, match="was lost or failed 2 times"):
            planning.plan(found, "c1", "promotion", 1)

    def test_nor_does_a_clock_that_was_set_back_keep_them_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Earlier(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) - timedelta(days=1)

        monkeypatch.setattr(supervisor, "start", lambda study, run, held: None)
        found = make_study(tmp_path)
        planned = launcher.launch(found, "c1", "promotion", 1, confirm=None, actor="agent")
        assert recovery.recover(found) == []  # it may still be started
        monkeypatch.setattr(recovery, "datetime", Earlier)
        assert recovery.recover(found) == [planned.run]
