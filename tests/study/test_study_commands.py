"""`assay study ...` as a person or an agent types it: every command, and what it refuses."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_samples import POOLS, make_study
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.files.documents import ROOT
from assay.study.record.book import Attempt, Book
from assay.study.record.ledger import Ledger
from assay.study.record.opening import open_study
from assay.study.steps.agenda import steps_of

TRAIN = """\
import argparse, json, pathlib, random

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
score = 100 * args.lr + random.Random(f"{args.seed} {args.lr}").gauss(0, 0.5)
with open(args.out / "metrics.jsonl", "w") as file:
    for i in range(10):
        file.write(json.dumps({"step": i, "return": score * i / 9}) + "\\n")
"""
CANDIDATES = """\
- id: bigger
  kind: hyperparameter
  hypothesis: A larger step learns more.
  change: {parameters: {lr: 0.2}}
  budget: {wall_clock_hours: 0.01}
  expected: return rises by 10
  rollback: Set it back.
- id: smaller
  kind: hyperparameter
  hypothesis: A smaller step is more careful.
  change: {parameters: {lr: 0.05}}
  budget: {wall_clock_hours: 0.01}
  expected: return rises by 1
  rollback: Set it back.
"""


def study(*words: Any, code: int = 0) -> str:
    """Run a command in this process; return what it printed, errors included."""
    result = CliRunner().invoke(app, ["study", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def told(*words: Any, code: int = 0) -> Any:
    """Run a command with --json and return what it said."""
    result = CliRunner().invoke(app, ["study", *map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def commit(root: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=root, check=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that has never heard of Assay, with a contract that is filled in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_ACTOR", "tester")
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "train.py").write_text(TRAIN)
    commit(tmp_path)
    study("init", "--task", "toy", "--study", "lr")
    fill(tmp_path)
    return tmp_path


def place(root: Path) -> Path:
    return root / ROOT / "tasks/toy/studies/lr"


def fill(root: Path, **changes: Any) -> None:
    """Fill the contract in, with changes to its parts."""
    path = place(root) / "contract.yaml"
    values = yaml.safe_load(path.read_text())
    values["question"] = "Does a larger step learn more?"
    values["task"] |= {"description": "A score of 20.", "env": "Toy-v0"}
    values["metrics"]["primary"]["source"]["key"] = "return"
    values["scope"]["parameters"] = {"lr": {"kind": "float", "low": 0.01, "high": 1.0}}
    values["budget"] |= {"runs": 60, "parallel": 2}
    values["evaluation"] |= {"files": ["train.py"], "expected_candidates": 4, "pools": POOLS}
    values["experiment"] = {"mode": "supervised", "keep": 1.0}
    for part, change in changes.items():
        values[part] = values[part] | change
    path.write_text(yaml.safe_dump(values))


@pytest.mark.slow
def test_from_init_to_a_verdict(repository: Path) -> None:
    assert told("next")["action"] == "approve"
    assert "8 approvals" in study("next")
    assert told("contract", "check", code=2)["missing"].keys() >= {"task", "budget"}
    blocked = study("loop", "--execute", "--confirm", "RUN_CANDIDATE", code=2)
    assert "Nothing may be launched: 8 of 8 approvals are missing." in blocked
    assert "the baseline command is not approved" in blocked
    study("contract", "approve", "task", "metrics", "--by", "Ada")
    assert told("contract", "approve", "all", "--by", "Ada")["missing"] == {}
    assert "yes" in study("contract", "show")
    assert told("contract", "check")["valid"] is True

    assert told("next")["command"] == "assay study loop --execute --confirm RUN_CANDIDATE"
    assert told("baseline")["proposed"] is True
    assert told("baseline")["proposed"] is False
    (repository / "candidates.yaml").write_text(CANDIDATES)
    assert told("propose", "candidates.yaml")["proposed"] == ["bigger", "smaller"]
    assert list(told("validate")) == ["baseline", "bigger", "smaller"]

    seen = told("run", "baseline", "--phase", "promotion", "--seed", 1)
    assert seen["launched"] is False and seen["argv"][0] == sys.executable
    assert not (place(repository) / "runs").exists() or not list(place(repository).glob("runs/*"))
    wrong = study("run", "baseline", "--phase", "promotion", "--seed", 1, "--execute", "--confirm",
                  "YES", code=2)  # fmt: skip
    assert "assay study run baseline --phase promotion --seed 1" in wrong
    assert seen["token"] not in wrong
    alone = study("run", "baseline", "--seed", 1, "--execute", code=2)
    assert "Confirm it with the token" in alone
    done = told("run", "baseline", "--phase", "promotion", "--seed", 1, "--execute", "--confirm",
                seen["token"])  # fmt: skip
    assert done["outcome"] == "done" and done["metrics"]["return"] == pytest.approx(10, abs=3)
    out = place(repository) / "runs" / done["run"] / "out"
    assert told("metrics", "--out", out)[0]["value"] == done["metrics"]["return"]

    assert told("queue", "add", "baseline", "--phase", "promotion", "--seed", 2)["added"]
    waiting = told("queue", "step")
    assert waiting["next"]["seed"] == 2
    confirmed = ("--execute", "--confirm", waiting["token"])
    assert told("queue", "step", *confirmed)["outcome"] == "done"
    assert told("queue", "step", *confirmed) == {"launched": False}
    assert [item["state"] for item in told("queue", "status")] == ["done"]
    assert [step["phase"] for step in told("loop")["steps"]] == ["promotion", "validation"]

    ended = told("loop", "--execute", "--confirm", "RUN_CANDIDATE")
    assert ended["ended"] == "everything that was proposed is decided"
    assert ended["candidates"] == {
        "baseline": "completed", "bigger": "accepted", "smaller": "rejected",
    }  # fmt: skip
    assert "# Study toy/lr" in (place(repository) / "report.md").read_text()
    assert "<svg" in (place(repository) / "report.html").read_text()
    experiments = yaml.safe_load((place(repository) / "experiments.yaml").read_text())
    assert [e["state"] for e in experiments["experiments"]] == ["completed", "accepted", "rejected"]
    assert told("baseline")["seeds_needed"] is not None
    assert "With this noise you need" in study("baseline")
    status = told("status")
    assert status["incumbent"] == "bigger" and status["under_way"] == []
    assert status["budget"]["runs"] == [10 + 2 + 10 + 5, 60]
    assert "bigger" in study("status")
    assert told("verify") == {"toy/lr": []}
    assert told("verify", repository) == {"toy/lr": []}
    assert told("next")["action"] == "propose"
    assert told("monitor") == {} and "alive" not in study("monitor", "bigger-validation-11")
    assert told("discard", "bigger", "--why", "It is not wanted.")["status"] == "reverted"
    assert told("status")["incumbent"] == ""


def test_the_kill_switch(repository: Path) -> None:
    study("contract", "approve", "all", "--by", "Ada")
    study("baseline")
    study("validate")
    study("stop", "--reason", "lunch")
    assert told("next")["action"] == "wait"
    refused = study("run", "baseline", "--phase", "promotion", "--seed", 1, code=2)
    assert "The study is stopped: lunch." in refused and "stop --off" in refused
    study("stop", "--off")
    assert "kill switch is not on" in study("stop", "--off", code=2)
    study("run", "baseline", "--phase", "promotion", "--seed", 1)


def test_a_run_that_fails_exits_with_1(repository: Path) -> None:
    fill(repository, baseline={"command": ["no-such-program", "{seed}", "{parameters}"]})
    study("contract", "approve", "all", "--by", "Ada")
    study("baseline")
    study("validate")
    words = ("run", "baseline", "--phase", "promotion", "--seed", 1)
    failed = study(*words, "--execute", "--confirm", told(*words)["token"], code=1)
    assert "the command 'no-such-program' was not found" in failed


def test_a_probe_is_planned_and_its_values_are_drafts(repository: Path) -> None:
    study("contract", "approve", "all", "--by", "Ada")
    plan = {"id": "p", "parameter": "lr", "nominal": 0.1, "values": [0.05, 0.1, 0.2]}
    plan |= {"success": "return >= 4", "safety": "Nothing can break."}
    (repository / "plan.yaml").write_text(yaml.safe_dump(plan))
    assert told("probe", "plan", "plan.yaml", "--hours", 0.01)["proposed"] == ["p-1", "p-2", "p-3"]
    assert "has no finished run at lr" in study("probe", "summarise", "p", code=2)


def test_audit_writes_its_findings(repository: Path) -> None:
    seen = told("audit")
    assert [Path(path).name for path in seen["written"]] == ["adapter.yaml", "task_card.md"]
    assert "none" in study("audit")
    assert "Fill in" in study("contract", "new", "--force")
    assert "FILL IN" in (place(repository) / "contract.yaml").read_text()


def test_audit_without_a_study_writes_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    assert told("audit")["written"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


RETURNED = """\
import argparse
import gymnasium as gym

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
args = parser.parse_args()

