"""Read the evaluations of a skill: cases with checks, and queries that it takes or leaves.

`evals/evals.json` holds them, in the Agent Skills format with more fields:

- `evals`: cases with `id`, `prompt`, `expected_output`, the directory to begin with (`begin`: the
  name of one that cases share, `setup`: files and their lines, `prepare`: commands), the reference
  way (`commands`), `checks`, and `ci`: whether it is cheap enough for tests.
- `triggers`: queries with `should_trigger`; a near miss says with `instead` which skill takes it,
  or null.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from assay.skills.library import SkillsError, read_json

# A training script as users have it, without Assay: its score rises with --lr.
_SCRIPT = """\
import argparse, json, pathlib, random

p = argparse.ArgumentParser()
p.add_argument("--seed", type=int, default=0)
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--out", default="out")
a = p.parse_args()
d = pathlib.Path(a.out)
d.mkdir(parents=True, exist_ok=True)
score = 10 * a.lr + random.Random(a.seed).random()
(d / "eval.json").write_text(json.dumps({"return": score}))
"""
_STUDY = (
    'assay study start train.py --question "Is a larger step better?" --minimum-effect 1 '
    "--candidates 2",
    "assay study contract set 'metrics.primary.source={kind: json, path: eval.json, key: return}' "
    "task.env=Toy evaluation.episodes=1",
)
FILE = "evals/evals.json"
CASES, QUERIES, TAKEN, NEAR = 3, 20, 10, 6  # at least
PROGRAMS = ("assay", "python")
# What decides a check, and what may stand beside it.
CHECKS: Mapping[str, frozenset[str]] = {
    "file": frozenset({"contains", "matches"}),
    "absent": frozenset(),
    "json": frozenset({"at", "equals", "at_least", "at_most", "one_of", "contains"}),
    "run": frozenset({"exit", "contains"}),
    "said": frozenset(),
}
_CASE = {
    *("id", "prompt", "expected_output", "begin", "setup", "prepare", "commands", "checks", "ci"),
}
LONGEST = 900  # seconds of a command
TOO_LONG = 124  # the exit code of one that took longer


@dataclass(frozen=True, slots=True)
class Beginning:
    """The files of a directory, by name, and the commands that are then run in it."""

    files: Mapping[str, str]
    commands: tuple[str, ...] = ()


BEGINNINGS: Mapping[str, Beginning] = {
    "script": Beginning({"train.py": _SCRIPT}),
    "study": Beginning({"train.py": _SCRIPT}, _STUDY),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command, the exit code that it is to have, and the file for what it prints."""

    line: str
    exit: int = 0
    to: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One task for an agent, the reference way, and how the result is checked."""

    skill: str
    number: int
    prompt: str
    expected: str
    setup: Mapping[str, str]
    prepare: tuple[Command, ...]
    commands: tuple[Command, ...]
    checks: tuple[Mapping[str, Any], ...]
    ci: bool


@dataclass(frozen=True, slots=True)
class Query:
    """What a user types; `owner` is the skill that should take it, None if no skill should."""

    text: str
    skill: str  # in whose file it stands
    taken: bool
    owner: str | None


@dataclass(frozen=True, slots=True)
class Evals:
    """The evaluations of one skill."""

    skill: str
    cases: tuple[Case, ...]
    queries: tuple[Query, ...]


def read(path: Path) -> Evals | None:
    """Return the evaluations in a skill's folder; None if it has none.

    Raises:
        SkillsError: They are malformed; the place is named.
    """
    file = path / FILE
    if not file.exists():
        return None
    wrong = list(problems(path))
    if wrong:
        raise SkillsError(f"'{file}': {wrong[0]}.", "`assay skills validate` shows all problems.")
    found = read_json(file)
    cases = tuple(_case(path.name, case) for case in found["evals"])
    queries = tuple(
        Query(q["query"], path.name, q["should_trigger"],
              path.name if q["should_trigger"] else q["instead"])
        for q in found["triggers"]
    )  # fmt: skip
    return Evals(path.name, cases, queries)


def problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with the evaluations in a skill's folder."""
    try:
        found = read_json(path / FILE)
    except SkillsError as error:
        yield error.message
        return
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), list) and all(isinstance(each, dict) for each in found[key])
        for key in ("evals", "triggers")
    ):
        yield "malformed: `evals` and `triggers` with lists of objects are expected"
        return
    if found.get("skill_name") != path.name:
        yield f"skill_name is {found.get('skill_name')!r}"
    cases, queries = found["evals"], found["triggers"]
    near = sum(query.get("should_trigger") is False for query in queries)
    if len(cases) < CASES or len(queries) < QUERIES or near < NEAR or len(queries) - near < TAKEN:
        yield (
            f"{len(cases)} cases and {len(queries)} trigger queries, {near} near misses; "
            f"{CASES}, {QUERIES} and {NEAR} at least, and {TAKEN} queries that it takes"
        )
    if len({case.get("id") for case in cases}) < len(cases):
        yield "two cases have one id"
    for number, case in enumerate(cases):
        for what in _wrong_case(case):
            yield f"evals[{number}]: {what}"
    if len({str(query.get("query")).lower() for query in queries}) < len(queries):
        yield "two queries are the same"
    for number, query in enumerate(queries):
        taken = query.get("should_trigger")
        if not isinstance(query.get("query"), str) or not isinstance(taken, bool):
            yield f"triggers[{number}]: a text `query` and `should_trigger` are expected"
        elif ("instead" in query) == taken:
            yield f"triggers[{number}]: `instead` belongs to near misses, and to all of them"
        elif query.get("instead") == path.name:
            yield f"triggers[{number}]: `instead` names the skill itself"


