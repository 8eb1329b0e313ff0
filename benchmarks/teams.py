"""Several agents against BenchMARL: how fast, and how well after equal steps.

    python benchmarks/teams.py speed --store             # one core, taking turns
    python benchmarks/teams.py speed --quick             # does it work? The numbers mean nothing
    python benchmarks/teams.py returns --jobs 2          # adds what is missing to the evidence
    python benchmarks/teams.py returns --seeds 1 --steps 6000 --out /tmp/try.json

Speed: IPPO on simple_spread with 32 copies, the same rollouts, minibatches, epochs and layers on
both sides, as environment steps per second of the core's time. Ours has the start of a run in it,
its last checkpoint and its last evaluation; BenchMARL's begins when all is built. It runs the task
of VMAS, which is batched in torch and its fastest, and MPE2's own, which it steps one by one.

Returns: both sides at their own defaults and equal environment steps, on MPE2's tasks (ours are
batched copies, equal step for step), Discrete actions (Box for MADDPG), episodes of 25 steps, and
on level-based foraging, episodes of 50. Both are judged alike: the mean over agents of the sum of
rewards, in `EPISODES` episodes, with deterministic actions, and sampled ones in foraging, where
agents without chance stand in each other's way.

Each measurement is a fresh process with one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import evidence
from children import ask, caches, finish
from defaults import judged, spread
from report import machine_line
from speed import pin

from assay.core.errors import ConfigError

EVIDENCE = evidence.ROOT / "evidence" / "teams.json"
FORAGING = "Foraging-5x5-2p-1f-v3"
TASKS = {"simple_spread_v3": {"N": 3, "local_ratio": 0.5}, "simple_speaker_listener_v4": {}}
PAIRS = (
    ("ippo", "simple_spread_v3"),
    ("mappo", "simple_spread_v3"),
    ("qmix", "simple_spread_v3"),
    ("mappo", "simple_speaker_listener_v4"),
    ("maddpg", "simple_speaker_listener_v4"),
    ("ippo", FORAGING),
    ("mappo", FORAGING),
)
CONTINUOUS = ("maddpg",)  # BenchMARL's has no other actions
SIDES = ("benchmarl", "assay")
RACERS = ("benchmarl-vmas", "benchmarl-mpe2", "assay-eager", "assay")
CYCLES, EPISODES, STEPS, SEEDS, REPEATS = 25, 100, 60_000, 5, 3
COPIES, HORIZON, MINIBATCH, EPOCHS, HIDDEN, ROLLOUTS = 32, 100, 400, 10, (64, 64), 8
TARGET = 10.0
TIMEOUT = 3_600


# ---------------------------------------------------------------------- one measurement


def child(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process."""
    import torch

    torch.set_num_threads(1)
    if spec["core"] is not None:
        pin(spec["core"])
    side = spec["side"].partition("-")[0]
    found = (_benchmarl if side == "benchmarl" else _assay)(spec)
    return found | {"machine": machine_line(evidence.machine())}


