"""What happens in an environment while random actions are taken, for its checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.types import ACTION_MASK
from assay.envs.env_errors import env_failure
from assay.envs.spaces import BadObservationError, ObservationMap
from assay.envs.start_check import mask_for_space
from assay.envs.teams import JointEnv, team_of


@dataclass(slots=True)
class Trace:
    """What happened while random actions were taken."""

    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    shares: list[NDArray[Any]] = field(default_factory=list)  # rewards of several agents [A]
    flags: list[tuple[Any, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # of finished episodes
    terminated: int = 0
    truncated: int = 0
    broken: str | None = None  # what is wrong with an observation's type or shape
    outside: str | None = None  # where an observation left its space's bounds
    infos_ok: bool = True
    largest: float | None = None  # absolute value in a Box of floats
    seen: list[tuple[int, Any]] = field(default_factory=list)  # steps before, and an array


def roll(
    env: gym.Env[Any, Any],
    steps: int,
    seed: int,
    clock: Callable[[], float],
    again: Trace | None = None,
) -> tuple[Trace, float]:
    """Take random actions, or those of a trace again; return what happened, and the time it took.

    Actions are kept: an environment may make a new action space when it is reset.
    """
    trace = Trace()
    mapped = ObservationMap(env.observation_space, text=0)
    env.action_space.seed(seed)
    seconds, length = 0.0, 0
    call = "reset()"
    try:
        obs, info = env.reset(seed=seed)
        _look(mapped, trace, obs, info)
        for _ in range(steps):
            call = "step()"
            if again is None:
                action = _sample(env, obs, info)
            else:
                action = again.actions[len(trace.actions)]
            trace.actions.append(action)
            start = clock()
            obs, reward, terminated, truncated, info = env.step(action)
            seconds += clock() - start
            length += 1
            trace.rewards.append(reward)
            if isinstance(env.unwrapped, JointEnv):
                trace.shares.append(env.unwrapped.outcome.reward)
            trace.flags.append((terminated, truncated))
            _look(mapped, trace, obs, info)
            if terminated or truncated:
                trace.lengths.append(length)
                trace.terminated += bool(terminated)
                trace.truncated += bool(truncated) and not terminated
                length = 0
                call = "reset()"
                obs, info = env.reset()
                _look(mapped, trace, obs, info)
    except BadObservationError as error:  # of an agent; others are looked at
        raise EnvError(
            f"{name_of(env)} violates PettingZoo's API in {call}: {error}.",
            f"Fix what the environment returns from {call}.",
        ) from None
    except (Exception, SystemExit) as error:
        raise env_failure(error, f"{name_of(env)} failed in {call}") from error
    return trace, seconds


def _sample(env: gym.Env[Any, Any], obs: Any, info: Any) -> Any:
    if team_of(env) is not None and ACTION_MASK in obs:  # of agents with unequal actions, say
        return env.action_space.sample(mask=mask_for_space(env.action_space, obs[ACTION_MASK]))
    given = [
        part[ACTION_MASK] for part in (obs, info) if isinstance(part, dict) and ACTION_MASK in part
    ]
    mask = given[0] if given else None
    if isinstance(mask, np.ndarray) and isinstance(env.action_space, gym.spaces.Discrete):
        return env.action_space.sample(mask=mask.astype(np.int8))
    return env.action_space.sample()


def _look(mapped: ObservationMap, trace: Trace, obs: Any, info: Any) -> None:
    """Record what is wrong with an observation, and enough of it to compare two runs."""
    trace.infos_ok = trace.infos_ok and isinstance(info, dict)
    try:
        tree = mapped.one(obs)
    except ValueError as error:
        trace.broken = trace.broken or str(error)
        return
    for leaf in mapped.leaves:
        array = tree if mapped.bare else tree[leaf.key]
        trace.seen.append((len(trace.actions), array))
        label = f"entry '{leaf.key}'" if leaf.path else "the observation"
        if leaf.dtype.kind == "f" and not np.isfinite(array).all():
            trace.broken = trace.broken or f"{label} is not finite: {array[0]}"
            continue
        if leaf.dtype.kind == "f":
            trace.largest = max(trace.largest or 0.0, float(np.abs(array).max(initial=0.0)))
        raw = np.asarray(leaf.read(obs))
        if trace.outside is None and not _within(raw, leaf.source):
            trace.outside = _left(label, raw, leaf.source)


def _within(raw: np.ndarray[Any, Any], space: gym.Space[Any]) -> bool:
    """Return whether a value is in a space, whatever its dtype.

    What is within as float32 is within: networks get that, and a double may be rounded past 1.
    """
    if isinstance(space, gym.spaces.Discrete):
        return space.contains(int(raw))
    return space.contains(raw.astype(space.dtype)) or (
        space.dtype == np.float64 and space.contains(raw.astype(np.float32))
    )


def _left(label: str, raw: Any, space: gym.Space[Any]) -> str:
    """Return which number left its bounds, or the whole where it is another shape."""
    if isinstance(space, gym.spaces.Box) and np.shape(raw) == space.shape:
        value = raw.astype(np.float64)  # differences of bytes would wrap
        beyond = np.maximum(space.low - value, value - space.high)
        if (beyond > 0).any():  # the farthest: others may only be rounded
            at = tuple(int(i) for i in np.unravel_index(beyond.argmax(), beyond.shape))
            bounds = f"[{space.low[at]:g}, {space.high[at]:g}]"
            place = f" at {list(at)}" if at else ""
            return f"{label} has {raw[at].item()!r}{place}, outside of {bounds}"
    return f"{label} is {np.array2string(raw, threshold=20)}, not in {space}"


def difference(one: Trace, two: Trace) -> int | None:
    """Return the first step in which two traces differ, as far as both go; 0 is the first reset."""
    pairs = zip(one.seen, two.seen, strict=False)
    steps = [
        min(step, at)
        for (step, a), (at, b) in pairs
        if step != at or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    ]
    told = zip(
        zip(one.rewards, one.flags, strict=True), zip(two.rewards, two.flags, strict=True),
        strict=False,
    )  # fmt: skip
    steps += [step for step, (a, b) in enumerate(told, start=1) if str(a) != str(b)]
    return min(steps, default=None)


def name_of(env: gym.Env[Any, Any]) -> str:
    """Return what messages call an environment."""
    return f"'{env.spec.id if env.spec is not None else type(env.unwrapped).__name__}'"
