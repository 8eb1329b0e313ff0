"""Attack 35: approve in another person's name; and a patch that does not say what it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from study_samples import candidate_values, make_study

from assay.study.agree.approvals import approve, missing
from assay.study.files.candidate import Candidate
from assay.study.files.contract import APPROVALS
from assay.study.files.documents import StudyError
from assay.study.judge import verify
from assay.study.record.study import Study
from assay.study.report import pages
from assay.study.steps import candidates

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


def key(place: Path, name: str) -> Path:
    path = place / f"key-{name}"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(words, check=True)
    return path


def allow(study: Study, **keys: Path) -> None:
    """Write the file of allowed signers."""
    lines = [f"{name} {path.with_suffix('.pub').read_text()}" for name, path in keys.items()]
    (study.root / "signers").write_text("".join(lines))


def demand(study: Study, signed: bool = True) -> None:
    values = yaml.safe_load(study.contract_path.read_text())
    values["experiment"] |= {"signers": "signers", "signed": signed}
    study.contract_path.write_text(yaml.safe_dump(values))


def problems(study: Study) -> list[str]:
    return [problem.reason for problem in verify.verify(study)]


@needs_ssh
class TestSignatures:
    @pytest.fixture
    def study(self, tmp_path: Path) -> Study:
        """Return a study whose contract demands signatures, and ada has given hers."""
        study = make_study(tmp_path)
        allow(study, ada=key(tmp_path, "ada"))
        demand(study)
        for item in APPROVALS:
            approve(study, item, "ada", tmp_path / "key-ada")
        return study

    def test_control_what_is_signed_counts(self, study: Study) -> None:
        assert missing(study) == {} and problems(study) == []
        pages.write(study)
        assert "Signed with the SSH keys of ada" in (study.path / "report.md").read_text()

    def test_an_agent_without_the_key_approves_nothing(self, study: Study, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="has to be signed: the contract demands it"):
            approve(study, "budget", "ada")
        with pytest.raises(StudyError, match="by ada does not count"):
            approve(study, "budget", "ada", key(tmp_path, "agent"))
        assert missing(study) == {} and problems(study) == []

    def test_nor_does_it_name_itself_as_a_signer(self, study: Study, tmp_path: Path) -> None:
        mine = key(tmp_path, "agent")
        allow(study, agent=mine)
        with pytest.raises(StudyError, match="by agent does not count"):
            approve(study, "budget", "agent", mine)

    def test_nor_lift_the_demand(self, study: Study) -> None:
        demand(study, signed=False)
        with pytest.raises(StudyError, match="has to be signed"):
            approve(study, "experiment", "ada")

    def test_an_approval_that_was_written_around_it_is_found(self, study: Study) -> None:
        part = study.contract().approvals["budget"].model_dump()
        forged = {"item": "budget", **part, "signers": "", "demanded": False, "signature": ""}
        study.ledger.append("contract.approved", forged, actor="ada")
        assert missing(study)["budget"].endswith("is not signed, and the contract demands it")
        assert any("by ada does not count: it is not signed" in found for found in problems(study))

    def test_a_signature_of_something_else_is_found(self, study: Study) -> None:
        events = [e.data for e in study.ledger.events() if e.kind == "contract.approved"]
        stolen = events[-1] | {"hash": "0" * 64}
        study.ledger.append("contract.approved", stolen, actor="ada")
        assert any("by ada does not count" in found for found in problems(study))

    def test_control_another_signer_is_let_in_by_a_known_one(
        self, study: Study, tmp_path: Path
    ) -> None:
        bea = key(tmp_path, "bea")
        allow(study, ada=tmp_path / "key-ada", bea=bea)
        with pytest.raises(StudyError, match="by bea does not count"):
            approve(study, "budget", "bea", bea)
        approve(study, "experiment", "ada", tmp_path / "key-ada")
        approve(study, "budget", "bea", bea)
        assert missing(study) == {} and problems(study) == []


def test_without_a_key_the_report_says_that_nobody_proved_it(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    pages.write(study)
    assert "Nobody proved who approved" in (study.path / "report.md").read_text()
    assert problems(study) == []


PATCH = """\
diff --git a/src/{file} b/src/{file}
--- a/src/{file}
+++ b/src/{file}
@@ -1 +1 @@
-{old}
+{new}
"""


class TestKinds:
    """A patch of the reward that calls itself something else (review D18)."""

    def propose(self, study: Study, name: str, **changes: str) -> None:
        patch = PATCH.format(**changes)
        values = candidate_values(id=name, change={"patch": patch})
        candidates.propose(study, Candidate(**values), "agent")
        candidates.validate(study, name, "agent")

    def test_reward_code_needs_a_reflection_whatever_it_is_called(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        (tmp_path / "src/reward.py").write_text("SCALE = 1\n")
        (tmp_path / "src/task.py").write_text("reward = 1\n")
        for words in (["add", "."], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit",
                                     "-qm", "reward"]):  # fmt: skip
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        reason = r"\(hyperparameter\) changes the reward and builds on no reward reflection"
        with pytest.raises(StudyError, match=reason):
            self.propose(study, "sly", file="reward.py", old="SCALE = 1", new="SCALE = 2")
        with pytest.raises(StudyError, match=reason):
            self.propose(study, "slyer", file="task.py", old="reward = 1", new="reward = 2")

    def test_control_other_code_does_not(self, tmp_path: Path) -> None:
        study = make_study(tmp_path)
        self.propose(study, "honest", file="agent.py", old="LR = 1", new="LR = 2")
        assert study.history().status["honest"] == "validated"
