"""Rank the algorithms that can learn a problem, with reasons.

    python select_algorithm.py problem.yaml [--most 3] [--json]
    python select_algorithm.py action.kind=discrete action.n=4 mdp.simulator.kind=simulator

Exit code 0: something fits. 2: nothing does, or the answers cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from assay.core.config import parse_assignments
from assay.core.errors import AssayError
from assay.design.choose import choose
from assay.design.documents import parse_text, read_document
from assay.design.sources import from_answers, written


def main() -> int:
    """Print the ranking."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", nargs="+", help="a file, or answers FIELD=VALUE")
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        if "=" in given.problem[0]:
            text = written(from_answers(parse_assignments(given.problem)))
            problem = parse_text(text)
        else:
            problem = read_document(Path(given.problem[0])).problem
        choices, ruled_out = choose(problem)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    best = [one.to_dict() for one in choices[: given.most]]
    if given.json:
        print(json.dumps({"ranked": best, "ruled_out": ruled_out}))
    for one in [] if given.json else best:
        reasons = [f"+ {text}" for text in one["for"]] + [f"- {text}" for text in one["against"]]
        print("\n    ".join([one["algorithm"], *reasons, one["command"]]))
    return 0 if best else 2


if __name__ == "__main__":
    sys.exit(main())
