"""Run the cases of skills in temporary directories, and make their checks."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.skills.evals import Case, Command

LONGEST = 900  # seconds of a command
TOO_LONG = 124  # the exit code of one that took longer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to: nothing in `failed` if it is as expected."""

    skill: str
    number: int
    failed: tuple[str, ...]


def run(case: Case, folder: Path, place: Path) -> Outcome:
    """Walk the reference way of a case, and make its checks.

    Args:
        case: The case.
        folder: The skill's folder.
        place: An empty directory to do it in.
    """
    failed = begin(case, folder, place)
    if not failed:
        failed, said = _walk(case.commands, folder, place)
    if failed:
        return Outcome(case.skill, case.number, (failed,))
    return Outcome(case.skill, case.number, check(case, folder, place, said))


def begin(case: Case, folder: Path, place: Path) -> str:
    """Make the directory that a case begins with; return what failed, if anything."""
    for name, text in case.setup.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return _walk(case.prepare, folder, place)[0]


def _walk(commands: tuple[Command, ...], folder: Path, place: Path) -> tuple[str, str]:
    """Run commands until one ends with another code; return what failed, and what all printed."""
    said = ""
    for command in commands:
        code, out, error = _run(command.line, folder, place)
        said += out + error
        if command.to:
            (place / command.to).write_text(out, encoding="utf-8")
        if code != command.exit:
            what = f"`{command.line}` ended with {code}, not {command.exit}"
            return f"{what}: {(error or out).strip()[-400:]}", said
    return "", said


def _run(line: str, folder: Path, place: Path) -> tuple[int, str, str]:
    words = [word.replace("{skill}", str(folder.resolve())) for word in shlex.split(line)]
    program = [sys.executable, "-m", "assay"] if words[0] == "assay" else [sys.executable]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            [*program, *words[1:]], cwd=place, env=environment, capture_output=True, text=True,
            timeout=LONGEST, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return TOO_LONG, "", f"it did not end within {LONGEST} s"
    return done.returncode, done.stdout, done.stderr


def check(case: Case, folder: Path, place: Path, said: str) -> tuple[str, ...]:
    """Return the checks of a case that fail in a directory, as sentences."""
    found = (_wrong(each, folder, place, said) for each in case.checks)
    return tuple(what for what in found if what)


def _wrong(check: Mapping[str, Any], folder: Path, place: Path, said: str) -> str:
    if "said" in check:
        good = re.search(check["said"], said, re.IGNORECASE | re.DOTALL)
        return "" if good else f"nothing said matches {check['said']!r}"
    if "absent" in check:
        there = list(place.glob(check["absent"]))
        return f"{check['absent']} is there" if there else ""
    if "run" in check:
        code, out, error = _run(check["run"], folder, place)
        if code != check.get("exit", 0):
            return f"`{check['run']}` ended with {code}: {(error or out).strip()[-400:]}"
        missing = check.get("contains", "") not in out + error
        return f"`{check['run']}` does not say {check['contains']!r}" if missing else ""
    if "json" in check:
        return _wrong_value(check, place)
    files = [path for path in place.glob(check["file"]) if path.is_file()]
    if not files:
        return f"no file {check['file']}"
    if len(check) == 1:
        return ""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    held = any(
        check.get("contains", "") in text and re.search(check.get("matches", ""), text)
        for text in texts
    )
    return "" if held else f"{check['file']} does not hold what {dict(check)} asks for"


def _wrong_value(check: Mapping[str, Any], place: Path) -> str:
    try:
        value = json.loads((place / check["json"]).read_text(encoding="utf-8"))
        for part in filter(None, str(check.get("at", "")).split(".")):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return f"{check['json']} has no {check.get('at', '')!r}: {error!r}"
    try:
        good = (
            value == check.get("equals", value)
            and ("at_least" not in check or value >= check["at_least"])
            and ("at_most" not in check or value <= check["at_most"])
            and ("one_of" not in check or value in check["one_of"])
            and ("contains" not in check or check["contains"] in value)
        )
    except TypeError as error:
        return f"{check['json']}, {check.get('at', '')!r}: {error}"
    return "" if good else f"{check['json']}: {value!r} is not what {dict(check)} asks for"
