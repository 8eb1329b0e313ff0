"""state.json and the Git ref follow the ledger, and whoever forges one of them is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from study_samples import add, candidate_values, make_study

from assay.study.agree.approvals import missing
from assay.study.files import documents
from assay.study.files.candidate import Candidate
from assay.study.files.documents import StudyError
from assay.study.record import kinds, ledger
from assay.study.record.book import Book
from assay.study.record.history import History, Transaction
from assay.study.record.ledger import GENESIS, GitRef, Head, Ledger, LedgerError
from assay.study.record.study import Study
from assay.study.run import launcher, planning, recovery
from assay.study.steps import candidates
from assay.study.steps.advice import next_step


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("books")
    study = make_study(root)
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**base), "agent")
    candidates.validate(study, "base", "agent")
    return root


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Study:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path, "cartpole", "lr")


def git(study: Study, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=study.root, check=True, capture_output=True)
    return done.stdout.decode()


def ran(study: Study, name: str, phase: str, seed: int, outcome: str | None = "done") -> str:
    """Put a run on record; it is under way if it has no outcome."""
    run = f"{name}-{phase}-{seed}"
    hours = {"run": run, "wall_clock_hours": 0.1, "gpu_hours": 0.0}
    facts = {"run": run, "candidate": name, "phase": phase, "seed": seed, "argv": []}
    facts |= {"protocol": "0" * 64, "registration": "0" * 64}
    with study.ledger.transaction() as writer:
        writer.append(kinds.RESERVED, hours, actor="test")
        writer.append(kinds.PREPARED, facts, actor="test")
        if outcome is not None:
            writer.append(kinds.SETTLED, hours, actor="test")
            ended = {"run": run, "outcome": outcome, "reason": "", "hours": 0.1}
            writer.append(kinds.ENDED, ended, actor="test")
    return run


def rewritten(study: Study, old: str, new: str) -> None:
    """Replace a text in the ledger and chain everything behind it again, as a forger would."""
    previous, lines = GENESIS, []
    for line in study.ledger.path.read_text().replace(old, new).splitlines():
        event = json.loads(line)
        del event["hash"]
        event["prev"] = previous
        previous = documents.digest(event)
        event["hash"] = previous
        body = documents.canonical({k: v for k, v in event.items() if k != "hash"})
        lines.append(body[:-1] + f',"hash":"{previous}"}}\n'.encode())
    study.ledger.path.write_bytes(b"".join(lines))
    assert study.ledger.read().problems == []  # by itself it is a fine chain


class TestSync:
    def test_the_state_is_what_the_ledger_comes_to(self, study: Study) -> None:
        study.sync()
        kept = study.state()
        assert kept.candidates == study.history().status
        assert kept.candidates == {"c1": "validated", "base": "validated"}
        assert Head(kept.head.seq, kept.head.hash) == study.ref.head() == study.ledger.head()
        assert study.problems() == []

    def test_nothing_new_writes_nothing(self, study: Study) -> None:
        study.sync()
        before = (study.path / "state.json").stat().st_mtime_ns, study.ledger.head()
        study.sync()
        assert before == ((study.path / "state.json").stat().st_mtime_ns, study.ledger.head())

    def test_a_copy_is_left_alone(self, study: Study, tmp_path_factory) -> None:
        study.sync()
        place = tmp_path_factory.mktemp("copy") / "there"
        shutil.copytree(study.root, place)
        copy = Study(place, "cartpole", "lr")
        files = {path: path.read_bytes() for path in copy.path.iterdir() if path.is_file()}
        copy.sync()
        assert files == {path: path.read_bytes() for path in copy.path.iterdir() if path.is_file()}
        assert next_step(copy) == next_step(study) and copy.problems() == []
        add_event(copy)
        copy.sync()
        assert copy.state().head.seq == study.state().head.seq + 1

    def test_going_on_comes_to_the_same_as_beginning_again(self, study: Study) -> None:
        study.sync()
        for seed, outcome in ((1, "done"), (2, "lost"), (3, "failed"), (4, None)):
            ran(study, "base", "promotion", seed, outcome)
            study.sync()
        with study.ledger.transaction() as writer:
            Transaction(writer).move("c1", "rejected", actor="ada", why="enough")
        study.sync()
        kept = study.state()
        assert kept == study.history().state("cartpole", "lr", kept.ledger)
        assert study.problems() == []

    def test_the_books_agree_with_those_who_read_the_ledger(self, study: Study) -> None:
        for seed, outcome in ((1, "done"), (2, "lost"), (3, "failed"), (4, None)):
            ran(study, "c1", "promotion", seed, outcome)
        events = list(study.ledger.events())
        book, used = Book.read(events), History.read(events).usage
        assert (book.launched, tuple(book.held)) == (used.runs, used.open)
        over = [(r.id, r.outcome) for r in History.read(events).over()]
        assert [(r.id, r.outcome) for r in book.of("c1")] == over
        assert missing(study) == {}
        agreed = study.contract()
        assert book.left(agreed, "c1", "promotion") == (2, 5)  # what was lost is run again
        assert not book.complete(agreed, "c1", "promotion")

    def test_a_run_that_ends_is_in_the_state(self, study: Study) -> None:
        planned = launcher.launch(study, "c1", "short", 0, confirm=None, actor="agent")
        recovery.wait(study, planned.run, 300)
        end = time.monotonic() + 300
        while study.ref.head() != study.ledger.head():  # noted just after the ledger
            assert time.monotonic() < end
            time.sleep(0.1)
        assert study.state().candidates["c1"] == "completed"
        assert study.problems() == []

    def test_a_place_without_git(self, study: Study) -> None:
        shutil.rmtree(study.root / ".git")
        study.sync()
        assert study.ref.head() is None
        assert study.problems() == []


class TestAnUnreadableState:
    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff"])
    def test_it_hides_nothing_and_is_made_again(self, study: Study, data: bytes) -> None:
        study.sync()
        state = (study.path / "state.json").read_bytes()
        (study.path / "state.json").write_bytes(data)
        (found,) = study.problems()
        assert found.reason.startswith("state.json cannot be read")
        assert found.reason.endswith("it is derived from the ledger, and can be deleted")
        study.sync()
        assert study.problems() == []
        assert (
            json.loads((study.path / "state.json").read_bytes())["head"]
            == (json.loads(state)["head"])
        )

    def test_a_ref_can_be_made_again_under_it(self, study: Study) -> None:
        study.sync()
        (study.path / "state.json").write_bytes(b"")
        git(study, "update-ref", "-d", study.ref.name)
        study.anchor_again("ada", "this is a clone")
        assert study.problems() == []

    def test_it_is_no_way_to_launder(self, study: Study) -> None:
        study.sync()
        rewritten(study, '"by":"ada"', '"by":"eve"')
        (study.path / "state.json").write_bytes(b"")
        assert any("history was rewritten" in str(problem) for problem in study.problems())
        with pytest.raises(LedgerError, match="rewritten"):
            study.sync()


class TestForgery:
    def test_state_and_ledger_rewritten_alike(self, study: Study) -> None:
        study.sync()
        rewritten(study, '"by":"ada"', '"by":"eve"')
        state = study.history().state("cartpole", "lr", study._file())
        (study.path / "state.json").write_text(state.model_dump_json())
        found = study.problems()
        assert len(found) == 1 and study.ref.name in str(found[0]) and "rewritten" in str(found[0])
        assert next_step(study).action == "verify"
        noted = study.ref.head()
        study.sync()
        add_event(study)
        with pytest.raises(LedgerError, match="rewritten"):
            study.sync()
        assert study.ref.head() == noted  # nothing was laundered

    def test_a_first_note_that_is_made_meanwhile(self, study: Study, monkeypatch) -> None:
        """Another process may note the head between the look at Git and that at the ledger."""
        study.sync()
        looks, chain = [], GitRef.chain
        monkeypatch.setattr(
            GitRef, "chain", lambda ref: chain(ref) if looks else (looks.append(1) or [], "")
        )
        assert study.problems() == [] and looks

    def test_the_end_cut_off_and_noted_so(self, study: Study) -> None:
        study.sync()
        lines = study.ledger.path.read_bytes().splitlines(keepends=True)
        study.ledger.path.write_bytes(b"".join(lines[:-1]))
        state = study.history().state("cartpole", "lr", study._file())
        (study.path / "state.json").write_text(state.model_dump_json())
        assert "cut off" in str(study.problems()[0])

    def test_a_ref_that_was_deleted(self, study: Study) -> None:
        study.sync()
        git(study, "update-ref", "-d", study.ref.name)
        assert f"{study.ref.name}, which is gone" in str(study.problems()[0])
        assert next_step(study).action == "verify"
        with pytest.raises(StudyError, match="which is gone"):
            planning.plan(study, "c1", "short", 0)
        add_event(study)
        with pytest.raises(LedgerError, match="which is gone"):
            study.sync()

    def test_a_lost_ref_can_be_made_again_with_a_reason(self, study: Study) -> None:
        study.sync()
        git(study, "update-ref", "-d", study.ref.name)
        with pytest.raises(StudyError, match="needs a reason"):
            study.anchor_again("ada", " ")
        study.anchor_again("ada", "this is a clone")
        assert study.problems() == [] and study.ref.head() == study.ledger.head()
        assert list(study.ledger.events())[-1].data == {
            "ref": study.ref.name,
            "why": "this is a clone",
        }
        shutil.rmtree(study.root / ".git")
        assert "which is gone" in str(study.problems()[0])
        study.anchor_again("ada", "moved out of Git")
        assert study.problems() == [] and study.state().progress.anchored == ""

    def test_anchoring_again_is_no_way_to_launder(self, study: Study) -> None:
        study.sync()
        git(study, "update-ref", "-d", study.ref.name)
        rewritten(study, '"by":"ada"', '"by":"eve"')
        with pytest.raises(StudyError, match="history was rewritten"):
            study.anchor_again("eve", "because")

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            (
                '"c1": "validated"',
                '"c1": "accepted"',
                "calls c1 accepted, and the ledger validated",
            ),
            (
                '"incumbent": ""',
                '"incumbent": "c1"',
                "calls c1 the incumbent, and the ledger nobody",
            ),
            ('"base": "baseline"', '"base": "dr-probe"', "its progress is not what the ledger"),
        ],
    )
    def test_a_state_that_disagrees(self, study: Study, old: str, new: str, reason: str) -> None:
        study.sync()
        path = study.path / "state.json"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        assert reason in str(study.problems()[0])
        seen = next_step(study)  # which reads the ledger only where it has to
        assert seen.action == "verify" and reason in seen.reason
        path.unlink()
        assert next_step(study).action != "verify"
        study.sync()
        assert study.problems() == [] and old in path.read_text()

    def test_without_git_it_is_the_ledger_that_is_read(self, study: Study) -> None:
        shutil.rmtree(study.root / ".git")
        study.sync()
        path = study.path / "state.json"
        path.write_text(path.read_text().replace('"c1": "validated"', '"c1": "accepted"', 1))
        assert "calls c1 accepted, and the ledger validated" in next_step(study).reason

    def test_a_note_of_an_earlier_version_says_nothing_of_the_state(self, study: Study) -> None:
        study.sync()
        git(study, "update-ref", "-d", study.ref.name)
        head = study.ledger.head()
        assert study.ref.note(head) and study.ref.last() == (head, "")
        assert next_step(study).action != "verify"
        add_event(study)
        study.sync()
        assert study.ref.last()[1] and study.problems() == []

    def test_a_state_that_cannot_be_read(self, study: Study) -> None:
        study.sync()
        (study.path / "state.json").write_text("{")
        assert "malformed" in str(study.problems()[0])
        assert next_step(study).action == "verify"

    def test_an_edit_shows_though_the_state_is_kept(self, study: Study) -> None:
        study.sync()
        text = study.ledger.path.read_text()
        study.ledger.path.write_text(text.replace('"by":"ada"', '"by":"eve"', 1))
        assert next_step(study).action == "verify"

    def test_going_on_from_a_state_finds_an_edit_before_it(self, study: Study) -> None:
        study.sync()
        text = study.ledger.path.read_text()
        study.ledger.path.write_text(text.replace('"by":"ada"', '"by":"eve"', 1))
        add_event(study)
        with pytest.raises(LedgerError, match="edited"):
            study.sync()


def add_event(study: Study) -> None:
    study.ledger.append("note", {}, actor="ada")


class TestReadingLittle:
    @pytest.fixture
    def counted(self, study: Study, monkeypatch) -> tuple[Study, list[str]]:
        """Return a study of thirty candidates, and a list of what is opened from now on."""
        for i in range(30):
            add(study, f"n{i}", lr=0.003)
        study.sync()
        opened: list[str] = []

        def counting(path, *arguments, **options):
            opened.append(Path(path).name)
            return open(path, *arguments, **options)

        read = Study.candidate

        def candidate(self: Study, name: str) -> Candidate:
            opened.append(f"candidate {name}")
            return read(self, name)

        monkeypatch.setattr(ledger, "open", counting, raising=False)
        monkeypatch.setattr(Study, "candidate", candidate)
        return study, opened

    def test_next_reads_neither_ledger_nor_candidates(self, counted) -> None:
        study, opened = counted
        assert next_step(study).command == "assay study run base --phase promotion --seed 1"
        assert opened == []

    def test_behind_the_state_the_ledger_is_opened_once(self, counted) -> None:
        study, opened = counted
        add_event(study)
        opened.clear()
        assert next_step(study).action == "run"
        assert opened == ["ledger.jsonl"]

    def test_without_a_state_too(self, counted) -> None:
        study, opened = counted
        (study.path / "state.json").unlink()
        assert next_step(study).action == "run"
        assert opened == ["ledger.jsonl"]

    def test_a_transaction_reads_the_ledger_once(self, counted) -> None:
        study, opened = counted
        with study.ledger.transaction() as writer:
            first = len(list(writer.events()))
            writer.append("note", {}, actor="ada")
            assert len(list(writer.events())) == first + 1
        assert opened.count("ledger.jsonl") == 2  # to hold it, and to read it

    def test_asking_loads_no_numbers(self) -> None:
        code = (
            "import sys, assay.study.steps.advice\n"
            "print([m for m in sys.argv[1:] if m in sys.modules])"
        )
        heavy = ["numpy", "scipy", "torch", "psutil", "assay.study.run.supervisor"]
        done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, check=True)
        assert done.stdout.strip() == b"[]"


class TestSince:
    def make(self, path: Path, count: int = 6) -> Ledger:
        found = Ledger(path / "ledger.jsonl")
        for i in range(count):
            found.append("note", {"i": i, "text": "x" * (5000 * (i % 2))}, actor="ada")
        return found

    def place(self, found: Ledger, seq: int) -> tuple[Head, int]:
        lines = found.path.read_bytes().splitlines(keepends=True)
        events = list(found.events())
        return Head(seq, events[seq - 1].hash), sum(map(len, lines[:seq]))

    @pytest.mark.parametrize("seq", [1, 3, 6])
    def test_what_follows_a_head(self, tmp_path: Path, seq: int) -> None:
        found = self.make(tmp_path)
        after = found.since(*self.place(found, seq))
        assert after == list(found.events())[seq:]
        assert found.since(Head(), 0) == list(found.events())

    def test_any_damage_asks_for_a_whole_reading(self, tmp_path: Path) -> None:
        found = self.make(tmp_path)
        head, size = self.place(found, 4)
        whole = found.path.read_bytes()
        for at in range(0, len(whole), 97):
            damaged = bytearray(whole)
            damaged[at] ^= 1
            found.path.write_bytes(bytes(damaged))
            assert found.since(head, size) is None, at
        lines = whole.splitlines(keepends=True)
        for one, other in ((0, 2), (1, 3)):  # whole lines, each with its own right hash
            swapped = list(lines)
            swapped[one], swapped[other] = lines[other], lines[one]
            found.path.write_bytes(b"".join(swapped))
            assert found.since(head, size) is None
        found.path.write_bytes(whole[:size])
        assert found.since(head, size) == []
        found.path.write_bytes(whole[: size - 1])
        assert found.since(head, size) is None
        found.path.write_bytes(whole)
        assert found.since(Head(4, "0" * 64), size) is None
        assert found.since(head, size + 1) is None
