"""Patches stay inside their scope and in a tree of their own; the protocol covers the measuring."""

from __future__ import annotations

import math
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from study_samples import contract_values

from assay.runs.git import git
from assay.study.agree import checkout
from assay.study.agree.protocol import matching, protected_files, protocol_hash
from assay.study.agree.scope import (
    changed_files,
    in_scope,
    refuse_out_of_scope,
    refuse_scope,
    refuse_unfit,
    require_repository,
)
from assay.study.files.candidate import Candidate, Change
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.record.study import Study
from assay.study.run.worktree import worktree

FILES = {
    "src/agent.py": "LR = 1\n",
    "src/net/mlp.py": "WIDTH = 64\n",
    "eval/run.py": "EPISODES = 20\n",
    "README.md": "Hello\n",
}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    study = Study(tmp_path, "cartpole", "lr")
    study.path.mkdir(parents=True)
    return study


@pytest.fixture
def contract() -> Contract:
    values = contract_values()
    values["evaluation"]["files"] = ["eval/**"]
    return Contract(**values)


def diff(study: Study, changes: dict[str, str | None]) -> str:
    """Return the diff of some changes, and take them back."""
    for name, text in changes.items():
        path = study.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink() if text is None else path.write_text(text)
    git(study.root, "add", "-A", "--", ".", ":!.rlxp")
    patch = git(study.root, "diff", "--cached")
    git(study.root, "reset", "-q", "--hard")
    return patch


