"""Evaluating, comparing, plotting and exporting runs; algorithms, environments and the doctor."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli
from PIL import Image

import assay
from assay.cli.doctor import EXTRAS
from assay.core import registry
from assay.data.files import save
from assay.envs.native.named_mazes import DRAWINGS
from assay.loops.run_settings import settings_model
from assay.runs.directory import RunDirectory
from assay.testing.offline import record

BROKEN = """
import gymnasium as gym
import numpy as np


class Broken(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


gym.register("Broken-v0", Broken)
"""


def test_evaluate_plays_the_episodes_and_keeps_them(cli: Cli, runs: Path) -> None:
    result = cli("evaluate", "a/seed-1", "--episodes", 5, "--seed", 7, "--json")
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout)
    returns = [episode["return"] for episode in measured["episodes"]]
    assert len(returns) == 5
    assert measured["mean"] == pytest.approx(np.mean(returns))
    kept = [e for e in RunDirectory.open(runs / "a" / "seed-1").evals() if e["seed"] == 7]
    assert [e["episodes"] for e in kept] == [measured["episodes"]]
    # The same seed plays the same episodes.
    again = json.loads(cli("evaluate", "a/seed-1", "--episodes", 5, "--seed", 7, "--json").stdout)
    assert again == measured
    shown = cli("evaluate", "a", "--episodes", 2)
    assert all(f"a/seed-{seed}" in shown.stdout for seed in (1, 2, 3))


@pytest.mark.usefixtures("quick_cloning")
def test_runs_are_ranked_from_recorded_data(cli: Cli, runs: Path, tmp_path: Path) -> None:
    place = save(record("CartPole-v1", episodes=12), tmp_path / "random.npz")
    before = len(list(RunDirectory.open(runs / "a" / "seed-1").evals()))
    offline = ("--offline", place, "--updates", 20)
    result = cli("evaluate", "a/seed-1", "b/seed-1", *offline, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["rank"] for one in found["policies"]] == [1, 2]
    values = [one["estimates"]["fitted_q"]["value"] for one in found["policies"]]
    assert values == sorted(values, reverse=True)
    assert found["behaviour"] == "estimated" and found["episodes"] == 12
    assert len(list(RunDirectory.open(runs / "a" / "seed-1").evals())) == before
    shown = cli("evaluate", "a/seed-1", *offline, "--sampled", "--gamma", 0.9)
    assert shown.exit_code == 0, shown.output
    assert "gamma 0.9" in shown.stdout and "doubly robust" in shown.stdout
    assert "estimated by behaviour cloning" in shown.stdout
    assert "a/seed-1: 3 of 20 updates (15%)" in shown.stderr and not result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--offline", "x.npz", "--episodes", "5"], "--episodes has a meaning only without"),
        (["--offline", "x.npz", "--video"], "--video has a meaning only without --offline"),
        (["--gamma", "0.9"], "--gamma has a meaning only with --offline"),
        (["--against", "random", "--sampled"], "--sampled has a meaning only without --against"),
        (["--offline", "x.npz", "--levels", "named"], "--levels has a meaning only without"),
        (["--levels", "named", "--video"], "--video has a meaning only without --levels"),
        (["--levels", "named"], "'CartPole-v1' has no levels with names"),
        (["--levels", "[]"], "levels=[]: expected at least one"),
        (["--levels", "[3]"], "levels=3: expected the id of an environment, or arguments"),
        (["--levels", "[Pendulum-v1]"], "cannot be played in the level Pendulum-v1: observation"),
        (["--levels", "[{sutton_barto_reward: 1}, {sutton_barto_reward: 1}]"], "called the same"),
        (["--format", "mp4"], "--format has a meaning only with --video"),
        (["--offline", "x.npz"], "x.npz"),
    ],
)
def test_options_without_effect_are_refused(
    cli: Cli, runs: Path, arguments: list[str], message: str
) -> None:
    refused = cli("evaluate", "a/seed-1", *arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr


def test_a_video_is_saved_with_the_run(cli: Cli, runs: Path) -> None:
    result = cli("evaluate", "a/seed-1", "--episodes", 1, "--video")
    assert result.exit_code == 0, result.output
    (video,) = (runs / "a" / "seed-1" / "videos").iterdir()
    assert f"Video: {video}" in result.stdout
    with Image.open(video) as film:
        assert film.n_frames > 5
    refused = cli("evaluate", "a/seed-1", "--episodes", 1, "--video", "--format", "avi")
    assert refused.exit_code == 2
    assert ".gif or .mp4" in refused.stderr


def test_compare_gives_the_statistics_and_a_plot(cli: Cli, runs: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plots" / "comparison.png"
    result = cli("compare", "a", "b", "--plot", plot, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(arm["name"], arm["n"]) for arm in found["arms"]] == [("a", 3), ("b", 3)]
    assert found["pairs"][0]["baseline"] == "a"
    scores = {arm["name"]: np.mean(arm["scores"]) for arm in found["arms"]}
    assert found["pairs"][0]["difference"]["point"] == pytest.approx(scores["b"] - scores["a"])
    with Image.open(plot) as image:
        assert min(image.size) > 100
    shown = cli("compare", "a", "b").stdout
    for word in ("IQM", "95% interval", "P(better)", "Hedges' g", "p (Welch)", "permutation"):
        assert word in shown
    assert f"b: {found['pairs'][0]['verdict']}" in shown


def test_compare_refuses_what_cannot_be_compared(cli: Cli, runs: Path) -> None:
    result = cli("compare", "a", "stopped")
    assert result.exit_code == 2
    assert "stopped" in result.stderr and "interrupted" in result.stderr
    result = cli("compare", "a", "b", "--metric", "eval/return_men")
    assert result.exit_code == 2
    assert "Did you mean 'eval/return_mean'?" in result.stderr
    result = cli("compare", "a", "b", "--at", "end")
    assert result.exit_code == 2
    assert "final, best, auc" in result.stderr


def test_plot_draws_to_a_file_or_to_the_terminal(cli: Cli, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    result = cli("plot", "a", "b", "--metric", "rollout/return_mean", "--out", file)
    assert result.exit_code == 0, result.output
    assert "<svg" in file.read_text()
    assert "env_steps" in cli("plot", "a", "--text").stdout
    assert cli("plot", "a", "--out", tmp_path / "curves.doc").exit_code == 2


def test_plot_draws_scores(cli: Cli, runs: Path, tmp_path: Path) -> None:
    for kind in ("profiles", "improvement"):
        file = tmp_path / f"{kind}.png"
        result = cli("plot", "a", "b", "--kind", kind, "--out", file)
        assert result.exit_code == 0, result.output
        with Image.open(file) as image:
            assert image.width > 400
    few = cli("plot", "a", "b", "--kind", "ranks")
    assert few.exit_code == 2 and "There are 3 blocks" in few.stderr
    assert cli("plot", "a", "--kind", "improvement").exit_code == 2
    assert cli("plot", "a", "b", "--kind", "profiles", "--text").exit_code == 2
    assert cli("plot", "a", "--at", "best").exit_code == 2


@pytest.mark.parametrize(("option", "name"), [("--torchscript", "policy.pt"), ("--onnx", "x.onnx")])
def test_export_writes_a_policy_that_acts_like_the_agent(
    cli: Cli, runs: Path, tmp_path: Path, option: str, name: str
) -> None:
    out = [] if name == "policy.pt" else ["--out", tmp_path / name]
    result = cli("export", "a/seed-1", option, *out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    path = Path(found["path"])
    assert path == (runs / "a" / "seed-1" / name if not out else tmp_path / name)
    assert path.stat().st_size > 1000
    assert found["inputs"] == [{"name": "observation", "shape": [4], "dtype": "float32"}]
    assert found["observations"] == 64
    assert found["max_difference"] == 0
    assert "largest difference" in cli("export", "a/seed-1", option).stdout


def test_export_writes_names_of_agents_that_no_file_may_have(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teams_with_paths.py").write_text(
        "from gymnasium.spaces import Discrete\n"
        "from assay.testing.teams import Signals\n"
        "class Paths(Signals):\n"
        "    def __init__(self):\n"
        "        super().__init__([Discrete(2)] * 2)\n"
        "        self.possible_agents = ['../red', 'blue/1']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    small = ("env_steps=16", "horizon=8", "minibatch_size=8", "eval_every=0", "compile=false")
    env = "teams_with_paths:Paths"
    assert cli("train", "ippo", env, *small, "sinks=[]", "--name", "paths").exit_code == 0
    result = cli("export", "paths", "--torchscript", "--out", tmp_path / "out" / "policy.pt")
    assert result.exit_code == 0, result.output
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["policy-..%2Fred.pt", "policy-blue%2F.pt"]


def test_algorithms_are_listed_with_all_their_settings(cli: Cli) -> None:
    shown = cli("algorithms")
    assert shown.exit_code == 0
    listed = {facts["name"]: facts for facts in json.loads(cli("algorithms", "--json").stdout)}
    assert sorted(listed) == registry.names()
    assert listed["qmix"]["actions"] == ["Discrete"]  # of an agent, as an environment declares it
    for name, facts in listed.items():
        assert f" {name} " in shown.stdout
        algorithm = registry.get(name)
        fields = algorithm.Hyperparameters.model_fields
        assert set(facts["hyperparameters"]) == set(fields)
        run_settings = settings_model(algorithm).model_fields
        assert set(facts["run_settings"]) == set(run_settings)
        for setting in [*facts["hyperparameters"].values(), *facts["run_settings"].values()]:
            assert setting["meaning"] and setting["type"]


def test_the_command_of_an_algorithm_named_by_its_place_works(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from assay.algorithms.a2c import A2C\nclass Shown(A2C):\n    pass\n"
    (tmp_path / "shown_here.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert "assay train shown_here:Shown ENV" in cli("algorithms", "shown_here:Shown").stdout


def test_one_algorithm_is_shown_in_full(cli: Cli) -> None:
    shown = cli("algorithms", "DQN").stdout
    assert "doi:10.1038/nature14236" in shown
    for words in (
        "epsilon",
        "Share of random actions",
        "linear:1.0:0.05:0.1",
        "nature | impala",
    ):
        assert words in shown
    assert "presets:  CartPole-v1" in shown


def test_an_environment_is_checked(cli: Cli) -> None:
    result = cli("envs", "check", "CartPole-v1", "--steps", 200)
    assert result.exit_code == 0, result.output
    assert "CartPole-v1: All checks passed." in result.stdout
    assert "ppo" in result.stdout and "td3" not in result.stdout
    found = json.loads(cli("envs", "check", "Pendulum-v1", "--steps", 200, "--json").stdout)
    assert found["ok"] is True


def test_a_broken_environment_fails_its_check(cli: Cli, root: Path) -> None:
    (root.parent / "broken_environment.py").write_text(BROKEN)
    result = cli("envs", "check", "broken_environment:Broken-v0")
    assert result.exit_code == 2
    assert "FAILED" in result.stdout
    result = cli("envs", "check", "CartPole-v1", "lenght=3")
    assert result.exit_code == 2
    assert "lenght" in result.stdout


def test_environments_are_listed(cli: Cli) -> None:
    listed = {row["id"]: row["from"] for row in json.loads(cli("envs", "list", "--json").stdout)}
    assert listed["CartPole-v1"] == "native"
    assert listed["dm_control/cartpole-swingup-v0"] == "shimmy"
    assert "functools" not in listed.values()
    assert set(json.loads(cli("envs", "list", "pendulum", "--json").stdout)[0]) == {"id", "from"}
    assert "CartPole" not in cli("envs", "list", "pendulum").stdout


def test_large_families_are_listed_by_an_example(cli: Cli) -> None:
    count = sum(name.startswith("Foraging-") for name in listed_ids(cli))
    shown = cli("envs", "list").stdout
    assert f"Level-based foraging: {count:,} ids like Foraging-8x8-2p-3f-v3" in shown
    assert "Foraging-8x8-2p-3f-v3 " in shown and "Foraging-5x5-2p-1f-v3" not in shown
    assert "CartPole-v1" in shown and "dm_control/cartpole-swingup-v0" in shown
    assert "Foraging-5x5-2p-1f-v3" in cli("envs", "list", "foraging-5x5").stdout


def listed_ids(cli: Cli) -> list[str]:
    return [row["id"] for row in json.loads(cli("envs", "list", "--json").stdout)]


def test_the_doctor_checks_everything(cli: Cli) -> None:
    result = cli("doctor", "--json")
    assert result.exit_code == 0, result.output
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    expected = {"python", "torch", "cpu", "gpu", "compiler", "memory", "disk", "drawing"}
    assert expected <= set(found)
    assert {f"extra {extra}" for extra in EXTRAS} <= set(found)
    assert found["torch"]["state"] == "ok"
    assert "Assay works here" in cli("doctor").stdout


def test_the_doctor_says_what_is_broken(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.cli.doctor._ESSENTIAL", ("numpy", "no_such_package"))
    result = cli("doctor", "--root", "/dev/null/runs")
    assert result.exit_code == 1
    assert "Broken: no_such_package, disk." in result.stdout


def test_the_doctor_knows_every_extra() -> None:
    project = Path(assay.__file__).parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a source tree")
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"all", "dev"}


@pytest.mark.slow
def test_the_demo_trains_evaluates_and_compares(cli: Cli, root: Path) -> None:
    result = cli("demo", "--fast")
    assert result.exit_code == 0, result.output
    (place,) = root.iterdir()
    assert place.name.startswith("demo-")
    assert len(list(place.glob("*/seed-*/run.json"))) == 4
    assert (place / "comparison.png").stat().st_size > 10_000
    headings = ("1. Learn", "2. Evaluate", "3. Change", "4. Compare", "What this means", "Try next")
    assert [result.stdout.index(heading) for heading in headings] == sorted(
        result.stdout.index(heading) for heading in headings
    )
    assert f"assay compare {place / 'preset'} {place / 'small-steps'}" in result.stdout
    assert f"Plot: {place / 'comparison.png'}" in result.stdout


def test_levels_are_evaluated_each_by_itself(cli: Cli, root: Path) -> None:
    assay.train("ppo", "assay/Maze-v0", env_steps=64, num_envs=4, horizon=16, minibatch_size=16,
                root=root, name="m", hidden=(8,), sinks=(), compile=False, max_episode_steps=60,
                eval_episodes=1, env_kwargs={"max_walls": 0})  # fmt: skip
    plain = json.loads(cli("evaluate", "m", "--episodes", 6, "--json").stdout)
    solved = [episode["return"] > 0 for episode in plain["episodes"]]
    assert [episode["success"] for episode in plain["episodes"]] == solved

    asked = ("evaluate", "m", "--episodes", 6, "--sampled", "--levels")
    found = json.loads(cli(*asked, "[{size: 3}, {size: 3, max_walls: 1}, {maze: zigzag}]",
                           "--json").stdout)  # fmt: skip
    assert list(found["by_level"]) == ["3", "size=3, max_walls=1", "zigzag"]
    rates = [one["success_rate"] for one in found["by_level"].values()]
    assert rates[0] > 0 and rates[2] == 0 and found["success_rate"] == pytest.approx(sum(rates) / 3)
    for one in found["by_level"].values():
        assert one["success_rate"] == sum(e["return"] > 0 for e in one["episodes"]) / 6
    # drawn as in training: the same maze is not always played in the same way
    assert len({episode["return"] for episode in found["by_level"]["3"]["episodes"]}) > 1

    shown = cli(*asked, "named")
    assert shown.exit_code == 0, shown.output
    rows = [line for line in shown.stdout.splitlines() if " %" in line and "Mean" not in line]
    assert [row.split()[1] for row in rows] == list(DRAWINGS)
    assert f"Mean of {len(DRAWINGS)} levels" in shown.stdout and "success" in shown.stdout
    labels = {content["label"] for content in RunDirectory.open(root / "m").evals()}
    assert {"seed0", "seed0-level=labyrinth-sampled"} < labels
    assert "seed0-level=size=3_max_walls=1-sampled" in labels
