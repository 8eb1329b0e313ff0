"""Turn committed evidence into the tables of the READMEs.

python benchmarks/report.py                   # rewrite the tables between their markers
python benchmarks/report.py --collect DIR     # first put the seeds in DIR into evidence files
python benchmarks/report.py --check           # change nothing; fail if a table is out of date
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence
from cases import CASES, COMPARISONS, SEEDS, Case, Measure
from evidence import EvidenceError, Ratio

from assay.core.errors import EXIT_USER_ERROR, AssayError

# Where each table goes. A file without the markers of a table does not show it.
BENCHMARKS_README = evidence.ROOT / "README.md"
PROJECT_README = evidence.ROOT.parent / "README.md"
NAMES = ("learning", "speed", "phases", "memory")
_UNITS: dict[Measure, str] = {
    "env_steps_per_second": "steps/s",
    "updates_per_second": "updates/s",
    "seconds_to_return": "s",
}


# ---------------------------------------------------------------------- tables


def learning_table(directory: Path = evidence.LEARNING) -> str:
    """Return the table of all learning cases, those without evidence among them."""
    rows = ["case", "environment steps", "goal", "IQM [95% interval]", "per seed", "passed"]
    lines = [_row(rows), _row(["---"] * len(rows))]
    machines: dict[str, None] = {}
    for case in CASES.values():
        title = f"{case.algorithm.upper()} {case.env}"
        path = directory / f"{case.name}.json"
        if not path.exists():
            lines.append(_row([title, f"{case.env_steps:,}", case.goal, "not measured", "", ""]))
            continue
        found = evidence.read_learning(path)
        low, high = found["interval"]
        value = f"{_score(found['iqm'])} [{_score(low)}, {_score(high)}]"
        seeds = ", ".join(_score(entry["evaluation"]["mean"]) for entry in found["seeds"])
        passed = "yes" if found["passed"] else "**no**"
        lines.append(_row([title, f"{case.env_steps:,}", case.goal, value, seeds, passed]))
        machines |= dict.fromkeys(machine_line(entry["machine"]) for entry in found["seeds"])
    note = f"\n\nMeasured on {'; '.join(machines)}." if machines else ""
    return "\n".join(lines) + note


def speed_table(content: Mapping[str, Any]) -> str:
    """Return the table of a speed measurement; comparisons that did not run are left out."""
    head = ["comparison", "Assay", "peer", "ratio [range]", "target", "met", "final returns"]
    lines = [_row(head), _row(["---"] * len(head))]
    for comparison in COMPARISONS:
        found = evidence.compare(comparison, content["runs"])
        if found is not None:
            lines.append(_row(_speed_cells(found)))
    date = f" on {content['date']}" if "date" in content else ""
    lines += ["", f"Measured{date} on one core of {machine_line(content['machine'])}."]
    return "\n".join(lines)


def _speed_cells(found: Ratio) -> list[str]:
    comparison = found.comparison
    unit = _UNITS[comparison.measure]
    target = "" if comparison.target is None else f"{comparison.target:g}x"
    met = {None: "", True: "yes", False: "**no**"}[found.met]
    span = f"{_times(found.ratio)} [{_times(found.low)}, {_times(found.high)}]"
    ours, peer = (_quantity(value, unit) for value in (found.ours, found.peer))
    returns = f"{_score(found.our_return)} / {_score(found.peer_return)}"
    return [comparison.title, ours, peer, span, target, met, returns]


def memory_line() -> str:
    """Return what a replay of a million stacked frames needs, planned and (if there) measured."""
    from memory import CAPACITY, frame_bytes, planned_bytes

    frames, planned = frame_bytes(CAPACITY), planned_bytes(CAPACITY)
    text = (
        f"A replay of {CAPACITY:,} transitions of 84x84x4 uint8 frames allocates {planned:,} "
        f"bytes, {planned / frames:.3f} times the {frames:,} bytes of its frames."
    )
    if evidence.MEMORY.exists():
        found = evidence.read_json(evidence.MEMORY)
        try:
            share = found["resident_bytes"] / frame_bytes(found["capacity"])
            text += (
                f" Filled with {found['capacity']:,} transitions, the process had grown by "
                f"{found['resident_bytes']:,} bytes, {share:.3f} times the frames."
            )
        except (KeyError, TypeError) as error:
            raise EvidenceError(f"'{evidence.MEMORY.name}' is refused: {error}.") from None
    return text


def tables() -> dict[str, str]:
    """Return every table from the committed evidence.

    Raises:
        EvidenceError: An evidence file is damaged.
    """
    if evidence.SPEED.exists():
        speed = speed_table(evidence.read_speed(evidence.SPEED))
    else:
        speed = "Not measured yet: `make bench`."
    phases = "Not measured yet: `python benchmarks/phases.py --compile --store`."
    if evidence.PHASES.exists():
        phases = evidence.PHASES.read_text().strip()
    return {
        "learning": learning_table(),
        "speed": speed,
        "phases": phases,
        "memory": memory_line(),
    }


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _score(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _quantity(value: float, unit: str) -> str:
    if math.isinf(value):
        return "not reached"
    return f"{value:.2f} {unit}" if unit == "s" else f"{value:,.0f} {unit}"


def _times(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}x" if value >= 1 else f"{value:.2f}x"


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return the processor and the versions that matter on one line."""
    names = {"python": "Python", "torch": "torch", "stable-baselines3": "SB3", "skrl": "skrl"}
    versions = facts["versions"]
    parts = [f"{title} {versions[name]}" for name, title in names.items() if name in versions]
    return f"{facts['cpu']} ({', '.join(parts)})"


