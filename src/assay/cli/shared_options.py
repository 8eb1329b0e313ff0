"""Options that many commands take, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

Command = Callable[..., None]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsRoot = Annotated[
    Path | None, typer.Option("--root", help="Where runs are kept ($ASSAY_RUNS, or runs).")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A path, or a name under runs.")]
RunOrGroup = Annotated[
    str, typer.Argument(metavar="RUN_OR_GROUP", help="A path, or a name under runs.")
]


def shared_options(
    options: Mapping[str, Any], make: Callable[..., AbstractContextManager[Any]]
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command.

    Typer reads a command's signature, so the options are added there.

    Args:
        options: Name -> `Annotated[type, typer.Option(...)]`. A bool is False by default, all
            others None.
        make: Called with the options' values. What its context manager yields is the command's
            first argument.
    """
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if kind.__origin__ is bool else None,
            annotation=kind,
        )
        for name, kind in options.items()
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            with make(**{name: given.pop(name) for name in options}) as first:
                command(first, **given)

        # The first argument's type may be imported for type checkers only.
        first = next(iter(inspect.signature(command).parameters.values()))
        signature = inspect.signature(command, eval_str=True, locals={first.annotation: Any})
        own = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in list(signature.parameters.values())[1:]
        ]
        parameters = [*own, *added]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        del run.__wrapped__
        return run

    return decorate
