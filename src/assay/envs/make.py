"""Make the environments of a run from an id, an environment, a vector environment or a factory."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

import assay.envs.tasks  # noqa: F401 (registers them)
from assay.core.errors import AssayError, EnvError, MissingExtraError
from assay.core.types import Spaces
from assay.envs.atari import (
    AtariSettings,
    has_vector,
    is_atari,
    make_atari,
    make_atari_vector,
    preprocesses,
)
from assay.envs.env_errors import env_failure
from assay.envs.gym_vector import Batched
from assay.envs.native import NATIVE, make_native
from assay.envs.native.base import NativeVectorEnv
from assay.envs.robotics import PACKAGE, fix_joint_types, is_robotics, register_robotics
from assay.envs.sync import Factory, Sync
from assay.envs.vector import Vector

BackendName = Literal["auto", "native", "vector", "sync", "processes"]
EnvLike = (
    str | gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any] | Callable[..., gym.Env[Any, Any]]
)
_BACKENDS = ("auto", "native", "vector", "sync", "processes")

# Where an environment's code lives -> (the package that it needs, the extra that brings it).
_EXTRAS = {
    "ale_py": ("ale-py", "atari"),
    "gymnasium.envs.box2d": ("box2d", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
    PACKAGE: ("gymnasium-robotics", "robotics"),
}
# Settings that Gymnasium's `make` takes itself.
_MAKE_KWARGS = {"max_episode_steps", "render_mode"}


def make_vector(
    env: EnvLike,
    num_envs: int | None = None,
    *,
    backend: BackendName = "auto",
    env_kwargs: Mapping[str, Any] | None = None,
    atari: AtariSettings | None = None,
    training: bool = True,
    workers: int | None = None,
) -> Vector:
    """Make `num_envs` copies of an environment that a collector can drive.

    Args:
        env: A Gymnasium id ("CartPole-v1", "my_package.envs:Maze-v0"), an environment, a vector
            environment, or a function (or class) that makes an environment.
        num_envs: How many; by default one, or as many as a given vector environment has.
        backend: "native" (batched NumPy), "vector" (the id's own vector version), "sync" (one after
            the other), "processes", or "auto": the first of the first three that is available.
        env_kwargs: Settings of the environment itself.
        atari: Preprocessing of Atari games.
        training: Whether training-only preprocessing applies (Atari's lost lives, clipped rewards).
        workers: How many processes; by default one per core, and never more than environments.

    Raises:
        EnvError: The environment is unknown, cannot be made, or does not fit the other arguments.
        MissingExtraError: A package that it needs is not installed.
        SpaceError: Its spaces are not supported.

    Example:
        >>> with make_vector("CartPole-v1", 8) as envs:
        ...     envs.reset(seed=1).shape
        (8, 4)
    """
    kwargs = dict(env_kwargs or {})
    if backend not in _BACKENDS:
        raise EnvError(f"Unknown backend '{backend}'.", f"Use one of: {', '.join(_BACKENDS)}.")
    if num_envs is not None and (isinstance(num_envs, bool) or num_envs < 1):
        raise EnvError(f"num_envs={num_envs}; a positive integer was expected.")
    if isinstance(env, gym.vector.VectorEnv):
        return _from_vector_env(env, num_envs, backend, kwargs)
    count = 1 if num_envs is None else num_envs
    if isinstance(env, gym.Env):
        return _from_env(env, count, backend, kwargs)
    if isinstance(env, str):
        return _from_id(env, count, backend, kwargs, atari or AtariSettings(), training, workers)
    if callable(env):
        return _from_factory(partial(env, **kwargs), _name_of(env), count, backend, workers)
    raise EnvError(
        f"{env!r} is a {type(env).__name__}; an environment was expected.",
        "Give a Gymnasium id, a gymnasium.Env, a gymnasium.vector.VectorEnv, or a function that "
        "makes a gymnasium.Env.",
    )


def look_at(
    env: EnvLike, env_kwargs: Mapping[str, Any], backend: BackendName = "auto"
) -> tuple[Spaces, int | None]:
    """Return what an agent sees and does in an environment, and its time limit.

    An environment that is given as an object stays as it is, and open.

    Raises:
        AssayError: As `make_vector` does.
    """
    vector = make_vector(
        env, backend="auto" if backend == "processes" else backend, env_kwargs=env_kwargs
    )
    spec: Any = find_spec(env) if isinstance(env, str) else getattr(env, "spec", None)
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        vector.close()
    limit = env_kwargs.get("max_episode_steps", getattr(spec, "max_episode_steps", None))
    return vector.spaces, limit


def make_env(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    atari: AtariSettings | None = None,
    training: bool = False,
) -> gym.Env[Any, Any]:
    """Make one Gymnasium environment, with the errors of `make_vector`.

    Raises:
        EnvError: The id is unknown, a setting is, or the environment cannot be made.
        MissingExtraError: A package that it needs is not installed.
    """
    kwargs = dict(env_kwargs or {})
    spec = find_spec(env_id)
    _refuse_unknown_kwargs(spec, spec.entry_point, kwargs)
    try:
        return _make_one(spec, kwargs, atari or AtariSettings(), training)
    except Exception as error:
        raise _making_failure(error, spec) from error


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec registered under an id, importing the module that the id may name.

    Raises:
        EnvError: There is none; the nearest id is suggested.
        MissingExtraError: It is an Atari game or a robot, and their package is not installed.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    if name not in gym.registry:
        _register_atari()
    if name not in gym.registry and is_robotics(name) and not register_robotics():
        raise MissingExtraError("gymnasium-robotics", "robotics", f"The environment '{name}'")
    spec = gym.registry.get(name)
    if spec is not None:
        return spec
    if "ale_py" not in sys.modules and re.match(r"ALE/|\w+NoFrameskip-v\d+$", name):
        raise MissingExtraError("ale-py", "atari", f"The environment '{name}'")
    close = difflib.get_close_matches(name, gym.registry, n=1, cutoff=0.6)
    lower = {known.lower(): known for known in gym.registry}
    close = close or [lower[m] for m in difflib.get_close_matches(name.lower(), lower, n=1)]
    raise EnvError(
        f"No environment is registered as '{name}'.",
        f"Did you mean '{close[0]}'?"
        if close
        else "Name the module that registers it, as in 'my_package.envs:Maze-v0'.",
    )


def _import(module: str, env_id: str) -> None:
    # A console script does not have the current directory on its path, where `python -m` has it.
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise EnvError(
                f"There is no module '{module}', which '{env_id}' names.",
                "Install the package, or run from the directory that holds it.",
            ) from None
        raise env_failure(error, f"The module '{module}' could not be imported") from error
    except Exception as error:
        raise env_failure(error, f"The module '{module}' could not be imported") from error


def _register_atari() -> None:
    """Register ALE's ids; it does not do so by itself."""
    try:
        ale = importlib.import_module("ale_py")
    except ImportError:
        return
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # no banner
    gym.register_envs(ale)


def _from_vector_env(
    env: gym.vector.VectorEnv[Any, Any, Any],
    num_envs: int | None,
    backend: str,
    kwargs: dict[str, Any],
) -> Vector:
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    _refuse_for_object(name, kwargs, backend, ("auto", "vector"))
    if num_envs is not None and num_envs != env.num_envs:
        raise EnvError(
            f"num_envs={num_envs}, but the vector environment '{name}' has {env.num_envs}.",
            f"Leave num_envs out, or set it to {env.num_envs}.",
        )
    return Vector(Batched(env, name), name)


def _from_env(
    env: gym.Env[Any, Any], num_envs: int, backend: str, kwargs: dict[str, Any]
) -> Vector:
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    _refuse_for_object(name, kwargs, backend, ("auto", "sync"))
    if num_envs != 1:
        raise EnvError(
            f"num_envs={num_envs}, but '{name}' is one environment, which cannot be copied.",
            "Give a function that makes the environment, or set num_envs=1.",
        )
    return Vector(Sync([lambda: env], name), name)


def _from_factory(
    factory: Factory,
    name: str,
    num_envs: int,
    backend: str,
    workers: int | None,
    frame_stack: int | None = None,
) -> Vector:
    if backend not in ("auto", "sync", "processes"):
        raise EnvError(
            f"The backend '{backend}' needs an environment's id, not the factory '{name}'.",
            "Use the backend sync or processes.",
        )
    if backend == "processes":
        from assay.envs.processes import Processes

        return Vector(Processes([factory] * num_envs, name, workers), name, frame_stack)
    return Vector(Sync([factory] * num_envs, name), name, frame_stack)


def _from_id(
    env_id: str,
    num_envs: int,
    backend: str,
    kwargs: dict[str, Any],
    settings: AtariSettings,
    training: bool,
    workers: int | None,
) -> Vector:
    native_fits = env_id in NATIVE and not kwargs
    if backend == "native" and not native_fits:
        reason = f"has no setting {sorted(kwargs)}" if env_id in NATIVE else "does not exist"
        raise EnvError(
            f"The native version of '{env_id}' {reason}.",
            f"Use the backend auto. Native ones: {', '.join(sorted(NATIVE))}.",
        )
    if backend == "native" or (backend == "auto" and native_fits):
        return Vector(Batched(make_native(env_id, num_envs), env_id, trusted=True), env_id)
    spec = find_spec(env_id)
    atari = preprocesses(spec, kwargs, settings)
    stack = settings.frame_stack if atari else None
    vectorised = _vector_fits(spec, kwargs, atari)
    if backend == "vector" and not vectorised:
        raise EnvError(
            f"'{spec.id}' has no vector version that fits"
            + (f" the settings {kwargs}." if kwargs else "."),
            "Use the backend auto or sync.",
        )
    try:
        if vectorised and backend in ("auto", "vector"):
            if atari:
                env = make_atari_vector(spec, num_envs, kwargs, settings, training)
            else:
                _refuse_unknown_kwargs(spec, spec.vector_entry_point, kwargs)
                env = gym.make_vec(
                    spec, num_envs, vectorization_mode="vector_entry_point", **kwargs
                )
            ours = isinstance(env, NativeVectorEnv)
            return Vector(Batched(env, spec.id, trusted=ours), spec.id, stack)
        _refuse_unknown_kwargs(spec, spec.entry_point, kwargs)
    except Exception as error:
        raise _making_failure(error, spec) from error
    make_one = partial(_make_one_or_explain, spec, kwargs, settings, training)
    return _from_factory(make_one, spec.id, num_envs, backend, workers, stack)


def _vector_fits(spec: EnvSpec, kwargs: dict[str, Any], atari: bool) -> bool:
    # A single environment renders in every mode, and vector versions take no wrappers.
    if "render_mode" in kwargs or spec.additional_wrappers:
        return False
    if is_atari(spec):
        return atari and has_vector(spec, kwargs)
    return spec.vector_entry_point is not None


def _make_one(
    spec: EnvSpec, kwargs: dict[str, Any], settings: AtariSettings, training: bool
) -> gym.Env[Any, Any]:
    if preprocesses(spec, kwargs, settings):
        return make_atari(spec, kwargs, settings, training)
    if str(spec.entry_point).startswith(PACKAGE):
        fix_joint_types()
    # The same checks are done here and by `assay envs check`; in every step they would cost time.
    with _silence_mujoco(spec):
        return gym.make(spec, disable_env_checker=True, **kwargs)


@contextlib.contextmanager
def _silence_mujoco(spec: EnvSpec) -> Iterator[None]:
    """Suppress MuJoCo's warnings about Gymnasium's models, on screen and in MUJOCO_LOG.TXT."""
    if not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        yield
        return
    try:
        import mujoco
    except ImportError:  # making the environment gives a better error
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _make_one_or_explain(
    spec: EnvSpec, kwargs: dict[str, Any], settings: AtariSettings, training: bool
) -> gym.Env[Any, Any]:
    try:
        return _make_one(spec, kwargs, settings, training)
    except Exception as error:
        raise _making_failure(error, spec) from error


def _refuse_unknown_kwargs(spec: EnvSpec, entry_point: Any, kwargs: dict[str, Any]) -> None:
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = (set(parameters) | _MAKE_KWARGS) - {"self", "num_envs"}
    for key in kwargs:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(sorted(known))}."
            raise EnvError(f"'{spec.id}' has no setting '{key}'.", hint)


def _making_failure(error: Exception, spec: EnvSpec) -> AssayError:
    """Explain why an environment could not be made."""
    if isinstance(error, AssayError):
        return error
    if isinstance(error, (ImportError, gym.error.DependencyNotInstalled)):
        for start, (package, extra) in _EXTRAS.items():
            if str(spec.entry_point).startswith(start):
                return MissingExtraError(package, extra, f"The environment '{spec.id}'")
        return EnvError(f"'{spec.id}' needs a package that is not installed: {error}")
    return env_failure(error, f"'{spec.id}' could not be made")


def _refuse_for_object(
    name: str, kwargs: dict[str, Any], backend: str, fitting: tuple[str, ...]
) -> None:
    if kwargs:
        raise EnvError(
            f"The environment '{name}' exists already, so {sorted(kwargs)} cannot be set.",
            "Set them where you make it.",
        )
    if backend not in fitting:
        raise EnvError(
            f"The backend '{backend}' does not fit '{name}', which exists already.",
            "Give a function that makes the environment, or leave the backend out.",
        )


def _name_of(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", None) or type(factory).__name__)
