"""Runs under attack, for `assay test attack`: what each attack costs against its budget.

| attack | what it does | its control |
|---|---|---|
| `random` | moves every number by the whole budget, up or down by chance | |
| `fgsm`, `pgd` | moves observations against the run's choice, by its gradient | `random` |
| `adversary` | is trained to move observations, at the largest budget | `random` |
| `timed` | `pgd` at the largest budget, only where most is at stake | `timed_random` |
| `action` | turns a share of the actions into the worst ones | `action_random` |
| `reward` | trains the run again, with the wrong sign on a share of the rewards | the run itself |

A budget of 0.1 moves a number by at most a tenth of its standard deviation over undisturbed
episodes. The values of `timed`, `action` and `reward` are shares of moments, actions and rewards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from assay.agents import load
from assay.api import train
from assay.core.errors import ConfigError, nearest, require_counts
from assay.evaluation.evaluate import Agent as Acting
from assay.evaluation.formatting import bounds, markdown_table
from assay.evaluation.statistics import Interval, t_interval
from assay.loops.run_settings import OnlineSettings
from assay.robustness.acting import (
    Other,
    Overruled,
    Urgent,
    When,
    anything,
    by_chance,
    timed,
    worst,
)
from assay.robustness.adversary import learned, train_adversary
from assay.robustness.bounds import Certifier
from assay.robustness.disturbed import Misled, corners
from assay.robustness.gradients import GradientAttack, GradientPath, stacked
from assay.robustness.measure import (
    LEVEL,
    TOLERANCE,
    Played,
    Point,
    Verdict,
    check_tolerance,
    judge,
    value_text,
)
from assay.robustness.stage import Progress, Stage

ON_SIGHT = ("random", "fgsm", "pgd", "adversary")
CONTROLLED = {"timed": "timed_random", "action": "action_random"}
REWARD = "reward"
ATTACKS = (*ON_SIGHT, *CONTROLLED, REWARD)
DEFAULT = ("random", "fgsm", "pgd", "timed", "action")
BUDGETS = (0.1, 0.3, 1.0, 2.0)
SHARES = (0.1, 0.25, 0.5)
PANELS = {
    "observations, by budget": ON_SIGHT,
    "moments, by share": ("timed", CONTROLLED["timed"]),
    "actions, by share": ("action", CONTROLLED["action"]),
    "rewards, by share": (REWARD,),
}
_STATES = 256  # that are certified


@dataclass(frozen=True, slots=True)
class Plan:
    """Which attacks are made.

    Attributes:
        attacks: Their names.
        budgets: Of those that move observations.
        shares: Of moments, actions and rewards.
        steps: Of PGD.
        adversary_steps: Environment steps that an adversary learns for.

    Raises:
        ConfigError: An attack is unknown (the nearest is named), or a number is out of range.
    """

    attacks: tuple[str, ...] = DEFAULT
    budgets: tuple[float, ...] = BUDGETS
    shares: tuple[float, ...] = SHARES
    steps: int = 10
    adversary_steps: int = 100_000

    def __post_init__(self) -> None:
        """Check it."""
        if not self.attacks:
            raise ConfigError("No attack is named.", f"Known: {', '.join(ATTACKS)}.")
        for name in self.attacks:
            if name not in ATTACKS:
                raise ConfigError(f"There is no attack '{name}'.", nearest(name, ATTACKS))
        if not self.budgets or not all(0 < b < np.inf for b in self.budgets):
            raise ConfigError(f"budgets={list(self.budgets)}: expected numbers above 0.")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ConfigError(f"shares={list(self.shares)}: expected numbers above 0, at most 1.")
        require_counts(steps=self.steps, adversary_steps=self.adversary_steps)

    def points(self) -> list[Point]:
        """Return the cells."""
        points = []
        for name in self.attacks:
            if name in ON_SIGHT:
                points += [Point(name, budget) for budget in self.budgets]
            else:
                axes = (name, CONTROLLED[name]) if name in CONTROLLED else (name,)
                points += [Point(axis, share) for axis in axes for share in self.shares]
        return points


@dataclass(frozen=True, slots=True)
class Attacked:
    """What attacks did to runs.

    Attributes:
        verdict: The loss under each.
        beyond: How much more each attack costs than its control, by point.
        certified: Bounds by budget, of the first run; None with `uncertified`, the reason.
    """

    verdict: Verdict
    beyond: dict[Point, Interval]
    certified: dict[float, dict[str, float]] | None
    uncertified: str | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return self.verdict.to_json() | {
            "beyond_control": [
                {"axis": point.axis, "value": point.value, "loss": one.point,
                 "low": one.low, "high": one.high}
                for point, one in self.beyond.items()
            ],
            "certified": None if self.certified is None else [
                {"budget": budget, **figures} for budget, figures in self.certified.items()
            ],
            "uncertified": self.uncertified,
        }  # fmt: skip


def measure_attacks(
    paths: Sequence[Path],
    plan: Plan,
    *,
    episodes: int = 50,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    floor: float | None = None,
    place: Path | None = None,
    progress: Progress | None = None,
) -> Attacked:
    """Attack runs, in the same episodes as without an attack.

    Args:
        paths: Runs that differ in their seed, or one.
        plan: Which attacks.
        episodes: Of each run in each cell.
        seed: Fixes the episodes, and what is drawn.
        tolerance: The largest loss that is accepted.
        floor: The return that counts as nothing; by default that of random actions.
        place: Where runs that attacks train are kept; by default nowhere.
        progress: Told how many cells are done.

    Raises:
        AssayError: A run cannot be attacked; a policy without gradients is refused with the reason.
    """
    check_tolerance(tolerance)
    points = plan.points()
    played: list[Played] = []
    certified, why = None, None
    for number, path in enumerate(paths):
        attacker = _Attacker(Stage(path, episodes=episodes, seed=seed, floor=floor), plan)
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch) if place is None else place / f"runs/{number + 1}"
            cells = []
            for index, point in enumerate(points):
                cells.append(attacker.play(point, root))
                if progress is not None:
                    progress(number * len(points) + index + 1, len(paths) * len(points))
        played.append(attacker.stage.played(cells))
        if number == 0:
            certified, why = attacker.certify()
    verdict = judge(points, played, tolerance)
    return Attacked(verdict, _beyond(points, played), certified, why)


class _Attacker:
    """Makes the attacks of a plan on one run."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.stage, self.plan = stage, plan
        self.room = stage.watched.room()
        self._path: GradientPath | None = None
        self._adversary: Acting | None = None
        by_gradient = {"fgsm", "pgd", "timed"}
        if not isinstance(stage.spaces.action, gym.spaces.Box):
            by_gradient.add("action")  # by preferences
        if by_gradient.intersection(plan.attacks):
            self._path = self._make_path()
        if REWARD in plan.attacks and not isinstance(stage.config.run, OnlineSettings):
            raise ConfigError(
                f"The run '{stage.path}' did not collect its data: its rewards are recorded.",
                f"Leave out the attack {REWARD}.",
            )

    def _make_path(self) -> GradientPath:
        return GradientPath(self.stage.policy, self.room, self.stage.watched.states)

    @property
    def path(self) -> GradientPath:
        assert self._path is not None
        return self._path

    def play(self, point: Point, root: Path) -> np.ndarray[Any, Any]:
        """Return the returns of the episodes under an attack."""
        agent = self._agent(point, root)
        with self.stage.undisturbed() as vector:
            return self.stage.play(agent, vector).returns

    def _agent(self, point: Point, root: Path) -> Acting:
        stage, name, value = self.stage, point.axis, float(point.value)
        rng, space = stage.rng(str(point)), stage.spaces.action
        if name == "random":
            return Misled(stage.policy, partial(corners, self.room, value, rng))
        if name in ("fgsm", "pgd"):
            steps = 1 if name == "fgsm" else self.plan.steps
            return Misled(stage.policy, GradientAttack(self.path, value, steps, rng))
        if name == "adversary":
            return Misled(stage.policy, partial(learned, self._trained(root), self.room, value))
        if name == REWARD:
            return self._retrained(value, root)
        if name in ("timed", "timed_random"):
            attack = GradientAttack(self.path, max(self.plan.budgets), self.plan.steps, rng)
            when: When = partial(by_chance, value, stage.rng(name, "when"))
            if name == "timed":
                when = Urgent(self.path, stage.watched.states, value)
            return Misled(stage.policy, partial(timed, attack, when))
        other: Other = partial(anything, space, rng)
        if name == "action":
            other = partial(worst, space, self._path)
        return Overruled(stage.policy, space, other, value, stage.rng(str(point), "chance"))

    def _trained(self, root: Path) -> Acting:
        if self._adversary is None:
            stage = self.stage
            with stage.undisturbed() as vector:
                self._adversary = train_adversary(
                    vector,
                    stage.policy,
                    self.room,
                    max(self.plan.budgets),
                    env_steps=self.plan.adversary_steps,
                    seed=stage.seed,
                    root=root,
                )
        return self._adversary

    def _retrained(self, share: float, root: Path) -> Acting:
        config = self.stage.config
        run = train(
            config.algorithm,
            config.env,
            name=f"reward-{share:g}",
            root=root,
            config=config.to_dict(),
            preset=False,
            wrappers=[*config.run.wrappers, {"flip_reward": share}],
            eval_every=0,
            checkpoint_every=0,
            sinks=(),
        )
        return load(run.path).policy

    def certify(self) -> tuple[dict[float, dict[str, float]] | None, str | None]:
        """Return what no attack can do, by budget, beside what PGD does in the same states."""
        try:
            path = self._path or self._make_path()
            certifier = Certifier(path)
        except ConfigError as error:
            return None, error.message
        states = self.stage.watched.states
        chosen = self.stage.rng("certify").permutation(len(states))[:_STATES]
        obs, _ = stacked([states[i] for i in chosen])
        found = {}
        for budget in self.plan.budgets:
            attack = GradientAttack(path, budget, self.plan.steps, self.stage.rng("certify", "pgd"))
            before, after = (
                np.asarray(self.stage.policy.act(seen).action) for seen in (obs, attack(obs, None))
            )
            found[budget] = certifier.figures(obs, budget, before, after)
        return found, None


