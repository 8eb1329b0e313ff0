"""Copy skills and agents to where a host looks for them, and take them away again.

A manifest with hashes beside the host's folders says what was installed. A file is ours as long as
it has a hash of the manifest or of the library; any other is the user's, and stays. A skill's
folder is made aside and takes its place in one step, so that a kill leaves the old or the new.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay import __version__
from assay.core.errors import nearest
from assay.runs.files import run_error, unfinished, write_atomic
from assay.skills.folders import (
    folder_files,
    hidden_folders,
    recover,
    remove_folder,
    replace_folder,
)
from assay.skills.index_block import block, with_block
from assay.skills.library import LIBRARY, Skill, SkillsError, frontmatter, plugins
from assay.skills.places import Place

SCHEMA = 1
Action = Literal["add", "update", "same", "keep", "remove"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one file."""

    path: Path
    action: Action  # `keep`: it was edited, or is not ours
    why: str = ""


@dataclass(slots=True)
class Report:
    """What an install or uninstall did, or would do."""

    place: Place
    changes: list[Change] = field(default_factory=list)
    skills: list[str] = field(default_factory=list)  # installed afterwards

    def having(self, *actions: Action) -> list[Change]:
        """Return the changes of some kinds."""
        return [change for change in self.changes if change.action in actions]


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def read_manifest(place: Place) -> dict[str, Any]:
    """Return what is installed: `skills`, and `files` with the hashes that are ours.

    Raises:
        SkillsError: It is malformed, of a newer version of Assay, or names a file that is not in a
            folder of the host: a manifest in a project may come from a stranger.
    """
    empty: dict[str, Any] = {"schema": SCHEMA, "version": "", "skills": [], "files": {}}
    if not place.manifest.exists():
        return empty
    try:
        found = json.loads(place.manifest.read_text(encoding="utf-8"))
        schema, files = found["schema"], found["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _unreadable(place) from None
    if schema != SCHEMA or not isinstance(files, dict):
        raise SkillsError(
            f"'{place.manifest}' has schema {schema!r}, and this version of Assay "
            f"({__version__}) knows {SCHEMA}.",
            "Upgrade Assay, or uninstall with the version that wrote it.",
        )
    found = {**empty, **found}
    for words in (found["skills"], *files.values()):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise _unreadable(place)
    known = [folder.resolve() for folder in (*place.all_skills, place.agents)]
    for key in files:
        parent = (place.base / key).parent.resolve()
        if not any(folder in (parent, *parent.parents) for folder in known):
            raise SkillsError(
                f"'{place.manifest}' names '{key}', which is not in a folder of {place.host}.",
                "Nothing is changed. Remove the manifest to install over what is there; files that "
                "differ are then kept.",
            )
    return found


def _unreadable(place: Place) -> SkillsError:
    return SkillsError(
        f"'{place.manifest}' cannot be read as a manifest of installed skills.",
        "Remove it to install over what is there; files that differ are then kept.",
    )


def install(place: Place, skills: list[Skill], *, force: bool = False, dry: bool = False) -> Report:
    """Install skills, and bring those that were installed before to this version.

    Raises:
        SkillsError: The place cannot be written to, leads through a symbolic link, or its manifest
            or index cannot be read; nothing is written then.
    """
    _refuse_links(place, [skill.name for skill in skills])
    manifest = read_manifest(place)
    every = {s.name: s for plugin in plugins(skills[0].path.parents[3]) for s in plugin.skills}
    names = sorted({*(s.name for s in skills), *(n for n in manifest["skills"] if n in every)})
    wanted = _wanted(place, [every[name] for name in names])
    ours = {place.base / key: set(hashes) for key, hashes in manifest["files"].items()}
    report = Report(place, skills=names)
    for path, data in wanted.items():
        action = _fate(path, data, ours.get(path, set()), force)
        why = "it was edited" if path in ours else "it was there before"
        report.changes.append(Change(path, action, why if action == "keep" else ""))
    gone = [path for path in ours if path not in wanted]
    report.changes += [_farewell(path, ours[path], force) for path in gone if path.exists()]
    index = _index_text(place, [every[name] for name in names], force)
    _refuse_unwritable(place, report)
    if dry:
        return report
    with _writing(place):
        hashes = _hashes(place, wanted, ours, report, before=True)
        # the old version until all is done, so that `doctor` tells of an interrupted upgrade
        _write_manifest(place, names, hashes, manifest["version"] or __version__)
        _apply(place, wanted, report)
        if place.index is not None and index is not None:
            place.index.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place.index.resolve(), index)
        _write_manifest(place, names, _hashes(place, wanted, ours, report, before=False))
    return report


