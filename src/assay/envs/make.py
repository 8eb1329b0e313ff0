"""Make the environments of a run from an id, an environment, a vector environment or a factory."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

import assay.envs.tasks  # noqa: F401 (registers them)
from assay.core.errors import AssayError, EnvError, MissingExtraError
from assay.core.imports import dependents, import_named
from assay.core.types import Sight
from assay.envs.arguments import MAKE_KWARGS, refuse_unknown, takes_limit, usual_arguments
from assay.envs.atari import (
    AtariSettings,
    atari_limit,
    has_vector,
    is_atari,
    make_atari,
    make_atari_vector,
    preprocesses,
)
from assay.envs.boards.vector import make_boards
from assay.envs.dm_control import is_dm_control, make_dm_control, pixel_stack
from assay.envs.env_errors import env_failure
from assay.envs.families import (
    ATARI,
    ROBOTICS_PACKAGE,
    Symbols,
    family_of,
    fix_joint_types,
    is_minigrid,
)
from assay.envs.games.registry import ALL_SEATS, is_game
from assay.envs.gym_vector import Batched
from assay.envs.limits import EPISODE_BOUND, Factory, make_limited, own_limit
from assay.envs.native import NATIVE, make_native
from assay.envs.native.base import NativeVectorEnv
from assay.envs.native.team import NativeTeam
from assay.envs.petting_zoo import as_joint, is_petting_zoo, make_joint
from assay.envs.remade import Remade, arguments_of
from assay.envs.reset_options import ResetOptions, make_with_options
from assay.envs.sync import Sync
from assay.envs.tuple_agents import put_right
from assay.envs.variation.settings import varied
from assay.envs.vector import Vector
from assay.envs.wrappers.layers import Inside
from assay.envs.wrappers.settings import (
    Given,
    innermost,
    make_inside,
    read_wrappers,
    refuse_inside,
    wrap,
)
from assay.functional.boards import GAMES

BackendName = Literal["auto", "native", "vector", "sync", "processes"]
EnvLike = (
    str | gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any] | Callable[..., gym.Env[Any, Any]]
)
_VERSION = re.compile(r"-v\d+$")
_UNEXPECTED = re.compile(r"\S+ got an unexpected keyword argument '(\w+)'")
_BACKENDS = ("auto", "native", "vector", "sync", "processes")

# Where an environment's code lives -> (the package that it needs, the extra that brings it).
_EXTRAS = {
    "ale_py": ("ale-py", "atari"),
    "gymnasium.envs.box2d": ("box2d", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
    ROBOTICS_PACKAGE: ("gymnasium-robotics", "robotics"),
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `make_vector` besides the environment."""

    num_envs: int | None
    backend: BackendName
    kwargs: dict[str, Any]
    limit: int | None
    text: int
    atari: AtariSettings
    training: bool
    workers: int | None
    inside: Inside | None  # a wrapper inside of every copy
    remake: tuple[str, ...]  # arguments that change from episode to episode
    options: dict[str, Any]  # of every reset

    @property
    def count(self) -> int:
        return 1 if self.num_envs is None else self.num_envs


