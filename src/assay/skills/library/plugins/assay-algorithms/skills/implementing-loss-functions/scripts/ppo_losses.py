"""Compute PPO's losses on numbers that you give, to compare an implementation with.

python ppo_losses.py --ratio 1.5,0.5 --advantage 1,-1 [--clip 0.2]
python ppo_losses.py --value 1,2 --target 2,2 --old-value 0,2 --value-clip 0.2
"""

from __future__ import annotations

import argparse
import sys

import torch

from assay.functional.losses import ppo_policy_loss, value_loss


def numbers(text: str) -> torch.Tensor:
    """Read 1,2.5,-3."""
    return torch.tensor([float(word) for word in text.split(",")])


def main() -> int:
    """Print each loss that numbers were given for, with its gradient."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ratio", type=numbers, help="new probability by old one")
    parser.add_argument("--advantage", type=numbers)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--value", type=numbers)
    parser.add_argument("--target", type=numbers)
    parser.add_argument("--old-value", type=numbers)
    parser.add_argument("--value-clip", type=float)
    given = parser.parse_args()
    try:
        if given.ratio is not None:
            log_prob = given.ratio.log().requires_grad_()
            found = ppo_policy_loss(
                log_prob, torch.zeros_like(log_prob), given.advantage, given.clip
            )
            found.loss.backward()
            print(f"policy loss: {found.loss:.6f}, KL {found.approx_kl:.6f}, ", end="")
            print(f"clipped {found.clip_fraction:.3f}")
            print(f"gradient by log-probability: {[round(x, 6) for x in log_prob.grad.tolist()]}")
        if given.value is not None:
            value = given.value.requires_grad_()
            clip, old = given.value_clip, given.old_value
            loss = value_loss(value, given.target, old_value=old, clip=clip)
            loss.backward()
            print(f"value loss: {loss:.6f}")
            print(f"gradient by value: {[round(x, 6) for x in value.grad.tolist()]}")
    except (ValueError, AttributeError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
