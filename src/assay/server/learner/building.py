"""From a registered spec to an algorithm: settings, canonical spaces, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from assay.algorithms.base import Algorithm, ReplayNeeds
from assay.core import registry, seeding
from assay.core.config import parse
from assay.core.errors import ConfigError, SpaceError, nearest
from assay.core.images import has_images
from assay.core.presets import preset
from assay.core.types import Clock, Spaces
from assay.envs.spaces import ActionMap, ObservationMap
from assay.loops.config import RunConfig, resolve
from assay.loops.run_settings import OnlineSettings
from assay.loops.training import build_algorithm
from assay.networks.custom import BUILT_IN, DEFAULT
from assay.optim.mode import has_compiler
from assay.policies.heads import StochasticHead
from assay.server.learner.messages import LearnerSettings
from assay.server.spec import PolicySpec, gym_space

PRESET = "preset"
# Of the settings of a run, those that mean something where clients run the environments.
RUN_SETTINGS = ("env_steps", "num_envs", "seed")
# Traits of on-policy algorithms that need more than segments of many clients.
_ALONE = {"levels", "designs"}
_OTHER = "Choose another: `assay algorithms` lists them."
IMPORTANCE_CLIP = 1.0  # of algorithms that offer it: clients act with policies out of date

_building = threading.Lock()  # initial weights come from torch's global generator


def read_settings(text: str) -> LearnerSettings:
    """Read the learner's settings from JSON.

    Raises:
        ConfigError: One is unknown or out of range.
    """
    return parse(LearnerSettings, json.loads(text or "{}"), what="the learner")


class Canonical:
    """A spec's arrays as an algorithm wants them.

    Attributes:
        spaces: What the algorithm sees and does. A Box of actions is cut to the spec's bounds.

    Raises:
        SpaceError: A space is not supported.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.observations = ObservationMap(gym_space(spec.observation))
        action = gym_space(spec.action)
        limits = spec.action_limits()
        if limits is not None and isinstance(action, gym.spaces.Box) and action.dtype.kind == "f":
            low, high = (limit.astype(action.dtype) for limit in limits)
            action = gym.spaces.Box(low, high, action.shape, action.dtype.type)
        self.actions = ActionMap(action)
        self.spaces = Spaces(self.observations.space, self.actions.space)

    def observation(self, prefix: str, fields: Mapping[str, Any]) -> Any:
        """Return the observations [T, ...] that the fields of a batch hold under a prefix."""
        leaves = self.observations.fields(prefix)
        parts = {leaf.key: leaf.batch(fields[name]) for name, leaf in leaves.items()}
        return parts[""] if self.observations.bare else parts

    def action(self, values: Any) -> Any:
        """Return the actions [T, ...] of a batch."""
        return self.actions.from_env(values)


