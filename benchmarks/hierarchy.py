"""Agents with levels against flat ones, one seed in one process and one thread.

    python benchmarks/hierarchy.py moved-goal --seed 0 --out runs/moved-goal/0.json
    python benchmarks/hierarchy.py collect runs/moved-goal     # writes evidence/hierarchy.json

With `--tiny` only to see whether it works. The evidence has all but the curves of the seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import evidence
import hierarchy_moved_goal
import numpy as np

from assay.core.errors import DataError

EVIDENCE = evidence.ROOT / "evidence" / "hierarchy.json"
HALF = 0.5  # of the flat agent's steps: what the paper's figure promises
_CURVES = ("before", "after")


def collect(arguments: list[str]) -> None:
    """Write the seeds that are in a directory as evidence, and print their table."""
    [place] = arguments
    seeds = [evidence.read_json(path) for path in sorted(Path(place).glob("*.json"))]
    if not seeds or len({str((one["plan"], sorted(one["agents"]))) for one in seeds}) > 1:
        raise DataError(f"'{place}' does not hold seeds of one plan and of the same agents.")
    for one in seeds:
        one["agents"] = {
            name: {key: value for key, value in agent.items() if key not in _CURVES}
            for name, agent in one["agents"].items()
        }
    found = {"schema": evidence.SCHEMA, "seeds": sorted(seeds, key=lambda one: one["seed"])}
    evidence.write_json(EVIDENCE, found)
    print(lines(found))


def lines(found: Mapping[str, Any]) -> str:
    """Return the steps to recover as a table; who did not recover counts with the whole budget."""
    seeds = found["seeds"]
    budget, means = seeds[0]["plan"]["after"], {}
    rows = ["| agent | steps to the first goal | steps to recover | mean |", "|---|---|---|---|"]
    for name in seeds[0]["agents"]:
        agents = [one["agents"][name] for one in seeds]
        means[name] = float(
            np.mean([budget if a["recovered"] is None else a["recovered"] for a in agents])
        )
        cells = [", ".join(_steps(a[key]) for a in agents) for key in ("reached", "recovered")]
        rows.append(f"| {name} | {' | '.join(cells)} | {means[name]:,.0f} |")
    share = means["option_critic"] / means["ppo"]
    met = "reached" if share <= HALF else "**missed**"
    machines = {one["machine"]["cpu"]: one["machine"]["versions"]["torch"] for one in seeds}
    on = "; ".join(f"{cpu} (torch {version})" for cpu, version in machines.items())
    return "\n".join([
        *rows, "",
        f"Seeds {', '.join(str(one['seed']) for one in seeds)}. Option-critic takes {share:.2f} of "
        f"the steps that PPO takes; asked: {HALF:g}, {met}. Measured on {on}.",
    ])  # fmt: skip


def _steps(count: int | None) -> str:
    return "never" if count is None else f"{count:,}"


PARTS = {"moved-goal": hierarchy_moved_goal.main, "collect": collect}


def main(argv: list[str]) -> None:
    """Run one part with the arguments after its name."""
    if not argv or argv[0] not in PARTS:
        sys.exit(
            "usage: hierarchy.py moved-goal [--seed N] --out FILE [--tiny] | hierarchy.py collect "
            "DIRECTORY"
        )
    PARTS[argv[0]](argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
