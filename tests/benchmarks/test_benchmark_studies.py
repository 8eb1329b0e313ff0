"""The committed evidence as studies: all of it is adopted, and every study verifies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# The benchmarks are scripts, which import each other by name.
sys.path.insert(0, str(ROOT / "benchmarks"))

import adopt  # noqa: E402
import cases  # noqa: E402
import evidence  # noqa: E402
import imitators  # noqa: E402
import offline  # noqa: E402
import subjects  # noqa: E402
import teams  # noqa: E402

from assay.study.files.documents import ROOT as STATE  # noqa: E402
from assay.study.files.documents import read_yaml_document  # noqa: E402
from assay.study.files.records import Registry  # noqa: E402
from assay.study.judge.verify import studies, verify  # noqa: E402
from assay.study.record.study import Study  # noqa: E402


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy evidence and studies as a checkout has them: without what Git does not keep."""
    ignored = shutil.ignore_patterns("*.lock", "shared", "runs", "audits", "candidates")
    for name in ("evidence", "studies"):
        shutil.copytree(ROOT / "benchmarks" / name, tmp_path / name, ignore=ignored)
    return tmp_path


def places(copy: Path) -> tuple[Path, Path]:
    return copy / "studies", copy / "evidence" / "learning"


def test_all_committed_evidence_is_adopted_and_every_study_verifies() -> None:
    assert adopt.check() == [], "run: python benchmarks/adopt.py"
    adopted = {
        event.data["path"] for study in studies(adopt.STUDIES)
        for event in study.history().adopted.values()
    }  # fmt: skip
    committed = {f"../evidence/learning/{path.name}" for path in evidence.LEARNING.glob("*.json")}
    names = ("teams.json", "boards.json", "imitation.json", "offline.jsonl")
    others = {f"../evidence/{name}" for name in names}
    assert adopted == committed | others


def test_what_the_studies_show_is_what_the_tables_say() -> None:
    tables = {path.stem: evidence.read_learning(path) for path in evidence.LEARNING.glob("*.json")}
    tables |= evidence.read_json(imitators.EVIDENCE)["cases"]
    seen = set()
    for study in studies(adopt.STUDIES):
        for (name, _, _), event in study.history().shown.items():
            if name in tables:
                seen.add(name)
                assert event.data["iqm"] == pytest.approx(tables[name]["iqm"], abs=1e-3)
                assert event.data["reached"] is tables[name]["passed"]
    # An agent that is only somebody's rival is shown by that one's study.
    assert {*tables} - seen == {case.rival for case in cases.CASES.values() if case.rival} - seen


def test_a_recorded_set_is_judged_as_its_table_says() -> None:
    by_set = offline.scores(offline.STORE)
    for (env, quality, sha256), arms in by_set.items():
        name = subjects.slug(f"{env} {quality} {sha256[:8]}")
        history = Study(adopt.STUDIES, "recorded-data", name).history()
        for arm, seeds in arms.items():
            if arm == "bc":
                continue
            (seen,) = [e for (who, *_), e in history.shown.items() if who.split("-")[0] == arm]
            effect = np.mean([*seeds.values()]) - np.mean([*arms["bc"].values()])
            assert seen.data["comparison"]["effect"] == pytest.approx(effect, rel=1e-6)


def test_board_games_are_judged_by_wins_and_by_losses() -> None:
    four, three = (
        Study(adopt.STUDIES, "several-agents", f"alphazero-{game}").history().shown
        for game in ("connect-four", "tictactoe")
    )
    wins, losses = four["alphazero", "", "wins"].data, three["alphazero", "", "losses"].data
    assert wins["iqm"] > 0.9 and wins["reached"] is losses["reached"] is True
    assert losses["iqm"] == 0 and losses["direction"] == "minimize"


