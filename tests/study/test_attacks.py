"""What an agent might try that wants its candidate accepted: none of it reaches a result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import psutil
import pytest
import yaml
from study_samples import approved_study, candidate_values, contract_values, make_study

from assay.study.agree.approvals import approve
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Baseline
from assay.study.files.documents import ROOT, StudyError
from assay.study.judge import verify
from assay.study.record import kinds
from assay.study.record.study import Study
from assay.study.run import launcher, processes, recovery, supervisor, switch
from assay.study.steps import candidates
from assay.study.steps.review import review

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@localhost"]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path)


def launch(study: Study, seed: int = 0, phase: str = "short", name: str = "c1") -> str:
    planned = launcher.launch(study, name, phase, seed, confirm=None, actor="agent")
    return planned.run


def value(study: Study, run: str) -> float | None:
    return recovery.wait(study, run, 300).metrics["return"]


class TestCode:
    """A run has the code of the commit that its candidate was registered on, and no other."""

    def test_what_is_committed_later(self, study: Study) -> None:
        source = study.root / "train.py"
        source.write_text(source.read_text().replace("100 +", "900 +"))
        git = ["git", *IDENTITY, "commit", "-qam", "innocent"]
        subprocess.run(git, cwd=study.root, check=True)
        with pytest.raises(StudyError, match=r"was changed after 'c1' was registered: train\.py"):
            launch(study)  # train.py measures, so that its bytes are part of the registration
        source.write_text(source.read_text().replace("900 +", "100 +"))
        subprocess.run(git, cwd=study.root, check=True)
        assert value(study, launch(study)) == 102.0

    def test_code_that_measures_nothing(self, tmp_path: Path) -> None:
        study = with_evaluation(tmp_path, "BONUS = 0\n")
        (study.root / "helper.py").write_text("BONUS = 50\n")
        git = ["git", *IDENTITY, "commit", "-qam", "innocent"]
        subprocess.run(git, cwd=study.root, check=True)
        run = launch(study)
        assert value(study, run) == 1.0
        # And the record names the commit that was run, not the one that is checked out.
        assert study.run(run).commit == study.history().registration("c1").data["base"]

    def test_a_file_that_shadows_an_import(self, study: Study) -> None:
        row = json.dumps({"eval/return_mean": 999, "time/elapsed": 1})
        (study.root / "json.py").write_text(f"def dumps(row):\n    return {row!r}\n")
        assert value(study, launch(study)) == 102.0

    def test_a_change_that_git_was_told_to_overlook(self, tmp_path: Path) -> None:
        study = with_evaluation(tmp_path, "BONUS = 0\n")
        words = ["git", "update-index", "--assume-unchanged", "helper.py"]
        subprocess.run(words, cwd=study.root, check=True)
        (study.root / "helper.py").write_text("BONUS = 50\n")
        assert value(study, launch(study)) == 1.0

    def test_a_patch_that_makes_a_link(self, study: Study) -> None:
        patch = (
            "diff --git a/src/agent.py b/src/agent.py\ndeleted file mode 100644\n"
            "--- a/src/agent.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-LR = 1\n"
            "diff --git a/src/agent.py b/src/agent.py\nnew file mode 120000\n"
            "--- /dev/null\n+++ b/src/agent.py\n@@ -0,0 +1 @@\n+/etc/hostname\n"
            "\\ No newline at end of file\n"
        )
        values = candidate_values(id="link", change={"patch": patch})
        candidates.propose(study, Candidate(**values), "agent")
        try:
            candidates.validate(study, "link", "agent")
        except StudyError:
            return  # Git itself will not have it
        record = recovery.wait(study, launch(study, name="link"), 300)
        assert record.outcome == "failed" and "symbolic link" in record.reason

    def test_a_patch_that_does_not_apply_is_not_registered(self, study: Study) -> None:
        patch = (
            "diff --git a/src/agent.py b/src/agent.py\n--- a/src/agent.py\n+++ b/src/agent.py\n"
            "@@ -1 +1 @@\n-LR = 7\n+LR = 8\n"
        )
        for name, text in (("stale", patch), ("fits", patch.replace("LR = 7", "LR = 1"))):
            values = candidate_values(id=name, change={"patch": text})
            candidates.propose(study, Candidate(**values), "agent")
        assert [review(study, name)[0].level for name in ("stale", "fits")] == ["stop", "ok"]
        with pytest.raises(StudyError, match="The patch does not apply"):
            candidates.validate(study, "stale", "agent")
        candidates.validate(study, "fits", "agent")


class TestOrders:
    """The supervisor does what the ledger says."""

    @pytest.fixture
    def waiting(self, study: Study, monkeypatch) -> str:
        monkeypatch.setattr(supervisor, "start", lambda *words: None)
        return launch(study)

    def test_another_command(self, study: Study, waiting: str) -> None:
        path = study.path / "runs" / waiting / "run.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"argv": ["/bin/true"]}))
        supervisor.supervise(study, waiting)
        assert study.run(waiting).reason == "its command was changed after the launch"
        assert study.run(waiting).argv != ("/bin/true",)

    def test_another_environment(self, study: Study, waiting: str) -> None:
        path = study.path / "runs" / waiting / "plan.json"
        plan = json.loads(path.read_text())
        plan["env"]["PYTHONPATH"] = "evil"
        path.write_text(json.dumps(plan))
        supervisor.supervise(study, waiting)
        assert study.run(waiting).reason == "its environment was changed after the launch"

    def test_another_candidate(self, study: Study, waiting: str) -> None:
        path = study.candidate_path("c1")
        path.write_text(path.read_text().replace("0.002", "0.009"))
        supervisor.supervise(study, waiting)
        assert "candidates/c1.yaml (change) was edited after" in study.run(waiting).reason

    def test_a_forged_end(self, study: Study, waiting: str) -> None:
        child = os.fork()
        if not child:
            processes.claim(study.path / "runs" / waiting, "supervisor")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        place = study.path / "runs" / waiting
        (place / "out").mkdir()
        row = {"eval/return_mean": 999.0, "time/elapsed": 1.0}
        (place / "out/metrics.jsonl").write_text(json.dumps(row))
        done = {"outcome": "done", "exit_code": 0, "reason": "", "hours": 0.001}
        (place / "exit.json").write_text(json.dumps(done))
        recovery.recover(study)
        assert study.run(waiting).outcome == "lost"

    def test_output_that_is_edited_before_it_is_measured(
        self, study: Study, waiting: str, monkeypatch
    ) -> None:
        def edit(step: str) -> None:
            if step == "exited":
                row = {"eval/return_mean": 999.0, "time/elapsed": 1.0}
                (study.path / "runs" / waiting / "out/metrics.jsonl").write_text(json.dumps(row))

        supervisor.supervise(study, waiting, between=edit)
        record = study.run(waiting)
        assert record.outcome == "failed"
        assert record.reason == "what it wrote was changed after it had ended"


class TestEnvironment:
    def test_what_changes_imports_is_not_passed_on_by_default(self) -> None:
        allowed = set(Baseline(command=("x", "{seed}")).env_allow)
        assert not allowed & {"PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONSTARTUP"}

    def test_deciding_runs_have_the_same_one(self, study: Study, monkeypatch) -> None:
        assert value(study, launch(study, 1, "promotion")) == 103.0
        monkeypatch.setenv("PATH", "/evil" + os.pathsep + os.environ["PATH"])
        with pytest.raises(StudyError, match="variable PATH is not what it was"):
            launch(study, 2, "promotion")

    def test_secrets_are_not_written_down(self, study: Study, monkeypatch) -> None:
        values = yaml.safe_load(study.contract_path.read_text())
        values["baseline"]["env_allow"] = ["PATH", "WANDB_API_KEY"]
        study.contract_path.write_text(yaml.safe_dump(values))
        approve(study, "baseline", "ada")
        monkeypatch.setenv("WANDB_API_KEY", "hush-hush")
        run = launch(study)
        assert recovery.wait(study, run, 300).env["WANDB_API_KEY"] == "(kept secret)"
        place = study.path / "runs" / run
        holding = [p.name for p in place.rglob("*") if p.is_file() and b"hush" in p.read_bytes()]
        assert holding == ["plan.json"]
        assert (place / "plan.json").stat().st_mode & 0o077 == 0
        assert "hush" not in study.ledger.path.read_text()

    def test_it_is_on_record(self, study: Study) -> None:
        record = recovery.wait(study, launch(study), 300)
        assert record.env == {"PATH": os.environ["PATH"], "WANDB_MODE": "offline"}


def with_evaluation(root: Path, helper: str, train: str = "pass") -> Study:
    """Return a study whose metric is written by a protected script, with a candidate c1."""
    (root / "helper.py").write_text(helper)
    (root / "train.py").write_text(
        "import pathlib, sys\nfrom helper import BONUS\n"
        "out = pathlib.Path(sys.argv[2])\n(out / 'bonus').write_text(str(BONUS))\n" + train
    )
    (root / "evaluate.py").write_text(
        "import json, pathlib, sys\nout = pathlib.Path(sys.argv[1])\n"
        "bonus = float((out / 'bonus').read_text())\n"
        "(out / 'eval.json').write_text(json.dumps({'return': 1.0 + bonus}))\n"
    )
    (root / ".gitignore").write_text(f"{ROOT}/\n__pycache__/\n")
    for words in (["init", "-q"], ["add", "."], [*IDENTITY, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    values = contract_values()
    source = {"kind": "json", "path": "eval.json", "key": "return"}
    values["metrics"] = {"primary": {"name": "return", "source": source, "minimum_effect": 1.0}}
    command = ["{python}", "train.py", "{seed}", "{out}", "{parameters}"]
    values["baseline"] = {"command": command, "env_allow": ["PATH"]}
    values["evaluation"] |= {
        "command": ["{python}", "evaluate.py", "{out}"], "files": ["evaluate.py"],
    }  # fmt: skip
    study = approved_study(root, values)
    candidates.propose(study, Candidate(**candidate_values()), "agent")
    candidates.validate(study, "c1", "agent")
    return study


class TestEvaluation:
    def test_training_cannot_rewrite_it(self, tmp_path: Path) -> None:
        study = with_evaluation(
            tmp_path, "BONUS = 0\n",
            "pathlib.Path('evaluate.py').write_text('raise SystemExit(7)')\n",
        )  # fmt: skip
        assert value(study, launch(study)) == 1.0

    def test_what_training_left_running_is_ended_before_it(self, tmp_path: Path) -> None:
        daemon = textwrap.dedent("""
            import os, time
            if not os.fork():
                os.setsid()
                if not os.fork():
                    (out / "daemon").write_text(str(os.getpid()))
                    for _ in range(600):
                        (out / "eval.json").write_text('{"return": 999.0}')
                        time.sleep(0.01)
                os._exit(0)
            while not (out / "daemon").exists():
                time.sleep(0.01)
        """)
        study = with_evaluation(tmp_path, "BONUS = 0\n", daemon)
        run = launch(study)
        assert value(study, run) == 1.0
        pid = int((study.path / "runs" / run / "out/daemon").read_text())
        dead = not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert dead
        assert [str(p) for p in verify.verify(study)] == []


def test_a_kill_switch_that_is_deleted_by_hand(study: Study) -> None:
    switch.stop(study, "enough", "ada")
    (study.path / kinds.STOP).unlink()
    with pytest.raises(StudyError, match="The study is stopped: enough"):
        launch(study)
    switch.go_on(study, "ada")
    assert value(study, launch(study)) == 102.0


def test_a_pool_may_grow_when_that_is_approved(study: Study) -> None:
    values = yaml.safe_load(study.contract_path.read_text())
    values["evaluation"]["pools"]["promotion"].append(6)
    study.contract_path.write_text(yaml.safe_dump(values))
    with pytest.raises(StudyError, match="the evaluation protocol was changed"):
        launch(study, 6, "promotion")
    approve(study, "evaluation", "ada")
    assert value(study, launch(study, 6, "promotion")) == 108.0


@pytest.mark.parametrize(
    ("stated", "reason"),
    [({"command": ["other.py", "{seed}"]}, "states the command"), ({"seeds": [1, 2]}, "promotion")],
)
def test_a_candidate_that_states_its_own_plans(study: Study, stated: dict, reason: str) -> None:
    candidates.propose(study, Candidate(**candidate_values(id="own", **stated)), "agent")
    with pytest.raises(StudyError, match=reason):
        candidates.validate(study, "own", "agent")


def test_a_candidate_that_states_what_was_agreed(study: Study) -> None:
    agreed = study.contract()
    stated = {"command": agreed.baseline.command, "seeds": agreed.evaluation.pools.promotion}
    candidates.propose(study, Candidate(**candidate_values(id="same", **stated)), "agent")
    candidates.validate(study, "same", "agent")
    registered = study.history().registration("same").data
    assert registered["seeds"]["promotion"] == [1, 2, 3, 4, 5]
