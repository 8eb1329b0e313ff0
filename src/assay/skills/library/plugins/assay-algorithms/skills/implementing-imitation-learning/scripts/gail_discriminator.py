"""Train GAIL's discriminator between two sets of data, and say how well it tells them apart.

python gail_discriminator.py expert.npz policy.npz [--updates 200]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from assay.buffers.dataset import DatasetBuffer
from assay.core.errors import AssayError
from assay.core.types import Spaces
from assay.data.combine import split
from assay.data.findings import require_valid
from assay.envs.spaces import ActionMap, ObservationMap
from assay.functional.imitation import discriminator_loss, imitation_reward
from assay.networks.discriminator import Discriminator


def main() -> int:
    """Fit on nine tenths of the episodes, and judge on the rest."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("sets", nargs=2, metavar="SET", help="the expert's, and another's")
    parser.add_argument("--updates", type=int, default=200)
    given = parser.parse_args()
    torch.manual_seed(0)
    try:
        halves = [split(name, 0.9) for name in given.sets]
        schema = halves[0][0].schema
        maps = ObservationMap(schema.observation), ActionMap(schema.action)
        for half in halves:
            require_valid(half[0], *maps)
        net = Discriminator(Spaces(maps[0].space, maps[1].space))
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    rng, optimizer = np.random.default_rng(0), torch.optim.Adam(net.parameters(), lr=3e-3)
    made = [[DatasetBuffer(one, *maps, gamma=1.0, rng=rng) for one in half] for half in halves]
    train, test = zip(*made, strict=True)
    for buffers in [train] * given.updates + [test]:
        batches = [buffer.sample(256) for buffer in buffers]
        one, two = (net(batch.obs, batch.action) for batch in batches)
        loss, found = discriminator_loss(one, two)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"held-out loss {loss:.3f} (1.386 cannot tell)", *(f"{k} {v:.2f}" for k, v in found.items())
    )
    for form in ("softplus", "logit", "log_d"):
        pay = [imitation_reward(logit, form).mean().item() for logit in (one, two)]
        print(f"reward={form}: {pay[0]:.3f} for the expert's steps, {pay[1]:.3f} for the other's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
