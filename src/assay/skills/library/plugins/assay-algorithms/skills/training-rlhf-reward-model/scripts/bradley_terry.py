"""Compute the Bradley-Terry loss and calibration of summed rewards against answers.

python bradley_terry.py --left 1,0 --right 0,2 --answers left,right [--error 0.1]
"""

from __future__ import annotations

import argparse
import sys

import torch

from assay.functional.preferences import bradley_terry_loss, calibration

TARGET = {"left": 1.0, "right": 0.0, "equal": 0.5}


def numbers(text: str) -> torch.Tensor:
    """Read 1,2.5,-3."""
    return torch.tensor([float(word) for word in text.split(",")])


def main() -> int:
    """Print the probabilities, the loss, and how far they can be trusted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--left", type=numbers, required=True, help="sums of rewards")
    parser.add_argument("--right", type=numbers, required=True)
    parser.add_argument("--answers", required=True, help="left, right or equal, with commas")
    parser.add_argument("--error", type=float, default=0.1, help="share assumed to be chance")
    given = parser.parse_args()
    words = given.answers.split(",")
    if not set(words) <= set(TARGET):
        parser.error(f"--answers is {given.answers!r}: expected left, right or equal")
    try:
        target = torch.tensor([TARGET[word] for word in words])
        loss = bradley_terry_loss(given.left, given.right, target, given.error)
    except ValueError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    left = torch.sigmoid(given.left - given.right)
    clear = target != 0.5
    print(f"probability of left: {[round(x, 4) for x in left.tolist()]}")
    print(f"loss: {loss:.6f}")
    if clear.any():
        found = calibration(left[clear].numpy(), (target[clear] == 1).numpy())
        print(f"calibration error: {found.error:.4f} of {int(clear.sum())} clear answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
