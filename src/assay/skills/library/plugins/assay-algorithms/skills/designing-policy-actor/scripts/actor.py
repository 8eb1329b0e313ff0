"""Show the actor that an environment's actions get, and draw from it before it has learned.

python actor.py Pendulum-v1 [--squash] [--log-std 0] [--draws 1000]
"""

from __future__ import annotations

import argparse
import sys

import torch

from assay.core.errors import AssayError
from assay.envs.make import make_vector
from assay.functional.distributions import DiagGaussian, policy_distribution
from assay.networks.heads import SquashedGaussianHead, policy_head


def main() -> int:
    """Build distribution and head, and print what a fresh policy does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--squash", action="store_true", help="tanh into (-1, 1), as SAC has it")
    parser.add_argument("--log-std", type=float, default=0.0)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--draws", type=int, default=1000)
    given = parser.parse_args()
    torch.manual_seed(0)
    try:
        with make_vector(given.env, 1) as envs:
            space = envs.spaces.action
        policy = policy_distribution(space, squash=given.squash)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    if given.squash:
        head = SquashedGaussianHead(given.features, policy.param_size // 2)
    else:
        head = policy_head(policy, given.features, log_std_init=given.log_std)
    params = head(torch.randn(given.draws, given.features)).detach()
    shape = (given.draws, *policy.noise_shape)
    gaussian = isinstance(policy, DiagGaussian)
    noise = torch.randn(shape) if gaussian else torch.rand(shape)
    action = policy.sample(params, noise)
    print(f"distribution: {type(policy).__name__}, {policy.param_size} parameters")
    print(f"actions: mean {action.float().mean():.3f}, std {action.float().std():.3f}")
    if gaussian:
        print(f"beyond -1 to 1: {(action.abs() > 1).float().mean():.1%}")
    print(f"mean log-probability: {policy.log_prob(params, action).mean():.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
