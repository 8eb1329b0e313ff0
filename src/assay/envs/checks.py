"""Check an environment before anything is trained on it (`assay envs check ID`).

Every check reports what was found, and what to do about it if that is worth doing. A result that is
`ok` and has a `fix` is advice: training works, and would probably work better with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import AssayError, EnvError
from assay.core.types import Team
from assay.envs.check_trace import Trace, difference, name_of, roll
from assay.envs.env_errors import env_failure
from assay.envs.env_snapshot import save_env_state
from assay.envs.limits import EPISODE_BOUND
from assay.envs.make import make_env
from assay.envs.native import NATIVE
from assay.envs.petting_zoo import as_joint, is_petting_zoo, make_joint
from assay.envs.screen import refuse_human
from assay.envs.spaces import ActionMap, ObservationMap
from assay.envs.sync import BadRewardError, as_number
from assay.envs.teams import team_of

_REPEATED_STEPS = 500  # how many are compared in the determinism check
_CUTS = (0, 5, 50)  # after how many steps of other episodes
_IMAGE = 2  # axes, with that of copies, from which on bytes are an image
_LARGE = 10.0  # networks learn slowly from inputs beyond this


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: What was checked.
        ok: Whether an algorithm can be trained on it.
        detail: What was found.
        fix: What to do about it; None where there is nothing to do.
    """

    name: str
    ok: bool
    detail: str
    fix: str | None = None


