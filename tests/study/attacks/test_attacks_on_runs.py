"""What a run writes and loads is its own: nothing is laid in, swapped or shadowed unnoticed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from arena import FILES, Runner, begin, diff, expected, problems, propose, repository
from study_samples import contract_values

from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.judge import audit
from assay.study.measure import monitor
from assay.study.record.study import Study
from assay.study.report.pages import write as write_report
from assay.study.run import supervisor


def test_an_honest_run_passes_every_check(study: Study, run: Runner) -> None:
    record = run(study)
    assert (record.outcome, record.reason, record.tampered) == ("done", "", ())
    assert record.metrics["return"] == expected(0, 0.002)
    assert {"train.py", "agent.py", "evaluate.py", "common.py"} <= record.loaded.keys()
    assert not (study.path / "runs" / record.id / "inside-training").exists()
    assert problems(study) == ""


class TestLaidIn:
    """16, 17: files are put into a run's directory before it is launched."""

    @pytest.mark.parametrize("name", ["out/extra.csv", "stdout.log", "claim.json"])
    def test_16_17_what_lies_there_before_is_refused(
        self, study: Study, run: Runner, name: str
    ) -> None:
        laid = study.path / "runs" / "c1-short-0" / name
        laid.parent.mkdir(parents=True)
        laid.write_text("return\n999\n")
        first = Path(name).parts[0]
        with pytest.raises(StudyError, match=f"'c1-short-0' holds '{first}'"):
            run(study)

    @pytest.mark.parametrize("name", ["out", "stdout.log"])
    def test_16_17_nor_what_is_laid_in_after_the_launch(
        self, study: Study, run: Runner, name: str
    ) -> None:
        def lay(step: str) -> None:
            path = study.path / "runs" / "c1-short-0" / name
            if step == "claimed":
                path.mkdir() if name == "out" else path.write_text("return: 999\n")

        record = run(study, between=lay)
        assert record.outcome == "failed"
        assert record.reason == f"'{name}' was in its directory before it was started"

    def test_a_link_in_its_place_is_refused(self, study: Study, run: Runner, tmp_path) -> None:
        (study.path / "runs").mkdir()
        (study.path / "runs" / "c1-short-0").symlink_to(tmp_path)
        with pytest.raises(StudyError, match="is not a directory"):
            run(study)


