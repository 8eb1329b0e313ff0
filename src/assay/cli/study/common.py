"""What all commands of a study share: where it is, who acts, and how it is told."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay.cli import output

if TYPE_CHECKING:
    from assay.study.layout import Study

PhaseName = Literal["smoke", "short", "promotion", "validation"]
DecidingPhase = Literal["promotion", "validation"]

Root = Annotated[
    Path | None,
    typer.Option("--root", help="The target repository; by default the nearest that has a study."),
]
Task = Annotated[str | None, typer.Option("--task", help="The task, if not the active one.")]
Name = Annotated[str | None, typer.Option("--study", help="The study, if not the active one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
By = Annotated[
    str | None, typer.Option("--by", help="Who acts ($ASSAY_ACTOR, or the user's name).")
]
Confirm = Annotated[
    str, typer.Option("--confirm", help="RUN_CANDIDATE, or the token that the dry run shows.")
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Really launch; without it this is a dry run.")
]


def actor(by: str | None) -> str:
    """Return in whose name something is done."""
    named = by or os.environ.get("ASSAY_ACTOR", "")
    if named.strip():
        return named.strip()
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"


def read(root: Path | None, task: str | None, study: str | None) -> Study:
    """Open the study that is meant, to look at it."""
    from assay.study.layout import find_root, open_study

    return open_study(root if root is not None else find_root(Path.cwd()), task, study)


@contextmanager
def opened(root: Path | None, task: str | None, study: str | None) -> Iterator[Study]:
    """Open the study that is meant, and leave its state and anchors up to date."""
    found = read(root, task, study)
    yield found
    found.sync()


def told(as_json: bool, value: Any, lines: str | list[str]) -> None:
    """Print a result, as JSON or in words."""
    if as_json:
        output.print_json(value)
        return
    for line in [lines] if isinstance(lines, str) else lines:
        output.say(line)


def refuse_unconfirmed(execute: bool, confirm: str) -> None:
    """Refuse a launch that is asked for by halves.

    Raises:
        StudyError: `--execute` without `--confirm`.
    """
    from assay.study.layout import StudyError

    if execute and not confirm:
        raise StudyError(
            "--execute alone launches nothing.", "Confirm it as well: --confirm RUN_CANDIDATE"
        )
