"""A repository that was copied without its .git, as an archive is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from study_samples import make_study
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.files.documents import StudyError
from assay.study.record.opening import open_study
from assay.study.run import planning


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    make_study(tmp_path / "repository").sync()
    place = tmp_path / "copy"
    shutil.copytree(tmp_path / "repository", place, ignore=shutil.ignore_patterns(".git"))
    return place


def said(root: Path, *words: str, code: int) -> str:
    done = CliRunner().invoke(app, ["study", *words, "--root", str(root)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    "words", [["status"], ["next"], ["run", "c1", "--seed", "0"], ["contract", "check"]]
)
def test_it_is_one_message_with_the_fix(copy: Path, words: list[str]) -> None:
    text = said(copy, *words, code=2)
    assert "has no .git, and study cartpole/lr is recorded in Git" in text
    assert "git init, git add -A, git commit, assay study init" in text
    assert text.count("Error") == 1


def test_the_fix_works(copy: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "unpacked"]):
        subprocess.run(["git", *words], cwd=copy, check=True)
    made = said(copy, "init", "--task", "cartpole", "--study", "again", "--activate", code=0)
    assert "Study cartpole/again was created" in made and "Warning" not in made
    assert "the contract is not ready" in said(copy, "status", code=0)


def test_it_can_be_read_and_anchored(copy: Path) -> None:
    assert "which is gone" in said(copy, "verify", code=1)
    said(copy, "report", code=0)
    assert "state.json alone" in said(copy, "re-anchor", "--why", "moved out of Git", code=0)
    assert "c1 not decided" in said(copy, "status", code=0)
    with pytest.raises(StudyError, match="which 'c1' was registered on, is not in"):
        planning.plan(open_study(copy), "c1", "short", 0)


def test_a_directory_that_never_was_in_git_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    made = said(tmp_path, "init", "--task", "toy", code=0)
    assert "is in no Git repository" in made and "git init, git add -A, git commit" in made
    assert "the contract is not ready" in said(tmp_path, "status", code=0)
