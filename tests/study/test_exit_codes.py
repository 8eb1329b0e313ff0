"""What scripts go by: exit codes, and words that say what happened to a candidate."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_samples import make_study
from test_study_commands import CANDIDATES, fill, repository, study, told

__all__ = ["repository"]  # a fixture
LOOP = ("loop", "--execute", "--confirm", "RUN_CANDIDATE")


class TestLoop:
    def test_three_where_a_person_is_needed(self, repository: Path) -> None:
        study("contract", "approve", "all", "--by", "Ada")
        study("stop", "--reason", "the cluster is down")
        assert "Ended: The study is stopped: the cluster is down" in study(*LOOP, code=3)
        ended = told(*LOOP, code=3)
        assert not ended["done"] and "the cluster is down" in ended["ended"]

    def test_three_where_not_even_a_baseline_can_be_planned(self, repository: Path) -> None:
        """It was tried again and again, for ever."""
        fill(repository, budget={"runs": 1})
        study("contract", "approve", "all", "--by", "Ada")
        ended = told(*LOOP, code=3)
        assert not ended["done"] and ended["ended"].startswith("nothing is left but what was ref")

    @pytest.mark.slow
    def test_zero_where_the_budget_is_used(self, repository: Path) -> None:
        fill(repository, budget={"runs": 10})
        study("contract", "approve", "all", "--by", "Ada")
        ended = told(*LOOP)
        assert ended["done"] and ended["ended"] == "all 10 runs of the budget are used"

    def test_the_help_names_both(self) -> None:
        said = " ".join(study("loop", "--help").split())
        assert "Exit code 0: everything proposed is decided, or the budget is used. 3:" in said


class TestStatus:
    @pytest.mark.parametrize("ready", [True, False])
    def test_two_where_the_ledger_is_damaged(self, repository: Path, ready: bool) -> None:
        if not ready:
            study("contract", "new", "--force")
        path = next(repository.rglob("ledger.jsonl"))
        path.write_text(path.read_text().replace("tester", "intruder"))
        said = " ".join(study("status", code=2).split())
        assert "is damaged" in said and "line 1: its content does not match its hash" in said
        assert "Put ledger.jsonl back as it was, from a backup or a commit" in said


class TestMetrics:
    def test_two_where_a_key_is_missing(self, repository: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/metrics.jsonl").write_text('{"returns": 1.0, "loss": 2.0}\n')
        said = " ".join(study("metrics", "--out", tmp_path / "out", code=2).split())
        assert "Metric 'return' cannot be read. The metric 'return' is not in 'metrics.js" in said
        assert "Did you mean 'returns'? It holds: loss, returns." in said
        (tmp_path / "out/metrics.jsonl").write_text('{"return": 1.0}\n')
        assert told("metrics", "--out", tmp_path / "out")[0]["value"] == 1.0

    def test_what_is_there_twice_is_named(self, repository: Path, tmp_path: Path) -> None:
        source = '{kind: stdout, key: "return: (.+)"}'
        study("contract", "set", f"metrics.primary.source={source}")
        (tmp_path / "stdout.log").write_text("return: 1\nbest return: 2\n")
        said = study("metrics", "--out", tmp_path)
        assert said.count("Warning") == 1 and "'return: 1' and 'best return: 2'" in said


class TestDiscarded:
    def test_a_draft_that_was_discarded_is_not_called_rejected(self, repository: Path) -> None:
        (repository / "c.yaml").write_text(CANDIDATES)
        study("propose", "c.yaml")
        assert study("discard", "bigger", "--why", "a typo") == "bigger is discarded.\n"
        said = study("status")
        assert "bigger is discarded: a typo" in said and "rejected" not in said
        assert "There is no answer yet: smaller not decided." in said
        study("discard", "smaller", "--why", "a typo too")
        assert "There is no answer yet: all candidates were discarded." in study("status")
        study("report")
        report = next(repository.rglob("report.md")).read_text()
        assert "| discarded |" in report and "| rejected |" not in report

    def test_events_of_earlier_versions(self, tmp_path: Path) -> None:
        found = make_study(tmp_path)
        with found.transaction() as transaction:
            transaction.move("c1", "rejected", actor="ada", why="enough")
        assert found.history().shown_state("c1") == "discarded"
