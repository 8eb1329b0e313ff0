"""Where hosts look for skills and agents, for a project and for a user."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import nearest
from assay.skills.library import SkillsError

HOSTS = ("claude", "codex")
SCOPES = ("project", "user")


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one host in one scope; all that the installer may write to."""

    host: str
    scope: str
    base: Path  # below which everything else is
    skills: tuple[Path, ...]  # folders that get a copy of each skill
    agents: Path
    manifest: Path  # what was installed, with hashes
    index: Path | None = None  # the file that gets the index block

    @property
    def all_skills(self) -> tuple[Path, ...]:
        """Return the folders that may have skills, also of an option that is not given now."""
        return tuple(dict.fromkeys((*self.skills, self.agents.parent / "skills")))

    @property
    def shown(self) -> str:
        """Return the folder of the skills as the index names it."""
        folder = self.skills[0]
        return folder.relative_to(self.base).as_posix() if self.scope == "project" else str(folder)


def place(
    host: str,
    scope: str,
    root: Path,
    *,
    codex_folder: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Place:
    """Return the folders of a host in a scope.

    Args:
        host: `claude` or `codex`.
        scope: `project` or `user`.
        root: The project's directory; not used for a user.
        codex_folder: Also copy to `.codex/skills`, beside `.agents/skills`.
        environment: By default the process's: HOME, CLAUDE_CONFIG_DIR and CODEX_HOME count.

    Raises:
        SkillsError: The host or the scope is unknown, or the project is not a directory.
    """
    refuse_unknown([host], [scope])
    given = os.environ if environment is None else environment
    home = Path(given.get("HOME") or Path.home())
    base = root.resolve() if scope == "project" else home
    if not base.is_dir():
        raise SkillsError(f"'{base}' is not a directory.", "Name another one with --root.")
    if host == "claude":
        own = base / ".claude"
        if scope == "user" and given.get("CLAUDE_CONFIG_DIR"):
            own = Path(given["CLAUDE_CONFIG_DIR"])
        return Place(
            host, scope, base, (own / "skills",), own / "agents", own / "assay-skills.json"
        )
    codex = base / ".codex"
    if scope == "user" and given.get("CODEX_HOME"):
        codex = Path(given["CODEX_HOME"])
    folders = (base / ".agents" / "skills", *([codex / "skills"] if codex_folder else []))
    index = base / "AGENTS.md" if scope == "project" else codex / "AGENTS.md"
    manifest = base / ".agents" / "assay-skills.json"
    return Place(host, scope, base, folders, codex / "agents", manifest, index)


def refuse_unknown(hosts: Sequence[str], scopes: Sequence[str]) -> None:
    """Refuse a host or scope that is not known.

    Raises:
        SkillsError: Names the nearest.
    """
    for what, given, known in (("host", hosts, HOSTS), ("scope", scopes, SCOPES)):
        for name in given:
            if name not in known:
                raise SkillsError(f"'{name}' is not a {what}.", nearest(name, known))
