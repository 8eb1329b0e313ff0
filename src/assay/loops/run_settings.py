"""What a run is configured with besides its algorithm, for every kind of run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from assay.core.config import Model
from assay.core.errors import DataError
from assay.core.paths import runs_root
from assay.core.types import Clock, Unit
from assay.runs.directory import RUN_FILE

Share = Annotated[
    float, Field(ge=0, lt=1, description="Share of recorded data in a batch, beside collected.")
]
RANDOM = "random"  # the expert that is none: the control
OBJECT = "object:"  # before the name of an expert that was given as an object
ONNX = ".onnx"  # at the end of the name of an exported policy


class RunSettings(Model):
    """Settings of a run that are not the algorithm's own, whatever its loop."""

    unit: ClassVar[Unit]

    seed: int = Field(1, ge=0, description="The one seed that all randomness comes from.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    compile: Literal["auto"] | bool = Field(
        "auto", description="Compile optimizer steps: yes, no, or as soon as that costs no time."
    )
    threads: int = Field(
        0, ge=0, description="Threads of torch and NumPy; 0 chooses by the network."
    )
    backend: Literal["auto", "native", "vector", "sync", "processes"] = Field(
        "auto", description="How environments are run in parallel."
    )
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments for the environment's constructor."
    )
    reset_options: dict[str, Any] = Field(
        default_factory=dict, description="The options of every reset of the environment."
    )
    max_episode_steps: int | None = Field(
        None, gt=0, description="Steps after which episodes are truncated; null: the env's limit."
    )
    embed_text: int = Field(
        0, ge=0, description="Numbers that a text in an observation becomes; 0: it is left out."
    )
    wrappers: tuple[str | dict[str, Any], ...] = Field(
        (), description="What is around the environment, in order (`assay envs wrappers`)."
    )
    eval_every: int | None = Field(
        None, ge=0, description="Steps (offline: updates) between evaluations; 0: only at the end."
    )
    eval_episodes: int = Field(20, gt=0, description="Episodes per evaluation.")
    checkpoint_every: int | None = Field(
        None, ge=0, description="Steps (offline: updates) between checkpoints; 0: only at the end."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints kept; older ones are deleted.")
    log_every: int | None = Field(
        None, ge=1, description="Steps (offline: updates) between log lines."
    )
    sinks: tuple[Literal["tensorboard", "csv", "wandb", "mlflow", "trackio"], ...] = Field(
        ("tensorboard",), description="Where metrics go besides metrics.jsonl."
    )

    @property
    def total(self) -> int:
        """Return the budget, in `unit`."""
        return int(getattr(self, self.unit))

    def env_settings(self) -> dict[str, Any]:
        """Return what decides which environment it is, by the names of `make_vector`."""
        names = ("env_kwargs", "reset_options", "max_episode_steps", "embed_text", "wrappers")
        return {name: getattr(self, name) for name in names}

    def variation(self) -> dict[str, Any]:
        """Return what changes from one training episode to the next, as `env_settings` does."""
        names = ("randomize", "curriculum")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def clock(self) -> Clock:
        """Return the clock of a run that begins."""
        return Clock(self.total, unit=self.unit)

    def files(self) -> dict[str, dict[str, Any]]:
        """Return the facts of the files that the run reads, by setting."""
        return {}

    def idle(self) -> tuple[str, ...]:
        """Return the settings, also the algorithm's, that have no effect beside these."""
        return ()

    def resolved(self) -> Self:
        """Return a copy in which every interval is a number."""
        tenth = max(1, self.total // 10)
        return self.model_copy(
            update={
                "eval_every": tenth if self.eval_every is None else self.eval_every,
                "checkpoint_every": (
                    tenth if self.checkpoint_every is None else self.checkpoint_every
                ),
                "log_every": self.log_every or max(1, self.total // 100),
            }
        )


class _Collecting(Model):
    env_steps: int = Field(100_000, gt=0, description="Environment steps to train for.")
    num_envs: int = Field(1, gt=0, le=65536, description="Environments stepped in parallel.")
    randomize: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameters drawn for every training episode: {gravity: [8, 12]} (`assay envs "
        "parameters ID`).",
    )
    curriculum: str | dict[str, Any] | None = Field(
        None, description="How these are drawn; null: from all of it (`assay envs curricula`)."
    )


class _Solving(Model):
    updates: int = Field(1_000, gt=0, description="Updates to train for: iterations over the game.")


class _FromData(Model):
    updates: int = Field(100_000, gt=0, description="Updates to train for.")
    data: Path = Field(description="Dataset to learn from: a path or a name.")


# Pydantic puts the fields of the last base first, and the budget is what people look for.


class OnlineSettings(RunSettings, _Collecting):
    """Settings of a run that collects its data."""

    unit: ClassVar[Unit] = "env_steps"


class RewardedSettings(OnlineSettings):
    """Settings of a run that collects its data and may learn from a learned reward."""

    reward_model: str | None = Field(
        None,
        description="Reward to learn from in place of the environment's: a model that `assay "
        "prefer fit` wrote, or a run of gail or airl.",
    )

    def resolved(self) -> Self:
        """Return a copy in which every interval is a number and the path is absolute."""
        made = super().resolved()
        if self.reward_model is None:
            return made
        place = find_run(self.reward_model) or Path(self.reward_model).expanduser().absolute()
        return made.model_copy(update={"reward_model": str(place)})


class MixedSettings(RewardedSettings):
    """Settings of a run that collects its data and may learn from recorded data beside it."""

    data: Path | None = Field(
        None, description="Dataset to learn from beside the replay: a path or a name."
    )
    data_share: Share = 0.5

    def files(self) -> dict[str, dict[str, Any]]:
        """Return the facts of the files that the run reads, by setting."""
        return {} if self.data is None else _facts(self.data)

    def resolved(self) -> Self:
        """Return a copy in which every interval is a number and the path is absolute."""
        made = super().resolved()
        return made if self.data is None else made.model_copy(update=_located(self.data))

    def idle(self) -> tuple[str, ...]:
        """Return the share where there is no data."""
        return ("data_share",) if self.data is None else ()


class OfflineSettings(RunSettings, _FromData):
    """Settings of a run that learns from data alone: nothing steps an environment to train."""

    unit: ClassVar[Unit] = "updates"
    num_envs: ClassVar[int] = 1

    def files(self) -> dict[str, dict[str, Any]]:
        """Return the facts of the files that the run reads, by setting."""
        return _facts(self.data)

    def resolved(self) -> Self:
        """Return a copy in which every interval is a number and the path is absolute."""
        return super().resolved().model_copy(update=_located(self.data))


class FineTuneSettings(OfflineSettings):
    """Settings of a run that learns from data, and may go on with an environment."""

    env_steps: int = Field(
        0, ge=0, description="Environment steps to go on with after the updates; 0: none."
    )
    updates_per_step: int = Field(1, gt=0, description="Updates per environment step, with those.")
    data_share: Share = 0.5

    @property
    def total(self) -> int:
        """Return the updates of both phases."""
        return self.updates + self.env_steps * self.updates_per_step

    def idle(self) -> tuple[str, ...]:
        """Return what only collecting needs, where there is none."""
        if self.env_steps:
            return ()
        return "updates_per_step", "data_share", "exploration_noise", "epsilon"


class GameSettings(RunSettings, _Solving):
    """Settings of a run that goes through a whole game in every update; nothing is played."""

    unit: ClassVar[Unit] = "updates"
    num_envs: ClassVar[int] = 1

    def idle(self) -> tuple[str, ...]:
        """Return what only networks and episodes need."""
        return "device", "compile", "threads", "backend", "max_episode_steps", "eval_episodes"


def _facts(data: Path) -> dict[str, dict[str, Any]]:
    from assay.data.files import load

    return {"data": {"path": str(data), **load(data).facts()}}


def _located(data: Path) -> dict[str, Path]:
    from assay.data.files import locate

    return {"data": locate(data).absolute()}  # a resumed run may start elsewhere


class _FromEpisodes(Model):
    expert: str = Field(description="Whom to imitate: a dataset, a run, or random (the control).")
    expert_episodes: int = Field(10, gt=0, description="Most episodes that are taken of it.")


class _FromPolicy(Model):
    expert: str = Field(
        description="Who answers: a run, FILE.onnx, package.module:function, or random."
    )


class EpisodeSettings(OnlineSettings, _FromEpisodes):
    """Settings of a run that imitates recorded episodes in an environment."""

    def resolved(self) -> Self:
        """Return a copy in which every interval is a number and the path is absolute."""
        return super().resolved().model_copy(update={"expert": locate_expert(self.expert)})


class TaughtSettings(OnlineSettings, _FromPolicy):
    """Settings of a run that asks an expert what it would do."""

    def resolved(self) -> Self:
        """Return a copy in which every interval is a number and the path is absolute."""
        place = find_run(self.expert)
        if place is None and self.expert.endswith(ONNX):
            place = Path(self.expert).expanduser().absolute()  # a resumed run may start elsewhere
        found = self.expert if place is None else str(place)
        return super().resolved().model_copy(update={"expert": found})


def find_run(text: str) -> Path | None:
    """Return the absolute path of the run of this path or name, or None if there is none."""
    for path in (Path(text).expanduser(), runs_root() / text):
        if (path / RUN_FILE).is_file():
            return path.absolute()
    return None


def locate_expert(text: str) -> str:
    """Return where the episodes of an expert come from, as an absolute path if it is one.

    Raises:
        DataError: There is neither a dataset nor a run.
    """
    from assay.data.files import locate

    if text == RANDOM or text.startswith(OBJECT):
        return text
    place = find_run(text)
    if place is not None:
        return str(place)
    try:
        return str(locate(text).absolute())
    except DataError as error:
        raise DataError(
            f"expert='{text}': there is neither a run nor a dataset of this name.",
            error.fix or "Give the path of one, or random.",
        ) from None


AnySettings = (
    OnlineSettings
    | RewardedSettings
    | MixedSettings
    | EpisodeSettings
    | TaughtSettings
    | OfflineSettings
    | FineTuneSettings
    | GameSettings
)


def settings_model(
    algorithm: Any,
) -> type[OnlineSettings] | type[OfflineSettings] | type[GameSettings]:
    """Return the run settings of an algorithm, by its class."""
    spec = algorithm.spec
    if spec.loop == "game":
        return GameSettings
    if spec.loop == "offline":
        return FineTuneSettings if algorithm.takes_both else OfflineSettings
    if spec.expert is not None:
        return EpisodeSettings if spec.expert == "episodes" else TaughtSettings
    if algorithm.takes_both:
        return MixedSettings
    return RewardedSettings if algorithm.takes_reward_model else OnlineSettings


def model_of(run: Mapping[str, Any]) -> type[RunSettings]:
    """Return whose settings a file holds, by the names that only one kind has."""
    if OfflineSettings.unit in run:
        if "data" not in run:
            return GameSettings
        return FineTuneSettings if "env_steps" in run else OfflineSettings
    if "expert" in run:
        return EpisodeSettings if "expert_episodes" in run else TaughtSettings
    if "data_share" in run:
        return MixedSettings
    return RewardedSettings if "reward_model" in run else OnlineSettings
