"""Everything that the training server promises, measured in one run.

    python benchmarks/server.py            # some minutes
    python benchmarks/server.py --store    # ... and keep the result as evidence
    python benchmarks/server.py --quick    # does it work? The numbers mean nothing

Where another design can be had, it is measured in the same run: a gRPC server in plain Python that
decides remotely, takes one message per step and keeps everything in memory (`server_reference.py`).
"""

from __future__ import annotations

import os

# Before NumPy: one thread, as in a controlled system.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import datetime
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
from children import finish

EVIDENCE = evidence.ROOT / "evidence" / "server.json"
CPP = evidence.ROOT.parent / "build" / "cpp"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    calls: int = 20_000
    codec_times: int = 300
    seconds: float = 5.0
    repeats: int = 3
    clients: int = 4
    versions: int = 300
    rounds: int = 5
    kills: int = 1000


QUICK = Size(200, 6, 0.3, 1, 2, 5, 1, 4)


def result(size: Size, cpp: Path = CPP) -> dict[str, Any]:
    """Measure, and return what is stored."""
    # Here, so that a table can be made of evidence without the extra `server`.
    import numpy as np
    import server_act
    import server_codec
    import server_gateway
    import server_live
    from kill_gateway import run as kill_loop

    _say("decisions")
    acting = server_live.act(size.calls, size.rounds)
    program = cpp / "core" / "act-benchmark"
    heads = {case: server_act.measure(case, size.calls, program) for case in server_act.CASES}
    _say("encoding")
    codec = server_codec.measure(1000, size.codec_times)
    _say("ingestion")
    ingest = server_gateway.measure(size.clients, 1000, size.seconds, size.repeats)
    _say("publication")
    published = np.percentile(server_live.publish(size.versions), [50, 99])
    _say("restarts")
    restarts = server_live.restart(size.rounds, min(size.seconds, 2.0))
    _say(f"{size.kills} kills")
    kills = kill_loop(size.kills, progress=_say)
    return {
        "schema": evidence.SCHEMA,
        "date": datetime.date.today().isoformat(),
        "machine": evidence.machine(),
        "act_us": {name: evidence.rounded(found) for name, found in acting.items()},
        "heads_us": {
            case: {way: evidence.rounded(found) for way, found in ways.items()}
            for case, ways in heads.items()
        },
        "codec_ms": {
            "assay": evidence.rounded(codec[server_codec.OURS][1:], 4),
            "reference": evidence.rounded(codec[server_codec.PEER][1:], 4),
        },
        "ingest": {
            name: evidence.rounded(found, 0) if isinstance(found, list) else found
            for name, found in ingest.items()
        },
        "publish_ms": {"versions": size.versions, "p50_p99": evidence.rounded(published)},
        "restart": _rounded_times(restarts),
        "kills": {
            name: getattr(kills, name)
            for name in ("kills", "acknowledged", "stored", "lost", "doubled", "disordered",
                         "unanswered", "sessions", "versions")
        } | {"problems": [problem[:300] for problem in kills.problems[:10]]},
    }  # fmt: skip


def _rounded_times(restarts: dict[str, Any]) -> dict[str, Any]:
    for side in ("assay", "reference"):
        restarts[side]["us"] = evidence.rounded(restarts[side]["us"], 1)
    return restarts


@dataclass(frozen=True)
class Row:
    """One line of the table: a target, and what both sides reach.

    Attributes:
        title: What is measured.
        ours: Our figure, with its unit.
        reference: The same of the reference, measured in the same run; "" for none.
        ratio: How many times better ours is; "" without a reference.
        target: What was promised.
        met: Whether it is kept; None where it was not measured.
    """

    title: str
    ours: str
    reference: str
    ratio: str
    target: str
    met: bool | None


