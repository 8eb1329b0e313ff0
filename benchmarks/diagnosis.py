"""How well `assay diagnose` tells broken runs from healthy ones.

Trains short runs, some of them broken on purpose in a way that one rule is to find, and diagnoses
them. A run counts as healthy if its evaluations reach a return that is set here, whatever the rules
say; a finding of severity warning or error on one is a false alarm.

    python benchmarks/diagnosis.py --runs DIR [CASE...]   # trains what DIR lacks, then judges
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import assay
from assay.algorithms.base import Algorithm
from assay.core.errors import AssayError
from assay.diagnosis.case import Case
from assay.diagnosis.report import diagnose, examine
from assay.runs.directory import RunDirectory

EVIDENCE = Path(__file__).parent / "evidence" / "diagnosis.json"
CARTPOLE, PENDULUM, ACROBOT = "CartPole-v1", "Pendulum-v1", "Acrobot-v1"
_SMALL = {"hidden": [64, 64]}
_REACHED = {CARTPOLE: 150.0, PENDULUM: -700.0, ACROBOT: -200.0}  # random: 22, -1200, -500


@dataclass(frozen=True)
class Healthy:
    """A run that learns, with the settings of its preset."""

    algorithm: str
    env: str
    steps: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Broken:
    """A run that is broken on purpose, and the rule that is to find it."""

    rule: str
    algorithm: str
    env: str | Callable[[], gym.Env[Any, Any]]
    steps: int
    settings: dict[str, Any] = field(default_factory=dict)
    around: Callable[[Callable[[], Any]], Any] = lambda train: train()


class _Scaled(gym.Wrapper[Any, Any, Any, Any]):
    """Multiply observations and rewards."""

    def __init__(self, env: gym.Env[Any, Any], reward: float = 1.0, obs: float = 1.0) -> None:
        super().__init__(env)
        self._reward, self._obs = reward, obs
        if obs != 1.0:
            shape = env.observation_space.shape
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return np.float32(obs * self._obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return np.float32(obs * self._obs), reward * self._reward, terminated, truncated, info


class _EndsAtOnce(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = self.env.step(action)
        return obs, reward, True, truncated, info


class _Endless(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = self.env.step(action)
        return np.clip(obs, -1, 1), reward, False, False, info


class _Loitering(gym.Env[Any, Any]):
    """A corridor: the goal ends the episode as a success, and staying away is rewarded."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place, self._steps = int(self.np_random.integers(1, 3)), 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        self._steps += 1
        reached = self._place >= 4
        return self._seen(), 1.0, reached, self._steps >= 40, {"is_success": reached}

    def _seen(self) -> Any:
        return np.array([self._place / 4 - 0.5], np.float32)


class _Reverses(gym.Wrapper[Any, Any, Any, Any]):
    """Swap the two actions from some step on."""

    steps = 0

    def step(self, action: Any) -> Any:
        _Reverses.steps += 1
        return self.env.step(1 - action if _Reverses.steps > 12_000 else action)


def _wrapped(wrapper: Any, env: str = CARTPOLE, **options: Any) -> Callable[[], Any]:
    return lambda: wrapper(gym.make(env), **options)


def _limited(wrapper: Any) -> Callable[[], Any]:
    return lambda: wrapper(gym.make(CARTPOLE).unwrapped)


def _with_frozen_normalizer(train: Callable[[], Any]) -> Any:
    """Train while observations stop reaching the normaliser after the first rollout."""
    real, seen = Algorithm.update_obs_stats, []

    def once(self: Algorithm, obs: Any, valid: Any = None) -> None:
        if not seen:
            real(self, obs, valid)
        seen.append(1)

    Algorithm.update_obs_stats = once  # type: ignore[method-assign]
    try:
        return train()
    finally:
        Algorithm.update_obs_stats = real  # type: ignore[method-assign]


