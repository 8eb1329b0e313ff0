"""Show which levels prioritised level replay would draw, from scores that you have.

    python level_replay.py --scores 0.1,0.9,0.4 [--temperature 0.3]

A score is the mean value loss of a level; the numbers of levels are their places in the list.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from assay.core.errors import AssayError
from assay.envs.variation.ranges import Ranges, read_ranges
from assay.envs.variation.replay import LevelReplay, ReplaySampler


def main() -> int:
    """Print the share of each level, without staleness."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scores", required=True)
    parser.add_argument("--temperature", type=float, default=0.3)
    given = parser.parse_args()
    try:
        scores = np.array([float(word) for word in given.scores.split(",")])
        count = len(scores)
        ranges = Ranges(read_ranges({"level": {"integer": [0, count - 1]}}), {"level": 0})
        settings = LevelReplay(temperature=given.temperature, staleness=0.0, levels=count)
        sampler = ReplaySampler(settings, ranges)
        sampler.scored((np.arange(count)[:, None] + 0.5) / count, np.full(count, -1), scores)
        shares = sampler.weights()
    except (AssayError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for level, (score, share) in enumerate(zip(scores, shares, strict=True)):
        print(f"level {level}: score {score:g}, {share:.1%} of the replayed episodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
