"""Other people's validators find nothing wrong with the library: skills-ref and skillsaw."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assay.skills.library import LIBRARY, plugins

SKILLS = [skill for plugin in plugins() for skill in plugin.skills]


def test_skills_ref_takes_every_skill(tmp_path: Path) -> None:
    skills_ref = pytest.importorskip("skills_ref")
    assert {s.name: said for s in SKILLS if (said := skills_ref.validate(s.path))} == {}
    other = shutil.copytree(SKILLS[0].path, tmp_path / "another-name")
    assert skills_ref.validate(other) != []


def test_skillsaw_has_neither_errors_nor_warnings() -> None:
    pytest.importorskip("skillsaw")
    lint = [sys.executable, "-m", "skillsaw", "lint", "--strict", "--no-plugins", "--no-progress"]
    done = subprocess.run([*lint, str(LIBRARY)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Skills:    {len(SKILLS)}" in done.stdout
