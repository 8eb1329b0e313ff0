"""Installing, upgrading and taking away skills: idempotent, and never at the user's expense."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from assay import __version__
from assay.cli import doctor
from assay.cli.app import app
from assay.skills import checks, folders, install
from assay.skills.index_block import FOOTER, HEADER, with_block
from assay.skills.library import LIBRARY, SkillsError, chosen
from assay.skills.places import place

FEW = ["rlxp-audit-task", "rlxp-autoloop"]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of the library that a test may change, as a later version would."""
    target = tmp_path / "library"
    shutil.copytree(LIBRARY, target)
    return target


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def actions(report: install.Report) -> dict[str, int]:
    found: dict[str, int] = {}
    for change in report.changes:
        found[change.action] = found.get(change.action, 0) + 1
    return found


def skill_of(library: Path, name: str) -> Path:
    return library / "plugins/assay-study/skills" / name / "SKILL.md"


@pytest.mark.parametrize("host", ["claude", "codex"])
@pytest.mark.parametrize("scope", ["project", "user"])
def test_twice_is_as_once_and_uninstall_leaves_nothing(
    project: Path, home: Path, host: str, scope: str
) -> None:
    here = place(host, scope, project)
    base = project if scope == "project" else home
    install.install(here, chosen(FEW))
    before = tree(base)
    assert any(name.endswith("skills/rlxp-autoloop/scripts/snapshot.py") for name in before)
    assert not any("evals" in name for name in before)
    again = install.install(here, chosen(FEW))
    assert tree(base) == before and set(actions(again)) == {"same"}
    install.uninstall(here)
    assert tree(base) == {} and install.read_manifest(here)["skills"] == []
    other = home if scope == "project" else project
    assert list(other.iterdir()) == []


def test_agents_in_the_form_of_each_host(project: Path) -> None:
    install.install(place("codex", "project", project), chosen(FEW))
    found = tomllib.loads((project / ".codex/agents/reward-reviewer.toml").read_text())
    assert (
        found["name"] == "reward-reviewer"
        and "assay study review" in found["developer_instructions"]
    )
    install.install(place("claude", "project", project), chosen(FEW))
    text = (project / ".claude/agents/reward-reviewer.md").read_text()
    assert text.startswith("---\nname: reward-reviewer\n")


def test_edits_of_the_user_survive(project: Path, library: Path) -> None:
    here = place("claude", "project", project)
    install.install(here, chosen(FEW, library))
    mine = project / ".claude/skills/rlxp-audit-task/SKILL.md"
    mine.write_text(mine.read_text() + "Mine.\n")
    note = mine.with_name("notes.txt")
    note.write_text("mine, too")
    skill_of(library, "rlxp-audit-task").write_text(
        skill_of(library, "rlxp-audit-task").read_text() + "New.\n"
    )
    report = install.install(here, chosen(FEW, library))
    assert actions(report)["keep"] == 1 and mine.read_text().endswith("Mine.\n")
    assert mine in install.edited(here)
    install.uninstall(here)
    assert tree(project).keys() == {
        ".claude/skills/rlxp-audit-task/SKILL.md",
        ".claude/skills/rlxp-audit-task/notes.txt",
        str(here.manifest.relative_to(project)),
    }
    assert mine.read_text().endswith("Mine.\n")
    # It is still known, so that --force removes what was edited, and what is not ours stays.
    install.uninstall(here, force=True)
    assert tree(project) == {".claude/skills/rlxp-audit-task/notes.txt": b"mine, too"}
    install.install(here, chosen(FEW, library), force=True)
    assert mine.read_text().endswith("New.\n") and note.read_text() == "mine, too"


def test_a_skill_that_was_there_before_is_not_ours(project: Path) -> None:
    mine = project / ".claude/skills/rlxp-autoloop/SKILL.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("my own")
    here = place("claude", "project", project)
    report = install.install(here, chosen(["rlxp-autoloop"]))
    assert [c.path for c in report.having("keep")] == [mine] and mine.read_text() == "my own"
    install.uninstall(here)
    assert mine.read_text() == "my own"


def test_an_upgrade_replaces_and_removes(project: Path, library: Path) -> None:
    here = place("codex", "project", project)
    install.install(here, chosen(FEW, library))
    skill_of(library, "rlxp-audit-task").write_text(
        skill_of(library, "rlxp-audit-task").read_text() + "New.\n"
    )
    shutil.rmtree(skill_of(library, "rlxp-autoloop").parent)
    report = install.install(here, chosen(["rlxp-make-contract"], library))
    assert report.skills == ["rlxp-audit-task", "rlxp-make-contract"]
    place_ = project / ".agents/skills"
    assert sorted(p.name for p in place_.iterdir()) == report.skills
    assert (place_ / "rlxp-audit-task/SKILL.md").read_text().endswith("New.\n")
    index = (project / "AGENTS.md").read_text()
    assert "rlxp-make-contract" in index and "rlxp-autoloop/" not in index


