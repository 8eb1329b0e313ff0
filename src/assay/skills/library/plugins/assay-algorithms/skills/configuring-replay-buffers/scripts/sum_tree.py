"""Show how often prioritised replay would draw transitions, from TD errors that you have.

python sum_tree.py --errors 0.1,2,0.5 [--alpha 0.6] [--beta 0.4] [--draws 10000]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from assay.buffers.prioritized import Priorities, PrioritizedOptions
from assay.core.errors import AssayError


def main() -> int:
    """Print the share of each by the tree, as it was drawn, and its importance weight."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--errors", required=True, help="TD errors of any sign, with commas")
    parser.add_argument("--alpha", type=float, default=0.6, help="priority_alpha; 0 is uniform")
    parser.add_argument("--beta", type=float, default=0.4, help="of the importance weights")
    parser.add_argument("--draws", type=int, default=10_000)
    given = parser.parse_args()
    try:
        errors = np.array([float(word) for word in given.errors.split(",")])
        priorities = Priorities(len(errors), PrioritizedOptions(alpha=given.alpha))
        slots = np.arange(len(errors))
        priorities.insert(slots)
        priorities.update(slots, errors)
    except (AssayError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    rng = np.random.default_rng(0)
    drawn, weights = priorities.draw(rng, given.draws, given.beta, len(errors))
    shares = priorities.tree.leaves / priorities.tree.total
    weight = dict(zip(drawn.tolist(), weights.tolist(), strict=True))
    for slot in slots.tolist():
        times = (drawn == slot).mean()
        w = f"weight {weight[slot]:.3f}" if slot in weight else "never drawn"
        print(f"{slot}: error {errors[slot]:g}, share {shares[slot]:.1%}, drawn {times:.1%}, {w}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
