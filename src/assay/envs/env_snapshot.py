"""Saving and restoring a single environment, exactly or not at all.

What can be saved: Gymnasium's classic-control, toy-text and MuJoCo environments, and any
environment that has `get_state()` and `set_state(state)` itself (a nested dict of arrays and plain
values that covers all of the environment but its wrappers and `np_random`). Wrappers must be on
the list below; any other may have state of its own. Then the snapshot is None, and the training
loop resets the environments at every checkpoint instead.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

from assay.core.errors import EnvError
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import State
from assay.envs.limits import EpisodeBound
from assay.envs.remade import Remade
from assay.envs.reset_options import ResetOptions

# Wrapper -> the attributes that change while an episode runs. What a reset sets up (that there was
# a reset, that the checker has run) is not listed: loading starts with a reset.
_WRAPPERS: dict[type[gym.Wrapper[Any, Any, Any, Any]], tuple[str, ...]] = {
    EpisodeBound: ("_elapsed_steps",),
    Remade: ("_seed", "_times"),
    ResetOptions: (),
    wrappers.ClipAction: (),
    wrappers.ClipReward: (),
    wrappers.DtypeObservation: (),
    wrappers.FilterObservation: (),
    wrappers.FlattenObservation: (),
    wrappers.OrderEnforcing: (),
    wrappers.PassiveEnvChecker: (),
    wrappers.RecordEpisodeStatistics: ("episode_count", "episode_returns", "episode_lengths"),
    wrappers.RescaleAction: (),
    wrappers.RescaleObservation: (),
    wrappers.ReshapeObservation: (),
    wrappers.StickyAction: ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    wrappers.TimeAwareObservation: ("timesteps",),
    wrappers.TimeLimit: ("_elapsed_steps",),
}

# Package of an environment's class -> the attributes that change while an episode runs.
_BASES: dict[str, tuple[str, ...]] = {
    "gymnasium.envs.classic_control.": ("state", "steps_beyond_terminated", "last_u"),
    "gymnasium.envs.mujoco.": ("goal", "goal_pos", "cylinder_pos"),
    "gymnasium.envs.toy_text.": (
        "s", "lastaction", "fickle_step", "taxi_orientation", "dealer", "player",
        "dealer_top_card_suit", "dealer_top_card_value_str",
    ),
}  # fmt: skip


def save_env_state(env: gym.Env[Any, Any]) -> State | None:
    """Return the state that the environment's future depends on, or None if that is not known."""
    chain: list[State] = []
    while isinstance(env, gym.Wrapper):
        if type(env) not in _WRAPPERS:
            return None
        chain.append({name: _encode(getattr(env, name)) for name in _WRAPPERS[type(env)]})
        env = env.env
    base = _save_base(env)
    if base is None:
        return None
    generator = env._np_random
    return {
        "id": _identity(env),
        "wrappers": {str(i): part for i, part in enumerate(chain)},
        "base": base,
        "rng": None if generator is None else rng_state(generator),
    }


def load_env_state(env: gym.Env[Any, Any], state: State) -> None:
    """Restore a state that `save_env_state` returned into an environment made the same way.

    Raises:
        EnvError: The state is of another environment, or of one with other wrappers.
    """
    env.reset(seed=0)  # creates what only a reset creates; every value is then overwritten
    parts = state["wrappers"]
    depth = 0
    while isinstance(env, gym.Wrapper):
        names = _WRAPPERS.get(type(env))
        part = parts.get(str(depth))
        if names is None or part is None or set(part) != set(names):
            raise EnvError(
                f"The saved state does not fit the wrapper {type(env).__name__}.",
                "Make the environment with the wrappers that it had when it was saved.",
            )
        for name in names:
            setattr(env, name, _decode(part[name]))
        env, depth = env.env, depth + 1
    if depth != len(parts) or state["id"] != _identity(env):
        raise EnvError(
            f"The saved state is of {state['id']} in {len(parts)} wrappers; "
            f"this is {_identity(env)} in {depth}.",
            "Make the environment as it was made when it was saved.",
        )
    _load_base(env, state["base"])
    if state["rng"] is not None:
        set_rng_state(env.np_random, state["rng"])


