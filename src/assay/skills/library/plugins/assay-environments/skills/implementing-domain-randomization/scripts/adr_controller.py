"""Replay how automatic domain randomisation would widen a range, from returns that you have.

    python adr_controller.py --range 5,15 --usual 9.8 --low 100 --high 400 --returns 450,420,80

Every return is the mean of one full buffer of episodes at the upper end of the range.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from assay.core.errors import AssayError
from assay.envs.variation.ranges import Ranges, read_ranges
from assay.envs.variation.widening import Adr, AdrSampler


def main() -> int:
    """Print the range after each buffer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--range", required=True, help="LOW,HIGH: the widest it may become")
    parser.add_argument("--usual", type=float, required=True, help="the environment's own value")
    parser.add_argument("--low", type=float, required=True, help="mean at which it shrinks")
    parser.add_argument("--high", type=float, required=True, help="mean at which it grows")
    parser.add_argument("--step", type=float, default=0.05, help="share of the range")
    parser.add_argument("--returns", required=True, help="means with commas")
    given = parser.parse_args()
    try:
        bounds = [float(word) for word in given.range.split(",")]
        ranges = Ranges(read_ranges({"it": bounds}), {"it": given.usual})
        settings = Adr(low=given.low, high=given.high, step=given.step, buffer=1)
        sampler = settings.sampler(ranges)
        assert isinstance(sampler, AdrSampler)
        for mean in (float(word) for word in given.returns.split(",")):
            one = np.array([mean])
            sampler.ended(np.zeros((1, 1)), np.array([1]), one, one)
            ends = sampler.metrics()
            low, high = ends["curriculum/it_low"], ends["curriculum/it_high"]
            print(f"return {mean:g}: {low:g} to {high:g}, entropy {ends['curriculum/entropy']:.3f}")
    except (AssayError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
