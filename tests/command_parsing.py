"""Parse command lines of texts against the real command line, without running them."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

import typer.main
from typer.core import TyperGroup

from assay.cli.app import app


@cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def parsed(line: str) -> Any:
    """Return the context of a command line's verb; None where it only names a group of verbs."""
    words = shlex.split(line)[1:]
    command: Any = _command_line()
    context = typer.Context(command, info_name="assay")
    # Not click's own classes: typer brings its own copy of them.
    assert isinstance(command, TyperGroup)
    while isinstance(command, TyperGroup):
        if words and words[0].startswith("-") and command.invoke_without_command:
            break  # options of a group that does something by itself, such as `assay serve`
        name, command, words = command.resolve_command(context, words)
        assert command is not None, f"no such command: {name}"
        context = typer.Context(command, info_name=name, parent=context)
        if not words and isinstance(command, TyperGroup):
            return None
    return command.make_context(command.name, list(words), parent=context.parent)
