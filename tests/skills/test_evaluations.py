"""Evaluations of skills: their format, the scripted router, cases and the place of real figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import forking
import pytest
from command_parsing import parsed

from assay.skills import evals, measuring
from assay.skills.evals import Case, Command, Query
from assay.skills.library import LIBRARY, Skill, SkillsError, plugins
from assay.skills.routing import Router, Tally, measure, outcomes, routing

SKILLS = [skill for plugin in plugins() for skill in plugin.skills]
EVALS = {skill.name: evals.read(skill.path) for skill in SKILLS}
CHEAP = [skill for skill in SKILLS if any(case.ci for case in EVALS[skill.name].cases)]
# 62.8 % when the router first saw 920 queries of 46 skills; 61.1 % and 501 of 552 of all 69.
ACCURACY, NEAR = 0.60, 0.88


def skill(name: str, description: str) -> Skill:
    return Skill(name, description, "p", Path(name), "")


def test_every_skill_has_evaluations() -> None:
    assert [name for name, found in EVALS.items() if found is None] == []


def test_commands_of_cases_are_real() -> None:
    for found in EVALS.values():
        for case in found.cases:
            runs = [check["run"] for check in case.checks if "run" in check]
            for line in [command.line for command in (*case.prepare, *case.commands)] + runs:
                if line.startswith("assay "):
                    parsed(line)


class TestRouting:
    def test_bm25_by_hand(self) -> None:
        router = Router([skill("plot", "draw curves"), skill("train", "fit an agent")])
        # Both have three words, so that length / mean is 1. "draw" is in one of two skills:
        # idf = ln(1 + (2 - 1 + 0.5) / (1 + 0.5)) = ln 2, tf part = 2.2 / (1 + 1.2) = 1.
        assert router.scores("draw it") == pytest.approx({"plot": 0.6931472, "train": 0.0})
        assert router.route("draw it") is None  # less than the least score

    def test_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("assay.skills.routing.LEAST", 0.5)
        known = [skill("a-b", "frame stack delay latency"), skill("c-d", "poker exploitability")]
        queries = [
            Query("frame stack with delay and latency", "a-b", True, "a-b"),
            Query("poker exploitability frame", "a-b", False, "c-d"),
            Query("frame stack delay latency in films", "a-b", False, None),
        ]
        found = measure(known, queries)
        assert found.tallies == {"a-b": Tally(1, 0, 1), "c-d": Tally(1, 0, 0)}
        assert found.tallies["a-b"].precision == 0.5 and found.tallies["a-b"].recall == 1
        assert found.accuracy == pytest.approx(2 / 3)
        assert (found.near_misses, found.near_misses_left) == (2, 1)

    def test_the_library_is_routed_as_well_as_it_was(self) -> None:
        found = routing(LIBRARY)
        assert found.accuracy >= ACCURACY
        assert found.near_misses_left / found.near_misses >= NEAR


class TestCases:
    @pytest.fixture(autouse=True)
    def quick_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(forking.SCRIPTS, "yes")

    @pytest.mark.parametrize("cheap", CHEAP, ids=lambda skill: skill.name)
    def test_cheap_cases_end_as_expected(self, cheap: Skill) -> None:
        for outcome in outcomes([cheap], "ci"):
            assert outcome.failed == (), outcome

    @pytest.mark.parametrize(
        "check",
        [
            {"file": "none.txt"}, {"file": "a.json", "contains": "zebra"}, {"absent": "a.*"},
            {"file": "a.json", "matches": "^x"}, {"json": "a.json", "at": "b.0", "equals": 2},
            {"json": "a.json", "at": "b.0", "at_least": 2}, {"json": "a.json", "at": "c"},
            {"json": "a.json", "at": "b.0", "at_most": 0}, {"said": "nobody"},
            {"json": "a.json", "at": "b.0", "one_of": [3]}, {"run": "python -c 'exit(3)'"},
            {"json": "a.json", "at": "b", "contains": 9}, {"json": "a.json", "at_least": 1},
            {"run": "python -c 1", "contains": "words"},
        ],
    )  # fmt: skip
    def test_checks_can_fail(self, tmp_path: Path, check: dict[str, object]) -> None:
        (tmp_path / "a.json").write_text('{"b": [1]}')
        case = Case("s", 1, "p", "e", {}, (), (Command("python -c 1"),), (check,), True)
        assert len(evals.check(case, tmp_path, tmp_path, "somebody")) == 1

    def test_a_command_with_another_code_fails_the_case(self, tmp_path: Path) -> None:
        command = Command("python -c \"print('x'); exit(1)\"", to="out.txt")
        case = Case("s", 1, "p", "e", {"d/f": "t"}, (), (command,), ({"file": "d/f"},), True)
        (failed,) = evals.run(case, tmp_path, tmp_path).failed
        assert "ended with 1, not 0" in failed and (tmp_path / "out.txt").read_text() == "x\n"


class TestRealModels:
    def test_results_begin_empty_and_hold_only_what_clients_did(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client that writes the file only where it finds the skill."""
        fake = tmp_path / "bin" / "claude"
        fake.parent.mkdir()
        fake.write_text(
            '#!/bin/sh\nif [ "$1" = --version ]; then echo 9.9; exit; fi\n'
            "[ -d .claude/skills ] && echo hello > done.txt\nexit 0\n"
        )
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
        case = Case("s", 1, "do", "e", {}, (), (Command("python -c 1"),), ({"file": "done.txt"},),
                    True)  # fmt: skip
        to = tmp_path / "results.json"
        assert measuring.read_results(to) == []
        runs = list(measuring.measure(SKILLS[0], [case], "claude", to))
        assert [(run.with_skill, run.passed) for run in runs] == [(False, False), (True, True)]
        assert measuring.read_results(to) == runs and runs[0].client == "9.9"

    def test_bad_input(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "r.json").write_text('{"schema": 2, "runs": []}')
        with pytest.raises(SkillsError, match="schema 2"):
            measuring.read_results(tmp_path / "r.json")
        with pytest.raises(SkillsError, match="no host 'emacs'"):
            list(measuring.measure(SKILLS[0], [], "emacs", tmp_path / "x"))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SkillsError, match="not on PATH"):
            list(measuring.measure(SKILLS[0], [], "codex", tmp_path / "x"))

    def test_the_committed_results_are_none_until_somebody_measures(self) -> None:
        path = Path(__file__).resolve().parents[2] / "benchmarks/skills.json"
        assert json.loads(path.read_text())["schema"] == measuring.SCHEMA
        for run in measuring.read_results(path):
            assert re.search(r"\d", run.client), "a real client states its version"
