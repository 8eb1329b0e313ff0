"""`assay predict` answers as the agent does, with and without memory, and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import assay
from assay.cli.app import app

TINY = {"compile": False, "sinks": [], "eval_every": 0, "eval_episodes": 1}


class Drawn(gym.Env):
    """Observations are drawn from the space, and nothing that is done matters."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action
        self.left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.left = 8
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


ARM = spaces.Dict(
    {"arm": spaces.Dict({"joints": spaces.Box(-9, 9, (2,))}), "on": spaces.Discrete(2)}
)
KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "discrete": ("dqn", (spaces.Box(-1, 1, (3,)), spaces.Discrete(4, start=2)), {}),
    "box": ("sac", (spaces.Box(-1, 1, (3,)), spaces.Box(-2, 5, (2,))), {"normalize_obs": True}),
    "dict": ("ppo", (ARM, spaces.MultiDiscrete([3, 2])), {"horizon": 16}),
    "memory": ("recurrent_ppo", (spaces.Box(-1, 1, (3,)), spaces.Discrete(4)), {"horizon": 16}),
    "image": (
        "ppo",
        (spaces.Box(0, 255, (12, 12, 1), np.uint8), spaces.Box(-1, 1, (2,))),
        {"horizon": 16},
    ),
    "asks": ("dt", (spaces.Box(-1, 1, (3,)), spaces.Discrete(4)), {}),
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return `trained(kind)`, the run of a kind, which is trained when it is first asked for."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def get(kind: str) -> Path:
        if kind not in made:
            name, parts, settings = KINDS[kind]
            budget: dict[str, Any] = {"env_steps": 64, "checkpoint_every": 16}
            if name == "dt":
                budget = {"updates": 2, "data": recorded(place)}
            elif name in ("dqn", "sac"):
                budget |= {"learning_starts": 16, "hidden": [16, 16]}
            run = assay.train(
                name, lambda: Drawn(*parts), root=place, name=kind, preset=False,
                **(TINY | budget | settings),
            )  # fmt: skip
            made[kind] = run.path
        return made[kind]

    return get


def recorded(place: Path) -> str:
    length = np.ones(8, bool)
    episode = assay.data.Episode(
        np.zeros((9, 3), np.float32), np.zeros(8, int), np.ones(8), ~length, ~length
    )
    observation, action = KINDS["asks"][1]
    made = assay.data.from_episodes([episode] * 4, observation, action)
    return str(assay.data.save(made, place / "set.npz"))


def predict(run: Path, obs: Path, out: Path, *more: Any) -> Any:
    arguments = ["predict", run, "--obs", obs, "--out", out, *more]
    return CliRunner().invoke(app, [str(one) for one in arguments])


