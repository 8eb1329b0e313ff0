"""What the commands of a study share: which study, who acts, and how results are printed."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson, shared_options

if TYPE_CHECKING:
    from assay.study.record.study import Study

PhaseName = Literal["smoke", "short", "promotion", "validation"]
DecidingPhase = Literal["promotion", "validation"]

Root = Annotated[
    Path | None,
    typer.Option("--root", help="The target repository; by default the nearest that has a study."),
]
Task = Annotated[str | None, typer.Option("--task", help="The task, if not the active one.")]
Name = Annotated[str | None, typer.Option("--study", help="The study, if not the active one.")]
By = Annotated[
    str | None, typer.Option("--by", help="Who acts ($ASSAY_ACTOR, or the user's name).")
]
Confirm = Annotated[str, typer.Option("--confirm", help="The token that the dry run shows.")]
Execute = Annotated[
    bool, typer.Option("--execute", help="Really launch; without it this is a dry run.")
]


@dataclass(frozen=True, slots=True)
class Call:
    """The options that all commands on a study share; a command's first argument."""

    root: Path | None
    task: str | None
    study: str | None
    as_json: bool
    by: str | None = None

    @property
    def actor(self) -> str:
        """Return the name under which the ledger records this command."""
        return actor(self.by)

    def read(self, *, copies: bool = False) -> Study:
        """Open the study to read it; copies without their .git only if asked to."""
        from assay.study.record.opening import find_root, open_study

        root = self.root if self.root is not None else find_root(Path.cwd())
        found = open_study(root, self.task, self.study)
        if not copies:
            found.refuse_copy()
        return found

    @contextmanager
    def opened(self) -> Iterator[Study]:
        """Open the study to change it; its state and anchors are updated afterwards."""
        found = self.read()
        yield found
        found.sync()

    def show(self, facts: Any, lines: str | Sequence[Any]) -> None:
        """Print a result, as JSON or as text: lines and tables."""
        show(self.as_json, facts, lines)


_WHERE = {"root": Root, "task": Task, "study": Name, "as_json": AsJson}


@contextmanager
def _call(**options: Any) -> Iterator[Call]:
    yield Call(**options)


# Give a command the options of `_WHERE` as a `Call`; `acting` adds --by.
on_study = shared_options(_WHERE, _call)
acting = shared_options({**_WHERE, "by": By}, _call)


def actor(by: str | None) -> str:
    """Return the name under which the ledger records a command."""
    named = by or os.environ.get("ASSAY_ACTOR", "")
    if named.strip():
        return named.strip()
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"


def show(as_json: bool, facts: Any, lines: str | Sequence[Any]) -> None:
    """Print a result, as JSON or as text: lines and tables."""
    if as_json:
        output.print_json(facts)
        return
    for line in [lines] if isinstance(lines, str) else lines:
        if isinstance(line, str):
            output.say(line)
        else:
            output.show(line)


def assignments(items: Sequence[str]) -> dict[str, Any]:
    """Return `KEY=VALUE` words as typed values.

    Raises:
        StudyError: A key is given twice.
    """
    from assay.core.config import parse_assignments
    from assay.study.files.documents import StudyError

    words: dict[str, str] = {}
    for item in items:
        key = item.partition("=")[0].strip()
        if key in words:
            raise StudyError(
                f"'{key}' is given twice: {words[key]} and {item}.", "Leave one of them out."
            )
        words[key] = item
    return parse_assignments(list(items))


def refuse_unconfirmed(execute: bool, confirm: str, how: str = "") -> None:
    """Refuse a launch that is not confirmed.

    Raises:
        StudyError: `--execute` without `--confirm`.
    """
    from assay.study.files.documents import StudyError

    if execute and not confirm:
        raise StudyError(
            "--execute alone launches nothing.",
            how or "Confirm it with the token that the same command shows without --execute.",
        )
