"""Show what hindsight makes of one episode on a line: which goals it tells, and what they pay.

python hindsight.py --achieved 0,1,2,3 --goal 9 [--strategy future] [--ratio 0.8]
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from assay.buffers.hindsight import HindsightOptions, HindsightReplay
from assay.core.errors import AssayError
from assay.core.types import Spaces, Transition

LINE = Box(-1e6, 1e6, (1,), np.float32)
SPACES = Spaces(Dict(observation=LINE, achieved_goal=LINE, desired_goal=LINE), Discrete(2))


def goals(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rewards and ends, 0 and over at the goal, -1 elsewhere."""
    there = np.isclose(achieved, desired)[:, 0]
    return there - 1.0, there


def main() -> int:
    """Fill a replay with the episode, draw from it, and count."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument(
        "--achieved", required=True, help="places before the first step and after each"
    )
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--strategy", default="future", choices=("future", "final", "episode"))
    parser.add_argument("--ratio", type=float, default=0.8)
    given = parser.parse_args()
    try:
        places = np.array([[[float(x)]] for x in given.achieved.split(",")], np.float32)
        own = {"options": HindsightOptions(given.strategy, given.ratio), "goals": goals}
        replay = HindsightReplay(SPACES, len(places), rng=np.random.default_rng(0), **own)
        goal = np.full((1, 1), given.goal, np.float32)
        seen = [{"observation": x, "achieved_goal": x, "desired_goal": goal} for x in places]
        for now, after in pairwise(seen):
            reward, ended = goals(after["achieved_goal"], goal)
            replay.add(Transition(now, np.zeros(1, int), reward, after, ended, np.array([False])))
        batch = replay.sample(5000)
    except (AssayError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    told, place = (batch.obs[k].numpy()[:, 0] for k in ("desired_goal", "observation"))
    paid = batch.reward.numpy() == 0
    print(f"successes in a batch: {paid.mean():.1%}")
    for x in np.unique(place):
        names = ", ".join(f"{g:g}" for g in np.unique(told[place == x]))
        print(f"step from {x:g}: goals {names}; successes {paid[place == x].mean():.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