def _beyond(points: Sequence[Point], played: Sequence[Played]) -> dict[Point, Interval]:
    """Return how much more attacks cost than their controls, paired by episode or by run."""
    controls = {"fgsm": "random", "pgd": "random", "adversary": "random", **CONTROLLED}
    found = {}
    for index, point in enumerate(points):
        control = Point(controls.get(point.axis, ""), point.value)
        if control not in points:
            continue
        other = points.index(control)
        more = [one.losses(index) - one.losses(other) for one in played]
        values = more[0] if len(more) == 1 else np.array([each.mean() for each in more])
        found[point] = t_interval(values, LEVEL)
    return found


# What a report says besides losses: attacks against their controls, and bounds.
_CHOICES = {
    "certified_share": "certified",
    "attacked_share": "changed by PGD",
    "mean_gap_bound": "mean lower bound of the gap",
}
_BOX = {"attacked_move": "moved by PGD", "largest_move_bound": "certified to move by at most"}


class Part(NamedTuple):
    """A part of the report: its title, a sentence, and a table, which may be empty."""

    title: str
    text: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def parts(result: Attacked) -> list[Part]:
    """Return what is said besides losses."""
    found = []
    if result.beyond:
        text = f"What an attack costs beyond its control of the same size, each at {LEVEL:.0%}:"
        rows = tuple(
            (point.axis, value_text(point.value), CONTROLLED.get(point.axis, "random"),
             f"{more.point:+.0%}", bounds(more, places=2), _word(more.low, more.high))
            for point, more in result.beyond.items()
        )  # fmt: skip
        head = ("attack", "value", "control", "more loss", "interval", "verdict")
        found.append(Part("Beyond chance", text, head, rows))
    return [*found, _certified(result)]


def sections(result: Attacked) -> list[str]:
    """Return the same as lines of Markdown."""
    lines = []
    for part in parts(result):
        lines += [f"## {part.title}", "", part.text, ""]
        if part.rows:
            lines += [*markdown_table(part.head, part.rows), ""]
    return lines


def _certified(result: Attacked) -> Part:
    if result.certified is None:
        return Part("Certified", f"Nothing is certified: {result.uncertified}")
    choices = "certified_share" in next(iter(result.certified.values()))
    names = _CHOICES if choices else _BOX
    text = (
        "Shares of the states of undisturbed episodes in which no attack within the budget can "
        "change the choice, and in which PGD does:"
        if choices
        else "How far the farthest action moves on average over states of undisturbed episodes, in "
        "units of half its range: by PGD, and by any attack at most:"
    )
    rows = tuple(
        (value_text(budget), *(_figure(name, figures[name]) for name in names))
        for budget, figures in result.certified.items()
    )
    return Part("Certified", text, ("budget", *names.values()), rows)


def _word(low: float, high: float) -> str:
    return "stronger" if low > 0 else "weaker" if high < 0 else "not shown"


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("_share") else f"{value:.3g}"
