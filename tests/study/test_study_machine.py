"""No sequence of commands reaches an illegal state, launches what is not approved, or accepts
what was not audited and judged twice."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from study_samples import candidate_values, make_study
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.errors import AssayError
from assay.runs import provenance
from assay.study.agree import approvals, protocol
from assay.study.files.base import Phase
from assay.study.files.candidate import Candidate
from assay.study.files.contract import APPROVALS
from assay.study.judge import audit, verdict
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import TRANSITIONS, History
from assay.study.record.ledger import Event
from assay.study.record.study import Study
from assay.study.report import pages
from assay.study.run import launcher, planning, processes, recovery, supervisor
from assay.study.steps import agenda, candidates
from assay.study.steps.advice import next_step

NAMES = ("base", "c1", "c2", "c3")
FACTS = {
    "git": None, "hardware": {"gpus": []}, "environment": {}, "packages": {},
}  # fmt: skip


def begin(study: Study, run: str) -> None:
    """Stand in for the supervisor: claim the run, and start nothing."""
    assert processes.claim(study.path / "runs" / run, "supervisor")


def end(study: Study, run: str, outcome: str, gain: float) -> None:
    """Leave what a run leaves, and let the runner finish it."""
    place = study.path / "runs" / run
    record = study.run(run)
    (place / "out").mkdir(exist_ok=True)
    (place / "stdout.log").touch()
    noise = record.seed * (ord(record.candidate[-1]) - 40) % 7 / 3  # everyone has their own
    row = {"eval/return_mean": 100.0 + gain + noise, "time/elapsed": 1.0}
    (place / "out" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    code = 0 if outcome == "done" else 1
    recovery.exited(study, run, outcome, "", code, 1e-4)
    recovery.finish(study, run)


_TEMPLATE: list[Path] = []  # a machine is made by hypothesis, and cannot ask for a fixture


@pytest.fixture(scope="module", autouse=True)
def faked(tmp_path_factory):
    """Start no process, do not look at this machine for every run, and make the baseline once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "start", lambda study, run, held: begin(study, run))
        patch.setattr(provenance, "collect", lambda *a, **k: FACTS)
        patch.setattr(planning, "_refuse_gone", lambda *words: None)  # there is no Git at all
        root = tmp_path_factory.mktemp("machine")
        study = make_study(root, budget={"wall_clock_hours": 50.0, "runs": 60, "parallel": 3})
        shutil.rmtree(root / ".git")
        commands = Commands(study)
        commands.propose("base")
        commands.validate("base")
        for phase in kinds.DECIDING:
            commands.run_phase("base", phase, 0.0)
        _TEMPLATE[:] = [root]
        yield


