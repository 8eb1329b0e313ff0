"""The ledger loses nothing, survives crashes, and shows every kind of tampering."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.study.files.documents import canonical, digest
from assay.study.record.ledger import GENESIS, REPAIRED, Head, Ledger, LedgerError


def clock() -> str:
    return "2026-01-01T00:00:00.000+00:00"


def filled(path: Path, count: int) -> Ledger:
    ledger = Ledger(path, clock)
    with ledger.transaction() as writer:
        for i in range(count):
            writer.append("note", {"i": i, "text": "ä" * (i % 5), "x": i / 3}, actor="ada")
    return ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return filled(tmp_path / "ledger.jsonl", 12)


class TestChain:
    def test_by_hand(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "l.jsonl", clock)
        first = ledger.append("a", {"n": 1}, actor="ada")
        body = (
            '{"actor":"ada","data":{"n":1},"kind":"a","prev":"' + "0" * 64 + '","schema":1,'
            '"seq":1,"time":"2026-01-01T00:00:00.000+00:00"}'
        )
        assert first.hash == hashlib.sha256(body.encode()).hexdigest()
        assert ledger.path.read_text() == body[:-1] + f',"hash":"{first.hash}"' + "}\n"
        second = ledger.append("b", {}, actor="bob")
        assert (second.seq, second.prev) == (2, first.hash)
        assert list(ledger.events()) == [first, second]
        assert ledger.head() == Head(2, second.hash)

    def test_a_line_is_json_for_everyone(self, ledger: Ledger) -> None:
        events = [json.loads(line) for line in ledger.path.read_text().splitlines()]
        assert [event["seq"] for event in events] == list(range(1, 13))

    def test_an_empty_one_is_whole(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "l.jsonl")
        assert ledger.read().problems == []
        assert ledger.head() == Head(0, GENESIS)
        assert list(ledger.events()) == []

    def test_canonical_form_has_no_choices(self) -> None:
        assert digest({"a": 1, "b": 2.0}) == digest({"b": 2.0, "a": 1})
        with pytest.raises(ValueError):
            canonical({"x": float("nan")})

    def test_long_lines(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "l.jsonl")
        for size in (1, 8000, 8192, 20_000):
            ledger.append("note", {"text": "x" * size}, actor="ada")
        assert ledger.head().seq == 4
        assert ledger.read().problems == []


LINES = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, Head]:
    path = tmp_path_factory.mktemp("whole") / "ledger.jsonl"
    ledger = filled(path, LINES)
    return path, path.read_bytes(), ledger.head()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_edit_is_found_where_it_is(data: st.DataObject, whole, tmp_path: Path) -> None:
    """Bytes, lines: changed, removed, inserted, swapped. Heads anchored elsewhere are whole."""
    _, content, head = whole
    lines = content.splitlines(keepends=True)
    line = data.draw(st.integers(0, LINES - 1))
    kind = data.draw(st.sampled_from(["byte", "drop byte", "add byte", "drop", "copy", "swap"]))
    changed = list(lines)
    if kind in ("byte", "drop byte", "add byte"):
        at = data.draw(st.integers(0, len(lines[line]) - 1))
        byte = bytes([data.draw(st.integers(0, 255))])
        text = lines[line]
        changed[line] = {
            "byte": text[:at] + byte + text[at + 1 :],
            "drop byte": text[:at] + text[at + 1 :],
            "add byte": text[:at] + byte + text[at:],
        }[kind]
    elif kind == "drop":
        del changed[line]
    elif kind == "copy":
        changed.insert(data.draw(st.integers(0, LINES)), lines[line])
    else:
        other = data.draw(st.integers(0, LINES - 1))
        changed[line], changed[other] = changed[other], changed[line]
    new = b"".join(changed)
    ledger = Ledger(tmp_path / "edited.jsonl")
    ledger.path.write_bytes(new)
    problems = ledger.read({"state.json": head}).problems
    if new == content:
        assert problems == []
        return
    same = next((i for i, (a, b) in enumerate(zip(content, new, strict=False)) if a != b), None)
    first = content[: min(len(content), len(new)) if same is None else same].count(b"\n")
    # A newline that was written into a line moves the place by one at most.
    assert problems and abs(problems[0].line - (first + 1)) <= 1


class TestAnchors:
    def test_a_ledger_that_grew_is_whole(self, ledger: Ledger) -> None:
        head = ledger.head()
        ledger.append("note", {}, actor="ada")
        assert ledger.read({"state.json": head}).problems == []

    def test_a_ledger_that_was_written_again_is_found(self, ledger: Ledger, tmp_path: Path) -> None:
        forged = Ledger(tmp_path / "forged.jsonl", clock)
        with forged.transaction() as writer:
            for i in range(20):
                writer.append("note", {"i": -i}, actor="ada")
        assert forged.read().problems == []
        [problem] = forged.read({"the git ref": ledger.head()}).problems
        assert "history was rewritten" in str(problem)

    def test_a_deleted_ledger_is_found(self, ledger: Ledger) -> None:
        head = ledger.head()
        ledger.path.unlink()
        [problem] = ledger.read({"state.json": head}).problems
        assert "cut off" in str(problem)


class TestCrash:
    @pytest.mark.parametrize("cut", [1, 2, 40])
    def test_a_half_written_line_is_taken_off_and_kept(self, ledger: Ledger, cut: int) -> None:
        whole = list(ledger.events())
        size = len(ledger.path.read_bytes())
        ledger.append("lost", {"n": 1}, actor="ada")
        line = ledger.path.read_bytes()[size:]
        ledger.path.write_bytes(ledger.path.read_bytes()[:-cut])
        assert list(ledger.events()) == whole  # reading passes over it
        assert "half-written" in str(ledger.read().problems[0])
        ledger.append("next", {}, actor="ada")
        *before, repaired, last = ledger.events()
        assert before == whole
        assert (repaired.kind, last.kind) == (REPAIRED, "next")
        assert repaired.data["text"].encode() == line[:-cut]
        assert ledger.read().problems == []

    def test_a_damaged_end_is_not_appended_to(self, ledger: Ledger) -> None:
        content = ledger.path.read_bytes()
        ledger.path.write_bytes(content.replace(b'"i":11', b'"i":99'))
        with pytest.raises(LedgerError, match="was edited"):
            ledger.append("next", {}, actor="ada")

    def test_a_full_disk_leaves_it_as_it_was(self, ledger: Ledger, monkeypatch) -> None:
        content = ledger.path.read_bytes()

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match="the disk is full"):
            ledger.append("next", {}, actor="ada")
        monkeypatch.undo()
        assert ledger.path.read_bytes() == content
        assert ledger.append("next", {}, actor="ada").seq == 13

    def test_what_found_no_space_is_not_written_later(self, ledger: Ledger) -> None:
        """It was kept in a buffer, and written as the file was closed."""
        before = ledger.path.read_bytes()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        with ledger.transaction() as writer:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limit[1]))
            try:
                with pytest.raises(LedgerError, match="Cannot write the ledger"):
                    writer.append("note", {"i": 12}, actor="ada")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert ledger.path.read_bytes() == before

    def test_a_writer_that_is_killed_loses_nothing_that_it_was_told_is_there(
        self, tmp_path: Path
    ) -> None:
        code = """
            import sys
            from pathlib import Path
            from assay.study.record.ledger import Ledger
            ledger = Ledger(Path(sys.argv[1]))
            while True:
                print(ledger.append("note", {"text": "x" * 5000}, actor="w").seq, flush=True)
        """
        path = tmp_path / "ledger.jsonl"
        seen = 0
        for _ in range(3):
            command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            for _ in range(20):
                seen = int(child.stdout.readline())
            time.sleep(0.002)
            child.send_signal(signal.SIGKILL)
            seen = max([seen, *(int(line) for line in child.stdout if line.strip())])
            child.wait()
            ledger = Ledger(path)
            ledger.append("check", {}, actor="test")
            assert ledger.read().problems == []
            assert sum(1 for _ in ledger.events()) >= seen + 1


def _write(path: str, name: str, count: int) -> None:
    ledger = Ledger(Path(path))
    for i in range(count):
        ledger.append("note", {"i": i}, actor=name)


def test_eight_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write, args=(str(path), f"w{i}", 40)) for i in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    ledger = Ledger(path)
    assert ledger.read().problems == []
    written = [(event.actor, event.data["i"]) for event in ledger.events()]
    assert len(written) == 320
    for i in range(8):
        assert [n for actor, n in written if actor == f"w{i}"] == list(range(40))


def test_a_transaction_decides_on_what_it_appends_to(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    with ledger.transaction() as writer:
        writer.append("a", {}, actor="x")
        assert [event.kind for event in writer.events()] == ["a"]


def test_a_ledger_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(LedgerError, match=r"Cannot read the ledger '.*ledger\.jsonl'"):
        Ledger(tmp_path / "ledger.jsonl").read()
