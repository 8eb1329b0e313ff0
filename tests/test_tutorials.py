"""The tutorials are true: their files are written, their commands run, their output appears."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import assay

PAGES = sorted((Path(__file__).parent.parent / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "assay").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m assay "$@"\n')
    (commands / "assay").chmod(0o755)
    source = str(Path(assay.__file__).parents[1])
    environment = os.environ | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    place = tmp_path / "repository"
    place.mkdir()
    printed, checked = "", 0
    for language, file, text in BLOCK.findall(page.read_text()):
        if file:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(text)
        elif language == "console":
            words = ["bash", "-e", "-c", text]
            done = subprocess.run(
                words, cwd=place, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            printed = done.stdout
            assert done.returncode == 0, printed
        elif language == "text":
            for line in text.splitlines():
                wanted = ".*".join(map(re.escape, line.split("...")))
                assert re.search(f"^{wanted}$", printed, re.MULTILINE), f"{line}\n\n{printed}"
                checked += 1
    assert checked >= 5


def test_there_are_tutorials() -> None:
    assert {page.stem for page in PAGES} == {"study-a-script", "study-assay-ppo"}