HEALTHY: dict[str, Healthy] = {
    "ppo-cartpole": Healthy("ppo", CARTPOLE, 40_000),
    "ppo-cartpole-2": Healthy("ppo", CARTPOLE, 40_000, {"seed": 2}),
    "ppo-cartpole-plain": Healthy("ppo", CARTPOLE, 60_000, {"seed": 3, "preset": False}),
    "ppo-cartpole-entropy": Healthy("ppo", CARTPOLE, 40_000, {"seed": 4, "entropy_coef": 0.01}),
    "ppo-cartpole-relu": Healthy("ppo", CARTPOLE, 40_000, {"seed": 5, "activation": "relu"}),
    "ppo-cartpole-kl": Healthy("ppo", CARTPOLE, 25_000, {"seed": 6, "target_kl": 0.03}),
    "ppo-cartpole-norm": Healthy("ppo", CARTPOLE, 25_000, {"seed": 7, "normalize_obs": True}),
    "ppo-cartpole-tiny": Healthy("ppo", CARTPOLE, 25_000, {"seed": 8, "hidden": [32]}),
    "ppo-cartpole-gamma": Healthy("ppo", CARTPOLE, 25_000, {"seed": 9, "gamma": 0.99}),
    "ppo-cartpole-lambda": Healthy("ppo", CARTPOLE, 20_000, {"seed": 10, "gae_lambda": 0.95}),
    "impala-cartpole-2": Healthy("impala", CARTPOLE, 60_000, {"seed": 2}),
    "impala-cartpole-3": Healthy("impala", CARTPOLE, 60_000, {"seed": 3, "hidden": [128]}),
    "ppo-acrobot": Healthy("ppo", ACROBOT, 40_000),
    "ppo-acrobot-2": Healthy("ppo", ACROBOT, 40_000, {"seed": 2}),
    "a2c-cartpole": Healthy("a2c", CARTPOLE, 60_000),
    "a2c-cartpole-2": Healthy("a2c", CARTPOLE, 40_000, {"seed": 2}),
    "impala-cartpole": Healthy("impala", CARTPOLE, 60_000),
    "recurrent_ppo-cartpole": Healthy("recurrent_ppo", CARTPOLE, 40_000, _SMALL),
    "dqn-cartpole": Healthy("dqn", CARTPOLE, 20_000, _SMALL),
    "dqn-cartpole-2": Healthy("dqn", CARTPOLE, 20_000, _SMALL | {"seed": 2}),
    "c51-cartpole": Healthy("c51", CARTPOLE, 20_000, _SMALL),
    "qrdqn-cartpole": Healthy("qrdqn", CARTPOLE, 20_000, _SMALL),
    "rainbow-cartpole": Healthy("rainbow", CARTPOLE, 10_000, _SMALL),
    "sac-pendulum": Healthy("sac", PENDULUM, 5_000, _SMALL),
    "td3-pendulum": Healthy("td3", PENDULUM, 5_000, _SMALL),
    "ddpg-pendulum": Healthy("ddpg", PENDULUM, 5_000, _SMALL),
    "sac-pendulum-2": Healthy("sac", PENDULUM, 5_000, _SMALL | {"seed": 2}),
    "tqc-pendulum": Healthy("tqc", PENDULUM, 5_000, _SMALL),
    "crossq-pendulum": Healthy("crossq", PENDULUM, 5_000, _SMALL),
}

# Many short rollouts, and nothing that repairs what is broken: defaults normalise.
_PLAIN = {
    "preset": False, "num_envs": 8, "horizon": 64, "minibatch_size": 128, "epochs": 4,
    "normalize_obs": False, "normalize_reward": False, "eval_episodes": 5, "log_every": 512,
}  # fmt: skip
_DQN = _SMALL | {"eval_episodes": 5}

BROKEN: dict[str, Broken] = {
    "lr-too-high": Broken("learning_rate", "ppo", ACROBOT, 8_000, _PLAIN | {"lr": 3.0}),
    "lr-high-collapses": Broken("entropy_collapse", "a2c", CARTPOLE, 8_000, {"lr": 1.0}),
    "lr-zero": Broken("policy_does_not_move", "ppo", ACROBOT, 8_000, _PLAIN | {"lr": 0.0}),
    "lr-ends-early": Broken(
        "learning_rate", "ppo", CARTPOLE, 8_000, _PLAIN | {"lr": "linear:0.0003:0:0.1"}
    ),
    "dead-units": Broken("dead_units", "dqn", CARTPOLE, 5_000, _DQN | {"lr": 0.5}),
    "entropy-bonus": Broken("stays_random", "ppo", ACROBOT, 8_000, _PLAIN | {"entropy_coef": 5.0}),
    "clip-tiny": Broken("clip_fraction", "ppo", CARTPOLE, 8_000, _PLAIN | {"clip": 1e-4}),
    "steps-too-long": Broken(
        "kl_spikes", "ppo", CARTPOLE, 8_000, _PLAIN | {"epochs": 20, "lr": 0.02, "clip": 10.0}
    ),
    "discount-zero": Broken("discount", "ppo", CARTPOLE, 8_000, _PLAIN | {"gamma": 0.0}),
    "few-updates": Broken(
        "replay_ratio", "dqn", CARTPOLE, 8_000, _DQN | {"train_every": 500, "updates": 1}
    ),
    "reward-zero": Broken("no_reward_signal", "dqn", _wrapped(_Scaled, reward=0.0), 3_000, _DQN),
    "reward-huge": Broken("loss_explodes", "ppo", _wrapped(_Scaled, reward=1e7), 8_000, _PLAIN),
    "reward-overflows": Broken("diverged", "ppo", _wrapped(_Scaled, reward=1e30), 8_000, _PLAIN),
    "ends-at-once": Broken(
        "episodes_end_at_once", "sac", _wrapped(_EndsAtOnce, PENDULUM), 800, _SMALL
    ),
    "never-ends": Broken(
        "no_episode_ends", "ppo", _limited(_Endless), 6_000,
        _PLAIN | {"eval_every": 0, "eval_episodes": 1, "num_envs": 4, "max_episode_steps": 9_000},
    ),
    "normalizer-frozen": Broken(
        "stale_normalizer", "ppo", CARTPOLE, 8_000, _PLAIN | {"normalize_obs": True},
        _with_frozen_normalizer,
    ),
    "support-narrow": Broken(
        "value_support", "c51", CARTPOLE, 3_000, _DQN | {"v_min": -1.0, "v_max": 1.0}
    ),
    "loiters": Broken(
        "reward_hacking", "ppo", _Loitering, 8_000,
        _PLAIN | {"eval_every": 500, "eval_episodes": 30, "lr": 3e-4},
    ),
    "world-changes": Broken(
        "collapse_of_returns", "ppo", _wrapped(_Reverses), 24_000,
        _PLAIN | {"lr": "linear:0.003:0:0.5"},
    ),
    "critic-diverges": Broken(
        "values_explode", "ddpg", PENDULUM, 1_500, _SMALL | {"lr": 0.01, "tau": 1.0, "gamma": 1.0}
    ),
}  # fmt: skip


