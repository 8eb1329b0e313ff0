"""The Python front door: train, resume, load, evaluate."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from assay.agents import Agent as Agent
from assay.agents import evaluation_vector as evaluation_vector
from assay.agents import load as load
from assay.agents import own_code, require_spaces
from assay.agents import required_vector as required_vector
from assay.algorithms.base import Algorithm
from assay.core import seeding
from assay.core.config import whole_number
from assay.core.errors import AssayError, CheckpointError, ConfigError, RunError, require_counts
from assay.core.paths import runs_root
from assay.core.types import Action, Clock, Tree
from assay.envs.make import EnvLike, look_at
from assay.envs.recorded import NO_ENV
from assay.envs.start_check import check_start
from assay.envs.vector import Vector
from assay.evaluation.evaluate import Around, EvaluationResult, evaluate, save_evaluation
from assay.evaluation.game import evaluate_strategy, policy_strategy
from assay.experts.choose import choose, named
from assay.experts.reward_model import LearnedReward
from assay.experts.rewards import chosen_reward
from assay.loops.config import Look, RunConfig, resolve
from assay.loops.events import Callback, StoppedError
from assay.loops.recorded import env_of, telling_of_data
from assay.loops.run_settings import FineTuneSettings
from assay.loops.training import Evaluator, Training
from assay.runs import checkpoint, provenance
from assay.runs.directory import RunDirectory
from assay.runs.metrics import read_metrics


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
        self,
        episodes: int = 20,
        *,
        seed: int = 0,
        sampled: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> EvaluationResult:
        """Play episodes with the deterministic policy of the last checkpoint.

        The result is stored in the run directory, every episode of it. With `sampled`, actions are
        drawn as in training. `settings` are those of `load`. A run that learned all seats of a game
        is measured exactly, and nothing is played (`assay.evaluation.game`).
        """
        agent = load(self.path, settings=settings)
        result = evaluate_agent(agent, self.config, self.env, episodes, seed, sampled=sampled)
        clock = agent.clock
        own = [f"{k}={v}" for k, v in (settings or {}).items()]
        label = "-".join([f"seed{seed}", *own, *(["sampled"] if sampled else [])])
        save_evaluation(self.directory, clock.count, result, label=label, unit=clock.unit)
        return result


def train(
    algorithm: str,
    env: EnvLike | None = None,
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
        env: A Gymnasium id, an `Env`, a `VectorEnv`, or a factory of an `Env`. Without it, the
            environment that `data` was recorded in, or none if it names none.
        name: The run's name; made up if not given.
        root: Where runs are kept.
        config: Settings, for example read from a YAML file.
        preset: Start from the settings shipped for this algorithm and environment.
        callbacks: Called with every event (see `assay.events`); `assay.STOP` ends the run.
        argv: The command line that asked for this, for the provenance.
        **settings: Run settings and hyperparameters: `env_steps=100_000, lr=3e-4, seed=1`. An
            algorithm that learns from data alone has `updates` and `data` in place of `env_steps`.
            One that imitates has `expert`, which may also be a `Dataset` or a function.

    Raises:
        AssayError: A mistake in the settings, the environment or the machine, with its fix.

    Example:
        run = assay.train("ppo", "CartPole-v1", env_steps=100_000)
    """
    settings, shown = named(settings)
    env = env_or_data(env, config or {}, settings)
    layers = (config or {}, settings)
    with telling_of_data(env, *layers):
        resolved, given = configure(
            algorithm, env, *layers, preset=preset, look=partial(look_at, env)
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
        expert = choose(resolved, directory.path, env=given, given=shown, begins=True)
        reward, rewarding = chosen_reward(resolved)
        directory.write_provenance(
            provenance.collect(
                list(sys.argv if argv is None else argv),
                seeds={"run": resolved.run.seed},
                files=resolved.run.files() | expert.files | rewarding,
                code=own_code(resolved),
            )
        )
        with telling_of_data(env, *layers):
            training, vector = _training(
                resolved, directory, given, callbacks, expert=expert.source, reward=reward
            )
    except BaseException as error:
        _discard(directory, error)
        raise
    try:
        training.run()
    finally:
        _close(vector)
    return Run(directory.path, given)


def configure(
    algorithm: str,
    env: EnvLike,
    *layers: Mapping[str, Any],
    preset: bool = True,
    look: Look | None = None,
) -> tuple[RunConfig, Any]:
    """Return the configuration of a run, and the environment if it is an object.

    `layers` and `look` are those of `assay.loops.config.resolve`. Without `look` no environment is
    made, and defaults are those of the fields.

    Raises:
        ConfigError: An unknown key or a value out of range, with the nearest name.
    """
    env_name, given = _describe(env)
    count = env.num_envs if isinstance(env, gym.vector.VectorEnv) else None
    if isinstance(env, gym.Env):
        count = 1
    resolved = resolve(
        algorithm,
        env_name,
        *layers,
        use_preset=preset,
        num_envs=count,
        env_is_object=given is not None,
        look=look,
    )
    return resolved, given


def resume(
    path: Path | str,
    *,
    env: Any = None,
    expert: Any = None,
    callbacks: Sequence[Callback] = (),
    force: bool = False,
    budget: int | None = None,
    reward_model: Path | str | None = None,
) -> Run:
    """Go on with a run from its last good checkpoint; it ends as if it had never stopped.

    Args:
        path: The run directory.
        env: The environment object, if the run was not given an id.
        expert: The function that the run asks, if it was given one as an object.
        callbacks: Called with every event.
        force: Fall back to an older checkpoint where the last one is damaged.
        budget: Another one than the run has, in environment steps (updates, where it learns from
            data alone), also for a run that is done. It is written into the run's config.yaml and
            its events. Schedules go on from where they are in the new budget.
        reward_model: Another learned reward than the run has, for one that has one. It is written
            into the run's config.yaml, its provenance and its events.

    Raises:
        RunError: The run is finished, is being trained by another process, or its data changed.
        ConfigError: The budget is used up already, or the run has two; or it has no learned reward
            that another one could replace.
        CheckpointError: The checkpoint is damaged; the one before it is named.
    """
    directory = RunDirectory.open(Path(path))
    config = before = RunConfig.from_dict(directory.config)
    status = directory.status
    if budget is not None:
        config = _with_budget(config, budget, progress_of(directory))
    elif status == "done":
        raise RunError(
            f"The run '{path}' is done: it reached {config.run.unit}={config.run.total}.",
            f"Go on to a larger one: assay resume {path} --budget N, in Python budget=N.",
        )
    if reward_model is not None:
        config = _with_reward(config, reward_model)
    imitated = choose(config, directory.path, given=expert, begins=False)
    reward, rewarding = chosen_reward(config)
    files = config.run.files() | imitated.files | rewarding
    recorded = directory.provenance
    if reward_model is not None:
        recorded = {**recorded, "files": {**recorded.get("files", {}), **rewarding}}
    provenance.refuse_changed_files(recorded, files)
    provenance.warn_of_changed_code(recorded, own_code(config))
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
        if config != before:
            directory.change_config(config.to_dict(), budget=config.run.total, **rewarding)
        if reward_model is not None:
            directory.write_provenance(recorded)
        directory.set_status("running")
        training, vector = _training(
            config, directory, env, callbacks, expert=imitated.source, reward=reward
        )
    except BaseException:
        directory.unlock()
        raise
    try:
        training.run(start)
    except CheckpointError as error:
        if budget is None:
            raise
        directory.change_config(before.to_dict(), budget=before.run.total)
        directory.set_status(status)
        raise ConfigError(
            f"budget={budget}: {config.algorithm} cannot go on with it. {error.message}",
            "Start a new run with it.",
        ) from None
    finally:
        _close(vector)
    return Run(directory.path, env)


def progress_of(directory: RunDirectory) -> int:
    """Return how far the last checkpoint of a run is, in the unit of its budget."""
    last = checkpoint.latest(directory.checkpoints_path)
    return 0 if last is None else int(checkpoint.read_manifest(last)[directory.budget[0]])


def _with_budget(config: RunConfig, budget: Any, progress: int) -> RunConfig:
    """Return a configuration with another budget."""
    budget = whole_number("budget", budget)
    run, unit = config.run, config.run.unit
    if isinstance(run, FineTuneSettings) and run.env_steps:
        raise ConfigError(
            f"budget={budget}: the run has two budgets, updates and env_steps.",
            "Start a new run with larger ones.",
        )
    if budget <= progress:
        raise ConfigError(
            f"budget={budget}: the run is at {unit}={progress} already.", "Give a larger one."
        )
    return config.model_copy(update={"run": run.model_copy(update={unit: budget})})


def _with_reward(config: RunConfig, path: Path | str) -> RunConfig:
    """Return a configuration with another learned reward."""
    run = config.run
    if getattr(run, "reward_model", None) is None:
        raise ConfigError(
            f"reward_model='{path}': the run learns from its environment's reward.",
            "Start a new run with it.",
        )
    run = run.model_copy(update={"reward_model": str(path)}).resolved()
    return config.model_copy(update={"run": run})


def open_run(path: Path | str, env: Any = None) -> Run:
    """Return a run that is on disk."""
    return Run(path, env)


def evaluate_agent(
    agent: Agent, config: RunConfig, env: Any, episodes: int, seed: int, *, sampled: bool = False
) -> EvaluationResult:
    """Evaluate an agent in the environment of a configuration."""
    require_counts(episodes=episodes)
    fix = "Call assay.evaluate(agent.policy, env, ...) with an environment of your own."
    vector = required_vector(config, env, episodes, fix)
    try:
        require_spaces(agent.algorithm.spaces, vector)
        return _measure(agent.algorithm, agent.policy, vector, episodes, seed, sampled=sampled)
    finally:
        vector.close()


def _measure(
    algorithm: Any, player: Any, vector: Vector, episodes: int, seed: int, *, sampled: bool = False
) -> EvaluationResult:
    """Play episodes; where all seats of a game were learned, measure what was learned exactly."""
    if sampled and (algorithm.spec.loop == "game" or vector.plays_all_seats):
        raise ConfigError(
            "A run that learned all seats of a game is measured exactly; no action is drawn.",
            "Leave out --sampled.",
        )
    if algorithm.spec.loop == "game":
        return evaluate_strategy(vector.game_tree(), algorithm.average_strategy(), seed=seed)
    policy = getattr(algorithm, "policy", None)  # an algorithm may act by itself
    if vector.plays_all_seats and policy is not None and policy.initial_carry(1) is None:
        tree = vector.game_tree()
        strategy = policy_strategy(tree, policy, sampled=True)
        return evaluate_strategy(tree, strategy, seed=seed)
    return evaluate(player, vector, episodes=episodes, seed=seed, explore=sampled)


class _Stoppable(Around):
    """An algorithm whose run may be stopped at every step of an evaluation."""

    def __init__(self, algorithm: Algorithm, clock: Clock) -> None:
        super().__init__(algorithm)
        self.clock = clock
        self.policy = getattr(algorithm, "policy", None)  # an algorithm may act by itself

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Act, unless the run is stopping."""
        if self.clock.stopping:
            raise StoppedError
        return self.agent.act(obs, carry, explore)


def _training(
    config: RunConfig,
    directory: RunDirectory,
    env: Any,
    callbacks: Sequence[Callback],
    *,
    expert: Any,
    reward: LearnedReward | None,
) -> tuple[Training, Vector | None]:
    vector = evaluation_vector(config, env, config.run.eval_episodes)
    evaluator: Evaluator | None = None
    if vector is not None:
        seed = seeding.derive_seed(config.run.seed, "evaluation")

        def evaluator(algorithm: Algorithm, clock: Clock) -> EvaluationResult:
            player = _Stoppable(algorithm, clock)
            result = _measure(algorithm, player, vector, config.run.eval_episodes, seed)
            save_evaluation(directory, clock.count, result, unit=clock.unit)
            return result

    elif config.env != NO_ENV:
        warnings.warn(
            "The environment object cannot be copied, so there are no evaluations; "
            "give a factory to have them.",
            stacklevel=3,
        )
    try:
        if vector is not None:
            check_start(vector)
        training = Training(
            config, directory, env=env, expert=expert, reward=reward, evaluator=evaluator,
            callbacks=callbacks,
        )  # fmt: skip
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


def env_or_data(env: EnvLike | None, *layers: Mapping[str, Any]) -> EnvLike:
    """Return the environment, or what the data says that it is, if none is given."""
    found = env_of(*layers) if env is None else env
    if found is None:
        raise ConfigError("Nothing names the environment.", "Give env, or data to learn from.")
    return found


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
