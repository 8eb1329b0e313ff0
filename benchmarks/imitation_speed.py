"""Race GAIL against `imitation` on one core, to the same return from the same episodes.

    python benchmarks/imitation_speed.py             # three repeats, taking turns
    python benchmarks/imitation_speed.py --store     # ... and keep the result as evidence
    python benchmarks/imitation_speed.py --quick     # does it work? The numbers mean nothing

Both see the same ten episodes of an expert of Pendulum-v1 and no reward, and learn until 20 test
episodes have 90 % of the way from random actions to the expert, or to the end of their budget.
They are tested every 20,480 steps. Every measurement is a fresh process bound to the same core with
one torch thread, and counts the seconds of that core which it used: what else runs on the machine
is not counted. Ours is the preset, and its clock includes the tests; `imitation` has the settings
of its own example of GAIL, and its clock stands still while it is tested. Nothing is tuned for
Pendulum there: with other settings it may be faster.

What was measured is kept in `--work` and is not measured again; delete `race` there to begin again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evidence
import imitators as cases
import numpy as np
from children import ask, caches, finish
from speed import pin

from assay.core.errors import ConfigError

STORE = evidence.ROOT / "evidence" / "imitation_speed.json"
CASE = cases.CASES["gail-pendulum"]
LIBRARIES = ("imitation", "assay")
TARGET = 4.0
EVERY, MOST = 20_480, 491_520  # steps
TESTS = 20  # episodes
REPEATS = 3
TIMEOUT = 3_600


# ---------------------------------------------------------------------- one measurement


def child(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process."""
    pinned = pin(spec["core"])
    import torch

    torch.set_num_threads(1)
    runs = {"assay": _assay, "imitation": _imitation}[spec["library"]]
    curve = runs(spec)
    steps, seconds, mean = curve[-1]
    return {
        "steps": steps, "seconds": seconds, "mean": mean, "reached": mean >= spec["goal"],
        "curve": curve, "pinned": pinned,
    }  # fmt: skip


Curve = list[tuple[int, float, float]]  # steps, seconds and mean return of each test


def _assay(spec: dict[str, Any]) -> Curve:
    from assay import api, events

    curve: Curve = []
    began = 0.0

    def watch(event: events.Event) -> Any:
        nonlocal began
        if isinstance(event, events.RunStarted):
            began = time.process_time()
        if isinstance(event, events.Evaluated):
            seconds = round(time.process_time() - began, 2)
            curve.append((event.clock.env_steps, seconds, round(event.result.mean, 2)))
            return events.STOP if event.result.mean >= spec["goal"] else None
        return None

    with tempfile.TemporaryDirectory() as root:
        api.train(
            "gail", CASE.env, root=root, expert=spec["episodes"], env_steps=spec["most"],
            eval_every=spec["every"], eval_episodes=TESTS, checkpoint_every=0, sinks=(),
            threads=1, device="cpu", seed=spec["seed"], compile=spec["compile"],
            callbacks=[watch],
        )  # fmt: skip
    return curve


def _imitation(spec: dict[str, Any]) -> Curve:
    import gymnasium as gym
    from imitation.algorithms.adversarial.gail import GAIL
    from imitation.data.types import TrajectoryWithRew
    from imitation.data.wrappers import RolloutInfoWrapper
    from imitation.rewards.reward_nets import BasicRewardNet
    from imitation.util import logger
    from imitation.util.networks import RunningNorm
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv

    from assay.data.files import load

    episodes = [
        TrajectoryWithRew(one.obs, one.action, infos=None, terminal=True, rews=one.reward)
        for one in load(spec["episodes"]).episodes()
    ]
    venv = DummyVecEnv([lambda: RolloutInfoWrapper(gym.make(CASE.env)) for _ in range(8)])
    venv.seed(spec["seed"])
    learner = PPO(
        "MlpPolicy", venv, n_steps=256, batch_size=64, n_epochs=5, learning_rate=4e-4, gamma=0.95,
        ent_coef=0.0, seed=spec["seed"], device="cpu",
    )  # fmt: skip
    net = BasicRewardNet(
        venv.observation_space, venv.action_space, normalize_input_layer=RunningNorm
    )
    trainer = GAIL(
        demonstrations=episodes, demo_batch_size=1024, gen_replay_buffer_capacity=512,
        n_disc_updates_per_round=8, venv=venv, gen_algo=learner, reward_net=net,
        custom_logger=logger.configure(format_strs=()),
    )  # fmt: skip
    tests, curve, seconds = gym.make(CASE.env), Curve(), 0.0
    while not curve or (curve[-1][2] < spec["goal"] and curve[-1][0] < spec["most"]):
        began = time.process_time()
        trainer.train(spec["every"])
        seconds += time.process_time() - began
        mean = float(evaluate_policy(learner, tests, TESTS)[0])
        curve.append(((len(curve) + 1) * spec["every"], round(seconds, 2), round(mean, 2)))
    return curve


