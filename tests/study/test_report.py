"""The report: its numbers are the ledger's, its texts are harmless, and it needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from study_samples import candidate_values, contract_values

from assay.study.agree import budget, protocol
from assay.study.agree.approvals import approve
from assay.study.files.base import Phase
from assay.study.files.candidate import BudgetRequest, Candidate
from assay.study.files.contract import APPROVALS, Contract
from assay.study.files.documents import write_yaml_document
from assay.study.judge import audit, verdict
from assay.study.record import kinds
from assay.study.record.history import History, Transaction
from assay.study.record.ledger import LedgerError
from assay.study.record.study import Study
from assay.study.report import charts, pages, sections, verdicts
from assay.study.steps import candidates

SEEDS = {"promotion": (1, 2, 3, 4, 5), "validation": (11, 12, 13, 14, 15)}
NOISE = (-2.0, -1.0, 0.0, 1.0, 2.0)
OTHER = (0.3, -0.3, 0.1, -0.2, 0.1)


def make(root: Path) -> Study:
    values = contract_values()
    source = {"kind": "jsonl", "path": "log.jsonl", "step": "step"}
    values["metrics"] = {
        "primary": {
            "name": "return", "minimum_effect": 3.0, "source": source | {"key": "return"},
            "unit": "points",
        },
        "guardrails": [
            {
                "name": "falls", "direction": "minimize", "margin": 2.0,
                "source": source | {"key": "falls"},
            }
        ],
    }  # fmt: skip
    values["budget"] = {"wall_clock_hours": 10.0, "runs": 100}
    study = Study(root, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, Contract(**values))
    for item in APPROVALS:
        approve(study, item, "ada")
    add(study, "base", kind="baseline", change={})
    for phase in ("promotion", "validation"):
        ran(study, "base", phase)
    return study


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Make a study with a baseline, once; tests work on copies of it."""
    root = tmp_path_factory.mktemp("made")
    make(root)
    return root


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Study:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path, "cartpole", "lr")


@pytest.fixture(scope="module")
def won(made: Path, tmp_path_factory) -> Path:
    """Make a study that accepted c1, once."""
    root = tmp_path_factory.mktemp("won")
    shutil.copytree(made, root, dirs_exist_ok=True)
    study = Study(root, "cartpole", "lr")
    add(study, "c1")
    for phase in ("promotion", "validation"):
        ran(study, "c1", phase, gain=14.0)
        judge(study, "c1", phase)
    return root


@pytest.fixture
def winner(won: Path, tmp_path: Path) -> Study:
    shutil.copytree(won, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path, "cartpole", "lr")


def add(study: Study, name: str, **changes: Any) -> None:
    candidates.propose(study, Candidate(**candidate_values(id=name, **changes)), "agent")
    candidates.validate(study, name, "agent")


