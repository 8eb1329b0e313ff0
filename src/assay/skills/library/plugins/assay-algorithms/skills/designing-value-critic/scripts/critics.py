"""Show what an ensemble of critics says before it has learned, and how fast targets follow.

python critics.py Pendulum-v1 [--members 2] [--tau 0.005] [--hidden 256,256]
"""

from __future__ import annotations

import argparse
import math
import sys

import torch

from assay.core.errors import AssayError
from assay.envs.make import make_vector
from assay.functional.targets import td_target
from assay.networks.heads import QEnsemble


def main() -> int:
    """Build the critics, and print their spread, a target and the half-life of Polyak."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--hidden", default="256,256")
    parser.add_argument("--tau", type=float, default=0.005)
    given = parser.parse_args()
    torch.manual_seed(0)
    try:
        with make_vector(given.env, 1) as envs:
            spaces = envs.spaces
        size = math.prod(spaces.action.shape)
        widths = [int(word) for word in given.hidden.split(",")]
        critics = QEnsemble(spaces.observation, size, members=given.members, hidden=widths)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    obs = torch.randn(64, *spaces.observation.shape)
    q = critics(obs, torch.rand(64, size) * 2 - 1).detach()
    one, zero = torch.ones(1), torch.zeros(1)
    ended, cut = (td_target(one, 0.99 * one, end, 10 * one).item() for end in (one, zero))
    print(f"parameters: {sum(p.numel() for p in critics.parameters())}")
    print(f"mean {q.mean():.3f}, mean of the smallest {q.min(0).values.mean():.3f}")
    print(f"target of r=1, V=10: terminated {ended:.2f}, truncated {cut:.2f}")
    half = math.log(0.5) / math.log1p(-given.tau)
    print(f"half-life of the target at tau={given.tau}: {half:.0f} updates")
    return 0


if __name__ == "__main__":
    sys.exit(main())
