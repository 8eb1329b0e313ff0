"""The report of a suite of environments as one HTML page, without anything to load."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from assay.envs.checks import CheckResult
from assay.envs.suite import EnvReport

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left }
.failed { color: #b00020; font-weight: 600 } .advice { color: #8a5a00 } .ok { color: #1b6e2c }
summary { cursor: pointer; font-weight: 600; margin: 1rem 0 .3rem }
"""


def suite_page(reports: Sequence[EnvReport]) -> str:
    """Return the page: a table of all environments, then every check of each."""
    failed = sum(bool(report.failed) for report in reports)
    verdict = f"{failed} of {len(reports)} failed" if failed else f"all {len(reports)} passed"
    rows = "".join(_line(report) for report in reports)
    parts = "".join(_details(report) for report in reports)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Environments: {verdict}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Environments: {verdict}</h1><table><thead><tr><th>environment</th><th>verdict</th>"
        f"<th>failed</th><th>advice</th><th>speed</th></tr></thead><tbody>{rows}</tbody></table>"
        f"{parts}</body></html>\n"
    )


def word(result: CheckResult) -> str:
    """Return what became of a check, in a word."""
    return "failed" if not result.ok else "advice" if result.fix else "ok"


def speed(report: EnvReport) -> str:
    """Return the speed that was measured, or "-"."""
    found = next((one.detail for one in report.results if one.name == "speed"), "-")
    return found.partition(" steps")[0]


def _line(report: EnvReport) -> str:
    verdict = "failed" if report.failed else "ok"
    names = ", ".join(one.name for one in report.failed) or "-"
    return (
        f'<tr><td><a href="#{escape(report.env)}">{escape(report.env)}</a></td>'
        f'<td class="{verdict}">{verdict}</td><td>{escape(names)}</td>'
        f"<td>{len(report.advice)}</td><td>{escape(speed(report))} steps/s</td></tr>"
    )


def _details(report: EnvReport) -> str:
    rows = "".join(
        f'<tr><td>{escape(one.name)}</td><td class="{word(one)}">{word(one)}</td>'
        f"<td>{escape(one.detail)}{'<br>' + escape(one.fix) if one.fix else ''}</td></tr>"
        for one in report.results
    )
    opened = " open" if report.failed else ""
    return (
        f'<details id="{escape(report.env)}"{opened}><summary>{escape(report.env)}</summary>'
        f"<table><tbody>{rows}</tbody></table></details>"
    )
