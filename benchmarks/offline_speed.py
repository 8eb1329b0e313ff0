"""Race offline updates against d3rlpy on one core, at equal networks and batches, taking turns.

    python benchmarks/offline_speed.py             # IQL and CQL, three repeats
    python benchmarks/offline_speed.py --store     # ... and keep the result as evidence
    python benchmarks/offline_speed.py --algorithms iql --cache DIR --store   # a part of it
    python benchmarks/offline_speed.py --quick     # does it work? The numbers mean nothing

Both learn from the same 100,000 random steps of 17 numbers and 6 actions, with two layers of 256 in
every network, two critics and batches of 256. Every measurement is a fresh process bound to the
same core with one torch thread, and the clock is around the training loop alone: that of
`assay.train`, and that of d3rlpy's `fit` without its progress bar and its logs. It counts the
processor's time, which on one thread is the wall's less what others had of the core. d3rlpy says
more of CQL's settings: ten actions of each kind in the log-sum-exp, a weight that is learned, no
entropy in the target; ours are set to the same.

The floor is the arithmetic of our update alone: its matrix products, as torch counts them, at the
best rate at which the core multiplies matrices of [256, 256] with one of torch's libraries.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import evidence
import gymnasium as gym
import numpy as np
from children import ask, caches, finish
from defaults import known
from speed import pin

from assay.core.errors import ConfigError

STORE = evidence.ROOT / "evidence" / "offline_speed.json"
ALGORITHMS = ("iql", "cql")
LIBRARIES = ("d3rlpy", "assay")
TARGET = 3.0
STEPS, EPISODE, BATCH = 100_000, 1_000, 256
UPDATES = {"iql": 500, "cql": 50}  # some seconds each
QUICK_UPDATES = 20
REPEATS = 3
TIMEOUT = 1_800
_WARM = 5  # updates of d3rlpy before those that are timed
_GAP = 10.0  # of CQL, whose weight is learned on both sides


class Still(gym.Env[Any, Any]):
    """Spaces of the usual size, and nothing to do: nobody steps it to learn."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return an observation."""
        super().reset(seed=seed)
        return np.zeros(17, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End the episode."""
        return np.zeros(17, np.float32), 0.0, True, False, {}


def steps(seed: int = 0) -> dict[str, Any]:
    """Return random steps in episodes of one length, the last of each truncated."""
    rng = np.random.default_rng(seed)
    truncated = np.zeros(STEPS, bool)
    truncated[EPISODE - 1 :: EPISODE] = True
    return {
        "obs": rng.standard_normal((STEPS, 17), dtype=np.float32),
        "action": rng.uniform(-0.99, 0.99, (STEPS, 6)).astype(np.float32),
        "reward": rng.standard_normal(STEPS),
        "terminated": np.zeros(STEPS, bool),
        "truncated": truncated,
    }


# ---------------------------------------------------------------------- one measurement


def child(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process."""
    pinned = pin(spec["core"])
    import torch

    torch.set_num_threads(1)
    runs = {"assay": _assay, "d3rlpy": _d3rlpy}[spec["library"]]
    if spec.get("count"):
        return _counted(runs, spec)
    seconds = runs(spec)
    rate = round(spec["updates"] / seconds, 2)
    return {"updates_per_second": rate, "seconds": round(seconds, 3), "pinned": pinned}


def _counted(runs: Callable[[dict[str, Any]], float], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the operations of one update, and how many the core does in a second."""
    from phases import matmul_rate
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    from assay.optim.wide import has_wide_layers

    has_wide_layers([nn.Linear(256, 256)])  # it multiplies, too, once in a process
    with FlopCounterMode(display=False) as counter:
        runs({**spec, "compile": False})
    updates = spec["updates"] + (_WARM if spec["library"] == "d3rlpy" else 0)
    return {
        "operations": counter.get_total_flops() // updates,
        "operations_per_second": round(matmul_rate(BATCH, 256, now=time.process_time)),
    }


def _assay(spec: dict[str, Any]) -> float:
    from assay import api, events
    from assay.data.collect import from_transitions
    from assay.data.files import save

    found = steps()
    following = np.concatenate([found["obs"][1:], found["obs"][:1]])
    seen: dict[str, float] = {}

    def watch(event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            seen["began"] = time.process_time()
        if isinstance(event, events.Logged):
            seen["ended"] = time.process_time()

    settings: dict[str, Any] = {"hidden": [256, 256], "batch_size": BATCH, "lr": 3e-4}
    if spec["algorithm"] == "cql":
        settings |= {"target_gap": _GAP, "samples": 10, "actor_lr": 1e-4}
    fixed = {"threads": 1, "device": "cpu", "seed": spec["seed"], "compile": spec["compile"]}
    quiet = {"eval_every": 0, "eval_episodes": 1, "checkpoint_every": 0, "sinks": ()}
    with tempfile.TemporaryDirectory() as root:
        spaces = {
            "observation_space": Still.observation_space, "action_space": Still.action_space
        }  # fmt: skip
        path = Path(root) / "steps.npz"
        save(from_transitions(**found, next_obs=following, **spaces), path)
        api.train(
            spec["algorithm"], Still, root=root, data=str(path), updates=spec["updates"],
            preset=False, callbacks=[watch], **settings, **fixed, **quiet,
        )  # fmt: skip
    return seen["ended"] - seen["began"]


def _d3rlpy(spec: dict[str, Any]) -> float:
    import d3rlpy

    found = steps()
    reward, ended, cut = (
        found[n].astype(np.float32) for n in ("reward", "terminated", "truncated")
    )
    dataset = d3rlpy.dataset.MDPDataset(found["obs"], found["action"], reward, ended, cut)
    d3rlpy.seed(spec["seed"])
    if spec["algorithm"] == "iql":
        algorithm: Any = d3rlpy.algos.IQLConfig(
            batch_size=BATCH, actor_learning_rate=3e-4, critic_learning_rate=3e-4
        ).create(device="cpu:0")
    else:
        algorithm = d3rlpy.algos.CQLConfig(
            batch_size=BATCH, actor_learning_rate=1e-4, critic_learning_rate=3e-4,
            n_action_samples=10, alpha_threshold=_GAP,
        ).create(device="cpu:0")  # fmt: skip
    quiet = {
        "show_progress": False, "save_interval": 10**9,
        "logger_adapter": d3rlpy.logging.NoopAdapterFactory(),
    }  # fmt: skip
    algorithm.build_with_dataset(dataset)
    # Imports, first allocations
    algorithm.fit(dataset, n_steps=_WARM, n_steps_per_epoch=_WARM, **quiet)
    began = time.process_time()
    count = spec["updates"]
    algorithm.fit(dataset, n_steps=count, n_steps_per_epoch=count, **quiet)
    return time.process_time() - began


# ---------------------------------------------------------------------- all of them


def launch(spec: dict[str, Any], cache: str) -> dict[str, Any]:
    """Measure in a process of its own.

    Raises:
        AssayError: It failed; the end of what it wrote is shown.
    """
    name = f"{spec['library']} {spec['algorithm']}"
    words = [__file__, "--child", json.dumps(spec)]
    return ask(words, name, timeout=TIMEOUT, env=caches(cache))


def measure(algorithms: Sequence[str], core: int, quick: bool, cache: str) -> list[dict[str, Any]]:
    """Return one record per measurement; compiled steps are kept in `cache`."""
    libraries = [name for name in LIBRARIES if importlib.util.find_spec(name) is not None]
    if len(libraries) < len(LIBRARIES) and not quick:
        raise ConfigError(
            "d3rlpy is not installed here.", "Run `make bench`, which makes an environment with it."
        )
    records = []
    for algorithm in algorithms:
        spec = {"algorithm": algorithm, "core": core, "compile": not quick, "seed": 0}
        if not quick:
            launch({**spec, "library": "assay", "updates": 10}, cache)  # compiles
        for library in libraries:
            counted = launch({**spec, "library": library, "updates": 1, "count": True}, cache)
            records.append({"algorithm": algorithm, "library": library} | counted)
        updates = QUICK_UPDATES if quick else UPDATES[algorithm]
        for repeat in range(1 if quick else REPEATS):
            for library in libraries:
                asked = {**spec, "library": library, "updates": updates, "seed": repeat + 1}
                found = launch(asked, cache)
                record = {"algorithm": algorithm, "library": library, "repeat": repeat}
                records.append(record | found | {"load": round(os.getloadavg()[0], 2)})
                rate = found["updates_per_second"]
                print(f"{algorithm} {library} {repeat + 1}: {rate:,.1f} updates/s", flush=True)
    return records


def table(content: dict[str, Any] | None) -> str:
    """Return the ratios of the medians, and those of neighbours as a range."""
    if content is None:
        return "Not measured yet: `make bench`."
    rates: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for run in content["runs"]:
        key = run["algorithm"], run["library"]
        if "operations" in run:
            counts[key] = run
        else:
            rates.setdefault(key, []).append(run["updates_per_second"])
    lines = [
        "| comparison | Assay | d3rlpy | ratio [range] | target | met | operations: Assay, d3rlpy "
        "| floor | ratio at the floor |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for algorithm in (a for a in ALGORITHMS if all((a, x) in rates for x in LIBRARIES)):
        ours, theirs = (np.array(rates[algorithm, x]) for x in ("assay", "d3rlpy"))
        ratio, pairs = float(np.median(ours) / np.median(theirs)), ours / theirs
        lines.append(
            f"| {algorithm.upper()} updates, compiled / d3rlpy | {np.median(ours):,.1f}/s | "
            f"{np.median(theirs):,.1f}/s | {ratio:.1f}x [{pairs.min():.1f}x, {pairs.max():.1f}x] | "
            f"{TARGET:g}x | {'yes' if ratio >= TARGET else 'no'} | "
            f"{_floor([counts.get((algorithm, x)) for x in ('assay', 'd3rlpy')], theirs)} |"
        )
    return "\n".join(lines)


def _floor(counted: list[dict[str, Any] | None], theirs: np.ndarray) -> str:
    """Return the operations of both, and the most that our update could reach."""
    ours, other = counted
    if ours is None or other is None:
        return "- | - | -"
    rate = max(ours["operations_per_second"], other["operations_per_second"])
    floor = rate / ours["operations"]
    return (
        f"{ours['operations'] / 1e9:.2f}, {other['operations'] / 1e9:.2f} GFLOP | "
        f"{floor:,.1f}/s at {rate / 1e9:.0f} GFLOP/s | {floor / np.median(theirs):.1f}x"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and store if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="some of these")
    parser.add_argument("--cache", help="where compiled steps are kept for another time")
    parser.add_argument("--quick", action="store_true", help="tiny budgets, one repeat")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return 0
    algorithms = known(options.algorithms, ALGORITHMS, "algorithm")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        runs = measure(algorithms, options.core, options.quick, options.cache or scratch)
    if options.store and STORE.exists():
        others = json.loads(STORE.read_text())["runs"]
        runs = [run for run in others if run["algorithm"] not in algorithms] + runs
    content = {"schema": evidence.SCHEMA, "runs": runs, "machine": evidence.machine()}
    print(table(content))
    if options.store:
        evidence.write_json(STORE, content)
    return 0


if __name__ == "__main__":
    finish(main)
