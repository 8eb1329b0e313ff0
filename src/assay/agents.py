"""Agents of finished and running runs, and environments to play them in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.algorithms.base import Algorithm
from assay.algorithms.settings import NetworkSettings
from assay.core import registry
from assay.core.errors import AssayError, ConfigError, RunError
from assay.core.imports import code_hash
from assay.core.types import Clock, Spaces, Tree, tree_leaves
from assay.core.wording import counted
from assay.data.findings import bounds_of
from assay.envs.make import make_env, make_vector
from assay.envs.recorded import NO_ENV
from assay.envs.space_codec import space_from_state
from assay.envs.spaces import ActionMap, BadObservationError, Leaf, ObservationMap
from assay.envs.teams import team_from_state
from assay.envs.vector import Vector
from assay.evaluation.evaluate import rows_to_evaluate
from assay.loops.config import RunConfig
from assay.loops.training import build_algorithm
from assay.networks.custom import BUILT_IN, DEFAULT, find_factory
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.runs.provenance import warn_of_changed_code

# What Gymnasium's `make_vec` keeps in a spec besides the environment's own settings.
_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
_CHANGED = (
    "Set wrappers, env_kwargs and the environment in config.yaml to those of the training, or "
    "train again."
)


class Agent:
    """A trained policy, ready to act on the environment's own observations.

    Attributes:
        policy: What acts.
        algorithm: Who learned it, with all networks; it was loaded to be looked at, not to learn.
        observations: Turns the environment's observations into what the networks take.
        actions: Turns what the algorithm chooses into the environment's actions.
    """

    def __init__(
        self, algorithm: Algorithm, observations: ObservationMap, actions: ActionMap
    ) -> None:
        self.algorithm, self.policy = algorithm, algorithm.policy
        self.observations = observations
        self.actions = actions
        self._carry: Tree = None

    @property
    def clock(self) -> Clock:
        """Return how long it was trained: `clock.env_steps`, `clock.updates`."""
        return self.algorithm.clock

    def act(self, obs: Any, *, mask: Any = None, explore: bool = False, reward: Any = None) -> Any:
        """Return the action for one observation, or actions for a batch of them.

        A recurrent policy remembers from call to call; `reset` starts a new episode.

        Args:
            obs: As the environment gives it, or a batch of such.
            mask: The action mask, where the environment gives one in `info["action_mask"]`.
            explore: Sample as in training instead of taking the best action.
            reward: What the last action got, for a policy that acts by the return still to reach.

        Raises:
            AssayError: The observation or the mask is not what the agent was trained on.
        """
        try:
            # What float32 cannot hold becomes infinite, and is refused as such.
            with np.errstate(over="ignore"):
                batch, single = self._canonical(obs, self._checked(mask))
            self._require_values(batch)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise AssayError(
                f"The observation does not fit the agent: {error}.",
                f"Give one of {self.observations.source}, or a batch of such.",
            ) from None
        rows = len(tree_leaves(batch)[0])
        if self._carry is None:
            self._carry = self.policy.initial_carry(rows)
        elif (kept := len(tree_leaves(self._carry)[0])) != rows:
            raise AssayError(
                f"The agent remembers {counted(kept, 'episode')}, and was given "
                f"{counted(rows, 'observation')}.",
                "Call reset() before another number of episodes begins.",
            )
        elif reward is not None:
            self._carry = self.policy.rewarded(self._carry, np.reshape(reward, rows))
        choice = self.policy.act(batch, self._carry, explore)
        self._carry = choice.carry
        to_env = self.actions.to_env
        action = choice.action if to_env is None else to_env(choice.action)
        return action[0] if single else action

    def _checked(self, mask: Any) -> NDArray[Any] | None:
        # Without its mask the agent would choose among actions whose value it never learned.
        size = self.observations.mask_size
        if size is None and mask is not None:
            raise AssayError(
                "A mask is given, but the environment that the agent was trained in has none.",
                "Leave mask out.",
            )
        if size is not None and mask is None:
            raise AssayError(
                "The agent was trained with action masks, and was given none.",
                "Give it the mask of this state: agent.act(obs, mask=info['action_mask']).",
            )
        if size is not None and np.shape(mask)[-1:] != (size,):
            raise AssayError(
                f"The mask has the shape {np.shape(mask)}; expected {size} entries, 1 where an "
                "action is allowed and 0 where not."
            )
        return None if mask is None else np.asarray(mask)

    def _canonical(self, obs: Any, mask: Any) -> tuple[Tree, bool]:
        leaf = self.observations.leaves[0]
        shape, expected = np.shape(leaf.read(obs)), tuple(leaf.source.shape or ())
        if len(shape) == len(expected) + 1:
            return self.observations.batch(obs, mask), False
        return self.observations.one(obs, mask), True

    def _require_values(self, batch: Tree) -> None:
        """Refuse what networks would answer all the same."""
        counts = sorted({len(part) for part in tree_leaves(batch)})
        if len(counts) > 1:
            raise BadObservationError(f"its entries have {' and '.join(map(str, counts))} rows")
        if counts == [0]:
            raise BadObservationError("it holds no observations")
        for leaf in self.observations.leaves:
            _require_leaf(leaf, batch if self.observations.bare else batch[leaf.key])

    def reset(self) -> None:
        """Forget what a recurrent policy remembers."""
        self._carry = None


def _require_leaf(leaf: Leaf, rows: NDArray[Any]) -> None:
    if leaf.dtype.kind == "f":
        fits, expected = np.isfinite(rows), "a finite number"
    elif isinstance(leaf.space, gym.spaces.Box):  # environments leave such bounds
        return
    else:
        low, high = bounds_of(leaf.space)
        fits, expected = (rows >= low) & (rows <= high), f"a value of {leaf.source}"
    if not fits.all():
        row, place = np.argwhere(~fits.reshape(len(rows), -1))[0]
        given = leaf.restore(rows).reshape(len(rows), -1)[row, place]
        entry = f"entry '{leaf.key}'" if leaf.path else "the observation"
        raise BadObservationError(
            f"number {place} of row {row} of {entry} is {given:g}; expected {expected}"
        )


def require_one_agent(agent: Agent, what: str) -> None:
    """Refuse several agents where there is no way for them.

    Raises:
        ConfigError: The run has trained several; `what` does not work for it.
    """
    team = agent.algorithm.spaces.team
    if team is not None:
        raise ConfigError(
            f"{what} works for one agent; this run has trained {team.size}: "
            f"{', '.join(team.agents)}.",
            "Evaluate it (assay evaluate RUN), or export its policies (assay export RUN --onnx).",
        )


def load(
    path: Path | str,
    *,
    checkpoint_path: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Agent:
    """Return the agent of a run's last checkpoint (or of a given one), on the CPU.

    `settings` are hyperparameters that only acting reads, such as `target_return` of DT.

    Raises:
        CheckpointError: There is no checkpoint, or it is damaged.
        ConfigError: A setting cannot be changed after training.
    """
    directory = RunDirectory.open(Path(path))
    config = _acting(RunConfig.from_dict(directory.config), settings or {})
    place = checkpoint_path or checkpoint.latest(directory.checkpoints_path)
    if place is None:
        raise directory.no_checkpoint()
    warn_of_changed_code(directory.provenance, own_code(config))
    names = ("weights", "normalisers", "algorithm", "run")
    sections = checkpoint.read_checkpoint(place, names)
    saved = sections["run"]
    observations = ObservationMap(
        space_from_state(saved["observation"]), saved["mask_size"], config.run.embed_text
    )
    actions = ActionMap(space_from_state(saved["action"]))
    run = config.run.model_copy(update={"device": "cpu"})
    clock = run.clock()
    clock.env_steps, clock.updates = int(saved["env_steps"]), int(saved["updates"])
    algorithm = build_algorithm(
        config.model_copy(update={"run": run}),
        Spaces(observations.space, actions.space, team_from_state(saved.get("team"))),
        clock,
        learns=False,
    )
    algorithm.load_state(sections)
    return Agent(algorithm, observations, actions)


def own_code(config: RunConfig) -> dict[str, str | None]:
    """Return the hash of the source of a user's own algorithm and network, by name."""
    algorithm, own = registry.get(config.algorithm), {}
    if ":" in config.algorithm:
        own[config.algorithm] = algorithm
    if issubclass(algorithm.Hyperparameters, NetworkSettings):
        network = config.hyperparameters.get("network", DEFAULT)
        if network not in BUILT_IN:
            own[network] = find_factory(network)
    return {name: code_hash(named) for name, named in own.items()}


