"""How the command line prints: results on stdout, everything else on stderr.

So `assay ... --json | program` always works, and a log of stderr holds all messages.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from assay.core.errors import AssayError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXIT_INTERRUPTED: Final = 130
EXIT_INCOMPLETE: Final = 1  # a server could not save everything in time
_LOG_WIDTH = 160  # columns of a table that goes to a file or a pipe


def out() -> Console:
    """Return the console of results."""
    return _console(stderr=False)


def err() -> Console:
    """Return the console of progress, notes and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # A pipe has no width; 80 columns would break tables that any log can hold.
    width = None if stream.isatty() or "COLUMNS" in os.environ else _LOG_WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, width=width)


def say(text: str = "") -> None:
    """Print a line of the result, without wrapping it."""
    out().print(text, soft_wrap=True)


def note(text: str) -> None:
    """Print a status line on stderr; a closed stderr is ignored."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def show_error(error: AssayError) -> None:
    """Print an error and its fix, without a traceback."""
    from rich.text import Text

    console = err()
    console.print(Text.assemble(("Error: ", "bold red"), error.message), soft_wrap=True)
    if error.fix:
        console.print(error.fix, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document; NaN and infinities become null."""
    sys.stdout.write(json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Return `value` in JSON types; anything else becomes a string."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return plain(value.tolist())
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """Make a table; a column whose name ends in `>` is aligned right.

    The first column holds names that users type again, so it is never truncated.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for index, name in enumerate(columns):
        made.add_column(
            name.removesuffix(">"),
            justify="right" if name.endswith(">") else "left",
            no_wrap=index == 0,
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    return made


def show(thing: Any) -> None:
    """Print a table or another rich object as a result."""
    out().print(thing)


def duration(seconds: float | None) -> str:
    """Format a duration.

    Example:
        >>> duration(3.21), duration(75), duration(7325)
        ('3.2 s', '1:15', '2:02:05')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show Assay's own warnings as a line of text, without the line of code they come from."""
    before = warnings.showwarning
    package = str(Path(__file__).parents[1])

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if category.__module__.startswith("assay.") or filename.startswith(package):
            note(f"Warning: {message}")
        else:
            before(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        yield
