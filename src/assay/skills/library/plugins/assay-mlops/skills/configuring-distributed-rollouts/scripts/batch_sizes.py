"""Say what numbers of environments, horizons and minibatches amount to, before a run.

    python batch_sizes.py ppo CartPole-v1 num_envs=8 horizon=128 minibatch_size=256 env_steps=1e6

Exit code 2: the settings do not go together.
"""

from __future__ import annotations

import argparse
import sys

from assay.core.config import parse_assignments
from assay.core.errors import AssayError
from assay.loops.batch_sizes import batch_sizes


def main() -> int:
    """Print the sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    try:
        settings = parse_assignments(given.settings)
        sizes = batch_sizes(given.algorithm, given.env, settings)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for name, value in sizes.items():
        print(f"{name.replace('_', ' ')}: {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
