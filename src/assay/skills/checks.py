"""What is installed on this machine, and whether this checkout can be released."""

from __future__ import annotations

import glob
import re
import shutil
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay import __version__
from assay.core.wording import counted
from assay.skills import manifests
from assay.skills.index_block import FOOTER, HEADER
from assay.skills.install import edited, left_behind, read_manifest
from assay.skills.library import HOOKED, LIBRARY, SkillsError, plugins
from assay.skills.places import HOSTS, SCOPES, Place, place
from assay.skills.validate import marketplace, validate

State = Literal["ok", "note", "broken"]
_FIRST = "`assay study` itself refuses launches"
_COMMANDS = {"claude": "claude", "codex": "codex"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    name: str
    state: State
    detail: str


def doctor(root: Path, environment: dict[str, str] | None = None) -> list[Finding]:
    """Return what is installed for every host and scope, and what is not as it was installed."""
    found = []
    for host in HOSTS:
        command = shutil.which(_COMMANDS[host])
        detail = command or f"the command {_COMMANDS[host]} is not on PATH"
        found.append(Finding(host, "ok" if command else "note", detail))
        for scope in SCOPES:
            here = place(host, scope, root, environment=environment)
            found += _installed(here)
    brought = Finding("codex, hook", "note", f"the plugin {HOOKED} brings it; {_FIRST}")
    return [*found, hook_of_codex(root, environment) or brought]


def hook_of_codex(root: Path, environment: dict[str, str] | None = None) -> Finding | None:
    """Say whether Codex runs the plugin's hook; it passes over one that nobody trusted, silently.

    Codex notes both in config.toml: plugins that are enabled, and hooks with the hash that the user
    trusted. None where the plugin is not there.
    """
    file = place("codex", "user", root, environment=environment).agents.parent / "config.toml"
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as error:
        return Finding("codex, hook", "note", f"'{file}' cannot be read: {error}")
    on = [name for name in config.get("plugins", {}) if name.startswith(f"{HOOKED}@")]
    if not on:
        return None
    states = config.get("hooks", {}).get("state", {})
    if any(HOOKED in key and "trusted_hash" in state for key, state in states.items()):
        return Finding("codex, hook", "ok", "trusted")
    return Finding("codex, hook", "note", f"not trusted, so Codex skips it (/hooks); {_FIRST}")


def _installed(here: Place) -> Iterable[Finding]:
    name = f"{here.host}, {here.scope}"
    try:
        manifest = read_manifest(here)
        odd, left = edited(here), left_behind(here)
    except SkillsError as error:
        yield Finding(name, "broken", error.message)
        return
    for path in left:
        what = "a killed install left it; `assay skills install` or `uninstall` removes it"
        yield Finding(name, "note", f"{path}: {what}")
    if not manifest["skills"]:
        yield Finding(name, "note", f"nothing is installed in {here.skills[0]}")
        return
    count, version = len(manifest["skills"]), manifest["version"]
    yield Finding(name, "ok", f"{counted(count, 'skill')} of version {version} in {here.skills[0]}")
    if version != __version__:
        what = f"version {version} is installed, and this is {__version__}: assay skills install"
        yield Finding(name, "note", f"{what} --host {here.host} --scope {here.scope} --yes")
    known = {skill.name for plugin in plugins() for skill in plugin.skills}
    gone = [skill for skill in manifest["skills"] if skill not in known]
    if gone:
        yield Finding(name, "note", f"no longer in the library: {', '.join(gone)}")
    for path in odd:
        missing = not path.exists()
        yield Finding(
            name, "broken" if missing else "note", f"{'missing' if missing else 'edited'}: {path}"
        )
    if here.index is not None:
        try:
            text = here.index.read_text(encoding="utf-8") if here.index.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            yield Finding(name, "broken", f"'{here.index}' cannot be read: {error}")
            return
        if HEADER not in text or FOOTER not in text:
            yield Finding(name, "broken", f"{here.index} does not list the skills")


def release_check(root: Path) -> list[Finding]:
    """Return whether a checkout can be released: one version, valid skills, all of it packaged.

    Raises:
        SkillsError: It is not a checkout of Assay.
    """
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        version = project["project"]["version"]
        packaged = project["tool"]["setuptools"]["package-data"]["assay"]
        changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        raise SkillsError(
            f"'{root}' is not a checkout of Assay: {error}.", "Name it with --root."
        ) from None
    if root.resolve() not in LIBRARY.resolve().parents:
        raise SkillsError(
            f"This program's skills are in '{LIBRARY}', not in the checkout '{root}'.",
            "Run the checkout's own: `make setup` in it, then `.venv/bin/assay`.",
        )
    found = [_verdict("package", version == __version__, f"{version} and {__version__}")]
    headings = re.findall(r"^## \[(.+?)\]", changes, flags=re.MULTILINE)
    listed = version in headings or "Unreleased" in headings
    found.append(_verdict("changelog", listed, f"sections: {', '.join(headings[:3])}"))
    old = [path.relative_to(root) for path in manifests.outdated(root)]
    told = ", ".join(map(str, old)) or "all are what assay.skills.manifests writes"
    found.append(_verdict("manifests", not old, told))
    missing = _unpacked(packaged)
    told = (
        f"package-data leaves out {', '.join(missing[:3])}" if missing else "it holds the library"
    )
    found.append(_verdict("wheel", not missing, told))
    problems = validate(LIBRARY)
    names = {plugin.name for plugin in plugins()}
    for file in (manifests.CLAUDE, manifests.CODEX):
        problems += marketplace(root, root / file, names)
    told = "; ".join(f"{p.path.name}: {p.message}" for p in problems[:5]) or "no problem"
    found.append(_verdict("library", not problems, told))
    return found


def _unpacked(patterns: Iterable[str]) -> list[str]:
    """Return the files of the library that no pattern of package-data holds.

    As setuptools reads them, a star does not stand for a name that begins with a dot.
    """
    top = LIBRARY.parents[1]
    held = {path for text in patterns for path in glob.glob(text, root_dir=top, recursive=True)}
    files = (p.relative_to(top).as_posix() for p in LIBRARY.rglob("*") if p.is_file())
    return sorted(path for path in files if path not in held and "__pycache__" not in path)


def _verdict(name: str, good: bool, detail: str) -> Finding:
    return Finding(name, "ok" if good else "broken", detail)
