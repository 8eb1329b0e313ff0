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
    except Exception:
        import traceback

        traceback.print_exc()
        print("\nThis is a bug in Assay. Please report it with the lines above.", file=sys.stderr)
        sys.exit(1)
