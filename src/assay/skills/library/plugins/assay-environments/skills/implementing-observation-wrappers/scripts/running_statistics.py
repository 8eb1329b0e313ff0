"""Measure what `normalize_obs=true` would do: running mean and deviation of random play.

python running_statistics.py Pendulum-v1 [--steps 1000] [--clip 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

from assay.core.errors import AssayError
from assay.core.types import tree_map
from assay.envs.make import make_vector
from assay.networks.normalize import RunningNormalizer, normalizable


def main() -> int:
    """Step with random actions, and print each entry's statistics before and after."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--clip", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        with make_vector(given.env, 1) as envs:
            space, rows = envs.spaces.observation, [tree_map(np.copy, envs.reset(seed=0))]
            envs.spaces.action.seed(0)
            for _ in range(given.steps):
                obs = envs.step(np.array([envs.spaces.action.sample()]))[0]
                rows.append(tree_map(np.copy, obs))
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    norm = RunningNormalizer(space, given.clip)
    for row in rows:
        norm.update(row)
    found = {}
    for key in normalizable(space):
        seen = np.concatenate([row if key == "" else row[key] for row in rows])
        after = np.concatenate([(n if key == "" else n[key]) for n in map(norm.normalize, rows)])
        moments = norm.state()[key]
        found[key or "observation"] = {
            "mean": np.round(moments["mean"], 4).tolist(),
            "std": np.round(np.sqrt(moments["var"]), 4).tolist(),
            "largest": float(np.abs(seen).max()),
            "clipped": float((np.abs(after) >= given.clip).mean()),
        }
    if given.json:
        print(json.dumps(found))
    for key, figures in {} if given.json else found.items():
        print(key, *(f"  {name}: {value}" for name, value in figures.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
