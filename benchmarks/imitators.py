"""Measure the imitators: without a reward, from few episodes or answers, beside their controls.

    python benchmarks/imitators.py --seeds 5 --out runs/imitation
    python benchmarks/imitators.py --cases gail-pendulum,gail-pendulum-random --seeds 1
    python benchmarks/imitators.py --collect --out runs/imitation

Each seed of a case is stored as soon as it is done and is not measured again; a run that was
interrupted is resumed. Seeds run one after the other: start the command several times with other
`--cases` to use more cores. Steps are compiled from the first update on, where there is a compiler:
so a seed has the same numbers whatever is in the cache. `--collect` writes
`evidence/imitation.json` and prints the table.

A score is normalised: 0 is what random actions get, and 1 what the expert gets, both measured by
this script on 100 episodes. The expert of Pendulum is a controller that is written down here, which
costs nothing and is the same everywhere; that of Hopper is a run of PPO, which is trained first,
with the seed 11: run it with `--experts` before several processes need it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import gymnasium as gym
import numpy as np
from cases import HOPPER_PPO
from children import finish

import assay
from assay import data
from assay.core.errors import AssayError, ConfigError
from assay.core.types import Action
from assay.envs.make import make_vector
from assay.evaluation.evaluate import evaluate
from assay.evaluation.play import Uniform, play, recorded_space
from assay.evaluation.statistics import welch_test
from assay.optim.mode import has_compiler
from assay.runs import checkpoint

EVIDENCE = evidence.ROOT / "evidence" / "imitation.json"
EPISODES = 10  # of the expert
FINAL_EPISODES = 100
FINAL_SEED = 1_000_000  # plus the run's: neither training's nor the expert's episodes


# ---------------------------------------------------------------------- experts


def swing_up(obs: Any) -> Any:
    """Pump energy into a pendulum while it hangs, and hold it where it stands."""
    cosine, sine, speed = (float(x) for x in obs)
    if cosine > 0.9:
        torque = -10.0 * sine - 2.0 * speed
    else:
        energy = speed**2 / 6.0 + 5.0 * cosine  # 5 at rest on top
        torque = math.copysign(2.0, speed) * (1.0 if energy < 5.0 else -1.0)
    return np.array([min(max(torque, -2.0), 2.0)], np.float32)


class Controller:
    """A function of one observation, as an agent for `play` and `evaluate`."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def initial_carry(self, n: int) -> None:
        """Return nothing: it does not remember."""

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        """Choose an action for each row."""
        return Action(np.stack([self.function(row) for row in obs]))


CONTROLLERS = {"Pendulum-v1": swing_up}
TRAINED: dict[str, dict[str, Any]] = {"Hopper-v5": {"env_steps": 500_000, **HOPPER_PPO}}


def expert_of(case: Case, out: Path) -> Any:
    """Return who acts as the expert; one that is trained is trained here, once."""
    if case.env in CONTROLLERS:
        return Controller(CONTROLLERS[case.env])
    settings = {**TRAINED[case.env], "seed": 11, "device": "cpu", "threads": 1, "sinks": ()}
    run = _train_or_resume(out, f"expert-{case.env}", "ppo", case.env, settings)
    return assay.load(run.path).policy


def demonstrations(case: Case, out: Path, episodes: int, seed: int) -> data.Dataset:
    """Return episodes of the expert, always the same ones for a seed."""
    vector = make_vector(case.env, 10, training=False)
    try:
        played = play(expert_of(case, out), vector, episodes=episodes, seed=seed)
        return data.from_episodes(
            played, recorded_space(vector.observations), vector.actions.source
        )
    finally:
        vector.close()