def uninstall(
    place: Place, names: list[str] | None = None, *, force: bool = False, dry: bool = False
) -> Report:
    """Remove what was installed, or some skills of it; files that were edited stay.

    Raises:
        SkillsError: As `install`; or a skill is not installed.
    """
    manifest = read_manifest(place)
    _refuse_links(place, manifest["skills"])
    absent = [name for name in names or [] if name not in manifest["skills"]]
    if absent:
        raise SkillsError(
            f"'{absent[0]}' is not installed for {place.host} ({place.scope}).",
            nearest(absent[0], manifest["skills"]) if manifest["skills"] else "Installed: none.",
        )
    left = [name for name in manifest["skills"] if names and name not in names]
    ours = {place.base / key: set(hashes) for key, hashes in manifest["files"].items()}
    folders = {folder / name for folder in place.skills for name in left}
    stay = {path for path in ours if left and {place.agents, *folders} & {*path.parents}}
    report = Report(place, skills=left)
    goes = [path for path in ours if path not in stay and path.exists()]
    report.changes = [_farewell(path, ours[path], force) for path in goes]
    every = {s.name: s for plugin in plugins(LIBRARY) for s in plugin.skills}
    index = _index_text(place, [every[name] for name in left if name in every], force)
    _refuse_unwritable(place, report)
    if dry:
        return report
    with _writing(place):
        _apply(place, {}, report)
        if place.index is not None and index is not None and place.index.exists():
            if index:
                write_atomic(place.index.resolve(), index)
            else:
                place.index.unlink()
        kept = {change.path for change in report.having("keep")}  # a later --force finds them
        if left or kept:
            files = {path: ours[path] for path in ours if path in stay | kept}
            _write_manifest(place, left, {_key(place, p): sorted(h) for p, h in files.items()})
        else:
            place.manifest.unlink(missing_ok=True)
            for folder in (*place.skills, place.agents, place.manifest.parent):
                _remove_if_empty(folder)
            if place.agents.parent == place.base / ".codex":  # not what CODEX_HOME names
                _remove_if_empty(place.agents.parent)
    return report


def edited(place: Place) -> list[Path]:
    """Return installed files that are not what was installed: edited or gone."""
    ours = read_manifest(place)["files"]
    paths = {place.base / key: hashes for key, hashes in ours.items()}
    return [p for p, hashes in paths.items() if not p.is_file() or _hash(p) not in hashes]


# ---------------------------------------------------------------------- what is to be done


def _wanted(place: Place, skills: list[Skill]) -> dict[Path, bytes]:
    """Return every file that is to be there, with its bytes."""
    found: dict[Path, bytes] = {}
    for skill in skills:
        for folder in place.skills:
            found |= {folder / skill.name / name: data for name, data in skill.files().items()}
    for path in sorted({p.parents[1] for p in (skill.path for skill in skills)}):
        for agent in sorted((path / "agents").glob("*.md")):
            text = agent.read_text(encoding="utf-8")
            if place.host == "claude":
                found[place.agents / agent.name] = text.encode()
            else:
                found[place.agents / f"{agent.stem}.toml"] = codex_agent(text, str(agent)).encode()
    return found


def codex_agent(text: str, where: str) -> str:
    """Return an agent, as Claude reads it, in the form that Codex reads."""
    keys, body = frontmatter(text, where)
    lines = [
        f"name = {json.dumps(keys['name'])}",
        f"description = {json.dumps(keys['description'])}",
        f"developer_instructions = {json.dumps(body.strip())}",
    ]
    return "\n".join(lines) + "\n"


def _fate(path: Path, data: bytes, ours: set[str], force: bool) -> Action:
    if not path.exists():
        return "add"
    now = _hash(path)
    if now == digest(data):
        return "same"
    return "update" if force or now in ours else "keep"


def _farewell(path: Path, ours: set[str], force: bool) -> Change:
    if force or _hash(path) in ours:
        return Change(path, "remove")
    return Change(path, "keep", "it was edited")


def _hash(path: Path) -> str:
    try:
        return digest(path.read_bytes())
    except OSError as error:
        raise SkillsError(*run_error(error, f"read '{path}'").args) from None


def _index_text(place: Place, skills: list[Skill], force: bool) -> bytes | None:
    """Return the index file as it is to be, or None where nothing changes."""
    if place.index is None:
        return None
    try:
        before = place.index.read_bytes().decode() if place.index.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SkillsError(f"'{place.index}' cannot be read: {error}.") from None
    wanted = block(skills, place.shown) if skills else None
    after = with_block(before, wanted, place.index, force=force)
    return after.encode() if after != before else None


