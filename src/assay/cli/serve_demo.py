"""`assay serve demo`: live clients learn through a server, and a trainer that dies is no matter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.server.demo import Demo, Plan, Summary

_LINE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_BUILT_BY_TESTS = Path("build/cpp")
_BUILT_HERE = Path("build/demo")


def demo(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=2.0, help="How long clients play; 60.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two clients on a small task, for some seconds.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the server's data here.")
    ] = None,
    cpp: Annotated[
        Path | None,
        typer.Option("--cpp", help="Where clients/cpp was built; by default it is looked for."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Watch live clients learn through a server, and see its trainer killed and back."""
    from assay.cli.serve import needs_grpc

    needs_grpc()
    from assay.server.demo import Demo, data_directory, make_plan

    plan = make_plan(seconds=seconds, quick=quick)
    program, why = find_program(cpp or _BUILT_BY_TESTS)
    if program is None and cpp is None:
        program, why = find_program(_BUILT_HERE) if quick else build_program()
    output.note(
        f"A server, and {plan.clients} clients that control {plan.env} for {plan.seconds:g} "
        f"seconds, {plan.rate:g} decisions a second each at most. {why}"
    )
    with data_directory(data) as place, Demo(plan, place, program) as running:
        output.note(f"The server is on {running.address}; its trainer is starting ...")
        running.wait_for_models()
        with _Screen(running) as screen:
            played = _play(running, plan, screen)
        output.note("Ending the clients and draining the server ...")
        summary = running.finish(played)
    if as_json:
        from dataclasses import asdict

        output.print_json(asdict(summary))
    else:
        show_summary(plan, summary)
    if not summary.drained:
        raise typer.Exit(output.EXIT_INCOMPLETE)


def _play(running: Demo, plan: Plan, screen: _Screen) -> float:
    """Let the clients play, with the trainer killed half-way; return for how many seconds."""
    from assay.server.demo import RESUME_SECONDS

    began = time.monotonic()
    killed: int | None = None
    back = False
    while True:
        running.look(_LOOK_SECONDS)
        passed = time.monotonic() - began
        if killed is None and passed >= plan.seconds / 2:
            version = running.policy().get("newest_version", 0)
            killed = running.kill_trainer()
            if killed is not None:
                screen.tell(f"Killed the trainer (process {killed}, kill -9) at version {version}.")
        elif killed is not None and not back and (after := running.resumed()) is not None:
            back = True
            learner = running.policy()["learner"]
            screen.tell(
                f"The trainer is back as process {learner['pid']} and has published version "
                f"{running.policy()['newest_version']}, {after:.1f} s after it was killed. "
                "The clients acted on all the time."
            )
        screen.draw(passed)
        # On a slow machine the end waits for the trainer, or there would be nothing to see.
        if passed >= plan.seconds and (back or passed >= plan.seconds + RESUME_SECONDS):
            return passed


