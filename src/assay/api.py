"""The Python front door: train, resume, load, evaluate."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.algorithms.base import Algorithm
from assay.core import registry, seeding
from assay.core.errors import AssayError, CheckpointError, ConfigError, RunError
from assay.core.paths import runs_root
from assay.core.types import Clock, Spaces, Tree, tree_leaves
from assay.envs.make import EnvLike, look_at, make_vector
from assay.envs.space_codec import space_from_state
from assay.envs.spaces import ActionMap, BadObservationError, ObservationMap
from assay.envs.start_check import check_start
from assay.envs.vector import Vector
from assay.evaluation.evaluate import EvaluationResult, evaluate, save_evaluation
from assay.loops.config import RunConfig, resolve
from assay.loops.events import Callback
from assay.loops.training import Evaluator, Training, build_algorithm
from assay.runs import checkpoint, provenance
from assay.runs.directory import RunDirectory
from assay.runs.metrics import read_metrics

# What Gymnasium's `make_vec` keeps in a spec besides the environment's own settings.
_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")


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
            batch, single = self._canonical(obs, self._checked(mask))
        except (BadObservationError, KeyError, IndexError, TypeError) as error:
            raise AssayError(
                f"The observation does not fit the agent: {error}.",
                f"Give one of {self.observations.source}, or a batch of such.",
            ) from None
        rows = len(tree_leaves(batch)[0])
        if self._carry is None:
            self._carry = self.policy.initial_carry(rows)
        elif (kept := len(tree_leaves(self._carry)[0])) != rows:
            raise AssayError(
                f"The agent remembers {kept} episodes, and was given {rows} observations.",
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
                "The agent was given a mask, and its environment gave none beside observations.",
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

    def reset(self) -> None:
        """Forget what a recurrent policy remembers."""
        self._carry = None


class Run:
    """A run on disk, as `train` and `resume` return it.

    Attributes:
        path: The run directory.
        env: The environment object the run was given, if it was not an id.
    """

    def __init__(self, path: Path | str, env: Any = None) -> None:
        self.path = Path(path)
        self.env = env
        self.directory = RunDirectory.open(self.path)
        self.config = RunConfig.from_dict(self.directory.config)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, status={self.status!r})"

    @property
    def status(self) -> str:
        """Return "running", "done", "failed" or "interrupted"."""
        return RunDirectory.open(self.path).effective_status

    def metrics(self) -> dict[str, Any]:
        """Return `{name: (counts, values)}` of everything that was logged.

        The counts are environment steps, or updates where the run learned from data alone.
        """
        return read_metrics(self.directory.metrics_path)

    def agent(self) -> Agent:
        """Return the agent of the last checkpoint."""
        return load(self.path)

    def evaluate(
        self, episodes: int = 20, *, seed: int = 0, settings: Mapping[str, Any] | None = None
    ) -> EvaluationResult:
        """Play episodes with the deterministic policy of the last checkpoint.

        The result is stored in the run directory, every episode of it. `settings` are those of
        `load`.
        """
        agent = load(self.path, settings=settings)
        result = evaluate_agent(agent, self.config, self.env, episodes, seed)
        clock = agent.clock
        label = "-".join([f"seed{seed}", *(f"{k}={v}" for k, v in (settings or {}).items())])
        save_evaluation(self.directory, clock.count, result, label=label, unit=clock.unit)
        return result


def train(
    algorithm: str,
    env: EnvLike,
    *,
    name: str | None = None,
    root: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    preset: bool = True,
    callbacks: Sequence[Callback] = (),
    argv: Sequence[str] | None = None,
    **settings: Any,
) -> Run:
    """Train an agent and return its run.

    Args:
        algorithm: A name from `assay algorithms`.
        env: A Gymnasium id, an `Env`, a `VectorEnv`, or a factory of an `Env`.
        name: The run's name; made up if not given.
        root: Where runs are kept.
        config: Settings, for example read from a YAML file.
        preset: Start from the settings shipped for this algorithm and environment.
        callbacks: Called with every event (see `assay.events`); `assay.STOP` ends the run.
        argv: The command line that asked for this, for the provenance.
        **settings: Run settings and hyperparameters: `env_steps=100_000, lr=3e-4, seed=1`. An
            algorithm that learns from data alone has `updates` and `data` in place of `env_steps`.

    Raises:
        AssayError: A mistake in the settings, the environment or the machine, with its fix.

    Example:
        run = assay.train("ppo", "CartPole-v1", env_steps=100_000)
    """
    env_name, given = _describe(env)
    count = env.num_envs if isinstance(env, gym.vector.VectorEnv) else None
    if isinstance(env, gym.Env):
        count = 1
    resolved = resolve(
        algorithm,
        env_name,
        config or {},
        settings,
        use_preset=preset,
        num_envs=count,
        env_is_object=given is not None,
        look=partial(look_at, env),
    )
    directory = RunDirectory.create(
        runs_root(None if root is None else Path(root)),
        name,
        algorithm=resolved.algorithm,
        env=resolved.env_label,
        config=resolved.to_dict(),
        seed=resolved.run.seed,
    )
    try:
        directory.write_provenance(
            provenance.collect(
                list(sys.argv if argv is None else argv),
                seeds={"run": resolved.run.seed},
                files=resolved.run.files(),
            )
        )
        training, vector = _training(resolved, directory, given, callbacks)
    except BaseException as error:
        _discard(directory, error)
        raise
    try:
        training.run()
    finally:
        _close(vector)
    return Run(directory.path, given)


def resume(
    path: Path | str, *, env: Any = None, callbacks: Sequence[Callback] = (), force: bool = False
) -> Run:
    """Go on with a run from its last good checkpoint; it ends as if it had never stopped.

    Args:
        path: The run directory.
        env: The environment object, if the run was not given an id.
        callbacks: Called with every event.
        force: Fall back to an older checkpoint where the last one is damaged.

    Raises:
        RunError: The run is finished, is being trained by another process, or its data changed.
        CheckpointError: The checkpoint is damaged; the one before it is named.
    """
    directory = RunDirectory.open(Path(path))
    config = RunConfig.from_dict(directory.config)
    if directory.status == "done":
        raise RunError(
            f"The run '{path}' is done: it reached {config.run.unit}={config.run.total}.",
            f"Start a new run with a larger {config.run.unit}.",
        )
    provenance.refuse_changed_files(directory.provenance, config.run.files())
    directory.lock()
    try:
        start = checkpoint.latest(directory.checkpoints_path)
        if start is not None:
            try:
                checkpoint.verify_checkpoint(start)
            except CheckpointError:
                older = checkpoint.previous_good(start)
                if not force or older is None:
                    raise
                start.rename(start.with_name(f"{start.name}.damaged"))
                start = older
        directory.set_status("running")
        training, vector = _training(config, directory, env, callbacks)
    except BaseException:
        directory.unlock()
        raise
    try:
        training.run(start)
    finally:
        _close(vector)
    return Run(directory.path, env)


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
        raise CheckpointError(
            f"The run '{path}' has no checkpoint yet.", "Wait for the first one, or resume it."
        )
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
        Spaces(observations.space, actions.space),
        clock,
        learns=False,
    )
    algorithm.load_state(sections)
    return Agent(algorithm, observations, actions)


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


def open_run(path: Path | str, env: Any = None) -> Run:
    """Return a run that is on disk."""
    return Run(path, env)


def evaluate_agent(
    agent: Agent, config: RunConfig, env: Any, episodes: int, seed: int
) -> EvaluationResult:
    """Evaluate an agent in the environment of a configuration."""
    vector = evaluation_vector(config, env, episodes)
    if vector is None:
        raise ConfigError(
            f"The environment '{config.env}' was given as an object that cannot be copied.",
            "Call assay.evaluate(agent.policy, env, ...) with an environment of your own.",
        )
    try:
        return evaluate(agent.policy, vector, episodes=episodes, seed=seed)
    finally:
        vector.close()


def evaluation_vector(config: RunConfig, env: Any, episodes: int) -> Vector | None:
    """Make environments for evaluation, apart from those that train; None if they cannot be."""
    run, settings = config.run, config.run.env_settings()
    count = min(episodes, 16)
    if env is None and config.env_is_object:
        raise RunError(
            f"This run was given the environment '{config.env}' as an object, which is not stored.",
            "Pass it again: assay.resume(path, env=...) or assay.open_run(path, env=...).",
        )
    if env is None:
        backend = run.backend if run.backend != "processes" else "auto"
        return make_vector(config.env, count, backend=backend, training=False, **settings)
    if isinstance(env, gym.vector.VectorEnv):
        # A wrapper around it cannot be made again, and the scores would be another task's.
        if env.spec is None or env is not env.unwrapped:
            return None
        kwargs = {k: v for k, v in env.spec.kwargs.items() if k not in _OF_VECTORS}
        same = settings | {"env_kwargs": kwargs}
        return make_vector(env.spec.id, count, training=False, **same)
    if isinstance(env, gym.Env):
        try:
            own = copy.deepcopy(env)
        except Exception:  # an object may refuse to be copied in any way it likes
            return None
        return make_vector(own, 1, training=False, **settings)
    return make_vector(env, count, training=False, **settings)


def _training(
    config: RunConfig, directory: RunDirectory, env: Any, callbacks: Sequence[Callback]
) -> tuple[Training, Vector | None]:
    vector = evaluation_vector(config, env, config.run.eval_episodes)
    evaluator: Evaluator | None = None
    if vector is None:
        warnings.warn(
            "The environment object cannot be copied, so there are no evaluations; "
            "give a factory to have them.",
            stacklevel=3,
        )
    else:
        seed = seeding.derive_seed(config.run.seed, "evaluation")

        def evaluator(algorithm: Algorithm, clock: Clock) -> EvaluationResult:
            result = evaluate(algorithm, vector, episodes=config.run.eval_episodes, seed=seed)
            save_evaluation(directory, clock.count, result, unit=clock.unit)
            return result

    try:
        if vector is not None:
            check_start(vector)
        training = Training(config, directory, env=env, evaluator=evaluator, callbacks=callbacks)
        _tell_left_out(training.env)
    except BaseException:
        _close(vector)
        raise
    return training, vector


def _tell_left_out(vector: Vector) -> None:
    """Say once that the agent will not see some texts."""
    names = vector.observations.left_out
    if names:
        listed = ", ".join(f"'{name}'" for name in names)
        warnings.warn(
            f"Observations of '{vector.name}' have text in {listed}, which is left out. Set "
            "embed_text=64 to let the agent see it as 64 numbers.",
            stacklevel=4,
        )


def _close(vector: Vector | None) -> None:
    if vector is not None:
        vector.close()


def _describe(env: Any) -> tuple[str, Any]:
    """Return a name for the configuration, and the object if it is not an id."""
    if isinstance(env, str):
        return env, None
    spec = getattr(env, "spec", None)
    name = getattr(env, "__qualname__", type(env).__name__) if spec is None else str(spec.id)
    return name, env


def _discard(directory: RunDirectory, error: BaseException) -> None:
    """Remove a run that never started, so that a typing mistake leaves nothing behind."""
    if isinstance(error, AssayError):
        directory.delete()
    else:
        directory.unlock()
