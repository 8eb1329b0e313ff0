"""Check skills, plugins and marketplaces: what the hosts ask for, and what they do not notice."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import __version__
from assay.skills import evals
from assay.skills.library import (
    HOOKS,
    NAME,
    Skill,
    SkillsError,
    frontmatter,
    plugin_folders,
    plugins,
    read_json,
    read_skill,
)

KEYS = {"name", "description", "license", "metadata", "allowed-tools"}
LONGEST_NAME, LONGEST_DESCRIPTION = 64, 180
MOST_LINES, MOST_TOKENS = 500, 5_000
ALL_LISTINGS, ONE_LISTING = 21_000, 5_000  # characters of all plugins, and of one
AGENT_PLUGIN = {
    "$schema", "name", "version", "description", "author", "homepage", "repository", "license",
    "keywords", "extensions",
}  # fmt: skip
WORKFLOW = "workflow.md"  # of an orchestrator: its steps, beside SKILL.md
FOLDERS = {"references", "scripts", "assets", "evals", "agents"}
MOST_PROMPTS, LONGEST_PROMPT = 3, 128
FEWEST_WORDS = 40  # of a README
_CLAUDE, _CODEX = ".claude-plugin/plugin.json", ".codex-plugin/plugin.json"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    path: Path
    rule: str
    message: str


def validate(root: Path) -> list[Problem]:
    """Return what is wrong with a library, a plugin or a single skill.

    Raises:
        SkillsError: It is none of these.
    """
    if (root / "SKILL.md").exists():
        return list(_skill(root))
    if (root / "skills").is_dir():
        return list(_plugin(root))
    if (root / "plugins").is_dir():
        return list(_library(root))
    raise SkillsError(
        f"'{root}' holds neither SKILL.md, skills/ nor plugins/.",
        "Name a skill, a plugin or the root of a library.",
    )


def tokens(text: str) -> int:
    """Return about how many tokens a text has; four characters each."""
    return len(text) // 4


# ---------------------------------------------------------------------- a skill


def _skill(path: Path) -> Iterator[Problem]:
    file = path / "SKILL.md"
    try:
        skill = read_skill(path)
        keys, _ = frontmatter(file.read_text(encoding="utf-8"), str(file))
    except SkillsError as error:
        yield Problem(file, "frontmatter", error.message)
        return
    if not NAME.match(skill.name) or len(skill.name) > LONGEST_NAME:
        what = f"{skill.name!r}: lower-case letters, digits and hyphens, {LONGEST_NAME} at most"
        yield Problem(file, "name", what)
    if skill.name != path.name:
        yield Problem(file, "name-is-folder", f"{skill.name!r} is in the folder '{path.name}'")
    size = len(skill.description)
    if not 0 < size <= LONGEST_DESCRIPTION:
        what = f"{size} characters; 1 to {LONGEST_DESCRIPTION}"
        yield Problem(file, "description-length", what)
    if set("<>") & set(skill.description):
        yield Problem(file, "description-brackets", "angle brackets break the listing of a host")
    odd = sorted(set(keys) - KEYS)
    if odd:
        yield Problem(file, "keys", f"{', '.join(odd)}: known to both hosts: {sorted(KEYS)}")
    metadata = keys.get("metadata", {})
    if not isinstance(metadata, dict):
        yield Problem(file, "metadata", "indented keys with texts are expected")
    elif metadata.get("version", __version__) != __version__:
        what = f"version {metadata['version']}, and the package has {__version__}"
        yield Problem(file, "version", what)
    lines, count = skill.body.count("\n") + 1, tokens(skill.body)
    if lines > MOST_LINES or count > MOST_TOKENS:
        what = f"{lines} lines, about {count} tokens; {MOST_LINES} and {MOST_TOKENS} at most"
        yield Problem(file, "body-length", what)
    yield from _links(skill)
    yield from _files(skill)
    for what in evals.problems(path) if (path / evals.FILE).exists() else ():
        yield Problem(path / evals.FILE, "evals", what)


def _links(skill: Skill) -> Iterator[Problem]:
    """Check that what the skill's texts link to is there, inside the skill."""
    beside = (*skill.path.glob(WORKFLOW), *sorted((skill.path / "references").glob("*.md")))
    for file in (skill.path / "SKILL.md", *beside):
        for target in _LINK.findall(file.read_text(encoding="utf-8")):
            name = target.partition("#")[0]
            if not name or "://" in name or name.startswith("mailto:"):
                continue
            found = (file.parent / name).resolve()
            if skill.path.resolve() not in found.parents:
                yield Problem(file, "link-leaves", f"{target} leaves the skill's folder")
            elif not found.exists():
                yield Problem(file, "broken-link", f"{target} does not exist")


