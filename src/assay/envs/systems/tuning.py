"""`assay/CompactionRate-v0`: set the rate limit of a store's background work.

A log-structured store (LSM tree) takes writes immediately; what was written has to be merged in the
background later (compaction). The knob is the rate limit of that work. Too little, and
debt grows: reads have to look into more files, and at last writes are slowed down and stopped. Too
much at a busy time, and requests wait behind the background work now. What was merged helps only
when the merge is complete, half an hour later. So the work should be done in quiet hours, and the
debt paid before a busy one: a controller that only looks at the debt does most of the work just
after most was written, which is the worst time.

This is a fluid model in intervals of ten minutes; an episode is a day from midnight. The disk's
bandwidth is 1, work is measured in disk intervals:

* reads and writes follow the time of day (quiet at night, busy around an hour of the afternoon,
  both to a degree that differs from day to day), with noise and bursts of reads;
* bulk loads of writes come at any time. They wait upstream before, where they can be seen:
  `NOTICE` intervals ahead, as a message queue's backlog or a list of scheduled jobs shows them;
* every unit that is written leaves `AMPLIFICATION` units of debt; every unit of debt makes all
  reads more expensive by 1 / `READ_SCALE`;
* background work runs at a rate that follows the knob with inertia, as running merges continue; it
  takes its share of the disk immediately, and reduces the debt `LAG` intervals later;
* the foreground's utilisation is rho = demand / (1 - background). Requests are slowed down by
  1 / (1 - rho), and beyond rho = 0.8 along the tangent there, for requests that time out. What
  counts is how much slower they are than on a store without debt and without background work;
* between `SLOW` and `STOP` units of debt writes are throttled, which adds to the cost as the
  square of the way between them; what is throttled is written when there is room.

The reward is minus the cost, (slowdown - slowdown without debt and work + throttling) / 10. The
agent sees measurements, not the state: see `CompactionRate`.

What is simple here and not in a real store: levels and files are one number, all debt is equally
worth paying, merges do not compete for processors, and requests do not queue from one interval to
the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from assay.core.errors import EnvError
from assay.envs.native.base import NativeVectorEnv
from assay.envs.systems.splits import TRACE_SEEDS, Split, known
from assay.envs.tasks import Single

STEPS = 144  # intervals of ten minutes in a day
HOUR = STEPS / 24
AMPLIFICATION = 4.0
MOST_BACKGROUND = 0.6  # of the disk, at knob 1
INERTIA = 0.3  # how much of the background rate stays from interval to interval
LAG = 3
READ_SCALE = 40.0
SLOW, STOP = 9.0, 15.0
THROTTLE_COST = 10.0
KNEE = 0.8  # utilisation beyond which the slowdown continues along its tangent
NOTICE = 9  # how long before it begins a bulk load is seen

# Rows of the state of a store; the merges under way come behind, the oldest first.
_DAY, _T, DEBT, RATE, BACKGROUND, HELD, _KNOB, _SLOWED = range(8)
MERGING = slice(8, 8 + LAG)

# Columns of the observation, which the rules read.
READS, WRITES, READS_LATELY, WRITES_LATELY, READS_BEFORE, WRITES_BEFORE = range(6)
ANNOUNCED, SINE, COSINE, SLOWDOWN, SEEN_DEBT, WORK, KNOB, UNDER_WAY = range(6, 14)
_OUTSIDE = 9  # this many of them do not depend on the actions
_READ_UNIT, _WRITE_UNIT, _BULK_UNIT = 0.5, 0.1, 1.0  # scaled to 1 in the observation


@dataclass(frozen=True, slots=True)
class Day:
    """The load of one day and what is measured of it.

    Attributes:
        reads: Demand of reads on a store without debt, as a share of the disk [STEPS].
        writes: Share of the disk that writes take [STEPS].
        debt: Debt at midnight.
        seen: The observation's columns that do not depend on the knob [STEPS + 1, 9].
        error: Factors by which the measured slowdown and debt are off [STEPS + 1, 2].
    """

    reads: np.ndarray
    writes: np.ndarray
    debt: float
    seen: np.ndarray
    error: np.ndarray


@lru_cache(maxsize=512)
def draw_day(number: int) -> Day:
    """Return the day of a trace seed; the same seed gives the same day."""
    rng, noise = map(np.random.default_rng, np.random.SeedSequence(number).spawn(2))
    peak, width = rng.normal(15.0, 2.0), rng.uniform(2.0, 3.0)
    reads_at, writes_at = rng.uniform(0.08, 0.14), rng.uniform(0.015, 0.03)
    reads_up, writes_up = rng.uniform(0.35, 0.5), rng.uniform(0.03, 0.06)
    busy = _busy(peak, width)
    reads, writes = reads_at + reads_up * busy, writes_at + writes_up * busy
    wander = np.exp(_WANDER @ (rng.standard_normal((STEPS, 2)) * (0.06, 0.15)))
    crowds = np.ones(STEPS)
    for start in rng.integers(0, STEPS, rng.poisson(5.0)):
        crowds[start : start + 1 + rng.poisson(3.0)] = 1.4
    bulk = np.zeros(STEPS + NOTICE)
    for start in rng.integers(0, STEPS, rng.poisson(3.0)):
        bulk[start : start + rng.integers(3, 9)] += rng.uniform(0.08, 0.2)
    reads = reads * wander[:, 0] * crowds
    writes = writes * wander[:, 1] + bulk[:STEPS]
    debt = float(rng.uniform(0.0, 5.0))

    # The first measurement is that of the interval before midnight, which is like the one after.
    measured = np.stack([reads, writes], axis=1)[np.maximum(np.arange(STEPS + 1) - 1, 0)]
    measured = measured * (1.0 + noise.standard_normal((STEPS + 1, 2)) * (0.03, 0.1))
    lately, before = _LATELY @ measured, _BEFORE @ measured
    total = np.concatenate([[0.0], np.cumsum(bulk)])
    announced = total[NOTICE : NOTICE + STEPS + 1] - total[: STEPS + 1]
    angle = 2 * np.pi * np.arange(STEPS + 1) / STEPS
    units = (_READ_UNIT, _WRITE_UNIT)
    seen = np.column_stack(
        [measured / units, lately / units, before / units, announced / _BULK_UNIT,
         np.sin(angle), np.cos(angle)]
    )  # fmt: skip
    error = 1.0 + noise.standard_normal((STEPS + 1, 2)) * (0.1, 0.03)
    return Day(reads, writes, debt, seen.astype(np.float32), error)


def _busy(peak: float, width: float) -> np.ndarray:
    """Return how busy each interval of a day is, from 0 to 1, with a peak at an hour."""
    away = (np.arange(STEPS) / HOUR - peak + 12.0) % 24.0 - 12.0
    return np.exp(-0.5 * (away / width) ** 2)


def _memory(steps: int, keep: float) -> np.ndarray:
    """Return the matrix that sums a series with weights that fade into the past."""
    age = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(age >= 0, keep ** np.maximum(age, 0), 0.0)


def _average(keep: float) -> np.ndarray:
    """Return the matrix of an exponential average that begins with the first value."""
    matrix = (1.0 - keep) * _memory(STEPS + 1, keep)
    matrix[:, 0] /= 1.0 - keep
    return matrix


_WANDER = _memory(STEPS, 0.85) * math.sqrt(1.0 - 0.85**2)
_LATELY, _BEFORE = _average(0.5), _average(0.9)  # of some 20 minutes, and of 100


def interval(
    state: np.ndarray, reads: np.ndarray, writes: np.ndarray, knob: np.ndarray
) -> np.ndarray:
    """Simulate an interval in every store; return the cost of debt and background work [n].

    Args:
        state: `[8 + LAG, n]`; it is changed.
        reads: Demand of reads [n].
        writes: Demand of writes [n].
        knob: From 0 to 1 [n].
    """
    debt, merging = state[DEBT], state[MERGING]
    state[RATE] = INERTIA * state[RATE] + (1.0 - INERTIA) * MOST_BACKGROUND * knob
    state[BACKGROUND] = np.minimum(state[RATE], np.maximum(debt - merging.sum(axis=0), 0.0))
    throttle = np.clip((debt - SLOW) / (STOP - SLOW), 0.0, 1.0)
    offered = writes + state[HELD]
    written = offered * (1.0 - throttle)
    state[HELD] = offered - written
    rho = (reads * (1.0 + debt / READ_SCALE) + written) / (1.0 - state[BACKGROUND])
    debt += AMPLIFICATION * written - merging[0]
    merging[:-1] = merging[1:]
    merging[-1] = state[BACKGROUND]
    state[_T] += 1.0
    slow = slowdown(rho)
    state[_SLOWED] = np.log(slow)
    return slow - slowdown(reads + writes) + THROTTLE_COST * throttle**2


def slowdown(rho: np.ndarray) -> np.ndarray:
    """Return by how much requests are slowed down at a utilisation.

    Example:
        >>> slowdown(np.array([0.0, 0.5, 0.9, 1.0])).round(6).tolist()
        [1.0, 2.0, 7.5, 10.0]
    """
    beyond = np.maximum(rho - KNEE, 0.0)
    return 1.0 / (1.0 - np.minimum(rho, KNEE)) + beyond / (1.0 - KNEE) ** 2


class CompactionRate(NativeVectorEnv):
    """Set the rate limit of a store's background work; see the module for the model.

    Observation: what an operator's dashboard shows of the last interval, with noise, scaled to
    the order of 1: throughput of reads and of writes, their averages over the last 20 minutes
    and the last 100 or so, the bulk loads that wait upstream, the time of day (sine
    and cosine), the logarithm of the slowdown, the debt as estimated (off by some percent, and with
    what is being merged counted in), background work done, the knob's last value, and the work
    under way. Hidden are the true debt, when the merges will be complete, how busy the day will be,
    whether a burst continues, and throttled writes.

    Action: a number from -1 to 1, which is mapped to the knob's range, 0 to 1. (Policies start in
        the middle of a symmetric range; on the knob's own range, a Gaussian one would start at its
        end.)

    Args:
        num_envs: How many copies.
        max_episode_steps: Days are cut off here; at most, and by default, at midnight.
        split: "train" or "test", which have no day in common (see `splits`).

    Raises:
        EnvError: The split is unknown, or a day too long.
    """

    state_size = 8 + LAG
    start_low = 0.0
    start_high = 1.0
    start_draws = 1

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = STEPS, split: Split = "train"
    ) -> None:
        space = Box(-2.0, 10.0, (14,), np.float32)
        super().__init__(num_envs, max_episode_steps, space, Box(-1.0, 1.0, (1,), np.float32))
        if max_episode_steps > STEPS:
            raise EnvError(f"max_episode_steps is {max_episode_steps}; a day has {STEPS}.")
        self._scalar = False
        self.split = known(split)
        self._loads = np.zeros((num_envs, STEPS, 2))
        self._seen = np.zeros((num_envs, STEPS + 1, _OUTSIDE))
        self._error = np.zeros((num_envs, STEPS + 1, 2))
        self._rows = np.arange(num_envs)

    @property
    def days(self) -> list[int]:
        """Return the trace seed of every copy's present day."""
        return [int(number) for number in self._state[_DAY]]

    def _begin(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        traces = TRACE_SEEDS[self.split]
        numbers = traces.start + np.floor(draws[:, 0] * len(traces)).astype(np.int64)
        days = [draw_day(number) for number in numbers.tolist()]
        state = np.zeros((self.state_size, len(days)))
        state[_DAY], state[DEBT] = numbers, [day.debt for day in days]
        seen = np.array([day.seen[0] for day in days])
        return state.T, _observe(seen, np.array([day.error[0] for day in days]), state)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state = self._state
        state[_KNOB] = np.clip((self._continuous(actions)[:, 0] + 1.0) / 2.0, 0.0, 1.0)
        t = state[_T].astype(np.int64)
        reads, writes = self._loads[self._rows, t].T
        cost = interval(state, reads, writes, state[_KNOB])
        shown = _observe(self._seen[self._rows, t + 1], self._error[self._rows, t + 1], state)
        # A day ends by its time limit, not in a terminal state.
        return shown, -cost / 10.0, self._nowhere.copy()

    def _enter(self, states: np.ndarray, elapsed: np.ndarray) -> None:
        super()._enter(states, elapsed)
        self._look_up(self._rows)

    def _restart(self, rows: np.ndarray, observations: np.ndarray) -> None:
        # One start at a time: a day takes longer to draw than a number.
        draws = [self._rngs[row].uniform(0.0, 1.0, self.start_draws) for row in rows.tolist()]
        states, observations[rows] = self._begin(np.array(draws))
        self._state[:, rows] = states.T
        self._deadlines[rows] = self._clock + self.max_episode_steps
        self._look_up(rows)

    def _look_up(self, rows: np.ndarray) -> None:
        """Draw the days of some copies (again), which are not part of the state."""
        for row in rows.tolist():
            day = draw_day(int(self._state[_DAY, row]))
            self._loads[row, :, 0], self._loads[row, :, 1] = day.reads, day.writes
            self._seen[row], self._error[row] = day.seen, day.error


def _observe(seen: np.ndarray, error: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return the observation [n, 14]."""
    shown = np.empty((len(seen), 14), np.float32)
    shown[:, :_OUTSIDE] = seen
    shown[:, SLOWDOWN] = state[_SLOWED] * error[:, 0]
    shown[:, SEEN_DEBT] = state[DEBT] * error[:, 1] / SLOW
    shown[:, WORK] = state[BACKGROUND] / MOST_BACKGROUND
    shown[:, KNOB] = state[_KNOB]
    shown[:, UNDER_WAY] = state[MERGING].sum(axis=0) / (LAG * MOST_BACKGROUND)
    return np.clip(shown, -2.0, 10.0, out=shown)


def make_compaction_rate(split: Split = "train") -> Single:
    """Return one `CompactionRate`."""
    return Single(CompactionRate(1, split=split))


# ------------------------------------------------------------------ rules, by what the agent sees

# Observations [n, 14] -> knobs [n]; made again for every day; one may run many days at once.
Controller = Callable[[np.ndarray], np.ndarray]


def constant(knob: float) -> Controller:
    """Keep the knob at a value."""
    return lambda obs: np.full(len(obs), knob)


def threshold(low: float, high: float, calm: float, busy: float) -> Controller:
    """Turn the knob to `busy` when the debt exceeds `high`, and to `calm` when it is below `low`.

    Args:
        low: In units of `SLOW`, like the observation.
        high: The same.
        calm: The knob at first, and when there is little debt.
        busy: The knob when there is much.
    """
    knob: Any = calm

    def control(obs: np.ndarray) -> np.ndarray:
        nonlocal knob
        debt = obs[:, SEEN_DEBT]
        knob = np.where(debt > high, busy, np.where(debt < low, calm, knob))
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
    total: Any = 0.0

    def control(obs: np.ndarray) -> np.ndarray:
        nonlocal total
        error = obs[:, SEEN_DEBT].astype(np.float64) - setpoint
        wanted = bias + gain * error + integral_gain * (total + error)
        knob = np.clip(wanted, 0.0, 1.0)
        winds_up = (knob != wanted) & ((wanted > knob) == (error > 0.0))
        total = np.where(winds_up, total, total + error)
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

    def control(obs: np.ndarray) -> np.ndarray:
        angle = np.arctan2(obs[:, SINE], obs[:, COSINE])
        hour = angle / (2 * np.pi) * 24 % 24
        knob = np.where((begin <= hour) & (hour < end), busy, quiet)
        return np.where(obs[:, SEEN_DEBT] > alarm, 1.0, knob)

    return control


def headroom(
    target: float, gain: float, debt_gain: float, bulk_gain: float, alarm: float
) -> Controller:
    """Give background work what the requests of the last 20 minutes leave over.

    The idea of SILK (Balmau et al., USENIX ATC 2019). The share also follows the debt and the
    announced bulk loads, and the knob goes to 1 when the debt exceeds an alarm.

    Args:
        target: Share of the disk that requests and background work may take together.
        gain: Knob per share of the disk that is left over.
        debt_gain: Knob per unit of debt, in units of `SLOW`.
        bulk_gain: Knob per unit of bulk loads, as observed.
        alarm: In units of `SLOW`.
    """

    def control(obs: np.ndarray) -> np.ndarray:
        load = _READ_UNIT * obs[:, READS_LATELY] + _WRITE_UNIT * obs[:, WRITES_LATELY]
        debt = obs[:, SEEN_DEBT]
        knob = gain * (target - load) + debt_gain * debt + bulk_gain * obs[:, ANNOUNCED]
        return np.where(debt > alarm, 1.0, np.clip(knob, 0.0, 1.0))

    return control


Settings = tuple[float, ...]
RULES: dict[str, tuple[Callable[..., Controller], tuple[tuple[float, float], ...]]] = {
    "constant": (constant, ((0.0, 1.0),)),
    "threshold": (threshold, ((0.0, 1.0), (0.1, 1.6), (0.0, 0.6), (0.2, 1.0))),
    "PI": (proportional_integral, ((0.0, 2.0), (0.0, 1.0), (0.0, 0.02), (0.0, 1.2))),
    "timetable": (timetable, ((6.0, 14.0), (14.0, 24.0), (0.0, 0.6), (0.2, 1.0), (0.3, 2.5))),
    "headroom": (headroom, ((0.1, 0.9), (0.0, 5.0), (-0.2, 1.0), (-1.0, 1.0), (0.3, 2.5))),
}


def judge(
    make: Callable[[], Controller], seeds: Sequence[int] | np.ndarray, split: Split
) -> np.ndarray:
    """Return the returns of a controller on the days that these seeds of `reset` choose.

    Example:
        >>> returns = judge(lambda: constant(0.4), range(3), "train")
        >>> returns.shape
        (3,)
    """
    envs, control = CompactionRate(len(seeds), split=split), make()
    obs, _ = envs.reset(seed=[int(seed) for seed in seeds])
    total = np.zeros(len(seeds))
    for _ in range(STEPS):
        obs, rewards, *_ = envs.step(2.0 * control(obs)[:, None] - 1.0)
        total += rewards
    return total


def tune(name: str, *, trials: int = 600, days: int = 200, seed: int = 0) -> Settings:
    """Search for the best settings of a rule on days of the training split.

    A third of the trials are drawn from the rule's whole range; the others vary some of the best
    settings so far, by less and less. Every trial sees the same days.

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
    drawn = trials // 3
    for trial in range(trials):
        if trial < drawn:
            values = rng.uniform(low, high)
        else:
            width = 0.3 * 0.03 ** ((trial - drawn) / (trials - drawn)) * (high - low)
            some = rng.random(len(low)) < 0.6
            values = np.clip(best + rng.standard_normal(len(low)) * width * some, low, high)
        mean = float(judge(lambda v=values: rule(*v), range(days), "train").mean())  # type: ignore[misc]
        if mean > best_return:
            best, best_return = values, mean
    return tuple(best.tolist())
