"""The real clients take the plugins; without a network, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from assay.skills.library import LIBRARY, plugins

STUDY = next(plugin for plugin in plugins() if plugin.name == "assay-study")


def client(name: str, home: Path, *words: str) -> str:
    command = shutil.which(name)
    if command is None:
        pytest.skip(f"{name} is not installed (npm install -g it)")
    environment = os.environ | {"HOME": str(home)}
    done = subprocess.run(
        [command, *words], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_claude_code_lists_every_skill(home: Path) -> None:
    assert "passed" in client("claude", home, "plugin", "validate", str(LIBRARY))
    client("claude", home, "plugin", "marketplace", "add", str(LIBRARY))
    client("claude", home, "plugin", "install", "assay-study@assay")
    said = client("claude", home, "plugin", "details", "assay-study")
    assert [skill.name for skill in STUDY.skills if skill.name not in said] == []
    assert "Agents (3)" in said and "PreToolUse" in said


@pytest.mark.slow
def test_codex_installs_the_plugin(home: Path) -> None:
    client("codex", home, "plugin", "marketplace", "add", str(LIBRARY))
    client("codex", home, "plugin", "add", "assay-study@assay")
    assert "installed, enabled" in client("codex", home, "plugin", "list")
    cached = {path.parent.name for path in home.rglob("plugins/cache/**/SKILL.md")}
    assert cached == {skill.name for skill in STUDY.skills}
