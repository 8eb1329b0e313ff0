"""Sample settings with Optuna inside the approved scope of a study, and print them.

    python optuna_study.py --count 4 [--root REPOSITORY]

What was tried before is read from the study's record, so that a new process goes on. Nothing is
run. Exit code 2: there is no study, no approved scope, or Optuna is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from assay.core.errors import AssayError
from assay.study.record.opening import find_root, open_study
from assay.study.steps.candidates import usual_request
from assay.study.steps.proposers import from_optuna


def main() -> int:
    """Propose, and print one JSON line for each candidate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--root", type=Path, help="the repository of the study")
    parser.add_argument("--actor", default="agent")
    given = parser.parse_args()
    try:
        study = open_study(given.root or find_root(Path.cwd()))
        made = from_optuna(study, given.count, usual_request(study), given.actor)
        study.sync()
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for name in made:
        print(json.dumps({"candidate": name, **study.candidate(name).change.parameters}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