def test_a_training_that_kills_itself_on_two_seeds_fails_its_audit(
    study: Study, run: Runner
) -> None:
    """SIGKILL from inside looks like one from outside, so one is forgiven and two are not."""
    kill = FILES["train.py"].rstrip() + "\n        import os; os.kill(os.getpid(), 9)\n"
    propose(study, "base")
    propose(study, "dies", patch=diff(study.root, {"train.py": kill}))
    for seed, passes in ((1, True), (2, False)):
        record = run(study, "dies", seed, "promotion")
        assert record.outcome == "lost", record.reason
        checks = audit.audit(study, "dies", "promotion", "agent").checks
        [lost] = [check for check in checks if check.name == "no run was stopped before its end"]
        assert lost.passed is passes, lost.detail


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_a_clock_that_is_set_ends_no_run_and_hides_none(
    study: Study, run: Runner, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """A day ahead, a training looked frozen; a day back, nobody looked at it for a day."""
    slow = FILES["train.py"].rstrip() + "\n        import time; time.sleep(1)\n"
    propose(study, "slow", patch=diff(study.root, {"train.py": slow}))
    monkeypatch.setattr(supervisor, "HEARTBEAT_SECONDS", 0.01)
    looks, look, clock = [], monitor.Watch.look, time.time

    def looked(self: monitor.Watch, now: float) -> str | None:
        reason = look(self, now)
        if (self.place / "out/policy.json").exists():  # from here on it writes nothing
            looks.append(now)
            monkeypatch.setattr(time, "time", lambda: clock() + jump)
        return reason

    monkeypatch.setattr(monitor.Watch, "look", looked)
    record = run(study, "slow")
    assert (record.outcome, record.reason) == ("done", "") and len(looks) > 2


class TestSwapped:
    """28: the policy is swapped between training and evaluation."""

    @pytest.mark.parametrize("step", ["evaluation", "evaluating"])
    def test_28_a_swapped_checkpoint_is_noticed(self, study: Study, run: Runner, step: str) -> None:
        def swap(now: str) -> None:
            if now == step:
                path = study.path / "runs" / "c1-short-0" / "out/policy.json"
                path.write_text(json.dumps({"skill": 99.0}))

        record = run(study, between=swap)
        assert record.outcome == "failed"
        assert "'policy.json', which training wrote, was changed" in record.reason
        assert "'policy.json', which training wrote" in problems(study)

    def test_28_one_that_is_put_back_is_noticed(self, study: Study, run: Runner) -> None:
        out = study.path / "runs" / "c1-short-0" / "out"

        def swap(now: str) -> None:
            if now == "evaluating":
                (out / "policy.json").rename(out / "kept")
                (out / "policy.json").write_text(json.dumps({"skill": 99.0}))
                (out / "policy.json").unlink()
                (out / "kept").rename(out / "policy.json")

        assert "'policy.json', which training wrote" in run(study, between=swap).reason

    def test_an_evaluation_may_go_on_writing_a_file_of_the_training(
        self, tmp_path: Path, run: Runner
    ) -> None:
        more = (
            FILES["evaluate.py"].rstrip() + "\n        (out / 'policy.json').open('a').write(' ')\n"
        )
        study = begin(repository(tmp_path / "r", FILES | {"evaluate.py": more}))
        propose(study)
        assert run(study).outcome == "done"


class TestShadowed:
    """27: a file in the worktree takes an import's place."""

    def shadowing(self, study: Study, name: str, text: str, step: str = "evaluating"):
        def shadow(now: str) -> None:
            if now == step:
                for tree in (study.path / "worktrees").glob("*.evaluation"):
                    (tree / name).parent.mkdir(exist_ok=True)
                    (tree / name).write_text(text)

        return shadow

    def test_27_an_import_shadowed_in_the_evaluation_worktree(self, study, run: Runner) -> None:
        cheat = "import json\njson.dumps = lambda row: '{\"return\": 99}'\n"
        record = run(study, between=self.shadowing(study, "random.py", cheat))
        assert record.outcome == "failed"
        assert "'random.py'" in record.reason
        assert "'random.py'" in problems(study)

    def test_27_compiled_code_beside_a_source_is_noticed(self, study, run: Runner) -> None:
        lay = self.shadowing(study, "__pycache__/common.cpython-399.pyc", "x")
        assert "common.cpython-399.pyc' appeared in the worktree" in run(study, between=lay).reason

    def test_27_an_edited_evaluation_file_is_noticed(self, study, run: Runner) -> None:
        lay = self.shadowing(study, "evaluate.py", "pass\n")
        assert "'evaluate.py'" in run(study, between=lay).reason

    def test_22_a_patch_that_adds_a_file_which_the_evaluation_would_import(
        self, study: Study, run: Runner
    ) -> None:
        propose(study, "c2", patch=diff(study.root, {"random.py": "raise SystemExit(0)\n"}))
        assert "would import 'random.py', which the patch adds" in run(study, "c2").reason

    def test_a_file_that_the_evaluation_writes_is_no_attack(self, tmp_path: Path, run) -> None:
        more = (
            FILES["evaluate.py"].rstrip()
            + "\n        pathlib.Path('outputs.txt').write_text('x')\n"
        )
        study = begin(repository(tmp_path / "r", FILES | {"evaluate.py": more}))
        propose(study)
        assert run(study).outcome == "done"


class TestRange:
    """30: numbers that no honest run can write."""

    def with_range(self, tmp_path: Path, score: str, **primary) -> Study:
        scaled = {"common.py": f"def scale(skill):\n    return {score}\n"}
        source = {"kind": "json", "path": "eval.json", "key": "return"}
        metric = {"name": "return", "source": source, "minimum_effect": 1.0, **primary}
        root = repository(tmp_path / "r", FILES | scaled)
        study = begin(root, metrics={"primary": metric})
        propose(study)
        return study

    def test_a_score_outside_of_its_range_fails_the_seed(self, tmp_path: Path, run) -> None:
        record = run(self.with_range(tmp_path, "120.0", range=[0, 100]))
        assert (record.outcome, record.metrics["return"]) == ("failed", None)
        assert record.reason == "Metric 'return' is 120, outside of its valid range 0 to 100."

    def test_a_score_inside_of_it_counts(self, tmp_path: Path, run) -> None:
        record = run(self.with_range(tmp_path, "100.0", range=[0, 100]))
        assert (record.outcome, record.metrics["return"]) == ("done", 100.0)

    def test_30_a_huge_number_is_no_score(self, tmp_path: Path, run) -> None:
        record = run(self.with_range(tmp_path, "1e308"))
        assert record.outcome == "failed" and "is 1e+308, outside of" in record.reason

    def test_a_range_has_an_order_and_leaves_old_hashes_alone(self) -> None:
        with pytest.raises(ValueError, match="low < high"):
            values = contract_values()
            values["metrics"]["primary"]["range"] = [5, 1]
            Contract(**values)
        assert "range" not in Contract(**contract_values()).part("metrics")["metrics"]["primary"]


def test_what_was_noticed_is_in_the_report(study: Study, run: Runner) -> None:
    def swap(now: str) -> None:
        if now == "evaluation":
            (study.path / "runs" / "c1-short-0" / "out/policy.json").write_text("{}")

    run(study, between=swap)
    write_report(study)
    text = (study.path / "report.md").read_text()
    assert "While run c1-short-0 was under way: 'policy.json', which training wrote" in text


def test_python_that_ignores_the_environment_is_said_not_to_be_watched(
    tmp_path: Path, run: Runner
) -> None:
    command = [sys.executable, "-E", "train.py", "{seed}", "{out}", "{parameters}"]
    study = begin(repository(tmp_path / "r"), baseline={"command": command})
    propose(study)
    record = run(study)
    assert record.outcome == "done"
    assert record.unrecorded == "its command started no Python that could be watched"
