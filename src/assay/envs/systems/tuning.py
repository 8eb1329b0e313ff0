"""`assay/CompactionRate-v0`: how much of a store's disk may background work take, right now?

A log-structured store (LSM tree) takes writes at once and pays later: what was written has to be
merged in the background (compaction). The knob is the rate limit of that work. Too little, and
debt grows: reads have to look into more files, and at last writes are slowed down and stopped. Too
much at a busy time, and reads and writes wait behind the background work now. What was merged
helps only when the merge is complete, half an hour later.

This is a fluid model in intervals of three minutes; an episode is a day from midnight. The disk's
bandwidth is 1, work is measured in disk intervals:

* reads and writes follow the time of day (busy around the afternoon, at an hour and to a degree
  that differ from day to day), with noise, crowds of readers and bulk loads of writes;
* every unit that is written leaves `AMPLIFICATION` units of debt; every unit of debt makes all
  reads dearer by 1 / `READ_SCALE`;
* background work runs at a rate that follows the knob with inertia, as running merges go on; it
  takes its share of the disk at once, and pays the debt off `LAG` intervals later;
* the foreground's utilisation is rho = demand / (1 - background). Requests are slowed down by
  1 / (1 - rho), and beyond rho = 0.9 along the tangent there, for requests that time out;
* between `SLOW` and `STOP` units of debt writes are throttled, which adds to the cost as the
  square of the way between them; what is throttled is written when there is room.

The reward is minus the cost, (slowdown - 1 + throttling) / 10. The agent sees measurements, not
the state: see `CompactionRate`.

What is simple here and not in a real store: levels and files are one number, all debt is equally
worth paying, merges do not compete for processors, and requests do not queue from one interval to
the next.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from assay.core.errors import EnvError
from assay.core.types import State

Split = Literal["train", "test"]
STEPS = 480  # intervals of three minutes in a day
AMPLIFICATION = 4.0
MOST_BACKGROUND = 0.6  # of the disk, at knob 1
INERTIA = 0.7  # how much of the background rate stays from interval to interval
LAG = 10
READ_SCALE = 60.0
SLOW, STOP = 25.0, 50.0
THROTTLE_COST = 10.0
KNEE = 0.9  # utilisation beyond which the slowdown goes on along its tangent
HOUR = STEPS / 24


class Day:
    """The load of one day: what readers ask for and writers bring in every interval.

    Args:
        rng: Draws the day.

    Attributes:
        reads: Demand of reads on a store without debt, as a share of the disk [STEPS].
        writes: Share of the disk that writes take [STEPS].
        debt: Debt at midnight.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        hour = np.arange(STEPS) / HOUR
        peak, width = rng.normal(15.0, 1.5), rng.uniform(3.5, 5.0)
        away = (hour - peak + 12.0) % 24.0 - 12.0
        busy = np.exp(-0.5 * (away / width) ** 2)
        reads = rng.uniform(0.12, 0.2) + rng.uniform(0.18, 0.28) * busy
        writes = rng.uniform(0.02, 0.035) + rng.uniform(0.035, 0.06) * busy
        reads = reads * _noise(rng, 0.06) * _bursts(rng, 3.0, 12.0, 1.3)
        writes = writes * _noise(rng, 0.15) * _bursts(rng, 3.0, 10.0, 2.5)
        self.reads: list[float] = reads.tolist()
        self.writes: list[float] = writes.tolist()
        self.debt = float(rng.uniform(0.0, 15.0))


class Store:
    """The state of the store and what happens in an interval.

    Args:
        day: The load.

    Attributes:
        t: Intervals that have passed.
        debt: Background work to be done, with what is being merged.
        rate: Share of the disk that background work may take now.
        background: What it took in the last interval.
        held: Writes that were throttled and wait.
        rho: The foreground's utilisation in the last interval.
    """

    def __init__(self, day: Day) -> None:
        self.day = day
        self.t = 0
        self.debt = day.debt
        self.rate = 0.0
        self.background = 0.0
        self.held = 0.0
        self.rho = 0.0
        self.merging: deque[float] = deque([0.0] * LAG, LAG)

    def step(self, knob: float) -> float:
        """Pass an interval with the knob at a value from 0 to 1 and return its cost."""
        reads, offered = self.day.reads[self.t], self.day.writes[self.t] + self.held
        target = MOST_BACKGROUND * min(max(knob, 0.0), 1.0)
        self.rate = INERTIA * self.rate + (1.0 - INERTIA) * target
        self.background = min(self.rate, max(self.debt - sum(self.merging), 0.0))
        throttle = min(max((self.debt - SLOW) / (STOP - SLOW), 0.0), 1.0)
        writes = offered * (1.0 - throttle)
        self.held = offered - writes
        demand = reads * (1.0 + self.debt / READ_SCALE) + writes
        self.rho = demand / (1.0 - self.background)
        self.debt += AMPLIFICATION * writes - self.merging[0]
        self.merging.append(self.background)
        self.t += 1
        return slowdown(self.rho) - 1.0 + THROTTLE_COST * throttle**2


