"""Explain a run and print only what a decision needs: features, checks, memory, values.

    python explain_run.py runs/my-run [--episodes 10] [--states 64]

Exit code 0: every check passed. 1: one failed. 2: the run cannot be explained.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay.core.errors import AssayError
from assay.explanation.report import explain


def main() -> int:
    """Print the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--states", type=int, default=64)
    given = parser.parse_args()
    try:
        found = explain(given.run, episodes=given.episodes, states=given.states)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print("looks at: " + ", ".join(one.name for one in found.features[:5]))
    for one in found.checks:
        print(f"{'ok' if one.passed else 'FAILED'}: {one.name}: {one.detail}")
    print(f"memory: {found.memory.verdict if found.memory is not None else 'none'}")
    values = found.values
    print(f"values: {values if isinstance(values, str) else f'bias {values.bias:.4g}'}")
    return 0 if found.believable else 1


if __name__ == "__main__":
    sys.exit(main())