def test_agents_beside_benchmarl_are_compared_with_it() -> None:
    found = evidence.read_json(teams.EVIDENCE)["returns"]
    of = [one for one in found if (one["algorithm"], one["task"]) == ("qmix", "simple_spread_v3")]
    ours, theirs = (
        np.mean([one["return"] for one in of if one["side"] == side])
        for side in ("assay", "benchmarl")
    )
    study = Study(adopt.STUDIES, "several-agents", "qmix-simple-spread-v3")
    seen = study.history().shown["assay", "benchmarl", "return"].data
    assert seen["comparison"]["effect"] == pytest.approx(ours - theirs)
    command = study.contract().baseline.command
    assert [*command[1:4]] == ["../teams.py", "one", "benchmarl"]


def test_every_case_with_a_control_is_compared_with_it() -> None:
    for case in cases.CASES.values():
        if case.control_of is None or not (evidence.LEARNING / f"{case.name}.json").exists():
            continue
        (study,) = [s for s in studies(adopt.STUDIES) if s.name == case.control_of]
        seen = study.history().shown[case.control_of, case.name, case.measure].data
        assert seen["comparison"]["effect"] > 0
        assert seen["verdict"] == "adopted: shown, not decided"


def test_a_checkout_verifies_and_building_again_adds_nothing(copy: Path) -> None:
    root, directory = places(copy)
    assert adopt.check(root, directory) == []
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert not any(adopt.build(root, directory).values())
    assert {path: path.read_bytes() for path in before} == before


def test_no_study_is_selected(copy: Path) -> None:
    root, directory = places(copy)
    shutil.rmtree(root / STATE / "tasks" / "memory" / "studies" / "r2d2-recall")
    adopt.build(root, directory)
    registry = read_yaml_document(root / STATE / "registry.yaml", Registry)
    assert (registry.task, registry.study) == (None, None)


def test_a_changed_byte_of_the_evidence_is_named(copy: Path) -> None:
    root, directory = places(copy)
    path = directory / "r2d2-recall.json"
    path.write_bytes(path.read_bytes().replace(b'"train_seconds": ', b'"train_seconds": 1', 1))
    found = verify(Study(root, "memory", "r2d2-recall"))
    assert len(found) == 1 and "r2d2-recall.json" in found[0].reason
    assert "was changed since" in found[0].reason
    assert any("r2d2-recall.json" in line for line in adopt.check(root, directory))
    # Adopting it again supersedes what was there, and the ledger's beginning stays as it is.
    ledger = Study(root, "memory", "r2d2-recall").ledger.path
    before = ledger.read_bytes()
    adopt.build(root, directory)
    assert ledger.read_bytes().startswith(before) and len(ledger.read_bytes()) > len(before)
    assert adopt.check(root, directory) == []


def test_evidence_that_was_added_has_to_be_adopted(copy: Path) -> None:
    root, directory = places(copy)
    shutil.rmtree(root / STATE / "tasks" / "memory" / "studies" / "r2d2-recall")
    assert adopt.check(root, directory) == ["memory/r2d2-recall: its evidence is not adopted"]
    made = adopt.build(root, directory)
    assert [name for name, count in made.items() if count] == ["memory/r2d2-recall"]
    assert adopt.check(root, directory) == []


def test_a_control_that_is_measured_later_joins_the_study(copy: Path) -> None:
    root, directory = places(copy)
    shutil.rmtree(root / STATE / "tasks" / "memory" / "studies" / "r2d2-recall")
    kept = (directory / "dqn-recall.json").read_bytes()
    (directory / "dqn-recall.json").unlink()
    assert adopt.build(root, directory)["memory/r2d2-recall"] == 6
    (directory / "dqn-recall.json").write_bytes(kept)
    wrong = "memory/r2d2-recall: 7 events are missing; run benchmarks/adopt.py"
    assert adopt.check(root, directory) == [wrong]
    assert adopt.build(root, directory)["memory/r2d2-recall"] == 7
    assert adopt.check(root, directory) == []


def test_the_command_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt.main(["--check"]) == 0
    assert "all studies verify" in capsys.readouterr().out
