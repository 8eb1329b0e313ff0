"""Iterate over a rollout in chunks for truncated back-propagation, and show what it reaches.

    python bptt_chunks.py --horizon 64 --chunk 16 [--memory gru] [--begins 20,40]

`chunks(memory, x, first, length)` is the iterator. The state goes on from chunk to chunk; the
gradient does not, and neither passes the beginning of an episode.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from assay.functional.recurrent import chunks_of
from assay.networks.rnn import KINDS, Memory, make_memory


def chunks(memory: Memory, x: Tensor, first: Tensor, length: int) -> Iterator[Tensor]:
    """Yield outputs [length, N, H] of inputs [T, N, F], chunk after chunk."""
    if length < 1 or len(x) % length:
        raise ValueError(f"chunk={length} does not divide horizon={len(x)}")
    n = x.shape[1]
    carry = {k: torch.from_numpy(v) for k, v in memory.initial(n).items()}
    parts = (chunks_of(array, length).split(n) for array in (x, first))  # [N, length, ...] each
    for rows, begins in zip(*parts, strict=True):
        out, carry = memory(rows.transpose(0, 1), carry, begins.T)
        carry = {k: v.detach() for k, v in carry.items()}
        yield out


def main() -> int:
    """Print the first input that the last output of each chunk has a gradient of."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--memory", default="lstm", choices=KINDS)
    parser.add_argument("--begins", default="0", help="first steps of episodes")
    given = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(given.horizon, 1, 3, requires_grad=True)
    first = torch.zeros(given.horizon, 1)
    try:
        first[[int(word) for word in given.begins.split(",")]] = 1.0
        for i, out in enumerate(chunks(make_memory(given.memory, 3, 8), x, first, given.chunk)):
            [slope] = torch.autograd.grad(out[-1].sum(), [x], retain_graph=True)
            reached = slope.abs().sum((1, 2)).nonzero().min().item()
            print(f"chunk {i}: step {(i + 1) * given.chunk - 1} reaches back to {reached}")
    except (IndexError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