def train(seed):
    env, episode_return = gym.make("CartPole-v1"), 0.0
    env.reset(seed=seed)
    for _ in range(100):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        episode_return += reward
    return {"episode_return": episode_return}

train(args.seed)
"""


def test_an_audited_metric_without_a_log_is_proposed_with_what_it_lacks(
    tmp_path: Path, monkeypatch
) -> None:
    """The table showed it, and the proposal of the JSON had no metric."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "train.py").write_text(RETURNED)
    (metric,) = told("audit")["proposal"]["metrics"]
    assert (metric["name"], metric["source"]) == ("episode_return", None)
    assert metric["unreadable"] == "no log that a run writes was found"
    assert "episode_return (no log that a run writes was found)" in study("audit")


class TestBadInput:
    """One clear message, exit code 2, and nothing is changed."""

    def refused(self, root: Path, *words: Any) -> str:
        before = {p: p.read_bytes() for p in (root / ROOT).rglob("*") if p.is_file()}
        said = study(*words, code=2)
        after = {p: p.read_bytes() for p in (root / ROOT).rglob("*") if p.is_file()}
        changed = [p.name for p in before | after if before.get(p) != after.get(p)]
        assert not changed, changed
        assert "Traceback" not in said
        return said

    def test_no_study(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert "assay study start" in study("next", code=2)
        assert "There is no study in" in study("verify", tmp_path, code=2)

    def test_malformed_yaml(self, repository: Path) -> None:
        path = place(repository) / "contract.yaml"
        path.write_text("study: lr\n  task: [\n")
        said = self.refused(repository, "contract", "check")
        assert "is malformed in line 2, column 7" in said

    @pytest.mark.parametrize(
        ("field", "value", "part"),
        [
            ("path", "<log dir>/metrics.jsonl", "<log dir>"),
            ("path", "path/to/metrics.jsonl", "path/to/"),
            ("path", "logs/TODO", "TODO"),
            ("path", "FILE.jsonl", "FILE"),
            ("key", "your_metric", "your_m"),
        ],
    )
    def test_a_metric_that_was_never_filled_in(
        self, repository: Path, field: str, value: str, part: str
    ) -> None:
        name = f"metrics.primary.source.{field}"
        study("contract", "set", f"{name}={value}")
        for words in (("check",), ("approve", "metrics", "--by", "Ada")):
            said = " ".join(self.refused(repository, "contract", *words).split())
            assert f"{name} is '{value}', where '{part}' stands for something to fill in." in said
            assert f"assay study contract set {name}=VALUE" in said

    def test_a_printed_metric_may_hold_any_pattern(self, repository: Path) -> None:
        source = "{kind: stdout, key: 'KEY (?P<value>[0-9.]+)'}"
        study("contract", "set", f"metrics.primary.source={source}")
        study("contract", "approve", "metrics", "--by", "Ada")

    def test_a_guardrail_that_was_never_filled_in(self, repository: Path) -> None:
        rail = "{name: falls, margin: 1, source: {kind: csv, path: PATH, key: falls}}"
        study("contract", "set", f"metrics.guardrails=[{rail}]")
        said = " ".join(self.refused(repository, "contract", "check").split())
        assert "metrics.guardrails[0].source.path is 'PATH'" in said
        assert "edit contract.yaml" in said

    def test_an_unknown_schema_version(self, repository: Path) -> None:
        path = place(repository) / "contract.yaml"
        path.write_text(path.read_text().replace("schema_version: 1", "schema_version: 7"))
        said = self.refused(repository, "status")
        assert "schema version 7" in said and "version of Assay that wrote it" in said

    def test_a_second_active_study(self, repository: Path) -> None:
        said = self.refused(repository, "init", "--task", "toy", "--study", "other")
        assert "toy/lr is the active study" in said and "--activate" in said

    def test_the_same_study_again(self, repository: Path) -> None:
        said = self.refused(repository, "init", "--task", "toy", "--study", "lr", "--activate")
        assert "There is a study toy/lr already." in said

    def test_a_candidate_of_another_study(self, repository: Path) -> None:
        (repository / "c.yaml").write_text(CANDIDATES.replace("- id", "- study: other\n  id", 1))
        said = self.refused(repository, "propose", "c.yaml")
        assert "is written for toy/other; expected toy/lr" in said

    def test_a_negative_budget(self, repository: Path) -> None:
        fill(repository, budget={"wall_clock_hours": -1})
        said = self.refused(repository, "contract", "check")
        assert "budget.wall_clock_hours=-1: input should be greater than 0" in said

    def test_a_metric_that_is_not_in_the_logs(self, repository: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/metrics.jsonl").write_text('{"loss": 1.0, "reward": 2.0}\n')
        [row] = told("metrics", "--out", tmp_path / "out", code=2)
        assert "loss" in row["error"] and "reward" in row["error"]

    def test_neither_file_nor_sampler(self, repository: Path) -> None:
        assert "a file, or --optuna, and only one" in self.refused(repository, "propose")
        assert "Cannot read 'gone.yaml'" in self.refused(repository, "propose", "gone.yaml")

    def test_an_unknown_part(self, repository: Path) -> None:
        said = self.refused(repository, "contract", "approve", "task", "metric", "--by", "Ada")
        assert "no part 'metric'" in said and "metrics" in said

    def test_an_unknown_candidate(self, repository: Path) -> None:
        said = self.refused(repository, "validate", "ghost")
        assert "There is no candidate 'ghost'" in said

    def test_a_candidate_out_of_scope(self, repository: Path) -> None:
        (repository / "c.yaml").write_text(CANDIDATES.replace("lr: 0.2", "lr: 5"))
        study("propose", "c.yaml")
        assert "lr=5 is out of scope" in self.refused(repository, "validate", "bigger")

    def test_a_dirty_tree(self, repository: Path) -> None:
        study("contract", "approve", "all", "--by", "Ada")
        study("baseline")
        study("validate")
        (repository / "other.py").write_text("x = 1\n")
        subprocess.run(["git", "add", "other.py"], cwd=repository, check=True)
        said = study("run", "baseline", "--phase", "promotion", "--seed", 1, code=2)
        assert "uncommitted changes (other.py)" in said and "Commit or stash them" in said
        assert "experiment.exceptions.dirty-tree=WHY" in said
        seen = told("next")
        assert (seen["action"], seen["command"]) == ("commit", "git status")
        assert "uncommitted changes (other.py)" in seen["reason"] and "stash" in seen["reason"]
        ended = study("loop", "--execute", "--confirm", "RUN_CANDIDATE", code=3)
        assert "Commit or stash them" in ended

    def test_a_patch_without_git(self, repository: Path) -> None:
        study("contract", "approve", "all", "--by", "Ada")
        patch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n+y\n"
        values = yaml.safe_load(CANDIDATES)[0] | {"change": {"patch": patch}}
        (repository / "c.yaml").write_text(yaml.safe_dump(values))
        study("propose", "c.yaml")
        (repository / ".git").rename(repository / "git-is-gone")
        said = study("validate", "bigger", code=2)
        assert "has no .git, and study toy/lr is recorded in Git" in said

    def test_a_disk_that_cannot_be_written(self, repository: Path, monkeypatch) -> None:
        def refuse(path: Path, data: bytes) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr("assay.study.files.documents.write_atomic", refuse)
        (repository / "c.yaml").write_text(CANDIDATES)
        said = study("propose", "c.yaml", code=2)
        assert "the file system is read-only" in said
        monkeypatch.undo()
        monkeypatch.chdir(repository)
        assert told("status")["candidates"] == {}

    def test_a_damaged_ledger(self, repository: Path) -> None:
        study("contract", "approve", "all", "--by", "Ada")
        ledger = place(repository) / "ledger.jsonl"
        ledger.write_bytes(ledger.read_bytes().replace(b"Ada", b"Eve", 1))
        seen = told("verify", code=1)
        assert "line " in seen["toy/lr"][0]
        study("verify", code=1)
        for words in (["status"], ["baseline"]):
            assert "is damaged in line 3" in self.refused(repository, *words)
        assert told("next")["action"] == "verify"


def test_no_command_imports_torch(tmp_path: Path) -> None:
    make_study(tmp_path)
    code = (
        "import sys\n"
        "from assay.cli import main\n"
        "try: main(['study', 'next', '--root', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "heavy = [n for n in ('torch', 'gymnasium', 'optuna', 'scipy') if n in sys.modules]\n"
        "print(heavy, file=sys.stderr)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_study_that_was_deleted_is_not_begun_again_unnoticed(repository: Path) -> None:
    shutil.rmtree(repository / ROOT)
    said = study("init", "--task", "toy", "--study", "lr", code=2)
    assert "There was a study toy/lr" in said
    assert "git update-ref -d refs/rlxp/toy/lr/ledger" in said
    assert not (repository / ROOT).exists()
    study("init", "--task", "toy", "--study", "second")


def test_a_clone_without_the_refs_is_anchored_again_by_a_person(repository: Path) -> None:
    study("contract", "approve", "all", "--by", "Ada")
    subprocess.run(["git", "update-ref", "-d", "refs/rlxp/toy/lr/ledger"], check=True)
    assert "which is gone" in told("verify", code=1)["toy/lr"][0]
    study("re-anchor", "--why", "It was cloned without refs/rlxp.", "--by", "Ada")
    assert told("verify") == {"toy/lr": []}


# ---------------------------------------------------------------------- bad input


def test_a_file_of_candidates_that_is_no_text(repository: Path) -> None:
    (repository / "c.yaml").write_bytes(b"id: caf\xe9\n")
    assert "'c.yaml' is not UTF-8 text" in study("propose", "c.yaml", code=2)
    (repository / "c.yaml").write_text("id: [")
    assert "'c.yaml' is malformed in line" in study("propose", "c.yaml", code=2)
    assert "Cannot read 'none.yaml'" in study("propose", "none.yaml", code=2)


@pytest.mark.parametrize("words", [("propose", "--optuna", 2), ("baseline",)])
@pytest.mark.parametrize("hours", [("--hours", -1), ("--hours", 0), ("--gpu-hours", -1)])
def test_hours_that_nobody_can_run(
    repository: Path, words: tuple[Any, ...], hours: tuple[Any, ...]
) -> None:
    extra = () if hours[0] == "--hours" else ("--hours", 0.001)
    said = study(*words, *hours, *extra, code=2)
    assert "what one run asks for" in said and "hours" in said


def test_an_id_that_is_too_long_for_its_runs(repository: Path) -> None:
    text = CANDIDATES.replace("id: bigger", f"id: {'b' * 75}")
    (repository / "c.yaml").write_text(text)
    assert "runs are named after it" in study("propose", "c.yaml", code=2)


def test_all_candidates_of_a_file_or_none(repository: Path) -> None:
    (repository / "c.yaml").write_text(CANDIDATES)
    study("propose", "c.yaml")
    more = yaml.safe_load(CANDIDATES)
    more[0]["id"] = "fresh"
    (repository / "more.yaml").write_text(yaml.safe_dump(more))
    assert "There is a candidate 'smaller' already" in study("propose", "more.yaml", code=2)
    assert "fresh" not in told("status")["candidates"]
    assert not (place(repository) / "candidates/fresh.yaml").exists()
    more[0]["study"] = "other"
    (repository / "more.yaml").write_text(yaml.safe_dump(more[:1]))
    assert "is written for toy/other; expected toy/lr" in study("propose", "more.yaml", code=2)


def test_many_candidates_are_written_in_one_go(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = yaml.safe_load(CANDIDATES)[0]
    many = [one | {"id": f"c{i}"} for i in range(40)]
    (repository / "many.yaml").write_text(yaml.safe_dump(many))
    reads = []
    events = Ledger.events
    monkeypatch.setattr(Ledger, "events", lambda self: reads.append(1) or events(self))
    study("propose", "many.yaml")
    assert len(reads) <= 3
    study("baseline")
    calls = []
    baselines = Book.baselines
    monkeypatch.setattr(Book, "baselines", lambda self: calls.append(1) or baselines(self))
    opened = open_study(repository)
    book, agreed = opened.book()[0], opened.contract()
    for phase, pool in (("promotion", "promotion"), ("validation", "validation")):
        seeds = getattr(agreed.evaluation.pools, pool)
        book.attempts.setdefault("baseline", []).extend(
            Attempt(f"b-{seed}", phase, seed, "done", "") for seed in seeds
        )
    book.status["baseline"] = "completed"
    assert len(steps_of(book, agreed)) == 40 and len(calls) <= 3


def test_a_reward_that_is_engineered_without_a_reflection(repository: Path) -> None:
    one = yaml.safe_load(CANDIDATES)[0] | {"kind": "reward-engineering", "why_none": "I say so"}
    (repository / "c.yaml").write_text(yaml.safe_dump(one))
    assert "builds on no reward reflection" in study("propose", "c.yaml", code=2)
    fill(repository, experiment={"exceptions": {"reward-reflection": "the reward is new"}})
    assert told("propose", "c.yaml")["proposed"] == ["bigger"]


@pytest.mark.parametrize("where", ["nowhere", "below", "empty"])
def test_a_place_that_is_no_git_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    root = tmp_path / "here"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "400")
    if where != "nowhere":
        subprocess.run(
            ["git", "init", "-q"], cwd=tmp_path if where == "below" else root, check=True
        )
    words = {
        "nowhere": "is in no Git repository",
        "below": "is not the top of its Git repository",
        "empty": "is a Git repository without a commit",
    }
    (warning,) = told("init", "--task", "toy", "--study", "lr")["warnings"]
    assert words[where] in warning and "patches are refused" in warning
    assert f"Warning: '{root}' {words[where]}" in study("init", "--study", "b", "--activate")
    (root / "train.py").write_text(TRAIN)
    fill(root)
    assert (
        words[where]
        in told("contract", "check", "--study", "lr", "--task", "toy", code=2)["warnings"][0]
    )
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-import argparse\n+import sys\n"
    one = yaml.safe_load(CANDIDATES)[0] | {"change": {"patch": patch}}
    (root / "c.yaml").write_text(yaml.safe_dump(one))
    at = ("--task", "toy", "--study", "lr")
    study("propose", "c.yaml", *at)
    if where != "empty":
        said = study("validate", "bigger", *at, code=2)
        assert "is not the top of a Git repository, and a patch needs one" in said


def test_a_repository_has_no_warnings(repository: Path) -> None:
    assert told("init", "--study", "b", "--activate")["warnings"] == []
    assert told("contract", "check", "--task", "toy", "--study", "lr", code=2)["warnings"] == []


def test_nothing_that_is_protected_is_said(repository: Path) -> None:
    fill(repository, evaluation={"files": []})
    (warning,) = told("contract", "check", code=2)["warnings"]
    assert warning.startswith("nothing is protected")
    fill(repository, evaluation={"files": [], "command": ["{python}", "train.py"]})
    said = study("contract", "check", code=2)
    assert "The evaluation command runs 'train.py', which is not in evaluation.files" in said


def test_help_says_what_is_so(repository: Path) -> None:
    assert "by default the working directory" in study("init", "--help")
    assert "confirms all that was approved" in study("loop", "--help")
    fill(repository)
    study("contract", "approve", "all", "--by", "Ada")
    token = "RUN_CANDIDATE:0123456789ab"
    assert "does not confirm a loop" in study("loop", "--execute", "--confirm", token, code=2)
