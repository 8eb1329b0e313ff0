"""Results from elsewhere: adopted by file, hash and place, shown, and never decided on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from assay.study.agree import spending
from assay.study.agree.setup import initialise
from assay.study.files.documents import StudyError, canonical
from assay.study.judge import adopt, verify
from assay.study.judge.adopt import Claim, Source
from assay.study.record.book import Book
from assay.study.record.history import History
from assay.study.record.kinds import ADOPTED, SHOWN, WITHDRAWN
from assay.study.record.study import Study
from assay.study.report import pages

NEW = {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0, 5: 14.0}
OLD = {1: 1.0, 2: 2.0, 3: 1.5, 4: 2.5, 5: 1.0}
CLAIM = Claim("new", "return", rival="old", relation=">=", threshold=11.5)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    root = tmp_path / "repository"
    root.mkdir()
    write(root, "new", NEW)
    write(root, "old", OLD)
    return initialise(root, "task", "study", actor="ada")


def write(root: Path, name: str, scores: dict[int, float]) -> Path:
    path = root / f"{name}.json"
    seeds = [{"seed": seed, "a/b": {"mean": score}} for seed, score in scores.items()]
    path.write_text(json.dumps({"seeds": seeds}))
    return path


def sources(name: str, scores: dict[int, float]) -> list[Source]:
    return [
        Source(name, seed, f"{name}.json", f"/seeds/{i}/a~1b/mean", "return", "cfg", {"n": 100})
        for i, seed in enumerate(scores)
    ]


def everything() -> list[Source]:
    return [*sources("new", NEW), *sources("old", OLD)]


def kinds(study: Study) -> list[str]:
    return [event.kind for event in study.ledger.events()][1:]


class TestAdopting:
    def test_every_seed_is_on_record_with_file_hash_and_place(self, study: Study) -> None:
        made = adopt.adopt(study, everything(), [CLAIM], "ada")
        assert [event.kind for event in made] == [ADOPTED] * 10 + [SHOWN]
        first = dict(made[0].data)
        assert len(first.pop("sha256")) == 64
        assert first == {
            "candidate": "new", "seed": 1, "path": "new.json", "pointer": "/seeds/0/a~1b/mean",
            "metric": "return", "value": 10.0, "config": "cfg", "protocol": {"n": 100},
            "supersedes": None,
        }  # fmt: skip
        assert verify.verify(study) == []

    def test_a_result_in_json_lines(self, study: Study) -> None:
        lines = study.root / "new.jsonl"
        lines.write_text('{"mean": 1.5}\n{"mean": 2.5}\n')
        source = Source("new", 1, "new.jsonl", "/1/mean", "return", "cfg")
        (event,) = adopt.adopt(study, [source], [], "ada")
        assert event.data["value"] == 2.5 and verify.verify(study) == []
        with pytest.raises(StudyError, match="no number at '/2/mean'"):
            adopt.adopt(study, [dataclasses.replace(source, pointer="/2/mean")], [], "ada")
        lines.write_text('{"mean": 1.5}\n')  # one line is a list of one line
        one = dataclasses.replace(source, pointer="/0/mean")
        assert adopt.adopt(study, [one], [], "ada")[0].data["value"] == 1.5

    def test_twice_adds_nothing(self, study: Study) -> None:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        before = study.ledger.path.read_bytes()
        assert adopt.adopt(study, everything(), [CLAIM], "ada") == []
        assert study.ledger.path.read_bytes() == before

    def test_what_is_measured_again_supersedes_and_edits_nothing(self, study: Study) -> None:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        before = study.ledger.path.read_bytes()
        write(study.root, "new", NEW | {5: 20.0})
        made = adopt.adopt(study, everything(), [CLAIM], "ada")
        assert [event.kind for event in made] == [ADOPTED] * 5 + [SHOWN]
        assert [event.data["supersedes"] for event in made[:5]] == [2, 3, 4, 5, 6]
        assert study.ledger.path.read_bytes().startswith(before)
        assert study.history().adopted["new", 5].data["value"] == 20.0
        assert verify.verify(study) == []

    def test_a_seed_that_is_gone_is_withdrawn(self, study: Study) -> None:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        fewer = [source for source in everything() if (source.candidate, source.seed) != ("old", 5)]
        made = adopt.adopt(study, fewer, [CLAIM], "ada")
        assert [event.kind for event in made] == [WITHDRAWN, SHOWN]
        assert ("old", 5) not in study.history().adopted
        assert verify.verify(study) == []

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"path": "nowhere.json"}, "no evidence file"),
            ({"path": "/etc/hostname"}, "no evidence file"),
            ({"pointer": "/seeds/9/a~1b/mean"}, "no number at"),
            ({"pointer": "/seeds/0/a~1b"}, "no number at"),
            ({"pointer": "/seeds/0/a/b/mean"}, "no number at"),
        ],
    )
    def test_a_source_that_does_not_hold_is_refused(self, study, change, words) -> None:
        wrong = dataclasses.replace(sources("new", NEW)[0], **change)
        with pytest.raises(StudyError, match=words):
            adopt.adopt(study, [*sources("old", OLD), wrong], [], "ada")
        assert kinds(study) == []

    def test_a_number_that_is_none_is_refused(self, study: Study) -> None:
        (study.root / "new.json").write_text('{"seeds": [{"a/b": {"mean": NaN}}]}')
        with pytest.raises(StudyError, match="no number"):
            adopt.adopt(study, sources("new", {1: 0.0}), [], "ada")

    def test_two_sources_of_one_seed_are_refused(self, study: Study) -> None:
        with pytest.raises(StudyError, match="two sources"):
            adopt.adopt(study, [*sources("new", NEW), sources("new", NEW)[0]], [], "ada")

    def test_a_claim_about_nobody_is_refused(self, study: Study) -> None:
        with pytest.raises(StudyError, match="No result of 'nobody'"):
            adopt.adopt(study, everything(), [Claim("nobody", "return")], "ada")
        assert kinds(study) == []


class TestShowing:
    def test_a_claim_is_weighed_and_not_decided(self, study: Study) -> None:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        facts = study.history().shown["new", "old", "return"].data
        assert facts["verdict"] == "adopted: shown, not decided"
        assert (facts["mean"], facts["iqm"], facts["reached"]) == (12.0, 12.0, True)
        seen = facts["comparison"]
        assert (seen["test"], seen["seeds"]) == ("welch", [5, 5])
        assert seen["effect"] == pytest.approx(12.0 - 1.6) and seen["p_better"] < 1e-3

    @pytest.mark.parametrize(
        ("relation", "threshold", "reached"),
        [(">=", 12, True), (">", 12, False), ("<", 12, False), ("<=", 12, True), ("<", 13, True)],
    )
    def test_goals(self, study: Study, relation, threshold, reached) -> None:
        claim = Claim("new", "return", relation=relation, threshold=threshold)
        made = adopt.adopt(study, everything(), [claim], "ada")
        assert made[-1].data["reached"] is reached and made[-1].data["comparison"] is None

    def test_nothing_that_decides_knows_of_it(self, study: Study) -> None:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        events = list(study.ledger.events())
        assert Book.read(events).incumbent == "" and History.read(events).status == {}
        assert spending.decisions(History.read(events)) == 0
        assert History.read(events).usage.runs == 0

    def test_the_report_calls_it_adopted(self, study: Study) -> None:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        for text in (pages.report(study), pages.html_report(study)):
            assert "Adopted results" in text and "adopted: shown, not decided" in text
            assert "nothing is decided by them" in text and "new.json" in text


class TestVerifying:
    @pytest.fixture
    def adopted(self, study: Study) -> Study:
        adopt.adopt(study, everything(), [CLAIM], "ada")
        return study

    def test_any_changed_byte_of_the_evidence_is_named(self, adopted: Study) -> None:
        path = adopted.root / "old.json"
        data = path.read_bytes()
        for place in range(0, len(data), 7):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            found = verify.verify(adopted)
            assert len(found) == 1 and found[0].line == 7
            assert "'old.json', adopted for seed 1 of old, was changed since" in found[0].reason
        path.write_bytes(data)
        assert verify.verify(adopted) == []

    def test_evidence_that_is_gone_is_named(self, adopted: Study) -> None:
        (adopted.root / "new.json").unlink()
        assert [str(p) for p in verify.verify(adopted)] == [
            "line 2: 'new.json', adopted for seed 1 of new, is gone"
        ]

    def test_a_value_that_the_file_does_not_say_is_named(self, study: Study) -> None:
        made = adopt.adopt(study, sources("new", NEW), [], "ada")
        forged = {**made[0].data, "value": 99.0}
        study.ledger.append(ADOPTED, forged, actor="mallory")
        assert "says 10.0 at /seeds/0/a~1b/mean, and 99.0 was adopted" in str(
            verify.verify(study)[0]
        )

    def test_a_show_that_does_not_follow_is_named(self, adopted: Study) -> None:
        facts = dict(adopted.history().shown["new", "old", "return"].data)
        facts["comparison"] = {**facts["comparison"], "effect": 100.0}
        adopted.ledger.append(SHOWN, facts, actor="mallory")
        assert ["what is shown of new is not what the adopted results come to"] == [
            p.reason for p in verify.verify(adopted)
        ]

    def test_an_edited_ledger_is_found(self, adopted: Study) -> None:
        path = adopted.ledger.path
        path.write_bytes(path.read_bytes().replace(b'"value":10.0', b'"value":19.0', 1))
        assert any("it was edited" in p.reason for p in verify.verify(adopted))


def test_all_studies_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no study"):
        verify.studies(tmp_path)
    for name in ("one", "two"):
        initialise(tmp_path, "task", name, actor="ada", activate=True)
    assert [(s.task, s.name) for s in verify.studies(tmp_path)] == [
        ("task", "one"), ("task", "two"),
    ]  # fmt: skip


def test_adopted_facts_are_canonical(study: Study) -> None:
    for _, facts in adopt.due(study, History(), everything(), [CLAIM]):
        canonical(facts)