class _Screen:
    """Shows a running demo: a live table on a terminal, a line now and then elsewhere."""

    def __init__(self, running: Demo) -> None:
        from rich.live import Live

        self._running = running
        self._notes: list[str] = []
        self._printed = 0.0
        self._live = (
            Live(console=output.err(), auto_refresh=False, transient=True)
            if sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            for line in self._notes:
                output.note(line)

    def tell(self, line: str) -> None:
        """Show a line that stays."""
        self._notes.append(line)
        if self._live is None:
            output.note(line)

    def draw(self, passed: float) -> None:
        """Show how things are."""
        if self._live is not None:
            self._live.update(clients_view(self._running, passed, self._notes), refresh=True)
        elif passed - self._printed >= _LINE_SECONDS or not self._printed:
            self._printed = passed
            output.note(clients_line(self._running, passed))


def clients_view(running: Demo, passed: float, notes: list[str]) -> RenderableType:
    """Return the table of clients, that of policies, and what has happened."""
    from rich.console import Group
    from rich.text import Text

    from assay.cli.top import view

    rows = [
        (
            one.name,
            one.latest.get("state"),
            f"{one.latest.get('decisions', 0):,}",
            f"{one.latest.get('acknowledged', 0):,}",
            output.number(one.mean),
            one.latest.get("version"),
            _microseconds(one.latest.get("act_p50")),
            _microseconds(one.latest.get("act_p99")),
        )
        for one in running.clients
    ]
    columns = (
        "client", "state", "decisions>", "safe on the server>", "return>", "version>",
        "act() p50>", "p99>",
    )  # fmt: skip
    title = f"{running.plan.env}, {passed:.0f} of {running.plan.seconds:g} seconds"
    parts: list[RenderableType] = [output.table(columns, rows, title=title)]
    parts.append(view(running.address, running.facts))
    parts += [Text(line, "dim") for line in running.program_lines[-3:]]
    parts += [Text(line, "bold") for line in notes]
    return Group(*parts)


def clients_line(running: Demo, passed: float) -> str:
    """Return the same in a line."""
    reports = [one.latest for one in running.clients]
    means = [one.mean for one in running.clients if one.mean is not None]
    latencies = sorted(one["act_p50"] for one in reports if one.get("act_p50"))
    facts = running.policy()
    parts = [
        f"{passed:4.0f} s",
        f"{sum(one.get('decisions', 0) for one in reports):,} decisions",
        f"return {output.number(sum(means) / len(means) if means else None)}",
        f"version {facts.get('newest_version', 0)}",
        f"act() {_microseconds(latencies[len(latencies) // 2] if latencies else None)}",
        f"{sum(one.get('acknowledged', 0) for one in reports):,} steps safe on the server",
    ]
    return "; ".join(parts)


def show_summary(plan: Plan, summary: Summary) -> None:
    """Print what the demo has shown."""
    lines = {
        "return": f"{output.number(summary.first)} in the first tenth of {summary.episodes:,} "
        f"episodes, {output.number(summary.last)} in the last",
        "decisions": f"{summary.decisions:,}, of which {summary.fallbacks:,} without a model; "
        f"act() took {_microseconds(summary.act_p50)} (median)",
        "experience": f"{summary.acknowledged:,} steps are safe on the server, {summary.lost:,} "
        "were lost",
        "versions": f"{summary.versions} published",
        "trainer": _killed(summary),
        "C++ client": ", ".join(" ".join(line.split()) for line in summary.program),
        "server": "drained in order" if summary.drained else "could not be drained in time",
    }
    output.say(f"{plan.env}, {plan.clients} clients, {summary.seconds:.0f} seconds")
    for key, value in lines.items():
        if value:
            output.say(f"{key + ':':<12}{value}")
    output.say("\nTry next: assay serve, and docs/server.md for a client of your own.")


def _killed(summary: Summary) -> str:
    if summary.killed is None:
        return "was not killed: it had no process of its own yet"
    if summary.resumed_after is None:
        return f"killed (process {summary.killed}), and not back in time"
    return f"killed (process {summary.killed}), back after {summary.resumed_after:.1f} s"


def find_program(built: Path) -> tuple[Path | None, str]:
    """Return the C++ client if it was built there, and a line that says so."""
    program = built / "queue"
    if program.is_file():
        return program.resolve(), f"A C++ client controls a queue ({program})."
    return None, f"No C++ client: there is none in '{built}'. To build it: make cpp"


def build_program(source: Path = Path("clients/cpp")) -> tuple[Path | None, str]:
    """Build the C++ client from a checkout, if a compiler is there, and say what came of it."""
    if not (source / "CMakeLists.txt").is_file():
        return None, f"No C++ client: '{source}' is not here."
    if shutil.which("cmake") is None or shutil.which("c++") is None:
        return None, "No C++ client: there is no compiler here."
    if not _BUILT_HERE.is_dir():
        output.note(f"Building the C++ client in {_BUILT_HERE}: a minute or two, once ...")
    # Not where `make cpp` builds, which wants the tests as well.
    without = [f"-DASSAY_{what}=OFF" for what in ("BUILD_TESTS", "BUILD_BENCHMARKS", "SANITIZE")]
    jobs = str(os.cpu_count() or 1)
    for command in (
        ["cmake", "-S", str(source), "-B", str(_BUILT_HERE), *without],
        ["cmake", "--build", str(_BUILT_HERE), "--parallel", jobs],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            return None, f"No C++ client: `{' '.join(command)}` failed: {' '.join(last)}"
        missing = [line for line in done.stdout.splitlines() if "was not found: only" in line]
        if missing:
            return None, f"No C++ client: {missing[0].removeprefix('-- ')}"
    return find_program(_BUILT_HERE)


def _microseconds(seconds: Any) -> str:
    return "-" if seconds is None else f"{1e6 * seconds:.1f} us"
