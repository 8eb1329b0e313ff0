"""What a run is configured with, and how its settings are resolved.

One flat namespace: `env_steps=100_000 lr=3e-4` sets a run setting and a hyperparameter alike.
Which run settings there are depends on the loop: one that collects has a budget of `env_steps`, one
that learns from data has a budget of `updates`. So `updates` can be a hyperparameter of the first.
Algorithms that `takes_both` have `data` beside the first, and `env_steps` beside the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticSerializationError

from assay.core import registry
from assay.core.config import Model, Settings, parse
from assay.core.errors import ConfigError, nearest
from assay.core.paths import OTHER_NAMES_OF_RUN_FOLDER
from assay.core.presets import preset
from assay.core.types import Problem, Sight
from assay.envs.games.registry import ALL_SEATS, is_game
from assay.envs.recorded import NO_ENV
from assay.loops.run_settings import (
    AnySettings,
    FineTuneSettings,
    GameSettings,
    OfflineSettings,
    OnlineSettings,
    RunSettings,
    model_of,
    settings_model,
)

Look = Callable[[Mapping[str, Any]], Sight]  # finds what there is, given `env_settings` of a run

_OBJECT = " (object)"  # what the names of environments ended in that were given as objects
# Settings of a preset that belong together: with another number of environments they do not fit.
_ROLLOUT_SHAPE = ("num_envs", "horizon", "chunk", "minibatch_size")
# What other libraries call our settings. Where one of their names means two things, both are here.
_ELSEWHERE = {
    "learning_rate": ("lr",), "step_size": ("lr",), "qf_learning_rate": ("critic_lr",),
    "total_timesteps": ("env_steps", "updates"), "timesteps": ("env_steps", "updates"),
    "max_steps": ("env_steps", "updates"), "n_envs": ("num_envs",),
    "n_steps": ("horizon", "n_step"), "num_steps": ("horizon",), "rollout_length": ("horizon",),
    "n_epochs": ("epochs",),
    "update_epochs": ("epochs",), "num_epochs": ("epochs",), "batch_size": ("minibatch_size",),
    "ent_coef": ("entropy_coef", "alpha"), "vf_coef": ("value_coef",), "clip_range": ("clip",),
    "clip_coef": ("clip",), "clip_range_vf": ("value_clip",), "net_arch": ("hidden",),
    "hidden_sizes": ("hidden",), "activation_fn": ("activation",), "train_freq": ("train_every",),
    "gradient_steps": ("updates",), "utd_ratio": ("updates",), "replay_ratio": ("updates",),
    "polyak": ("tau",), "target_update_interval": ("target_every",),
    "target_network_frequency": ("target_every",), "discount": ("gamma",),
    "replay_size": ("buffer_size",), "max_time_steps": ("max_episode_steps",),
    "learning_start": ("learning_starts",), "start_steps": ("learning_starts",),
    "exploration_fraction": ("epsilon",), "exploration_final_eps": ("epsilon",),
    "exploration_initial_eps": ("epsilon",), "max_gradient_norm": ("max_grad_norm",),
    "grad_clip": ("max_grad_norm",), "n_eval_episodes": ("eval_episodes",),
    "eval_freq": ("eval_every",), "save_freq": ("checkpoint_every",),
    "options": ("reset_options",), "encoder": ("cnn",),
}  # fmt: skip
# What names the folder of a run, here or elsewhere; no setting does.
_PLACES = ("name", "root", "run_name", "exp_name", *OTHER_NAMES_OF_RUN_FOLDER)
# Run settings that not every loop has: why an algorithm has none, and what to do.
_OF_ONE_LOOP = {
    "env_steps": ("collects nothing and is trained for updates", "Set updates instead."),
    "num_envs": ("steps one environment at most", "Leave num_envs out."),
    "updates": ("collects its data and is trained for env_steps", "Set env_steps instead."),
    "data": ("takes no recorded data", "Leave data out, or choose an offline algorithm."),
    "expert": ("imitates nobody", "Leave expert out, or choose gail, airl or dagger."),
    "reward_model": ("takes no learned reward", "Leave it out, or choose ppo, sac or redq."),
    "expert_episodes": ("takes no episodes of an expert", "Leave expert_episodes out."),
}


class RunConfig(Model):
    """The fully resolved configuration, as `config.yaml` holds it.

    Attributes:
        algorithm: Registry name.
        env: The environment's id, or the name of the object that was given; "none" if there is
            only recorded data.
        env_is_object: Whether it was given as an object, which no file can hold.
        run: Settings of the run.
        hyperparameters: Settings of the algorithm.
    """

    algorithm: str
    env: str
    env_is_object: bool = False
    run: AnySettings
    hyperparameters: dict[str, Any]

    @property
    def env_label(self) -> str:
        """Return what people see: an object need not be what its name says."""
        return f"{self.env} (object)" if self.env_is_object else self.env

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for YAML.

        Raises:
            ConfigError: A value is none, such as an array in `env_kwargs`.
        """
        try:
            return self.model_dump(mode="json")
        except PydanticSerializationError as error:
            raise ConfigError(
                f"config.yaml cannot hold a value of the settings: {error}.",
                "Give numbers, texts, lists and dicts of them (array.tolist()), or give a function "
                "that makes the environment.",
            ) from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Read what `to_dict` wrote, here or in an earlier version.

        Raises:
            ConfigError: A setting is missing, unknown or out of range.
        """
        values, what = _without_suffix(values), "the run's config.yaml"
        run = values.get("run")
        if isinstance(run, Mapping):
            values = {**values, "run": parse(model_of(run), run, what=what)}
        return parse(cls, values, what=what)


def _who_has(setting: str) -> list[str]:
    """Return the names of our algorithms that have a setting."""
    names = sorted(registry.built_in())
    return [n for n in names if setting in registry.get(n).Hyperparameters.model_fields]


def _hint(unknown: str, known: set[str]) -> str:
    """Return the name of a setting here that has another one in other libraries, or the nearest."""
    if unknown in _PLACES:
        return "The run's folder is ROOT/NAME: --root ROOT --name NAME, in Python root= and name=."
    own = [name for name in _ELSEWHERE.get(unknown, ()) if name in known]
    return f"It is called '{own[0]}' here." if own else nearest(unknown, known)


def resolve(
    algorithm: str,
    env: str,
    *layers: Mapping[str, Any],
    use_preset: bool = True,
    num_envs: int | None = None,
    env_is_object: bool = False,
    look: Look | None = None,
) -> RunConfig:
    """Combine defaults, preset and the user's layers (weakest first) into one configuration.

    What the user left open and no preset says is chosen by what the environment is
    (`Settings.fitted`). A preset for another number of environments than a given object holds
    says nothing about rollouts, and its minibatches are cut to a rollout that was given, as is the
    start of its learning to a budget.

    Args:
        algorithm: Registry name.
        env: Environment id, or the name of an environment object.
        layers: Settings, flat or in the nested form of `config.yaml`.
        use_preset: Start from the shipped preset.
        num_envs: How many environments a given object holds, if it is one.
        env_is_object: Whether the environment is given as an object.
        look: Looks at the environment, given `RunSettings.env_settings`. Without it, defaults are
            those of the fields.

    Raises:
        ConfigError: An unknown key or a value out of range, with the nearest name.
    """
    cls = registry.get(algorithm)
    name = algorithm if ":" in algorithm else cls.spec.name  # where it is found again
    model = settings_model(cls)
    hp_fields, run_fields = set(cls.Hyperparameters.model_fields), set(model.model_fields)
    _refuse_clashes(name, hp_fields & run_fields)
    values = preset(name, env) if use_preset else {}
    open_ones = set() if values else hp_fields | {"num_envs"}  # what is to be fitted
    if num_envs is not None and "num_envs" in run_fields:
        if values.get("num_envs", 1) != num_envs:
            open_ones |= values.keys() & set(_ROLLOUT_SHAPE)
            values = {k: v for k, v in values.items() if k not in _ROLLOUT_SHAPE}
        values["num_envs"] = num_envs
    asked = {"algorithm": name, "env": env, "env_is_object": env_is_object}
    given: dict[str, Any] = {}
    for layer in layers:
        _refuse_other_loops(name, layer.get("run"), model)
        given |= _flat(_without_suffix(layer), asked)
    values |= given | _cut_minibatch(values | given, given) | _cut_start(values | given, given)
    _refuse_other_loops(name, {k: v for k, v in values.items() if k not in hp_fields}, model)
    kwargs = values.get("env_kwargs") or {}
    if cls.spec.agents == "many" and is_game(env) and isinstance(kwargs, Mapping):
        values["env_kwargs"] = {"seat": ALL_SEATS, **kwargs}
    unknown = [k for k in values if k not in hp_fields | run_fields]
    if unknown:
        hints = " ".join(f"'{k}'. {_hint(k, hp_fields | run_fields)}" for k in unknown)
        fix = f"`assay algorithms {name}` lists all of them."
        if "Known: " in hints:  # it resembles none of ours
            own = f"{unknown[0]}: {values[unknown[0]]}"
            others = ", ".join(_who_has(unknown[0]))
            fix += (
                f" '{unknown[0]}' is a setting of {others}."
                if others
                else f" What the environment itself takes goes into env_kwargs='{{{own}}}'."
            )
        raise ConfigError(f"Unknown setting for {name}: {hints}", fix)
    if issubclass(model, OfflineSettings) and "data" not in values:
        raise ConfigError(
            f"{name} learns from recorded data, and no file is given.", "Set data=FILE.npz."
        )
    if "expert" in run_fields and "expert" not in values:
        raise ConfigError(
            f"{name} imitates an expert, and none is given.",
            f"Set expert: {model.model_fields['expert'].description}",
        )
    if values.get("reward_model") is not None and "n_step" in hp_fields:
        values.setdefault("n_step", 1)  # a learned reward is one of single steps
    hp = parse(cls.Hyperparameters, {k: v for k, v in values.items() if k in hp_fields}, what=name)
    run = parse(model, {k: v for k, v in values.items() if k in run_fields}, what="the run")
    _refuse_idle(name, hp, run)
    if env == NO_ENV and look is not None and not env_is_object:
        _require_data_alone(name, run)
    open_ones -= values.keys()
    if look is not None and open_ones and isinstance(run, OnlineSettings):
        seen = look(run.env_settings())
        problem = Problem(seen.spaces, run.env_steps, seen.episode_steps)
        hp, run = _fit(problem, hp, run, set(values), open_ones)
    return RunConfig(**asked, run=run.resolved(), hyperparameters=hp.model_dump(mode="json"))


def _cut_minibatch(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return a preset's minibatch size as it fits a rollout of another size that was given."""
    shape: list[Any] = [values.get(k) for k in ("num_envs", "horizon", "minibatch_size")]
    if "minibatch_size" in given or not given.keys() & {"num_envs", "horizon"}:
        return {}
    if not all(isinstance(value, int) and value > 0 for value in shape):
        return {}
    (envs, horizon, size), chunk = shape, values.get("chunk", 1)
    fitting = [n for n in range(size, 0, -1) if envs * horizon % n == 0 and n % chunk == 0]
    return {"minibatch_size": fitting[0]} if fitting else {}


