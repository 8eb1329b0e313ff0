"""Before a release: the checkout's own program checks it, and a checkout of Holosoma if named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli.app import app
from assay.skills.library import LIBRARY, chosen
from assay.study.repo.audit import inspect

ROOT = LIBRARY.parents[3]
TRAIN = """import gymnasium
import holosoma
import tyro

def main(config):
    env.step(0)
    algo.learn()
    writer.add_scalar("Train/mean_reward", 1.0, 0)

tyro.cli(main)
"""
REWARD = """from holosoma.config_types.reward import RewardTermCfg
terms = {
    "tracking": RewardTermCfg(func="holosoma.terms:tracking", weight=2.0),
    "penalty_rate": RewardTermCfg(func="holosoma.terms:rate", weight=-1.0),
}
"""
README = """```bash
python src/holosoma/holosoma/train_agent.py exp:g1-29dof simulator:mjwarp --training.seed 1
```
"""


def check(*words: object, code: int) -> str:
    done = CliRunner().invoke(app, ["skills", "release-check", *map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture
def holosoma(tmp_path: Path) -> Path:
    root = tmp_path / "holosoma"
    package = root / "src/holosoma/holosoma"
    package.mkdir(parents=True)
    (root / "README.md").write_text(README)
    (package / "train_agent.py").write_text(TRAIN)
    (package / "reward.py").write_text(REWARD)
    return root


def test_a_checkout_of_holosoma(holosoma: Path) -> None:
    said = check("--root", ROOT, "--holosoma", holosoma, code=0)
    assert "train_agent.py exp:g1-29dof simulator:mjwarp --training.seed {seed}" in said
    assert "2 reward terms, 1 metric" in said


def test_what_is_no_checkout_of_holosoma(holosoma: Path, tmp_path: Path) -> None:
    (holosoma / "src/holosoma/holosoma/reward.py").unlink()
    said = check("--root", ROOT, "--holosoma", holosoma, code=1)
    assert "the audit finds no reward terms" in said
    shutil.rmtree(holosoma / "src")
    assert "profile mismatch" in check("--root", ROOT, "--holosoma", holosoma, code=1)
    said = check("--root", ROOT, "--holosoma", tmp_path / "none", code=2)
    assert "is not a directory" in said and "--holosoma" in said


def test_scene_traversal_is_a_profile_and_never_the_default(holosoma: Path) -> None:
    audit = next(skill.path for skill in chosen(["rlxp-audit-task"]))
    page = (audit / "references/holosoma.md").read_text()
    (profile,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (holosoma / "scene-traversal.yaml").write_text(profile)
    usual = inspect(holosoma).adapter
    assert usual.profile == "holosoma" and "terrain-load-obj" not in str(usual)
    asked = inspect(holosoma, str(holosoma / "scene-traversal.yaml"))
    assert asked.adapter.profile == "scene-traversal" and asked.findings == ()
    assert "terrain:terrain-load-obj" in str(asked.adapter.train)


def test_another_checkout_than_the_program_is_of(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    said = check("--root", tmp_path, code=2)
    assert "not in the checkout" in said and "make setup" in said
