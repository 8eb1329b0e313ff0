"""Check environments and write the report as Markdown, for a pull request.

    python suite_report.py CartPole-v1 Pendulum-v1 [--out report.md] [--no-processes]

Exit code 0: all passed. 1: a check failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay.envs.suite import EnvReport, check_suite
from assay.envs.suite_page import speed


def page(reports: list[EnvReport]) -> str:
    """Return a table of all, and a line for each failure and each piece of advice."""
    lines = ["| environment | result | checks | steps/s |", "|---|---|---|---|"]
    for report in reports:
        word = "FAILED" if report.failed else "ok"
        lines.append(f"| {report.env} | {word} | {len(report.results)} | {speed(report)} |")
    lines.append("")
    for report in reports:
        for kind, found in (("failed", report.failed), ("advice", report.advice)):
            told = (f"{one.name}: {one.detail} {one.fix or ''}".strip() for one in found)
            lines += [f"- {report.env}, {kind}, {text}" for text in told]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the suite."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("envs", nargs="+", metavar="ID")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--no-processes", action="store_true")
    parser.add_argument("--out", type=Path, help="a file; without it the report is printed")
    given = parser.parse_args()
    processes = not given.no_processes
    reports = list(check_suite(given.envs, steps=given.steps, processes=processes))
    text = page(reports)
    if given.out is None:
        print(text, end="")
    else:
        given.out.write_text(text)
    return int(any(report.failed for report in reports))


if __name__ == "__main__":
    sys.exit(main())
