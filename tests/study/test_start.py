"""From a foreign script to a filled contract, and from the contract to an answer, without YAML."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_samples import make_study
from test_extractors import history, wandb_bytes
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.agree.setup import assign
from assay.study.files.contract import Contract, Metric, MetricSource
from assay.study.files.documents import StudyError
from assay.study.measure.discover import discover
from assay.study.measure.extractors import extract
from assay.study.record.opening import open_study
from assay.study.repo.proposal import ProposedParameter
from assay.study.report.standings import answer, standings
from assay.study.run import launcher, planning, recovery
from assay.study.steps import candidates
from assay.study.steps.start import bounds

SCRIPT = '''"""Learn something quickly."""
import argparse, csv, json, sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--random-seed", type=int, default=1)
parser.add_argument("--log-dir", default="runs")
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--total-timesteps", type=int, default=100)
args = parser.parse_args()


def policy(observation):
    """Return the action of the agent."""
    return observation


out = Path(args.log_dir)
out.mkdir(parents=True, exist_ok=True)
with open(out / "progress.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["global_step", "episode_return", "loss"])
    for step in range(5):
        log.writerow([step, 10.0 * step * args.lr + args.random_seed % 3, 1.0 / (1 + step)])
{evaluation}
'''
EVALUATION = (
    "(out / 'eval.json').write_text("
    "json.dumps({'eval_return': 100 * args.lr + args.random_seed % 5, 'seconds': 3}))"
)


def repository(root: Path, evaluation: str = EVALUATION) -> Path:
    (root / "train.py").write_text(SCRIPT.replace("{evaluation}", evaluation))
    (root / "README.md").write_text("Train an agent:\n\n```\npython train.py --lr 0.1\n```\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


def study(root: Path, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["study", *words, "--root", str(root)])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output if code else result.stdout


def start(root: Path, *words: str, code: int = 0) -> str:
    fixed = ("train.py", "--task", "t", "--execute", "--confirm", "RUN_ONCE")
    return study(root, "start", *fixed, *words, code=code)


def test_the_contract_is_filled_in_from_the_audit_and_one_run(tmp_path: Path) -> None:
    root = repository(tmp_path)
    facts = json.loads(start(root, "--json", "--minimum-effect", "0.5"))
    agreed = open_study(root).contract()
    assert agreed.baseline.command == (
        "{python}", "train.py", "--lr", "0.1", "--random-seed", "{seed}", "--log-dir", "{out}",
        "{parameters}",
    )  # fmt: skip
    assert agreed.metrics.primary.source == MetricSource(
        kind="json", path="eval.json", key="eval_return"
    )
    assert agreed.metrics.primary.minimum_effect == 0.5
    assert agreed.metrics.training_reward is not None
    assert agreed.metrics.training_reward.source.key == "episode_return"
    assert agreed.metrics.training_reward.source.step == "global_step"
    assert agreed.task.env == "CartPole-v1"
    assert set(agreed.scope.parameters) == {"lr", "gamma"}  # a longer run is another task
    assert agreed.evaluation.files == ("train.py",)
    assert agreed.experiment.mode == "supervised"
    runs = 20 * 4 + 3
    assert agreed.budget.runs >= runs
    assert agreed.budget.wall_clock_hours * 3600 >= runs * facts["trial"]["seconds"] * 1.9
    assert {row["field"] for row in facts["decide"]} >= {
        "question", "baseline.command", "scope.parameters", "metrics.primary.source",
    }  # fmt: skip
    assert (root / "train.py").exists() and not (root / "runs").exists()


def test_nothing_runs_without_both_words(tmp_path: Path) -> None:
    root = repository(tmp_path)
    for words in (["--execute"], ["--confirm", "RUN_ONCE"], ["--execute", "--confirm", "yes"]):
        assert "belong together" in study(root, "start", "train.py", "--task", "t", *words, code=2)
    study(root, "start", "train.py", "--task", "t")
    place = open_study(root)
    assert not (place.path / "trial").exists()
    assert "study.tried" not in [event.kind for event in place.ledger.events()]
    start(root)  # a study that was only started is filled in again
    kinds = [event.kind for event in place.ledger.events()]
    assert (kinds.count("study.created"), kinds.count("study.tried")) == (1, 1)


def test_a_trial_that_fails_shows_its_log(tmp_path: Path) -> None:
    root = repository(tmp_path, "raise SystemExit('no such simulator')")
    text = start(root, code=2)
    assert "exited with 1" in text and "| no such simulator" in text and "stdout.log" in text
    assert open_study(root).contract_path.exists()


def test_the_repository_may_have_an_interpreter_of_its_own(tmp_path: Path) -> None:
    root = repository(tmp_path)
    for words in (["--execute", "--confirm", "RUN_ONCE"], []):
        for python in ("no-python", "/no/such/python"):
            said = study(root, "start", "train.py", "--python", python, *words, code=2)
            assert f"--python: the interpreter '{python}' was not found." in said
    assert not (root / ".rlxp").exists()
    start(root, "--python", sys.executable)
    assert open_study(root).contract().baseline.command[0] == sys.executable
    study(root, "contract", "set", "baseline.command=/no/such/python train.py {seed} {parameters}")
    said = study(root, "contract", "check", code=2)
    assert "'/no/such/python', which baseline.command starts, was not found" in said


def test_ranges_follow_the_declared_type_and_the_value_of_the_study(tmp_path: Path) -> None:
    root = repository(tmp_path)
    path = root / "train.py"
    options = (
        'parser.add_argument("--start-e", type=float, default=1)\n'
        'parser.add_argument("--end-e", type=float, default=0.05)\n'
        'parser.add_argument("--exploration-fraction", type=float, default=0.5)\n'
        'parser.add_argument("--batch-size", type=int, default=128)\n'
        "args = parser"
    )
    path.write_text(path.read_text().replace("args = parser", options))
    facts = json.loads(
        study(root, "start", "train.py", "--task", "t", "--json", "--set", "batch_size=16",
              "--set", "lr=3.0", "--set", "nonsense=3")
    )  # fmt: skip
    values = yaml.safe_load(open_study(root).contract_path.read_text())
    scope = values["scope"]["parameters"]
    share = {"kind": "float", "low": 0.0, "high": 1.0}
    assert scope["start-e"] == scope["end-e"] == scope["exploration-fraction"] == share
    assert scope["batch-size"] == {"kind": "int", "low": 2, "high": 128}
    assert (scope["lr"]["low"], scope["lr"]["high"]) == (0.1, 90.0)
    assert values["baseline"]["parameters"] == {"batch-size": 16, "lr": 3.0, "nonsense": 3}
    (odd,) = [warning for warning in facts["warnings"] if warning.startswith("--set")]
    assert odd.startswith("--set nonsense: the audit read no such option of the script. Known: ")


def test_an_option_that_the_script_does_not_take(tmp_path: Path) -> None:
    text = start(repository(tmp_path), "--set", "nonsense=3", code=2)
    assert "The script does not take one of the options: look at --set" in " ".join(text.split())


def test_a_trial_that_takes_too_long_is_stopped_and_what_it_wrote_is_used(tmp_path: Path) -> None:
    root = repository(tmp_path, "import time; time.sleep(60)")
    text = start(root, "--minutes", "0.05", code=2)
    assert "did not end within 0.05 minutes" in text and "--set total-timesteps=2000" in text
    assert open_study(root).contract().metrics.primary.source.key == "episode_return"


def test_a_trial_of_a_contract_that_was_filled_in_keeps_what_was_changed(tmp_path: Path) -> None:
    root = repository(tmp_path)
    study(root, "start", "train.py", "--task", "t", "--study", "s")
    study(root, "contract", "set", "evaluation.alpha=0.1", "hardware.gpu_model=none")
    study(root, "propose", "--set", "lr=0.5", "--hypothesis", "It learns faster.")
    text = study(root, "start", "--execute", "--confirm", "RUN_ONCE", "--set", "gamma=0.9")
    assert "The trial run took" in text
    agreed = open_study(root).contract()
    assert (agreed.evaluation.alpha, agreed.baseline.parameters) == (0.1, {"gamma": 0.9})
    assert agreed.metrics.primary.source.key == "eval_return"


@pytest.mark.parametrize(
    "text",
    [
        "{python} train.py --random-seed {seed} --log-dir {out}",
        "[{python}, train.py, --random-seed, {seed}, --log-dir, {out}]",
    ],
)
def test_a_command_is_set_as_people_type_it(tmp_path: Path, text: str) -> None:
    root = repository(tmp_path)
    study(root, "start", "train.py", "--task", "t")
    study(root, "contract", "set", f"baseline.command={text}")
    words = ("{python}", "train.py", "--random-seed", "{seed}", "--log-dir", "{out}")
    assert open_study(root).contract().baseline.command == words


def test_a_curve_alone_is_the_training_reward(tmp_path: Path) -> None:
    root = repository(tmp_path, "")
    facts = json.loads(start(root, "--json"))
    primary = open_study(root).contract().metrics.primary
    assert primary.training_reward and primary.why_training_reward
    assert (primary.source.key, primary.source.reduce) == ("episode_return", "tail-mean")
    assert "metrics.primary.training_reward" in {row["field"] for row in facts["decide"]}


def test_episodes_that_nobody_named_are_not_on_record(tmp_path: Path) -> None:
    root = repository(tmp_path, "")
    facts = json.loads(start(root, "--json"))
    assert open_study(root).contract().evaluation.episodes is None
    assert "evaluation.episodes" in {row["field"] for row in facts["decide"]}
    study(root, "report")
    report = (open_study(root).path / "report.md").read_text()
    assert "no evaluation apart from training" in report and "episodes per seed" not in report
    study(root, "contract", "set", "evaluation.episodes=7")
    study(root, "report")
    assert "7 episodes per seed" in (open_study(root).path / "report.md").read_text()


def test_a_command_that_needs_episodes_asks_for_them(tmp_path: Path) -> None:
    root = repository(tmp_path)
    start(root)
    study(root, "contract", "set", "evaluation.files=[train.py]",
          "evaluation.command=[python, train.py, --n, '{episodes}']")  # fmt: skip
    made = open_study(root)
    with pytest.raises(StudyError, match=r"has {episodes}, and evaluation.episodes is empty"):
        planning._filled(made.contract().evaluation.command, "evaluation", 0, root, made.contract())


def test_five_commands_from_a_script_to_an_answer(tmp_path: Path) -> None:
    root = repository(tmp_path)
    start(root, "--minimum-effect", "5", "--candidates", "1", "--seeds", "5")
    study(root, "propose", "--set", "lr=0.5", "--hypothesis", "It learns faster.")
    study(root, "contract", "approve", "all", "--by", "Ada")
    study(root, "loop", "--execute", "--confirm", "RUN_CANDIDATE")
    text = study(root, "status")
    assert "Yes: lr-0.5 is better than baseline. eval_return is 52.0" in text.replace("\n", " ")
    report = (open_study(root).path / "report.md").read_text()
    assert report.index("Yes: lr-0.5 is better") < report.index("## Verdicts")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"evaluation.alfa": 0.1}, "'alfa' is not a field of evaluation.*alpha"),
        ({"evaluation.alpha": 3}, "alpha"),
        ({"approvals.task": {}}, "cannot be set"),
        ({"question.text": "x"}, "which has no fields"),
        ({"nonsense": 1}, "not a field of the contract"),
    ],
)
def test_a_field_that_does_not_fit_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    made = make_study(tmp_path)
    before = made.contract_path.read_text()
    with pytest.raises(StudyError, match=f"(?s){reason}"):
        assign(made, fields)
    assert made.contract_path.read_text() == before


def test_fields_are_set_and_their_part_needs_a_new_approval(tmp_path: Path) -> None:
    made = make_study(tmp_path)
    fields = {"scope.parameters.batch": {"kind": "int", "low": 1, "high": 9}, "task.env": "Ant-v5"}
    assert assign(made, fields) == ""
    agreed = made.contract()
    assert agreed.scope.parameters["batch"].high == 9 and agreed.task.env == "Ant-v5"
    text = study(tmp_path, "contract", "check", code=2)
    assert "the tuning scope was changed" in text and "the task definition was changed" in text
    assert assign(made, {"scope.parameters.batch": None}) == ""
    assert "batch" not in made.contract().scope.parameters


def test_all_that_is_to_be_filled_in_is_named_at_once(tmp_path: Path) -> None:
    study(tmp_path, "init", "--task", "t")
    made = open_study(tmp_path)
    lack = assign(made, {"question": "Is it better?"})
    assert "task.description, task.env, metrics.primary.source.key" in lack
    text = study(tmp_path, "status")  # works before the contract is complete
    assert "still to be filled in: task.description" in text.replace("\n", " ")
    values = yaml.safe_load(made.contract_path.read_text().replace("FILL IN", "Said"))
    assert Contract(**values).question == "Is it better?"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--set", "lr=0.003"], "needs a hypothesis"),
        ([], "only one of them"),
        (["--set", "lr=0.003", "--optuna", "2"], "only one of them"),
        (["--optuna", "2", "--name", "x"], "describe the change"),
        (["--patch", "nowhere.diff", "--hypothesis", "x"], "cannot be read"),
        (["--set", "lr", "--hypothesis", "x"], "is not a setting"),
        (["--set", "lr=5", "--hypothesis", "x"], "expected 0.0001 to 0.01"),
        (["--set", "width=5", "--hypothesis", "x"], "not in the"),
    ],
)
def test_a_change_that_is_not_one(tmp_path: Path, words: list[str], reason: str) -> None:
    made = make_study(tmp_path)
    assert reason in study(tmp_path, "propose", *words, code=2)
    assert list(made.history().status) == ["c1"]


def test_changes_are_named_after_what_they_change(tmp_path: Path) -> None:
    made = make_study(tmp_path)
    for _ in range(2):
        study(tmp_path, "propose", "--set", "lr=0.003", "--hypothesis", "It learns faster.")
    assert list(made.history().status) == ["c1", "lr-0.003", "lr-0.003-2"]
    assert made.candidate("lr-0.003").change.parameters == {"lr": 0.003}


@pytest.mark.parametrize("kind", ["int", "float"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_there_is_no_range_around_what_is_not_finite(kind: str, value: float) -> None:
    assert bounds(ProposedParameter(name="clip", kind=kind), value) is None


class TestDiscover:
    def test_every_format_is_found_where_it_can_be_read_again(self, tmp_path: Path) -> None:
        run = tmp_path / "ppo__1__1731741234"
        run.mkdir()
        (run / "progress.csv").write_text("step,return\n1,2.5\n2,3.5\n")
        (run / "result_20261116-080910.json").write_text('{"a": {"score": 7}, "name": "x"}')
        (run / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
        (run / "model.pt").write_bytes(b"\0\1")
        found = {w.source.key: w for w in discover(tmp_path, tmp_path / "none")}
        assert set(found) == {"return", "a.score", "loss"}
        curve = found["return"]
        assert (curve.source.path, curve.source.step) == ("**/progress.csv", "step")
        assert curve.values == (2.5, 3.5)
        assert found["a.score"].source.path == "**/result_*.json"

    def test_a_run_of_wandb_has_another_name_each_time(self, tmp_path: Path) -> None:
        place = tmp_path / "wandb/offline-run-20261118_175122-9mp9s8n6"
        place.mkdir(parents=True)
        row = history({"eval/return": 3.5})
        (place / "run-9mp9s8n6.wandb").write_bytes(wandb_bytes([row]))
        (found,) = discover(tmp_path, tmp_path / "none")
        assert (found.source.path, found.values) == ("**/*.wandb", (3.5,))

    def test_a_directory_that_is_named_by_its_seed(self, tmp_path: Path) -> None:
        """Such as CleanRL's, beside the one that TensorBoard's hyperparameters make."""
        for place in ("Toy-v1__train__0__1795024491", "Toy-v1__train__0__1795024491/1795024499.1"):
            (tmp_path / "runs" / place).mkdir(parents=True)
            (tmp_path / "runs" / place / "log.csv").write_text("return\n1\n")
        (first, second) = (w.source.path for w in discover(tmp_path, tmp_path / "none"))
        assert first == "runs/Toy-v*__train__*__*/*.*/log.csv"
        assert second == "runs/Toy-v*__train__*__*/log.csv"

    def test_directories_that_numbers_tell_apart(self, tmp_path: Path) -> None:
        for place in ("agent_0", "agent_1"):
            (tmp_path / place).mkdir()
            (tmp_path / place / "log.csv").write_text("return\n1\n")
        found = [w.source.path for w in discover(tmp_path, tmp_path / "none")]
        assert found == ["agent_0/log.csv", "agent_1/log.csv"]

    def test_files_of_one_name_are_told_apart(self, tmp_path: Path) -> None:
        for place, value in (("train", 1), ("eval", 9)):
            (tmp_path / place).mkdir()
            (tmp_path / place / "log.csv").write_text(f"return\n{value}\n")
        found = {w.source.path: w.values[-1] for w in discover(tmp_path, tmp_path / "none")}
        assert found == {"eval/log.csv": 9, "train/log.csv": 1}

    def test_what_is_printed_counts_only_without_files(self, tmp_path: Path) -> None:
        log = tmp_path / "stdout.log"
        log.write_text("episode 3 | mean return: 12.5\nepisode 4 | mean return: 13.5\n")
        out = tmp_path / "out"
        out.mkdir()
        printed = {w.source.key: w for w in discover(out, log)}
        assert [w.values[-1] for key, w in printed.items() if "return" in key] == [13.5]
        (out / "a.csv").write_text("x\n1\n")
        assert [w.source.kind for w in discover(out, log)] == ["csv"]

    @pytest.mark.parametrize("word", ["nan", "NaN", "-inf"])
    def test_a_run_that_ends_with_no_number_is_not_read_as_its_last_one(
        self, tmp_path: Path, word: str
    ) -> None:
        log = tmp_path / "stdout.log"
        log.write_text("eval_return: 99.5\n")
        (tmp_path / "out").mkdir()
        (found,) = discover(tmp_path / "out", log)
        log.write_text(f"eval_return: 99.5\neval_return: {word}\n")
        with pytest.raises(StudyError, match="is not a number"):
            extract(Metric(name="score", source=found.source), tmp_path / "out", log)

    def test_a_step_that_some_rows_lack_orders_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2}\n{"eval_return": 5}\n')
        found = {w.source.key: w.source.step for w in discover(tmp_path, tmp_path / "none")}
        assert found == {"loss": "step", "eval_return": None}

    def test_nothing(self, tmp_path: Path) -> None:
        assert discover(tmp_path, tmp_path / "none") == []


def test_a_failed_run_shows_the_end_of_its_log(tmp_path: Path) -> None:
    made = make_study(tmp_path)
    candidates.propose(made, made.candidate("c1").model_copy(update={"id": "c2"}), "agent")
    candidates.validate(made, "c2", "agent")
    token = planning.plan(made, "c2", "short", 0).token
    run = launcher.launch(made, "c2", "short", 0, confirm=token, actor="a").run
    recovery.wait(made, run, 300)
    text = recovery.log_tail(made.path / "runs" / run)
    assert "stdout.log" in text and "| trained without secrets" in text
    rows = standings(made.history(), made.contract())
    assert [(row.name, row.phase, row.mean) for row in rows] == [
        ("c1", "", None),
        ("c2", "short", 102.0),
    ]
    assert "c1, c2 not decided" in answer(rows, "", made.contract())


BESIDE = '''"""Train a policy; the reward goes to runs/NAME, as in many scripts."""
import argparse, csv, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--learning-rate", type=float, default=0.1)
args = parser.parse_args()
out = Path("runs") / f"CartPole-v1__ppo__{args.seed}__{int(time.time())}"
out.mkdir(parents=True)
with open(out / "progress.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["global_step", "episodic_return"])
    for step in range(20):
        log.writerow([step, 100 * args.learning_rate + args.seed % 5])
'''


def test_what_git_refuses_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    script = SCRIPT.replace('parser.add_argument("--log-dir", default="runs")\n', "")
    (tmp_path / "train.py").write_text(
        script.replace("args.log_dir", "'runs'").replace("{evaluation}", "")
    )
    said = study(tmp_path, "start", "train.py", code=2)
    assert "cannot be studied as it is" in said and not (tmp_path / ".rlxp").exists()
    (tmp_path / ".git").write_text("gitdir: /no/such/directory\n")
    said = " ".join(study(tmp_path, "start", "train.py", code=2).split())
    assert "Git cannot be used in" in said and "/no/such/directory" in said
    assert "safe.directory" in said and not (tmp_path / ".rlxp").exists()


def test_a_dry_start_says_that_its_metric_is_a_reward_of_training(tmp_path: Path) -> None:
    root = repository(tmp_path, "")
    facts = json.loads(study(root, "start", "train.py", "--task", "t", "--json"))
    (row,) = [row for row in facts["decide"] if row["field"] == "metrics.primary.source"]
    assert "it is a reward of training" in row["why"]


def test_a_metric_that_the_trial_did_not_write_is_named_before_it_decides(tmp_path: Path) -> None:
    root = repository(tmp_path)
    start(root)
    said = json.loads(study(root, "contract", "approve", "all", "--by", "Ada", "--json"))
    assert said["warnings"] == []
    study(root, "contract", "set", "metrics.primary.source.key=eval_retrun")
    said = json.loads(study(root, "contract", "approve", "all", "--by", "Ada", "--json"))
    (warning,) = said["warnings"]
    assert "Did you mean 'eval_return'?" in warning and "assay study metrics --out" in warning
    assert "contract set metrics.primary.source.key=KEY" in warning
    assert warning in json.loads(study(root, "contract", "check", "--json"))["warnings"]


def test_a_script_without_an_option_for_its_output(tmp_path: Path) -> None:
    """What it writes to its working directory is found by the trial, and moved by every run."""
    root = repository(tmp_path)
    (root / "ppo.py").write_text(BESIDE)
    (root / ".gitignore").write_text("runs/\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *identity, "commit", "-qm", "second"], cwd=root, check=True)
    fixed = ("ppo.py", "--task", "t", "--execute", "--confirm", "RUN_ONCE", "--seeds", "5")
    study(root, "start", *fixed, "--candidates", "1", "--minimum-effect", "5")
    agreed = open_study(root).contract()
    assert agreed.baseline.outputs == ("runs/**/*",)
    study(root, "contract", "set", "baseline.outputs=")
    assert "a run would leave no files to measure" in study(root, "contract", "check", code=2)
    study(root, "contract", "set", "baseline.outputs=runs")  # a directory means all in it
    assert agreed.metrics.primary.source.path == "**/progress.csv"
    study(root, "propose", "--set", "learning-rate=0.5", "--hypothesis", "It learns faster.")
    study(root, "contract", "approve", "all", "--by", "Ada")
    study(root, "loop", "--execute", "--confirm", "RUN_CANDIDATE")
    text = study(root, "status").replace("\n", " ")
    assert "Yes: learning-rate-0.5 is better than baseline. episodic_return is 52.0" in text
    assert not (root / "runs").exists()
    made = open_study(root)
    kept = list((made.path / "runs/baseline-promotion-1/out").rglob("progress.csv"))
    assert len(kept) == 1 and "__1__" in kept[0].parent.name


def test_a_metric_that_nobody_found_is_a_question(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--seed', type=int)\n"
        "p.add_argument('--out')\np.parse_args()\n"
    )
    said = json.loads(study(root, "start", "train.py", "--task", "t", "--json"))
    assert "metrics.primary.source" in [decision["field"] for decision in said["decide"]]