class Commands:
    """Every command that changes a study, each allowed to be refused with one clear error."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def tried(self, command: Callable[[], Any]) -> bool:
        try:
            command()
        except AssayError:
            return False
        return True

    def propose(self, name: str) -> None:
        lr = 0.001 + 1e-6 * sum(map(ord, name))  # the same change under two names is refused
        changes: dict[str, Any] = {
            "id": name, "budget": {"wall_clock_hours": 0.5}, "change": {"parameters": {"lr": lr}},
        }  # fmt: skip
        if name == "base":
            changes |= {"kind": "baseline", "change": {}}
        candidate = Candidate(**candidate_values(**changes))
        self.tried(lambda: candidates.propose(self.study, candidate, "agent"))

    def validate(self, name: str) -> None:
        self.tried(lambda: candidates.validate(self.study, name, "agent"))

    def launch(self, name: str, phase: Phase, seed: int) -> str | None:
        study, planned = self.study, []
        approved = approvals.missing(study) == {}

        def start() -> None:
            found = launcher.launch(study, name, phase, seed, confirm=None, actor="agent")
            planned.append(found.run)

        if not self.tried(start):
            return None
        # What nobody approved, or was changed since it was frozen, must never have got here.
        assert approved
        frozen = study.history().registration(name).data["hash"]
        agreed = study.contract()
        measured = protocol.protocol_hash(study.root, agreed)
        assert protocol.registration_hash(study.candidate(name), agreed, measured) == frozen
        return planned[0]

    def finish(self, outcome: str, gain: float) -> None:
        for run in self.study.history().usage.open[:1]:
            end(self.study, run, outcome, gain)

    def run_phase(self, name: str, phase: Phase, gain: float) -> None:
        for seed in self.study.contract().evaluation.pools.of(phase):
            run = self.launch(name, phase, seed)
            if run is not None:
                end(self.study, run, "done", gain)

    def audit(self, name: str, phase: Phase) -> None:
        self.tried(lambda: audit.audit(self.study, name, phase, "agent"))

    def judge(self, name: str, phase: Phase) -> None:
        self.tried(lambda: verdict.judge(self.study, name, phase, "agent"))

    def discard(self, name: str) -> None:
        self.tried(lambda: candidates.discard(self.study, name, "ada", "enough of it"))

    def promote(self) -> None:
        self.tried(lambda: agenda.promote(self.study, "agent"))

    def edit_contract(self, effect: float) -> None:
        path = self.study.contract_path
        values = yaml.safe_load(path.read_text())
        values["metrics"]["primary"]["minimum_effect"] = effect
        path.write_text(yaml.safe_dump(values, sort_keys=False))

    def edit_candidate(self, name: str, rate: float) -> None:
        path = self.study.candidate_path(name)
        if path.exists() and name != "base":
            values = yaml.safe_load(path.read_text())
            values["change"]["parameters"] = {"lr": rate}
            path.write_text(yaml.safe_dump(values, sort_keys=False))

    def approve(self, item: str) -> None:
        self.tried(lambda: approvals.approve(self.study, item, "ada"))

    def sync(self) -> None:
        self.study.sync()


def illegal(events: list[Event]) -> list[str]:
    """Return every move that the table does not know, or that its evidence does not bear."""
    found: list[str] = []
    now: dict[str, Any] = {}
    accepted: dict[str, set[str]] = {}
    passed: dict[str, set[str]] = {}
    for event in events:
        data = event.data
        name = data.get("candidate", "")
        if event.kind == kinds.AUDITED and data["passed"]:
            passed.setdefault(name, set()).add(data["phase"])
        elif event.kind == kinds.GIVEN and data["outcome"] == "accept":
            accepted.setdefault(name, set()).add(data["phase"])
            if data["phase"] not in passed.get(name, set()):
                found.append(f"{name} was accepted in {data['phase']} without an audit")
        elif event.kind == kinds.PREPARED:
            if now.get(name) not in planning._LAUNCHABLE:
                found.append(f"{name} was launched as {now.get(name)}")
        elif event.kind == kinds.STATE:
            before, to = now.get(name), data["to"]
            legal = to == "draft" if before is None else to in TRANSITIONS[before]
            if not legal or data["from"] != before:
                found.append(f"{name} went from {before} to {to}")
            if to == "accepted" and accepted.get(name) != set(kinds.DECIDING):
                found.append(f"{name} was accepted on {accepted.get(name)} alone")
            now[name] = to
    return found


names = st.sampled_from(NAMES)
phases = st.sampled_from(("short", "promotion", "validation"))
deciding = st.sampled_from(kinds.DECIDING)
gains = st.sampled_from((-40.0, 0.0, 40.0))


class Machine(RuleBasedStateMachine):
    """Any order of any commands."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="machine"))
        shutil.copytree(_TEMPLATE[0], self.root, dirs_exist_ok=True)
        self.study = Study(self.root, "cartpole", "lr")
        self.commands = Commands(self.study)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def status(self, *wanted: str) -> bool:
        return bool(set(self.study.history().status.values()) & set(wanted))

    @rule(name=names)
    def propose(self, name: str) -> None:
        self.commands.propose(name)

    @rule(name=names)
    def validate(self, name: str) -> None:
        self.commands.validate(name)

    @rule(name=names, phase=phases, seed=st.sampled_from((0, 1, 2, 11, 99)))
    def launch(self, name: str, phase: Phase, seed: int) -> None:
        self.commands.launch(name, phase, seed)

    @rule(outcome=st.sampled_from(("done", "failed", "killed", "lost")), gain=gains)
    @precondition(lambda self: self.status("launched"))
    def finish(self, outcome: str, gain: float) -> None:
        self.commands.finish(outcome, gain)

    @rule(name=st.sampled_from(NAMES[1:]), phase=phases, gain=gains)
    def run_phase(self, name: str, phase: Phase, gain: float) -> None:
        self.commands.run_phase(name, phase, gain)

    @rule(name=names, phase=deciding)
    @precondition(lambda self: self.status("completed"))
    def audit(self, name: str, phase: Phase) -> None:
        self.commands.audit(name, phase)

    @rule(name=names, phase=deciding)
    @precondition(lambda self: self.status("completed"))
    def judge(self, name: str, phase: Phase) -> None:
        self.commands.judge(name, phase)

    @rule(name=names)
    def discard(self, name: str) -> None:
        self.commands.discard(name)

    @rule()
    @precondition(lambda self: self.status("completed"))
    def promote(self) -> None:
        self.commands.promote()

    @rule(effect=st.sampled_from((10.0, 1.0)))
    def edit_contract(self, effect: float) -> None:
        self.commands.edit_contract(effect)

    @rule(name=names, rate=st.sampled_from((0.001, 0.005, 0.5)))
    def edit_candidate(self, name: str, rate: float) -> None:
        self.commands.edit_candidate(name, rate)

    @rule(item=st.sampled_from(sorted(APPROVALS)))
    def approve(self, item: str) -> None:
        self.commands.approve(item)

    @rule()
    def sync(self) -> None:
        self.commands.sync()

    @invariant()
    def nothing_illegal(self) -> None:
        events = list(self.study.ledger.events())
        assert illegal(events) == []
        assert self.study.problems() == []
        assert Book.read(events).status == History.read(events).status
        used, agreed = History.read(events).usage, self.study.contract()
        assert used.runs <= agreed.budget.runs and len(used.open) <= agreed.budget.parallel
        assert next_step(self.study).action  # there is always one, whatever happened