def refused(*arguments: Any) -> str:
    result = predict(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def observations(kind: str, count: int) -> Any:
    space = KINDS[kind][1][0]
    space.seed(3)
    return [space.sample() for _ in range(count)]


def actions(run: Path, obs: Path, tmp_path: Path, *more: Any) -> Any:
    out = tmp_path / "actions.npy"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # such as torch's, of memory it may not write
        result = predict(run, obs, out, "--json", *more)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == len(np.load(out))
    return np.load(out)


@pytest.mark.parametrize("kind", ["discrete", "box", "image"])
def test_it_acts_as_the_agent_does(kind: str, trained: Any, tmp_path: Path) -> None:
    given = np.array(observations(kind, 30))
    np.save(tmp_path / "x.npy", given)
    found = actions(trained(kind), tmp_path / "x.npy", tmp_path, "--batch", 7)
    expected = assay.load(trained(kind)).act(given)
    assert len({str(one) for one in expected}) > 1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.dtype == KINDS[kind][1][1].dtype


def test_entries_of_a_dict_are_columns(trained: Any, tmp_path: Path) -> None:
    given = observations("dict", 20)
    lines = [f"{o['on']},{o['arm']['joints'][0]!s},{o['arm']['joints'][1]!s}" for o in given]
    (tmp_path / "x.csv").write_text("\n".join(["on,arm.joints.0,arm.joints.1", *lines]) + "\n")
    found = actions(trained("dict"), tmp_path / "x.csv", tmp_path)
    agent = assay.load(trained("dict"))
    assert found.tolist() == [agent.act(obs).tolist() for obs in given]


def test_memory_goes_from_row_to_row_and_not_from_episode_to_episode(
    trained: Any, tmp_path: Path
) -> None:
    run, given = trained("memory"), np.array(observations("memory", 12))
    episode = np.repeat([1, 2], 6)
    np.savez(tmp_path / "x.npz", obs=np.concatenate([given[:6]] * 2), episode=episode)
    twice = actions(run, tmp_path / "x.npz", tmp_path, "--batch", 5)
    agent, expected = assay.load(run), []
    for _ in range(2):
        agent.reset()
        expected += [agent.act(obs) for obs in given[:6]]
    assert twice.tolist() == expected
    text = predict(run, tmp_path / "x.npz", tmp_path / "y.csv").stdout
    assert "12 rows, episodes: 2" in text


def test_another_checkpoint_is_another_policy(trained: Any, tmp_path: Path) -> None:
    run = trained("box")
    first, *_ = counts = [int(one.name) for one in sorted((run / "checkpoints").iterdir())]
    assert len(counts) > 1
    np.save(tmp_path / "x.npy", np.array(observations("box", 5)))
    last = actions(run, tmp_path / "x.npy", tmp_path)
    assert not np.array_equal(
        last, actions(run, tmp_path / "x.npy", tmp_path, "--checkpoint", first)
    )
    text = refused(run, tmp_path / "x.npy", tmp_path / "y.npy", "--checkpoint", 1)
    assert "has no checkpoint '1'" in text and str(first) in text


def test_a_run_that_still_trains_may_delete_what_was_found(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained("image"), run)
    last = sorted((run / "checkpoints").iterdir())[-1]

    def goes_on(*_: Any) -> None:
        """Replace the last checkpoint by a later one, as a run does while torch is imported."""
        last.rename(last.with_name("000000000999"))

    monkeypatch.setattr("assay.prediction.acting.model_actor", goes_on)
    given = np.array(observations("image", 3))
    found = actions(run, save(tmp_path, given), tmp_path)
    np.testing.assert_allclose(found, assay.load(trained("image")).act(given), atol=1e-5)


def test_samples_are_those_of_the_seed(trained: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(observations("box", 20)))

    def sampled(*more: Any) -> list[Any]:
        return actions(trained("box"), tmp_path / "x.npy", tmp_path, *more).tolist()

    assert sampled("--sample", "--seed", 1) == sampled("--sample", "--seed", 1)
    assert sampled("--sample", "--seed", 1) != sampled("--sample", "--seed", 2)
    assert sampled("--sample") != sampled()


TORCH_FREE = """
import sys
from assay.cli import main

sys.argv = ["assay", "predict", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.mark.parametrize("kind", ["discrete", "box", "dict", "memory"])
def test_it_acts_without_torch(kind: str, trained: Any, tmp_path: Path) -> None:
    lines = [json.dumps({"obs": o}, default=lambda x: x.tolist()) for o in observations(kind, 4)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    paths = [
        str(trained(kind)),
        "--obs",
        str(tmp_path / "x.jsonl"),
        "--out",
        str(tmp_path / "a.csv"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", TORCH_FREE, *paths], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize("kind", ["discrete", "box", "memory", "image"])
def test_an_exported_file_acts_as_its_run_without_torch(
    kind: str, trained: Any, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    model = tmp_path / "policy.onnx"
    exported = CliRunner().invoke(
        app, ["export", str(trained(kind)), "--onnx", "--out", str(model)]
    )
    assert exported.exit_code == 0, exported.output
    np.savez(tmp_path / "x.npz", obs=np.array(observations(kind, 9)), first=np.arange(9) % 4 == 0)
    expected = actions(trained(kind), tmp_path / "x.npz", tmp_path)
    paths = [str(model), "--obs", str(tmp_path / "x.npz"), "--out", str(tmp_path / "b.npy")]
    done = subprocess.run(
        [sys.executable, "-c", TORCH_FREE, *paths], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    start = 2 if kind == "discrete" else 0  # a file counts choices from 0
    np.testing.assert_allclose(np.load(tmp_path / "b.npy") + start, expected, atol=1e-4)


def test_files_that_cannot_act_are_refused(trained: Any, tmp_path: Path) -> None:
    good, out = tmp_path / "x.npy", tmp_path / "a.csv"
    np.save(good, np.zeros((5, 3), np.float32))
    for name, message in (
        ("p.pt", "neither a run nor an ONNX"),
        ("p.onnx", "is not an ONNX model"),
    ):
        (tmp_path / name).write_text("nonsense")
        assert message in refused(tmp_path / name, good, out)
    assert "--sample has a meaning only with a run" in refused(
        tmp_path / "p.onnx", good, out, "--sample"
    )
    assert not out.exists()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_it_is_part_of_a_pipe(kind: str, trained: Any) -> None:
    rows = observations("discrete", 3)
    text = "".join(json.dumps({"obs": row.tolist()}) + "\n" for row in rows)
    if kind == "csv":
        text = "a,b,c\n" + "".join(",".join(map(str, row.tolist())) + "\n" for row in rows)
    command = [sys.executable, "-m", "assay", "predict", str(trained("discrete"))]
    command += ["--obs", "-", "--out", "-", *(["--format", "csv"] if kind == "csv" else [])]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    expected = assay.load(trained("discrete")).act(np.array(rows)).tolist()
    if kind == "csv":
        assert lines == ["action", *map(str, expected)]
    else:
        assert [json.loads(line)["action"] for line in lines] == expected


def test_mistakes_leave_nothing_behind(trained: Any, tmp_path: Path) -> None:
    run, good, out = trained("discrete"), tmp_path / "x.npy", tmp_path / "a.csv"
    np.save(good, np.zeros((5, 3), np.float32))
    bad = np.zeros((5, 3))
    bad[4, 1] = np.nan
    np.save(tmp_path / "nan.npy", bad)
    out.write_text("before")
    text = refused(run, tmp_path / "nan.npy", out, "--batch", 2)
    assert "Number 1 of 'obs' in row 4 of" in text and "is nan; expected a finite number" in text
    assert out.read_text() == "before" and not list(tmp_path.glob(".*"))
    assert predict(run, good, out).exit_code == 0
    assert out.read_text().startswith("action\n")


def test_bad_questions_are_refused(trained: Any, tmp_path: Path) -> None:
    run, good = trained("discrete"), tmp_path / "x.npy"
    np.save(good, np.zeros((5, 3), np.float32))
    assert "ends in .npy, .csv" in refused(run, good, tmp_path / "a.txt")
    (tmp_path / "dir.csv").mkdir()
    assert "is a directory" in refused(run, good, tmp_path / "dir.csv")
    assert "Cannot write" in refused(run, good, good / "inside.csv")
    (tmp_path / "link.npy").symlink_to(good)
    (tmp_path / "to").mkdir()
    for same in (good, tmp_path / "to/../x.npy", tmp_path / "link.npy"):
        assert "are one file" in refused(run, good, same)
    assert "are one file" in refused(run, tmp_path / "link.npy", good)
    assert np.load(good).shape == (5, 3)
    assert "--seed has a meaning only with --sample" in refused(
        run, good, tmp_path / "a.csv", "--seed", 1
    )
    assert "--format has a meaning only with -" in refused(
        run, good, tmp_path / "a.csv", "--format", "csv"
    )
    assert "expected jsonl or csv" in refused(run, good, "-", "--format", "xml")
    assert "no run at" in refused(tmp_path / "nowhere", good, tmp_path / "a.csv")
    assert "expected (N, 3)" in refused(run, save(tmp_path, np.zeros((2, 4))), tmp_path / "a.csv")
    assert "observations hold no rewards" in refused(trained("asks"), good, tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


def save(place: Path, array: Any) -> Path:
    np.save(place / "other.npy", array)
    return place / "other.npy"
