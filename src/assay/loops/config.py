"""What a run is configured with, and how its settings are resolved.

One flat namespace: `env_steps=100_000 lr=3e-4` sets a run setting and a hyperparameter alike.
"""

from __future__ import annotations

import fnmatch
import importlib.resources
from collections.abc import Mapping
from typing import Any, Literal

import yaml
from pydantic import Field

from assay.core import registry
from assay.core.config import Model, parse
from assay.core.errors import ConfigError, nearest

OBJECT = " (object)"  # marks the name of an environment that was given as an object
# Settings of a preset that belong together: with another number of environments they do not fit.
_ROLLOUT_SHAPE = ("num_envs", "horizon", "chunk", "minibatch_size")


class RunSettings(Model):
    """Settings of a run that are not the algorithm's own."""

    env_steps: int = Field(100_000, gt=0, description="Environment steps to train for.")
    num_envs: int = Field(1, gt=0, le=65536, description="Environments stepped in parallel.")
    seed: int = Field(1, ge=0, description="The one seed that all randomness comes from.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    compile: Literal["auto"] | bool = Field(
        "auto", description="Compile optimizer steps: yes, no, or when it pays."
    )
    threads: int = Field(0, ge=0, description="Torch threads; 0 chooses by the network.")
    backend: Literal["auto", "native", "vector", "sync", "processes"] = Field(
        "auto", description="How environments are run in parallel."
    )
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments for the environment's constructor."
    )
    eval_every: int | None = Field(
        None, ge=0, description="Environment steps between evaluations; 0: only at the end."
    )
    eval_episodes: int = Field(20, gt=0, description="Episodes per evaluation.")
    checkpoint_every: int | None = Field(
        None, ge=0, description="Environment steps between checkpoints; 0: only at the end."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints kept; older ones go.")
    log_every: int | None = Field(None, ge=1, description="Environment steps between log lines.")
    sinks: tuple[Literal["tensorboard", "csv", "wandb", "mlflow", "trackio"], ...] = Field(
        ("tensorboard",), description="Where metrics go besides metrics.jsonl."
    )

    def resolved(self) -> RunSettings:
        """Return a copy in which every interval is a number."""
        tenth = max(1, self.env_steps // 10)
        return self.model_copy(
            update={
                "eval_every": tenth if self.eval_every is None else self.eval_every,
                "checkpoint_every": (
                    tenth if self.checkpoint_every is None else self.checkpoint_every
                ),
                "log_every": self.log_every or max(1, self.env_steps // 100),
            }
        )


class RunConfig(Model):
    """The fully resolved configuration, as `config.yaml` holds it."""

    algorithm: str
    env: str
    run: RunSettings
    hyperparameters: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for YAML."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Read what `to_dict` wrote."""
        return parse(cls, values, what="the run's config.yaml")


def preset(algorithm: str, env: str) -> dict[str, Any]:
    """Return the shipped settings for an algorithm on an environment (empty if none).

    Keys of a preset file are environment ids or patterns; an exact id wins over a pattern, and
    `default` lies under both.
    """
    source = importlib.resources.files("assay.presets").joinpath(f"{algorithm}.yaml")
    if not source.is_file():
        return {}
    table: dict[str, dict[str, Any]] = yaml.safe_load(source.read_text()) or {}
    chosen = dict(table.get("default", {}))
    if env in table:
        return chosen | table[env]
    for pattern, values in table.items():
        if fnmatch.fnmatchcase(env, pattern):
            return chosen | values
    return chosen


def resolve(
    algorithm: str,
    env: str,
    *layers: Mapping[str, Any],
    use_preset: bool = True,
    num_envs: int | None = None,
) -> RunConfig:
    """Combine defaults, preset and the user's layers (weakest first) into one configuration.

    Args:
        algorithm: Registry name.
        env: Environment id, or a label for an environment object.
        layers: Settings, flat or in the nested form of `config.yaml`.
        use_preset: Start from the shipped preset.
        num_envs: How many environments a given object holds, if it is one.

    Raises:
        ConfigError: An unknown key or a value out of range, with the nearest name.
    """
    cls = registry.get(algorithm)
    hp_fields = set(cls.Hyperparameters.model_fields)
    run_fields = set(RunSettings.model_fields)
    values = preset(cls.spec.name, env.removesuffix(OBJECT)) if use_preset else {}
    if num_envs is not None:
        if values.get("num_envs", 1) != num_envs:
            values = {k: v for k, v in values.items() if k not in _ROLLOUT_SHAPE}
        values["num_envs"] = num_envs
    for layer in layers:
        values |= _flat(layer, algorithm=cls.spec.name, env=env)
    unknown = [k for k in values if k not in hp_fields | run_fields]
    if unknown:
        hints = "; ".join(f"'{k}'. {nearest(k, hp_fields | run_fields)}" for k in unknown)
        raise ConfigError(
            f"Unknown setting for {cls.spec.name}: {hints}",
            f"`assay algorithms {cls.spec.name}` lists all of them.",
        )
    hp_values = {k: v for k, v in values.items() if k in hp_fields}
    hp = parse(cls.Hyperparameters, hp_values, what=cls.spec.name)
    run_values = {k: v for k, v in values.items() if k in run_fields}
    run = parse(RunSettings, run_values, what="the run").resolved()
    return RunConfig(
        algorithm=cls.spec.name, env=env, run=run, hyperparameters=hp.model_dump(mode="json")
    )


def _flat(layer: Mapping[str, Any], **asked: str) -> dict[str, Any]:
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
    return flat
