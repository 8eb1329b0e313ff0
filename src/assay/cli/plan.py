"""What a run is going to do, resolved and printed before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import ConfigError
from assay.core.wording import counted

if TYPE_CHECKING:
    import torch

    from assay.algorithms.base import Algorithm
    from assay.loops.config import RunConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that could start now: its settings are valid and fit the environment.

    Attributes:
        config: The fully resolved configuration.
        preset: "used", "none" or "off".
        device: Where the networks will be.
        updates: How optimizer steps will be executed, in words.
        source: Where the data comes from.
        replay_capacity: Transitions that the replay will hold, if there is one.
        replay_bytes: What it will allocate when full.
        fitted: Settings that were chosen by what the environment is, where there is no preset.
        cut: Sentences on what of the preset was cut to the rollout or the budget, or "".
    """

    config: RunConfig
    preset: str
    device: str
    updates: str
    source: str
    replay_capacity: int | None
    replay_bytes: int
    fitted: Mapping[str, Any]
    cut: str

    def describe(self) -> str:
        """Return a line about what is going to happen, and one about settings that were chosen."""
        from assay.envs.recorded import NO_ENV

        run = self.config.run
        parts = [
            f"{run.total:,} {run.unit}",
            self.source,
            f"on {self.device}",
            f"preset {self.preset}",
            self.updates,
        ]
        if self.replay_capacity is not None:
            from assay.buffers.allocation import human_bytes

            parts.append(
                f"a replay of {self.replay_capacity:,} transitions that grows to "
                f"{human_bytes(self.replay_bytes)}"
            )
        where = "without an environment" if self.config.env == NO_ENV else f"on {self.config.env}"
        first = f"{self.config.algorithm} {where}: {', '.join(parts)}"
        if not self.fitted:
            return f"{first}\n{self.cut}".rstrip()
        chosen = " ".join(f"{key}={value}" for key, value in self.fitted.items())
        why = "the preset is off" if self.preset == "off" else "there is no preset for it"
        return (
            f"{first}\nDefaults for this kind of environment, because {why}: {chosen}. "
            "Tune them with key=value."
        )