def ran(
    study: Study, name: str, phase: Phase, gain: float = 0.0, failed: tuple[int, ...] = ()
) -> None:
    """Put finished runs with learning curves on record."""
    measured = protocol.protocol_hash(study.root, study.contract())
    noises = NOISE if name == "base" else tuple(np.add(NOISE, OTHER))
    with study.ledger.transaction() as writer:
        frozen = History.read(writer.events()).registration(name).data["hash"]
        for seed, noise in zip(SEEDS[phase], noises, strict=True):
            run = f"{name}-{phase}-{seed}"
            out = study.path / "runs" / run / "out"
            out.mkdir(parents=True)
            last = 100 + noise + gain
            rows = [
                {"step": 100 * i, "return": float(value), "falls": 5 + noise / 10}
                for i, value in enumerate(np.linspace(0, last, 20))
            ]
            (out / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            metrics = {"return": None if seed in failed else last, "falls": 5 + noise / 10}
            outcome = "failed" if seed in failed else "done"
            request = {"run": run, "wall_clock_hours": 0.2, "gpu_hours": 0.0}
            facts = {
                "run": run, "candidate": name, "phase": phase, "seed": seed, "argv": [],
                "protocol": measured, "registration": frozen,
            }  # fmt: skip
            end = {"run": run, "outcome": outcome, "reason": "", "hours": 0.1, "exit_code": 0}
            launched = {"run": run, "pid": 1, "host": "node7"}
            settled = {"run": run, "wall_clock_hours": 0.1, "gpu_hours": 0.0}
            for kind, data in (
                (kinds.RESERVED, request), (kinds.PREPARED, facts), (kinds.LAUNCHED, launched),
                (kinds.SETTLED, settled), (kinds.MEASURED, {"run": run, "metrics": metrics}),
                (kinds.ENDED, end),
            ):  # fmt: skip
                writer.append(kind, data, actor="test")
        for to in ("launched", "completed"):
            Transaction(writer).move(name, to, actor="test", why="test")


def judge(study: Study, name: str, phase: Phase = "promotion") -> None:
    audit.audit(study, name, phase, "agent")
    verdict.judge(study, name, phase, "agent")


class Page(HTMLParser):
    """What a browser would make of the page: tables as text and exact numbers, tags, attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.exact: dict[str, list[list[float]]] = {}
        self.text = ""
        self._caption = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "circle", "path", "polyline", "polygon", "rect"):
            self.open.append(tag)
        if tag == "caption":
            self._caption = ""
        if tag == "tr" and self._caption:
            self.tables.setdefault(self._caption, []).append([])
            self.exact.setdefault(self._caption, []).append([])
        if tag in ("td", "th") and self._caption in self.tables:
            self.tables[self._caption][-1].append("")
        if tag == "data":
            self.exact[self._caption][-1].append(float(dict(attrs)["value"]))

    def handle_endtag(self, tag) -> None:
        if tag in self.open:
            assert self.open.pop() == tag, tag

    def handle_data(self, data) -> None:
        self.text += data
        if self.open and self.open[-1] == "caption":
            self._caption += data
        elif self._caption in self.tables and self.tables[self._caption][-1] and (
            {"td", "th"} & set(self.open)
        ):  # fmt: skip
            self.tables[self._caption][-1][-1] += data

    def table(self, begin: str) -> list[list[str]]:
        """Return the rows of a table by how its caption begins."""
        return next(rows for name, rows in self.tables.items() if name.startswith(begin))

    def numbers(self, begin: str) -> list[list[float]]:
        return next(rows for name, rows in self.exact.items() if name.startswith(begin))


def page(study: Study) -> Page:
    found = Page(pages.html_report(study))
    assert found.open == []  # every tag is closed, in order
    return found


def given(study: Study) -> list[dict[str, Any]]:
    return [dict(e.data) for e in study.ledger.events() if e.kind == kinds.GIVEN]


class TestNumbers:
    def test_they_are_those_of_the_verdicts(self, winner: Study) -> None:
        add(winner, "c2", change={"parameters": {"lr": 2e-3}})
        ran(winner, "c2", "promotion", gain=-9.0)
        judge(winner, "c2")
        verdicts = given(winner)
        assert [data["outcome"] for data in verdicts] == ["accept", "accept", "harmful"]
        shown = page(winner).numbers("All verdicts")[1:]
        assert len(shown) == len(verdicts)
        for row, data in zip(shown, verdicts, strict=True):
            seen = data["comparison"]
            expected = [seen["effect"], seen["low"], seen["high"], 3.0, seen["p_better"]]
            assert row == [*expected, data["alpha"], seen["failures"]]
        text = pages.report(winner)
        for data in verdicts:
            seen = data["comparison"]
            assert f"| {seen['effect']:+.4g} | {seen['low']:.4g} | {seen['high']:.4g} |" in text

    def test_guardrails_have_their_own_row(self, winner: Study) -> None:
        [first, _] = given(winner)
        found = page(winner)
        rows = found.numbers("Numbers of c1, promotion")[1:]
        guard = first["guardrails"]["falls"]
        assert rows[1][:4] == [guard["effect"], guard["low"], guard["high"], -2.0]
        assert found.table("Numbers of c1, promotion")[2][0] == "guardrail falls"

    def test_every_reason_is_given(self, winner: Study) -> None:
        text = page(winner).text
        for data in given(winner):
            for reason in data["reasons"]:
                assert reason in text

    def test_seeds_and_failures(self, study: Study) -> None:
        add(study, "c1")
        ran(study, "c1", "promotion", gain=1.0, failed=(3,))
        judge(study, "c1")
        found = page(study)
        rows = found.table("return of every seed, promotion")[1:]
        assert rows[2] == ["3", "100", "failed"]
        assert rows[0] == ["1", "98", "99.3"]
        assert "failed" in [row[4] for row in found.table("Runs with")]

    def test_the_budget(self, study: Study) -> None:
        request = BudgetRequest(wall_clock_hours=0.5)
        with study.ledger.transaction() as writer:
            budget.reserve(Transaction(writer), study.contract().budget, "open-1", request, "test")
        hours, _, runs = page(study).numbers("Budget use")[1:]
        assert hours == pytest.approx([1.0, 0.5, 10.0, 0.15])
        assert runs == [10.0, 1.0, 100.0, 0.11]

    def test_who_was_held_against_whom(self, winner: Study) -> None:
        add(winner, "c2", change={"parameters": {"lr": 2e-3}})
        ran(winner, "c2", "promotion", gain=30.0)
        judge(winner, "c2")
        rows = page(winner).table("All verdicts")[1:]
        assert [(row[0], row[2]) for row in rows] == [("c1", "base"), ("c1", "base"), ("c2", "c1")]


class TestContent:
    def test_the_same_files_give_the_same_report(self, winner: Study) -> None:
        first = pages.html_report(winner), pages.report(winner)
        assert (pages.html_report(winner), pages.report(winner)) == first
        for name in ("audits", "report.md"):  # copies of what the ledger says
            shutil.rmtree(winner.path / name, ignore_errors=True)
        assert (pages.html_report(winner), pages.report(winner)) == first

    def test_approvals_are_valid_void_or_missing(self, study: Study) -> None:
        text = study.contract_path.read_text()
        study.contract_path.write_text(text.replace("runs: 100", "runs: 900"))
        rows = {row[0]: row for row in page(study).table("Approvals")}
        assert rows["task"][2] == "ada" and rows["task"][5] == "valid"
        assert rows["budget"][5] == "void" and "was changed after ada" in rows["budget"][6]
        kept = study.contract_path.read_text().partition("approvals:")[0]
        study.contract_path.write_text(kept)
        assert {row[5] for row in page(study).table("Approvals")[1:]} == {"missing"}

    def test_provenance_audits_and_timeline(self, winner: Study) -> None:
        found = page(winner)
        run = found.table("Runs with")[1]
        assert run[0] == "base-promotion-1" and run[8] == "node7"
        assert [row[2] for row in found.table("What the audits found")[1:]] == ["passed", "passed"]
        last = list(winner.ledger.events())[-1]
        assert found.table("The newest")[-1][0] == str(last.seq)
        assert "Yes: c1 is better than base." in found.text

    def test_a_failed_audit_says_what_it_found(self, study: Study) -> None:
        add(study, "c1")
        ran(study, "c1", "promotion", gain=9.0)
        shutil.rmtree(study.path / "runs/c1-promotion-2")
        judge(study, "c1")
        row = page(study).table("What the audits found")[1]
        assert row[2] == "failed" and "the files of run c1-promotion-2 are gone" in row[4]
        assert page(study).table("All verdicts")[1][3] == "invalid"

    def test_reflections_and_probes(self, study: Study) -> None:
        facts = {"run": "r", "hacking_risk": "high", "findings": ["It cheats."]}
        study.ledger.append(kinds.REFLECTED, facts, actor="a")
        facts = {"plan": "m", "parameter": "mass", "lowest": 0.5, "highest": None}
        study.ledger.append(kinds.SUMMARISED, facts, actor="a")
        found = page(study)
        assert found.table("What runs say")[1] == ["r", "high", "It cheats."]
        assert found.table("How far")[1] == ["m", "mass", "0.5", "-"]

    def test_markdown_has_every_section_of_the_page(self, winner: Study) -> None:
        text = pages.report(winner)
        for heading in re.findall(r"<h2[^>]*>([^<]*)</h2>", pages.html_report(winner)):
            assert f"\n## {heading}\n" in text

    def test_what_is_left_out_is_said(self, study: Study, monkeypatch) -> None:
        for i in range(3):
            add(study, f"c{i}", change={"parameters": {"lr": 1e-3 * (i + 1)}})
            ran(study, f"c{i}", "promotion", gain=0.5)
            judge(study, f"c{i}")
        for name, most in (("RUNS", 4), ("EVENTS", 5)):
            monkeypatch.setattr(sections, f"MOST_{name}", most)
        for name, most in (("DETAILED", 1), ("CURVES", 0)):
            monkeypatch.setattr(verdicts, f"MOST_{name}", most)
        found = page(study)
        assert len(found.table("All verdicts")) == 1 + 3  # none is left out here
        assert "1 of 3 candidates" in found.text and "newest 4 of 25 runs" in found.text
        assert len(found.table("Runs with")) == 1 + 4 and len(found.table("The newest 5")) == 1 + 5
        assert "Learning curves" not in found.text


class TestIncomplete:
    def test_nothing_but_a_directory(self, tmp_path: Path) -> None:
        study = Study(tmp_path, "cartpole", "lr")
        study.path.mkdir(parents=True)
        for text in (pages.report(study), page(study).text):
            assert "The ledger is empty" in text and "The contract cannot be used" in text

    def test_a_contract_that_is_still_a_form(self, tmp_path: Path) -> None:
        study = Study(tmp_path, "cartpole", "lr")
        study.path.mkdir(parents=True)
        study.contract_path.write_text("schema_version: 1\nquestion: ''\n")
        study.ledger.append("study.created", {}, actor="ada")
        assert "The contract cannot be used" in pages.report(study)

    @pytest.mark.parametrize("text", ["", "a: [1\n"])
    def test_a_contract_that_was_spoilt_after_a_verdict(self, winner: Study, text: str) -> None:
        winner.contract_path.write_text(text)
        found = page(winner)
        assert "no learning curves" in found.text

    def test_a_contract_and_no_runs(self, tmp_path: Path) -> None:
        study = Study(tmp_path, "cartpole", "lr")
        study.path.mkdir(parents=True)
        write_yaml_document(study.contract_path, Contract(**contract_values()))
        text = page(study).text
        assert "Does a larger learning rate learn faster?" in text
        assert "Nothing has been run yet" in text and "There is no baseline yet" in text

    def test_missing_artifacts_are_said_and_change_no_number(self, winner: Study) -> None:
        before = page(winner)
        shutil.rmtree(winner.path / "runs")
        after = page(winner)
        assert after.numbers("All verdicts") == before.numbers("All verdicts")
        assert after.table("return of every seed") == before.table("return of every seed")
        assert "The artifacts of 20 of these runs are missing" in after.text
        assert "The artifacts of 10 runs are missing" in after.text
        assert "artifacts of" not in before.text

    def test_missing_candidate_files(self, winner: Study) -> None:
        winner.candidate_path("c1").unlink()
        found = page(winner)
        assert "Its file is missing or cannot be read" in found.text
        assert len(found.table("All verdicts")) == 3

    def test_artifacts_that_break_their_readers(self, winner: Study) -> None:
        for path in (winner.path / "runs").glob("c1-*/out/log.jsonl"):
            path.write_bytes(b"\xff\x00{" * 100 + b"[" * 100_000)
        assert len(page(winner).table("All verdicts")) == 3

    def test_numbers_from_the_edge_of_floats(self, study: Study) -> None:
        add(study, "c1")
        ran(study, "c1", "promotion", gain=1.0)
        for i, path in enumerate((study.path / "runs").glob("*/out/log.jsonl")):
            value = (1.7e308, -1.7e308, 5e-324, 0.0)[i % 4]
            path.write_text("".join(f'{{"step": {s}, "return": {value}}}\n' for s in (0, 1e308)))
        with study.ledger.transaction() as writer:
            seen = {"effect": 1.7e308, "low": -1.7e308, "high": None, "seeds": [5, 5]}
            facts = {
                "candidate": "c1", "phase": "promotion", "outcome": "inconclusive",
                "reasons": ["odd"], "alpha": None, "comparison": seen, "guardrails": {},
            }  # fmt: skip
            writer.append(kinds.GIVEN, facts, actor="x")
        text = pages.html_report(study)
        assert not re.search(r'="(nan|inf|-inf)', text)

    def test_a_ledger_that_was_cut_off(self, study: Study) -> None:
        study.sync()
        assert "cut off" not in page(study).text
        lines = study.ledger.path.read_bytes().splitlines(keepends=True)
        study.ledger.path.write_bytes(b"".join(lines[:-3]))
        assert "end was cut off" in page(study).text
        assert "> **Attention:**" in pages.report(study)

    def test_a_ledger_that_was_written_again(self, study: Study) -> None:
        study.sync()
        path, head = study.path / "state.json", study.ledger.head().hash
        path.write_text(path.read_text().replace(head, "1" * 64))
        assert "history was rewritten" in page(study).text

    def test_a_damaged_ledger_yields_no_report(self, study: Study) -> None:
        data = study.ledger.path.read_bytes()
        study.ledger.path.write_bytes(data.replace(b'"ada"', b'"eve"', 1))
        with pytest.raises(LedgerError, match="damaged in line 1"):
            pages.report(study)


HOSTILE = (
    "</td><script>alert(1)</script><img src=http://evil/x onerror=alert(1)> | a | b |\n\n"
    "# Accepted\n\n![x](http://evil/y) [link](javascript:alert(1)) `code` **bold** "
    "\u202egnihtemos\u202c \x07\x1b[31m \ud800 &lt;b&gt; \"quotes' <!-- -->"
)


class TestHostileText:
    @pytest.fixture
    def attacked(self, study: Study) -> Study:
        text = HOSTILE.replace("\ud800", "")  # which YAML and the ledger cannot even hold
        seen = re.sub("[\u202a-\u202e\x07\x1b]", "", text)  # what a candidate may say
        add(
            study,
            "c1",
            hypothesis=seen,
            expected=seen,
            rollback=seen,
            proposer=text,
            evidence=(text,),
        )
        ran(study, "c1", "promotion", gain=14.0)
        judge(study, "c1")
        facts = {
            "candidate": "c1", "phase": "validation", "outcome": text, "reasons": [text],
            "alpha": text, "comparison": {"effect": text, "test": text, "seeds": [text, text]},
            "guardrails": {text: None},
        }  # fmt: skip
        study.ledger.append(kinds.GIVEN, facts, actor=text)
        study.ledger.append(text, {"reason": text, "candidate": text}, actor=text)
        return study

    def test_the_page_holds_no_tag_of_theirs_and_loads_nothing(self, attacked: Study) -> None:
        text = pages.html_report(attacked)
        found = page(attacked)
        allowed = {
            "html", "head", "meta", "title", "style", "body", "main", "nav", "ul", "li", "a",
            "h1", "h2", "h3", "h4", "p", "div", "table", "caption", "thead", "tbody", "tr", "th",
            "td", "data", "span", "figure", "figcaption", "svg", "text", "line", "circle", "path",
            "polyline", "polygon", "rect",
        }  # fmt: skip
        assert {tag for tag, _ in found.tags} <= allowed
        for tag, attributes in found.tags:
            assert not [name for name in attributes if name.startswith("on") or name == "src"], tag
            assert (attributes.get("href") or "#").startswith("#")
        assert "url(" not in text and "@import" not in text
        assert "alert(1)" in found.text  # it is shown, as the text that it is
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
        text.encode()

    def test_markdown_holds_no_markup_of_theirs(self, attacked: Study) -> None:
        text = pages.report(attacked)
        assert "<" not in text and "\n# Accepted" not in text
        assert not re.search(r"(?<!\\)[\[\]`*_]", text.replace("> **Attention:**", ""))
        for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, table
        text.encode()

    def test_what_only_a_contract_can_hold(self, study: Study) -> None:
        plain = json.dumps(HOSTILE)  # as YAML reads it, with the lone surrogate
        text = study.contract_path.read_text()
        line = next(line for line in text.splitlines() if line.startswith("question:"))
        study.contract_path.write_text(text.replace(line, f"question: {plain}"))
        pages.html_report(study).encode()
        pages.report(study).encode()

    def test_endless_text_is_cut(self, study: Study) -> None:
        add(study, "c1", hypothesis="x" * 50_000)
        assert "x" * 2000 not in pages.html_report(study)


class TestPlots:
    def svgs(self, study: Study) -> dict[str, ElementTree.Element]:
        found = re.findall(r"<svg.*?</svg>", pages.html_report(study), re.S)
        trees = [ElementTree.fromstring(text) for text in found]
        return {tree.attrib["aria-label"]: tree for tree in trees}

    def one(self, study: Study, begin: str) -> ElementTree.Element:
        return next(tree for label, tree in self.svgs(study).items() if label.startswith(begin))

    def test_all_are_there_and_say_what_they_show(self, winner: Study) -> None:
        labels = list(self.svgs(winner))
        count = len(list(winner.ledger.events()))
        for begin in (
            "Effects of 2 verdicts", "return (points) per seed of base and c1",
            "Learning curves of base and c1", "Budget use", f"{count} events",
        ):  # fmt: skip
            assert any(label.startswith(begin) for label in labels), begin
        for tree in self.svgs(winner).values():
            assert tree.attrib["role"] == "img" and tree.find("title") is not None

    def test_one_dot_per_seed(self, study: Study) -> None:
        add(study, "c1")
        ran(study, "c1", "promotion", gain=1.0, failed=(3,))
        judge(study, "c1")
        tree = self.one(study, "return (points) per seed")
        assert len(tree.findall("circle")) == 5 and len(tree.findall("path")) == 4
        crosses = [line for line in tree.findall("line") if line.attrib["class"] == "cross"]
        assert len(crosses) == 2  # the two strokes of one failed seed

    def test_curves_with_intervals(self, winner: Study) -> None:
        tree = self.one(winner, "Learning curves")
        kinds = [line.attrib["class"] for line in tree.findall("polyline")]
        assert kinds.count("l1 thin") == 5 and kinds.count("l2 thin") == 5
        assert kinds.count("l1 mean") == kinds.count("l2 mean") == 1
        assert len(tree.findall("polygon")) == 2

    def test_an_interval_of_the_mean_over_seeds_by_hand(self) -> None:
        lines = [[(0.0, 0.0), (10.0, value)] for value in (1.0, 2.0, 3.0)]
        mean, outline = charts._mean(lines)
        assert mean[-1] == (10.0, pytest.approx(2.0))
        # 4.3027 is the 97.5 % point of t with two degrees of freedom; 1 / sqrt(3) the error.
        ends = [value for step, value in outline if step == 10.0]
        assert ends == pytest.approx([2 + 4.3027 / 3**0.5, 2 - 4.3027 / 3**0.5], abs=1e-3)

    def test_the_effect_is_where_its_number_says(self, winner: Study) -> None:
        tree = self.one(winner, "Effects of")
        seen = given(winner)[0]["comparison"]
        [marks] = [[float(t.attrib["x"]), float(t.text or "")] for t in tree.findall("text")
                   if t.attrib["class"] == "soft" and (t.text or "") == "0"]  # fmt: skip
        ten = next(float(t.attrib["x"]) for t in tree.findall("text") if t.text == "10")
        per_unit = (ten - marks[0]) / 10
        circle = float(tree.findall("circle")[0].attrib["cx"])
        assert circle == pytest.approx(marks[0] + per_unit * seen["effect"], abs=0.05)


def test_torch_is_not_imported() -> None:
    modules = "report.pages, measure.monitor, measure.reflection, measure.probe"
    wanted = ", ".join(f"assay.study.{name}" for name in modules.split(", "))
    code = f"import sys, {wanted}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
