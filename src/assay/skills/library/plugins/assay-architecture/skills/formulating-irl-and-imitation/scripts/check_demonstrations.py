"""Check a set of demonstrations before anything imitates it.

    python check_demonstrations.py my_set.npz [--env Pendulum-v1] [--least 10]

Exit code 0: usable. 1: usable, with warnings. 2: not usable.
"""

from __future__ import annotations

import argparse
import sys

from assay.core.errors import AssayError
from assay.data.files import load
from assay.data.findings import validate


def main() -> int:
    """Print what is wrong, and how many episodes there are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", help="a file, a name or a Minari id")
    parser.add_argument("--env", help="compare its spaces with this environment's")
    parser.add_argument(
        "--least", type=int, default=10, help="episodes below which a warning is due"
    )
    given = parser.parse_args()
    try:
        found = validate(given.set, given.env)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for one in found:
        print(f"{one.level}: {one.code}: {one.message}")
    if any(one.level == "error" for one in found):
        return 2
    episodes = load(given.set).num_episodes
    print(f"{episodes} episodes")
    if episodes < given.least:
        print(f"warning: few: cloning drifts below {given.least} episodes; gail and dagger do not")
    return int(bool(found) or episodes < given.least)


if __name__ == "__main__":
    sys.exit(main())