def _refuse_links(place: Place, names: Iterable[str]) -> None:
    """Refuse to write through a symbolic link: it would change files that nobody named.

    Raises:
        SkillsError: Names the link and where it leads.
    """
    folders = [*place.skills, place.agents, place.manifest]
    folders += [folder / name for folder in place.skills for name in names]
    for folder in folders:
        for path in (folder, *folder.parents):
            if path == place.base:
                break
            if path.is_symlink():
                raise SkillsError(
                    f"'{path}' is a symbolic link to '{os.readlink(path)}'; nothing is installed "
                    "through a link.",
                    "Install where it leads (--root), or replace it by a folder.",
                )
            if path.exists() and path != place.manifest and not path.is_dir():
                raise SkillsError(f"'{path}' is not a folder.", "Move it out of the way.")
    if place.index is not None and place.index.is_symlink():
        target = place.index.resolve()
        if place.base.resolve() not in target.parents:
            raise SkillsError(
                f"'{place.index}' is a symbolic link to '{target}', outside of '{place.base}'.",
                "Replace it by a file, or install for the other scope.",
            )


# ---------------------------------------------------------------------- doing it


def _refuse_unwritable(place: Place, report: Report) -> None:
    """Refuse folders without permission before anything is changed, also of another host."""
    changed = [change.path.parent for change in report.having("add", "update", "remove")]
    if not changed:
        return
    index = [place.index.parent] if place.index is not None else []
    kept = (*place.skills, place.agents, place.manifest.parent, *index)
    for folder in dict.fromkeys((*kept, *changed)):
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise SkillsError(
                f"Cannot write '{there}': permission denied.",
                "Nothing is changed. Give yourself the right to write there, or choose another "
                "--scope or --root.",
            )


def left_behind(place: Place) -> list[Path]:
    """Return what a killed install left: hidden folders of skills, and files half-written.

    Raises:
        SkillsError: The manifest cannot be read.
    """
    known = (place.base / key for key in read_manifest(place)["files"])
    files = [place.manifest, *(path for path in known if path.parent == place.agents)]
    if place.index is not None:
        files.append(place.index.resolve())
    folders = [path for folder in place.all_skills for path in hidden_folders(folder)]
    return folders + [path for file in files for path in unfinished(file)]


@contextmanager
def _writing(place: Place) -> Iterator[None]:
    """Finish what a kill left behind, and say in one message what the system refused."""
    try:
        for folder in place.all_skills:
            recover(folder)
        for path in left_behind(place):
            path.unlink()
        yield
    except OSError as error:
        doing = f"write '{error.filename or place.base}'"
        raise SkillsError(*run_error(error, doing).args) from None


def _apply(place: Place, wanted: Mapping[Path, bytes], report: Report) -> None:
    """Bring every skill's folder to what is wanted, each in one step; then the agents."""
    changed = report.having("add", "update", "remove")
    folders = {_skill_folder(place, change.path) for change in changed} - {None}
    for folder in sorted(folder for folder in folders if folder is not None):
        after = folder_files(folder)
        for change in changed:
            if folder not in change.path.parents:
                continue
            short = change.path.relative_to(folder).as_posix()
            if change.action == "remove":
                after.pop(short, None)
            else:
                after[short] = wanted[change.path]
        if after:
            replace_folder(folder, after)
        else:
            remove_folder(folder)
    for change in changed:
        if _skill_folder(place, change.path) is None:
            if change.action == "remove":
                change.path.unlink(missing_ok=True)
                for folder in change.path.parents:  # also of .codex/skills without its option
                    if place.agents.parent not in folder.parents:
                        break
                    _remove_if_empty(folder)
            else:
                change.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(change.path, wanted[change.path])


def _skill_folder(place: Place, path: Path) -> Path | None:
    """Return the skill's folder that a file is in, or None for an agent."""
    for folder in place.skills:
        if folder in path.parents:
            return folder / path.relative_to(folder).parts[0]
    return None


def _hashes(
    place: Place,
    wanted: Mapping[Path, bytes],
    ours: Mapping[Path, set[str]],
    report: Report,
    *,
    before: bool,
) -> dict[str, list[str]]:
    """Return the hashes that are ours; before anything is written, the old ones as well."""
    keep = {change.path for change in report.having("keep")}
    found: dict[str, list[str]] = {}
    for path, data in wanted.items():
        old = ours.get(path, set())
        if path in keep and not old:
            continue  # it was there before us
        found[_key(place, path)] = sorted(
            {digest(data)} | (old if before or path in keep else set())
        )
    if before:
        for path, old in ours.items():
            found.setdefault(_key(place, path), sorted(old))
    return found


def _key(place: Place, path: Path) -> str:
    inside = place.base in path.parents
    return path.relative_to(place.base).as_posix() if inside else str(path)


def _write_manifest(
    place: Place, names: list[str], files: Mapping[str, list[str]], version: str = __version__
) -> None:
    made = {"schema": SCHEMA, "version": version, "host": place.host, "scope": place.scope,
            "skills": names, "files": dict(sorted(files.items()))}  # fmt: skip
    place.manifest.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place.manifest, (json.dumps(made, indent=1) + "\n").encode())


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        with suppress(PermissionError):  # of the folder above, which is not ours
            folder.rmdir()
