"""One launch path: what forbids a launch, and that no kill launches twice or loses anything."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from study_samples import ENOUGH, add, candidate_values, make_study

import assay.study
from assay.core.errors import AssayError
from assay.runs import git as asking
from assay.runs.git import git
from assay.study.agree.approvals import approve
from assay.study.files.candidate import Candidate
from assay.study.files.documents import ROOT, StudyError
from assay.study.record import kinds
from assay.study.record.book import losses
from assay.study.record.kinds import ENDED, EXITED, LAUNCHED, MEASURED, PREPARED
from assay.study.record.ledger import Writer
from assay.study.record.study import Study
from assay.study.run import launcher, planning, processes, recovery, supervisor, switch
from assay.study.steps import candidates


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path)


def launch(study: Study, name: str = "c1", seed: int = 0, **options) -> str:
    planned = launcher.launch(
        study, name, options.pop("phase", "short"), seed, confirm=None, actor="agent",
        **options,
    )  # fmt: skip
    return planned.run


def kinds_of(study: Study, run: str) -> list[str]:
    return [e.kind for e in study.ledger.events() if e.data.get("run") == run]


class TestLaunch:
    def test_from_plan_to_measurement(self, study: Study) -> None:
        run = launch(study)
        record = recovery.wait(study, run, 300)
        assert (record.outcome, record.exit_code, record.reason) == ("done", 0, "")
        assert record.metrics == {"return": 102.0, "hours": 1.0}
        assert record.commit and not record.dirty and record.host
        assert kinds_of(study, run) == [
            kinds.RESERVED, PREPARED, LAUNCHED, EXITED, kinds.SETTLED, MEASURED, ENDED,
        ]  # fmt: skip
        assert study.history().status["c1"] == "completed"
        used = study.history().usage
        assert used.runs == 1 and not used.open and 0 < used.wall_clock_hours < 0.05
        assert study.ledger.read().problems == []

    def test_locked_versions_are_those_of_the_commit(self, study: Study) -> None:
        first = git(study.root, "rev-parse", "HEAD").strip()
        for name in ("requirements.txt", "poetry.lock"):
            (study.root / name).write_text(f"of {name}\n")
        identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
        git(study.root, "add", "-A")
        git(study.root, *identity, "commit", "-qm", "Lock")
        (study.root / "uv.lock").write_text("which Git does not hold\n")
        head = git(study.root, "rev-parse", "HEAD").strip()
        found = [launcher._lock_of(study, base) for base in (first, head, "")]
        assert found == [None, "of poetry.lock\n", "which Git does not hold\n"]

    def test_git_is_asked_few_times(self, study: Study, monkeypatch) -> None:
        asked: list[str] = []

        def counting(command: list[str], **settings):
            asked.extend(command[:1])
            return subprocess.run(command, **settings)

        # Of the module alone: what it starts is counted, and nobody else's.
        stand_in = SimpleNamespace(run=counting, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(asking, "subprocess", stand_in)
        run = launcher.launch(study, "c1", "short", 0, confirm=None, actor="agent").run
        recovery.wait(study, run, 300)
        # The ledger's notes, the status, the commit, its files, and its locked versions.
        assert asked == ["git"] * 5

    def test_a_dry_run_starts_nothing_and_shows_the_token(self, study: Study) -> None:
        planned = planning.plan(study, "c1", "short", 0)
        assert planned.argv[1:3] == ("train.py", "0") and planned.argv[-1] == "lr=0.002"
        assert planned.token.startswith("RUN_CANDIDATE:")
        assert not any(e.kind == PREPARED for e in study.ledger.events())
        assert not (study.path / "runs").exists()

    @pytest.mark.parametrize("token", ["", "RUN", "yes", "RUN_CANDIDATE:0123456789ab"])
    def test_a_wrong_token_is_refused(self, study: Study, token: str) -> None:
        with pytest.raises(StudyError, match="does not confirm"):
            launcher.launch(study, "c1", "short", 0, confirm=token, actor="agent")
        assert study.history().usage.runs == 0

    def test_the_environment_is_what_was_agreed(self, study: Study, monkeypatch) -> None:
        monkeypatch.setenv("SECRET", "hunter2")
        run = launch(study)
        recovery.wait(study, run, 300)
        text = "".join(p.read_text() for p in (study.path / "runs" / run).glob("*.*"))
        assert "without secrets" in text and "hunter2" not in text

    def test_a_crash_is_a_failure_that_counts(self, study: Study) -> None:
        add(study, "c2", exit=3)
        record = recovery.wait(study, launch(study, "c2"), 300)
        assert (record.outcome, record.exit_code) == ("failed", 3)
        assert study.history().status["c2"] == "debug"
        assert study.history().usage.runs == 1
        assert launch(study, "c2") == "c2-short-0-2"  # another attempt, another run

    def test_a_command_that_is_not_there(self, study: Study) -> None:
        change_contract(
            study, lambda v: v["baseline"].update(command=["nowhere", "{seed}", "{parameters}"])
        )
        approve(study, "baseline", "ada")
        record = recovery.wait(study, launch(study), 300)
        assert (record.outcome, record.reason) == ("failed", "the command 'nowhere' was not found")

    def test_a_metric_that_is_not_there_fails_the_run_and_names_those_that_are(self, study) -> None:
        source = {"kind": "jsonl", "path": "metrics.jsonl", "key": "eval/retrun_mean"}
        change_contract(study, lambda v: v["metrics"]["primary"].update(source=source))
        approve(study, "metrics", "ada")
        add(study, "c3", lr=0.003)
        record = recovery.wait(study, launch(study, "c3"), 300)
        assert record.outcome == "failed"
        assert "'eval/retrun_mean' is not in 'metrics.jsonl'" in record.reason

    def test_a_patch_runs_in_its_own_tree(self, study: Study) -> None:
        (study.root / "src/agent.py").write_text("LR = 2\n")
        patch = subprocess.run(
            ["git", "diff"], cwd=study.root, capture_output=True, text=True, check=True
        ).stdout
        subprocess.run(["git", "checkout", "-q", "."], cwd=study.root, check=True)
        values = candidate_values(id="p1", change={"patch": patch})
        candidates.propose(study, Candidate(**values), "agent")
        candidates.validate(study, "p1", "agent")
        record = recovery.wait(study, launch(study, "p1"), 300)
        assert record.outcome == "done", record.reason
        assert (study.root / "src/agent.py").read_text() == "LR = 1\n"


def change_contract(study: Study, change) -> None:
    values = yaml.safe_load(study.contract_path.read_text())
    change(values)
    study.contract_path.write_text(yaml.safe_dump(values, sort_keys=False))


def edit_candidate(study: Study) -> None:
    path = study.candidate_path("c1")
    path.write_text(path.read_text().replace("0.002", "0.003"))


def edit_ledger(study: Study) -> None:
    text = study.ledger.path.read_text()
    study.ledger.path.write_text(text.replace('"by":"ada"', '"by":"eve"', 1))


def use_a_seed(study: Study) -> None:
    recovery.wait(study, launch(study), 300)


ATTACKS = {
    "edits its hypothesis or change after registration": (edit_candidate, "would be void"),
    "edits the evaluation file": (
        lambda s: (s.root / "train.py").open("a").write("# easier\n"),
        "would be void|uncommitted changes",
    ),
    "edits and commits the evaluation file": (
        lambda s: [
            (s.root / "train.py").open("a").write("# easier\n"),
            subprocess.run(
                ["git", "-c", "user.name=t", "-c", "user.email=t", "commit", "-qam", "x"],
                cwd=s.root,
                check=True,
            ),
        ],
        "would be void",
    ),
    "edits the ledger": (edit_ledger, "ledger .* is damaged"),
    "raises the budget after approval": (
        lambda s: change_contract(s, lambda v: v["budget"].update(runs=4000)),
        "budget: .* was changed after ada approved it",
    ),
    "points the command at another script": (
        lambda s: change_contract(s, lambda v: v["baseline"].update(command=["evil", "{seed}"])),
        "baseline: .* was changed after ada approved it",
    ),
    "changes the metric extractor": (
        lambda s: [
            (s.root / ROOT / "shared/metric_extractors").mkdir(parents=True),
            (s.root / ROOT / "shared/metric_extractors/better.py").touch(),
        ],
        "would be void",
    ),
    "changes its seeds": (
        lambda s: change_contract(s, lambda v: v["evaluation"]["pools"].update(development=[0, 7])),
        "evaluation: .* was changed",
    ),
    "forges an approval": (
        lambda s: change_contract(s, lambda v: v["approvals"]["task"].update(by="grace")),
        "not the last one in the ledger",
    ),
    "reuses a good seed": (use_a_seed, "a seed is not run again"),
    "is stopped": (lambda s: switch.stop(s, "too hot", "ada"), "too hot"),
    "replaces the evaluation file by a link": (
        lambda s: [
            (s.root / "train.py").rename(s.root / "other.py"),
            (s.root / "train.py").symlink_to("other.py"),
        ],
        "would be void|uncommitted",
    ),
    "has uncommitted changes elsewhere": (
        lambda s: (s.root / "src/agent.py").write_text("LR = 9\n"),
        "uncommitted changes",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_agent_is_refused_by_name(study: Study, attack: str) -> None:
    act, reason = ATTACKS[attack]
    act(study)
    before = study.history().usage if "ledger" not in attack else None
    with pytest.raises(AssayError, match=f"(?s){reason}"):
        launch(study)
    if before is not None:
        assert study.history().usage == before


def test_deleting_bad_runs_does_not_delete_them_from_the_ledger(study: Study) -> None:
    import shutil

    run = launch(study)
    recovery.wait(study, run, 300)
    shutil.rmtree(study.path / "runs" / run)
    with pytest.raises(StudyError, match="a seed is not run again"):
        launch(study)


def test_a_seed_outside_the_pool(study: Study) -> None:
    with pytest.raises(StudyError, match="Seed 1 is not in the development pool"):
        launch(study, seed=1)
    with pytest.raises(StudyError, match="Seed 0 is not in the promotion pool"):
        launch(study, seed=0, phase="promotion")


def test_a_parameter_out_of_scope_is_refused_when_validated(study: Study) -> None:
    for change, reason in (
        ({"lr": 5.0}, "expected 0.0001 to 0.01"),
        ({"width": 3}, "not in the"),
        ({"lr": "0.001 --out elsewhere"}, "expected a number"),
    ):
        name = f"x{len(study.history().status)}"
        values = candidate_values(id=name, change={"parameters": change})
        candidates.propose(study, Candidate(**values), "agent")
        with pytest.raises(StudyError, match=reason):
            candidates.validate(study, name, "agent")
        assert study.history().status[name] == "draft"
        with pytest.raises(StudyError, match="is draft"):
            launch(study, name)


class TestStopping:
    def test_the_kill_switch_ends_a_run_and_its_children(self, study: Study) -> None:
        add(study, "slow", sleep=300)
        run = launch(study, "slow")
        wait_for(lambda: LAUNCHED in kinds_of(study, run))
        pid = next(e.data["pid"] for e in study.ledger.events() if e.kind == LAUNCHED)
        switch.stop(study, "enough", "ada")
        record = recovery.wait(study, run, 300)
        assert record.outcome == "lost" and record.reason.startswith(kinds.SWITCHED)
        assert not alive(pid)
        with pytest.raises(StudyError, match="enough"):
            launch(study)

    @pytest.mark.parametrize(
        ("sign", "outcome", "reason"),
        [
            (signal.SIGKILL, "lost", "it was killed by SIGKILL, which Assay did not send"),
            (signal.SIGTERM, "lost", "it was killed by SIGTERM, which Assay did not send"),
            (signal.SIGSEGV, "failed", "it exited with -11"),
        ],
    )
    def test_a_signal_from_outside_is_no_failure_of_the_candidate(
        self, study: Study, sign: signal.Signals, outcome: str, reason: str
    ) -> None:
        add(study, "slow", sleep=300)
        run = launch(study, "slow", seed=1, phase="promotion")
        wait_for(lambda: LAUNCHED in kinds_of(study, run))
        pid = next(e.data["pid"] for e in study.ledger.events() if e.kind == LAUNCHED)
        os.kill(pid, sign)
        record = recovery.wait(study, run, 300)
        assert record.outcome == outcome and record.reason.startswith(reason)
        history = study.history()
        again = outcome == "lost"
        assert (1 in history.left(study.contract(), "slow", "promotion")) == again
        assert len(losses(history.over("slow", "promotion"))) == int(again)

    def test_a_decided_candidate_is_not_sent_to_be_validated(self, study: Study) -> None:
        candidates.discard(study, "c1", "ada", "enough")
        for refused in (lambda: launch(study), lambda: candidates.validate(study, "c1", "ada")):
            with pytest.raises(StudyError, match="It is decided, and that is final"):
                refused()

    def test_an_overrun_is_ended(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, stop={"overrun": 1.01})
        values = candidate_values(id="slow", change={"parameters": {"sleep": 300}})
        values["budget"] = {"wall_clock_hours": 0.5 / 3600}
        candidates.propose(study, Candidate(**values), "agent")
        candidates.validate(study, "slow", "agent")
        record = recovery.wait(study, launch(study, "slow"), 300)
        assert record.outcome == "killed" and "ran longer than" in record.reason, record
        assert "1.01 times its request of 0.5 s (its share of budget.wall_clock_h" in record.reason

    def test_silence_is_ended(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, stop={"frozen_minutes": 0.02})
        add(study, "slow", sleep=300)
        record = recovery.wait(study, launch(study, "slow"), 300)
        assert record.outcome == "killed" and "has written nothing" in record.reason


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def die_at(step: str):
    """Return a hook that kills its own process at a step."""

    def hook(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def killed_launcher(root: str, step: str) -> None:
    launch(Study(Path(root), "cartpole", "lr"), between=die_at(step))


def killed_supervisor(root: str, run: str, step: str) -> None:
    supervisor.supervise(Study(Path(root), "cartpole", "lr"), run, between=die_at(step))


def killed_after_events(root: str, run: str, count: str) -> None:
    """Launch, or supervise, and be killed as soon as so many events are on record."""
    append, left = Writer.append, [int(count)]

    def counted(self, *args, **kwargs):
        event = append(self, *args, **kwargs)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return event

    Writer.append = counted
    study = Study(Path(root), "cartpole", "lr")
    supervisor.supervise(study, run) if run else launch(study)


def in_child(function, *args: str) -> int:
    child = multiprocessing.get_context("fork").Process(target=function, args=args)
    child.start()
    child.join()
    return int(child.exitcode or 0)


def starts(study: Study, run: str) -> int:
    """Count how often the training of a run began; each writes one character."""
    path = study.path / "runs" / run / "out" / "starts"
    return len(path.read_text()) if path.exists() else 0


def consistent(study: Study, run: str, *, started: int | None) -> None:
    """Check that the books of a run that is over agree with what happened.

    A training that was killed as it was launched may have begun or not: started=None.
    """
    assert starts(study, run) in ((0, 1) if started is None else (started,))
    seen = kinds_of(study, run)
    for kind in (PREPARED, ENDED, MEASURED, kinds.RESERVED, kinds.SETTLED):
        assert seen.count(kind) == 1, (kind, seen)
    assert seen.count(LAUNCHED) <= 1
    assert study.history().usage.open == ()
    assert study.ledger.read().problems == []


class TestKill:
    """kill -9 at every step of a launch."""

    @pytest.mark.parametrize("step", ["recorded", "prepared", "started"])
    def test_the_launcher(self, study: Study, monkeypatch, step: str) -> None:
        monkeypatch.setattr(recovery, "START_SECONDS", 0.0 if step != "started" else 300.0)
        assert in_child(killed_launcher, str(study.root), step) == -signal.SIGKILL
        run = "c1-short-0"
        if step == "recorded":  # nothing is on record: the launch can simply be made again
            assert kinds_of(study, run) == []
            monkeypatch.setattr(recovery, "START_SECONDS", 300.0)
            assert recovery.wait(study, launch(study), 300).outcome == "done"
            consistent(study, run, started=1)
        elif step == "prepared":
            assert recovery.recover(study) == [run]
            assert study.run(run).outcome == "lost"
            consistent(study, run, started=0)
            # A supervisor that comes late finds the run taken.
            supervisor.supervise(study, run)
            consistent(study, run, started=0)
            monkeypatch.setattr(recovery, "START_SECONDS", 300.0)
            again = launch(study)
            assert again == "c1-short-0-2"
            assert recovery.wait(study, again, 300).outcome == "done"
        else:  # the supervisor goes on alone
            wait_for(lambda: ENDED in kinds_of(study, run))
            assert study.run(run).outcome == "done"
            consistent(study, run, started=1)

    def test_a_claim_is_whole_as_soon_as_it_is_there(self, study: Study, monkeypatch) -> None:
        place = study.path / "runs" / "r"
        place.mkdir(parents=True)
        link = os.link

        def looked(source, target) -> None:
            assert json.loads(Path(source).read_bytes())["pid"] == os.getpid()
            assert not Path(target).exists()
            link(source, target)

        monkeypatch.setattr(os, "link", looked)
        assert processes.claim(place, "supervisor") and processes.supervised(place)
        monkeypatch.undo()
        assert not processes.claim(place, "supervisor")
        assert [path.name for path in place.iterdir()] == ["claim.json"]

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_the_launcher_between_two_events(self, study: Study, monkeypatch, count: int) -> None:
        assert in_child(killed_after_events, str(study.root), "", str(count)) == -signal.SIGKILL
        monkeypatch.setattr(recovery, "START_SECONDS", 0.0)
        recovery.recover(study)
        assert study.history().usage.open == ()
        monkeypatch.undo()
        assert recovery.wait(study, launch(study), 300).outcome == "done"
        assert study.history().status["c1"] == "completed"

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
    def test_the_supervisor_between_two_events(self, study: Study, monkeypatch, count: int) -> None:
        monkeypatch.setattr(supervisor, "start", lambda *words: None)
        run = launch(study)
        assert in_child(killed_after_events, str(study.root), run, str(count)) == -signal.SIGKILL
        recovery.recover(study)
        consistent(study, run, started=1 if count > 1 else None)
        lost = study.run(run).outcome == "lost"
        assert lost == (count == 1)
        status = study.history().status["c1"]
        assert status == ("debug" if lost else "completed")
        assert recovery.recover(study) == []

    @pytest.mark.parametrize("step", ["claimed", "running", "launched", "exited", "finished"])
    def test_the_supervisor(self, study: Study, monkeypatch, step: str) -> None:
        add(study, "slow", sleep=1)
        monkeypatch.setattr(supervisor, "start", lambda *words: None)
        run = launch(study, "slow")
        assert in_child(killed_supervisor, str(study.root), run, step) == -signal.SIGKILL
        recovery.recover(study)
        record = study.run(run)
        ended = step in ("exited", "finished")
        assert record.outcome == ("done" if ended else "lost")
        consistent(study, run, started=1 if ended else None)
        pids = [e.data["pid"] for e in study.ledger.events() if e.kind == LAUNCHED]
        assert not [pid for pid in pids if alive(pid)]
        assert recovery.recover(study) == []

    def test_a_run_that_is_under_way_is_left_alone(self, study: Study) -> None:
        add(study, "slow", sleep=300)
        run = launch(study, "slow")
        wait_for(lambda: LAUNCHED in kinds_of(study, run))
        assert recovery.recover(study) == []
        with pytest.raises(StudyError, match="under way"):
            launch(study, "slow")
        (study.path / "runs" / run / ENOUGH).touch()
        assert recovery.wait(study, run, 300).outcome == "done"
        consistent(study, run, started=1)

    def test_two_supervisors_start_one_process(self, study: Study, monkeypatch) -> None:
        monkeypatch.setattr(supervisor, "start", lambda *words: None)
        run = launch(study)
        context = multiprocessing.get_context("fork")
        both = [
            context.Process(target=killed_supervisor, args=(str(study.root), run, "never"))
            for _ in range(2)
        ]
        for child in both:
            child.start()
        for child in both:
            child.join()
        consistent(study, run, started=1)


STARTS = {
    "subprocess", "multiprocessing", "pty", "asyncio", "concurrent", "runpy", "socket", "urllib",
    "http", "requests",
}  # fmt: skip
STARTING = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}


def test_only_the_runner_can_start_a_process() -> None:
    for path in Path(assay.study.__path__[0]).rglob("*.py"):
        if path.name == "supervisor.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            assert not STARTS & set(names), (path.name, names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                started = node.value.id == "os" and (
                    node.attr in STARTING or node.attr.startswith(("exec", "spawn"))
                )
                assert not started, (path.name, node.attr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path.name


def test_plan_uses_the_interpreter_of_this_environment(study: Study) -> None:
    assert planning.plan(study, "c1", "short", 0).argv[0] == sys.executable
    assert json.dumps(planning.plan(study, "c1", "short", 0).env)
