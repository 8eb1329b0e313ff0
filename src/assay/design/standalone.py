"""One section of a problem, checked by a script that stands alone, as those of skills do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from assay.core.errors import EXIT_USER_ERROR, AssayError
from assay.design import checks
from assay.design.documents import read_document


def check_section(section: str, about: str | None, words: Sequence[str] | None = None) -> int:
    """Read the command line, print what the rules say of a section, and return the exit code.

    Args:
        section: Of the problem.
        about: The help of the script.
        words: The command line, by default the process's own.

    Returns:
        0 if nothing is an error, else 2.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path("problem.yaml"))
    parser.add_argument("--json", action="store_true", help="print the findings and facts as JSON")
    given = parser.parse_args(words)
    try:
        problem = read_document(given.file).problem
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    if getattr(problem, section) is None:
        print(f"Error: {given.file} has no section '{section}'.", file=sys.stderr)
        return EXIT_USER_ERROR
    findings = checks.check(problem, section)
    facts = checks.facts(problem, section)
    if given.json:
        print(json.dumps({"findings": [one.to_dict() for one in findings], "facts": facts}))
    else:
        for one in findings:
            print(f"{one.severity}: {one.rule}: {one.field}: {one.message}. {one.fix}")
        for name, value in facts.get(section, {}).items():
            print(f"{name}: {value}")
        print(f"{section}: {len(findings)} findings")
    return EXIT_USER_ERROR if any(one.severity == "error" for one in findings) else 0