def split_words(words: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Return the names and the `key=value` items of a command line, which begins with the names.

    Both names can be left out, so an item may stand where the command line expects a name.

    Raises:
        ConfigError: There are more than two names, or one stands behind an item.
    """
    given = [word for word in words if word is not None]
    items = [i for i, word in enumerate(given) if "=" in word]
    count = items[0] if items else len(given)
    names, settings = given[:count], given[count:]
    extra = [*names[2:], *(word for word in settings if "=" not in word)]
    if extra:
        raise ConfigError(
            f"'{extra[0]}' is not a setting.", "Use ALGO ENV key=value, such as lr=3e-4."
        )
    return names, settings


def choose_task(
    names: Sequence[str], file_settings: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the algorithm and the environment of a run, from names or from settings of both kinds.

    Raises:
        ConfigError: Nothing names one of them, two places name different ones, or a file names an
            environment that was an object.
    """
    chosen = []
    given = dict(zip(("algorithm", "env"), names, strict=False))
    for key, what in (("algorithm", "ALGO"), ("env", "ENV")):
        named = given.get(key) or settings.get(key) or file_settings.get(key)
        if named is None and key == "env":
            from assay.loops.recorded import env_of

            named = env_of(file_settings, settings)
        if named is None:
            raise ConfigError(
                f"Nothing names the {'environment' if key == 'env' else key}.",
                f"Give {what} on the command line (assay train ALGO ENV), or a --config file "
                f"with '{key}: ...'.",
            )
        _refuse_other(key, str(named), file_settings, "The file")
        _refuse_other(key, str(named), settings, "A setting")
        chosen.append(str(named))
    if file_settings.get("env_is_object"):
        raise ConfigError(
            f"The file is of a run whose environment '{chosen[1]}' was given as an object, which "
            "no file holds.",
            "Start it from Python: assay.train(algorithm, env, config=...).",
        )
    return chosen[0], chosen[1]


def read_settings(
    assignments: list[str], config: Path | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the YAML file and those of the command line.

    `options` are settings that have their own option; None means not given.

    Raises:
        ConfigError: The file or an item is malformed, or a setting is given twice.
    """
    from assay.core.config import parse_assignments, read_yaml

    values = parse_assignments(assignments)
    for key, value in options.items():
        if value is None:
            continue
        if key in values and values[key] != value:
            raise ConfigError(
                f"{key} is given twice: {key}={values[key]} and --{key} {value}.", "Give it once."
            )
        values[key] = value
    return read_yaml(config) if config is not None else {}, values


def make_plan(
    algorithm: str,
    env: str,
    file_settings: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    use_preset: bool = True,
) -> Plan:
    """Resolve the settings and try them on the environment, without training anything.

    The algorithm is built once for this, which is what finds a space that it cannot handle and
    what knows the replay that it will ask for. A file of data is read once, which is what finds
    one that does not fit. The environment is closed again.

    Raises:
        AssayError: The run could not start; the message says why.
    """
    from assay.algorithms.base import ReplayNeeds, RolloutNeeds
    from assay.buffers.replay import replay_bytes
    from assay.core.presets import preset
    from assay.data.files import load
    from assay.data.findings import require_valid
    from assay.envs.make import look_at
    from assay.loops.collect import refuse_levels
    from assay.loops.config import resolve
    from assay.loops.off_policy import fillable
    from assay.loops.recorded import run_vector, telling_of_data
    from assay.loops.run_settings import FineTuneSettings, GameSettings, OfflineSettings
    from assay.loops.training import build_algorithm, choose_device

    layers = (algorithm, env, file_settings, settings)
    telling = partial(telling_of_data, *layers[1:])
    with telling():
        config = resolve(*layers, use_preset=use_preset, look=partial(look_at, env))
    plain = resolve(*layers, use_preset=use_preset)
    run = config.run
    device = choose_device(run.device)
    backend = "auto" if run.backend == "processes" else run.backend
    with telling(), run_vector(config, None, 1, backend) as vector:
        spaces = vector.spaces
        observations, actions = vector.observations, vector.actions
        tree = vector.game_tree() if isinstance(run, GameSettings) else None
        # A trial on the CPU: several seeds may share one GPU, and the parent needs none of it.
        trial = config.model_copy(update={"run": run.model_copy(update={"device": "cpu"})})
        built = build_algorithm(trial, spaces, run.clock())
        levels = built.design()
        if levels is not None:
            refuse_levels(vector, levels, algorithm)
        if isinstance(built.needs, ReplayNeeds) and built.needs.her is not None:
            vector.goal_functions()
    capacity, size = None, 0
    if isinstance(built.needs, ReplayNeeds):
        capacity = fillable(built.needs, vector, run.num_envs, run.total)
        size = replay_bytes(
            spaces,
            capacity,
            run.num_envs,
            frame_stack=vector.frame_stack,
            prioritized=built.needs.prioritized is not None,
        )
    source = counted(run.num_envs, "environment")
    if isinstance(built.needs, RolloutNeeds):
        source += _whole_rollouts(built.needs.horizon * run.num_envs, run.clock().total)
    if tree is not None:
        source = f"{len(tree.parent):,} histories, {tree.num_infosets:,} information sets"
    path = getattr(run, "data", None)
    if path is not None:
        data = load(path)
        require_valid(data, observations, actions)
        recorded = f"{counted(len(data), 'transition')} of {path.name}"
        alone = isinstance(run, OfflineSettings)
        source = recorded if alone else f"{source} and {recorded}"
        if isinstance(run, FineTuneSettings) and run.env_steps:
            source += f", the last {run.env_steps:,} env_steps with the environment"
    shipped = preset(config.algorithm, config.env)
    return Plan(
        config=config,
        preset="off" if not use_preset else "used" if shipped else "none",
        device=str(device),
        updates=_updates(built, device),
        source=source,
        replay_capacity=capacity,
        replay_bytes=size,
        fitted=_differences(config, plain),
        cut=_cut(config, shipped if use_preset else {}, {**_flat(file_settings), **settings}),
    )


def _cut(config: RunConfig, shipped: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return what became of settings of a preset that did not fit what was given."""
    name = "learning_starts"
    asked, start = shipped.get(name), config.hyperparameters.get(name)
    if asked is not None and asked != start and name not in given:
        return (
            f"The preset's {name}={asked:,} leaves nothing of env_steps={config.run.total:,}: "
            f"{name}={start:,} is used. Set another one with {name}=N."
        )
    name = "minibatch_size"
    asked, size = shipped.get(name), config.hyperparameters.get(name)
    if asked is None or asked == size or name in given:
        return ""
    envs, horizon = config.run.num_envs, config.hyperparameters["horizon"]
    return (
        f"The preset's {name}={asked} does not fit the rollout of {envs * horizon:,} = num_envs "
        f"{envs} x horizon {horizon}: {name}={size} is used. Set another one with {name}=N."
    )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, of which some may be in the nested form of config.yaml."""
    return {**values, **values.get("run", {}), **values.get("hyperparameters", {})}


def _whole_rollouts(size: int, budget: int) -> str:
    """Return a note where whole rollouts take much more than the budget."""
    taken = -(-budget // size) * size
    if taken <= 1.1 * budget:
        return ""
    return f", in whole rollouts of {size:,} env_steps: {taken:,} in all"


def _updates(algorithm: Algorithm, device: torch.device) -> str:
    """Return in words how the optimizer steps of a run will be executed."""
    if not algorithm.steps:
        return "exact updates"
    mode = algorithm.mode(device)
    if mode != "auto":
        return f"{mode.replace('_', ' ')} updates"
    if algorithm.is_worth_compiling:
        return "eager updates until compiled ones are ready"
    return "eager updates unless compiled ones are cached"


def _differences(config: RunConfig, plain: RunConfig) -> dict[str, Any]:
    """Return the settings of a configuration that a plain one has otherwise."""
    ours, theirs = config.to_dict(), plain.to_dict()
    return {
        key: value
        for part in ("run", "hyperparameters")
        for key, value in ours[part].items()
        if value != theirs[part][key]
    }


def _refuse_other(key: str, given: str, settings: Mapping[str, Any], where: str) -> None:
    inside = settings.get(key)
    if inside is not None and str(inside).lower() != given.lower():
        raise ConfigError(
            f"{where} says {key}: {inside}, but the command line says {given}.",
            f"Give the same {key} in both places, or in one of them only.",
        )
