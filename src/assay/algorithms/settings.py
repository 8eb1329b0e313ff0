"""Groups of settings that algorithms share: a `Hyperparameters` inherits those it reads.

An algorithm declares its own settings, and of a group only the fields whose default or meaning
differs. Each group says in `unused` which of its settings nothing reads, and when.

Write the bases from special to general: methods are found in that order, and fields are listed in
the opposite one, from the last base to the first, then those of the class itself. Groups that are
combined have no field in common: pydantic would take it from the first base that has it, even if
that base only inherits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from gymnasium.spaces import Box
from pydantic import AfterValidator, Field
from torch import nn

from assay.algorithms.base import DatasetNeeds, ReplayNeeds, RolloutNeeds
from assay.buffers.hindsight import HindsightOptions, Strategy
from assay.core.config import Settings
from assay.core.errors import ConfigError
from assay.core.images import has_images, has_large_images, only_images
from assay.core.schedules import ProbabilitySchedule, Schedule, constant, linear
from assay.core.types import Clock, Problem, Spaces
from assay.functional.layout import gaussian_scale
from assay.networks.custom import BUILT_IN, DEFAULT, SIMBA
from assay.networks.normalize import normalizable
from assay.networks.rnn import Kind
from assay.optim.update import Polyak, Step

SHORT = 100_000  # steps of a run that actors and critics without a preset have to hurry in
# What action values on vectors and small images learn with, without a preset.
ON_VECTORS: dict[str, Any] = {
    "lr": constant(5e-4), "batch_size": 64, "train_every": 4, "updates": 2, "tau": 0.005,
}  # fmt: skip

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]
Unused = Iterator[tuple[str, str]]  # name of a setting, and why nothing reads it


def _positive(alpha: float | Literal["auto"]) -> float | Literal["auto"]:
    # Its logarithm is what is kept.
    if alpha != "auto" and not alpha > 0:
        raise ValueError("expected a number above 0, or auto")
    return alpha


Alpha = Annotated[float | Literal["auto"], AfterValidator(_positive)]


class LearningSettings(Settings):
    """What every algorithm has."""

    lr: Schedule = Field(constant(3e-4), description="Learning rate or schedule.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount.")
    max_grad_norm: float | None = Field(10.0, gt=0, description="Global gradient clip.")

    def rates(self, step: Step, progress: float) -> list[float]:
        """Return the learning rate of each objective of a step: `<name>_lr` if set, else `lr`."""
        own = [getattr(self, f"{one.name}_lr", None) for one in step.objectives]
        return [(self.lr if rate is None else rate)(progress) for rate in own]


# ---------------------------------------------------------------------- data


class ReplaySettings(LearningSettings):
    """Learning from a replay."""

    batch_size: int = Field(32, gt=0, description="Transitions per gradient step.")
    buffer_size: int = Field(1_000_000, gt=0, description="Transitions kept in the replay.")
    learning_starts: int = Field(100, ge=0, description="Random steps before learning.")
    train_every: int = Field(4, gt=0, description="Environment steps per round of updates.")
    updates: int = Field(1, gt=0, description="Gradient steps per round.")
    n_step: int = Field(1, gt=0, description="Steps before bootstrapping.")

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a replay that holds the run, and a start that leaves time to learn."""
        most = 100_000 if has_images(problem.spaces.observation) else 1_000_000
        return {
            "buffer_size": min(most, max(problem.env_steps, 10_000)),
            "learning_starts": min(1_000, problem.env_steps // 20),
        }

    def needs(self, **more: Any) -> ReplayNeeds:
        """Return the replay that these settings ask for, but for the fields in `more`."""
        asked = {
            "capacity": self.buffer_size, "learning_starts": self.learning_starts,
            "train_every": self.train_every, "updates": self.updates, "n_step": self.n_step,
            "gamma": self.gamma,
        }  # fmt: skip
        return ReplayNeeds(**(asked | more))


class PrioritySettings(Settings):
    """Prioritised replay (arXiv:1511.05952) as an option."""

    prioritized: bool = Field(False, description="Sample by the last error, not uniformly.")
    priority_alpha: float = Field(0.6, ge=0, le=1, description="How much priorities count.")
    priority_beta: ProbabilitySchedule = Field(
        linear(0.4, 1.0), description="Importance correction, annealed to 1."
    )

    def unused(self, spaces: Spaces) -> Unused:
        """Yield how to prioritise, where nothing is prioritised."""
        if not self.prioritized:
            for name in ("priority_alpha", "priority_beta"):
                yield name, "with prioritized=false"

    def priority(self) -> float | None:
        """Return `ReplayNeeds.prioritized`."""
        return self.priority_alpha if self.prioritized else None


class HindsightSettings(Settings):
    """Hindsight replay (arXiv:1707.01495) as an option."""

    her: Strategy | None = Field(
        None, description="Relabel goals in hindsight with goals that were reached."
    )
    her_ratio: float = Field(0.8, gt=0, le=1, description="Share of relabelled samples.")

    def unused(self, spaces: Spaces) -> Unused:
        """Yield how to relabel, where nothing is relabelled."""
        if self.her is None:
            yield "her_ratio", "with her=null"

    def hindsight(self) -> HindsightOptions | None:
        """Return `ReplayNeeds.her`; a ConfigError names a setting that contradicts it."""
        return None if self.her is None else self._relabelling(self.her)

    def _relabelling(self, her: Strategy) -> HindsightOptions:
        for name, allowed in (("n_step", 1), ("prioritized", False)):
            value = getattr(self, name, allowed)
            if value != allowed:
                raise ConfigError(
                    f"her={her} does not work with {name}={value}: a relabelled "
                    "transition stands for one step, drawn uniformly.",
                    f"Set {name}={str(allowed).lower()}, or leave her out.",
                )
        return HindsightOptions(her, self.her_ratio)


class DatasetSettings(LearningSettings):
    """Learning from recorded data alone."""

    batch_size: int = Field(256, gt=0, description="Transitions per gradient step.")

    def needs(self, **more: Any) -> DatasetNeeds:
        """Return the data that these settings ask for, with `more` of its fields."""
        return DatasetNeeds(self.gamma, **more)


class RolloutSettings(LearningSettings):
    """Learning on-policy, from rollouts."""

    max_grad_norm: float = Field(0.5, gt=0, description="Global gradient clip.")
    horizon: int = Field(128, gt=0, description="Steps of each environment per rollout.")
    value_coef: float = Field(0.5, ge=0, description="Weight of the value loss.")
    entropy_coef: Schedule = Field(
        constant(0.0), description="Weight of the entropy bonus; a schedule."
    )
    normalize_advantage: bool = Field(False, description="Standardise per rollout.")

    def needs(self, **more: int) -> RolloutNeeds:
        """Return the rollout that these settings ask for, with `more` of its fields."""
        return RolloutNeeds(self.horizon, **more)


# ---------------------------------------------------------------------- networks


class NetworkSettings(Settings):
    """The networks, for any observation."""

    hidden: tuple[int, ...] = Field((64, 64), description="Widths of the hidden layers.")
    activation: Activation = Field("relu", description="Nonlinearity of the hidden layers.")
    cnn: Literal["nature", "impala"] = Field("nature", description="Image encoder.")
    network: str = Field(
        DEFAULT, description="mlp or simba (with a CNN for images), or package.module:name."
    )

    def encoder(self, **other: Any) -> dict[str, Any]:
        """Return what `make_encoder` takes of these settings, but for `other` such as hidden=()."""
        names = ("hidden", "activation", "cnn", "network")
        return {name: getattr(self, name) for name in names} | other

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the settings of the CNN or of the MLP where no encoder reads them."""
        if self.network == SIMBA:
            yield "activation", "with network=simba"
        if self.network not in BUILT_IN:
            for name in ("cnn", *self.encoder_only()):
                yield name, f"with network={self.network}"
            return
        if not has_images(spaces.observation):
            yield "cnn", "because the observation has no images"
        if only_images(spaces.observation):
            for name in self.encoder_only():
                yield name, "because the observation is images alone, whose CNN has its own layers"

    def encoder_only(self) -> tuple[str, ...]:
        """Return the settings that are read only by the MLP of the encoder."""
        return "hidden", "activation"


class HeadSettings(Settings):
    """A head with hidden layers of its own; to be combined with `NetworkSettings`."""

    head_hidden: tuple[int, ...] = Field((), description="Widths of the head's hidden layers.")

    def encoder_only(self) -> tuple[str, ...]:
        """Return the settings that the head does not read."""
        return ("hidden",) if self.head_hidden else ("hidden", "activation")


class MemorySettings(HeadSettings):
    """A memory between encoder and head; to be combined with `NetworkSettings`."""

    memory: Kind = Field("lstm", description="Kind of memory.")
    memory_size: int = Field(64, gt=0, description="Width of the memory.")
    memory_layers: int = Field(1, gt=0, description="Layers of the memory.")
    heads: int = Field(4, gt=0, description="Attention heads (transformer).")
    context: int = Field(32, gt=0, description="Steps remembered (transformer).")

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the settings of the transformer for another memory."""
        if self.memory != "transformer":
            for name in ("heads", "context"):
                yield name, f"with memory={self.memory}"


class NormalizeObsSettings(Settings):
    """Normalised observations as an option."""

    normalize_obs: bool = Field(False, description="Standardise float observations.")

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the setting where no part of the observation can be normalised."""
        if not normalizable(spaces.observation):
            yield "normalize_obs", f"because {spaces.observation} has no float array"


class NormalizeRewardSettings(Settings):
    """Scaled rewards as an option."""

    normalize_reward: bool = Field(False, description="Divide by the std of returns.")


class NormalizeSettings(NormalizeRewardSettings, NormalizeObsSettings):
    """Normalised observations and scaled rewards as options."""


class TargetSettings(Settings):
    """A target network that is copied now and then, or follows."""

    target_every: int = Field(2500, gt=0, description="Updates between target copies.")
    tau: float = Field(1.0, gt=0, le=1, description="Below 1: Polyak target every update.")

    def follow(self, target: nn.Module, source: nn.Module) -> list[Polyak]:
        """Return how a target follows after every update; nothing where it is copied."""
        return [Polyak(target, source, self.tau)] if self.tau < 1 else []

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the interval of copies where the target follows."""
        if self.tau < 1:
            yield "target_every", f"with tau={self.tau:g}"


class PolyakSettings(Settings):
    """Target networks that follow."""

    tau: float = Field(0.005, gt=0, le=1, description="Polyak rate of the targets.")

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return two updates per step for a short run, where one would learn too little.

        Normalised critics bear that (arXiv:2302.02948); without them it helps less.
        """
        fit = super().fitted(problem, given)
        short = problem.env_steps <= SHORT and isinstance(problem.spaces.action, Box)
        pace = ("updates", "train_every")
        if not short or any(cls.model_fields[k].default != 1 or k in given for k in pace):
            return fit
        normed = {"layer_norm": True} if "layer_norm" in cls.model_fields else {}
        starts = min(fit["learning_starts"], max(100, problem.env_steps // 100))
        return fit | normed | {"updates": 2, "learning_starts": starts}


class SmoothingSettings(Settings):
    """Noise of the target action and delayed updates of the actor (arXiv:1802.09477)."""

    target_noise: float = Field(0.2, ge=0, description="Noise of the target action.")
    target_noise_clip: float = Field(0.5, ge=0, description="Bound of that noise.")
    policy_delay: int = Field(2, gt=0, description="Critic updates per actor update.")

    def unused(self, spaces: Spaces) -> Unused:
        """Yield what a noise of 0 leaves without effect."""
        if self.target_noise == 0:
            yield "target_noise_clip", "with target_noise=0"
        if self.target_noise_clip == 0:
            yield "target_noise", "with target_noise_clip=0"


# ---------------------------------------------------------------------- exploration


class ExplorationSettings(Settings):
    """Random actions, or noisy layers (arXiv:1706.10295)."""

    epsilon: ProbabilitySchedule = Field(
        linear(1.0, 0.05, 0.1), description="Share of random actions; a schedule."
    )
    noisy: bool = Field(False, description="Explore with noisy layers, not epsilon.")

    def explorer(self, clock: Clock) -> Callable[[int], float] | None:
        """Return what gives a `GreedyHead` its epsilon; None where noise explores."""
        return None if self.noisy else lambda n: self.epsilon(clock.progress)

    def unused(self, spaces: Spaces) -> Unused:
        """Yield epsilon where noise explores."""
        if self.noisy:
            yield "epsilon", "with noisy=true"


class EntropySettings(Settings):
    """The temperature of the maximum-entropy algorithms."""

    alpha_lr: Schedule | None = Field(
        None, description="Learning rate of the temperature; null: the same as lr."
    )
    alpha: Alpha = Field("auto", description="Temperature; auto learns it.")
    alpha_init: float = Field(1.0, gt=0, description="Where a learned temperature starts.")
    target_entropy: float | Literal["auto"] = Field(
        "auto", description="Entropy to hold; auto is -dim(A)."
    )

    @property
    def first_alpha(self) -> float:
        """Return where the temperature starts, learned or fixed."""
        return self.alpha_init if self.alpha == "auto" else self.alpha

    def unused(self, spaces: Spaces) -> Unused:
        """Yield how the temperature is learned where it is fixed."""
        if self.alpha != "auto":
            for name in ("alpha_init", "target_entropy", "alpha_lr"):
                yield name, f"with alpha={self.alpha}"


# ---------------------------------------------------------------------- families


class ValueSettings(
    PrioritySettings,
    ExplorationSettings,
    NormalizeSettings,
    TargetSettings,
    NetworkSettings,
    ReplaySettings,
):
    """DQN and those that differ from it in what they learn about a return."""

    double: bool = Field(False, description="Choose with the online network (double DQN).")
    dueling: bool = Field(False, description="Separate value and advantage streams.")

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what small networks learn from; the fields suit large images."""
        fit = super().fitted(problem, given)
        if has_large_images(problem.spaces.observation):
            return fit
        fit |= ON_VECTORS | {"double": True, "epsilon": linear(1.0, 0.05, 0.2)}
        images = has_images(problem.spaces.observation)
        return fit if images else fit | {"hidden": (128, 128)}

    def needs(self, **more: Any) -> ReplayNeeds:
        """Return the replay that these settings ask for, prioritised or not."""
        return super().needs(prioritized=self.priority(), **more)


class CriticSettings(NetworkSettings):
    """The networks of an actor and critics."""

    critic_lr: Schedule | None = Field(
        None, description="Learning rate of the critics; null: the same as lr."
    )
    hidden: tuple[int, ...] = Field((256, 256), description="Widths of the hidden layers.")

    def encoder_only(self) -> tuple[str, ...]:
        """Return nothing: the critics have hidden layers behind the CNN."""
        return ()


class ActorCriticSettings(CriticSettings, ReplaySettings):
    """An actor and critics that learn from a replay."""

    max_grad_norm: float | None = Field(None, gt=0, description="Global gradient clip.")
    batch_size: int = Field(256, gt=0, description="Transitions per gradient step.")
    train_every: int = Field(1, gt=0, description="Environment steps per round of updates.")


class OfflineActorCriticSettings(NormalizeSettings, CriticSettings, DatasetSettings):
    """An actor and critics that learn from recorded data, with targets that follow."""

    max_grad_norm: float | None = Field(None, gt=0, description="Global gradient clip.")
    tau: float = Field(0.005, gt=0, le=1, description="Polyak rate of the targets.")


class PolicyGradientSettings(NormalizeSettings, NetworkSettings, RolloutSettings):
    """A policy and a value function that learn from rollouts."""

    activation: Activation = Field("tanh", description="Nonlinearity of the hidden layers.")
    log_std_init: float = Field(0.0, description="Initial log standard deviation (Box).")
    scale_actions: bool = Field(
        True, description="Scale Box actions from [-1, 1] to their bounds, where finite."
    )

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return several environments, and normalised numbers where actions are a Box."""
        fit = super().fitted(problem, given)
        if not isinstance(problem.spaces.action, Box):
            return fit | {"num_envs": 8}
        return fit | {
            "num_envs": 4,  # more of them have shorter rollouts, which was worse on Box2D
            "normalize_reward": True,
            "normalize_obs": _can_normalize(problem),
        }

    def gaussian(self, space: Any) -> dict[str, Any]:
        """Return what a policy head over an action space takes of these settings."""
        scaled = self.scale_actions and isinstance(space, Box)
        return {
            "log_std_init": self.log_std_init,
            "scale": gaussian_scale(space) if scaled else None,
        }

    def unused(self, spaces: Spaces) -> Unused:
        """Yield the settings of a Gaussian where there is none."""
        if not isinstance(spaces.action, Box):
            for name in ("log_std_init", "scale_actions"):
                yield name, "because the action space is not a Box"


def _can_normalize(problem: Problem) -> bool:
    return bool(normalizable(problem.spaces.observation))