def _assay(spec: dict[str, Any]) -> dict[str, Any]:
    import assay

    settings: dict[str, Any] = {"compile": False, "preset": False, "device": "cpu"}
    if spec["algorithm"] in CONTINUOUS:
        settings["env_kwargs"] = {"continuous_actions": True}
    if spec["race"]:
        settings |= {
            "num_envs": COPIES, "horizon": HORIZON, "minibatch_size": MINIBATCH, "epochs": EPOCHS,
            "hidden": HIDDEN, "compile": spec["side"] == "assay", "sharing": "all",
        }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        options = {
            "root": place, "seed": spec["seed"], "eval_every": 0, "checkpoint_every": 0,
            "sinks": [], **settings,
        }  # fmt: skip
        if spec["race"]:
            # Once before, so that both sides are measured as they go on, and nothing is compiled.
            assay.train(spec["algorithm"], spec["task"], env_steps=spec["steps"] // 4, **options)
        began = time.process_time()
        run = assay.train(spec["algorithm"], spec["task"], env_steps=spec["steps"], **options)
        seconds = time.process_time() - began
        sampled = spec["task"] == FORAGING
        judged = None if spec["race"] else run.evaluate(EPISODES, seed=10_000, sampled=sampled)
        mean = None if judged is None else judged.mean
    return {"steps": spec["steps"], "seconds": round(seconds, 2), "return": mean}


def _benchmarl(spec: dict[str, Any]) -> dict[str, Any]:
    import torch
    from benchmarl import algorithms
    from benchmarl.environments import VmasTask
    from benchmarl.environments.pettingzoo.common import PettingZooClass
    from benchmarl.experiment import Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig
    from torchrl.envs import PettingZooWrapper
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    foraging = spec["task"] == FORAGING

    class Task(PettingZooClass):
        """A task that BenchMARL does not have, or looks for in PettingZoo."""

        def get_env_fun(
            self, num_envs: int, continuous_actions: bool, seed: Any, device: Any
        ) -> Any:
            return lambda: PettingZooWrapper(
                _foraging() if foraging else _particles(spec["task"], continuous_actions),
                return_state=not foraging, categorical_actions=True, device=device, seed=seed,
            )  # fmt: skip

        def supports_discrete_actions(self) -> bool:
            return True

        def __reduce__(self) -> Any:  # pickled with the experiment, and never read
            return dict, ()

    config = ExperimentConfig.get_from_yaml()
    continuous = config.prefer_continuous_actions = spec["algorithm"] in CONTINUOUS
    config.render = config.create_json = False
    config.evaluation, config.loggers = False, []
    config.max_n_frames = spec["steps"]
    model = MlpConfig.get_from_yaml()
    if spec["race"]:
        config.on_policy_collected_frames_per_batch = COPIES * HORIZON
        config.on_policy_n_envs_per_worker = COPIES
        config.on_policy_minibatch_size, config.on_policy_n_minibatch_iters = MINIBATCH, EPOCHS
        model.num_cells = list(HIDDEN)
    longest = 50 if foraging else CYCLES
    task = (
        VmasTask.SIMPLE_SPREAD.get_from_yaml()
        if spec["side"] == "benchmarl-vmas"
        else Task(spec["task"].rpartition("_")[0].upper(), {"max_cycles": longest})
    )
    peer = getattr(algorithms, f"{spec['algorithm'].title()}Config")
    with tempfile.TemporaryDirectory() as place:
        config.save_folder = place
        experiment = Experiment(
            task=task,
            algorithm_config=peer.get_from_yaml(),
            model_config=model, critic_model_config=model, seed=spec["seed"], config=config,
        )  # fmt: skip
        began = time.process_time()
        experiment.run()
        seconds = time.process_time() - began
    mean = None
    if not spec["race"]:
        env = task.get_env_fun(1, continuous, 10_000 + spec["seed"], "cpu")()
        chance = ExplorationType.RANDOM if foraging else ExplorationType.DETERMINISTIC
        with set_exploration_type(chance), torch.no_grad():
            rollouts = [env.rollout(longest, policy=experiment.policy) for _ in range(EPISODES)]
        groups = list(task.group_map(env))
        means = [
            torch.cat([rollout["next", group, "reward"] for group in groups], dim=-2).sum(0).mean()
            for rollout in rollouts
        ]
        mean = float(torch.stack(means).mean())
    return {"steps": experiment.total_frames, "seconds": round(seconds, 2), "return": mean}


def _particles(task: str, continuous: bool) -> Any:
    """Return a task of MPE2."""
    module = importlib.import_module(f"mpe2.{task}")
    options = {"max_cycles": CYCLES, "continuous_actions": continuous}
    return module.parallel_env(**options, **TASKS[task])


def _foraging() -> Any:
    """Return foraging as Assay plays it, by the class that TorchRL asks for."""
    import gymnasium as gym
    from pettingzoo import ParallelEnv

    from assay.envs.make import find_spec
    from assay.envs.tuple_agents import TupleAgents, put_right

    class Foraging(TupleAgents, ParallelEnv):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            obs, _ = super().reset(seed, options)
            return obs, {agent: {} for agent in self.possible_agents}

        def step(self, actions: dict[str, Any]) -> Any:
            *found, _ = super().step(actions)
            return *found, {agent: {} for agent in self.possible_agents}

    spec = find_spec(FORAGING)
    return Foraging(put_right(gym.make(spec), spec))


# ---------------------------------------------------------------------- all of them


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the record of one measurement, made in a process of its own."""
    name = f"{spec['side']}, {spec['algorithm']} on {spec['task']}, seed {spec['seed']}"
    with tempfile.TemporaryDirectory() as place:
        words = [__file__, "child", json.dumps(spec)]
        found = ask(words, name, timeout=TIMEOUT, env=caches(place))
    keys = ("side", "algorithm", "task", "seed", "asked")
    record = {key: spec[key] for key in keys if key in spec} | found
    shown = f"return {found['return']:.2f}" if found["return"] is not None else ""
    print(f"{name}: {found['steps'] / found['seconds']:.0f} steps/s {shown}", flush=True)
    return record


def race(core: int, repeats: int, steps: int) -> dict[str, Any]:
    """Return steps per second of all sides, and their ratios; the sides take turns."""
    base = {"algorithm": "ippo", "task": "simple_spread_v3", "core": core, "race": True}
    records = [
        measure(base | {"side": side, "seed": repeat + 1, "steps": steps})
        for repeat in range(repeats)
        for side in RACERS
    ]
    rates: dict[str, list[float]] = {side: [] for side in RACERS}
    for record in records:
        rates[record["side"]].append(round(record["steps"] / record["seconds"], 1))
    middle = {side: statistics.median(found) for side, found in rates.items()}
    best = max(middle[side] for side in RACERS if side.startswith("benchmarl"))
    ratios = {side: round(middle[side] / best, 1) for side in RACERS}
    for side in RACERS:
        print(f"{side}: {middle[side]:.0f} steps/s, {ratios[side]} times BenchMARL's faster one")
    facts = {"steps": steps, "machine": records[-1]["machine"]}
    return {"steps_per_second": rates, "ratios": ratios, "target": TARGET} | facts


def collect(path: Path, steps: int, seeds: int, jobs: int) -> None:
    """Run what the file does not have yet, and write it after each."""
    stored = _stored(path)
    records = stored.setdefault("returns", [])
    done = {(r["side"], r["algorithm"], r["task"], r["seed"], r["asked"]) for r in records}
    wanted = [
        {"side": side, "algorithm": algorithm, "task": task, "seed": seed, "asked": steps}
        for seed in range(1, seeds + 1)
        for algorithm, task in PAIRS
        for side in SIDES
        if (side, algorithm, task, seed, steps) not in done
    ]
    with ThreadPoolExecutor(jobs) as pool:
        specs = [spec | {"steps": steps, "core": None, "race": False} for spec in wanted]
        for record in pool.map(measure, specs):
            records.append(record)
            evidence.write_json(path, stored)


def _stored(path: Path) -> dict[str, Any]:
    return evidence.read_json(path) if path.exists() else {"schema": evidence.SCHEMA}


def lines(content: dict[str, Any]) -> str:
    """Return the tables of what was measured: returns, then speed."""
    parts, records = [], content.get("returns", [])
    if records:
        parts += [_returns(records), _machines(records)]
    if "speed" in content:
        parts += [_speed(content["speed"]), _machines([content["speed"]])]
    return "\n\n".join(parts)


def _returns(records: list[dict[str, Any]]) -> str:
    found = [
        "| algorithm | task | steps | Assay | BenchMARL | difference | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    scores: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for record in records:
        key = record["algorithm"], record["task"], record["asked"]
        sides = scores.setdefault(key, {side: [] for side in SIDES})
        sides[record["side"]].append(record["return"])
    for (algorithm, task, steps), sides in scores.items():
        difference, verdict = judged(sides["assay"], sides["benchmarl"])
        digits = 3 if task == FORAGING else 1
        bounds = difference.point, difference.low, difference.high
        point, low, high = (f"{value:+.{digits}f}" for value in bounds)
        cells = [algorithm, task, f"{steps:,}"]
        cells += [spread(sides[side], digits) for side in ("assay", "benchmarl")]
        found.append(f"| {' | '.join([*cells, f'{point} [{low}, {high}]', verdict])} |")
    return "\n".join(found)


def _speed(content: dict[str, Any]) -> str:
    rows = [
        f"| {side} | {', '.join(f'{rate:,.0f}' for rate in rates)} | "
        f"{content['ratios'][side]:.1f}x |"
        for side, rates in content["steps_per_second"].items()
    ]
    head = "| IPPO on simple_spread, 32 copies | steps/s | of the faster BenchMARL |\n|---|---|---|"
    return "\n".join([head, *rows, "", f"Target: {content['target']:g} times."])


def _machines(records: list[dict[str, Any]]) -> str:
    return f"Measured on {'; '.join(dict.fromkeys(record['machine'] for record in records))}."


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("child")
    one.add_argument("spec", type=json.loads)
    once = verbs.add_parser("one", help="print the return of one side with one seed")
    for name, known in (("side", SIDES), ("algorithm", None), ("task", None), ("seed", None)):
        once.add_argument(name, choices=known, type=int if name == "seed" else str)
    once.add_argument("--steps", type=int, default=STEPS)
    speed = verbs.add_parser("speed")
    speed.add_argument("--store", action="store_true")
    speed.add_argument("--quick", action="store_true")
    speed.add_argument("--core", type=int, default=0)
    speed.add_argument("--repeats", type=int, default=REPEATS)
    returns = verbs.add_parser("returns")
    returns.add_argument("--steps", type=int, default=STEPS)
    returns.add_argument("--seeds", type=int, default=SEEDS)
    returns.add_argument("--jobs", type=int, default=1)
    returns.add_argument("--out", type=Path, default=EVIDENCE)
    found = parser.parse_args()
    if found.verb == "child":
        print(json.dumps(child(found.spec)))
        return 0
    if found.verb == "one":
        spec = {name: getattr(found, name) for name in ("side", "algorithm", "task", "seed")}
        print(json.dumps(child(spec | {"steps": found.steps, "core": None, "race": False})))
        return 0
    if importlib.util.find_spec("benchmarl") is None:
        raise ConfigError(
            "benchmarl is not installed here.", "Run `make bench`: it makes an environment with it."
        )
    if found.verb == "returns":
        collect(found.out, found.steps, found.seeds, found.jobs)
        return 0
    repeats, rollouts = (1, 1) if found.quick else (found.repeats, ROLLOUTS)
    result = race(found.core, repeats, COPIES * HORIZON * rollouts)
    if found.store:
        evidence.write_json(EVIDENCE, _stored(EVIDENCE) | {"speed": result})
    return 0


if __name__ == "__main__":
    finish(main)