def make_vector(
    env: EnvLike,
    num_envs: int | None = None,
    *,
    backend: BackendName = "auto",
    env_kwargs: Mapping[str, Any] | None = None,
    reset_options: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    embed_text: int = 0,
    atari: AtariSettings | None = None,
    training: bool = True,
    workers: int | None = None,
    wrappers: Given = (),
    randomize: Mapping[str, Any] | None = None,
    curriculum: str | Mapping[str, Any] | None = None,
) -> Vector:
    """Make `num_envs` copies of an environment that a collector can drive.

    Args:
        env: A Gymnasium id ("CartPole-v1", "my_package.envs:Maze-v0"), an environment, a vector
            environment, or a function (or class) that makes an environment.
        num_envs: How many; by default one, or as many as a given vector environment has.
        backend: "native" (batched NumPy), "vector" (the id's own vector version), "sync" (one after
            the other), "processes", or "auto": the first of the first three that is available.
        env_kwargs: Settings of the environment itself.
        reset_options: The options of every reset, of single environments: with them, native and
            vector versions are not used.
        max_episode_steps: Truncate episodes after so many steps; None: the environment's own limit.
            Where an id or a factory has none, episodes are truncated after `EPISODE_BOUND` steps,
            with a warning.
        embed_text: The width of the array that a text in an observation becomes; 0 leaves it out.
        atari: Preprocessing of Atari games.
        training: Whether training-only preprocessing applies (Atari's lost lives, clipped rewards).
        workers: How many processes; by default one per core, and never more than environments.
        wrappers: What is around them, as of `assay.envs.wrappers.settings.read_wrappers`.
        randomize: Parameters that are drawn for every episode (`assay.envs.variation`).
        curriculum: How they are drawn; by default from all of their ranges.

    Raises:
        ConfigError: A wrapper, range or curriculum is unknown, or does not fit.
        EnvError: The environment is unknown, cannot be made, or does not fit the other arguments.
        MissingExtraError: A package that it needs is not installed.
        SpaceError: Its spaces are not supported.

    Example:
        >>> with make_vector("CartPole-v1", 8) as envs:
        ...     envs.reset(seed=1).shape
        (8, 4)
    """
    if backend not in _BACKENDS:
        raise EnvError(f"Unknown backend '{backend}'.", f"Use one of: {', '.join(_BACKENDS)}.")
    for name, count in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
        if count is not None and (isinstance(count, bool) or count < 1):
            raise EnvError(f"{name}={count}; a positive integer was expected.")
    around = read_wrappers(wrappers)
    asked = _Asked(
        num_envs,
        backend,
        dict(env_kwargs or {}),
        max_episode_steps,
        embed_text,
        atari or AtariSettings(),
        training,
        workers,
        innermost(around),
        arguments_of(randomize or {}),
        dict(reset_options or {}),
    )
    if isinstance(env, gym.vector.VectorEnv):
        refuse_inside(around, type(env.unwrapped).__name__)
    vector = _made(env, asked)
    try:
        vector = varied(vector, randomize or {}, curriculum)
        return wrap(vector, around, training=training)
    except BaseException:
        if not isinstance(env, gym.Env | gym.vector.VectorEnv):
            vector.close()
        raise


def _made(env: EnvLike, asked: _Asked) -> Vector:
    """Return environments without what is around them, but for what is inside of every copy."""
    if isinstance(env, gym.vector.VectorEnv):
        return _from_vector_env(env, asked)
    if isinstance(env, gym.Env) or is_petting_zoo(env):
        return _from_env(as_joint(env), asked)
    if isinstance(env, str):
        vector = _from_id(env, asked)
        plain = asked.inside is None and asked.kwargs.keys() <= MAKE_KWARGS
        vector.plain = plain and _is_gymnasiums(vector.name)
        return vector
    if callable(env):
        name, factory = _name_of(env), partial(make_joint, env, **asked.kwargs)
        if asked.remake:
            usual = usual_arguments(asked.remake, env, asked.kwargs, name)
            factory = partial(Remade, partial(_call, env, asked.kwargs), usual)
        if asked.limit is not None:
            factory = partial(make_limited, factory, name, asked.limit)
        return _from_factory(factory, name, asked, limit=asked.limit)
    raise EnvError(
        f"{env!r} is a {type(env).__name__}; an environment was expected.",
        "Give an id, a gymnasium.Env, a gymnasium.vector.VectorEnv, an environment of PettingZoo, "
        "or a function that makes an environment. One that steps many copies in tensors: "
        "assay.envs.tensor_vector.TensorVectorEnv(env).",
    )


