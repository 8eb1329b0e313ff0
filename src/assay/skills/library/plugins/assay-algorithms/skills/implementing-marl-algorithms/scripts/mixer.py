"""Fit sums (VDN) and a monotonic mixer (QMIX) to a pay-off table of two agents.

    python mixer.py --payoffs "0,1;1,8" [--updates 400]

Rows are the first agent's actions, columns the second's. If both play the same, take VDN.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

from assay.networks.mixing import MonotonicMixer, SumMixer


def fitted(table: torch.Tensor, mixer: nn.Module, updates: int) -> tuple[torch.Tensor, list[int]]:
    """Return what the values say of each pair of actions, and what each agent alone would do."""
    first, second = (torch.zeros(size, requires_grad=True) for size in table.shape)
    optimizer = torch.optim.Adam([first, second, *mixer.parameters()], lr=0.05)
    state = torch.ones(table.numel(), 1)
    for _ in range(updates):
        pairs = torch.cartesian_prod(first, second)
        said = mixer(pairs, state)
        optimizer.zero_grad()
        (said - table.reshape(-1)).square().mean().backward()
        optimizer.step()
    return said.detach().reshape(table.shape), [int(first.argmax()), int(second.argmax())]


def main() -> int:
    """Print the values, the choice and its worth for both mixers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--payoffs", required=True, help="rows with semicolons")
    parser.add_argument("--updates", type=int, default=400)
    given = parser.parse_args()
    try:
        rows = [[float(word) for word in row.split(",")] for row in given.payoffs.split(";")]
        table = torch.tensor(rows)
    except ValueError as error:
        print(f"Error: --payoffs {given.payoffs!r}: {error}", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    print(f"best: {table.max():g}")
    for name, mixer in (("sum", SumMixer()), ("monotonic", MonotonicMixer(2, 1))):
        said, (i, j) = fitted(table, mixer, given.updates)
        print(f"{name}: plays {i},{j}, worth {table[i, j]:g}, valued {said[i, j]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
