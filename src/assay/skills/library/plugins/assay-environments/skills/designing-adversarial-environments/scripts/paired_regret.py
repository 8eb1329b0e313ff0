"""Compute what PAIRED pays its generator for a maze, and what mazes drawn by chance are like.

    python paired_regret.py --protagonist 0.2,0.4 --antagonist 0.9,0.5
    python paired_regret.py --mazes 200 --size 9 --blocks 25 [--show 1]

The control of PAIRED (adversary=random) draws the mazes of the second line.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from assay.algorithms.paired import episode_returns
from assay.core.types import ACTION_MASK
from assay.functional.mazes import Canvas


def returns(text: str) -> tuple[float, float]:
    """Return the mean and the best of returns with commas, as of a rollout that has them."""
    rewards = np.array([[float(word)] for word in text.split(",")])
    mean, best = episode_returns(rewards, np.ones_like(rewards, bool))
    return float(mean[0]), float(best[0])


def main() -> int:
    """Print regret and minimax pay, or statistics of mazes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--protagonist", type=returns, help="returns of episodes in one maze")
    parser.add_argument("--antagonist", type=returns)
    parser.add_argument("--mazes", type=int, default=0, help="how many to draw")
    parser.add_argument("--size", type=int, default=9)
    parser.add_argument("--blocks", type=int, default=25)
    parser.add_argument("--show", type=int, default=0, help="how many to print")
    given = parser.parse_args()
    if (given.protagonist is None) != (given.antagonist is None):
        parser.error("--protagonist and --antagonist: both or neither")
    if given.protagonist is not None:
        mean, best = given.protagonist[0], given.antagonist[1]
        print(f"regret: {max(best - mean, 0.0):g} (best {best:g} less mean {mean:g})")
        print(f"minimax: {-mean:g}")
    if given.mazes > 0:
        rng = np.random.default_rng(0)
        canvas = Canvas(given.mazes, given.size, given.blocks, np.zeros((given.mazes, 0)))
        for _ in range(canvas.steps):
            free = canvas.seen()[ACTION_MASK] != 0
            canvas.put(np.where(free, rng.random(free.shape), -1.0).argmax(1))
        levels = canvas.levels()
        print(*(f"{name}: {value:.3g}" for name, value in levels.statistics().items()), sep="\n")
        print(*levels.pictures()[: given.show], sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
