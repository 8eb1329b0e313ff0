"""Compute the loss of conservative Q-learning on one step, by hand.

    python cql.py --values 1,2,4 --action 0 --reward 1 --next-value 3 [--alpha 5] [--terminated]

With Box actions give sampled values less the log-density that drew each, and --recorded.
"""

from __future__ import annotations

import argparse
import sys

import torch

from assay.functional.losses import conservative_gap
from assay.functional.targets import td_target


def main() -> int:
    """Print the gap, the target, and both parts of the loss."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", required=True, help="Q of all actions, with commas")
    parser.add_argument("--action", type=int, help="number of the recorded one")
    parser.add_argument("--recorded", type=float, help="its Q, where --values does not have it")
    parser.add_argument("--reward", type=float, default=0.0)
    parser.add_argument("--next-value", type=float, default=0.0)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--alpha", type=float, default=5.0, help="cql_alpha")
    parser.add_argument("--terminated", action="store_true")
    given = parser.parse_args()
    try:
        values = torch.tensor([float(word) for word in given.values.split(",")])
        if (given.action is None) == (given.recorded is None):
            raise ValueError("give --action or --recorded, one of them")
        if given.action is not None and not 0 <= given.action < len(values):
            raise ValueError(f"--action {given.action}: expected 0 to {len(values) - 1}")
    except ValueError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    q = values[given.action] if given.recorded is None else torch.tensor(given.recorded)
    numbers = (given.reward, given.gamma, float(given.terminated), given.next_value)
    target = td_target(*(torch.tensor([x]) for x in numbers))[0]
    gap, error = conservative_gap(values, q), (q - target).square()
    print(f"gap {gap:.4f}, target {target:.4f}")
    print(f"loss {error + given.alpha * gap:.4f}: TD {error:.4f}, term {given.alpha * gap:.4f}")
    best = int(values.argmax())
    print(f"pushed down most: action {best}, by {values.softmax(0)[best]:.4f} of the gradient")
    return 0


if __name__ == "__main__":
    sys.exit(main())
