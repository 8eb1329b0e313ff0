"""Agents with levels against flat ones, one seed in one process and one thread.

`python benchmarks/hierarchy.py moved-goal --seed 0 --out moved-goal-0.json`; with `--tiny` only to
see whether it works.
"""

from __future__ import annotations

import sys

import hierarchy_moved_goal

PARTS = {"moved-goal": hierarchy_moved_goal.main}


def main(argv: list[str]) -> None:
    """Run one part with the arguments after its name."""
    if not argv or argv[0] not in PARTS:
        sys.exit(f"usage: hierarchy.py {{{','.join(PARTS)}}} [--seed N] --out FILE [--tiny]")
    PARTS[argv[0]](argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