def _files(skill: Skill) -> Iterator[Problem]:
    """Look for folders that no host knows, and for files that nothing mentions."""
    mentioned = skill.body
    for path in sorted(skill.path.rglob("*")):
        short = path.relative_to(skill.path)
        if path.is_dir() or "__pycache__" in short.parts or short.name == "SKILL.md":
            continue
        if str(short) == WORKFLOW:
            if WORKFLOW not in mentioned:
                yield Problem(path, "unreferenced", f"SKILL.md does not mention {short}")
        elif short.parts[0] not in FOLDERS:
            yield Problem(path, "folder", f"{short.parts[0]} is not one of {sorted(FOLDERS)}")
        elif len(short.parts) > 2:
            yield Problem(path, "depth", "references are one level deep")
        elif short.parts[0] in ("references", "scripts", "assets") and str(short) not in mentioned:
            yield Problem(path, "unreferenced", f"SKILL.md does not mention {short}")


# ---------------------------------------------------------------------- a plugin


def _plugin(path: Path) -> Iterator[Problem]:
    for folder in sorted((path / "skills").glob("*/")):
        if not (folder / "SKILL.md").exists():
            yield Problem(folder, "skill", "the folder has no SKILL.md")
        else:
            yield from _skill(folder)
    yield from _manifests(path)
    yield from _agents(path)
    hooks = path / HOOKS
    if hooks.exists():
        yield from _hook_scripts(path, hooks, lambda: read_json(hooks)["hooks"])
    readme = path / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    if len(text.split()) < FEWEST_WORDS or "assay skills install" not in text:
        what = f"{FEWEST_WORDS} words and a line with `assay skills install` are expected"
        yield Problem(readme, "readme", what)
    if not (path / "LICENSE").exists():
        yield Problem(path / "LICENSE", "license", "it is missing")
    yield from _icon(path / "assets" / "icon.png")


def _manifests(path: Path) -> Iterator[Problem]:
    described = {}
    hooked = (path / HOOKS).exists()
    if hooked and (path / _CODEX).exists():
        what = "Codex runs no hook of a folder with a root plugin.json; this one belongs above it"
        yield Problem(path / _CODEX, "hooks-lost", what)
    for place in (_CLAUDE, _CODEX, "plugin.json"):
        file = (path.parent if hooked and place == _CODEX else path) / place
        try:
            found = read_json(file)
        except SkillsError as error:
            yield Problem(file, "manifest", error.message)
            continue
        if found.get("name") != path.name:
            yield Problem(file, "plugin-name", f"{found.get('name')!r} is in '{path.name}'")
        if found.get("version") != __version__:
            what = f"version {found.get('version')}, and the package has {__version__}"
            yield Problem(file, "version", what)
        described[place] = found.get("description")
        if place == _CLAUDE and not isinstance(found.get("author"), dict):
            yield Problem(file, "author", "an object with a name is expected")
        if place == _CODEX:
            prompts = found.get("interface", {}).get("defaultPrompt", [])
            long = [p for p in prompts if len(p) > LONGEST_PROMPT]
            if len(prompts) > MOST_PROMPTS or long:
                what = f"{len(prompts)} prompts; {MOST_PROMPTS} of {LONGEST_PROMPT} characters"
                yield Problem(file, "prompts", what)
        odd = sorted(set(found) - AGENT_PLUGIN) if place == "plugin.json" else []
        if odd:
            yield Problem(file, "closed-fields", f"{', '.join(odd)}: known: {sorted(AGENT_PLUGIN)}")
    if len(set(described.values())) > 1:
        yield Problem(path, "manifests-differ", "the manifests have different descriptions")


def _agents(path: Path) -> Iterator[Problem]:
    for file in sorted((path / "agents").glob("*.md")):
        try:
            keys, body = frontmatter(file.read_text(encoding="utf-8"), str(file))
        except SkillsError as error:
            yield Problem(file, "agent", error.message)
            continue
        if keys.get("name") != file.stem or not keys.get("description") or not body.strip():
            yield Problem(file, "agent", "name as the file, a description and a text are expected")


