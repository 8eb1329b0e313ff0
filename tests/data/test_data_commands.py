"""`assay data`: what users type, and what they get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import OBS, sample
from gymnasium.spaces import Box
from typer.testing import CliRunner

from assay import data
from assay.cli.app import app


def cli(*arguments: Any) -> Any:
    """Run `assay data ...` in this process."""
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory to work in, with `a.npz` in it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    data.save(sample(10), "a.npz")
    return tmp_path


def test_inspect() -> None:
    shown = cli("inspect", "a.npz")
    assert shown.exit_code == 0, shown.output
    assert "10 episodes with 75 steps" in shown.output and "Discrete(3, start=2)" in shown.output
    assert "5 terminated, 5 truncated, 0 neither" in shown.output
    facts = json.loads(cli("inspect", "a.npz", "--json").stdout)
    assert facts["sha256"] == sample(10).content_hash and facts["action_coverage"] == [1.0]
    data.save(sample(3, action=Box(-1, 1, (1,))), "box.npz")
    assert "of each component's range" in cli("inspect", "box.npz").output
    drawn = cli("inspect", "a.npz", "--plot", "a.png")
    assert drawn.exit_code == 0 and Path("a.png").read_bytes()[1:4] == b"PNG"


def test_validate() -> None:
    fine = cli("validate", "a.npz", "--json")
    assert fine.exit_code == 0 and json.loads(fine.stdout) == {"valid": True, "findings": []}
    foreign = cli("validate", "a.npz", "--env", "CartPole-v1", "--json")
    assert foreign.exit_code == 2
    (finding,) = json.loads(foreign.stdout)["findings"]
    assert (finding["code"], finding["field"]) == ("spaces", "obs")
    Path("cut.npz").write_bytes(Path("a.npz").read_bytes()[:900])
    broken = cli("validate", "cut.npz")
    assert broken.exit_code == 2 and "'cut.npz' is not a whole NPZ" in broken.output


def test_one_of_something_is_no_plural() -> None:
    Path("cut.npz").write_bytes(Path("a.npz").read_bytes()[:900])
    assert cli("validate", "cut.npz").output.endswith("cut.npz: not valid, 1 finding.\n")
    assert cli("validate", "a.npz").output == "a.npz: valid, 0 findings.\n"
    twice = list(data.load("a.npz").episodes())[:1]
    spaces = data.load("a.npz").schema.observation, data.load("a.npz").schema.action
    data.save(data.from_episodes(twice, *spaces), "one.npz")
    assert "1 episode with " in cli("inspect", "one.npz").output
    data.save(data.from_episodes([*twice, *twice], *spaces), "two.npz")
    told = [one.message for one in data.validate("two.npz") if one.code == "duplicate"]
    assert told == ["1 episode of 'two.npz' repeats another: episode 1 is episode 0."]


def test_a_missing_environment() -> None:
    result = cli("validate", "a.npz", "--env", "CartPol-v1")
    assert result.exit_code == 2 and "CartPole-v1" in result.stderr


def test_convert_and_back() -> None:
    pytest.importorskip("h5py")
    there = cli("convert", "a.npz", "sets/b.hdf5", "--json")
    assert there.exit_code == 0, there.output
    assert json.loads(there.stdout)["sha256"] == sample(10).content_hash
    back = cli("convert", "sets/b.hdf5", "c.npz")
    assert back.exit_code == 0 and "10 episodes" in back.output
    assert Path("c.npz").read_bytes() == Path("a.npz").read_bytes()


def test_split_and_merge() -> None:
    parts = cli("split", "a.npz", "train.npz", "test.npz", "--fraction", 0.8, "--json")
    assert parts.exit_code == 0, parts.output
    assert [part["episodes"] for part in json.loads(parts.stdout)] == [8, 2]
    whole = cli("merge", "train.npz", "test.npz", "--out", "whole.npz", "--json")
    assert json.loads(whole.stdout)["steps"] == 75
    refused = cli("split", "a.npz", "x.npz", "y.npz", "--fraction", 1.5)
    assert refused.exit_code == 2 and not Path("x.npz").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("a.npz", "b.npz"), "'a.npz' is given twice"),
        (("b.npz", "./a.npz"), "'./a.npz' is given twice"),
        (("b.npz", "b.npz"), "'b.npz' is given twice"),
        (("b.npz", "c.txt"), "no ending that names a format"),
    ],
)
def test_a_split_that_would_lose_episodes(parts: tuple[str, str], message: str) -> None:
    refused = cli("split", "a.npz", *parts, "--fraction", 0.5)
    assert refused.exit_code == 2 and message in refused.stderr, refused.output
    assert data.load("a.npz").num_episodes == 10 and not Path("b.npz").exists()


def test_list() -> None:
    empty = cli("list")
    assert empty.exit_code == 0 and "There are no datasets in 'data'" in empty.output
    data.save(sample(), "data/b.npz")
    Path("data/bad.npz").touch()
    listed = json.loads(cli("list", "--json").stdout)
    assert [one["path"] for one in listed] == ["data/b.npz", "data/bad.npz"]
    assert listed[0]["episodes"] == 5 and "0 bytes" in listed[1]["error"]
    assert "data/b.npz" in cli("list").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nothing.npz"), "There is no file 'nothing.npz'"),
        (("convert", "a.npz", "b.txt"), "no ending that names a format"),
        (("inspect", "empty.npz"), "'empty.npz' is empty: it has 0 bytes"),
        (("merge", "a.npz", "other.npz", "--out", "c.npz"), "The spaces of"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    Path("empty.npz").touch()
    two = data.Episode(
        np.zeros((2, 2), np.float32), np.zeros(1), np.zeros(1), np.ones(1) > 0, np.ones(1) > 2
    )
    data.save(data.from_episodes([two], OBS, Box(-1, 1, ())), "other.npz")
    result = cli(*arguments)
    assert result.exit_code == 2 and message in result.stderr.replace("\n", " "), result.output
    assert not Path("c.npz").exists()
