"""Which levels to train in: what agents solve of mazes that they never saw.

    python benchmarks/mazes.py --method paired --seed 0 --steps 4000000 --out paired-0.json
    python benchmarks/mazes.py --method plr --tiny --out tiny.json

One run in one process on one thread: an agent is trained with PPO in mazes that are uniform
(`random`), replayed by their scores (`plr`), drawn by a generator for regret (`paired`) or for
failure (`minimax`), or drawn uniformly as a generator would (`uniform`). `--steps` are those of the
agent that is kept; PAIRED takes as many again for its antagonist. Then that agent plays mazes with
names, corridors and random levels. A maze counts as solved if the goal was reached within the
limit; actions are drawn as in training, so that a maze that is always the same has a rate, and
`greedy` has the deterministic policy's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.envs.make import make_vector
from assay.envs.native.named_mazes import DRAWINGS
from assay.evaluation.evaluate import evaluate

SIZE, WALLS, LIMIT = 13, 60, 250
LEVELS = 1_000_000  # training levels have numbers below; without a number they are drawn from 2^31
TEST_SEED = 20_261_117
TINY = {"steps": 16_384, "episodes": 4, "num_envs": 8}
ENV = {"size": SIZE, "max_walls": WALLS, "trail": True}
PPO = {
    "horizon": 256, "minibatch_size": 1024, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.95,
    "lr": "linear:1e-3:1e-4", "entropy_coef": 0.01, "hidden": (64, 64), "normalize_obs": False,
    "normalize_reward": False,
}  # fmt: skip
REPLAY = {"levels": 1000, "replay": 0.5, "temperature": 0.3, "staleness": 0.3}
HELD_OUT: dict[str, dict[str, Any]] = {
    **{name: {"maze": name} for name in DRAWINGS},
    "corridors": {"kind": "corridors"},
    "random": {},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("ppo", {}),
    "plr": ("ppo", {"curriculum": {"level_replay": REPLAY}}),
    "uniform": ("paired", {"adversary": "random"}),
    "minimax": ("paired", {"adversary": "minimax"}),
    "paired": ("paired", {"adversary": "paired"}),
}


def settings(method: str, steps: int, num_envs: int) -> tuple[str, dict[str, Any]]:
    """Return the algorithm of a method and the settings of its run."""
    algorithm, own = METHODS[method]
    times = 2 if method == "paired" else 1
    found = {**PPO, **own, "env_kwargs": ENV, "max_episode_steps": LIMIT}
    found |= {"num_envs": times * num_envs, "env_steps": times * steps}
    if algorithm == "ppo":
        return algorithm, found | {"randomize": {"level": {"integer": [0, LEVELS - 1]}}}
    return algorithm, found | {"size": SIZE, "blocks": WALLS, "generator_lr": 1e-3}


def solved(agent: Any, episodes: int, explore: bool) -> dict[str, float]:
    """Return the share of episodes that an agent solves, by kind of maze."""
    found = {}
    for name, kwargs in HELD_OUT.items():
        with make_vector("assay/Maze-v0", min(episodes, 50), max_episode_steps=LIMIT,
                               env_kwargs={**ENV, **kwargs}) as envs:  # fmt: skip
            played = evaluate(agent, envs, episodes=episodes, seed=TEST_SEED, explore=explore)
        assert played.success_rate is not None
        found[name] = played.success_rate
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and test one agent, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--episodes", type=int, default=100, help="of each kind of maze")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="show that it runs, in seconds")
    given = parser.parse_args(arguments)
    if given.tiny:
        vars(given).update(TINY)
    torch.set_num_threads(1)
    algorithm, chosen = settings(given.method, given.steps, given.num_envs)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        run = assay.train(
            algorithm, "assay/Maze-v0", seed=given.seed, root=root, name="run", sinks=(),
            eval_every=chosen["env_steps"], eval_episodes=1, checkpoint_every=chosen["env_steps"],
            log_every=max(chosen["env_steps"] // 50, 1), device="cpu", compile=False,
            preset=False, **chosen,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        curves = {
            name: [round(float(x), 4) for x in values]
            for name, (_, values) in run.metrics().items()
            if name.startswith(("train/", "curriculum/", "rollout/"))
        }
        agent = assay.load(run.path).policy
        rates = solved(agent, given.episodes, explore=True)
        greedy = solved(agent, given.episodes, explore=False)
    named = float(np.mean([rates[name] for name in DRAWINGS]))
    found = {
        "method": given.method, "seed": given.seed, "steps": given.steps, "seconds": seconds,
        "steps_per_second": given.steps / seconds, "settings": chosen, "episodes": given.episodes,
        "solved": rates, "greedy": greedy, "named_mean": named, "curves": curves,
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1, default=list) + "\n")
    shown = ", ".join(f"{name} {100 * rate:.0f} %" for name, rate in rates.items())
    print(f"{given.method} seed {given.seed}: named {100 * named:.0f} %; {shown}")
    print(f"{given.steps:,} steps in {seconds:.0f} s: {given.steps / seconds:,.0f} steps/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