# ---------------------------------------------------------------------- READMEs


def block(text: str, name: str) -> str | None:
    """Return what stands between the markers of a table, or None without markers."""
    found = re.search(_pattern(name), text, re.DOTALL)
    return None if found is None else found[2].strip("\n")


def with_block(text: str, name: str, table: str) -> str:
    """Return the text with another table between its markers."""
    return re.sub(
        _pattern(name), lambda found: f"{found[1]}\n{table}\n{found[3]}", text, flags=re.DOTALL
    )


def _pattern(name: str) -> str:
    return rf"(<!-- {name}:begin -->)(.*?)(<!-- {name}:end -->)"


def outdated(path: Path) -> list[str]:
    """Return the names of the tables in a file that are not what the evidence says."""
    text, wanted = path.read_text(), tables()
    shown = {name: block(text, name) for name in NAMES}
    return [name for name in NAMES if shown[name] not in (None, wanted[name])]


def write_blocks(paths: Sequence[Path] = (BENCHMARKS_README, PROJECT_README)) -> None:
    """Rewrite every table that the files have markers for."""
    wanted = tables()
    for path in paths:
        text = path.read_text()
        shown = [name for name in NAMES if block(text, name) is not None]
        for name in shown:
            text = with_block(text, name, wanted[name])
        path.write_text(text)
        print(f"{path.name} of {path.parent.name}: {', '.join(shown) or 'no markers'}")


# ---------------------------------------------------------------------- evidence


def collect(directory: Path, target: Path = evidence.LEARNING) -> list[Path]:
    """Put the seeds that `learning.py` left in a directory into one evidence file per case.

    Raises:
        EvidenceError: Seeds of a case contradict each other, or none is there at all.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(directory.glob("seeds/*.json")):
        result = evidence.read_json(path)
        found.setdefault(result["case"], []).append(result)
    if not found:
        raise EvidenceError(f"There are no seeds in '{directory}'.", "Run learning.py first.")
    written = []
    for name, results in found.items():
        if len(results) < SEEDS:
            print(f"{name}: {len(results)} of {SEEDS} seeds, left out")
            continue
        path = target / f"{name}.json"
        evidence.write_json(path, evidence.aggregate(CASES[name], results))
        evidence.read_learning(path)
        written.append(path)
    return written


def stale(case: Case, content: Mapping[str, Any]) -> list[str]:
    """Return the settings that the shipped preset now has otherwise than the evidence."""
    from learning import resolved

    now, then = resolved(case, 0), content["config"]
    parts = [(now["hyperparameters"], then["hyperparameters"])]
    parts.append(({"num_envs": now["run"]["num_envs"]}, {"num_envs": then["run"]["num_envs"]}))
    return [k for new, old in parts for k in old if new.get(k) != old[k]]


def check() -> list[str]:
    """Return what is wrong: tables out of date, evidence for settings no longer shipped."""
    wrong = []
    for path in (BENCHMARKS_README, PROJECT_README):
        wrong += [f"the table '{n}' of {path.name} is out of date" for n in outdated(path)]
    for case in CASES.values():
        path = evidence.LEARNING / f"{case.name}.json"
        if path.exists() and (names := stale(case, evidence.read_learning(path))):
            wrong.append(f"{case.name}: the preset changed ({', '.join(names)}); measure again")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect, then rewrite or check."""
    parser = argparse.ArgumentParser(description="Turn evidence into the tables of the READMEs.")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="where learning.py worked")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    if options.collect is not None:
        for path in collect(options.collect):
            print(f"wrote {path.name}")
    if options.check:
        wrong = check()
        print("\n".join(wrong) or "All tables agree with the evidence.")
        return 1 if wrong else 0
    write_blocks()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssayError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
