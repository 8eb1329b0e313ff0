"""How soon agents recover when the goal of four rooms moves: options against flat policies.

The experiment of Bacon et al. 2017 (arXiv:1609.05140), figure 2. Every agent learns to reach the
eastern hallway; then the goal moves to a cell of the lower right room, drawn by the seed, and the
agent learns on with what it knows. Counted are the steps until two evaluations in a row have a mean
return of at least the threshold. All agents have the same rollouts, networks and budget. A2C was
tried as well and left out: with these rollouts it did not learn the first goal in 200,000 steps.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import torch

from assay.core.seeding import derive_rng
from assay.envs.make import make_vector
from assay.envs.native.four_rooms import CELLS, HALLWAYS, SIDE
from assay.envs.parameters import set_parameters
from assay.evaluation.evaluate import EvaluationResult, evaluate
from assay.testing.algorithms import Rig

ENV = "assay/FourRooms-v0"
COMMON = {
    "horizon": 32, "gamma": 0.99, "gae_lambda": 0.95, "lr": 1e-3, "entropy_coef": 0.01,
    "hidden": (64, 64),
}  # fmt: skip
EPOCHS = {"minibatch_size": 256, "epochs": 4}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "option_critic": ("option_critic", {**EPOCHS, "n_options": 4}),
    "option_critic-cost": (
        "option_critic", {**EPOCHS, "n_options": 4, "deliberation_cost": 0.01},
    ),
    "ppo": ("ppo", EPOCHS),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """How long is learned, and how it is measured.

    Attributes:
        before: Environment steps with the first goal.
        after: The most with the second one.
        every: Steps between evaluations.
        episodes: Of an evaluation.
        limit: Steps in which an evaluation's episode must reach the goal.
        threshold: The mean return that counts as recovered.
    """

    before: int = 200_000
    after: int = 400_000
    every: int = 4_096
    episodes: int = 50
    limit: int = 100
    threshold: float = 0.9
    num_envs: int = 32


TINY = Plan(before=2_048, after=2_048, every=1_024, episodes=4, limit=50, num_envs=8)


def moved_goal(seed: int) -> int:
    """Return a cell of the lower right room, drawn by the seed."""
    lines, columns = np.divmod(CELLS, SIDE)
    room = np.flatnonzero((lines > 7) & (columns > 6))
    return int(derive_rng(seed, "moved goal").choice(room))


class Contestant:
    """An agent that learns in four rooms, and is measured in others."""

    def __init__(self, name: str, seed: int, plan: Plan) -> None:
        algorithm, own = AGENTS[name]
        self.plan, self.seed = plan, seed
        self.settings = COMMON | own
        vector = make_vector(ENV, plan.num_envs)
        self.rig = Rig(
            algorithm, vector, seed=seed, num_envs=plan.num_envs,
            env_steps=plan.before + plan.after, **self.settings,
        )  # fmt: skip
        self.exam = make_vector(ENV, 25, max_episode_steps=plan.limit, training=False)

    def move(self, goal: int) -> None:
        """Move the goal, in the rooms that it learns in and in those of evaluations."""
        for vector in (self.rig.collector.env, self.exam):
            set_parameters(vector, {"goal": goal})

    def learn(self, steps: int, *, stop: bool) -> dict[str, Any]:
        """Learn for so many steps, or (`stop`) until it has recovered; return the curve."""
        plan, clock, begun = self.plan, self.rig.clock, self.rig.clock.env_steps
        curve = [self._measured(0)]
        reached: int | None = None
        while clock.env_steps - begun < steps:
            until = clock.env_steps + plan.every
            while clock.env_steps < until:
                self.rig.loop.iterate()
            curve.append(self._measured(clock.env_steps - begun))
            good = [point["return"] >= plan.threshold for point in curve[-2:]]
            if reached is None and all(good):
                reached = curve[-2]["steps"]
                if stop:
                    break
        return {"reached": reached, "curve": curve}

    def _measured(self, steps: int) -> dict[str, Any]:
        # Episodes of every evaluation are the same ones, in both phases.
        result: EvaluationResult = evaluate(
            self.rig.algorithm, self.exam, episodes=self.plan.episodes, seed=self.seed
        )
        return {
            "steps": steps,
            "return": result.mean,
            "length": float(result.lengths.mean()),
            **result.figures,
        }


def run(seed: int, plan: Plan, names: list[str]) -> dict[str, Any]:
    """Return the results of one seed."""
    goal = moved_goal(seed)
    found: dict[str, Any] = {}
    for name in names:
        began = time.perf_counter()
        contestant = Contestant(name, seed, plan)
        contestant.move(HALLWAYS["east"])
        contestant.rig.collector.start()
        before = contestant.learn(plan.before, stop=False)
        contestant.move(goal)
        after = contestant.learn(plan.after, stop=True)
        found[name] = {
            "reached": before["reached"],
            "return_before_move": before["curve"][-1]["return"],
            "return_after_move": after["curve"][0]["return"],
            "recovered": after["reached"],
            "before": before["curve"],
            "after": after["curve"],
            "settings": contestant.settings,
            "seconds": round(time.perf_counter() - began, 1),
        }
        print(
            f"seed {seed}, {name}: learned after {before['reached']}, recovered after "
            f"{after['reached']} steps ({found[name]['seconds']} s)",
            flush=True,
        )
    return {
        "schema": evidence.SCHEMA,
        "benchmark": "moved-goal",
        "seed": seed,
        "env": ENV,
        "goals": [HALLWAYS["east"], goal],
        "plan": {name: getattr(plan, name) for name in Plan.__slots__},
        "agents": found,
        "machine": evidence.machine(),
    }


def main(argv: list[str] | None = None) -> None:
    """Measure one seed and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--agents", nargs="*", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--tiny", action="store_true", help="does it work? Numbers mean nothing")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    content = run(asked.seed, TINY if asked.tiny else Plan(), asked.agents)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
