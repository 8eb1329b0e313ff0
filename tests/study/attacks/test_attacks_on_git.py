"""The code of a run is that of its commit, whatever Git is told to show instead."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from arena import Runner, begin, commit, expected, git, problems, propose, repository

from assay.study.agree.checkout import obstacles
from assay.study.files.documents import StudyError
from assay.study.record.study import Study

EVIL = "LR = 0.040\n"


def no_patch(root: Path) -> Study:
    study = begin(root)
    propose(study, "base")
    return study


class TestReplacedObjects:
    """13: `git replace` shows another commit in place of the registered one."""

    def test_13_a_replaced_commit_is_not_what_runs(self, tmp_path: Path, run: Runner) -> None:
        root = repository(tmp_path / "r")
        study = no_patch(root)
        base = git(root, "rev-parse", "HEAD").strip()
        evil = commit(root, {"agent.py": EVIL})
        git(root, "reset", "-q", "--hard", base)
        git(root, "replace", base, evil)
        git(root, "reset", "-q", "--hard")  # what the agent sees is now the other one
        assert (root / "agent.py").read_text() == EVIL
        git(root, "replace", "-d", base)
        git(root, "reset", "-q", "--hard")
        git(root, "replace", base, evil)
        record = run(study, "base")
        assert record.metrics["return"] == expected(0)
        assert problems(study) == ""

    def test_grafts_are_refused_and_have_no_effect(self, tmp_path: Path, run: Runner) -> None:
        root = repository(tmp_path / "r")
        study = no_patch(root)
        grafts = root / ".git/info/grafts"
        grafts.parent.mkdir(exist_ok=True)
        grafts.write_text(git(root, "rev-parse", "HEAD"))
        with pytest.raises(StudyError, match="grafts' shows commits with other parents"):
            run(study, "base")
        grafts.unlink()
        assert run(study, "base").outcome == "done"


class TestFilters:
    """14: a filter in .git/config edits the code when it is checked out."""

    def test_14_a_smudge_filter_is_noticed(self, study: Study, run: Runner) -> None:
        root = study.root
        git(root, "config", "filter.evil.smudge", "sed s/0.001/0.040/")
        git(root, "config", "filter.evil.clean", "cat")
        attributes = root / ".git/info/attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text("agent.py filter=evil\n")
        record = run(study)
        assert record.outcome == "failed"
        assert record.reason == (
            "'agent.py' has other bytes in the run's worktree than in the commit."
        )
        assert record.metrics["return"] is None

    def test_an_identity_keyword_is_noticed(self, tmp_path: Path, run: Runner) -> None:
        root = repository(tmp_path / "r")
        commit(root, {"agent.py": "LR = 0.001  # $Id$\n", ".gitattributes": "agent.py ident\n"})
        record = run(no_patch(root), "base")
        assert "'agent.py' has other bytes" in record.reason

    def test_honest_line_endings_are_no_attack(self, tmp_path: Path, run: Runner) -> None:
        root = repository(tmp_path / "r")
        commit(root, {"run.bat": "echo\n", ".gitattributes": "*.bat text eol=crlf\n"})
        assert run(no_patch(root), "base").outcome == "done"


class TestLargeFiles:
    """Git LFS: the content is checked against the hash in its pointer."""

    CONTENT = "0.001"
    POINTER = (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{hashlib.sha256(CONTENT.encode()).hexdigest()}\nsize {len(CONTENT)}\n"
    )

    def with_lfs(self, root: Path, smudge: str) -> Path:
        repository(root)
        commit(root, {"weights.bin": self.POINTER})
        git(root, "config", "filter.lfs.smudge", smudge)
        git(root, "config", "filter.lfs.clean", f"printf '{self.POINTER}'".replace("\n", "\\n"))
        commit(root, {".gitattributes": "*.bin filter=lfs\n"})
        (root / "weights.bin").unlink()
        git(root, "checkout", "weights.bin")
        return root

    def test_honest_content_works(self, tmp_path: Path, run: Runner) -> None:
        root = self.with_lfs(tmp_path / "r", f"printf {self.CONTENT}")
        assert (root / "weights.bin").read_text() == self.CONTENT
        assert run(no_patch(root), "base").outcome == "done"

    def test_other_content_is_noticed(self, tmp_path: Path, run: Runner) -> None:
        root = self.with_lfs(tmp_path / "r", "printf 0.040")
        assert (
            "not the content that its Git LFS pointer names" in run(no_patch(root), "base").reason
        )

    def test_a_pointer_without_content_is_refused_at_once(
        self, tmp_path: Path, run: Runner
    ) -> None:
        root = repository(tmp_path / "r")
        commit(root, {"weights.bin": self.POINTER})
        assert obstacles(root) == [
            "'weights.bin' is a Git LFS pointer, and its content is not here; run git lfs pull"
        ]
        with pytest.raises(StudyError, match="git lfs pull"):
            run(no_patch(root), "base")


class TestPartsOfRepositories:
    """45: submodules and sparse checkouts work."""

    def with_submodule(self, tmp_path: Path) -> Path:
        inner = repository(tmp_path / "inner", {"rates.py": "RATE = 0.001\n"})
        root = repository(tmp_path / "r")
        git(root, "submodule", "add", "-q", str(inner), "lib")
        text = "import sys\nsys.path.insert(0, 'lib')\nfrom rates import RATE as LR\n"
        commit(root, {"agent.py": text})
        return root

    def test_45_a_submodule_is_there_and_what_is_edited_in_it_is_not(
        self, tmp_path: Path, run: Runner
    ) -> None:
        root = self.with_submodule(tmp_path)
        study = no_patch(root)
        commit(root / "lib", {"rates.py": "RATE = 0.040\n"})
        git(root, "config", "submodule.lib.ignore", "all")
        record = run(study, "base")
        assert record.outcome == "done", record.reason
        assert record.metrics["return"] == expected(0)
        assert "lib/rates.py" in record.loaded
        assert git(root / "lib", "worktree", "list").count("\n") == 1
        assert run(study, "base", 1, "promotion").outcome == "done"  # and again

    def test_45_one_that_is_not_checked_out_is_refused(self, tmp_path: Path, run: Runner) -> None:
        root = self.with_submodule(tmp_path)
        git(root, "submodule", "deinit", "-q", "-f", "lib")
        assert obstacles(root) == [
            "the submodule 'lib' is not checked out; run git submodule update --init"
        ]
        with pytest.raises(StudyError, match="submodule 'lib' is not checked out"):
            run(no_patch(root), "base")

    def test_a_sparse_checkout_has_all_files_in_a_run(self, tmp_path: Path, run: Runner) -> None:
        root = repository(tmp_path / "r")
        commit(
            root,
            {"pkg/rates.py": "RATE = 0.001\n", "agent.py": "from pkg.rates import *\nLR = RATE\n"},
        )
        git(root, "sparse-checkout", "set", "docs")
        assert not (root / "pkg").exists()
        record = run(no_patch(root), "base")
        assert (record.outcome, record.metrics["return"]) == ("done", expected(0))
