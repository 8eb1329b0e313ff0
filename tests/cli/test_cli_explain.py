"""`assay explain` and `assay plot --video`, on runs that were trained for a moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli
from PIL import Image

import assay
from assay.explanation.page import page
from assay.explanation.report import explain

SMALL: dict[str, Any] = {"compile": False, "sinks": (), "eval_every": 0, "preset": False}
ROLLOUT: dict[str, Any] = {"num_envs": 4, "horizon": 16, "env_steps": 128}
REPLAY: dict[str, Any] = {"env_steps": 60, "learning_starts": 40, "batch_size": 8}


def test_a_run_is_explained(cli: Cli, runs: Path) -> None:
    options = ("--episodes", 2, "--states", 8, "--names", "x,v,angle,spin")
    done = cli("explain", "a/seed-1", *options, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == (0 if found["believable"] else 1)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["same actions"]["passed"] and checks["completeness"]["passed"]
    assert {"random weights: gradient", "random weights: integrated", "deletion"} < set(checks)
    assert {one["name"] for one in found["features"]} == {"x", "v", "angle", "spin"}
    for method in ("gradient", "smoothgrad", "integrated", "occlusion"):
        assert sum(one[method] for one in found["features"]) == pytest.approx(1.0)
    shares = [one["integrated"] for one in found["features"]]
    assert shares == sorted(shares, reverse=True)
    assert found["values"]["states"] == sum(found["returns"]) and found["memory"] is None
    reasons = {one["reason"] for one in found["moments"]}
    assert reasons == {"most at stake", "closest call", "expected too much", "expected too little"}
    text = Path(found["page"]).read_text()
    assert found["page"] == str(runs / "a" / "seed-1" / "explanation.html")
    assert text.count("data:image/png;base64,") == len(found["moments"])  # drawn by the environment
    assert "http:" not in text and "https:" not in text and "<script" not in text
    again = cli("explain", "a/seed-1", *options, "--html", "mine.html")
    assert "Values: It expects" in again.stdout and "Page: mine.html" in again.stdout
    assert Path("mine.html").read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--names", "x,v"), "2 names for 4 numbers"),
        (("--episodes", 0), "episodes=0: expected at least 1"),
        (("--states", 0), "states=0: expected at least 1"),
        (("--of", "feeling"), "feeling"),
    ],
)
def test_bad_options(cli: Cli, runs: Path, options: tuple[Any, ...], message: str) -> None:
    done = cli("explain", "a/seed-1", *options)
    assert done.exit_code == 2 and message in done.stderr
    assert not (runs / "a" / "seed-1" / "explanation.html").exists()


def test_runs_that_cannot_be_explained(cli: Cli, root: Path) -> None:
    assay.train("cfr", "kuhn_poker", root=root, name="table", updates=2)
    done = cli("explain", "table")
    assert done.exit_code == 2 and "by a table, not by a network" in done.stderr
    assert cli("explain", "nothing").exit_code == 2


def test_an_image_and_its_value(root: Path) -> None:
    run = assay.train("ppo", "assay/Catch-v0", root=root, **SMALL, **ROLLOUT)
    found = explain(run.path, of="value", episodes=2, states=6)
    assert found.outputs == ("value",) and [one.name for one in found.features] == ["image"]
    assert "random weights: grad-cam" in {check.name for check in found.checks}
    names = {"seen", "integrated", "occlusion", "Grad-CAM", "Grad-CAM, element-wise"}
    for one in found.moments:
        assert names <= set(one.pictures)
        assert {picture.shape for name, picture in one.pictures.items() if name in names} == {
            (160, 160, 3)  # every pixel of 16 by 16 is a square
        }
    seen = found.moments[0].pictures["seen"]
    assert set(np.unique(seen)) == {0, 255}  # ball and paddle
    assert page(found).count("<img") == sum(len(one.pictures) for one in found.moments)


def test_a_memory_is_judged(cli: Cli, root: Path) -> None:
    assay.train(
        "recurrent_ppo", "assay/Recall-v0", root=root, name="memory", memory_size=8, chunk=8,
        **SMALL, **ROLLOUT,
    )  # fmt: skip
    done = cli("explain", "memory", "--episodes", 3, "--states", 6)
    assert done.exit_code in (0, 1), done.stderr
    assert "Memory: The memory " in done.stdout and "memory counts most" in done.stdout
    assert "What it remembers" in (root / "memory" / "explanation.html").read_text()


def test_box_actions_are_explained_one_by_one(root: Path) -> None:
    run = assay.train("sac", "Pendulum-v1", root=root, hidden=(16,), **SMALL, **REPLAY)
    found = explain(run.path, episodes=1, states=8, max_steps=30)
    assert found.outputs == ("action",) and not isinstance(found.values, str)
    assert "entropy" in found.values.note and "unusual action" in {m.reason for m in found.moments}
    assert {check.name: check.passed for check in found.checks}["completeness"]


def test_two_runs_side_by_side(cli: Cli, runs: Path) -> None:
    done = cli("plot", "a/seed-1", "b/seed-1", "--video", "--seed", 3)
    assert done.exit_code == 0, done.stderr
    assert "Video: video.gif" in done.stdout
    with Image.open("video.gif") as film:
        # Two frames of 600 by 400 with a gap between, and a title above.
        assert film.size == (2 * 600 + 4, 400 + 20)
        longest = max(
            int(line.rpartition(" in ")[2].split()[0])
            for line in done.stdout.splitlines()
            if line.startswith(("a/", "b/"))
        )
        assert film.n_frames <= longest + 1  # equal frames may be one
        title = np.asarray(film.convert("RGB"))[:20]
    assert title[:, :600].any() and title[:, 604:].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a/seed-1", "--video"), "1 run; expected two to 4"),
        (("a", "b/seed-1", "--video"), "'a' is a group of 3 runs"),
        (("a/seed-1", "b/seed-1", "--video", "--text"), "--text has no meaning with --video"),
        (("a/seed-1", "--episodes", 2), "--episodes has no meaning without --video"),
        (("a/seed-1", "b/seed-1", "--video", "--out", "x.png"), "expected .gif or .mp4"),
    ],
)
def test_videos_that_are_refused(
    cli: Cli, runs: Path, arguments: tuple[Any, ...], message: str
) -> None:
    done = cli("plot", *arguments)
    assert done.exit_code == 2 and message in done.stderr
    assert not Path("video.gif").exists() and not Path("x.png").exists()


def test_a_run_that_is_read_only_is_explained_elsewhere(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known before anything is played, and --out names another place."""
    place = runs / "a" / "seed-1"
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != place and real(path, mode)
    )  # root may write anywhere
    done = cli("explain", "a/seed-1", "--episodes", 1, "--states", 4)
    assert done.exit_code == 2 and done.stdout == ""
    assert f"'{place}' is read-only." in done.stderr and "--out FILE" in done.stderr
    done = cli("explain", "a/seed-1", "--episodes", 1, "--states", 4, "--out", "why.html")
    assert "Page: why.html" in done.stdout and Path("why.html").exists()