def test_some_skills_are_taken_away(project: Path) -> None:
    here = place("codex", "project", project, codex_folder=True)
    install.install(here, chosen(FEW))
    install.uninstall(here, ["rlxp-autoloop"])
    for folder in (".agents", ".codex"):
        assert [p.name for p in (project / folder / "skills").iterdir()] == ["rlxp-audit-task"]
    assert "rlxp-autoloop/" not in (project / "AGENTS.md").read_text()
    with pytest.raises(SkillsError, match="'rlxp-autoloop' is not installed"):
        install.uninstall(here, ["rlxp-autoloop"])


class Killed(BaseException):
    """What a kill looks like from inside."""


def dying(real: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def call(*words: Any, **options: Any) -> Any:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return real(*words, **options)

    return call


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("step", range(12))
def test_a_kill_leaves_every_skill_old_or_new(
    project: Path, library: Path, monkeypatch: pytest.MonkeyPatch, step: int, exchanges: bool
) -> None:
    here = place("claude", "project", project)
    install.install(here, chosen(FEW, library))
    mine = project / ".claude/skills" / FEW[0] / "notes.txt"
    mine.write_text("mine")
    for name in FEW:
        file = skill_of(library, name)
        file.write_text(file.read_text() + "New.\n")
        (file.parent / "references").mkdir(exist_ok=True)
        (file.parent / "references/new.md").write_text("new")
    left = [step]
    with monkeypatch.context() as patched:
        if not exchanges:
            patched.setattr(folders, "exchange", lambda *_: False)
        patched.setattr(os, "rename", dying(os.rename, left))
        patched.setattr(os, "replace", dying(os.replace, left))
        patched.setattr(folders, "write_synced", dying(folders.write_synced, left))
        try:
            install.install(here, chosen(FEW, library))
        except Killed:
            pass
    if exchanges:
        for name in FEW:
            folder = project / ".claude/skills" / name
            new = (folder / "SKILL.md").read_text().endswith("New.\n")
            assert (folder / "references/new.md").exists() == new
    for name in FEW:  # and the next version completes it
        file = skill_of(library, name)
        file.write_text(file.read_text() + "Newer.\n")
    report = install.install(here, chosen(FEW, library))
    assert report.having("keep") == []
    for name in FEW:
        folder = project / ".claude/skills" / name
        assert (folder / "SKILL.md").read_text().endswith("Newer.\n")
        assert (folder / "references/new.md").read_text() == "new"
    assert sorted(p.name for p in (project / ".claude/skills").iterdir()) == sorted(FEW)
    assert install.edited(here) == []
    install.uninstall(here)
    assert tree(project) == {str(mine.relative_to(project)): b"mine"}


class TestIndex:
    NEW = f"{HEADER}\nnew\n{FOOTER}"

    @pytest.mark.parametrize("newline", ["\n", "\r\n"])
    def test_in_place_appended_and_taken_out(self, newline: str) -> None:
        text = newline.join(["# Mine", "", HEADER, "old", FOOTER, "", "after", ""])
        after = with_block(text, self.NEW, Path("A"))
        assert after == newline.join(["# Mine", "", HEADER, "new", FOOTER, "", "after", ""])
        assert with_block(after, self.NEW, Path("A")) == after
        assert with_block(after, None, Path("A")) == newline.join(["# Mine", "", "after", ""])
        mine = newline.join(["# Mine", ""])
        added = with_block(mine, self.NEW, Path("A"))
        assert added == newline.join(["# Mine", "", HEADER, "new", FOOTER, ""])
        assert with_block(added, None, Path("A")) == mine
        assert with_block(with_block("", self.NEW, Path("A")), None, Path("A")) == ""

    def test_mixed_line_endings_have_one_block(self) -> None:
        text = f"# Mine\r\n\r\n{HEADER}\nold\n{FOOTER}\nafter\n"
        after = with_block(text, self.NEW, Path("A"))
        assert after == f"# Mine\r\n\r\n{HEADER}\r\nnew\r\n{FOOTER}\r\nafter\n"
        assert with_block(after, self.NEW, Path("A")) == after
        assert with_block(after, None, Path("A")) == "# Mine\r\nafter\n"

    @pytest.mark.parametrize(
        "lines", [[HEADER], [FOOTER], [FOOTER, HEADER], [HEADER, FOOTER, HEADER, FOOTER]]
    )
    def test_half_a_marker(self, lines: list[str]) -> None:
        text = "\n".join(["before", *lines, "after", ""])
        with pytest.raises(SkillsError, match="line 2"):
            with_block(text, self.NEW, Path("A"))
        if len(lines) == 1:
            forced = with_block(text, self.NEW, Path("A"), force=True)
            assert forced == f"before\n{self.NEW}\nafter\n"


def cli(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["skills", *map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


class TestBadInput:
    """One clear message, exit code 2, and nothing is written."""

    def refused(self, project: Path, *words: object) -> str:
        before = tree(project)
        said = cli("install", "--root", project, "--yes", *words, code=2)
        assert tree(project) == before and not list(project.glob("**/.assay-*"))
        return said

    def test_names(self, project: Path) -> None:
        assert "Did you mean 'claude'" in self.refused(project, "--host", "claud")
        assert "'global' is not a scope" in self.refused(project, "--scope", "global")
        assert "Did you mean 'rlxp-autoloop'" in self.refused(project, "--skills", "rlxp-autolop")
        assert "is not a directory" in self.refused(project, "--root", project / "none")

    def test_links(self, project: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (project / ".claude").mkdir()
        (project / ".claude/skills").symlink_to(tmp_path / "elsewhere")
        assert "is a symbolic link" in self.refused(project)
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_file_in_the_way(self, project: Path) -> None:
        (project / ".claude").write_text("")
        assert "is not a folder" in self.refused(project)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"schema": 9, "files": {}}', "knows 1"),
            ("{", "cannot be read"),
            ('{"schema": 1, "files": {}, "skills": 7}', "cannot be read"),
            ('{"schema": 1, "files": {"a": 5}}', "cannot be read"),
        ],
    )
    def test_manifests(self, project: Path, text: str, words: str) -> None:
        (project / ".claude").mkdir()
        (project / ".claude/assay-skills.json").write_text(text)
        assert words in self.refused(project)

    @pytest.mark.parametrize(
        "key", ["../victim", "notes.md", ".claude/skills/../../../victim", "/victim"]
    )
    def test_a_manifest_that_names_files_elsewhere(self, project: Path, key: str) -> None:
        victims = (project.parent / "victim", project / "notes.md")
        for victim in victims:
            victim.write_text("mine")
        key = f"{project.parent}{key}" if key.startswith("/") else key
        files = {key: [install.digest(b"mine")]}
        (project / ".claude").mkdir()
        (project / ".claude/assay-skills.json").write_text(
            json.dumps({"schema": 1, "version": "0.0.1", "skills": FEW, "files": files})
        )
        assert "is not in a folder of claude" in self.refused(project)
        cli("uninstall", "--root", project, "--yes", code=2)
        assert [victim.read_text() for victim in victims] == ["mine", "mine"]

    def test_a_skill_that_is_not_installed(self, project: Path) -> None:
        install.install(place("claude", "project", project), chosen(FEW))
        said = cli("uninstall", "--root", project, "--skills", "rlxp-autolop", "--yes", code=2)
        assert "Did you mean 'rlxp-autoloop'?" in said

    def test_half_a_marker_stops_all_hosts(self, project: Path) -> None:
        (project / "AGENTS.md").write_text(f"mine\n{HEADER}\n")
        said = self.refused(project, "--host", "claude", "--host", "codex")
        assert "line 2" in said and "--force" in said

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_no_permission(self, project: Path) -> None:
        project.chmod(0o500)
        try:
            assert "permission denied" in self.refused(project)
        finally:
            project.chmod(0o700)

    def test_a_second_host_without_permission_stops_the_first(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (project / ".agents").mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != ".agents")
        said = self.refused(project, "--host", "claude", "--host", "codex")
        assert "permission denied" in said and ".agents" in said

    @pytest.mark.parametrize("folder", [".agents/skills/rlxp-autoloop/scripts", ".codex/agents"])
    def test_nothing_is_removed_where_something_cannot_be(
        self, project: Path, monkeypatch: pytest.MonkeyPatch, folder: str
    ) -> None:
        hosts = ("--host", "claude", "--host", "codex", "--root", project, "--yes")
        cli("install", *hosts, "--skills", ",".join(FEW))
        before = tree(project)
        monkeypatch.setattr(os, "access", lambda path, mode: path != project / folder)
        assert f"{folder}': permission denied" in cli("uninstall", *hosts, code=2)
        assert tree(project) == before

    def test_what_the_system_refuses(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise PermissionError(13, "Permission denied", "x")

        monkeypatch.setattr(install, "write_atomic", refuse)
        assert "permission denied" in self.refused(project)


def test_the_commands(project: Path) -> None:
    root = ("--root", project)
    dry = json.loads(cli("install", *root, "--host", "codex", "--dry-run", "--json"))
    assert {c["action"] for c in dry[0]["changes"]} == {"add"} and tree(project) == {}
    said = cli("install", *root, "--host", "claude,codex", "--skills", "assay-study", "--yes")
    assert "claude, project: 20 skills" in said and "codex, project: 20 skills" in said
    assert "no change" in cli("install", *root, "--skills", "assay-study", "--yes")
    found = json.loads(cli("doctor", *root, "--json"))
    assert found["ok"] and "20 skills" in str(found)
    (project / ".claude/skills/rlxp-autoloop/SKILL.md").unlink()
    assert "missing" in cli("doctor", *root, code=1)
    cli("uninstall", *root, "--host", "claude", "--host", "codex", "--yes")
    assert tree(project) == {}
    assert len(json.loads(cli("list", "--json"))) >= 24
    assert "No problem" in cli("validate")


def test_doctor_says_what_another_version_left(project: Path) -> None:
    here = place("claude", "project", project)
    install.install(here, chosen(FEW))
    manifest = json.loads(here.manifest.read_text())
    manifest |= {"version": "0.0.1", "skills": [*FEW, "rlxp-gone"]}
    here.manifest.write_text(json.dumps(manifest))
    told = " ".join(f.detail for f in checks.doctor(project))
    assert "version 0.0.1 is installed" in told and "no longer in the library: rlxp-gone" in told


def test_doctor_says_that_an_upgrade_was_interrupted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = place("claude", "project", project)
    install.install(here, chosen(FEW))
    here.manifest.write_text(here.manifest.read_text().replace(f'"{__version__}"', '"0.0.1"'))

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(install, "_apply", die)
        install.install(here, chosen(FEW))
    assert "version 0.0.1 is installed" in " ".join(f.detail for f in checks.doctor(project))


@pytest.mark.parametrize("option", [False, True])
def test_what_a_kill_left_is_named_and_goes_with_the_skills(project: Path, option: bool) -> None:
    here = place("codex", "project", project, codex_folder=option)
    install.install(here, chosen(FEW))
    hidden = here.skills[-1] / f"{folders.NEW}rlxp-autoloop"
    hidden.mkdir()
    (hidden / "SKILL.md").write_text("half of it")
    halves = [".AGENTS.md", ".agents/.assay-skills.json", ".codex/agents/.metrics-analyst.toml"]
    paths = [hidden, *(project / f"{half}.12-0a1b2c" for half in halves)]
    for path in paths[1:]:
        path.write_text("half of it")
    details = [f.detail for f in checks.doctor(project)]
    assert all(sum(f"{p}: a killed install left it" in d for d in details) == 1 for p in paths)
    install.uninstall(place("codex", "project", project))
    assert list(project.iterdir()) == []


def test_doctor_reads_an_index_that_is_not_utf8(project: Path) -> None:
    install.install(place("codex", "project", project), chosen(FEW))
    with (project / "AGENTS.md").open("ab") as file:
        file.write(b"\xff\xfe")
    assert "AGENTS.md' cannot be read" in cli("doctor", "--root", project, code=1)


def test_folders_that_were_made_go_with_the_skills(project: Path) -> None:
    here = place("codex", "project", project, codex_folder=True)
    install.install(here, chosen(FEW))
    install.uninstall(place("codex", "project", project))  # without the option
    assert list(project.iterdir()) == []


def test_doctor_says_whether_codex_runs_the_hook(project: Path, home: Path) -> None:
    def told() -> str:
        return next(f.detail for f in checks.doctor(project) if f.name == "codex, hook")

    assert "assay-study brings it" in told()
    assert doctor._hook() == []  # a line of `assay doctor`
    config = home / ".codex/config.toml"
    config.parent.mkdir()
    config.write_text('[plugins."assay-study@assay"]\nenabled = true\n')
    assert "not trusted" in told()
    key = "assay-study@assay:plugin.json#hooks[0]:pre_tool_use:0:0"
    config.write_text(f'{config.read_text()}[hooks.state."{key}"]\ntrusted_hash = "x"\n')
    assert told() == "trusted"
    assert [finding.detail for finding in doctor._hook()] == ["trusted"]
    config.write_text("=")
    assert "cannot be read" in told()
