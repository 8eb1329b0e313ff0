"""The real clients take the plugins, show their skills and obey the hook; without a network.

`make test` installs both clients where npm is. A model of ours stands for the real one: it asks for
a command that trains, and keeps what the client sent to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripted_model import ScriptedModel

from assay.skills.library import LIBRARY, plugins

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / ".venv/clients/node_modules/.bin"  # as in the Makefile
PLUGINS = plugins()
STUDY = next(plugin for plugin in PLUGINS if plugin.name == "assay-study")
DENIED = "trains outside of the study"
pytestmark = pytest.mark.slow


class Client:
    """An installed client, in a home of its own."""

    def __init__(self, name: str, home: Path) -> None:
        places = os.pathsep.join((str(CLIENTS), os.environ["PATH"]))
        command = shutil.which(name, path=places)
        if command is None:
            pytest.skip(f"{name} is not installed: .ci/clients.sh .venv/clients, which needs npm")
        self._command = command
        # Nothing of whoever runs the tests: neither accounts nor settings.
        self._environment = {"HOME": str(home), "PATH": places}
        self.place = home

    def __call__(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [self._command, *words], cwd=self.place, env=self._environment | (environment or {}),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def enter(self, place: Path, study: bool) -> None:
        """Go to a repository with a script that trains, and a study of it if so."""
        self.place = place
        (self.place / "train.py").write_text("open('trained', 'w').close()\n")
        if study:
            (self.place / ".rlxp").mkdir()
            (self.place / ".rlxp/registry.yaml").write_text("task: t\n")

    def trained(self) -> bool:
        return (self.place / "trained").exists()


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Client:
    found = Client("claude", tmp_path_factory.mktemp("claude"))
    found("plugin", "marketplace", "add", str(LIBRARY))
    found("plugin", "install", "assay-study@assay")
    return found


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Client:
    found = Client("codex", tmp_path_factory.mktemp("codex"))
    found("plugin", "marketplace", "add", str(LIBRARY))
    for plugin in PLUGINS:
        found("plugin", "add", f"{plugin.name}@assay")
    return found


def ask_claude(client: Client) -> ScriptedModel:
    others = [("--plugin-dir", str(p.path)) for p in PLUGINS if p is not STUDY]
    with ScriptedModel("python3 train.py") as model:
        where = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none",
                 "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}  # fmt: skip
        words = [word for pair in others for word in pair]
        client("-p", "train it", "--allowedTools", "Bash", *words, environment=where)
    return model


def ask_codex(client: Client) -> ScriptedModel:
    with ScriptedModel("python3 train.py") as model:
        provider = f'{{name="scripted", base_url="{model.url}/v1", wire_api="responses"}}'
        settings = ("model=scripted", "model_provider=scripted",
                    f"model_providers.scripted={provider}")  # fmt: skip
        words = [word for setting in settings for word in ("-c", setting)]
        # Hooks of plugins run once a person has trusted them, which is what the flag stands for.
        client("exec", "--dangerously-bypass-hook-trust", "--skip-git-repo-check",
               "--sandbox", "danger-full-access", *words, "train it")  # fmt: skip
    return model


def unlisted(model: ScriptedModel) -> list[str]:
    """Return the skills that the model was not shown with their whole description."""
    seen = model.texts()
    return [
        skill.name for plugin in PLUGINS for skill in plugin.skills if skill.listing not in seen
    ]


def test_claude_code_takes_the_marketplace(claude: Client) -> None:
    assert "passed" in claude("plugin", "validate", str(LIBRARY))
    said = claude("plugin", "details", "assay-study")
    assert [skill.name for skill in STUDY.skills if skill.name not in said] == []
    assert "Agents (3)" in said and "PreToolUse" in said


def test_codex_takes_the_marketplace(codex: Client) -> None:
    said = codex("plugin", "list")
    assert said.count("installed, enabled") == len(PLUGINS)


def test_claude_code_shows_every_skill_and_denies_training(claude: Client, tmp_path: Path) -> None:
    claude.enter(tmp_path, study=True)
    model = ask_claude(claude)
    assert unlisted(model) == []
    assert DENIED in model.texts() and not claude.trained()


def test_codex_shows_every_skill_and_denies_training(codex: Client, tmp_path: Path) -> None:
    codex.enter(tmp_path, study=True)
    model = ask_codex(codex)
    assert unlisted(model) == []
    assert DENIED in model.texts() and not codex.trained()


def test_claude_code_trains_where_no_study_is(claude: Client, tmp_path: Path) -> None:
    claude.enter(tmp_path, study=False)
    assert DENIED not in ask_claude(claude).texts() and claude.trained()


def test_codex_trains_where_no_study_is(codex: Client, tmp_path: Path) -> None:
    codex.enter(tmp_path, study=False)
    assert DENIED not in ask_codex(codex).texts() and codex.trained()
