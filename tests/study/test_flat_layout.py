"""The old flat layout is read as one study, never written, and can be moved."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from study_samples import candidate_values, make_study

from assay.core.errors import AssayError
from assay.study.agree import approvals, setup
from assay.study.files.candidate import Candidate
from assay.study.files.documents import ROOT, StudyError, write_text
from assay.study.record import kinds
from assay.study.record.opening import find_root, is_flat, open_study
from assay.study.record.study import Study
from assay.study.report import pages
from assay.study.run import launcher, planning, recovery, switch
from assay.study.run.queue import Queue
from assay.study.steps import candidates
from assay.study.steps.advice import next_step


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a study as it lay once: everything directly below `.rlxp`."""
    study = make_study(tmp_path)
    study.sync()
    top = tmp_path / ROOT
    (study.path / "ledger.lock").unlink()
    for path in study.path.iterdir():
        path.rename(top / path.name)
    shutil.rmtree(top / "tasks")
    (top / "registry.yaml").unlink()
    (top / "task_card.md").write_text("# CartPole\n")
    return tmp_path


def tree(root: Path) -> dict[str, bytes]:
    top = root / ROOT
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def test_it_is_read_like_any_other(root: Path) -> None:
    before = tree(root)
    assert is_flat(root) and find_root(root / ROOT) == root
    study = open_study(root)
    assert (study.task, study.name, study.flat) == ("cartpole", "lr", True)
    assert open_study(root, "cartpole", "lr").path == root / ROOT
    assert study.candidates() == ["c1"] and study.candidate("c1").id == "c1"
    assert study.problems() == []
    assert next_step(study).action == "baseline"
    assert "cartpole/lr" in pages.report(study)
    assert approvals.missing(study) == {}
    assert recovery.recover(study) == [] and Queue(study).manifest().items == ()
    study.sync()
    assert tree(root) == before


def approve(study: Study) -> None:
    approvals.approve(study, "task", "ada")


def propose(study: Study) -> None:
    candidates.propose(study, Candidate(**candidate_values(id="c2")), "agent")


def launch(study: Study) -> None:
    launcher.launch(study, "c1", "short", 0, confirm=None, actor="agent")


WRITERS = {
    "approve": approve,
    "propose": propose,
    "launch": launch,
    "stop": lambda study: switch.stop(study, "enough", "ada"),
    "queue": lambda study: Queue(study).add("c1", "short", [0]),
    "note": lambda study: study.ledger.append("note", {}, actor="ada"),
    "report": lambda study: write_text(study.path / "report.md", "all is well"),
    "init": lambda study: setup.initialise(study.root, "cartpole", "new", actor="ada"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_to_it(root: Path, name: str) -> None:
    before = tree(root)
    with pytest.raises(StudyError, match=r"(?s)flat layout.*assay study migrate"):
        WRITERS[name](open_study(root))
    assert tree(root) == before


def test_nothing_new_is_written_flat_whoever_asks(tmp_path: Path) -> None:
    (tmp_path / ROOT).mkdir()
    for name in ("ledger.jsonl", "runs/a/run.json", "anything.yaml"):
        with pytest.raises(StudyError, match="flat layout"):
            write_text(tmp_path / ROOT / name, "x")
    assert not list((tmp_path / ROOT).iterdir())


def moved_well(root: Path, study: Study) -> None:
    assert not is_flat(root) and not study.flat
    assert study.path == root / ROOT / "tasks/cartpole/studies/lr"
    assert open_study(root).path == study.path
    assert sorted(p.name for p in (root / ROOT).iterdir()) == ["registry.yaml", "shared", "tasks"]
    assert (study.task_path / "task_card.md").read_text() == "# CartPole\n"
    assert [e.kind for e in study.ledger.events()].count(kinds.MIGRATED) == 1
    assert study.problems() == []
    assert not (study.path / "names.json").exists()
    assert study.history().status == {"c1": "validated"}
    propose(study)  # it is alive
    study.sync()
    assert planning.plan(study, "c1", "short", 0).run == "c1-short-0"


def test_it_can_be_moved(root: Path) -> None:
    moved_well(root, setup.migrate(root, actor="ada"))
    with pytest.raises(StudyError, match="nothing to move"):
        setup.migrate(root, actor="ada")


@pytest.mark.parametrize("step", range(8))
def test_a_move_that_was_interrupted_is_taken_up(root: Path, step: int, monkeypatch) -> None:
    rename, count = os.rename, 0

    def interrupted(*paths) -> None:
        nonlocal count
        if count == step:
            raise OSError(5, "Input/output error")
        count += 1
        rename(*paths)

    monkeypatch.setattr(os, "rename", interrupted)
    try:
        study = setup.migrate(root, actor="ada")
    except StudyError:
        monkeypatch.undo()
        with pytest.raises(StudyError, match=r"interrupted.*\n.*assay study migrate"):
            open_study(root)
        study = setup.migrate(root, actor="ada")
    moved_well(root, study)


def test_a_damaged_one_is_not_moved(root: Path) -> None:
    path = root / ROOT / "ledger.jsonl"
    path.write_text(path.read_text().replace('"by":"ada"', '"by":"eve"', 1))
    before = tree(root)
    with pytest.raises(AssayError, match="damaged, line"):
        setup.migrate(root, actor="ada")
    assert tree(root) == before


def test_names_come_from_what_is_there(root: Path) -> None:
    (root / ROOT / "contract.yaml").write_text("study: [")
    assert open_study(root).name == "lr"  # state.json knows
    (root / ROOT / "state.json").unlink()
    study = open_study(root)
    assert (study.task, study.name) == ("default", "default")
    with pytest.raises(StudyError, match="Known: default/default, in the old flat layout"):
        open_study(root, "cartpole", "lr")
