"""Which levels to train in: what agents solve of mazes that they never saw.

    python benchmarks/mazes.py --method learnability --seed 1 --out runs/mazes/learnability-1.json
    python benchmarks/mazes.py --method plr --tiny --out tiny.json
    python benchmarks/mazes.py --collect runs/mazes

One run in one process on one thread: an agent is trained with PPO in mazes that are uniform
(`random`), replayed by their value loss (`plr`) or by how often they are solved (`learnability`),
drawn by a generator for regret (`paired`) or for failure (`minimax`), or drawn uniformly as a
generator would (`uniform`). `--steps` are those of the agent that is kept; PAIRED takes as many
again for its antagonist. Then that agent plays mazes with names, corridors and random levels. A
maze counts as solved if the goal was reached within the limit; actions are drawn as in training, so
that a maze that is always the same has a rate, and `greedy` has the deterministic policy's.
`--collect` makes the evidence of what runs wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import torch

import assay
from assay.core.errors import ConfigError
from assay.envs.make import make_vector
from assay.envs.native.named_mazes import DRAWINGS
from assay.evaluation.evaluate import evaluate
from assay.evaluation.statistics import t_interval, welch_test

EVIDENCE = evidence.ROOT / "evidence" / "mazes.json"
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
REPLAY = {"levels": 1000, "replay": 0.8, "temperature": 1.0, "staleness": 0.1}
HELD_OUT: dict[str, dict[str, Any]] = {
    **{name: {"maze": name} for name in DRAWINGS},
    "corridors": {"kind": "corridors"},
    "random": {},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("ppo", {}),
    "plr": ("ppo", {"curriculum": {"level_replay": REPLAY}}),
    "learnability": (
        "ppo", {"curriculum": {"level_replay": {**REPLAY, "score": "learnability"}}},
    ),
    "uniform": ("paired", {"adversary": "random"}),
    "minimax": ("paired", {"adversary": "minimax"}),
    "paired": ("paired", {"adversary": "paired"}),
}  # fmt: skip


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


def collect(place: Path) -> dict[str, Any]:
    """Return what runs wrote, by method and seed.

    Raises:
        ConfigError: The runs had different numbers of steps.
    """
    kept = ("seed", "named_mean", "solved", "greedy", "settings", "episodes", "machine")
    runs = [evidence.read_json(path) for path in sorted(place.glob("*.json"))]
    steps = sorted({run["steps"] for run in runs})
    if len(steps) != 1:
        raise ConfigError(f"Runs of {steps} steps cannot be compared.", "Collect those of one.")
    methods: dict[str, Any] = {}
    for run in sorted(runs, key=lambda run: ([*METHODS].index(run["method"]), run["seed"])):
        lengths = run["curves"]["rollout/length_mean"]
        half = round(float(np.mean(lengths[len(lengths) // 2 :])), 1)
        one = {key: run[key] for key in kept} | {"length": half}  # of training episodes
        methods.setdefault(run["method"], []).append(one)
    return {"schema": evidence.SCHEMA, "steps": steps[0], "methods": methods}


def all_seeds(found: Mapping[str, Any]) -> list[Any]:
    """Return every seed."""
    return [one for seeds in found["methods"].values() for one in seeds]


def table(found: Mapping[str, Any]) -> str:
    """Return the results as a table in Markdown; intervals are of means over seeds."""
    lines = [
        "| levels | named mazes [95 %] | more than `random` | corridors | new levels "
        "| length of training episodes | named mazes per seed |",
        "|---|---|---|---|---|---|---|",
    ]
    scores = {
        name: [100 * one["named_mean"] for one in seeds] for name, seeds in found["methods"].items()
    }
    for name, seeds in found["methods"].items():
        spread, more = t_interval(scores[name]), None
        if name != "random":
            more = welch_test(scores[name], scores["random"]).interval
        gain = "" if more is None else f"{more.point:+.1f} [{more.low:+.1f}, {more.high:+.1f}]"
        corridors, new = (
            np.mean([100 * one["solved"][kind] for one in seeds])
            for kind in ("corridors", "random")
        )
        length = np.mean([one["length"] for one in seeds])
        each = ", ".join(f"{score:.1f}" for score in scores[name])
        lines.append(
            f"| `{name}` | {spread.point:.1f} [{spread.low:.1f}, {spread.high:.1f}] | {gain} "
            f"| {corridors:.0f} | {new:.0f} | {length:.0f} | {each} |"
        )
    steps = (
        f"In per cent of the episodes that were solved, after {found['steps']:,} steps; training "
        "episodes are those of the second half."
    )
    return "\n".join([*lines, "", steps])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and test one agent and write what was found, or collect what runs found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS, default="learnability")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_500_000)
    parser.add_argument("--episodes", type=int, default=100, help="of each kind of maze")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("maze.json"))
    parser.add_argument("--tiny", action="store_true", help="show that it runs, in seconds")
    parser.add_argument("--collect", type=Path, help="write the evidence of a folder of --out")
    given = parser.parse_args(arguments)
    if given.collect:
        collected = collect(given.collect)
        evidence.write_json(EVIDENCE, collected)
        print(table(collected))
        return 0
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
        "schema": evidence.SCHEMA, "machine": evidence.machine(),
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
