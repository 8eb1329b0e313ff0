"""Attacks that the review did not try, each with its honest control."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from arena import Runner, begin, diff, expected, git, problems, propose, repository
from test_attacks_on_environments import environment, in_environment
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, read_json_document, write_json_document
from assay.study.files.records import RunRecord
from assay.study.judge import audit
from assay.study.record.study import Study


def failed_checks(study: Study, name: str = "c1") -> str:
    found = audit.audit(study, name, "promotion", "agent")
    return "; ".join(check.detail for check in found.checks if not check.passed)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study whose baseline and candidate have honest runs; take back what you change."""
    study = begin(repository(tmp_path_factory.mktemp("compared") / "repository"))
    propose(study, lr=0.002)
    with pytest.MonkeyPatch.context() as patch:
        run = Runner(patch)
        run.baseline(study)
        run.pool(study, "c1")
    return study


def test_honest_arms_pass_the_audit(compared: Study) -> None:
    assert failed_checks(compared) == ""


def test_51_a_key_that_is_there_twice_is_refused(study: Study) -> None:
    """A person reads the first alpha; the parser would take the second."""
    text = study.contract_path.read_text()
    study.contract_path.write_text(text.replace("  alpha: 0.05", "  alpha: 0.05\n  alpha: 0.4", 1))
    with pytest.raises(StudyError, match=r"line .*: the key 'alpha' is there twice"):
        study.contract()
    study.contract_path.write_text(text)
    assert study.contract().evaluation.alpha == 0.05


@pytest.mark.parametrize("hidden", ["\x1b[2K\x1b[1A", "\u202eevil", "a\u200bb"])
def test_52_texts_that_a_terminal_hides_are_refused(study: Study, hidden: str) -> None:
    values = yaml.safe_load(study.contract_path.read_text())
    values["question"] = f"Is it better? {hidden}"
    study.contract_path.write_text(yaml.safe_dump(values))
    with pytest.raises(Exception, match="control character"):
        study.contract()
    values["question"] = "Größer?\nIs it better? 是的"
    study.contract_path.write_text(yaml.safe_dump(values))
    assert study.contract().question.startswith("Größer?")


def test_53_other_packages_for_one_arm(tmp_path: Path, run: Runner) -> None:
    """A package is upgraded after the baseline, in the environment that the runs use."""
    site = environment(tmp_path / "venv")
    (site / "mathlib-1.0.dist-info").mkdir()
    study = in_environment(tmp_path, site)
    for phase in ("promotion", "validation"):
        run.pool(study, "c1", phase)
    propose(study, "faster", lr=0.002)
    (site / "mathlib-1.0.dist-info").rename(site / "mathlib-2.0.dist-info")
    run.pool(study, "faster")
    failed = failed_checks(study, "faster")
    assert failed == "mathlib is 2.0 in faster-promotion-1 and 1.0 in c1-promotion-1"


def test_54_other_hardware_for_one_arm(compared: Study) -> None:
    path = compared.path / "runs/c1-promotion-3/run.json"
    honest, record = path.read_bytes(), read_json_document(path, RunRecord)
    write_json_document(path, record.model_copy(update={"gpu": "H200"}))
    assert "c1-promotion-3 ran on H200, base-promotion-1 on no GPU" in failed_checks(compared)
    path.write_bytes(honest)
    assert failed_checks(compared) == ""


def test_55_a_result_that_is_a_link_to_another_run(
    study: Study, run: Runner, tmp_path: Path
) -> None:
    """Training makes the score a link to a file that it did not write."""
    best = tmp_path / "best.json"
    best.write_text(json.dumps({"return": 99.0}))
    linked = diff(study.root, {
        "agent.py": "import os, sys\nLR = 0.001\n"
        f"os.symlink({str(best)!r}, os.path.join(sys.argv[2], 'eval.json'))\n",
    })  # fmt: skip
    propose(study, "linked", linked)
    record = run(study, "linked")
    assert record.outcome == "failed" and record.metrics["return"] is None
    assert "'eval.json' is a link that leaves the run's output" in record.reason