Machine.TestCase.settings = settings(
    max_examples=6,
    stateful_step_count=16,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMachine = Machine.TestCase


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    shutil.copytree(_TEMPLATE[0], tmp_path, dirs_exist_ok=True)
    return Commands(Study(tmp_path, "cartpole", "lr"))


def accept(commands: Commands, name: str, gain: float = 40.0) -> None:
    """Bring a candidate all the way, by the commands that the machine uses."""
    commands.propose(name)
    commands.validate(name)
    for phase in kinds.DECIDING:
        commands.run_phase(name, phase, gain)
        commands.audit(name, phase)
        commands.judge(name, phase)


def test_the_commands_can_reach_every_end(commands: Commands) -> None:
    """The machine above would prove nothing if its commands were always refused."""
    study = commands.study
    accept(commands, "c2")
    accept(commands, "c3", gain=-40.0)
    now = study.history().status
    assert (now["c2"], now["c3"]) == ("accepted", "rejected")
    assert illegal(list(study.ledger.events())) == []
    commands.discard("c2")
    assert study.history().status["c2"] == "reverted"


@pytest.mark.parametrize("edit", ["contract", "candidate"])
def test_an_edit_in_between_ends_it(commands: Commands, edit: str) -> None:
    commands.propose("c2")
    commands.validate("c2")
    commands.run_phase("c2", "promotion", 40.0)
    if edit == "contract":
        commands.edit_contract(1.0)
        commands.approve("metrics")
    else:
        commands.edit_candidate("c2", 0.005)
    commands.audit("c2", "promotion")
    commands.judge("c2", "promotion")
    now = commands.study.history().status
    assert now["c2"] in ("completed", "rejected")
    assert commands.launch("c2", "validation", 11) is None


def test_validation_repeats_what_promotion_found_and_nothing_else(commands: Commands) -> None:
    study = commands.study
    commands.propose("c2")
    commands.validate("c2")
    commands.run_phase("c2", "validation", 40.0)
    commands.audit("c2", "validation")
    with pytest.raises(AssayError, match="verdict in the promotion phase has not been given"):
        verdict.judge(study, "c2", "validation", "agent")
    commands.run_phase("c2", "promotion", 40.0)
    commands.audit("c2", "promotion")
    commands.judge("c2", "promotion")
    accept(commands, "c3", gain=20.0)
    assert study.history().incumbent == "c3"
    with pytest.raises(AssayError, match="promoted against 'base'; the incumbent is now 'c3'"):
        verdict.judge(study, "c2", "validation", "agent")
    steps = agenda.steps_of(study.history(), study.contract())
    assert [(s.action, s.candidate, s.phase) for s in steps if s.candidate == "c2"] == [
        ("audit", "c2", "promotion")  # of runs of the new incumbent, which no audit has seen
    ]
    for phase in kinds.DECIDING:
        commands.audit("c2", phase)
        commands.judge("c2", phase)
    assert study.history().status["c2"] == "accepted"


def test_illegal_moves_would_be_seen(commands: Commands) -> None:
    study = commands.study
    accept(commands, "c2", gain=0.0)
    moved = {"candidate": "c1", "from": "validated", "to": "accepted", "why": "because"}
    study.ledger.append(kinds.STATE, moved, actor="eve")
    assert illegal(list(study.ledger.events())) == [
        "c1 went from validated to accepted", "c1 was accepted on None alone",
    ]  # fmt: skip


class TestDoubtfulBaselines:
    """Nothing is run against a baseline that cannot be used; a person is told the way out."""

    @pytest.fixture
    def second(self, commands: Commands) -> Commands:
        """Give the baseline up for another, of which nothing is run yet."""
        commands.discard("base")
        values = candidate_values(
            id="base2", kind="baseline", change={}, budget={"wall_clock_hours": 0.5}
        )
        candidates.propose(commands.study, Candidate(**values), "agent")
        commands.validate("base2")
        return commands

    def steps(self, commands: Commands) -> list[agenda.Step]:
        events = commands.study.ledger.events()
        steps = agenda.steps_of(Book.read(events), commands.study.contract())
        commands.study.sync()  # and what is kept in state.json comes to the same
        assert agenda.steps_of(Book(commands.study.state()), commands.study.contract()) == steps
        return steps

    def run(self, commands: Commands, phase: Phase, seed: int, outcome: str, gain=0.0) -> None:
        run = commands.launch("base2", phase, seed)
        assert run is not None
        end(commands.study, run, outcome, gain)

    def waive(self, commands: Commands, rule: str) -> None:
        path = commands.study.contract_path
        values = yaml.safe_load(path.read_text())
        values.setdefault("experiment", {})["exceptions"] = {rule: "we know why"}
        path.write_text(yaml.safe_dump(values, sort_keys=False))

    def test_a_failed_seed_is_said_at_once(self, second: Commands) -> None:
        self.run(second, "promotion", 1, "done")
        assert {step.action for step in self.steps(second)} == {"run"}
        self.run(second, "promotion", 2, "failed")
        [step] = self.steps(second)
        assert (step.action, step.candidate, step.phase) == ("debug", "base2", "promotion")
        assert "failed on seeds [2]" in step.reason and "discard base2" in step.reason
        assert "run base2 --phase promotion --seed N" in step.reason
        assert next_step(second.study).safe is False
        contract_before = second.study.contract_path.read_text()
        self.waive(second, "failed-baseline")
        assert {step.action for step in self.steps(second)} == {"run"}
        second.study.contract_path.write_text(contract_before)
        self.run(second, "promotion", 2, "done")  # the second attempt is what counts
        assert {step.action for step in self.steps(second)} == {"run"}

    def test_another_baseline_takes_its_place(self, second: Commands) -> None:
        commands = second
        self.run(commands, "promotion", 1, "failed")
        commands.discard("base2")
        [step] = self.steps(commands)
        assert step.action == "baseline"
        values = candidate_values(
            id="base3", kind="baseline", change={}, budget={"wall_clock_hours": 0.5}
        )
        candidates.propose(commands.study, Candidate(**values), "agent")
        commands.validate("base3")
        for phase in kinds.DECIDING:
            commands.run_phase("base3", phase, 0.0)
        accept(commands, "c2")
        assert commands.study.history().status["c2"] == "accepted"

    def test_a_baseline_with_too_few_results_decides_nothing(self, second: Commands) -> None:
        for _ in range(kinds.MOST_LOST):
            self.run(second, "promotion", 1, "failed")
        [step] = self.steps(second)
        assert "failed on seeds [1]" in step.reason and "once more" not in step.reason
        for phase in kinds.DECIDING:
            second.run_phase("base2", phase, 0.0)
        second.propose("c2")
        second.validate("c2")
        second.run_phase("c2", "promotion", 40.0)
        second.audit("c2", "promotion")
        with pytest.raises(AssayError, match="'base2' has 4 seeds with a result"):
            verdict.judge(second.study, "c2", "promotion", "agent")

    def test_the_command_plans_another_under_its_own_name(self, commands: Commands) -> None:
        def planned() -> str:
            words = ["study", "baseline", "--root", str(commands.study.root), "--json"]
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, result.output
            return json.loads(result.stdout)["baseline"]

        assert planned() == "base"
        commands.discard("base")
        assert planned() == planned() == "baseline-2"

    def test_the_command_does_not_show_what_a_verdict_would_be(self, commands: Commands) -> None:
        commands.propose("c2")
        commands.validate("c2")
        commands.run_phase("c2", "promotion", 40.0)
        commands.audit("c2", "promotion")
        words = ["study", "verdict", "c2", "--dry-run", "--root", str(commands.study.root)]
        seen = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
        assert (seen["outcome"], seen["comparison"]) == ("open", None)
        assert "p =" not in CliRunner().invoke(app, words).output
        commands.judge("c2", "promotion")
        assert "p =" in CliRunner().invoke(app, words).output

    def test_killed_runs_are_said_before_every_audit_fails(self, second: Commands) -> None:
        self.run(second, "promotion", 1, "lost")
        assert {step.action for step in self.steps(second)} == {"run"}
        self.run(second, "promotion", 2, "lost")
        [step] = self.steps(second)
        assert step.action == "debug" and "base2-promotion-1, base2-promotion-2" in step.reason

    @pytest.mark.parametrize(("shift", "odd"), [(0.0, False), (40.0, True)])
    def test_halves_that_differ_ask_for_a_person(self, second, shift: float, odd: bool) -> None:
        second.run_phase("base2", "promotion", 0.0)
        second.run_phase("base2", "validation", shift)
        steps = self.steps(second)
        assert ("debug" in [step.action for step in steps]) is odd
        if odd:
            [step] = steps
            assert "the A/A test of base2 has p = " in step.reason and "aa-test" in step.reason
            self.waive(second, "aa-test")
        assert {(s.action, s.candidate) for s in self.steps(second)} == {("run", "c1")}

    def test_who_was_promoted_is_held_against_the_new_one(self, commands: Commands) -> None:
        commands.propose("c2")
        commands.validate("c2")
        commands.run_phase("c2", "promotion", 40.0)
        commands.audit("c2", "promotion")
        commands.judge("c2", "promotion")
        assert commands.study.history().judged == {("c2", "promotion"): "accept"}
        commands.discard("base")
        assert commands.study.history().judged == {}


class TestVerdictsStand:
    """A verdict says what it was judged by, so that the report can be made from the ledger."""

    def test_the_event_is_complete(self, commands: Commands) -> None:
        accept(commands, "c2")
        first, second = (e.data for e in commands.study.ledger.events() if e.kind == kinds.GIVEN)
        for data in (first, second):
            assert (data["rival"], data["metric"]) == ("base", "return")
            assert (data["minimum_effect"], data["direction"]) == (10.0, "maximize")
            assert data["limits"] == {
                "hours": {"direction": "minimize", "bound": None, "margin": 0.5}
            }
            assert data["test"] == "welch" and data["comparison"]["test"] == "welch"
            assert data["seeds"] and data["pool"] == len(data["seeds"])
            assert data["iqm"].keys() == {"base", "c2"}
            assert data["noise_floor"] > 0 and data["error_rate"] == 0.05
        assert (first["alpha"], first["decided_before"]) == (0.0025, 0)
        assert (second["alpha"], second["decided_before"]) == (0.05, 1)

    def test_a_later_contract_does_not_change_it(self, commands: Commands) -> None:
        accept(commands, "c2")
        text = pages.report(commands.study)
        row = next(line for line in text.splitlines() if line.startswith("| c2 | promotion"))
        commands.edit_contract(1.0)
        assert row in pages.report(commands.study)

    def test_the_report_needs_the_ledger_and_artifacts_alone(
        self, commands: Commands, tmp_path_factory
    ) -> None:
        accept(commands, "c2")
        accept(commands, "c3", gain=-40.0)
        study = commands.study
        study.sync()
        text, page = pages.report(study), pages.html_report(study)
        (study.path / "report.md").write_text(text)
        place = tmp_path_factory.mktemp("copy") / "there"
        shutil.copytree(study.root, place)
        copy = Study(place, "cartpole", "lr")
        for name in ("state.json", "report.md"):
            (copy.path / name).unlink()
        assert "Yes: c2 is better than" in text
        assert pages.report(copy) == text
        assert pages.html_report(copy) == page
