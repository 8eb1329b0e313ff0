"""`assay prefer` from the command line: what it prints, and one message for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from preference_samples import answered, episodes
from typer.testing import CliRunner

from assay import data
from assay.cli.app import app


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data.save(episodes(), "walks.npz")
    return tmp_path


def prefer(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["prefer", *words])
    assert done.exit_code == code, done.output
    return " ".join((done.stdout + done.stderr).split())


def test_from_a_dataset_to_a_model() -> None:
    made = json.loads(
        prefer("sample", "walks.npz", "--out", "set", "--pairs", "40", "--length", "4", "--json")
    )
    assert (made["pairs"], made["held_out"], made["new"]) == (40, 6, True)
    assert "such a batch already" in prefer(
        "sample", "walks.npz", "--out", "set", "--pairs", "40", "--length", "4"
    )
    assert "40 new answers, 0 pairs without any" in prefer("label", "set", "--oracle")
    Path("more.jsonl").write_text(
        '{"pair": "1-0", "choice": "left", "annotator": "ann"}\n'
        '{"pair": "1-1", "choice": "unsure"}\n'
    )
    assert "2 new answers" in prefer("label", "set", "--file", "more.jsonl", "--annotator", "bob")
    shown = prefer("inspect", "set")
    assert "40 pairs, 40 answered (6 held out)" in shown and "bob" in shown
    fitted = prefer("fit", "set", "members=2", "hidden=[8]", "epochs=2", "--out", "model")
    assert "fitted to 35 answers, bound=tanh" in fitted and "held-out: accuracy" in fitted
    more = prefer(
        "sample", "walks.npz", "--out", "set", "--pairs", "5", "--length", "4", "--by",
        "disagreement", "--model", "model", "--seed", "1",
    )  # fmt: skip
    assert "batch 2 with 5 pairs" in more


@pytest.mark.slow
def test_the_loop_shows_both_returns() -> None:
    words = [
        "loop", "ppo", "Pendulum-v1", "env_steps=128", "num_envs=1", "horizon=32", "hidden=[8]",
        "max_episode_steps=8", "minibatch_size=32", "epochs=1", "sinks=[]", "eval_every=0",
        "eval_episodes=1", "log_every=32", "--pairs", "4", "--rounds", "1", "--length", "4",
        "--episodes", "2", "--out", "all", "--set", "members=1", "--set", "epochs=1",
    ]  # fmt: skip
    shown = prefer(*words, "--oracle", "--noise", "0.1")
    assert "Round 0: 64 of 128 steps, 2 comparisons" in shown
    assert "true return learned" in shown and "Run: all/run (and " in shown
    done = CliRunner().invoke(app, ["prefer", *words, "--oracle", "--noise", "0.1", "--json"])
    assert [one["env_steps"] for one in json.loads(done.stdout)["rounds"]] == [64, 128]


def test_one_who_always_clicks_left_is_flagged() -> None:
    found = answered(Path("set"), pairs=30)
    found.add_labels((pair, "left", "lefty") for pair in found.pairs())
    assert "Flag: 'lefty' favours the left: 30 of 30 answers" in prefer("inspect", "set")
    settings = ("members=1", "hidden=[4]", "epochs=1")
    assert "Warning: 'lefty' favours the left" in prefer("fit", "set", *settings)
    assert "lefty" not in prefer("fit", "set", *settings, "--without", "lefty", "--out", "b")


def test_a_bad_setting_is_told_before_warnings() -> None:
    found = answered(Path("set"), pairs=30)
    found.add_labels((pair, "left", "lefty") for pair in found.pairs())
    shown = prefer("fit", "set", "bound=round", code=2)
    assert "bound='round'" in shown and "lefty" not in shown


def test_answers_that_are_all_equal_are_flagged() -> None:
    found = answered(Path("set"), pairs=30, equal=1e6)
    assert "Flag: All 30 answers are equal: nothing to learn from" in prefer("inspect", "set")
    assert "are equal: nothing to learn from" in prefer("fit", "set", code=2)
    side = next(id for id, pair in found.pairs().items() if not pair.held_out)
    found.add_labels([(side, "left", "oracle")])
    assert "All 4 held-out answers are equal" in prefer("fit", "set", "members=1", "epochs=1")


def test_bad_input_is_one_message() -> None:
    answered(Path("set"), pairs=5)
    Path("bad.jsonl").write_text('{"pair": "9-9", "choice": "left"}\n')
    Path("torn.jsonl").write_text("{nope\n")
    Path("empty.jsonl").write_text('{"pair": "1-0"}\n')
    for words, message in (
        (("label", "set"), "Expected one of --oracle, --page, --file; given: none."),
        (("label", "set", "--oracle", "--page"), "given: --oracle, --page."),
        (("label", "set", "--file", "bad.jsonl"), "There is no pair '9-9'"),
        (("label", "set", "--file", "torn.jsonl"), "Line 1 of 'torn.jsonl' is not JSON"),
        (("label", "set", "--file", "empty.jsonl"), "Line 1 of 'empty.jsonl' lacks"),
        (("label", "set", "--file", "none.jsonl"), "Cannot read 'none.jsonl'"),
        (("label", "set", "--page", "--noise", "0.1"), "--noise has a meaning only with --oracle"),
        (("label", "set", "--page"), "its seed is not known"),
        (("label", "nowhere", "--oracle"), "There are no preferences at 'nowhere'"),
        (("inspect", "nowhere"), "There are no preferences at 'nowhere'"),
        (("fit", "set", "bond=clip"), "unknown setting 'bond'. Did you mean 'bound'?"),
        (("fit", "set", "bound=round"), "bound='round'"),
        (("fit", "set", "--without", "ann"), "Nobody called 'ann' has answered"),
        (("sample", "--out", "x"), "Nothing to take segments from"),
        (("sample", "nowhere", "--out", "x"), "There is no file 'nowhere'"),
        (("sample", "walks.npz", "--out", "x", "--length", "99"), "No two segments of 99 steps"),
        (("sample", "walks.npz", "--out", "x", "--model", "y"), "neither a reward model nor a run"),
        (("sample", "walks.npz", "--env", "Pendulum-v1", "--out", "x"), "cannot be compared"),
        (("loop", "sac", "Pendulum-v1"), "given: none."),
        (("loop", "sac", "Pendulum-v1", "--page", "--from", "replay"), "A replay cannot be drawn"),
        (("loop", "sac", "Pendulum-v1", "lrr=1", "--oracle"), "Unknown setting for sac: 'lrr'"),
    ):
        shown = prefer(*words, code=2)
        assert message in shown, (words, shown)
        assert "Traceback" not in shown
    assert not Path("x").exists() and not Path("reward").exists()
    assert not Path("preference-loop").exists()
