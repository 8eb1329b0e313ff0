"""Runs that learn from recorded data and have no environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.core.errors import ConfigError, EnvError
from assay.data.files import load, save
from assay.envs import families
from assay.loops import events
from assay.testing.algorithms import assert_same_run

SMALL: dict[str, Any] = {
    "hidden": (16,), "batch_size": 16, "lr": 1e-2, "updates": 60, "sinks": (), "compile": False,
    "log_every": 20, "checkpoint_every": 20,
}  # fmt: skip
COLUMNS = [
    *("--column", "obs=queue,load"), *("--column", "action=size"), *("--column", "reward=gain"),
    *("--column", "terminated=over"), *("--column", "episode=job"),
]  # fmt: skip


def cli(*words: Any) -> Any:
    """Run `assay ...` in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a dataset built of a log whose long queues always got the large size."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = ["job,queue,load,size,gain,over"]
    for job in range(20):
        for step in range(10):
            queue = rng.uniform(-1, 1)
            size = "large" if queue > 0 else "small"
            lines.append(f"{job},{queue:.3f},{rng.uniform():.3f},{size},1.5,{int(step == 9)}")
    Path("log.csv").write_text("\n".join(lines))
    built = cli("data", "build", "log.csv", "--out", "jobs.npz", *COLUMNS, "--words",
                "size=small,large")  # fmt: skip
    assert built.exit_code == 0, built.output
    return tmp_path / "jobs.npz"


@pytest.mark.usefixtures("quick_cloning")
def test_a_log_becomes_a_policy(jobs: Path) -> None:
    settings = ["updates=150", "lr=1e-2", "hidden=[16]", "batch_size=64", "compile=false"]
    trained = cli("train", "bc", f"data={jobs}", *settings, "--name", "b")
    assert trained.exit_code == 0, trained.output
    assert "bc without an environment" in trained.stderr
    agent = assay.load("runs/b")
    assert [int(agent.act([queue, 0.5])) for queue in (-0.8, -0.5, 0.5, 0.8)] == [0, 0, 1, 1]
    assert load(jobs).metadata["words"] == {"size": ["small", "large"]}
    refused = cli("evaluate", "b")
    assert refused.exit_code == 2 and "--offline SET" in refused.stderr
    judged = cli("evaluate", "b", "--offline", jobs, "--updates", 20)
    assert judged.exit_code == 0, judged.output
    Path("now.csv").write_text("queue,load\n0.9,0.5\n-0.9,0.5\n")
    assert cli("predict", "b", "--obs", "now.csv", "--out", "act.csv").exit_code == 0
    assert Path("act.csv").read_text().split()[-2:] == ["1", "0"]
    again = cli("train", "--config", "runs/b/config.yaml", "--name", "c")
    assert again.exit_code == 0, again.output
    assert_same_run(Path("runs/b"), Path("runs/c"))


def test_it_is_resumed(jobs: Path, tmp_path: Path) -> None:
    def stop(event: events.Event) -> Any:
        return assay.STOP if event.clock.updates >= 30 else None

    whole = assay.train("iql", data=str(jobs), root=tmp_path, name="whole", **SMALL)
    parts = assay.train(
        "iql", data=str(jobs), root=tmp_path, name="parts", callbacks=[stop], **SMALL
    )
    assert parts.status == "interrupted"
    assert_same_run(whole.path, assay.resume(parts.path).path)
    with pytest.raises(ConfigError, match="no environment to play in"):
        whole.evaluate(2)
    made = assay.IQL(data=str(jobs), root=tmp_path, **SMALL).train()
    assert made.env == "none" and made.predict([0.9, 0.5]) in (0, 1)


def test_data_names_its_environment(jobs: Path, tmp_path: Path) -> None:
    known = load(jobs)
    known.metadata["env"] = "MountainCar-v0"  # it has two numbers, too, and three actions
    short = SMALL | {"updates": 5, "eval_episodes": 1, "max_episode_steps": 5, "root": tmp_path}
    data = str(save(known, tmp_path / "named.npz"))
    run = assay.train("bc", data=data, **short)
    assert run.config.env == "MountainCar-v0" and run.evaluate(1).lengths.tolist() == [5]
    del short["eval_episodes"], short["max_episode_steps"]
    assert assay.train("bc", "none", data=data, **short).config.env == "none"


@pytest.mark.parametrize("algorithm", ["bc", "sac"])
@pytest.mark.parametrize(
    ("env", "message", "fix"),
    [
        ("Pumps-v7", "No environment is registered as 'Pumps-v7'", "my_package.envs:Pumps-v7"),
        ("MiniGrid-Pumps-v0", "needs the package 'minigrid'", "pip install 'assay[minigrid]'"),
        ("no_such:Pumps-v0", "There is no module 'no_such'", "Install the package"),
    ],
)
def test_data_names_an_environment_that_is_not_installed(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, env: str, message: str, fix: str
) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("no minigrid", name="minigrid")

    monkeypatch.setattr(families, "FAMILIES", (replace(families.MINIGRID, register=missing),))
    known = load(jobs)
    known.metadata["env"] = env
    data = str(save(known, "named.npz"))
    result = cli("train", algorithm, f"data={data}")
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2 and not Path("runs").exists()
    assert f"The data 'named.npz' names the environment '{env}'. " in said
    assert message in said and fix in said and "or 'none' where the algorithm" in said
    with pytest.raises(EnvError, match=r"The data '.*named.npz' names the environment"):
        assay.train(algorithm, data=data)
    assert cli("data", "validate", data).exit_code == 0  # which needs no environment
    assert cli("data", "inspect", data).exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ppo", "none"], "there is no environment to collect it in"),
        (["bc", "none"], "no file is given"),
        (["bc", "none", "data="], "data=None: expected the path of a file"),
        (["bc"], "Nothing names the environment"),
        (["iql", "none", "data=jobs.npz", "env_steps=10"], "no environment to go on with"),
    ],
)
def test_refused(jobs: Path, words: list[str], message: str) -> None:
    result = cli("train", *words)
    assert result.exit_code == 2 and message in result.stderr and not Path("runs").exists()


def test_actions_without_bounds(jobs: Path) -> None:
    """A set that was built without --actions says how it is built again."""
    wide = [word.replace("action=size", "action=load") for word in COLUMNS]
    assert cli("data", "build", "log.csv", "--out", "wide.npz", *wide).exit_code == 0
    result = cli("train", "bc", "none", "data=wide.npz")
    assert result.exit_code == 2
    assert "assay data build --actions=LOW:HIGH" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("spoken", "message"),
    [
        ("size=small,tiny", "has 'large'; expected one of the words small, tiny"),
        ("sizes=small,large", "'sizes', which no field is made of"),
        ("size=small,small", "Give each word once"),
        ("size", "--words 'size': expected NAME=ONE"),
    ],
)
def test_words_of_a_log(jobs: Path, spoken: str, message: str) -> None:
    result = cli("data", "build", "log.csv", "--out", "x.npz", *COLUMNS, "--words", spoken)
    assert result.exit_code == 2 and message in result.stderr and not Path("x.npz").exists()
