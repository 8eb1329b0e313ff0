"""One report over many environments (`assay envs suite ID...`).

To the checks of one environment it adds what shows only in copies and over time: that copies do not
share anything, that all backends give the same episodes, what follows the end of an episode, what
seeds change, and whether memory grows.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import AssayError
from assay.core.types import ACTION_MASK, Tree
from assay.envs.checks import CheckResult, check_env
from assay.envs.make import BackendName, EnvLike, make_env, make_vector
from assay.envs.native import NATIVE
from assay.envs.vector import Vector

_COPIES = 3
_SEEDS = 8
_LEAK_ROUNDS = 4
_LEAK_BYTES = 1 << 20  # in every round but the first, and eight times that in all

Memory = Callable[[], int]


@dataclass(frozen=True, slots=True)
class EnvReport:
    """What was found about one environment.

    Attributes:
        env: Its id.
        results: Of all checks; the list ends early if the environment cannot be run.
        seconds: What they took.
    """

    env: str
    results: tuple[CheckResult, ...]
    seconds: float

    @property
    def failed(self) -> list[CheckResult]:
        """Return the checks that failed."""
        return [one for one in self.results if not one.ok]

    @property
    def advice(self) -> list[CheckResult]:
        """Return the checks that passed and suggest something."""
        return [one for one in self.results if one.ok and one.fix]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        checks = [asdict(one) for one in self.results]
        return {"env": self.env, "ok": not self.failed, "seconds": self.seconds, "checks": checks}


def check_suite(
    envs: Sequence[str],
    *,
    steps: int = 500,
    seed: int = 0,
    processes: bool = True,
    algorithms: Mapping[str, Sequence[str]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[EnvReport]:
    """Check environments one after the other, and yield what was found about each.

    Args:
        envs: Gymnasium ids.
        steps: Random actions for the checks of one environment; the others take less.
        seed: Seeds the environments and the actions.
        processes: Also step copies in processes of their own, and compare.
        algorithms: As for `check_env`.
        clock: Returns seconds.
    """
    for env in envs:
        began = clock()
        results = check_env(env, steps=steps, seed=seed, algorithms=algorithms, clock=clock)
        if all(one.ok for one in results if one.name in ("made", "spaces", "observations")) and (
            "runs" not in {one.name for one in results}
        ):
            results += check_copies(env, min(steps, 200), seed, processes=processes)
            results += [_seeding(env, seed), _memory(env, steps, seed)]
        yield EnvReport(env, tuple(results), clock() - began)


# ---------------------------------------------------------------------- copies and backends


@dataclass(slots=True)
class _Roll:
    """What copies of an environment did."""

    actions: list[Any]
    steps: list[tuple[Any, ...]]  # as `Vector.step` returns them
    first: Tree


def check_copies(
    env: EnvLike, steps: int, seed: int, *, processes: bool = True
) -> list[CheckResult]:
    """Check copies of an environment: that they are independent, and alike in all backends."""
    try:
        with make_vector(env, _COPIES, backend="sync") as several:
            roll = _roll(several, steps, seed)
        with make_vector(env, 1, backend="sync") as alone:
            single = _roll(alone, steps, seed, [action[:1] for action in roll.actions])
    except AssayError as error:
        return [CheckResult("copies", False, error.message, error.fix)]
    differs = _difference(_rows(roll, 1), single)
    results = [
        CheckResult("copies", True, f"one of {_COPIES} copies does what one alone does")
        if differs is None
        else CheckResult(
            "copies", False, f"one of {_COPIES} copies does not do what one alone does: {differs}",
            "Keep state in self, not in the class or the module; draw from self.np_random.",
        )
    ]  # fmt: skip
    results.append(_autoreset(roll))
    if processes:
        results.append(_same_in(env, "processes", roll, steps, seed))
    if isinstance(env, str) and env in NATIVE:
        results.append(_same_in(env, "native", roll, steps, seed))
    return results


def _roll(vector: Vector, steps: int, seed: int, actions: list[Any] | None = None) -> _Roll:
    space = vector.spaces.action
    space.seed(seed)
    obs = vector.reset(seed)
    made = _Roll([], [], obs)
    for t in range(steps):
        action = _sample(space, obs, vector.num_envs) if actions is None else actions[t]
        step = vector.step(action)
        made.actions.append(action)
        made.steps.append(step)
        obs = step[0]
    return made


def _sample(space: gym.Space[Any], obs: Tree, n: int) -> np.ndarray[Any, Any]:
    masks = obs.get(ACTION_MASK) if isinstance(obs, dict) else None
    if masks is not None and isinstance(space, gym.spaces.Discrete):
        rows = [space.sample(mask=np.asarray(mask, np.int8)) for mask in masks]
    else:
        rows = [space.sample() for _ in range(n)]
    return np.stack([np.asarray(row) for row in rows]).astype(space.dtype)


def _rows(roll: _Roll, n: int) -> _Roll:
    """Return what the first copies did."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part[:n] for key, part in value.items()}
        return None if value is None else value[:n]

    return _Roll(
        [action[:n] for action in roll.actions],
        [tuple(cut(part) for part in step) for step in roll.steps],
        cut(roll.first),
    )