def look_at(env: EnvLike, settings: Mapping[str, Any]) -> Sight:
    """Return what is known of an environment that `make_vector` would make.

    An environment that is given as an object stays as it is, and open.

    Raises:
        AssayError: As `make_vector` does.
    """
    vector = make_vector(env, **settings)
    if not isinstance(env, gym.Env | gym.vector.VectorEnv) and not is_petting_zoo(env):
        vector.close()
    return Sight(vector.spaces, vector.limit)


def make_env(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    reset_options: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    atari: AtariSettings | None = None,
    training: bool = False,
) -> gym.Env[Any, Any]:
    """Make one Gymnasium environment, with the errors of `make_vector`.

    Raises:
        EnvError: The id is unknown, a setting is, or the environment cannot be made.
        MissingExtraError: A package that it needs is not installed.
    """
    kwargs, limit = _take_limit(env_id, dict(env_kwargs or {}), max_episode_steps)
    spec = find_spec(env_id)
    refuse_unknown(spec, spec.entry_point, kwargs)
    try:
        made = _make_one(spec, kwargs, atari or AtariSettings(), training, limit)
        return ResetOptions(made, reset_options, spec.id) if reset_options else made
    except (Exception, SystemExit) as error:
        raise _making_failure(error, spec, kwargs) from error


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec registered under an id, importing the module that the id may name.

    Raises:
        EnvError: There is none; the nearest id is suggested.
        MissingExtraError: It belongs to a package that is not installed.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        found = getattr(_import(module, env_id), name, None)
        if name not in gym.registry and callable(found):
            return EnvSpec(env_id, partial(_make_placed, found), disable_env_checker=True)
    if name not in gym.registry:
        family = family_of(name)
        if family is not None:
            family.load(name)
        else:
            with contextlib.suppress(MissingExtraError):
                ATARI.load()  # older ids of games look like any other
    spec = gym.registry.get(name)
    if spec is not None:
        return spec
    # Versions look alike in all ids.
    plain = {_VERSION.sub("", known).lower(): known for known in gym.registry}
    close = difflib.get_close_matches(_VERSION.sub("", name).lower(), plain, n=1, cutoff=0.75)
    if close:
        advice = f"Did you mean '{plain[close[0]]}'?"
    elif module:
        own = [k for k, s in gym.registry.items() if str(s.entry_point).startswith(module)]
        listed = f"it registers {', '.join(own[:12])}" if own else "it registers none"
        advice = f"The module '{module}' was imported; {listed}."
    else:
        advice = f"Name the module that registers it, as in 'my_package.envs:{name}'."
        installed = [module for module in dependents("gymnasium", name) if module != "assay"]
        if installed:
            advice += f" Installed, and may register it: {', '.join(installed[:6])}."
    raise EnvError(f"No environment is registered as '{name}'.", advice)