def _identity(env: gym.Env[Any, Any]) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"


def changing_attributes(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return which attributes of an environment without wrappers are known to be its state."""
    return _attributes(env) or ()


def _attributes(env: gym.Env[Any, Any]) -> tuple[str, ...] | None:
    module = type(env).__module__
    return next((names for start, names in _BASES.items() if module.startswith(start)), None)


def _saves_itself(env: gym.Env[Any, Any]) -> bool:
    # MuJoCo environments have a `set_state(qpos, qvel)` that means something else, and no getter.
    return callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None))


def _save_base(env: gym.Env[Any, Any]) -> State | None:
    if _saves_itself(env):
        state = env.get_state()  # type: ignore[attr-defined]
        if state is None:
            return None
        _refuse_foreign(state, "its get_state()")
        return {"own": state}
    names = _attributes(env)
    if names is None:
        return None
    attributes = {name: _encode(getattr(env, name)) for name in names if hasattr(env, name)}
    base: State = {"attributes": attributes}
    if _is_mujoco(env):
        base["mujoco"] = _save_mujoco(env)
    return base


def _refuse_foreign(value: Any, where: str) -> None:
    """Reject values that a checkpoint cannot store."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise EnvError(f"{where} has the key {key!r}; a string was expected.")
            _refuse_foreign(part, f"{where}['{key}']")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _refuse_foreign(part, f"{where}[{index}]")
    elif not isinstance(value, (np.ndarray, bool, int, float, str)) and value is not None:
        raise EnvError(
            f"{where} is a {type(value).__name__}, which a checkpoint cannot hold.",
            "Return a nested dict of NumPy arrays, numbers, strings, lists and None.",
        )


def _load_base(env: gym.Env[Any, Any], base: State) -> None:
    if "own" in base:
        env.set_state(base["own"])  # type: ignore[attr-defined]
        return
    for name, value in base["attributes"].items():
        setattr(env, name, _decode(value))
    if "mujoco" in base:
        _load_mujoco(env, base["mujoco"])


def _is_mujoco(env: gym.Env[Any, Any]) -> bool:
    return type(env).__module__.startswith("gymnasium.envs.mujoco.")


def _save_mujoco(env: Any) -> State:
    """Return the physics of a MuJoCo environment.

    The integration state (with the solver's warm start) determines all further physics. But an
    observation or a reward may read a derived quantity, such as a body's position, that was left
    by the last step, and recomputing it would give another value (it lags one substep behind), so
    every array of fixed size is saved as well.
    """
    import mujoco

    model, data = env.model, env.data
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    integration = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, integration, kind)
    fixed = _fixed_arrays(mujoco.MjData(model))
    return {
        "integration": integration,
        "derived": {name: getattr(data, name).copy() for name in fixed},
    }


def _load_mujoco(env: Any, state: State) -> None:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(env.model, env.data, state["integration"], kind)
    for name, value in state["derived"].items():
        getattr(env.data, name)[...] = value


def _fixed_arrays(data: Any) -> list[str]:
    """Return the names of the arrays in mjData's fixed buffer.

    Those in its arena (contacts, constraints) change size with every step; a fresh mjData has none.
    """
    names = []
    for name in dir(data):
        value = None if name.startswith("_") else getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and not value.flags.owndata:
            names.append(name)
    return names


def _encode(value: Any) -> Any:
    """Return a value as arrays and JSON that keep NumPy scalars and tuples distinct."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        items = {str(i): _encode(item) for i, item in enumerate(value)}
        return {"sequence": type(value).__name__, "items": items}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise EnvError(f"Cannot save a value of type {type(value).__name__}: {value!r}.")


def _decode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value[()] if value.ndim == 0 else value.copy()
    if isinstance(value, dict):
        items = [_decode(value["items"][str(i)]) for i in range(len(value["items"]))]
        return tuple(items) if value["sequence"] == "tuple" else items
    return value