def _difference(one: _Roll, two: _Roll) -> str | None:
    """Return where two rolls differ first, or None."""
    if not _equal(one.first, two.first):
        return "the first observations differ"
    names = ("observation", "reward", "terminated", "truncated")
    for t, (a, b) in enumerate(zip(one.steps, two.steps, strict=True), start=1):
        for name, x, y in zip(names, a, b, strict=False):
            if not _equal(x, y):
                return f"step {t} has another {name}"
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return set(a) == set(b) and all(_equal(a[key], b[key]) for key in a)
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _autoreset(roll: _Roll) -> CheckResult:
    ended = same = 0
    for obs, _, terminated, truncated, _, final in roll.steps:
        for row in np.flatnonzero(terminated | truncated):
            ended += 1
            if final is None:
                detail = "an episode ended without its last observation"
                return CheckResult("autoreset", False, detail, "Report this as a bug of Assay.")
            parts = obs if isinstance(obs, dict) else {"": obs}
            lasts = final if isinstance(final, dict) else {"": final}
            same += all(
                np.array_equal(parts[key][row], lasts[key][row])
                for key in parts
                if key != ACTION_MASK
            )
    if not ended:
        return CheckResult("autoreset", True, "no episode ended within the steps")
    if same == ended > 1:
        return CheckResult(
            "autoreset", False,
            f"all {ended} episodes begin with what the one before ended with",
            "Set the state of a new episode in reset().",
        )  # fmt: skip
    return CheckResult("autoreset", True, f"{ended} episodes ended, each followed by a new one")


def _same_in(env: EnvLike, backend: BackendName, roll: _Roll, steps: int, seed: int) -> CheckResult:
    """Check that another backend gives the same episodes."""
    try:
        workers = 2 if backend == "processes" else None
        with make_vector(env, _COPIES, backend=backend, workers=workers) as other:
            differs = _difference(roll, _roll(other, steps, seed, roll.actions))
    except AssayError as error:
        return CheckResult(backend, False, error.message, error.fix)
    if differs is None:
        return CheckResult(backend, True, f"{steps} steps are the same as without")
    fix = "Draw all randomness from self.np_random, and depend on nothing outside of the process."
    return CheckResult(backend, False, f"not the same as in one process: {differs}", fix)


# ---------------------------------------------------------------------- seeds and memory


def _seeding(env: str, seed: int) -> CheckResult:
    """Check what seeds change: two seeds, and two episodes of one seed."""
    try:
        made = make_env(env)
    except AssayError as error:
        return CheckResult("seeding", False, error.message, error.fix)
    try:
        first = _episode(made, seed, seed)
        # Where little is random, two seeds may agree by chance; eight hardly do.
        later = [_episode(made, None, seed) for _ in range(_SEEDS)]
        others = [_episode(made, seed + k, seed) for k in range(1, _SEEDS + 1)]
    finally:
        made.close()
    other, again = (any(one != first for one in many) for many in (others, later))
    if other and again:
        return CheckResult("seeding", True, "other seeds and later episodes differ")
    if not other and not again:
        return CheckResult("seeding", True, "every episode is the same, whatever the seed")
    if not again:
        return CheckResult(
            "seeding", True, "episodes of one seed are all the same, of other seeds not",
            "Seed in reset() only where a seed is given: `super().reset(seed=seed)` does that.",
        )  # fmt: skip
    return CheckResult(
        "seeding", False, "two seeds give the same episode, although episodes differ",
        "Draw all randomness from self.np_random, after super().reset(seed=seed).",
    )  # fmt: skip


def _episode(env: gym.Env[Any, Any], seed: int | None, action_seed: int) -> list[str]:
    """Return the beginning of an episode as text, with the same actions each time."""
    env.action_space.seed(action_seed)
    obs, info = env.reset(seed=seed)
    seen = [repr(obs)]
    for _ in range(20):
        mask = info.get(ACTION_MASK)
        masked = isinstance(env.action_space, gym.spaces.Discrete) and mask is not None
        action = (
            env.action_space.sample(mask=np.asarray(mask, np.int8))
            if masked
            else env.action_space.sample()
        )
        obs, reward, terminated, truncated, info = env.step(action)
        seen.append(f"{obs!r} {reward} {terminated} {truncated}")
        if terminated or truncated:
            break
    return seen


def _memory(env: str, steps: int, seed: int, memory: Memory | None = None) -> CheckResult:
    """Check that stepping, resetting and making the environment again leave nothing behind."""
    measure = memory or resident_bytes
    sizes = []
    try:
        for _ in range(_LEAK_ROUNDS):
            for _ in range(2):
                with make_vector(env, 1, backend="sync") as made:
                    _exercise(made, steps // 2, seed)
            gc.collect()
            sizes.append(measure())
    except AssayError as error:
        return CheckResult("memory", False, error.message, error.fix)
    growth = np.diff(sizes)
    total = int(growth.sum())
    detail = f"{total / 2**20:+.1f} MiB over {_LEAK_ROUNDS} rounds of {2 * (steps // 2):,} steps"
    if (growth > _LEAK_BYTES).all() and total > 8 * _LEAK_BYTES:
        return CheckResult(
            "memory", False, f"it grows in every round: {detail}",
            "Look for lists that are only appended to, and for what close() does not release.",
        )  # fmt: skip
    return CheckResult("memory", True, detail)


def _exercise(vector: Vector, steps: int, seed: int) -> None:
    space = vector.spaces.action
    space.seed(seed)
    obs = vector.reset(seed)
    for _ in range(steps):
        obs = vector.step(_sample(space, obs, 1))[0]


def resident_bytes() -> int:
    """Return how much memory this process has, 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import resource

    return pages * resource.getpagesize()