def anchors(case: Case, out: Path) -> dict[str, float]:
    """Return the mean returns of random actions and of the expert, measured once."""
    path = out / "anchors" / f"{case.env}.json"
    if not path.exists():
        vector = make_vector(case.env, 10, training=False)
        chance = Uniform(vector.spaces.action, np.random.default_rng(0))
        both = {"random": chance, "expert": expert_of(case, out)}
        measure = partial(evaluate, episodes=FINAL_EPISODES, seed=FINAL_SEED)
        found = {name: round(measure(who, vector).mean, 3) for name, who in both.items()}
        vector.close()
        evidence.write_json(path, {"schema": evidence.SCHEMA, **found})
    read = evidence.read_json(path)
    return {name: float(read[name]) for name in ("random", "expert")}


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True, slots=True)
class Case:
    """Something that an imitator must reach, or a control that must not.

    Attributes:
        name: Of the case.
        algorithm: Registry name.
        env: Environment id.
        goal: What the normalised score must reach; of a control, stay below.
        settings: Over the preset.
        control: Whether this is a control.
        labels: Answers of the controller that the case may use, where that is what is compared.
        transfer: Settings of the changed environment in which a learned reward trains SAC.
    """

    name: str
    algorithm: str
    env: str
    goal: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    control: bool = False
    labels: int | None = None
    transfer: Mapping[str, Any] | None = None

    def met(self, score: float) -> bool:
        """Return whether a score is as it must be."""
        return score < self.goal if self.control else score >= self.goal


_PENDULUM, _HOPPER = "Pendulum-v1", "Hopper-v5"
_HOPS = {**TRAINED[_HOPPER], "env_steps": 1_000_000}  # the policy learns as the expert's did
_RANDOM = {"expert": "random"}
_LABELS = 1_000
_CLONE = {"hidden": [64, 64], "lr": 1e-3}
# As many updates as of BC, which is no better with these layers and batches. Ten episodes at a time
# are asked about, where one after the other would be five, and the expert lets go over all of them.
_ROUNDS = {
    "train_every": 50, "updates": 100, "num_envs": 10, "beta": "linear:1:0", "activation": "tanh",
    "batch_size": 64,
}  # fmt: skip
# SAC with a learned reward, and with the environment's. PPO stays where a rest of torque balances
# the weight, though the learned reward is higher upright.
_SAC: dict[str, Any] = {"env_steps": 10_000, "hidden": [64, 64]}
CASES = {
    case.name: case
    for case in (
        Case("gail-pendulum", "gail", _PENDULUM, 0.9),
        Case("gail-pendulum-random", "gail", _PENDULUM, 0.5, _RANDOM, control=True),
        Case("airl-pendulum", "airl", _PENDULUM, 0.9),
        Case("airl-pendulum-random", "airl", _PENDULUM, 0.5, _RANDOM, control=True),
        Case("gail-hopper", "gail", _HOPPER, 0.9, _HOPS),
        Case("gail-hopper-random", "gail", _HOPPER, 0.5, {**_HOPS, **_RANDOM}, control=True),
        Case("airl-hopper", "airl", _HOPPER, 0.9, _HOPS),
        Case("airl-hopper-random", "airl", _HOPPER, 0.5, {**_HOPS, **_RANDOM}, control=True),
        Case("dagger-pendulum", "dagger", _PENDULUM, 0.9,
             {**_CLONE, **_ROUNDS}, labels=_LABELS),
        Case("bc-pendulum", "bc", _PENDULUM, 0.9, {**_CLONE, "updates": 2 * _LABELS},
             control=True, labels=_LABELS),
        # The reward that AIRL learned, where things weigh less.
        Case("airl-transfer", "airl", _PENDULUM, 0.8, transfer={"g": 7.0}),
    )
}  # fmt: skip

# Whose pages show these cases; BC is measured elsewhere, and here it is a control.
ALGORITHMS = ("gail", "airl", "dagger")


# ---------------------------------------------------------------------- one seed