def _wrong_case(case: dict[str, Any]) -> Iterator[str]:
    odd = sorted(set(case) - _CASE)
    if odd:
        yield f"{', '.join(odd)}: known fields: {', '.join(sorted(_CASE))}"
    if not isinstance(case.get("id"), int):
        yield "`id` must be a number"
    for key in ("prompt", "expected_output"):
        if not isinstance(case.get(key), str) or not case[key]:
            yield f"`{key}` must be a text"
    if not isinstance(case.get("ci"), bool):
        yield "`ci` must be true or false"
    if case.get("begin", "script") not in BEGINNINGS:
        yield f"begin: {case['begin']!r} is none of {', '.join(BEGINNINGS)}"
    for name in case.get("setup", {}):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            yield f"setup: {name!r} is outside of the directory"
    for key in ("commands", "checks"):
        if not isinstance(case.get(key), list) or not case[key]:
            yield f"`{key}` must be a list that is not empty"
            return
    runs = [check["run"] for check in case["checks"] if isinstance(check, dict) and "run" in check]
    for given in (*case.get("prepare", []), *case["commands"], *runs):
        try:
            words = _command(given).line.split()
        except (KeyError, TypeError, ValueError, AttributeError):
            yield f"{given!r} is no command"
            continue
        if not words or words[0] not in PROGRAMS:
            yield f"{given!r} must begin with {' or '.join(PROGRAMS)}"
    for check in case["checks"]:
        kinds = sorted(set(check) & set(CHECKS)) if isinstance(check, dict) else []
        if len(kinds) != 1 or set(check) - {kinds[0]} - CHECKS[kinds[0]]:
            yield f"{check!r} is no check: one of {', '.join(CHECKS)}, with its own options"
        elif kinds == ["json"] and not set(check) - {"json", "at"}:
            yield f"{check!r} compares nothing"


def _case(skill: str, found: dict[str, Any]) -> Case:
    begin = BEGINNINGS.get(found.get("begin", ""), Beginning({}))
    setup = {
        name: text if isinstance(text, str) else "\n".join(text) + "\n"
        for name, text in found.get("setup", {}).items()
    }
    prepare, commands = (
        tuple(_command(each) for each in lines)
        for lines in ([*begin.commands, *found.get("prepare", [])], found["commands"])
    )
    return Case(
        skill, found["id"], found["prompt"], found["expected_output"], {**begin.files, **setup},
        prepare, commands, tuple(found["checks"]), found["ci"],
    )  # fmt: skip


def _command(given: Any) -> Command:
    if isinstance(given, str):
        return Command(given)
    return Command(given["run"], int(given.get("exit", 0)), str(given.get("to", "")))


# ---------------------------------------------------------------------- running cases


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
