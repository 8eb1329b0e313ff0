"""Runs get the files of a commit: what the contract names and the commit lacks is said before."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from study_samples import approved_study, candidate_values, contract_values, make_study
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.agree.approvals import approve
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_yaml_document
from assay.study.record.study import Study
from assay.study.run.worktree import worktree
from assay.study.steps import candidates

COMMAND = ["{python}", "train.py", "--seed", "{seed}", "{parameters}"]


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *identity, *words], cwd=root, check=True)


def commit(root: Path) -> None:
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text(".rlxp/\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "more")


def values(**changes: Any) -> dict[str, Any]:
    found = contract_values(baseline={"command": COMMAND} | changes)
    found["evaluation"]["files"] = ["eval.py"]
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository whose commit holds eval.py, and not the script that trains."""
    git(tmp_path, "init", "-q")
    (tmp_path / "eval.py").write_text("EPISODES = 20\n")
    commit(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def checked(root: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["study", "contract", "check", "--root", str(root)])
    return done.exit_code, " ".join(done.output.split())


class TestScriptsThatAreNotCommitted:
    def test_the_baseline_is_not_approved_with_a_commit_that_lacks_its_script(
        self, root: Path
    ) -> None:
        with pytest.raises(StudyError, match=r"'train.py'.* not in commit") as caught:
            approved_study(root, values())
        assert "Commit it" in caught.value.fix
        commit(root)
        study = Study(root, "cartpole", "lr")
        for item in ("baseline", "evaluation"):
            approve(study, item, "ada")

    def test_a_check_of_the_contract_says_so(self, root: Path) -> None:
        study = Study(root, "cartpole", "lr")
        study.path.mkdir(parents=True)
        registry = root / ".rlxp/registry.yaml"
        registry.write_text("schema_version: 1\ntask: cartpole\nstudy: lr\n")
        write_yaml_document(study.contract_path, Contract(**values()))
        code, text = checked(root)
        assert code == 2 and "'train.py'" in text and "not in commit" in text
        commit(root)
        _, text = checked(root)
        assert "The contract is well formed" in text

    def test_what_measures_has_to_be_in_the_commit_too(self, root: Path) -> None:
        commit(root)
        (root / "new_eval.py").write_text("EPISODES = 20\n")
        given = values()
        given["evaluation"]["files"] = ["*eval.py"]
        with pytest.raises(StudyError, match=r"'new_eval.py'.* not in commit"):
            approved_study(root, given)

    def test_files_that_are_linked_into_runs_need_no_commit(self, root: Path) -> None:
        (root / "data").mkdir()
        (root / "data/expert.npz").write_text("moves")
        commit(root)
        git(root, "rm", "-rq", "--cached", "data")
        git(root, "commit", "-qm", "less")
        command = [*COMMAND, "--data=data/expert.npz"]
        with pytest.raises(StudyError, match=r"'data/expert.npz'.* not in commit"):
            approved_study(root, values(command=command))
        study = Study(root, "cartpole", "lr")
        linked = Contract(**values(command=command, untracked=["data"]))
        write_yaml_document(study.contract_path, linked)
        approve(study, "baseline", "ada")

    @pytest.mark.parametrize("commits", [False, True])
    def test_a_script_that_came_after_the_first_registration(
        self, tmp_path: Path, commits: bool
    ) -> None:
        study = make_study(tmp_path)
        (tmp_path / "later.py").write_text((tmp_path / "train.py").read_text())
        if commits:
            commit(tmp_path)
        agreed = study.contract()
        words = tuple("later.py" if w == "train.py" else w for w in agreed.baseline.command)
        other = agreed.baseline.model_copy(update={"command": words})
        write_yaml_document(study.contract_path, agreed.model_copy(update={"baseline": other}))
        with pytest.raises(StudyError, match=r"'later.py'.* not in commit") as caught:
            approve(study, "baseline", "ada")
        assert "new study" in caught.value.fix

    def test_nothing_is_registered_on_it(self, root: Path) -> None:
        commit(root)
        study = approved_study(root, values())
        (root / "helper.py").write_text("")
        agreed = study.contract()
        given = agreed.evaluation.model_copy(update={"files": ("*.py",)})
        agreed = agreed.model_copy(update={"evaluation": given})
        write_yaml_document(study.contract_path, agreed)
        candidates.propose(study, Candidate(**candidate_values()), "agent")
        with pytest.raises(StudyError, match=r"'helper.py'.* not in commit"):
            candidates.validate(study, "c1", "agent")

    def test_without_git_there_is_no_commit(self, tmp_path: Path) -> None:
        for name in ("train.py", "eval.py"):
            (tmp_path / name).write_text("")
        approved_study(tmp_path, values())


def test_what_python_keeps_beside_a_file_that_measures_is_no_part_of_it(root: Path) -> None:
    commit(root)
    (root / "judge").mkdir()
    (root / "judge/score.py").write_text("")
    commit(root)
    given = values()
    given["evaluation"]["files"] = ["judge/**"]
    study = approved_study(root, given)
    (root / "judge/__pycache__").mkdir()
    (root / "judge/__pycache__/score.cpython-311.pyc").write_bytes(b"compiled")
    with worktree(study, study.contract(), "c1-short-0", "") as place:
        assert (place / "judge/score.py").is_file()
