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
from terminal import Terminal

from assay.skills import checks
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
        self.home = self.place = home

    def __call__(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [self._command, *words], cwd=self.place, env=self._environment | (environment or {}),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on_terminal(self, *words: str) -> Terminal:
        """Start it as a person does."""
        return Terminal([self._command, *words], self.place, self._environment)

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


def codex_with(home: Path, *names: str) -> Client:
    found = Client("codex", home)
    found("plugin", "marketplace", "add", str(LIBRARY))
    for name in names:
        found("plugin", "add", f"{name}@assay")
    return found


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Codex with all plugins, after a person trusted the hook: it asks for that when it starts."""
    codex = codex_with(tmp_path_factory.mktemp("codex"), *(plugin.name for plugin in PLUGINS))
    trusted = f'projects."{codex.home}".trust_level="trusted"'
    with (
        ScriptedModel("true") as model,
        codex.on_terminal(*of_model(model), "-c", trusted) as terminal,
    ):
        terminal.until(lambda: "2. Trust all and continue" in terminal.screen())
        assert "1 hook is new" in terminal.screen()
        terminal.press(
            "2", lambda: "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} 2." in terminal.screen()
        )
        terminal.press("\r", lambda: hook_of(codex.home) == "trusted")
    return codex


def hook_of(home: Path) -> str:
    """Return what `assay skills doctor` says of the hook in Codex."""
    found = checks.doctor(home, {"HOME": str(home)})
    return next(finding.detail for finding in found if finding.name == "codex, hook")


def of_model(model: ScriptedModel) -> list[str]:
    """Return the settings by which Codex talks to a model of ours."""
    provider = f'{{name="scripted", base_url="{model.url}/v1", wire_api="responses"}}'
    settings = ("model=scripted", "model_provider=scripted",
                f"model_providers.scripted={provider}")  # fmt: skip
    return [word for setting in settings for word in ("-c", setting)]


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
        client("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access",
               *of_model(model), "train it")  # fmt: skip
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


def test_codex_passes_over_a_hook_that_nobody_trusted(home: Path, tmp_path: Path) -> None:
    codex = codex_with(home, STUDY.name)
    assert "not trusted" in hook_of(home)
    codex.enter(tmp_path, study=True)
    assert DENIED not in ask_codex(codex).texts() and codex.trained()


def test_claude_code_trains_where_no_study_is(claude: Client, tmp_path: Path) -> None:
    claude.enter(tmp_path, study=False)
    assert DENIED not in ask_claude(claude).texts() and claude.trained()


def test_codex_trains_where_no_study_is(codex: Client, tmp_path: Path) -> None:
    codex.enter(tmp_path, study=False)
    assert DENIED not in ask_codex(codex).texts() and codex.trained()