def configure(spec: PolicySpec, settings: LearnerSettings) -> RunConfig:
    """Resolve a spec's settings as `assay train` would, for one stream of steps.

    On-policy, the rollouts of `num_envs` environments become one of `horizon` times as many steps,
    of whatever clients.

    Raises:
        ConfigError: A setting is unknown, out of range, or the server's to make.
    """
    cls = registry.get(spec.algorithm)
    named = f"The algorithm '{cls.spec.name}'"
    if cls.spec.loop in ("offline", "game"):
        source = "a file" if cls.spec.loop == "offline" else "the rules of a game"
        raise ConfigError(f"{named} learns from {source}, not from clients.", _OTHER)
    if cls.spec.expert is not None:
        raise ConfigError(f"{named} imitates an expert, which a server does not have.", _OTHER)
    if cls.plays_itself:
        raise ConfigError(f"{named} searches before it moves, which no client can do.", _OTHER)
    given = dict(spec.settings)
    base, without = given.pop(PRESET, ""), "Leave preset out to begin with the defaults."
    if not isinstance(base, str):
        why = "expected the id of an environment, such as 'CartPole-v1'"
        raise ConfigError(f"preset={base!r}: {why}.", without)
    if base and preset(cls.spec.name, base) == preset(cls.spec.name, ""):
        why = f"there are no shipped settings of {cls.spec.name} for it"
        raise ConfigError(f"preset={base!r}: {why}.", without)
    known = set(cls.Hyperparameters.model_fields)
    for key in given:
        if key in known or key in RUN_SETTINGS:
            continue
        if key in OnlineSettings.model_fields:
            raise ConfigError(
                f"The setting '{key}' belongs to a run of `assay train`, not to a policy on a "
                "server.",
                f"Leave it out. Besides hyperparameters there are: {', '.join(RUN_SETTINGS)} and "
                f"{PRESET}.",
            )
        raise ConfigError(
            f"Unknown setting for {cls.spec.name}: '{key}'. "
            f"{nearest(key, known | {*RUN_SETTINGS, PRESET})}",
            f"`assay algorithms {cls.spec.name}` lists all of them.",
        )
    network = given.get("network", DEFAULT)
    if network not in BUILT_IN:
        # A client must not choose which code runs here; `PolicySpec` checks the algorithm.
        raise ConfigError(
            f"network={network!r}: a policy on a server has one of Assay's own networks.",
            f"Use one of: {', '.join(BUILT_IN)}.",
        )
    # Policies of one server must not draw the same numbers.
    given.setdefault("seed", seeding.derive_seed(settings.seed, "policy", spec.name))
    config = resolve(cls.spec.name, base, given)
    values, num_envs = dict(config.hyperparameters), config.run.num_envs
    if cls.spec.loop == "on_policy" and "horizon" in values:
        values["horizon"] *= num_envs
    if "importance_clip" in values and "importance_clip" not in given:
        values["importance_clip"] = IMPORTANCE_CLIP
    # A learner has no end, so compiling pays wherever it is possible.
    possible = has_compiler() or settings.device != "cpu"
    compile = possible if settings.compile == "auto" else settings.compile
    run = config.run.model_copy(
        update={"num_envs": 1, "device": settings.device, "compile": compile}
    )
    return config.model_copy(update={"run": run, "hyperparameters": values})


def build(config: RunConfig, spaces: Spaces, clock: Clock) -> Algorithm:
    """Make the algorithm, or say why it cannot learn on a server.

    Raises:
        AssayError: It replays sequences, relabels goals or sees images, or settings do not go
            together.
    """
    if has_images(spaces.observation):
        raise SpaceError(
            "The observation has images, and their encoders cannot run in a client.",
            "Register observations that are vectors.",
        )
    with _building:
        algorithm = build_algorithm(config, spaces, clock)
        if config.run.compile and algorithm.initial_carry(1) is not None:
            # Its rollouts differ in shape, and each would be compiled again.
            run = config.run.model_copy(update={"compile": False})
            algorithm = build_algorithm(config.model_copy(update={"run": run}), spaces, clock)
    named, needs = f"The algorithm '{algorithm.spec.name}'", algorithm.needs
    if isinstance(needs, ReplayNeeds):
        if needs.her is not None:
            raise ConfigError(
                f"her={config.hyperparameters.get('her')!r}: hindsight needs the environment's "
                "reward function, which a server does not have.",
                "Leave her out of the settings.",
            )
        if needs.sequence is not None:
            raise ConfigError(
                f"{named} replays sequences with the memory that acting had, which "
                "clients do not send.",
                "Choose recurrent_ppo, or put the recent past into the observation.",
            )
        if algorithm.gives_extras:
            raise ConfigError(f"{named} needs more of each step than clients send.", _OTHER)
    elif not isinstance(algorithm.policy.head, StochasticHead) or _ALONE & {*algorithm.spec.traits}:
        raise ConfigError(f"{named} cannot learn from segments of many clients.", _OTHER)
    lag = config.hyperparameters.get("actor_lag", 0)
    if lag:
        raise ConfigError(
            f"actor_lag={lag} imitates on one machine what clients of a server do by themselves.",
            "Leave actor_lag out of the settings.",
        )
    return algorithm