def check_env(
    env: str | gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    steps: int = 2000,
    seed: int = 0,
    algorithms: Mapping[str, Sequence[str]] | None = None,
    team_algorithms: Mapping[str, Sequence[str]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[CheckResult]:
    """Check that an environment follows Gymnasium's API and can be trained on.

    Args:
        env: A Gymnasium id, an environment (it is stepped, not closed), or a function that makes
            one.
        env_kwargs: Settings of the environment, where `env` is an id.
        steps: How many random actions to take.
        seed: Seeds the environment and the actions.
        algorithms: Algorithm name -> the action spaces that it handles, to report which of them
            fit.
        team_algorithms: The same of algorithms for several agents.
        clock: Returns seconds.

    Returns:
        One result per check. An environment that cannot be made or stepped ends the list early.
    """
    results: list[CheckResult] = []
    owned = not (isinstance(env, gym.Env) or is_petting_zoo(env))
    made: gym.Env[Any, Any] | None = None
    try:
        made = _make(env, env_kwargs)
        results.append(CheckResult("made", True, f"{name_of(made)} can be made"))
        make = partial(_make, env, env_kwargs) if owned else None
        _check_made(made, results, steps, seed, clock, make)
    except AssayError as error:
        name = "made" if made is None else "runs"
        results.append(CheckResult(name, False, error.message, error.fix))
        return results
    finally:
        if made is not None and owned:
            made.close()
    if isinstance(env, str) and env in NATIVE and not env_kwargs:
        detail = "a native version is used in training: many copies are stepped at once"
        results.append(CheckResult("backend", True, detail))
    team = team_of(made)
    if team is not None:
        results.append(_team(team))
        algorithms = team_algorithms
    if algorithms is not None:
        results.append(_algorithms(made, algorithms))
    return results


def _make(env: Any, env_kwargs: Mapping[str, Any] | None) -> gym.Env[Any, Any]:
    if isinstance(env, str):
        made = make_env(env, env_kwargs=env_kwargs)
        refuse_human(made, env)
        return made
    if isinstance(env, gym.Env) or is_petting_zoo(env):
        made = as_joint(env)
        return made
    if not callable(env) or isinstance(env, gym.vector.VectorEnv):
        raise EnvError(
            f"A {type(env).__name__} cannot be checked.",
            "Give an id, a gymnasium.Env, or a function that makes one.",
        )
    try:
        made = make_joint(env, **dict(env_kwargs or {}))
    except (Exception, SystemExit) as error:
        raise env_failure(error, "The environment could not be made") from error
    if not isinstance(made, gym.Env):
        raise EnvError(f"The function returned a {type(made).__name__}, not a gymnasium.Env.")
    return made


def _check_made(
    env: gym.Env[Any, Any],
    results: list[CheckResult],
    steps: int,
    seed: int,
    clock: Callable[[], float],
    make: Callable[[], gym.Env[Any, Any]] | None,
) -> None:
    spaces = _spaces(env)
    results.append(spaces)
    if not spaces.ok:
        return
    trace, seconds = roll(env, steps, seed, clock)
    results += [
        _observations(trace),
        _range(trace),
        _rewards(trace),
        _flags(trace),
        _determinism(env, trace, seed, clock, make),
        _episodes(trace, steps),
        _actions(env),
        _speed(steps, seconds),
        _state(env),
    ]


def _spaces(env: gym.Env[Any, Any]) -> CheckResult:
    try:
        observations = ObservationMap(env.observation_space, text=0)
        action = ActionMap(env.action_space).space
    except AssayError as error:
        return CheckResult("spaces", False, error.message, error.fix)
    detail = f"observation space {observations.space}, action space {action}"
    if observations.left_out:
        detail += f"; texts are left out: {', '.join(observations.left_out)}"
        return CheckResult("spaces", True, detail, "Train with embed_text=64 to use them.")
    return CheckResult("spaces", True, detail)


def _observations(trace: Trace) -> CheckResult:
    if trace.broken is not None:
        fix = "Return what observation_space declares, with that shape and dtype."
        return CheckResult("observations", False, trace.broken, fix)
    if not trace.infos_ok:
        return CheckResult("observations", False, "info is not a dict", "Return a dict as info.")
    images = [array for _, array in trace.seen if array.dtype == np.uint8 and array.ndim > _IMAGE]
    if images and min(map(np.min, images)) == max(map(np.max, images)):
        detail = f"all {len(images)} images have one colour, {images[0].flat[0]}: nothing is seen"
        fix = (
            "Draw what is to be seen. A game that draws only for who watches needs the setting "
            "render_mode=rgb_array."
        )
        return CheckResult("observations", False, detail, fix)
    return CheckResult("observations", True, "shapes and dtypes are those that the space declares")


def _range(trace: Trace) -> CheckResult:
    if trace.outside is not None:
        advice = (
            "Widen the bounds of observation_space, or clip what you return. Runs only warn of "
            "floats outside of a Box."
        )
        return CheckResult("observation range", False, trace.outside, advice)
    detail = "within the declared bounds"
    if trace.largest is None:
        return CheckResult("observation range", True, detail)
    detail += f"; the largest absolute value is {trace.largest:.3g}"
    fix = "Normalise observations." if trace.largest > _LARGE else None
    if fix is not None and trace.shares:
        fix = "Scale what agents see, in the environment: normalize_obs is for one agent."
    return CheckResult("observation range", True, detail, fix)


def _rewards(trace: Trace) -> CheckResult:
    values = []
    for step, reward in enumerate(trace.rewards, start=1):
        try:
            values.append(as_number(reward))
        except BadRewardError as error:
            return CheckResult("rewards", False, f"in step {step}, {error}", "Return a float.")
        if not np.isfinite(values[-1]):
            detail = f"in step {step}, the reward is {values[-1]}"
            return CheckResult("rewards", False, detail, "Return a finite reward at every step.")
    low, high = min(values), max(values)
    detail = f"finite, from {low:.3g} to {high:.3g}"
    fix = "Scale rewards, or normalise them." if max(-low, high) > 10 * _LARGE else None
    shares = np.array(trace.shares)
    if shares.any() and low == high == 0:
        return CheckResult(
            "rewards",
            True,
            f"finite; agents get {shares.min():.3g} to {shares.max():.3g}, which cancels out: the "
            "team's reward, their mean, is always 0",
            "Use an algorithm that learns from each agent's own reward, not vdn or qmix.",
        )
    if any(np.ndim(reward) for reward in trace.rewards):
        detail += ", in arrays of one number each"
        fix = "Return a float: Assay takes the number, and other libraries may not."
    return CheckResult("rewards", True, detail, fix)


def _flags(trace: Trace) -> CheckResult:
    for step, flags in enumerate(trace.flags, start=1):
        for name, flag in zip(("terminated", "truncated"), flags, strict=True):
            if not isinstance(flag, (bool, np.bool_)):
                detail = f"{name} of step {step} is {flag!r}, a {type(flag).__name__}"
                return CheckResult("flags", False, detail, "Return bools.")
    return CheckResult("flags", True, "terminated and truncated are bools")


def _determinism(
    env: gym.Env[Any, Any],
    trace: Trace,
    seed: int,
    clock: Callable[[], float],
    make: Callable[[], gym.Env[Any, Any]] | None,
) -> CheckResult:
    steps = min(len(trace.actions), _REPEATED_STEPS)
    differs = None
    for cut in _CUTS:  # episodes before it, and then a reset in the middle of one
        if cut:
            roll(env, min(cut, steps), seed + 1, clock)
        differs = difference(trace, roll(env, steps, seed, clock, trace)[0])
        if differs is not None:
            break
    else:
        return CheckResult("determinism", True, "the same seed and actions give the same episodes")
    detail = f"two runs from seed {seed} with the same actions differ from step {differs} on"
    fix = (
        "Draw all randomness from self.np_random, call super().reset(seed=seed) first, and keep "
        "no state from one episode to the next."
    )
    if make is not None:
        with closing(make()) as fresh:
            repeated = difference(trace, roll(fresh, steps, seed, clock, trace)[0]) is None
        if repeated:
            detail += "; a new copy repeats the first, so episodes depend on those before them"
            fix = (
                "Make again in reset() what an episode leaves behind, such as a Box2D world. In an "
                "environment of others: two new runs of one seed are equal all the same, but one "
                "that is resumed differs from one that was never stopped."
            )
        else:
            detail += ", and so does a new copy"
    return CheckResult("determinism", False, detail, fix)


def _episodes(trace: Trace, steps: int) -> CheckResult:
    if not trace.lengths:
        return CheckResult(
            "episodes",
            True,
            f"no episode ended within {steps} random steps",
            f"Train with max_episode_steps=N, or wrap it in gymnasium.wrappers.TimeLimit; an "
            f"episode without a limit is truncated after {EPISODE_BOUND:,} steps.",
        )
    shortest, longest = min(trace.lengths), max(trace.lengths)
    detail = (
        f"{len(trace.lengths)} ended ({trace.terminated} terminated, {trace.truncated} truncated),"
        f" {shortest} to {longest} steps long"
    )
    if trace.terminated > 2 and not trace.truncated and shortest == longest > 1:
        return CheckResult(
            "episodes",
            True,
            detail + "; all are of one length and none is truncated, which looks like a time limit",
            "Report a time limit as truncated, not as terminated; otherwise the values of the "
            "last states are learned wrong.",
        )
    return CheckResult("episodes", True, detail)


def _actions(env: gym.Env[Any, Any]) -> CheckResult:
    space, team = env.action_space, team_of(env)
    if team is not None and not isinstance(space, gym.spaces.Box):
        each = " or ".join(dict.fromkeys(map(str, team.actions)))
        return CheckResult("actions", True, f"{each}, of each agent")
    if not isinstance(space, gym.spaces.Box):
        return CheckResult("actions", True, str(space))
    if not space.is_bounded():
        return CheckResult(
            "actions",
            True,
            f"{space} has no finite bounds",
            "Give it finite bounds: algorithms that squash or scale actions need them.",
        )
    if np.all(space.low == -space.high) and float(space.high.max()) <= _LARGE:
        return CheckResult("actions", True, f"{space}: finite and symmetric bounds")
    return CheckResult(
        "actions",
        True,
        f"{space}: the bounds are finite, but not symmetric around 0 or very wide",
        "Rescale actions to [-1, 1] with gymnasium.wrappers.RescaleAction.",
    )


def _speed(steps: int, seconds: float) -> CheckResult:
    rate = steps / seconds if seconds > 0 else float("inf")
    detail = f"{rate:,.0f} steps per second (one copy)"
    fix = "Try the backend processes, on more than one core." if rate < 1000 else None
    return CheckResult("speed", True, detail, fix)


def _state(env: gym.Env[Any, Any]) -> CheckResult:
    if save_env_state(env) is not None:
        return CheckResult(
            "state", True, "can be saved: training resumes in the middle of an episode"
        )
    return CheckResult(
        "state",
        True,
        "cannot be saved: every checkpoint starts new episodes, so that resuming stays exact",
        "Give it get_state() and set_state(state) if its episodes are long.",
    )


def _algorithms(env: gym.Env[Any, Any], algorithms: Mapping[str, Sequence[str]]) -> CheckResult:
    kind = type(env.action_space).__name__
    fitting = sorted(name for name, kinds in algorithms.items() if kind in kinds)
    if not fitting:
        return CheckResult("algorithms", False, f"none handles a {kind} action space")
    team = team_of(env)
    kind = kind if team is None else type(team.actions[0]).__name__
    return CheckResult("algorithms", True, f"for {kind} actions: {', '.join(fitting)}")


def _team(team: Team) -> CheckResult:
    kinds = ", ".join(f"{team.types.count(kind)} {kind}" for kind in dict.fromkeys(team.types))
    whole = "a global state" if team.state else "no global state: critics see all observations"
    count = f"{team.size} agent{'s' if team.size > 1 else ''}"
    detail = f"{count} ({kinds}): {', '.join(team.agents)}; {whole}"
    return CheckResult("agents", True, detail)