# ---------------------------------------------------------------------- all of them


def measure(core: int, work: Path, quick: bool) -> dict[str, Any]:
    """Return the goal and one record per measurement."""
    libraries = [name for name in LIBRARIES if importlib.util.find_spec(name) is not None]
    if len(libraries) < len(LIBRARIES) and not quick:
        raise ConfigError(
            "imitation is not installed here.", "Run `make bench`: it makes an environment with it."
        )
    from assay import data

    path = (work / "race.npz").resolve()
    if not path.exists():
        data.save(cases.demonstrations(CASE, work, cases.EPISODES, 0), path)
    ends = cases.anchors(CASE, work)
    goal = ends["random"] + CASE.goal * (ends["expert"] - ends["random"])
    spec: dict[str, Any] = {
        "episodes": str(path), "goal": 0.0 if quick else goal, "core": core, "every": EVERY,
        "most": EVERY if quick else MOST, "compile": not quick,
    }  # fmt: skip
    place = (work / "race").resolve()
    cache, runs = str(place / "cache"), []
    keep = [] if quick else [place / f"assay-{k + 1}.json" for k in range(REPEATS)]
    if not all(path.exists() for path in keep):
        _launch({**spec, "library": "assay", "most": EVERY, "seed": 0}, cache)  # compiles
    for repeat in range(1 if quick else REPEATS):
        for library in libraries:
            kept = place / f"{library}-{repeat + 1}.json"
            if quick or not kept.exists():
                found = _launch({**spec, "library": library, "seed": repeat + 1}, cache)
                found |= {"schema": evidence.SCHEMA, "load": round(os.getloadavg()[0], 2)}
                if not quick:
                    evidence.write_json(kept, found)
            else:
                found = evidence.read_json(kept)
            facts = {name: value for name, value in found.items() if name != "schema"}
            runs.append({"library": library, "repeat": repeat} | facts)
            print(
                f"{library} {repeat + 1}: {found['mean']:.0f} after {found['steps']:,} steps "
                f"and {found['seconds']:.0f} s",
                flush=True,
            )
    return {"goal": round(goal, 2), "runs": runs}


def _launch(spec: dict[str, Any], cache: str) -> dict[str, Any]:
    words = [__file__, "--child", json.dumps(spec)]
    return ask(words, f"GAIL of {spec['library']}", timeout=TIMEOUT, env=caches(cache))


def table(content: dict[str, Any] | None) -> str:
    """Return the ratio of the medians of seconds, and those of neighbours as a range."""
    if content is None:
        return "Not measured yet: `make bench`."
    sides = {x: [run for run in content["runs"] if run["library"] == x] for x in LIBRARIES}
    ours, theirs = (np.array([r["seconds"] for r in sides[x]]) for x in ("assay", "imitation"))
    ratio, pairs = float(np.median(theirs) / np.median(ours)), theirs / ours
    missed = [run for run in content["runs"] if not run["reached"]]
    met = ratio >= TARGET and not any(run["library"] == "assay" for run in missed)
    lines = [
        f"| GAIL, Pendulum-v1 to {content['goal']:.0f} | Assay | imitation | ratio [range] | "
        "target | met |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| seconds, medians of {len(ours)} seeds | {np.median(ours):,.0f} | "
        f"{np.median(theirs):,.0f} | {ratio:.1f}x [{pairs.min():.1f}x, {pairs.max():.1f}x] | "
        f"{TARGET:g}x | {'yes' if met else 'no'} |",
    ]
    steps = {x: np.median([run["steps"] for run in sides[x]]) for x in LIBRARIES}
    lines.append(f"| steps | {steps['assay']:,.0f} | {steps['imitation']:,.0f} | | | |")
    if missed:
        names = ", ".join(f"{run['library']} {run['repeat'] + 1}" for run in missed)
        lines.append(f"\nNot reached within {MOST:,} steps: {names}.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and store if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=Path, default=Path("runs/imitation"), help="the expert")
    parser.add_argument("--quick", action="store_true", help="one test, one repeat")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return 0
    found = measure(options.core, options.work, options.quick)
    content = {"schema": evidence.SCHEMA, **found, "machine": evidence.machine()}
    if not options.quick:
        print(table(content))
    if options.store:
        evidence.write_json(STORE, content)
    return 0


if __name__ == "__main__":
    finish(main)
