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


def test_mixers_by_hand(run: Run) -> None:
    # The best sum for 0, 1, 1, 8 is 2.25 and 2.25 +- 2 for each agent: 6.5 where both take it.
    said = run("mixer", "--payoffs", "0,1;1,8", "--updates", "300").splitlines()
    assert said[0] == "best: 8" and said[1] == "sum: plays 1,1, worth 8, valued 6.50"
    run("mixer", "--payoffs", "0,1;1", code=2)


def test_chunks_of_time(run: Run) -> None:
    said = run("bptt_chunks", "--horizon", "12", "--chunk", "4", "--begins", "0,6").splitlines()
    assert [line.split()[-1] for line in said] == ["0", "6", "8"]
    assert "does not divide" in run("bptt_chunks", "--horizon", "12", "--chunk", "5", code=2)


def test_the_conservative_term_by_hand(run: Run) -> None:
    # log(2 e^1) - 1 = log 2; the target is 1 + 0.5 * 2 = 2, and 1 if nothing follows.
    words = ("--values", "1,1", "--action", "0", "--reward", "1", "--next-value", "2")
    said = run("cql", *words, "--gamma", "0.5", "--alpha", "2")
    assert "gap 0.6931, target 2.0000" in said
    assert "loss 2.3863: TD 1.0000, term 1.3863" in said
    assert "target 1.0000" in run("cql", *words, "--terminated")
    run("cql", "--values", "1,1", "--action", "2", code=2)
    run("cql", "--values", "1,1", code=2)


def test_what_a_replay_draws(run: Run) -> None:
    # With alpha 1 shares are those of the errors, and w = (N P)^-1 over the largest.
    said = run("sum_tree", "--errors=-3,1", "--alpha", "1", "--beta", "1").splitlines()
    assert said[0] == "0: error -3, share 75.0%, drawn 75.0%, weight 0.333"
    assert "diverged" in run("sum_tree", "--errors", "nan,1", code=2)
    words = ("--achieved", "0,1,2", "--goal", "9", "--ratio", "1")
    said = run("hindsight", *words, "--strategy", "final").splitlines()
    assert said[1:] == [
        "step from 0: goals 2; successes 0.0%",
        "step from 1: goals 2; successes 100.0%",
    ]
    assert "goals 1, 2;" in run("hindsight", *words)
    run("hindsight", "--achieved", "0", "--goal", "1", code=2)


def test_a_generator_is_paid_by_hand(run: Run) -> None:
    said = run("paired_regret", "--protagonist", "0.2,0.4", "--antagonist", "0.9,0.5")
    assert said.splitlines() == ["regret: 0.6 (best 0.9 less mean 0.3)", "minimax: -0.3"]
    said = run("paired_regret", "--mazes", "20", "--size", "5", "--blocks", "0", "--show", "1")
    assert "solvable: 1" in said and said.count("A") == said.count("G") == 1
    assert "both or neither" in run("paired_regret", "--protagonist", "1", code=2)


def test_environments_are_looked_at(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("running_statistics", "CartPole-v1", "--steps", "50", "--json"))
    assert len(found["observation"]["mean"]) == 4 and found["observation"]["clipped"] == 0
    words = ("assay.testing.envs:Reach", "--steps", "50", "--json")
    assert all(one["ok"] for one in json.loads(run("check_env", *words)))
    assert "FAILED: made" in run("check_env", "NoSuch-v0", code=1)
    run("check_env", "no.such:Env", code=2)
    words = ("--steps", "20", "--no-processes", "--out", "report.md")
    run("suite_report", "NoSuch-v0", *words, code=1)
    assert "| NoSuch-v0 | FAILED |" in (tmp_path / "report.md").read_text()


def test_sets_are_built_and_told_apart(run: Run, tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 2},{i % 3},{int(i % 4 == 3)},{i // 4}" for i in range(40)]
    (tmp_path / "log.csv").write_text("\n".join(["level,valve,score,over,shift", *rows]))
    columns = ("obs=level", "action=valve", "reward=score", "terminated=over", "episode=shift")
    words = [word for one in columns for word in ("--column", one)]
    said = run("build_dataset", "log.csv", "--out", "pumps", *words, "--choices", "2")
    assert "pumps-train.npz: 9 episodes, 36 steps" in said and "pumps-test.npz: 1" in said
    assert "lacks obs" in run("build_dataset", "log.csv", "--out", "bad", *words[2:], code=2)
    run("build_dataset", "log.csv", "--out", "bad", *words, "--choices", "1", code=2)
    assert not list(tmp_path.glob("bad*"))
    for name, valve in (("one", 0), ("two", 1)):
        other = [row.split(",") for row in rows]
        lines = [f"{level},{valve},{a},{b},{c}" for level, _, a, b, c in other]
        (tmp_path / f"{name}.csv").write_text("\n".join(["level,valve,score,over,shift", *lines]))
        run("build_dataset", f"{name}.csv", "--out", name, *words, "--choices", "2")
    said = run("gail_discriminator", "one-train.npz", "two-train.npz", "--updates", "40")
    assert "expert_accuracy 1.00 policy_accuracy 1.00" in said
    run("gail_discriminator", "none.npz", "one-train.npz", code=2)


def test_a_run_is_tracked_and_kept(run: Run, tmp_path: Path) -> None:
    settings = ("env_steps=512", "num_envs=4", "horizon=32", "minibatch_size=64", "name=mine")
    quick = ("eval_every=128", "eval_episodes=1", "checkpoint_every=128", "compile=false")
    run("tracking_callback", "ppo", "CartPole-v1", *settings, *quick, "sinks=[]", "--goal", "1")
    [line] = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert json.loads(line)["env_steps"] == 128
    run("tracking_callback", "ppo", "CartPole-v1", "lrr=1", code=2)
    assert ": ok, " in run("checkpoints", "runs/mine", "--keep", "1")
    [place] = (tmp_path / "runs/mine/checkpoints").iterdir()
    (place / "MANIFEST.json").write_text("{}")
    assert "DAMAGED" in run("checkpoints", "runs/mine", code=2)