def test_56_more_files_for_the_metric_than_the_rival_has(tmp_path: Path, run: Runner) -> None:
    """With a pattern as the source, a file more is a draw more."""
    source = {"kind": "json", "path": "**/eval.json", "key": "return", "reduce": "max"}
    primary = {"name": "return", "source": source, "minimum_effect": 1.0}
    study = begin(repository(tmp_path / "r"), metrics={"primary": primary})
    more = diff(study.root, {
        "agent.py": "import pathlib, sys\nLR = 0.001\nout = pathlib.Path(sys.argv[2], 'a')\n"
        "out.mkdir()\n(out / 'eval.json').write_text('{\"return\": 99}')\n",
    })  # fmt: skip
    propose(study, "c1", more)
    run.baseline(study)
    run.pool(study, "c1")
    assert "c1-promotion-1 wrote 2 files, base-promotion-1 wrote 1" in failed_checks(study)


def test_57_a_file_system_monitor_of_git_is_not_started(study: Study, run: Runner) -> None:
    marker = study.root / "started"
    script = study.root / "monitor.sh"
    script.write_text(f"#!/bin/sh\ntouch {marker}\necho 'LR = 0.009' > agent.py\n")
    script.chmod(0o755)
    git(study.root, "config", "core.fsmonitor", str(script))
    record = run(study)
    assert not marker.exists() and record.metrics["return"] == expected(0, 0.002)
    git(study.root, "status")
    assert marker.exists()  # it is Git that asks it


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_58_an_edit_that_git_is_told_not_to_see_has_no_effect(
    study: Study, run: Runner, flag: str
) -> None:
    git(study.root, "update-index", flag, "train.py")
    text = (study.root / "train.py").read_text()
    (study.root / "train.py").write_text(text.replace("50 +", "80 +"))
    assert run(study).metrics["return"] == expected(0, 0.002)
    assert problems(study) == ""


def test_59_patches_of_what_measures_itself_are_warned_of(tmp_path: Path) -> None:
    root = repository(tmp_path / "r")
    study = begin(root)
    shown = CliRunner().invoke(app, ["study", "contract", "check", "--root", str(root)]).output
    assert "a patch can write any score" not in shown
    values = yaml.safe_load(study.contract_path.read_text())
    values["evaluation"] |= {"command": [], "files": ["train.py"]}
    study.contract_path.write_text(yaml.safe_dump(values))
    assert Contract(**values)
    shown = CliRunner().invoke(app, ["study", "contract", "check", "--root", str(root)]).output
    assert "a patch can write any score" in shown


def test_60_a_rival_that_is_made_worse_afterwards(compared: Study) -> None:
    """The ledger's numbers decide, and verify names the file."""
    path = compared.path / "runs/base-promotion-1/out/eval.json"
    text, honest = path.read_text(), compared.history().arm("base", "promotion", "return")
    assert "base-promotion-1" not in problems(compared)
    path.write_text(json.dumps({"return": 1.0}))
    assert compared.history().arm("base", "promotion", "return") == honest
    assert "base-promotion-1" in problems(compared)
    path.write_text(text)


def test_61_a_module_of_the_patch_that_shadows_the_standard_library(
    study: Study, run: Runner
) -> None:
    """The evaluation imports `random` as well, and would execute the candidate's."""
    cheat = """
        class Random:
            def __init__(self, seed): pass
            def gauss(self, mean, deviation): return 40.0
    """
    propose(study, "shadow", diff(study.root, {"random.py": cheat}))
    record = run(study, "shadow")
    assert record.outcome == "failed" and record.metrics["return"] is None
    assert record.reason == "The evaluation would import 'random.py', which the patch adds."
    assert run(study).metrics["return"] == expected(0, 0.002)


PEEK = """
    import json, pathlib, sys
    seed, out, *rest = sys.argv[1:]
    runs = pathlib.Path(out).parent.parent
    {link}
    best = max(json.loads(p.read_text())["skill"] for p in runs.glob("base-*/out/policy.json"))
    (pathlib.Path(out) / "policy.json").write_text(json.dumps({{"skill": best + 9}}))
"""


@pytest.mark.parametrize(
    "link", ["", 'link = pathlib.Path("link"); link.symlink_to(runs); runs = link']
)
def test_a_candidate_that_reads_the_results_of_the_baseline(
    compared: Study, run: Runner, link: str
) -> None:
    name = "links" if link else "peeks"
    patch = diff(compared.root, {"train.py": PEEK.format(link=link)})
    propose(compared, name, patch=patch)
    record = run(compared, name)
    assert record.outcome == "failed" and record.metrics == {"return": None}
    place = compared.path.relative_to(compared.root) / "runs/base-promotion-1/out/policy.json"
    assert record.reason == f"it read '{place}', which is not of its own run"