def run_seed(case: Case, seed: int, out: Path) -> dict[str, Any]:
    """Train and judge one seed of a case."""
    run = _imitate(case, seed, out)
    facts: dict[str, Any] = {"config": run.config.to_dict()}
    if case.algorithm == "bc":  # where the set lay on this machine is nobody's business
        config = facts["config"]
        config["run"] = {**config["run"], "data": Path(config["run"]["data"]).name}
    if case.transfer is None:
        ends = anchors(case, out)
        mean = run.evaluate(FINAL_EPISODES, seed=FINAL_SEED + seed).mean
    else:
        again, ends = _transferred(case, seed, out, run)
        mean, facts["transfer"] = again, dict(case.transfer)
    score = (mean - ends["random"]) / (ends["expert"] - ends["random"])
    return {
        "schema": evidence.SCHEMA, "case": case.name, "seed": seed, "mean": round(mean, 3),
        **ends, "score": round(score, 4), **facts, "machine": evidence.machine(),
    }  # fmt: skip


def _imitate(case: Case, seed: int, out: Path) -> Any:
    settings: dict[str, Any] = {
        **case.settings, "seed": seed, "device": "cpu", "threads": 1, "sinks": (),
        "eval_episodes": 10, "compile": has_compiler(),
    }  # fmt: skip
    if case.algorithm == "dagger":
        settings |= {"expert": CONTROLLERS[case.env], "env_steps": case.labels}
    elif case.algorithm == "bc":
        # As many answers, in whole episodes; other ones for each seed.
        assert case.labels is not None
        path = out / "data" / f"{case.name}-{seed}.npz"
        if not path.exists():
            length = gym.spec(case.env).max_episode_steps or 1
            data.save(demonstrations(case, out, case.labels // length, 100 + seed), path)
        settings["data"] = str(path)
    elif "expert" not in settings:
        settings["expert"] = demonstrations(case, out, EPISODES, seed)
    # A transfer begins with the run of the case that it is named after.
    stem = "airl-pendulum" if case.transfer is not None else case.name
    return _train_or_resume(out, f"{stem}-{seed}", case.algorithm, case.env, settings)


def _transferred(case: Case, seed: int, out: Path, run: Any) -> tuple[float, dict[str, float]]:
    """Train SAC with the frozen reward in the changed environment, and judge by its own reward.

    There, 0 is what random actions get, and 1 what SAC gets from the environment's own reward.
    """
    assert case.transfer is not None

    def changed() -> Any:
        return gym.make(case.env, **case.transfer)

    settings = {
        **_SAC, "seed": seed, "device": "cpu", "threads": 1, "sinks": (), "eval_every": 0,
        "compile": has_compiler(),
        "randomize": {name: {"choice": [value]} for name, value in case.transfer.items()},
    }  # fmt: skip
    ends: dict[str, float] = {}
    measure = partial(evaluate, episodes=FINAL_EPISODES, seed=FINAL_SEED + seed)
    for name, reward in (("learned", {"reward_model": str(run.path)}), ("own", {})):
        made = _train_or_resume(
            out, f"{case.name}-{name}-{seed}", "sac", case.env, settings | reward
        )
        ends[name] = measure(made.agent().policy, changed).mean
    chance = Uniform(changed().action_space, np.random.default_rng(seed))
    found = {"random": measure(chance, changed).mean, "expert": ends["own"]}
    return ends["learned"], {name: round(value, 3) for name, value in found.items()}


def _train_or_resume(out: Path, name: str, algorithm: str, env: str, settings: Any) -> Any:
    root = out / "runs"
    try:
        run = assay.open_run(root / name)
    except AssayError:
        return assay.train(algorithm, env, root=root, name=name, **settings)
    if run.status == "done":
        return run
    if checkpoint.latest(run.directory.checkpoints_path) is None:
        run.directory.delete()
        return assay.train(algorithm, env, root=root, name=name, **settings)
    expert = settings.get("expert")
    return assay.resume(run.path, expert=expert if callable(expert) else None)


# ---------------------------------------------------------------------- all of them


def result_path(out: Path, case: Case, seed: int) -> Path:
    """Return where the result of one seed is kept."""
    return out / "seeds" / f"{case.name}-{seed}.json"


def collect(out: Path) -> dict[str, Any]:
    """Return what was measured, by case: scores, their interquartile mean, and the verdict."""
    found: dict[str, Any] = {"schema": evidence.SCHEMA, "cases": {}}
    for case in CASES.values():
        paths = (out / "seeds").glob(f"{case.name}-[0-9]*.json")
        by_seed = sorted(paths, key=lambda path: int(path.stem.removeprefix(f"{case.name}-")))
        seeds = [evidence.read_json(path) for path in by_seed]
        if not seeds:
            continue
        scores = [float(one["score"]) for one in seeds]
        middle = float(evidence.iqm(np.array(scores)))
        found["cases"][case.name] = {
            "goal": case.goal, "control": case.control, "iqm": round(middle, 4),
            "passed": case.met(middle), "seeds": seeds,
        }  # fmt: skip
    return found


def cases_of(found: Mapping[str, Any], algorithm: str | None = None) -> dict[str, Any]:
    """Return what was collected, of one algorithm if that is given; DAgger's control is BC."""
    names = {None: None, "dagger": ("dagger", "bc")}.get(algorithm, (algorithm,))
    return {
        name: one
        for name, one in found["cases"].items()
        if names is None or CASES[name].algorithm in names
    }


def table(found: Mapping[str, Any]) -> str:
    """Return the results as a table in Markdown."""
    lines = ["| case | goal | IQM | per seed | returns | passed |", "|---|---|---|---|---|---|"]
    for name, one in found["cases"].items():
        sign = "<" if one["control"] else "≥"
        scores = ", ".join(f"{seed['score']:.2f}" for seed in one["seeds"])
        means = ", ".join(f"{seed['mean']:.0f}" for seed in one["seeds"])
        passed = "yes" if one["passed"] else "**no**"
        goal = f"{sign} {one['goal']:g}"
        lines.append(f"| {name} | {goal} | {one['iqm']:.2f} | {scores} | {means} | {passed} |")
    if {"dagger-pendulum", "bc-pendulum"} <= set(found["cases"]):
        lines += ["", _ahead(found["cases"])]
    return "\n".join(lines)


def _ahead(cases: Mapping[str, Any]) -> str:
    """Say how far DAgger is ahead of BC at as many answers."""
    ours, theirs = (
        [float(seed["score"]) for seed in cases[name]["seeds"]]
        for name in ("dagger-pendulum", "bc-pendulum")
    )
    text = f"DAgger less BC, means: {np.mean(ours) - np.mean(theirs):+.2f}"
    if min(len(ours), len(theirs)) < 2 or (test := welch_test(ours, theirs)).interval is None:
        return f"{text}."
    one = test.interval
    return f"{text} [{one.low:+.2f}, {one.high:+.2f}] (Welch, 95 %, p = {test.p_value:.2g})."


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the imitators.")
    parser.add_argument("--cases", default="all", help=f"all, or some of: {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds of each case")
    parser.add_argument("--first-seed", type=int, default=1, help="number of the first seed")
    parser.add_argument("--out", type=Path, default=Path("runs/imitation"), help="where to work")
    parser.add_argument("--experts", action="store_true", help="train and judge experts alone")
    parser.add_argument("--collect", action="store_true", help="write the evidence, run nothing")
    options = parser.parse_args(arguments)
    names = list(CASES) if options.cases == "all" else options.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise ConfigError(f"Unknown case '{unknown[0]}'.", f"Known: {', '.join(CASES)}.")
    options.cases = [CASES[name] for name in names]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or collect what was measured."""
    options = parse(arguments)
    if options.collect:
        found = collect(options.out)
        evidence.write_json(EVIDENCE, found)
        print(table(found))
        return 0
    if options.experts:
        for case in {case.env: case for case in options.cases}.values():
            print(f"{case.env}: {anchors(case, options.out)}", flush=True)
        return 0
    for number in range(options.first_seed, options.first_seed + options.seeds):
        for case in options.cases:
            path = result_path(options.out, case, number)
            if not path.exists():
                evidence.write_json(path, run_seed(case, number, options.out))
            one = evidence.read_json(path)
            print(f"{case.name} seed {number}: {one['score']:.3f} ({one['mean']:.0f})", flush=True)
    return 0


if __name__ == "__main__":
    finish(main)
