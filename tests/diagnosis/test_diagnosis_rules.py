"""Every rule finds the failure that is planted for it, and none alarms on a healthy run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.core import TyperGroup

from assay.cli.app import app
from assay.core import registry
from assay.diagnosis.case import Case, Finding
from assay.diagnosis.probe import Probe, Units
from assay.diagnosis.report import RULES, _across_seeds, describe, examine
from assay.loops.run_settings import OnlineSettings

POINTS = 20
COUNTS = np.arange(1, POINTS + 1) * 1000
RISING = np.linspace(20.0, 480.0, POINTS)
FLAT = 20.0 + 0.2 * np.sin(np.arange(POINTS))


def healthy(**changes: Any) -> Case:
    """Return a run of PPO that learns, with curves and facts changed."""
    curves: dict[str, Any] = {
        "rollout/return_mean": RISING,
        "rollout/length_mean": RISING,
        "eval/return_mean": RISING + 10,
        "eval/length_mean": RISING + 10,
        "train/entropy": np.linspace(0.69, 0.3, POINTS),
        "train/approx_kl": np.full(POINTS, 0.01),
        "train/clip_fraction": np.full(POINTS, 0.1),
        "train/explained_variance": np.linspace(0.0, 0.8, POINTS),
        "train/value_loss": np.linspace(5.0, 50.0, POINTS),
        "train/ppo_grad_norm": np.full(POINTS, 2.0),
        "train/q_mean": np.linspace(0.0, 80.0, POINTS),
        "time/update_share": np.full(POINTS, 0.5),
        "time/evaluation_share": np.full(POINTS, 0.1),
    }
    facts: dict[str, Any] = {
        "count": 20_000, "total": 20_000, "updates": 5000, "episodes": 300, "status": "done",
        "algorithm": "ppo", "env": "CartPole-v1", "threshold": 475.0,
        "settings": {"lr": 0.0003, "gamma": 0.99, "entropy_coef": 0.0},
        "run": {"num_envs": 8},
        "clock": np.stack([COUNTS, COUNTS / 4, COUNTS / 100, COUNTS / 50], 1).astype(float),
        "probe": Probe(Path("000000020000"), (Units(1, 64, 3, 32),), 20_000, 1.0, None, 2),
    }  # fmt: skip
    for name, value in changes.items():
        if name in facts or name in Case.__dataclass_fields__:
            facts[name] = value
        else:
            curves[name.replace("__", "/")] = value
    series = {name: (COUNTS, np.asarray(v, float)) for name, v in curves.items() if v is not None}
    return Case(Path("runs/x"), "assay", series, **facts)


def stuck(**changes: Any) -> Case:
    """Return a run whose returns stay where they began."""
    flat = {"rollout__return_mean": FLAT, "rollout__length_mean": FLAT, "eval__return_mean": FLAT}
    return healthy(**(flat | changes))


def settings(**changes: Any) -> dict[str, Any]:
    return {"lr": 0.0003, "gamma": 0.99} | changes


def found(case: Case) -> dict[str, Finding]:
    return {one.name: one for one in examine(case).findings}


def alarms(case: Case) -> list[str]:
    return [one.name for one in examine(case).findings if one.severity != "info"]


def seen_late(value: float, since: int) -> Any:
    """Return a curve that has another value from some point on."""
    values = np.full(POINTS, 0.01)
    values[since:] = value
    return values


def slowing() -> Any:
    seconds = np.cumsum(np.where(np.arange(POINTS) < 10, 1.0, 30.0))
    return np.stack([COUNTS, COUNTS / 4, seconds, COUNTS / 50], 1).astype(float)


def terminated(flag: bool) -> list[tuple[int, list[dict[str, Any]]]]:
    episode = {"return": 1.0, "length": 200, "terminated": flag, "truncated": not flag}
    return [(20_000, [episode] * 10)]


def rivals(**changes: Any) -> Case:
    """Return a run in which one agent gets what the other loses."""
    episode = {"return": 0.0, "agents": {"a_0": 1.0, "a_1": -1.0}, "terminated": True}
    flat = dict.fromkeys(("rollout__return_mean", "eval__return_mean"), np.zeros(POINTS))
    return stuck(**flat, evaluations=[(20_000, [episode] * 10)], **changes)


def probed(**changes: Any) -> Probe:
    values = {"seen": 20_000, "distance": 1.0, "size": None, "choices": 2} | changes
    return Probe(Path("000000020000"), values.pop("units", ()), **values)


PLANTED: dict[str, tuple[str, Callable[[], Case]]] = {
    "a loss that is not a number": (
        "diverged", lambda: healthy(train__value_loss=seen_late(np.nan, 9)),
    ),
    "a run that stopped at one": (
        "diverged",
        lambda: healthy(status="failed", error="Training diverged: train/x is not finite at 7"),
    ),
    "an environment that raised": (
        "failed", lambda: healthy(status="failed", error="EnvError: step() raised"),
    ),
    "an exploding loss": ("loss_explodes", lambda: healthy(train__value_loss=seen_late(1e6, 9))),
    "exploding gradients": (
        "loss_explodes", lambda: healthy(train__ppo_grad_norm=seen_late(1e7, 9)),
    ),
    "values beyond all returns": (
        "values_explode", lambda: healthy(train__q_mean=seen_late(1e6, 5)),
    ),
    "a critic worse than a constant": (
        "values_do_not_fit", lambda: healthy(train__explained_variance=np.full(POINTS, -3.0)),
    ),
    "a temperature that runs away": (
        "temperature", lambda: healthy(train__alpha=np.logspace(0, 4, POINTS)),
    ),
    "a step size of 0": ("learning_rate", lambda: healthy(settings=settings(lr=0.0))),
    "a step size of 1": ("learning_rate", lambda: healthy(settings=settings(critic_lr=1.0))),
    "a schedule that ends early": (
        "learning_rate", lambda: healthy(settings=settings(lr="linear:0.001:0:0.2")),
    ),
    "a logged step size of 0": ("learning_rate", lambda: healthy(train__lr=np.zeros(POINTS))),
    "updates that change nothing": (
        "policy_does_not_move", lambda: stuck(train__approx_kl=np.zeros(POINTS)),
    ),
    "no gradient": ("policy_does_not_move", lambda: stuck(train__ppo_grad_norm=np.zeros(POINTS))),
    "a policy that is deterministic too early": (
        "entropy_collapse", lambda: stuck(train__entropy=0.69 * 0.3 ** np.arange(POINTS)),
    ),
    "a Gaussian without a spread": (
        "entropy_collapse",
        lambda: stuck(
            train__entropy=np.linspace(1.4, -9.0, POINTS), probe=probed(choices=None),
        ),
    ),
    "a policy that stays uniform": (
        "stays_random", lambda: stuck(train__entropy=np.full(POINTS, 0.692)),
    ),
    "an entropy bonus that is too large": (
        "stays_random",
        lambda: healthy(
            train__entropy=np.full(POINTS, 0.692), settings=settings(entropy_coef=5.0),
            threshold=None,
        ),
    ),
    "one step that is far too long": (
        "kl_spikes", lambda: healthy(train__approx_kl=seen_late(4.0, 19)),
    ),
    "steps that are all too long": (
        "kl_spikes", lambda: healthy(train__approx_kl=np.full(POINTS, 0.2)),
    ),
    "batches that are clipped": (
        "clip_fraction", lambda: healthy(train__clip_fraction=np.full(POINTS, 0.9)),
    ),
    "a discount that sees nothing": ("discount", lambda: stuck(settings=settings(gamma=0.2))),
    "no update": ("replay_ratio", lambda: healthy(updates=0)),
    "hardly any update": (
        "replay_ratio",
        lambda: healthy(updates=10, settings=settings(learning_starts=100, batch_size=64)),
    ),
    "a support that is too narrow": (
        "value_support", lambda: healthy(train__mass_clipped=np.full(POINTS, 0.7)),
    ),
    "dead units": ("dead_units", lambda: healthy(probe=probed(units=(Units(2, 64, 62, 99),)))),
    "a frozen normaliser": ("stale_normalizer", lambda: healthy(probe=probed(seen=512))),
    "statistics of something else": (
        "stale_normalizer", lambda: healthy(probe=probed(distance=40.0)),
    ),
    "inputs that are too large": (
        "inputs_unscaled", lambda: stuck(probe=probed(seen=None, distance=None, size=9e3)),
    ),
    "episodes of one step": (
        "episodes_end_at_once",
        lambda: stuck(rollout__length_mean=np.ones(POINTS), rollout__return_mean=np.ones(POINTS)),
    ),
    "episodes that never end": (
        "no_episode_ends",
        lambda: healthy(episodes=0, rollout__return_mean=None, rollout__length_mean=None),
    ),
    "rewards that are all 0": (
        "no_reward_signal",
        lambda: stuck(rollout__return_mean=np.zeros(POINTS), eval__return_mean=np.zeros(POINTS)),
    ),
    "a team's reward in a game of rivals": ("rivals", lambda: rivals(algorithm="qmix")),
    "returns that never rise": ("never_improves", stuck),
    "returns that stop rising": (
        "plateau",
        lambda: healthy(
            rollout__return_mean=np.minimum(RISING, 120.0),
            eval__return_mean=np.minimum(RISING, 120.0),
        ),
    ),
    "returns that fall back": (
        "collapse_of_returns",
        lambda: healthy(
            rollout__return_mean=np.where(np.arange(POINTS) < 12, RISING, 20.0),
            eval__return_mean=np.where(np.arange(POINTS) < 12, RISING, 20.0),
        ),
    ),
    "evaluations that fail": ("evaluation_gap", lambda: healthy(eval__return_mean=FLAT)),
    "success that falls": (
        "reward_hacking", lambda: healthy(eval__success_rate=np.linspace(0.8, 0.0, POINTS)),
    ),
    "success that never happens": (
        "reward_hacking", lambda: healthy(eval__success_rate=np.zeros(POINTS)),
    ),
    "a true return that falls": (
        "reward_hacking", lambda: healthy(rollout__true_return=np.linspace(9.0, -5.0, POINTS)),
    ),
    "a run that slows down": ("slows_down", lambda: healthy(clock=slowing())),
}  # fmt: skip


class TestPlanted:
    @pytest.mark.parametrize("what", PLANTED)
    def test_it_is_found(self, what: str) -> None:
        name, make = PLANTED[what]
        assert name in alarms(make())

    def test_every_rule_has_a_planted_failure(self) -> None:
        only_infos = {"always_truncated", "bottleneck"}
        names = {rule.__name__ for rule in RULES}
        assert names - {name for name, _ in PLANTED.values()} == only_infos

    def test_a_finding_says_what_where_why_and_what_next(self) -> None:
        for name, make in PLANTED.values():
            one = found(make())[name]
            assert one.evidence and one.cause.endswith((".", ")")) and one.step.endswith(".")
            assert set(one.to_dict()) >= {"name", "severity", "evidence", "cause", "command"}
        spike = found(PLANTED["one step that is far too long"][1]())["kl_spikes"]
        assert (spike.metric, spike.at, spike.value) == ("train/approx_kl", 20_000, 4.0)
        assert "train/approx_kl is 4.00 at env_steps=20,000" in spike.evidence
        assert spike.command == ("assay train --config runs/x/config.yaml target_kl=0.03 lr=3e-05")

    def test_commands_are_commands(self) -> None:
        group = typer.main.get_command(app)
        seen = set()
        for name, make in PLANTED.values():
            command = found(make())[name].command
            if command is None:
                continue
            words = shlex.split(command)[1:]
            context = typer.Context(group, info_name="assay")
            inner: Any = group
            while isinstance(inner, TyperGroup):
                _, inner, words = inner.resolve_command(context, words)
            inner.make_context(inner.name, list(words), parent=context)
            seen.add(inner.name)
            settings = [word for word in words if re.fullmatch(r"\w+=[\w.:+-]+", word)]
            known = registry.get("ppo").Hyperparameters.model_fields.keys()
            known |= registry.get("dqn").Hyperparameters.model_fields.keys()
            known |= registry.get("sac").Hyperparameters.model_fields.keys()
            known |= OnlineSettings.model_fields.keys() | {"critic_lr"}
            assert {word.partition("=")[0] for word in settings} <= known, command
        assert {"train", "evaluate", "check", "resume", "show", "suite"} <= seen

    def test_infos(self) -> None:
        truncated = healthy(evaluations=terminated(False), threshold=None)
        assert found(truncated)["always_truncated"].severity == "info"
        assert "always_truncated" not in found(healthy(evaluations=terminated(True)))
        slow = found(healthy(time__evaluation_share=np.full(POINTS, 0.8),
                             time__update_share=np.full(POINTS, 0.1)))["bottleneck"]  # fmt: skip
        assert "80% of the time goes to evaluations" in slow.evidence
        assert slow.command is not None and "eval_episodes=5" in slow.command
        stopped = found(healthy(status="interrupted", total=50_000))["failed"]
        assert stopped.severity == "info" and stopped.command == "assay resume runs/x"

    def test_rivals_that_learn_from_their_own_rewards_are_no_alarm(self) -> None:
        assert "rivals" in found(rivals(algorithm="ippo"))
        assert alarms(rivals(algorithm="ippo")) == []
        assert alarms(rivals(algorithm="mappo", settings=settings(reward="team"))) == ["rivals"]


class TestHealthy:
    def test_no_rule_alarms(self) -> None:
        assert alarms(healthy()) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"train__entropy": 0.69 * 0.3 ** np.arange(POINTS)},  # a solved task is deterministic
            {"settings": settings(lr="linear:0.003:0")},
            {"settings": settings(gamma=0.2)},  # it learns all the same
            {"probe": None},
            {"probe": probed(seen=None, distance=None, size=900.0)},
            {"rollout__return_mean": RISING - 1300, "eval__return_mean": RISING - 1290,
             "rollout__length_mean": np.full(POINTS, 200.0), "threshold": None},
            {"eval__success_rate": np.linspace(0.0, 1.0, POINTS)},
            {"settings": settings(normalize_reward=True), "train__q_mean": seen_late(1e4, 5)},
            {"settings": settings(learning_starts=100, batch_size=64)},
            {"clock": None},
            {"train__alpha": np.linspace(1.0, 0.1, POINTS)},
        ],
    )  # fmt: skip
    def test_nor_on_what_only_looks_odd(self, change: dict[str, Any]) -> None:
        assert alarms(healthy(**change)) == []

    def test_a_run_without_anything_is_not_judged(self) -> None:
        assert examine(Case(Path("x"), "assay", {})).findings == ()

    def test_a_solved_environment_is_no_plateau(self) -> None:
        flat = np.full(POINTS, 500.0)
        assert alarms(healthy(rollout__return_mean=flat, eval__return_mean=flat)) == []


class TestSeeds:
    def seeds(self, *ends: float) -> list[Finding]:
        cases = [
            healthy(eval__return_mean=np.linspace(20.0, end, POINTS), threshold=None)
            for end in ends
        ]
        return _across_seeds(cases)

    def test_seeds_that_fail_are_found(self) -> None:
        (one,) = self.seeds(480.0, 470.0, 25.0)
        assert one.name == "seed_variance" and "1 reached less than a third" in one.evidence

    def test_seeds_that_agree_are_not(self) -> None:
        assert self.seeds(480.0, 400.0, 350.0) == []
        assert self.seeds(480.0, 25.0) == []  # two seeds say nothing
        assert self.seeds(21.0, 20.0, 20.5) == []  # none learns: that is another finding


def test_rules_describe_themselves() -> None:
    texts = dict(describe(rule) for rule in RULES)
    assert len(texts) == len(RULES)
    assert all(text[0].isupper() and not text.endswith(".") for text in texts.values())