def _acting(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with other settings for acting."""
    allowed = registry.get(config.algorithm).acting_settings
    for key, value in settings.items():
        if key not in allowed:
            raise ConfigError(
                f"{key}={value}: {config.algorithm} cannot change it after training.",
                f"It can change: {', '.join(sorted(allowed))}."
                if allowed
                else "Leave it out: all its settings are those of the training.",
            )
    return config.model_copy(update={"hyperparameters": config.hyperparameters | dict(settings)})


def evaluation_vector(config: RunConfig, env: Any, episodes: int) -> Vector | None:
    """Make environments for evaluation, apart from those that train; None if they cannot be."""
    run, settings = config.run, config.run.env_settings()
    if env is None and config.env == NO_ENV:
        return None
    count = min(episodes, 16)
    if env is None and config.env_is_object:
        raise RunError(
            f"This run was given the environment '{config.env}' as an object, which is not stored.",
            "Pass it again: assay.resume(path, env=...) or assay.open_run(path, env=...).",
        )
    if env is None:
        backend = run.backend if run.backend != "processes" else "auto"
        return rows_to_evaluate(config.env, count, backend=backend, **settings)
    if isinstance(env, gym.vector.VectorEnv):
        # A wrapper around it cannot be made again, and the scores would be another task's.
        if env.spec is None or env is not env.unwrapped:
            return None
        kwargs = {k: v for k, v in env.spec.kwargs.items() if k not in _OF_VECTORS}
        same = settings | {"env_kwargs": kwargs}
        return rows_to_evaluate(env.spec.id, count, **same)
    if isinstance(env, gym.Env):
        try:
            own = copy.deepcopy(env)
        except Exception:  # an object may refuse to be copied in any way it likes
            return None
        return make_vector(own, 1, training=False, **settings)
    return rows_to_evaluate(env, count, **settings)


def drawable(config: RunConfig) -> Callable[..., gym.Env[Any, Any]]:
    """Return what makes the environment of a run with a `render_mode`."""

    def make(render_mode: str) -> gym.Env[Any, Any]:
        settings = {**config.run.env_kwargs, "render_mode": render_mode}
        limit, options = config.run.max_episode_steps, config.run.reset_options
        return make_env(
            config.env, env_kwargs=settings, reset_options=options, max_episode_steps=limit
        )

    return make


def required_vector(config: RunConfig, env: Any, episodes: int, fix: str) -> Vector:
    """Make environments for evaluation, or say why they cannot be made, and what to do.

    Raises:
        ConfigError: The run has no environment, or one that cannot be copied; `fix` is for those.
    """
    vector = evaluation_vector(config, env, episodes)
    if vector is not None:
        return vector
    if config.env == NO_ENV:
        raise ConfigError(
            "The run learned from recorded data and has no environment to play in.",
            "Estimate its return from data: assay evaluate RUN --offline SET.",
        )
    raise ConfigError(
        f"The environment '{config.env}' was given as an object that cannot be copied.", fix
    )


def require_spaces(spaces: Spaces, vector: Vector, fix: str = _CHANGED) -> None:
    """Refuse a world whose observations, actions or agents a run does not know.

    Raises:
        ConfigError: It has others.
    """
    known, found = (() if x.team is None else x.team.agents for x in (spaces, vector.spaces))
    if known != found:
        raise ConfigError(
            f"agents are {', '.join(found) or 'one'}; the run was trained on "
            f"{', '.join(known) or 'one'}.",
            fix,
        )

    def form(space: gym.Space[Any]) -> Any:
        if isinstance(space, gym.spaces.Dict):
            return {key: form(part) for key, part in space.items()}
        sizes = getattr(space, "nvec", np.zeros(0)).tolist()
        size = int(space.n) if isinstance(space, gym.spaces.Discrete) else None
        return type(space), space.shape, space.dtype, size, sizes

    for what in ("observation", "action"):
        before, after = getattr(spaces, what), getattr(vector.spaces, what)
        if form(before) != form(after):
            raise ConfigError(f"{what}s are {after}; the run was trained on {before}.", fix)