def _import(module: str, env_id: str) -> Any:
    try:
        return import_named(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise EnvError(
                f"There is no module '{module}', which '{env_id}' names.",
                "Install the package, or run from the directory that holds it.",
            ) from None
        raise env_failure(error, f"The module '{module}' could not be imported") from error
    except Exception as error:
        raise env_failure(error, f"The module '{module}' could not be imported") from error


def _from_vector_env(env: gym.vector.VectorEnv[Any, Any, Any], asked: _Asked) -> Vector:
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    _refuse_for_object(name, asked, ("auto", "vector"))
    if asked.options:
        raise EnvError(
            f"reset_options={asked.options} cannot be given to the vector environment "
            f"'{name}', which starts its episodes itself.",
            "Give the environment's id or a factory, or let it start them so by itself.",
        )
    if asked.limit is not None:
        raise EnvError(
            f"max_episode_steps={asked.limit} cannot be set for the vector environment '{name}', "
            "which ends its episodes itself.",
            "Set the limit where you make it, or give the environment's id or a factory.",
        )
    if asked.num_envs is not None and asked.num_envs != env.num_envs:
        raise EnvError(
            f"num_envs={asked.num_envs}, but the vector environment '{name}' has {env.num_envs}.",
            f"Leave num_envs out, or set it to {env.num_envs}.",
        )
    own = None if env.spec is None else env.spec.max_episode_steps
    return Vector(Batched(env, name, text=asked.text), name, limit=own)


def _from_env(env: gym.Env[Any, Any], asked: _Asked) -> Vector:
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    _refuse_for_object(name, asked, ("auto", "sync"))
    if hasattr(env.unwrapped, "num_envs") and hasattr(env.unwrapped, "single_action_space"):
        raise EnvError(
            f"'{name}' steps {env.unwrapped.num_envs} copies, although it is not a VectorEnv.",
            "Give assay.envs.tensor_vector.TensorVectorEnv(env).",
        )
    if asked.count != 1:
        raise EnvError(
            f"num_envs={asked.count}, but '{name}' is one environment, which cannot be copied.",
            "Give a function that makes the environment, or set num_envs=1.",
        )
    made = env if asked.limit is None else make_limited(lambda: env, name, asked.limit)
    if asked.options:
        made = ResetOptions(made, asked.options, name)
    if asked.inside is not None:
        made = asked.inside.inside(made, asked.training)
    return Vector(Sync([lambda: made], name, text=asked.text), name, limit=own_limit(made))


def _from_factory(
    factory: Factory,
    name: str,
    asked: _Asked,
    frame_stack: int | None = None,
    limit: int | None = None,
    bound: int | None = EPISODE_BOUND,
) -> Vector:
    if asked.backend not in ("auto", "sync", "processes"):
        raise EnvError(
            f"The backend '{asked.backend}' needs an environment's id, not the factory '{name}'.",
            "Use the backend sync or processes.",
        )
    if asked.options:
        factory = partial(make_with_options, factory, asked.options, name)
    if asked.inside is not None:
        factory = partial(make_inside, factory, asked.inside, asked.training)
    factories = [factory] * asked.count
    if asked.backend == "processes":
        from assay.envs.processes import Processes

        processes = Processes(factories, name, asked.workers, bound, asked.text)
        return Vector(processes, name, frame_stack, limit)
    sync = Sync(factories, name, bound, asked.text)
    return Vector(sync, name, frame_stack, limit or own_limit(sync.first_env()))


def _from_id(env_id: str, asked: _Asked) -> Vector:
    kwargs, limit = _take_limit(env_id, asked.kwargs, asked.limit)
    backend, settings, training = asked.backend, asked.atari, asked.training
    repeat = 1 if asked.inside is None else asked.inside.repeats()
    native_fits = env_id in NATIVE and not (kwargs or asked.remake or asked.options)
    native_fits = native_fits and repeat is not None
    if backend == "native" and not native_fits:
        reason = (
            f"has no setting {sorted({*kwargs, *asked.remake})}"
            if env_id in NATIVE
            else "does not exist"
        )
        if env_id in NATIVE and asked.inside is not None:
            reason = f"cannot {asked.inside.does}"
        if env_id in NATIVE and asked.options:
            reason = "takes no reset_options"
        raise EnvError(
            f"The native version of '{env_id}' {reason}.",
            f"Use the backend auto. Native ones: {', '.join(sorted(NATIVE))}.",
        )
    if native_fits and backend in ("native", "auto"):
        native = make_native(env_id, asked.count, limit, repeat=repeat or 1)
        batched = Batched(native, env_id, trusted=True, text=asked.text)
        return Vector(batched, env_id, limit=native.max_episode_steps)
    boards = env_id in GAMES and "render_mode" not in kwargs and not asked.options
    if boards and backend in ("auto", "vector"):
        played = make_boards(env_id, asked.count, kwargs, limit, training)
        return Vector(Batched(played, env_id, trusted=True), env_id, limit=played.game.cells)
    spec = find_spec(env_id)
    if asked.options and spec.entry_point is None:
        raise EnvError(
            f"reset_options={asked.options} cannot be given: '{spec.id}' exists only as a vector "
            "environment, which starts its episodes itself.",
            "Leave reset_options out, or register a single version of it (entry_point).",
        )
    atari = preprocesses(spec, kwargs, settings)
    stack = settings.frame_stack if atari else None
    if is_dm_control(spec):
        stack = pixel_stack(kwargs)
    alike = asked.inside is None and not asked.remake and not asked.options
    vectorised = alike and _vector_fits(spec, kwargs, atari, limit)
    if backend == "vector" and not vectorised:
        unfit = _with_limit(kwargs, limit)
        unfit |= {"reset_options": asked.options} if asked.options else {}
        raise EnvError(
            f"'{spec.id}' has no vector version that fits"
            + (f" the settings {unfit}." if unfit else "."),
            "Use the backend auto or sync.",
        )
    declared = limit or (atari_limit(spec, kwargs, settings) if atari else spec.max_episode_steps)
    try:
        if vectorised and backend in ("auto", "vector"):
            if atari:
                env = make_atari_vector(spec, asked.count, kwargs, settings, training, limit)
            else:
                refuse_unknown(spec, spec.vector_entry_point, kwargs)
                env = gym.make_vec(
                    spec,
                    asked.count,
                    vectorization_mode="vector_entry_point",
                    **_with_limit(kwargs, limit),
                )
            ours = isinstance(env, NativeVectorEnv | NativeTeam)
            if isinstance(env, NativeTeam) and env.max_episode_steps <= EPISODE_BOUND:
                declared = env.max_episode_steps  # also of its own settings, as `max_cycles`
            return Vector(Batched(env, spec.id, ours, asked.text), spec.id, stack, declared)
        refuse_unknown(spec, spec.entry_point, kwargs)
    except (Exception, SystemExit) as error:
        raise _making_failure(error, spec, kwargs) from error
    # A worker process finds the spec of dm_control again: unpacking it would import dm_control
    # before anything could choose how it renders.
    known = env_id if is_dm_control(spec) else spec
    make_one: Callable[..., gym.Env[Any, Any]]
    make_one = partial(_make_one_or_explain, known, kwargs, settings, training, limit)
    if asked.remake:
        usual = usual_arguments(asked.remake, spec.entry_point, {**spec.kwargs, **kwargs}, spec.id)
        make_one = partial(Remade, make_one, usual)
    # ALE ends games itself, which no wrapper shows.
    bound = None if is_atari(spec) else EPISODE_BOUND
    return _from_factory(make_one, spec.id, asked, stack, declared, bound)


def _take_limit(
    env_id: str, kwargs: dict[str, Any], limit: int | None
) -> tuple[dict[str, Any], int | None]:
    """Return an id's settings without its time limit, and the limit, wherever it was given."""
    inside = kwargs.get("max_episode_steps")
    if inside is not None and limit is not None and inside != limit:
        raise EnvError(
            f"max_episode_steps={limit}, but env_kwargs say max_episode_steps={inside} for "
            f"'{env_id}'.",
            "Give it once.",
        )
    rest = {key: value for key, value in kwargs.items() if key != "max_episode_steps"}
    return rest, inside if limit is None else limit


def _with_limit(kwargs: dict[str, Any], limit: int | None) -> dict[str, Any]:
    return kwargs if limit is None else {**kwargs, "max_episode_steps": limit}


def _vector_fits(spec: EnvSpec, kwargs: dict[str, Any], atari: bool, limit: int | None) -> bool:
    # A single environment renders in every mode, and vector versions take no wrappers.
    if "render_mode" in kwargs or spec.additional_wrappers:
        return False
    if is_atari(spec):
        return atari and has_vector(spec, kwargs)
    if spec.vector_entry_point is None:
        return False
    if is_game(spec.id) and (kwargs.get("seat") != ALL_SEATS or "opponent" in kwargs):
        return False
    return limit is None or takes_limit(spec.vector_entry_point)


def _make_one(
    spec: EnvSpec,
    kwargs: dict[str, Any],
    settings: AtariSettings,
    training: bool,
    limit: int | None,
) -> gym.Env[Any, Any]:
    if preprocesses(spec, kwargs, settings):
        return make_atari(spec, kwargs, settings, training, limit)
    kwargs = _with_limit(kwargs, limit)
    if is_dm_control(spec):
        return make_dm_control(spec, kwargs)
    if str(spec.entry_point).startswith(ROBOTICS_PACKAGE):
        fix_joint_types()
    # The same checks are done here and by `assay envs check`; in every step they would cost time.
    with _silence_mujoco(spec):
        env = gym.make(spec, disable_env_checker=True, **kwargs)
    made: gym.Env[Any, Any] = as_joint(put_right(env, spec))
    return Symbols(made) if is_minigrid(spec) else made


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
    known: EnvSpec | str,
    kwargs: dict[str, Any],
    settings: AtariSettings,
    training: bool,
    limit: int | None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> gym.Env[Any, Any]:
    spec = find_spec(known) if isinstance(known, str) else known
    try:
        return _make_one(spec, {**kwargs, **more}, settings, training, limit)
    except (Exception, SystemExit) as error:
        raise _making_failure(error, spec, kwargs) from error


def _make_placed(found: Callable[..., Any], /, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment by a function or class that was named by its place."""
    made = make_joint(found, **kwargs)
    if not isinstance(made, gym.Env):
        raise EnvError(
            f"'{found.__module__}:{_name_of(found)}' returned a {type(made).__name__}; an "
            "environment was expected.",
            "Return a gymnasium.Env, or an environment of PettingZoo.",
        )
    return made


def _call(factory: Any, kwargs: dict[str, Any], more: Mapping[str, Any]) -> gym.Env[Any, Any]:
    made: gym.Env[Any, Any] = make_joint(factory, **{**kwargs, **more})
    return made


def _making_failure(error: BaseException, spec: EnvSpec, kwargs: Mapping[str, Any]) -> AssayError:
    """Explain why an environment could not be made."""
    if isinstance(error, AssayError):
        return error
    if isinstance(error, (ImportError, gym.error.DependencyNotInstalled)):
        old = "mujoco_py" in str(error)  # which no extra brings
        for start, (package, extra) in _EXTRAS.items():
            if str(spec.entry_point).startswith(start) and not old:
                return MissingExtraError(package, extra, f"The environment '{spec.id}'")
        newest = gym.envs.registration.find_highest_version(spec.namespace, spec.name)
        newer = newest is not None and newest > (spec.version or 0)
        fix = f"Use '{_VERSION.sub(f'-v{newest}', spec.id)}'." if newer else None
        return EnvError(f"'{spec.id}' needs a package that is not installed: {error}", fix)
    unknown = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if unknown is not None and unknown[1] == "render_mode":
        return EnvError(
            f"'{spec.id}' cannot be drawn: {unknown[0]}.",
            "Give it a parameter render_mode, and a render() that returns an image in the mode "
            "'rgb_array'.",
        )
    if unknown is not None and unknown[1] in kwargs:
        return EnvError(
            f"'{spec.id}' has no setting '{unknown[1]}': {unknown[0]}.",
            "Leave it out of env_kwargs, or use a name that its constructor takes.",
        )
    return env_failure(error, f"'{spec.id}' could not be made")


def _refuse_for_object(name: str, asked: _Asked, fitting: tuple[str, ...]) -> None:
    if asked.kwargs:
        raise EnvError(
            f"The environment '{name}' exists already, so {sorted(asked.kwargs)} cannot be set.",
            "Set them where you make it.",
        )
    if asked.backend not in fitting:
        raise EnvError(
            f"The backend '{asked.backend}' does not fit '{name}', which exists already.",
            "Give a function that makes the environment, or leave the backend out.",
        )


def _is_gymnasiums(env_id: str) -> bool:
    """Return whether an id is registered by Gymnasium itself."""
    spec = gym.registry.get(env_id)
    return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.")


def _name_of(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", None) or type(factory).__name__)
