"""One object that trains, evaluates, predicts and saves: `assay.PPO("CartPole-v1").train(50_000)`.

The classes are made from the registry. They add no way to train: a class resolves settings as
`assay.train` does, and what it trained is a run on the disk like any other.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from assay.agents import Agent, load
from assay.api import Run, configure, env_or_data, progress_of, resume, train
from assay.core import registry
from assay.core.config import whole_number
from assay.core.errors import RunError
from assay.core.paths import runs_root
from assay.envs.make import EnvLike
from assay.evaluation.evaluate import EvaluationResult
from assay.experts.choose import named
from assay.loops.config import RunConfig
from assay.loops.events import Callback
from assay.loops.run_settings import find_run, settings_model
from assay.managed.types import default_of, settings_of, type_of
from assay.runs.directory import RunDirectory
from assay.runs.files import run_error

OWN = ("env", "name", "root", "preset")  # arguments of a class that are not settings


class Managed:
    """An algorithm with its settings and, once it is trained, its run.

    Args:
        env: A Gymnasium id, an `Env`, a `VectorEnv`, or a factory of an `Env`. Without it, the
            environment that `data` was recorded in, or none if it names none.
        name: The run's name; made up if not given.
        root: Where runs are kept.
        preset: Start from the settings shipped for this algorithm and environment.
        **settings: Hyperparameters and run settings, as of `assay.train`.

    Attributes:
        algorithm: Its name in the registry.
        env: What it was given.
        settings: Those that were given.
        run: The run on the disk; None until it is trained.

    Raises:
        ConfigError: A setting is unknown (the nearest name is suggested) or out of range.
    """

    algorithm: ClassVar[str]

    def __init__(
        self,
        env: EnvLike | None = None,
        *,
        name: str | None = None,
        root: Path | str | None = None,
        preset: bool = True,
        **settings: Any,
    ) -> None:
        self.env, self.settings = env_or_data(env, settings), settings
        self.run: Run | None = None
        self._name, self._root, self._preset = name, root, preset
        self._agent: Agent | None = None
        configure(self.algorithm, self.env, named(settings)[0], preset=preset)

    def __repr__(self) -> str:
        shown = [repr(self.env), *(f"{name}={value!r}" for name, value in self.settings.items())]
        trained = "" if self.run is None else f" of {self.run!r}"
        return f"<{type(self).__name__}({', '.join(shown)}){trained}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: not the agent, which is loaded from the run again."""
        return self.__dict__ | {"_agent": None}

    def train(self, budget: int | None = None, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Train, or go on training in the same run, and return the object itself.

        Args:
            budget: Environment steps (updates, where the algorithm learns from data alone) to train
                for; on a second call, so many more. By default, as the settings say; then a second
                call finishes a run that was interrupted. Schedules run over the whole of it, so
                that they go back a little when more is added.
            callbacks: Called with every event.

        Raises:
            AssayError: A mistake in the settings, the environment or the machine, with its fix.
        """
        self._agent = None
        if self.run is None:
            unit = settings_model(registry.get(self.algorithm)).unit
            settings = self.settings | ({} if budget is None else {unit: budget})
            self.run = train(
                self.algorithm,
                self.env,
                name=self._name,
                root=self._root,
                preset=self._preset,
                callbacks=callbacks,
                **settings,
            )
            return self
        if budget is not None:
            budget = progress_of(self.run.directory) + whole_number("budget", budget)
        expert = named(self.settings)[1]
        env = self.run.env
        self.run = resume(self.run.path, env=env, expert=expert, callbacks=callbacks, budget=budget)
        return self

    def evaluate(
        self, episodes: int = 20, *, seed: int = 0, settings: Mapping[str, Any] | None = None
    ) -> EvaluationResult:
        """Play episodes with the deterministic policy; see `assay.Run.evaluate`."""
        return self._trained().evaluate(episodes, seed=seed, settings=settings)

    def predict(
        self, obs: Any, *, mask: Any = None, explore: bool = False, reward: Any = None
    ) -> Any:
        """Return the action for one observation, or actions for a batch; see `assay.Agent.act`.

        A recurrent policy remembers from call to call; `reset` starts a new episode.
        """
        return self.agent.act(obs, mask=mask, explore=explore, reward=reward)

    def reset(self) -> None:
        """Forget what a recurrent policy remembers: a new episode begins."""
        self.agent.reset()

    @property
    def agent(self) -> Agent:
        """Return the agent of the last checkpoint.

        Raises:
            RunError: Nothing was trained yet.
        """
        if self._agent is None:
            self._agent = load(self._trained().path)
        return self._agent

    def save(self, path: Path | str) -> Path:
        """Copy the run with all that it needs to go on, and return where it is.

        Raises:
            RunError: Nothing was trained yet, there is something at `path`, or it cannot be
                written.
        """
        source, target = self._trained().path, Path(path)
        if target.exists():
            raise RunError(f"There is something at '{target}' already.", "Choose another path.")
        draft = target.with_name(f".{os.getpid()}-{target.name}")
        try:
            # Not by copytree, which goes on after an error and tells of every file.
            for part in [source, *sorted(source.rglob("*"))]:
                place = draft / part.relative_to(source)
                if part.is_dir():
                    place.mkdir(parents=True)
                else:
                    shutil.copy2(part, place)
            draft.rename(target)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise run_error(error, f"save the run to '{target}'") from None
        return target

    @classmethod
    def load(cls, run: Path | str, *, env: Any = None) -> Self:
        """Return the object of a run on the disk, by its path or its name.

        `env` is the environment, if the run was given it as an object. What trains on, trains that
        run; `save` makes a copy of it.

        Raises:
            RunError: There is no run, or it is one of another algorithm.
        """
        place = find_run(str(run)) or Path(run)
        directory = RunDirectory.open(place)
        config = RunConfig.from_dict(directory.config)
        if registry.get(config.algorithm) is not registry.get(cls.algorithm):
            raise RunError(
                f"'{run}' is a run of {config.algorithm}, not of {cls.algorithm}.",
                f"Load it with {_place_of(config.algorithm)}.load.",
            )
        made = cls.__new__(cls)
        made.env, made.settings = config.env if env is None else env, {}
        made._name, made._root, made._preset = directory.name, runs_root(None), False
        made.run, made._agent = Run(place, env), None
        return made

    def _trained(self) -> Run:
        if self.run is None:
            raise RunError(
                f"The {type(self).__name__} is not trained yet.", "Call train() first, or load()."
            )
        return self.run


@functools.cache
def algorithm_class(name: str) -> type[Managed]:
    """Return the class of an algorithm: by its name in the registry, or `package.module:Class`.

    Raises:
        ConfigError: There is none; the nearest name is suggested.

    Example:
        PPO = assay.algorithm_class("ppo")
    """
    algorithm = registry.get(name)
    key = name if ":" in name else algorithm.spec.name
    made = type(algorithm.__name__, (Managed,), {"algorithm": key, "__module__": "assay"})
    made.__doc__ = _describe(algorithm)
    made.__signature__ = _signature(algorithm)  # type: ignore[attr-defined]
    return made


def class_named(name: str) -> type[Managed]:
    """Return the class of the algorithm whose class has this name, such as `RecurrentPPO`.

    Raises:
        AttributeError: There is none.
    """
    for key in registry.names():
        if key.replace("_", "") == name.lower() and registry.get(key).__name__ == name:
            return algorithm_class(key)
    raise AttributeError(f"module 'assay' has no attribute '{name}'")


def _place_of(name: str) -> str:
    """Return where the class of an algorithm is found: one of a user's own is no name of Assay."""
    made = algorithm_class(name)
    try:
        listed = class_named(made.__name__) is made
    except AttributeError:
        listed = False
    return f"assay.{made.__name__}" if listed else f'assay.algorithm_class("{name}")'


def _signature(algorithm: Any) -> inspect.Signature:
    own = inspect.signature(Managed).parameters
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required() else default_of(field),
            annotation=type_of(name, field),
        )
        for name, field in settings_of(algorithm).items()
    ]
    return inspect.Signature([*(own[name] for name in OWN), *added])


def _describe(algorithm: Any) -> str:
    """Return a docstring: what the algorithm is, and every setting with its meaning."""
    spec = algorithm.spec
    rows = [
        f"    {name}: {field.description or ''}" for name, field in settings_of(algorithm).items()
    ]
    first = inspect.getdoc(Managed)
    assert first is not None
    return "\n".join([spec.summary, "", spec.paper, "", "Settings:", *rows, "", first])
