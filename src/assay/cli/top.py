"""`assay server top`: a live view of all policies of a server."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from assay.cli import output
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.server.admin_client import AdminClient

COLUMNS = (
    "policy", "state", "steps/s>", "batches/s>", "return>", "episodes>", "version>", "lag>",
    "behind>", "learner>", "restarts>", "clients>", "ack p50>", "p99>",
)  # fmt: skip
_CALM = frozenset({"learning", "idle"})


def watch(server: AdminClient, *, once: bool, seconds: float, as_json: bool) -> None:
    """Show all policies, once or repeatedly.

    On a terminal the table is redrawn in place. Elsewhere each table is printed below the last.
    If the server goes away meanwhile, wait for it.
    """
    from assay.server.admin_client import policy_facts

    def look() -> list[dict[str, Any]]:
        return [policy_facts(info) for info in server.policies()]

    found = look()  # one that never answered is an error
    if as_json or once:
        if as_json:
            output.print_json(found)
        else:
            output.show(view(server.address, found))
        return
    if not sys.stdout.isatty():
        _print_on(server, look, found, seconds)
    _redraw(server, look, found, seconds)


def _print_on(server: AdminClient, look: Any, found: Any, seconds: float) -> None:
    while True:
        output.show(view(server.address, found))
        sys.stdout.flush()
        found = _next(look, seconds) or found


def _redraw(server: AdminClient, look: Any, found: Any, seconds: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=output.out(), screen=True, auto_refresh=False) as live:
        away = ""
        while True:
            shown: RenderableType = view(server.address, found)
            live.update(Group(shown, Text(away, "bold red")) if away else shown, refresh=True)
            new = _next(look, seconds)
            away = "" if new is not None else f"{server.address} does not answer"
            found = new if new is not None else found


def _next(look: Any, seconds: float) -> list[dict[str, Any]] | None:
    from assay.server.admin_client import ServerAwayError

    time.sleep(seconds)
    try:
        found: list[dict[str, Any]] = look()
    except ServerAwayError as error:
        if not sys.stdout.isatty():
            output.note(error.message)
        return None
    return found


def view(address: str, found: list[dict[str, Any]]) -> RenderableType:
    """Return the table, and below it the errors."""
    from rich.console import Group
    from rich.text import Text

    steps = sum(one["traffic"]["steps_per_second"] for one in found)
    clients = sum(len(one["traffic"]["clients"]) for one in found)
    title = (
        f"{address}   {len(found)} {'policy' if len(found) == 1 else 'policies'}   "
        f"{clients} {'client' if clients == 1 else 'clients'}   {steps:,.0f} steps/s   "
        f"{time.strftime('%H:%M:%S')}"
    )
    parts: list[RenderableType] = [output.table(COLUMNS, map(row, found), title=title)]
    for one in found:
        error = one["learner"]["last_error"]
        if error and one["state"] not in _CALM:
            parts.append(Text(f"{one['policy']}: {error}", "red"))
    return Group(*parts)


def row(facts: dict[str, Any]) -> tuple[Any, ...]:
    """Return a policy's line."""
    learner, traffic = facts["learner"], facts["traffic"]
    memory = learner["memory_bytes"]
    stable = facts["channels"].get("stable")
    version = str(facts["newest_version"])
    if stable is not None and stable != facts["newest_version"]:
        version = f"{stable} of {version}"
    return (
        facts["policy"],
        facts["state"],
        f"{traffic['steps_per_second']:,.0f}",
        f"{traffic['batches_per_second']:,.1f}",
        number(facts["return_mean"]),
        f"{facts['episodes']:,}",
        version + (" pinned" if "stable" in facts["pinned"] else ""),
        f"{traffic['version_lag']:.1f}",
        f"{learner['behind_steps']:,}",
        f"{memory / 1e6:,.0f} MB" if memory else None,
        learner["restarts"],
        len(traffic["clients"]),
        _milliseconds(traffic["ack_p50_seconds"]),
        _milliseconds(traffic["ack_p99_seconds"]),
    )


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1000 * seconds:.1f} ms"