def rows(found: Mapping[str, Any]) -> list[Row]:
    """Return the targets, and whether the measurements reach them."""
    ours, peer = found["act_us"]["assay"][0], found["act_us"]["reference"][0]
    native = [ways["C++"][1] for ways in found["heads_us"].values() if "C++" in ways]
    codec = {side: sum(values) for side, values in found["codec_ms"].items()}
    ingest = {side: statistics.median(found["ingest"][side]) for side in ("assay", "reference")}
    publish = found["publish_ms"]["p50_p99"][1]
    restart, kills = found["restart"], found["kills"]
    lost = kills["lost"] + kills["disordered"] + len(kills["problems"])
    share = restart["reference"]["missed"] / restart["reference"]["decisions"]
    return [
        Row("Python `act()`, p50, 8-64-64-4", f"{ours:.1f} us", f"{peer:,.0f} us",
            _times(peer / ours), "20 us", ours <= 20),
        Row("C++ `act()`, p99, slowest head", f"{max(native):.2f} us" if native else "not built",
            "", "", "3 us", max(native) <= 3 if native else None),
        Row("write and read 1,000 steps", f"{codec['assay']:.3f} ms",
            f"{codec['reference']:.1f} ms", _times(codec["reference"] / codec["assay"]),
            "0.1 ms", codec["assay"] <= 0.1),
        Row("ingestion through one gateway, durable", f"{ingest['assay']:,.0f} steps/s",
            f"{ingest['reference']:,.0f} steps/s, not durable",
            _times(ingest["assay"] / ingest["reference"]), "500,000 steps/s",
            ingest["assay"] >= 500_000),
        Row("publish to swapped in, 100,444 parameters, p99", f"{publish:.1f} ms", "never", "",
            "50 ms", publish <= 50),
        Row("decisions missed while the server restarts", f"{restart['assay']['missed']} of "
            f"{restart['assay']['decisions']:,}", f"{share:.0%}", "", "0",
            restart["assay"]["missed"] == 0),
        Row(f"lost / duplicated steps after {kills['kills']:,} kills",
            f"{kills['lost']} / {kills['doubled']}", "all in memory", "", "0 / 0",
            lost == kills["doubled"] == 0),
    ]  # fmt: skip


def lines(found: Mapping[str, Any]) -> str:
    """Return the result as a table, with what it is to be read with."""
    head = ["", "Assay", "reference design", "ratio", "target", "met"]
    table = [head, ["---"] * len(head)]
    for row in rows(found):
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        table.append([row.title, row.ours, row.reference, row.ratio, row.target, met])
    ingest, restart, kills = found["ingest"], found["restart"]["assay"], found["kills"]
    reader = statistics.median(ingest["with_reader"])
    notes = [
        f"Ingestion: {ingest['clients']} clients in processes on the same machine, batches of "
        f"{ingest['batch_steps']:,} steps, {reader:,.0f} steps/s while a learner reads everything; "
        f"this disk does {ingest['bare_syncs']:,.0f} plain writes of 64 kB with a sync a second.",
        f"Restarts: {found['restart']['rounds']} kills under a client that decides every "
        f"{found['restart']['period_ms']:g} ms; p99 {restart['us'][1]:,.0f} us, "
        f"{restart['dropped_steps']} steps dropped, {restart['sessions']} sessions.",
        f"Kills: {kills['acknowledged']:,} steps acknowledged, {kills['stored']:,} stored, "
        f"{kills['sessions']:,} sessions, {kills['versions']:,} versions, "
        f"{kills['unanswered']} decisions missed.",
        *(f"A problem after the kills: {problem}" for problem in kills["problems"]),
    ]
    text = ["| " + " | ".join(cells) + " |" for cells in table]
    return "\n".join([*text, "", *(f"- {note}" for note in notes)])


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; a missed target is a result, not an error."""
    parser = argparse.ArgumentParser(description="Measure the training server.")
    parser.add_argument("--quick", action="store_true", help="a little of all; measures nothing")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    parser.add_argument("--cpp", type=Path, default=CPP, help="the C++ build")
    options = parser.parse_args(arguments)
    content = result(QUICK if options.quick else Size(), options.cpp)
    if options.store and not options.quick:
        import report

        evidence.write_json(EVIDENCE, content)
        report.write_blocks([report.BENCHMARKS_README])
    print(lines(content))
    return 0


if __name__ == "__main__":
    finish(main)
