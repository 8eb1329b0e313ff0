"""Read the library: plugins, their skills and agents, and the frontmatter of both.

The library is a marketplace by itself: `library/plugins/<plugin>/skills/<skill>/SKILL.md`, with the
manifests of both hosts beside them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError, nearest

LIBRARY = Path(__file__).parent / "library"
NAME = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
HOOKS = "hooks/hooks.json"  # of a plugin
HOOKED = "assay-study"  # the plugin that has one
OLD_NAMES = "assay-study-names"  # the plugin of names that skills once had
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][\w-]*):(?: +(?P<value>.*))?$")


class SkillsError(AssayError):
    """A skill, host or scope is unknown, or a place cannot be read or written as asked."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill: a folder with SKILL.md."""

    name: str
    description: str
    plugin: str
    path: Path
    body: str

    @property
    def listing(self) -> str:
        """Return the line by which a host lists the skill to its model."""
        return f"- {self.plugin}:{self.name}: {self.description}"

    def files(self) -> dict[str, bytes]:
        """Return what is installed of it, by path below its folder; evaluations are not."""
        found = {}
        for path in sorted(self.path.rglob("*")):
            short = path.relative_to(self.path)
            if path.is_file() and short.parts[0] != "evals" and "__pycache__" not in short.parts:
                found[short.as_posix()] = path.read_bytes()
        return found


@dataclass(frozen=True, slots=True)
class Plugin:
    """A folder of skills with its manifests."""

    name: str
    description: str
    path: Path
    skills: tuple[Skill, ...]

    @property
    def agents(self) -> list[Path]:
        """Return the agents that it brings, as Claude reads them."""
        return sorted((self.path / "agents").glob("*.md"))


def frontmatter(text: str, where: str) -> tuple[dict[str, Any], str]:
    """Return the keys before a Markdown file, and the text after them.

    The YAML that all hosts read alike: keys with a text, and one level of indented keys.

    Raises:
        SkillsError: There is none, or it says more than that; the line is named.

    Example:
        >>> lines = ["---", "name: a", "metadata:", "  version: 1.0.0", "---", "Text"]
        >>> frontmatter(chr(10).join(lines), "x")
        ({'name': 'a', 'metadata': {'version': '1.0.0'}}, 'Text')
    """
    lines = text.replace("\r\n", "\n").split("\n")
    end = next((i for i, line in enumerate(lines[1:], 1) if line == "---"), None)
    if lines[0] != "---" or end is None:
        raise SkillsError(
            f"'{where}' has no frontmatter.", "Begin it with ---, name, description, and ---."
        )
    found: dict[str, Any] = {}
    inside = ""
    for number, line in enumerate(lines[1:end], 2):
        if not line.strip():
            continue
        seen = _LINE.match(line)
        if seen is None or len(seen["indent"]) not in (0, 2) or (seen["indent"] and not inside):
            raise SkillsError(f"'{where}', line {number}: {line.strip()!r} is not `key: text`.")
        value = _scalar(seen["value"] or "", f"'{where}', line {number}")
        if seen["indent"]:
            found[inside][seen["key"]] = value
        elif value or seen["value"]:
            found[seen["key"]], inside = value, ""
        else:
            inside = seen["key"]
            found[inside] = {}
    return found, "\n".join(lines[end + 1 :])


def _scalar(text: str, place: str) -> str:
    text = text.strip()
    if text[:1] in "\"'" and text:
        if len(text) < 2 or text[-1] != text[0]:
            raise SkillsError(f"{place}: the quote is not closed.")
        return text[1:-1].replace("\\" + text[0], text[0])
    if text[:1] in ("[", "{", "|", ">", "&", "*", "!") and text:
        raise SkillsError(f"{place}: {text[:20]!r} is YAML that hosts read differently; quote it.")
    if ": " in text or text.endswith(":") or " #" in text:
        raise SkillsError(f"{place}: quote a text with a colon or a hash.")
    return text


def read_skill(path: Path, plugin: str = "") -> Skill:
    """Read the skill in a folder.

    Raises:
        SkillsError: SKILL.md is missing or malformed.
    """
    file = path / "SKILL.md"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkillsError(f"'{file}' cannot be read: {error}.") from None
    keys, body = frontmatter(text, str(file))
    return Skill(str(keys.get("name", "")), str(keys.get("description", "")), plugin, path, body)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        SkillsError: It is missing or malformed.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SkillsError(f"'{path}' cannot be read: {error}.") from None


def plugin_folders(root: Path) -> list[Path]:
    """Return the folders of a library's plugins, by name; a manifest for Codex lies beside them."""
    return sorted((root / "plugins").glob("[!.]*/"))


def plugins(root: Path = LIBRARY) -> list[Plugin]:
    """Return all plugins of a library, by name.

    Raises:
        SkillsError: There is none, or one is malformed.
    """
    found = []
    for path in plugin_folders(root):
        manifest = read_json(path / ".claude-plugin" / "plugin.json")
        name = str(manifest.get("name", path.name))
        folders = sorted(file.parent for file in (path / "skills").glob("*/SKILL.md"))
        skills = tuple(read_skill(folder, name) for folder in folders)
        found.append(Plugin(name, str(manifest.get("description", "")), path, skills))
    if not found:
        raise SkillsError(f"'{root}' holds no plugin.", "Name the root of a library.")
    return found


def chosen(wanted: list[str], root: Path = LIBRARY) -> list[Skill]:
    """Return the skills that some names mean: skills, plugins, or all but the old names if none.

    Raises:
        SkillsError: A name is unknown; the nearest is named.
    """
    every = plugins(root)
    if not wanted:
        return [s for plugin in every if plugin.name != OLD_NAMES for s in plugin.skills]
    by_name = {skill.name: [skill] for plugin in every for skill in plugin.skills}
    by_name |= {plugin.name: list(plugin.skills) for plugin in every}
    found: dict[str, Skill] = {}
    for name in wanted:
        if name not in by_name:
            close = nearest(name, by_name)
            hint = f"{close} " if close.startswith("Did") else ""
            raise SkillsError(
                f"There is no skill or plugin '{name}'.", f"{hint}`assay skills list` shows all."
            )
        found |= {skill.name: skill for skill in by_name[name]}
    return list(found.values())