def slowdown(rho: float) -> float:
    """Return by how much requests are slowed down at a utilisation.

    Example:
        >>> [round(slowdown(rho), 6) for rho in (0.0, 0.5, 0.9, 1.0)]
        [1.0, 2.0, 10.0, 20.0]
    """
    if rho <= KNEE:
        return 1.0 / (1.0 - rho)
    return 1.0 / (1.0 - KNEE) + (rho - KNEE) / (1.0 - KNEE) ** 2


class CompactionRate(gym.Env[np.ndarray, np.ndarray]):
    """Set the rate limit of a store's background work; see the module for the model.

    Observation: what an operator's dashboard shows of the last interval, with noise, scaled to
    the order of 1: throughput of reads and of writes, their averages over the last hour or so,
    the logarithm of the slowdown, the debt as estimated (off by some percent, and with what is
    being merged counted in), background work done, the knob's last value, the time of day (sine
    and cosine), and the work under way. Hidden are the true debt, when the merges will be
    complete, how busy the day will be, whether a burst goes on, and throttled writes.

    Action: a number from -1 to 1, which puts the knob between its ends, 0 and 1. (Policies begin in
    the middle of a symmetric range; in that of the knob, a Gaussian one would begin at its end.)

    Args:
        split: "train" or "test", which have no day in common.

    Raises:
        EnvError: The split is unknown.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (typed so by Gymnasium)

    def __init__(self, split: Split = "train") -> None:
        self.split = _known(split)
        self.observation_space = Box(-2.0, 10.0, (11,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._seed = 0
        self._begin()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a day that the seed chooses."""
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(2**62))
        self._begin()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Set the knob for an interval."""
        if self.store.t >= STEPS:
            raise EnvError("The episode is over.", "Call reset() before the next step.")
        value = float(np.asarray(action).reshape(-1)[0])
        if not math.isfinite(value):
            raise EnvError(f"The action is {value}; a number from -1 to 1 was expected.")
        self._knob = min(max((value + 1.0) / 2.0, 0.0), 1.0)
        cost = self.store.step(self._knob)
        self._slowed = math.log1p(cost)
        obs = self._observe()
        # A day ends because the clock says so, not because the store is done.
        return obs, -cost / 10.0, False, self.store.t >= STEPS, {}

    def get_state(self) -> State:
        """Return all that the next steps depend on."""
        store = self.store
        return {
            "seed": self._seed,
            "t": store.t,
            "store": np.array([store.debt, store.rate, store.background, store.held, store.rho]),
            "seen": np.array([self._knob, self._slowed, self._mean_reads, self._mean_writes]),
            "merging": np.array(store.merging),
        }

    def set_state(self, state: State) -> None:
        """Go on from what `get_state` returned."""
        self._seed = int(state["seed"])
        self._begin()
        store = self.store
        store.t = int(state["t"])
        store.debt, store.rate, store.background, store.held, store.rho = state["store"].tolist()
        self._knob, self._slowed, self._mean_reads, self._mean_writes = state["seen"].tolist()
        store.merging = deque(state["merging"].tolist(), LAG)

    def _begin(self) -> None:
        day_rng, noise_rng = day_streams(self.split, self._seed)
        self.store = Store(Day(day_rng))
        # Measurements are off by this much, drawn for the whole day so that the state stays small.
        self._noise: list[list[float]] = (
            1.0 + 0.1 * noise_rng.standard_normal((STEPS + 1, 4))
        ).tolist()
        self._knob = self._slowed = 0.0
        self._mean_reads = self._mean_writes = 0.0

    def _observe(self) -> np.ndarray:
        store, t = self.store, self.store.t
        noise = self._noise[t]
        last = max(t - 1, 0)
        reads = store.day.reads[last] * (1.0 + 0.3 * (noise[0] - 1.0))
        writes = store.day.writes[last] * noise[1]
        keep = 0.0 if t == 0 else 0.95
        self._mean_reads = keep * self._mean_reads + (1.0 - keep) * reads
        self._mean_writes = keep * self._mean_writes + (1.0 - keep) * writes
        angle = 2 * math.pi * t / STEPS
        values = (
            2.0 * reads,
            10.0 * writes,
            2.0 * self._mean_reads,
            10.0 * self._mean_writes,
            self._slowed * noise[2],
            store.debt * (1.0 + 0.3 * (noise[3] - 1.0)) / SLOW,
            store.background / MOST_BACKGROUND,
            self._knob,
            math.sin(angle),
            math.cos(angle),
            sum(store.merging) / (LAG * MOST_BACKGROUND),
        )
        return np.clip(np.array(values, np.float32), -2.0, 10.0)


def day_streams(split: Split, seed: int) -> list[np.random.Generator]:
    """Return the generators of a day's load and of its measurement noise."""
    root = np.random.SeedSequence([seed, ("train", "test").index(split)])
    return [np.random.default_rng(part) for part in root.spawn(2)]


def _known(split: Split) -> Split:
    if split not in ("train", "test"):
        raise EnvError(f"split is {split!r}; 'train' or 'test' was expected.")
    return split


