"""Cases done by a real model, with and without the skill: the only source of such figures.

The results file is `{"schema": 1, "runs": [...]}`; it begins empty, and only `measure` adds to it.
A run says which client did which case, with or without the skill, and which checks failed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay import __version__
from assay.skills import evals
from assay.skills.evals import Case
from assay.skills.install import install
from assay.skills.library import Skill, SkillsError, read_json
from assay.skills.places import place

SCHEMA = 1
LONGEST = 1_800  # seconds of one case
CLIENTS: Mapping[str, tuple[str, ...]] = {  # the prompt follows
    "claude": ("claude", "--allowedTools", "Bash(assay:*) Read Write Edit Skill", "-p"),
    "codex": ("codex", "exec", "--sandbox", "workspace-write", "--skip-git-repo-check"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One case done by a model."""

    skill: str
    case: int
    host: str
    client: str  # its version, as it says it
    version: str  # of Assay
    with_skill: bool
    passed: bool
    failed: list[str]


def read_results(path: Path) -> list[Run]:
    """Return the runs of a results file; none if it is not there.

    Raises:
        SkillsError: It is not such a file.
    """
    if not path.exists():
        return []
    found = read_json(path)
    try:
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']}")
        return [Run(**each) for each in found["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SkillsError(
            f"'{path}' is not a results file (schema {SCHEMA}): {error}.", "Name another with --to."
        ) from None


def measure(skill: Skill, chosen: Sequence[Case], host: str, to: Path) -> Iterator[Run]:
    """Have a client do cases without the skill and with it; add each run to the results.

    Raises:
        SkillsError: The client is unknown or not installed.
    """
    if host not in CLIENTS:
        raise SkillsError(f"There is no host '{host}'.", f"One of {', '.join(CLIENTS)}.")
    if shutil.which(CLIENTS[host][0]) is None:
        raise SkillsError(f"The command {CLIENTS[host][0]} is not on PATH.", "Install the client.")
    known = read_results(to)
    said = subprocess.run([CLIENTS[host][0], "--version"], capture_output=True, text=True)
    for case in chosen:
        for with_skill in (False, True):
            failed = _done(skill, case, host, with_skill)
            run = Run(skill.name, case.number, host, said.stdout.strip(), __version__, with_skill,
                      not failed, list(failed))  # fmt: skip
            known.append(run)
            write_results(to, known)
            yield run


def write_results(path: Path, runs: Sequence[Run]) -> None:
    """Write a results file, in one step."""
    found = {"schema": SCHEMA, "runs": [dataclasses.asdict(run) for run in runs]}
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, path)


def _done(skill: Skill, case: Case, host: str, with_skill: bool) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="assay-skill-") as name:
        here = Path(name)
        failed = evals.begin(case, skill.path, here)
        if failed:
            return (failed,)
        if with_skill:
            install(place(host, "project", here), [skill])
        try:
            done = subprocess.run(
                [*CLIENTS[host], case.prompt], cwd=here, capture_output=True, text=True,
                timeout=LONGEST, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return (f"the client did not end within {LONGEST} s",)
        if done.returncode:
            return (f"the client ended with {done.returncode}: {done.stderr.strip()[-400:]}",)
        return evals.check(case, skill.path, here, done.stdout)