class TestScope:
    @pytest.mark.parametrize(
        ("path", "inside"),
        [
            ("src/agent.py", True), ("src/net/mlp.py", True), ("src/a/b/c.py", True),
            ("src/agent.txt", False), ("eval/run.py", False), ("srcs/agent.py", False),
            ("agent.py", False), ("other/src/agent.py", False),
        ],
    )  # fmt: skip
    def test_globs(self, path: str, inside: bool) -> None:
        assert in_scope(path, ["src/**/*.py"]) is inside

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_nobody_is_told_to_allow_what_is_not_finite(
        self, study: Study, contract: Contract, value: float
    ) -> None:
        change = {"parameters": {"lr": value}}
        candidate = Candidate.model_construct(change=Change.model_construct(**change, patch=""))
        with pytest.raises(StudyError, match="is out of scope") as caught:
            refuse_scope(study, contract, candidate)
        assert caught.value.fix == "Give a finite number."

    def test_a_directory_and_all_below(self) -> None:
        assert in_scope("a/b/c", ["a/**"]) and in_scope("a/b", ["a/**"])
        assert not in_scope("a", ["a/**"]) and not in_scope("b/a/c", ["a/**"])

    def test_a_diff_names_what_it_touches(self, study: Study) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n", "src/new.py": "x\n", "README.md": None})
        assert changed_files(study.root, patch) == ["README.md", "src/agent.py", "src/new.py"]

    def test_a_rename_counts_with_both_names(self, study: Study) -> None:
        git(study.root, "mv", "eval/run.py", "src/run.py")
        patch = git(study.root, "diff", "--cached", "-M")
        git(study.root, "reset", "-q", "--hard")
        assert changed_files(study.root, patch) == ["eval/run.py", "src/run.py"]

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"eval/run.py": "EPISODES = 1\n"}, "'eval/run.py' is protected"),
            ({"eval/new.py": "x\n"}, "'eval/new.py' is protected"),
            ({"README.md": "x\n"}, "outside the approved scope"),
            ({"src/agent.py": "LR = 2\n", "README.md": "x\n"}, "'README.md' is outside"),
        ],
    )
    def test_what_is_refused(self, study: Study, contract, changes, reason: str) -> None:
        patch = diff(study, changes)
        with pytest.raises(StudyError, match=reason), worktree(study, contract, "c1", patch):
            pass

    def test_moving_a_protected_file_away_is_refused(self, study: Study, contract) -> None:
        git(study.root, "mv", "eval/run.py", "src/run.py")
        patch = git(study.root, "diff", "--cached", "-M")
        git(study.root, "reset", "-q", "--hard")
        hidden = patch.replace("rename from eval/run.py", "rename from  eval/run.py")
        for text in (patch, hidden):
            with pytest.raises(StudyError), worktree(study, contract, "c1", text):
                pass

    def test_the_study_itself_is_refused(self, study: Study, contract: Contract) -> None:
        with pytest.raises(StudyError, match="belongs to the study"):
            refuse_out_of_scope(study.root, contract, [".rlxp/registry.yaml"])

    def test_a_link_to_a_protected_file_is_refused(self, study: Study, contract) -> None:
        (study.root / "src/alias.py").symlink_to("../eval/run.py")
        with pytest.raises(StudyError, match=r"symbolic link 'alias\.py'"):
            refuse_out_of_scope(study.root, contract, ["src/alias.py"])

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("-LR = 1", "-LR = 3", "does not apply"),
            ("src/agent.py", "src/gone.py", "does not apply"),
            ("index ", "old mode 100644\nnew mode 120000\nindex ", "symbolic link or a submodule"),
        ],
    )
    def test_a_patch_that_no_run_could_apply(
        self, study: Study, old: str, new: str, reason: str
    ) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        refuse_unfit(study.root, patch, "HEAD")
        assert git(study.root, "status", "--porcelain", "--", "src") == ""
        with pytest.raises(StudyError, match=reason):
            refuse_unfit(study.root, patch.replace(old, new), "HEAD")

    def test_a_patch_is_held_against_the_commit_not_the_directory(self, study: Study) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        (study.root / "src/agent.py").write_text("LR = 5\n")
        refuse_unfit(study.root, patch, "HEAD")

    def test_a_patch_that_leaves_the_repository(self, study: Study, contract: Contract) -> None:
        with pytest.raises(StudyError, match=r"'\.\./x\.py' leaves the repository") as caught:
            refuse_out_of_scope(study.root, contract, ["../x.py"])
        assert "scope.files" not in caught.value.fix

    @pytest.mark.parametrize("patch", ["", "nonsense", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n"])
    def test_what_is_no_diff(self, study: Study, patch: str) -> None:
        with pytest.raises(StudyError, match="patch"):
            changed_files(study.root, patch)


class TestWorktree:
    def test_the_patch_is_there_and_only_there(self, study: Study, contract: Contract) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        with worktree(study, contract, "c1", patch) as place:
            assert (place / "src/agent.py").read_text() == "LR = 2\n"
            assert (place / "src/net/mlp.py").read_text() == FILES["src/net/mlp.py"]
            assert (study.root / "src/agent.py").read_text() == "LR = 1\n"
        assert not place.exists()
        assert git(study.root, "worktree", "list").count("\n") == 1

    def test_the_diff_is_kept_under_a_ref(self, study: Study, contract: Contract) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        with worktree(study, contract, "c1", patch):
            pass
        ref = "refs/rlxp/cartpole/lr/candidates/c1"
        assert git(study.root, "show", f"{ref}:src/agent.py") == "LR = 2\n"
        assert git(study.root, "diff", "HEAD", ref) == patch

    def test_hooks_of_the_repository_do_not_run(self, study: Study, contract: Contract) -> None:
        hook = study.root / ".git/hooks/post-checkout"
        hook.write_text("#!/bin/sh\ntouch hooked\n")
        hook.chmod(0o755)
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        with worktree(study, contract, "c1", patch) as place:
            assert not (place / "hooked").exists()
        assert not (study.root / "hooked").exists()

    def test_a_patch_that_does_not_apply(self, study: Study, contract: Contract) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"}).replace("LR = 1", "LR = 9")
        with (
            pytest.raises(StudyError, match="does not apply"),
            worktree(study, contract, "c1", patch),
        ):
            pass
        assert git(study.root, "worktree", "list").count("\n") == 1

    def test_a_rest_of_a_crash_is_cleared(self, study: Study, contract: Contract) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        place = study.path / "worktrees" / "c1"
        git(study.root, "worktree", "add", "--detach", "-q", str(place), "HEAD")
        (place / "junk").touch()
        with worktree(study, contract, "c1", patch) as again:
            assert not (again / "junk").exists()

    def test_a_worktree_whose_directory_is_gone_is_forgotten(self, study: Study, contract) -> None:
        for name in ("c1", "another"):
            place = study.path / "worktrees" / name
            git(study.root, "worktree", "add", "--detach", "-q", str(place), "HEAD")
            shutil.rmtree(place)
        with worktree(study, contract, "c1", "") as again:
            assert (again / "src/agent.py").read_text() == FILES["src/agent.py"]
            assert git(study.root, "worktree", "list").count("\n") == 2
        assert git(study.root, "worktree", "list").count("\n") == 1

    def test_an_index_that_is_not_the_commit_is_refused(
        self, study: Study, contract: Contract, monkeypatch
    ) -> None:
        honest = checkout.entries

        def another(place: Path, tree: str, *paths: str) -> dict[str, checkout.Entry]:
            made = study.path / "worktrees" / "c1"  # somebody is quicker
            git(made, "update-index", "--cacheinfo", f"100644,{blob},README.md")
            (made / "README.md").write_text("Goodbye\n")
            return honest(place, tree, *paths)

        blob = git(study.root, "hash-object", "-w", "--stdin", data=b"Goodbye\n").strip()
        monkeypatch.setattr(checkout, "entries", another)
        with (
            pytest.raises(StudyError, match=r"'README\.md' is outside the approved scope"),
            worktree(study, contract, "c1", ""),
        ):
            pass

    def test_the_index_is_read_as_the_tree_of_its_commit(self, study: Study) -> None:
        (study.root / "eval/run.py").chmod(0o755)
        (study.root / "src/alias.py").symlink_to("agent.py")
        (study.root / "src/with a tab\tin it.py").touch()
        git(study.root, "add", "-A", "--", ".", ":!.rlxp")
        head = git(study.root, "rev-parse", "HEAD").strip()
        git(study.root, "update-index", "--add", "--cacheinfo", f"160000,{head},module")
        assert checkout.staged(study.root) == checkout.entries(
            study.root, git(study.root, "write-tree").strip()
        )
        assert checkout.submodules(checkout.staged(study.root)) == {"module": head}

    def test_an_index_in_the_middle_of_a_merge_is_refused(self, study: Study) -> None:
        blob = git(study.root, "rev-parse", "HEAD:README.md").strip()
        lines = "".join(f"100644 {blob} {stage}\tREADME.md\n" for stage in (1, 2, 3))
        git(study.root, "update-index", "--force-remove", "README.md")
        git(study.root, "update-index", "--index-info", data=lines.encode())
        with pytest.raises(StudyError, match=r"'README\.md' is not merged"):
            checkout.staged(study.root)

    def test_several_at_once(self, study: Study, contract: Contract) -> None:
        patch = diff(study, {"src/agent.py": "LR = 2\n"})
        failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                with worktree(study, contract, name, patch) as place:
                    assert (place / "src/agent.py").read_text() == "LR = 2\n"
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(f"c{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_without_git(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="not the top of a Git repository"):
            require_repository(tmp_path)


class TestProtocol:
    def test_it_covers_files_and_settings(self, study: Study, contract: Contract) -> None:
        first = protocol_hash(study.root, contract)
        assert first == protocol_hash(study.root, contract)
        (study.root / "eval/run.py").write_text("EPISODES = 21\n")
        assert protocol_hash(study.root, contract) != first
        (study.root / "eval/run.py").write_text(FILES["eval/run.py"])
        assert protocol_hash(study.root, contract) == first
        extractor = study.root / ".rlxp/shared/metric_extractors/mine.py"
        extractor.parent.mkdir(parents=True)
        extractor.touch()
        assert protocol_hash(study.root, contract) != first
        extractor.unlink()
        for path, value in (
            (("evaluation", "episodes"), 21),
            (("evaluation", "deterministic"), False),
            (("task", "env_version"), "2"),
            (("metrics", "primary", "source", "reduce"), "max"),
        ):
            values = contract.model_dump(mode="json")
            place = values
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            assert protocol_hash(study.root, Contract(**values)) != first, path
        values = contract.model_dump(mode="json")
        values["metrics"]["primary"]["minimum_effect"] = 1.0  # which judges, and measures nothing
        assert protocol_hash(study.root, Contract(**values)) == first

    def test_a_link_does_not_pass_for_its_file(self, study: Study, contract: Contract) -> None:
        before = protected_files(study.root, contract)
        (study.root / "elsewhere.py").write_text(FILES["eval/run.py"])
        (study.root / "eval/run.py").unlink()
        (study.root / "eval/run.py").symlink_to("../elsewhere.py")
        assert protected_files(study.root, contract) != before

    def test_patterns_stay_inside_and_match(self, study: Study, contract: Contract) -> None:
        assert matching(study.root, "src/**") == ["src/agent.py", "src/net/mlp.py"]
        for pattern in ("/etc/*", "../*"):
            with pytest.raises(StudyError, match="leaves the repository"):
                matching(study.root, pattern)
        values = contract.model_dump(mode="json")
        values["scope"]["protected"] = ["nothing/**"]
        with pytest.raises(StudyError, match="matches no file"):
            protected_files(study.root, Contract(**values))