def _noise(rng: np.random.Generator, deviation: float) -> np.ndarray:
    """Return factors around 1 that wander: an autoregressive process with a memory of an hour."""
    keep = 0.95
    steps = rng.standard_normal(STEPS) * deviation * math.sqrt(1.0 - keep**2)
    levels = itertools.accumulate(steps, lambda level, step: keep * level + step)
    return np.exp(np.fromiter(levels, float, STEPS))


def _bursts(rng: np.random.Generator, per_day: float, length: float, factor: float) -> np.ndarray:
    """Return factors that are `factor` during bursts and 1 otherwise."""
    factors = np.ones(STEPS)
    for start in rng.integers(0, STEPS, rng.poisson(per_day)):
        factors[start : start + 1 + rng.poisson(length)] = factor
    return factors


# ------------------------------------------------------------------ rules, by what the agent sees

_DEBT, _SIN, _COS = 5, 8, 9  # where the observation has them
Controller = Callable[[np.ndarray], float]  # observation -> knob; made anew for every day


def constant(knob: float) -> Controller:
    """Leave the knob where it is."""
    return lambda obs: knob


def threshold(low: float, high: float, calm: float, busy: float) -> Controller:
    """Turn the knob to `busy` when the debt exceeds `high`, and to `calm` when it is below `low`.

    Args:
        low: In units of `SLOW`, like the observation.
        high: The same.
        calm: The knob at first, and when there is little debt.
        busy: The knob when there is much.
    """
    knob = calm

    def control(obs: np.ndarray) -> float:
        nonlocal knob
        if obs[_DEBT] > high:
            knob = busy
        elif obs[_DEBT] < low:
            knob = calm
        return knob

    return control


def proportional_integral(
    setpoint: float, gain: float, integral_gain: float, bias: float
) -> Controller:
    """Hold the debt at a set point.

    Args:
        setpoint: The debt aimed at, in units of `SLOW`.
        gain: Knob per unit of error.
        integral_gain: Knob per unit of summed error; the sum stops where the knob is at its end.
        bias: The knob where there is no error.
    """
    total = 0.0

    def control(obs: np.ndarray) -> float:
        nonlocal total
        error = float(obs[_DEBT]) - setpoint
        wanted = bias + gain * error + integral_gain * (total + error)
        knob = min(max(wanted, 0.0), 1.0)
        if knob == wanted or (wanted > knob) != (error > 0.0):
            total += error
        return knob

    return control


def timetable(begin: float, end: float, busy: float, quiet: float, alarm: float) -> Controller:
    """Set the knob by the hour, and to 1 when the debt exceeds an alarm.

    Args:
        begin: First hour of the busy time of day.
        end: Its last.
        busy: The knob in this time.
        quiet: The knob at other times.
        alarm: In units of `SLOW`.
    """

    def control(obs: np.ndarray) -> float:
        hour = math.atan2(float(obs[_SIN]), float(obs[_COS])) / (2 * math.pi) * 24 % 24
        if obs[_DEBT] > alarm:
            return 1.0
        return busy if begin <= hour < end else quiet

    return control


Settings = tuple[float, ...]
RULES: dict[str, tuple[Callable[..., Controller], tuple[tuple[float, float], ...]]] = {
    "constant": (constant, ((0.0, 1.0),)),
    "threshold": (threshold, ((0.0, 1.0), (0.1, 1.6), (0.0, 0.6), (0.2, 1.0))),
    "PI": (proportional_integral, ((0.0, 1.2), (0.0, 0.5), (0.0, 0.005), (0.2, 0.6))),
    "timetable": (timetable, ((7.0, 14.0), (14.0, 24.0), (0.0, 0.6), (0.2, 1.0), (0.3, 1.5))),
}


def judge(make: Callable[[], Controller], seeds: Iterable[int], split: Split) -> np.ndarray:
    """Return the returns of a controller on the days that these seeds choose.

    Example:
        >>> returns = judge(lambda: constant(0.4), range(3), "test")
        >>> returns.shape
        (3,)
    """
    env, returns = CompactionRate(split), []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        control, total, over = make(), 0.0, False
        while not over:
            obs, reward, _, over, _ = env.step(2.0 * control(obs) - 1.0)
            total += reward
        returns.append(total)
    return np.array(returns)


def tune(name: str, *, trials: int = 200, days: int = 20, seed: int = 0) -> Settings:
    """Search for the best settings of a rule on days of the training split.

    Half of the trials are drawn from the rule's whole range; the others vary the best ones so
    far, by less and less. Every trial sees the same days.

    Args:
        name: One of `RULES`.
        trials: How many settings are tried.
        days: On how many days each.
        seed: Of the search.
    """
    rule, ranges = RULES[name]
    low, high = np.array(ranges).T
    rng = np.random.default_rng(seed)
    best, best_return = low, -math.inf
    for trial in range(trials):
        if trial < trials // 2:
            values = rng.uniform(low, high)
        else:
            width = 0.3 * (trials - trial) / trials * (high - low)
            values = np.clip(best + rng.standard_normal(len(low)) * width, low, high)
        mean = float(judge(lambda v=values: rule(*v), range(days), "train").mean())  # type: ignore[misc]
        if mean > best_return:
            best, best_return = values, mean
    return tuple(best.tolist())