def _cut_start(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return when learning starts, where a preset would start after a budget that was given."""
    start, budget = values.get("learning_starts"), given.get("env_steps")
    if "learning_starts" in given or not isinstance(start, int):
        return {}
    if not isinstance(budget, int | float):
        return {}
    return {"learning_starts": int(budget) // 20} if 0 < budget <= start else {}


def _fit(
    problem: Problem, hp: Settings, run: OnlineSettings, given: set[str], open_ones: set[str]
) -> tuple[Settings, OnlineSettings]:
    """Return the settings with defaults for a problem in place of those that are open.

    A default is not taken where it would have no effect beside what was given, or would leave
    something that was given without effect.
    """
    own = type(hp).model_fields
    decided = {k: getattr(hp if k in own else run, k) for k in given}
    fitted = {k: v for k, v in hp.fitted(problem, decided).items() if k in open_ones}
    run = run.model_copy(update={k: v for k, v in fitted.items() if k not in own})
    before = _unused(hp, problem)
    for name in [name for name in fitted if name in own]:  # in order
        trial = hp.model_copy(update={name: fitted[name]})
        if not (_unused(trial, problem) - before) & given:
            hp = trial
    void = _unused(hp, problem) & fitted.keys()
    defaults = {name: own[name].get_default(call_default_factory=True) for name in void}
    return hp.model_copy(update=defaults), run


def _unused(hp: Settings, problem: Problem) -> set[str]:
    return {name for name, _ in hp.all_unused(problem.spaces)}


def _require_data_alone(algorithm: str, run: RunSettings) -> None:
    """Refuse to train without an environment what has to step one."""
    if not isinstance(run, OfflineSettings):
        raise ConfigError(
            f"{algorithm} collects its data, and there is no environment to collect it in.",
            "Give ENV, or choose an algorithm that learns from recorded data.",
        )
    if isinstance(run, FineTuneSettings) and run.env_steps:
        raise ConfigError(
            f"env_steps={run.env_steps}, and there is no environment to go on with.",
            "Give ENV, or leave env_steps out.",
        )


def _refuse_clashes(algorithm: str, clashes: set[str]) -> None:
    if clashes:
        raise ConfigError(
            f"{algorithm} has hyperparameters with names of run settings: "
            f"{', '.join(sorted(clashes))}.",
            "Rename them in its Hyperparameters.",
        )


def _refuse_other_loops(algorithm: str, values: Any, model: type[RunSettings]) -> None:
    """Say why a run setting of another loop means nothing here."""
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if key in _OF_ONE_LOOP and key not in model.model_fields:
            why, fix = _OF_ONE_LOOP[key]
            raise ConfigError(f"{key}={value}: {algorithm} {why}.", fix)


def _refuse_idle(algorithm: str, hp: Settings, run: RunSettings) -> None:
    """Refuse a setting for recorded data beside an environment, in a run that has only one."""
    missing = "env_steps" if isinstance(run, OfflineSettings) else "data"
    for key in run.idle():
        owner = next((model for model in (hp, run) if key in type(model).model_fields), None)
        if owner is None:
            continue
        value, default = getattr(owner, key), type(owner).model_fields[key].default
        if value != default and isinstance(run, GameSettings):
            raise ConfigError(
                f"{key}={value} has no effect on {algorithm}, which has no network and plays "
                "nothing.",
                f"Leave {key} out.",
            )
        if value != default:
            raise ConfigError(
                f"{key}={value} has no effect on {algorithm} without {missing}.",
                f"Set {missing}, or leave {key} out.",
            )


def _flat(layer: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in layer.items():
        if key in ("run", "hyperparameters") and isinstance(value, Mapping):
            flat |= value
        elif key not in asked:
            flat[key] = value
        elif value != asked[key]:
            raise ConfigError(
                f"The settings say {key}={value!r}, but {asked[key]!r} was asked for.",
                f"Remove '{key}' from the settings, or ask for {value!r}.",
            )
    for key in flat:
        if not isinstance(key, str):  # YAML takes `on` and `3` for other things than names
            raise ConfigError(
                f"The settings have the key {key!r}; expected the name of a setting.",
                "Write lines such as `lr: 3e-4`.",
            )
    return flat


def _without_suffix(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the suffix by which earlier versions marked an environment that was an object."""
    env = values.get("env")
    if not isinstance(env, str) or not env.endswith(_OBJECT):
        return values
    return {**values, "env": env.removesuffix(_OBJECT), "env_is_object": True}
