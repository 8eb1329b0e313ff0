"""The command line, one file per verb.

Nothing heavy is imported before a verb runs: `assay --help` must appear immediately. So every verb
imports what it needs inside its function.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command `assay` and exit: 0, 2 for a user error, 130 after Ctrl-C."""
    import sys

    from assay.cli.app import app

    try:
        app(args=list(argv) if argv is not None else None, prog_name="assay")
    except Exception as error:
        import traceback

        traceback.print_exc()
        own = _own_line(error)
        if own is None:
            end = "This is a bug in Assay. Please report it with the lines above."
        else:
            end = f"The error came by way of your own code: {own}."
        print(f"\n{end}", file=sys.stderr)
        sys.exit(1)


def _own_line(error: Exception) -> str | None:
    """Return the innermost line of neither Assay nor what is installed that an error came by."""
    import sysconfig
    import traceback
    from pathlib import Path

    places = [Path(__file__).parents[1], *map(Path, sysconfig.get_paths().values())]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(place) for place in places):
            return f"{path}, line {frame.lineno}"
    return None