def train(name: str, root: Path) -> str | None:
    """Train a case where its run is missing; return why it could not be, or None."""
    case = HEALTHY.get(name) or BROKEN[name]
    if (root / name).exists():
        return None
    options = {"root": root, "name": name, "compile": False, "sinks": [], **case.settings}
    around = case.around if isinstance(case, Broken) else lambda run: run()
    try:
        around(lambda: assay.train(case.algorithm, case.env, env_steps=case.steps, **options))
    except AssayError as error:
        if not (root / name / "run.json").exists():
            return error.message
    return None


def judge(name: str, root: Path) -> dict[str, Any]:
    """Diagnose a run and say whether that is right."""
    report = diagnose(root / name)
    found = [f for f in report.findings if f.severity != "info"]
    row: dict[str, Any] = {"case": name, "findings": [f"{f.severity} {f.name}" for f in found]}
    if name in BROKEN:
        rule = BROKEN[name].rule
        return row | {"kind": "broken", "rule": rule, "found": rule in {f.name for f in found}}
    means = [float(np.mean([e["return"] for e in one["episodes"]]))
             for one in RunDirectory.open(root / name).evals()]  # fmt: skip
    best = max(means, default=float("-inf"))
    learned = best >= _REACHED[HEALTHY[name].env]
    return row | {"kind": "healthy", "learned": learned, "alarm": bool(found), "best": best}


def judge_curves() -> dict[str, Any]:
    """Diagnose the evaluation curves of the committed evidence: what passed must not alarm."""
    alarms, seeds = [], 0
    for path in sorted((EVIDENCE.parent / "learning").glob("*.json")):
        found = json.loads(path.read_text())
        if not found["passed"] or found["goal"].startswith("<"):
            continue  # a control is meant to fail
        spec = gym.registry.get(found["env"])
        for one in found["seeds"]:
            curve = np.array(one["curve"]["env_steps"]), np.array(one["curve"]["mean"], float)
            case = Case(
                path, "json", {"eval/return_mean": curve}, count=int(curve[0][-1]),
                env=found["env"], threshold=None if spec is None else spec.reward_threshold,
            )  # fmt: skip
            seeds += 1
            names = [f.name for f in examine(case).findings if f.severity != "info"]
            if names:
                alarms.append({"case": found["case"], "seed": one["seed"], "findings": names})
    return {"curves": seeds, "alarms": alarms}


def main() -> None:
    """Train and judge the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--write", action="store_true", help="write the evidence")
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    names = given.cases or [*HEALTHY, *BROKEN]
    rows = []
    for name in names:
        reason = train(name, given.runs)
        row = {"case": name, "untrained": reason} if reason else judge(name, given.runs)
        rows.append(row)
        print(json.dumps(row), flush=True)
    healthy = [row for row in rows if row.get("kind") == "healthy" and row["learned"]]
    broken = [row for row in rows if row.get("kind") == "broken"]
    summary = {
        "healthy": len(healthy), "false_alarms": sum(row["alarm"] for row in healthy),
        "broken": len(broken), "found": sum(row["found"] for row in broken),
    }  # fmt: skip
    curves = judge_curves()
    summary |= {"curves": curves["curves"], "curves_with_alarms": len(curves["alarms"])}
    print(json.dumps(summary), file=sys.stderr)
    if given.write:
        content = {"schema": 1, "summary": summary, "cases": rows, "curves": curves["alarms"]}
        EVIDENCE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
