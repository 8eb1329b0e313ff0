"""Scripts of skills: each runs alone, says what the library says, and refuses bad input."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.design.standalone import check_section
from assay.skills.library import LIBRARY

SCRIPTS = {
    path.stem: path
    for path in sorted(LIBRARY.glob("plugins/*/skills/*/scripts/*.py"))
    if "assay-study" not in path.parts  # those are tested with the study plugin
}
PROBLEM = """
name: drone
state: {entries: [{name: gust, shape: [1], low: 0, high: 1, source: future}]}
action: {kind: box, shape: [4], low: -1, high: 1, n: 3}
reward: {terms: [{name: near, low: 1, high: 0}]}
mdp: {gamma: 1.0}
agents: {types: []}
hierarchy: {levels: [{name: motor, kind: primitive}]}
architecture: {learner: {algorithm: none_such}}
"""
FIRST = {
    "state": "state.leakage",
    "action": "action.foreign_field",
    "reward": "reward.range_order",
    "mdp": "mdp.gamma_one",
    "agents": "agents.empty",
    "hierarchy": "hierarchy.too_few",
    "architecture": "architecture.algorithm_unknown",
}


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a script as `python SCRIPT WORDS` does, in this process: torch is there already."""
    monkeypatch.chdir(tmp_path)

    def one(name: str, *words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name]), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code, said
        return said.out + said.err

    return one


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_names_the_script(run: Run, name: str) -> None:
    assert "usage:" in run(name, "--help")


@pytest.mark.parametrize("section", FIRST)
def test_a_section_is_checked(
    tmp_path: Path, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problem.yaml"
    file.write_text(PROBLEM)
    assert f'check_section("{section}"' in SCRIPTS[f"check_{section}"].read_text()
    assert check_section(section, None, [str(file), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["findings"]
    assert FIRST[section] in [one["rule"] for one in found]


def test_what_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "problem.yaml"
    assert check_section("state", None, [str(file)]) == 2
    file.write_text("name: drone\n")
    assert check_section("state", None, [str(file)]) == 2
    assert "no section 'state'" in capsys.readouterr().err
    file.write_text("name: drone\nstate: {entries: [{name: x, shape: [2], low: 0, high: 1}]}\n")
    assert check_section("state", None, [str(file)]) == 0
    assert "flat_width: 2" in capsys.readouterr().out


def test_a_strategy_is_selected(run: Run) -> None:
    answers = ("action.kind=discrete", "action.n=4", "mdp.simulator.kind=simulator")
    found = json.loads(run("select_algorithm", *answers, "--most", "1", "--json"))
    assert len(found["ranked"]) == 1 and "td3" in found["ruled_out"]
    run("select_algorithm", "action.kind=fly", code=2)


def test_demonstrations_are_refused(run: Run) -> None:
    assert "none.npz" in run("check_demonstrations", "none.npz", code=2)


def test_networks(run: Run) -> None:
    assert "features: 64" in run("extractor", "CartPole-v1")
    run("extractor", "CartPole-v1", "--cnn", "none", "--network", "no.such:Net", code=2)
    assert "DiagGaussian, 2 parameters" in run("actor", "Pendulum-v1")
    assert "beyond -1 to 1: 0.0%" in run("actor", "Pendulum-v1", "--squash")
    said = run("critics", "Pendulum-v1", "--tau", "0.5")
    assert "terminated 1.00, truncated 10.90" in said and "1 updates" in said


def test_losses_by_hand(run: Run) -> None:
    # min(1.5, 1.2) = 1.2 and min(-0.5, -0.8) = -0.8: the mean is 0.2, both beyond the clip.
    said = run("ppo_losses", "--ratio", "1.5,0.5", "--advantage=1,-1")
    assert "policy loss: -0.200000" in said and "clipped 1.000" in said
    # Half of max((1 - 2)^2, (0.2 - 2)^2) = 3.24 / 2.
    value = ("--value", "1", "--target", "2", "--value-clip", "0.2")
    assert "value loss: 1.620000" in run("ppo_losses", *value, "--old-value", "0")
    assert "both or neither" in run("ppo_losses", *value, code=2)


def test_preferences_by_hand(run: Run) -> None:
    # -log sigmoid(1) = 0.313262 and -log sigmoid(2) = 0.126928.
    words = ("--left", "1,0", "--right", "0,2", "--error", "0", "--answers")
    assert "loss: 0.220095" in run("bradley_terry", *words, "left,right")
    run("bradley_terry", *words, "left,up", code=2)
    run("bradley_terry", *words, "left", code=2)


def test_ranges_and_levels(run: Run) -> None:
    words = ("--range", "5,15", "--usual", "9.8", "--low", "100", "--high", "400")
    said = run("adr_controller", *words, "--returns", "450,420,80").splitlines()
    assert ["9.8 to 10.3", "9.8 to 10.8", "9.8 to 10.3"] == [
        line.split(": ")[1].split(",")[0] for line in said
    ]
    run("adr_controller", *words[:-1], "50", "--returns", "1", code=2)
    # Ranks 1, 2, 3 at a temperature of 1: 6/11, 3/11, 2/11.
    said = run("level_replay", "--scores", "0.1,0.9,0.4", "--temperature", "1")
    assert [line.split()[4] for line in said.splitlines()] == ["18.2%", "54.5%", "27.3%"]


def test_batch_sizes(run: Run) -> None:
    words = ("ppo", "CartPole-v1", "num_envs=8", "horizon=64", "epochs=2", "env_steps=1024")
    said = run("batch_sizes", *words, "minibatch_size=128")
    # 8 x 64 = 512 steps a rollout, 2 of them; 4 minibatches, 2 epochs.
    for line in ("rollout: 512", "rollouts: 2", "updates per rollout: 8", "updates: 16"):
        assert line in said.splitlines()
    assert "does not divide the rollout of 512" in run(
        "batch_sizes", *words, "minibatch_size=100", code=2
    )
    words = ("sac", "Pendulum-v1", "env_steps=1100", "learning_starts=100", "batch_size=11")
    said = run("batch_sizes", *words, "train_every=2", "updates=1")
    assert "updates: 500" in said and "uses of a step: 5.0" in said
    assert "collects nothing" in run("batch_sizes", "cfr", "kuhn_poker", code=2)


def test_what_is_missing_is_said(run: Run) -> None:
    assert "assay study start" in run("optuna_study", code=2)
    run("explain_run", "none", code=2)


def test_the_pipeline_of_preferences(run: Run, tmp_path: Path) -> None:
    words = ("--env", "Pendulum-v1", "--length", "5", "--episodes", "4")
    said = run("pipeline", *words, "--pairs", "20", "--epochs", "1")
    assert "20 of 20 pairs answered" in said and "held-out accuracy" in said
    answers = [{"pair": f"1-{i}", "choice": "left", "annotator": "ann"} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, answers)))
    more = ("--out", "mine", "--reward", "unfitted", "--pairs", "40", "--answers", "a.jsonl")
    said = run("pipeline", *words, *more, code=1)
    assert "favours the left" in said and not (tmp_path / "unfitted").exists()