def _hook_scripts(root: Path, file: Path, read: Callable[[], Any]) -> Iterator[Problem]:
    """Check that hooks run files below `root`, which is where a host has put the plugin."""
    try:
        events = read()
        commands = [h["command"] for group in events.values() for m in group for h in m["hooks"]]
    except (SkillsError, KeyError, TypeError, AttributeError) as error:
        yield Problem(file, "hooks", f"malformed: {error}")
        return
    for command in commands:
        scripts = re.findall(r"\$\{CLAUDE_PLUGIN_ROOT\}/([\w./-]+)", command)
        for name in scripts or [""]:
            if not name or not (root / name).is_file():
                yield Problem(file, "hooks", f"{command!r} runs no file of the plugin")


def _icon(file: Path) -> Iterator[Problem]:
    data = file.read_bytes()[:24] if file.exists() else b""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        yield Problem(file, "icon", "a PNG is expected")
        return
    width, height = struct.unpack(">II", data[16:24])
    if width != height:
        yield Problem(file, "icon", f"{width} by {height}; a square is expected")


# ---------------------------------------------------------------------- a library


def _library(root: Path) -> Iterator[Problem]:
    every_folder = plugin_folders(root)
    names = {path.name for path in every_folder}
    for path in every_folder:
        yield from _plugin(path)
    for place in (".claude-plugin/marketplace.json", ".agents/plugins/marketplace.json"):
        yield from marketplace(root, root / place, names)
    try:
        every = plugins(root)
    except SkillsError:
        return  # said above
    listings = {p.name: sum(len(s.listing) + 1 for s in p.skills) for p in every}
    for name, size in listings.items():
        if size > ONE_LISTING:
            yield Problem(root, "listing", f"{name} lists {size} characters; {ONE_LISTING} at most")
    if sum(listings.values()) > ALL_LISTINGS:
        what = f"all plugins list {sum(listings.values())} characters; {ALL_LISTINGS} at most"
        yield Problem(root, "listing", what)
    skills = [skill.name for plugin in every for skill in plugin.skills]
    for skill in (skill for plugin in every for skill in plugin.skills):
        yield from _owners(skill, set(skills))
    for name in sorted({name for name in skills if skills.count(name) > 1}):
        yield Problem(root, "twice", f"two skills are called {name}")


def _owners(skill: Skill, known: set[str]) -> Iterator[Problem]:
    """Check that the skills to which near misses belong are there."""
    file = skill.path / evals.FILE
    try:
        named = {query.get("instead") for query in read_json(file)["triggers"]}
    except (SkillsError, KeyError, TypeError, AttributeError):
        return  # there are none, or it is said above
    for owner in sorted(str(name) for name in named - known - {None}):
        yield Problem(file, "evals", f"`instead` names no skill: {owner}")


def marketplace(root: Path, file: Path, names: set[str]) -> Iterator[Problem]:
    """Check a marketplace of either host: every entry leads to a plugin, hooks included.

    Args:
        root: What its sources are relative to.
        file: The marketplace.
        names: The plugins that have to be in it.
    """
    try:
        entries: list[dict[str, Any]] = read_json(file)["plugins"]
        sources = {e["name"]: e["source"] for e in entries}
    except (SkillsError, KeyError, TypeError) as error:
        yield Problem(file, "marketplace", f"malformed: {error}")
        return
    for name, source in sources.items():
        codex = isinstance(source, dict)
        path = source["path"] if codex else source
        manifest = root / path / (_CODEX if codex else _CLAUDE)
        try:
            found = read_json(manifest)
        except SkillsError:
            yield Problem(file, "source", f"{name}: {path} holds no plugin")
            continue
        if found.get("name") != name:
            yield Problem(file, "entry-name", f"the plugin at {path} is not called {name}")
        elif codex:
            yield from _codex_source(root / path, manifest, found)
    for entry in entries:
        if entry.get("version", __version__) != __version__:
            yield Problem(file, "version", f"{entry['name']} has version {entry['version']}")
    for name in sorted(names - set(sources)):
        yield Problem(file, "unregistered", f"{name} is not listed")


def _codex_source(folder: Path, manifest: Path, found: dict[str, Any]) -> Iterator[Problem]:
    """Check that Codex finds a plugin's skills from a folder, and its hooks if it has some.

    Codex runs no hook of a folder with the root `plugin.json` of Agent Plugins. So it takes a
    plugin with hooks from the folder above, whose manifest names its skills and its hooks.
    """
    skills = folder / str(found.get("skills", "skills"))
    if not skills.is_dir():
        yield Problem(manifest, "source", f"{skills} is not a folder of skills")
    elif "hooks" in found:
        yield from _hook_scripts(folder, manifest, lambda: found["hooks"]["hooks"])
    elif (skills.parent / HOOKS).exists():
        yield Problem(manifest, "hooks-lost", f"it does not name the hooks of {skills.parent.name}")
