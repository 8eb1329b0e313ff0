"""Approvals bind to what was approved; the budget cannot be overdrawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from study_samples import contract_values

from assay.study.agree.approvals import approve, missing, require_approved, unapproved
from assay.study.agree.budget import reserve, settle
from assay.study.files.candidate import BudgetRequest
from assay.study.files.contract import APPROVALS, Budget, Contract
from assay.study.files.documents import StudyError, digest, write_yaml_document
from assay.study.record.history import History, Transaction
from assay.study.record.kinds import SETTLED, WARNED
from assay.study.record.ledger import Ledger
from assay.study.record.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path, "cartpole", "lr")
    write_yaml_document(study.contract_path, Contract(**contract_values()))
    return study


def edit(study: Study, change) -> None:
    values = yaml.safe_load(study.contract_path.read_text())
    change(values)
    study.contract_path.write_text(yaml.safe_dump(values, sort_keys=False))


class TestApproval:
    def test_all_eight_are_needed(self, study: Study) -> None:
        assert set(missing(study)) == set(APPROVALS) and len(APPROVALS) == 8
        for item in APPROVALS:
            with pytest.raises(StudyError, match=rf"(?s){item}: .* is not approved"):
                require_approved(study)
            approve(study, item, "ada")
        require_approved(study)
        approval = study.contract().approvals["budget"]
        assert (approval.by, approval.hash) == ("ada", digest(study.contract().part("budget")))

    @pytest.mark.parametrize(
        ("item", "change"),
        [
            ("task", lambda v: v.update(question="Something else?")),
            ("task", lambda v: v["task"].update(env="CartPole-v0")),
            ("metrics", lambda v: v["metrics"]["primary"].update(minimum_effect=0.1)),
            ("metrics", lambda v: v["metrics"].update(guardrails=[])),
            ("scope", lambda v: v["scope"].update(files=["**"])),
            ("budget", lambda v: v["budget"].update(runs=4000)),
            ("hardware", lambda v: v["hardware"].update(gpus=8)),
            ("baseline", lambda v: v["baseline"].update(command=["evil.py", "{seed}"])),
            ("evaluation", lambda v: v["evaluation"].update(episodes=1)),
            ("evaluation", lambda v: v["evaluation"].update(alpha=0.4)),
            ("experiment", lambda v: v.update(experiment={"mode": "autonomous"})),
        ],
    )
    def test_an_edit_voids_the_approval_of_its_part_alone(self, study, item, change) -> None:
        for name in APPROVALS:
            approve(study, name, "ada")
        edit(study, change)
        assert list(missing(study)) == [item]
        assert "was changed after ada approved it" in missing(study)[item]
        approve(study, item, "bob")
        assert missing(study) == {}

    def test_an_approval_that_was_written_by_hand_does_not_count(self, study: Study) -> None:
        forged = {"by": "ada", "at": "now", "hash": digest(study.contract().part("budget"))}
        edit(study, lambda v: v["approvals"].update(budget=forged))
        assert missing(study)["budget"].endswith("is not in the ledger")

    def test_an_approval_of_another_person_does_not_count_for_this_one(self, study) -> None:
        approve(study, "budget", "ada")
        edit(study, lambda v: v["approvals"]["budget"].update(by="grace"))
        assert "budget" in missing(study)

    def test_an_approval_that_was_withdrawn_does_not_come_back(self, study: Study) -> None:
        for name in APPROVALS:
            approve(study, name, "ada")
        generous = study.contract_path.read_text()
        edit(study, lambda v: v["budget"].update(runs=11))
        approve(study, "budget", "ada")
        assert missing(study) == {}
        study.contract_path.write_text(generous)  # whole, with the approval that it had
        assert list(missing(study)) == ["budget"]
        assert missing(study)["budget"].endswith("is not the last one in the ledger")
        book = study.history()
        assert unapproved(study.contract(), book.approvals) == missing(study)

    @pytest.mark.parametrize(
        ("words", "files", "named"),
        [
            (["{python}", "tools/score.py"], [], "tools/score.py"),
            (["{python}", "tools/score.py"], ["*.py"], "tools/score.py"),
            (["{python}", "-m", "tools.score"], [], "tools/score.py"),
            (["{python}", "tools/score.py"], ["tools/*.py"], ""),
            (["{python}", "-m", "tools.score"], ["tools/score.py"], ""),
            (["{python}", "-m", "installed.elsewhere", "--episodes", "{episodes}"], [], ""),
        ],
    )
    def test_a_script_that_measures_has_to_be_protected(self, study, words, files, named) -> None:
        (study.root / "tools").mkdir()
        (study.root / "tools/score.py").write_text("")
        edit(study, lambda v: v["evaluation"].update(command=words, files=files))
        if named:
            with pytest.raises(StudyError, match=f"runs '{named}', which is not in evaluation"):
                approve(study, "evaluation", "ada")
            assert "evaluation" in missing(study)
        else:
            approve(study, "evaluation", "ada")
            assert "evaluation" not in missing(study)

    def test_comments_of_the_contract_are_kept(self, study: Study) -> None:
        text = "# why: see the minutes\n" + study.contract_path.read_text()
        study.contract_path.write_text(text)
        approve(study, "task", "ada")
        approve(study, "scope", "ada")
        written = study.contract_path.read_text()
        assert written.startswith("# why: see the minutes\n")
        assert written.count("approvals:") == 1
        assert set(study.contract().approvals) == {"task", "scope"}

    def test_nonsense(self, study: Study) -> None:
        with pytest.raises(StudyError, match="Did you mean 'budget'"):
            approve(study, "budgte", "ada")
        with pytest.raises(StudyError, match="needs a name"):
            approve(study, "budget", " ")


BUDGET = Budget(wall_clock_hours=10, gpu_hours=4, runs=5, parallel=3)


def ask(wall: float, gpu: float = 0.0) -> BudgetRequest:
    return BudgetRequest(wall_clock_hours=wall, gpu_hours=gpu)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


@contextlib.contextmanager
def transaction(ledger: Ledger) -> Iterator[Transaction]:
    with ledger.transaction() as writer:
        yield Transaction(writer)


class TestBudget:
    def test_by_hand(self, ledger: Ledger) -> None:
        with transaction(ledger) as held:
            reserve(held, BUDGET, "a", ask(3, 1), "ada")
            reserve(held, BUDGET, "b", ask(3, 1), "ada")
            settle(held, "a", 1.0, 0.5)
            settle(held, "a", 9.0, 9.0)  # a second time: no effect
        found = History.read(ledger.events()).usage
        assert (found.wall_clock_hours, found.gpu_hours, found.runs) == (4.0, 1.5, 2)
        assert found.open == ("b",)
        assert found.share(BUDGET) == pytest.approx(0.4)

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [(ask(10.1), "wall-clock hours"), (ask(1, 4.5), "GPU-hours"), (ask(1, 5), "GPU-hours")],
    )
    def test_too_much_is_refused_and_nothing_is_reserved(self, ledger, request_, reason) -> None:
        with transaction(ledger) as held, pytest.raises(StudyError, match=reason):
            reserve(held, BUDGET, "a", request_, "ada")
        assert History.read(ledger.events()).usage.runs == 0

    def test_crashed_runs_count(self, ledger: Ledger) -> None:
        with transaction(ledger) as held:
            for i in range(5):
                reserve(held, BUDGET, f"r{i}", ask(1), "ada")
                settle(held, f"r{i}", 0.0, 0.0)
            with pytest.raises(StudyError, match="6 runs; 5 are approved"):
                reserve(held, BUDGET, "r5", ask(1), "ada")

    def test_a_run_is_launched_once(self, ledger: Ledger) -> None:
        with transaction(ledger) as held:
            reserve(held, BUDGET, "a", ask(1), "ada")
            settle(held, "a", 1, 0)
            with pytest.raises(StudyError, match="launched once"):
                reserve(held, BUDGET, "a", ask(1), "ada")

    def test_parallel_runs_are_limited(self, ledger: Ledger) -> None:
        with transaction(ledger) as held:
            for name in "abc":
                reserve(held, BUDGET, name, ask(1), "ada")
            with pytest.raises(StudyError, match="3 runs are under way"):
                reserve(held, BUDGET, "d", ask(1), "ada")

    def test_a_warning_at_four_fifths(self, ledger: Ledger) -> None:
        with transaction(ledger) as held:
            reserve(held, BUDGET, "a", ask(7), "ada")
            reserve(held, BUDGET, "b", ask(1), "ada")
            reserve(held, BUDGET, "c", ask(1), "ada")
        assert [e.data["share"] for e in ledger.events() if e.kind == WARNED] == [0.8]

    def test_what_was_not_reserved_is_not_settled(self, ledger: Ledger) -> None:
        with transaction(ledger) as held, pytest.raises(StudyError, match="no reservation"):
            settle(held, "a", 1, 0)

    @settings(max_examples=40, deadline=None)
    @example(  # rounding: the sum must not depend on the order in which it was made
        steps=[
            (1, 5.319624828569714, 0.0, False),
            (2, 1.0, 0.0, False),
            (2, 1.0, 0.07323687279940039, True),
            (0, 3.0, 0.0, False),
        ]
    )
    @given(
        steps=st.lists(
            st.tuples(st.integers(0, 7), st.floats(0.01, 6), st.floats(-1, 8), st.booleans()),
            max_size=15,
        )
    )
    def test_it_is_never_overdrawn_by_reserving_and_never_negative(self, steps, tmp_path_factory):
        ledger = Ledger(tmp_path_factory.mktemp("b") / "l.jsonl")
        with transaction(ledger) as held:
            for run, wall, used, finish in steps:
                before = held.history.usage
                try:
                    if finish:
                        settle(held, f"r{run}", used, 0.0)
                    else:
                        reserve(held, BUDGET, f"r{run}", ask(wall), "ada")
                        assert held.history.usage.wall_clock_hours <= 10 * (1 + 1e-9)
                except StudyError:
                    assert held.history.usage == before
                now = held.history.usage
                assert min(now.wall_clock_hours, now.gpu_hours) >= 0
                assert now.runs <= BUDGET.runs
        assert History.read(ledger.events()).usage == held.history.usage
        settled = [e.data["run"] for e in ledger.events() if e.kind == SETTLED]
        assert len(settled) == len(set(settled))
