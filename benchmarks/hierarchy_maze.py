"""Two levels against flat learners in a long maze: success of one algorithm with one seed.

`python benchmarks/hierarchy_maze.py --algorithm hiro --seed 0 --steps 200000 --out hiro-0.json`

One process with one thread, so that many can run side by side. `--env` is `assay/LongMaze-v0`,
which needs NumPy alone, or an id of Gymnasium-Robotics such as PointMaze_Medium-v3. `--tiny` shows
that it runs. The settings are the preset's for hiro; sac and td3 have networks, batches and updates
of the same size.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

LONG_MAZE = "assay/LongMaze-v0"
EPISODES = 20
FLAT: dict[str, Any] = {
    "num_envs": 8, "hidden": (64, 64), "batch_size": 128, "lr": 1e-3, "tau": 0.01,
    "learning_starts": 500, "train_every": 4,
}  # fmt: skip
FLAT_ROBOTICS: dict[str, Any] = {"lr": 1e-3, "batch_size": 128, "learning_starts": 2_000}
TINY: dict[str, Any] = {"learning_starts": 50, "hidden": (16,), "batch_size": 16, "num_envs": 2}


def measure(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Train once and return the curve of successes, with the last evaluation's measures."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read when NumPy and torch are imported
    import assay
    from assay.evaluation.evaluate import load_evaluations
    from assay.runs.directory import RunDirectory

    ours = args.env == LONG_MAZE
    settings = {} if args.algorithm == "hiro" else FLAT if ours else FLAT_ROBOTICS
    settings = settings | (TINY if args.tiny else {})
    if ours:
        settings |= {
            "env_kwargs": {
                "corridors": args.corridors, "length": args.length, "reward": args.reward
            }
        }  # fmt: skip
    steps = 400 if args.tiny else args.steps
    episodes = 2 if args.tiny else EPISODES
    began = time.perf_counter()
    run = assay.train(
        args.algorithm, args.env, env_steps=steps, seed=args.seed, root=root, name="run",
        eval_every=max(1, steps // 10), eval_episodes=episodes, checkpoint_every=0, sinks=(),
        **settings,
    )  # fmt: skip
    curve = []
    for count, result in load_evaluations(RunDirectory.open(run.path)):
        # In our maze an episode terminates at the goal and nowhere else.
        reached = result.terminated.mean() if result.success_rate is None else result.success_rate
        row = {"env_steps": count, "success_rate": float(reached), "return": result.mean}
        curve.append(row | result.figures)
    return {
        "algorithm": args.algorithm, "env": args.env, "seed": args.seed, "env_steps": steps,
        "maze": settings.get("env_kwargs"), "episodes": episodes, "curve": curve,
        "success_rate": curve[-1]["success_rate"], "seconds": time.perf_counter() - began,
    }  # fmt: skip


def main() -> None:
    """Measure, print one line, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=("hiro", "sac", "td3"), default="hiro")
    parser.add_argument("--env", default=LONG_MAZE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--corridors", type=int, default=2, help=f"Of {LONG_MAZE}.")
    parser.add_argument("--length", type=int, default=5, help=f"Of {LONG_MAZE}, in cells.")
    parser.add_argument("--reward", choices=("dense", "sparse"), default="sparse")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        found = measure(args, Path(root))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{args.algorithm} seed {args.seed}: success {found['success_rate']:.2f}")


if __name__ == "__main__":
    main()
