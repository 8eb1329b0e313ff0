"""What every algorithm is to the loops: act on observations, update from data, save itself.

An algorithm says in `needs` what data it wants; a loop builds that buffer, fills it and hands it
to `update`. Where the data comes from (this process, a cluster, remote clients, a file) is not
the algorithm's business.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.buffers.hindsight import HindsightOptions
from assay.buffers.storage import Sectioned, Sections
from assay.core import registry, seeding
from assay.core.config import Settings
from assay.core.errors import ConfigError, SpaceError
from assay.core.registry import AlgorithmSpec
from assay.core.schedules import Schedule
from assay.core.types import (
    Action,
    Batch,
    Clock,
    Metrics,
    Spaces,
    State,
    Termination,
    Tree,
    pack,
)
from assay.networks.custom import DEFAULT, source_key
from assay.networks.normalize import RewardScaler, RunningNormalizer
from assay.networks.state_dict import load_module, refuse_unsaved, to_array
from assay.networks.tensors import to_device
from assay.optim.compiled_step import CompiledStep
from assay.optim.mode import UPDATES_THAT_PAY, Mode, choose_mode, has_compiler
from assay.optim.noise import NoiseSpec
from assay.optim.parameters import modules_besides
from assay.optim.update import Objective, Polyak, Step, mean_metrics
from assay.policies.heads import Head
from assay.policies.policy import Policy
from assay.policies.team import Crew, TeamPolicy


@dataclass(frozen=True, slots=True)
class RolloutNeeds:
    """Fresh on-policy data: `horizon` steps of every environment, then one call of `update`.

    Attributes:
        horizon: Steps of each environment in a rollout.
        updates: Optimizer steps on each rollout.
        chunk: Steps that are unrolled together, for a policy with a memory; it divides the horizon.
    """

    horizon: int
    updates: int = 1
    chunk: int = 1

    def expected_updates(self, total: int, num_envs: int) -> float:
        """Return how many optimizer steps a run of `total` environment steps takes."""
        return total / (self.horizon * num_envs) * self.updates


@dataclass(frozen=True, slots=True)
class ReplayNeeds:
    """A replay that fills while the algorithm samples from it.

    Attributes:
        capacity: Transitions kept.
        learning_starts: Environment steps before the first update; until then actions are random.
        train_every: Environment steps per round of updates.
        updates: Updates per round.
        n_step: Length of the bootstrapped return.
        gamma: Discount inside the n-step return; below 0 in a game of two players who take turns,
            where what follows is the other one's.
        prioritized: Exponent alpha of prioritised sampling, or None for uniform.
        sequence: Length of sampled sequences (with stored carry), or None for transitions.
        overlap: Steps that a sequence shares with the next one of its episode.
        cross_episodes: Let sequences run on over episode ends, marked by `is_first`.
        her: How goals are relabelled in hindsight, or None to leave them as they are.
    """

    capacity: int
    learning_starts: int
    train_every: int = 1
    updates: int = 1
    n_step: int = 1
    gamma: float = 0.99
    prioritized: float | None = None
    sequence: int | None = None
    overlap: int = 0
    cross_episodes: bool = False
    her: HindsightOptions | None = None

    def expected_updates(self, total: int, num_envs: int) -> float:
        """Return how many optimizer steps a run of `total` environment steps takes."""
        return total / self.train_every * self.updates


@dataclass(frozen=True, slots=True)
class DatasetNeeds:
    """Transitions that were recorded before the run, to sample from.

    Attributes:
        gamma: Discount that a batch states.
        next_action: Whether the extras of a batch have `next_action`, what was done after each
            transition, and `has_next`, 0 where nothing was and the action is zeros.
        pairs: Whether pairs of segments are drawn, that somebody has compared.
    """

    gamma: float = 0.99
    next_action: bool = False
    pairs: bool = False

    def expected_updates(self, total: int, num_envs: int) -> float:
        """Return how many optimizer steps a run takes: they are what it counts."""
        return total


@dataclass(frozen=True, slots=True)
class GameNeeds:
    """A whole game as a tree: nothing is sampled, and an update goes through all of it."""

    def expected_updates(self, total: int, num_envs: int) -> float:
        """Return how many updates a run takes: they are what it counts."""
        return total


@dataclass(frozen=True, slots=True)
class Context:
    """What a run tells its algorithm.

    Attributes:
        clock: The run's counts, shared and live: schedules read `clock.progress`.
        seed: The run's seed; every stream of the algorithm is derived from it.
        num_envs: Environments that act in parallel.
        device: Where the networks live.
        compile: Whether optimizer steps are compiled; "auto" does as soon as that costs no time.
        learns: Whether updates will follow; an agent that was loaded only acts.
    """

    clock: Clock
    seed: int = 0
    num_envs: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    compile: Literal["auto"] | bool = False
    learns: bool = True


_OWNED = "algorithm-"  # begins the names of sections of buffers that an algorithm owns


class Algorithm(ABC):
    """Base of all algorithms: identity, randomness, metrics and saving; no learning logic.

    Attributes that are modules, optimizer steps, buffers (`Sectioned`), normalisers (anything else
    with `state` and `load_state`) or NumPy generators are saved and restored by name, without
    further code.
    """

    spec: ClassVar[AlgorithmSpec]
    Hyperparameters: ClassVar[type[Settings]]
    needs: RolloutNeeds | ReplayNeeds | DatasetNeeds | GameNeeds
    policy: Policy  # one of several agents has a `TeamPolicy`
    gives_extras: ClassVar[bool] = False  # off-policy: `act` returns extras that the replay keeps
    # Whether one run can learn from recorded data and an environment: `data` and `env_steps`.
    takes_both: ClassVar[bool] = False
    takes_reward_model: ClassVar[bool] = False  # it may learn from a reward that was learned before
    # Whether it learns in games of which it plays all seats: what follows is the opponent's view.
    plays_itself: ClassVar[bool] = False
    # Hyperparameters that can be changed after training, because only acting reads them.
    acting_settings: ClassVar[frozenset[str]] = frozenset()
    auto_compiles: bool = True  # whether compile=auto may compile steps that are not cached

    def __init__(self, spaces: Spaces, hp: Any, context: Context) -> None:
        if (spaces.team is not None) != (self.spec.agents == "many"):
            raise _wrong_number(self.spec, spaces)
        if type(spaces.action).__name__ not in self.spec.actions:
            raise _wrong_actions(self.spec, spaces)
        for space in (spaces.observation, spaces.action):
            assert _starts_at_0(space), f"{space} is not canonical: see `assay.envs.spaces`"
        hp.reject_unused(spaces)
        self.spaces = spaces
        self.hp = hp
        self.clock = context.clock
        self.device = context.device
        self.num_envs = context.num_envs
        self.context = context
        self.rng = seeding.derive_rng(context.seed, "algorithm")
        # Torch draws initial weights from its global generator; all later noise is NumPy's.
        torch.manual_seed(seeding.derive_seed(context.seed, "weights"))
        self.obs_norm = self.reward_scale = None
        if getattr(hp, "normalize_obs", False):
            self.obs_norm = RunningNormalizer(spaces.observation)
        if getattr(hp, "normalize_reward", False):
            self.reward_scale = RewardScaler(context.num_envs, hp.gamma)
        self._notes: Metrics = {}
        self._policy_made = False

    @abstractmethod
    def update(self, data: Any) -> None:
        """Learn once from what `needs` asked for: a `Rollout`, `Replay`, `Dataset` or `GameTree`.

        Optimizer steps count and report by themselves; `note` reports what is not theirs.
        """

    def design(self) -> dict[str, np.ndarray] | None:
        """Return parameters [N] of the environments to set before a rollout; None leaves them.

        All environments are then reset, so that a rollout is in the levels that were designed.
        """
        return None

    def know_termination(self, find: Callable[[], Termination | None]) -> None:
        """Meet what finds the environment's rule of how episodes end; None where it is not known.

        A loop calls it before the first update. Only algorithms that model the environment look.
        """
        del find

    def make_policy(self, network: nn.Module, head: Head, **options: Any) -> Policy:
        """Return how this algorithm acts; call it after the optimizer steps were made.

        `options` are `behaviour` and `levels` of `Policy`.
        """
        self._policy_made = True
        options |= {"device": self.device, "rng": self.rng, "normalizer": self.obs_norm}
        return Policy(self.spaces, network, head, **options)

    def make_team_policy(
        self, crews: Sequence[Crew], networks: Sequence[nn.Module], heads: Sequence[Head]
    ) -> TeamPolicy:
        """Return how an algorithm of several agents acts: one policy for each crew."""
        self._policy_made = True
        options: dict[str, Any] = {"device": self.device, "rng": self.rng}
        policies = [
            Policy(crew.spaces, network, head, **options)
            for crew, network, head in zip(crews, networks, heads, strict=True)
        ]
        return TeamPolicy(self.spaces, crews, policies)

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Choose actions for a batch of observations: what `policy` does."""
        return self.policy.act(obs, carry, explore)

    def rewarded(self, carry: Tree, reward: Any) -> Tree:
        """Return the carry after rewards [N] were given: what `policy` does, if there is one."""
        policy = getattr(self, "policy", None)  # an algorithm may act by itself
        return carry if policy is None else policy.rewarded(carry, reward)

    def acted(self, carry: Tree, action: Any) -> Tree:
        """Return the carry after actions [N, ...] were taken that the policy did not choose."""
        return carry

    def initial_carry(self, n: int) -> Tree:
        """Return the state a policy carries from step to step at an episode's start, or None."""
        return self.policy.initial_carry(n)

    @property
    def has_running_stats(self) -> bool:
        """Return whether there are statistics that must see what is collected."""
        return self.obs_norm is not None or self.reward_scale is not None

    def cut_episodes(self) -> None:
        """Forget the returns of running episodes, because their environments are reset."""
        if self.reward_scale is not None:
            self.reward_scale.restart()

    def update_reward_stats(self, reward: Any, done: Any, valid: Any = None) -> None:
        """See collected rewards [T, N] or [N] before they are learned from."""
        if self.reward_scale is not None:
            self.reward_scale.update(reward, done, valid)

    def update_obs_stats(self, obs: Tree, valid: Any = None) -> None:
        """See collected observations, between updates, never inside one."""
        if self.obs_norm is not None:
            self.obs_norm.update(obs, valid)

    # ------------------------------------------------------------------ shared by all

    def normalized(self, obs: Tree) -> Tree:
        """Return NumPy observations as the networks want them."""
        return obs if self.obs_norm is None else self.obs_norm.normalize(obs)

    def tensors(self, tree: Tree) -> Tree:
        """Return NumPy arrays as tensors on the networks' device."""
        return to_device(tree, self.device)

    def inputs(self, obs: Tree) -> Tree:
        """Return NumPy observations as the networks take them: normalised, as tensors."""
        return self.tensors(self.normalized(obs))

    def replay_tensors(self, batch: Batch) -> dict[str, Tensor]:
        """Name a replay batch for a loss, with observations and rewards normalised."""
        obs, next_obs, reward = batch.obs, batch.next_obs, batch.reward
        if self.obs_norm is not None:
            obs = self.obs_norm.normalize_torch(obs)
            next_obs = self.obs_norm.normalize_torch(next_obs)
        if self.reward_scale is not None:
            reward = self.reward_scale.scale_torch(reward, self._summed_steps(batch.discount))
        named = {
            "action": batch.action, "reward": reward,
            "terminated": batch.terminated, "discount": batch.discount,
        }  # fmt: skip
        if batch.weight is not None:
            named["weight"] = batch.weight
        return pack("obs", obs) | pack("next_obs", next_obs) | named

    def _summed_steps(self, discount: Tensor) -> Tensor | float:
        """Return the discounted count of the rewards in each return of a replay batch."""
        n, gamma = getattr(self.needs, "n_step", 1), self.hp.gamma
        if n == 1 or gamma == 1.0:  # a discount of 1 does not tell how many there were
            return float(n)
        return (1.0 - discount) / (1.0 - gamma)  # = 1 + gamma + ... + gamma^(k-1), discount gamma^k

    def noise(self, *shape: int) -> Tensor:
        """Draw standard normal noise on the host; `make_step(noise=...)` does on the device."""
        draw = self.rng.standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(draw).to(self.device)

    def mode(self, device: torch.device | None = None) -> Mode:
        """Return how the optimizer steps of this run execute, here or on another device."""
        if not self.context.learns or self.context.compile is False:
            return "eager"
        return choose_mode(self.context.compile, device or self.device)

    @property
    def is_worth_compiling(self) -> bool:
        """Return whether the run is long enough to compile its steps in the background."""
        updates = self.needs.expected_updates(self.clock.total, self.num_envs)
        return self.auto_compiles and updates >= UPDATES_THAT_PAY and has_compiler()

    def make_step(
        self,
        objectives: Sequence[Objective],
        *,
        polyak: Sequence[Polyak] = (),
        noise: Mapping[str, NoiseSpec] | None = None,
        low_precision: torch.dtype | None = None,
        share: Step | None = None,
    ) -> Step:
        """Return the optimizer step of some losses, executed as suits this run; see `Step`.

        The losses may read every module that is an attribute by now. `needs` must be set.
        """
        if self._policy_made:
            raise ConfigError(
                f"{type(self).__name__} calls make_policy before make_step. A step moves the "
                "parameters into one buffer, and the policy would go on with the old ones.",
                "Call make_step first.",
            )
        mode, seed = self.mode(), seeding.derive_seed(self.context.seed, "step", len(self.steps))
        own = [o.module for o in objectives] + [m for p in polyak for m in (p.target, p.source)]
        options: dict[str, Any] = {
            "polyak": polyak, "noise": noise, "low_precision": low_precision, "share": share,
            "record": self.context.compile is not False,
            "reads": modules_besides(own, self.modules.values()),
        }  # fmt: skip
        if mode == "eager":
            return Step(objectives, seed=seed, **options)
        return CompiledStep(objectives, seed=seed, mode=mode, key=self._step_key, **options)

    @property
    def _step_key(self) -> str:
        """Return all that shapes the losses besides their source."""
        network = source_key(getattr(self.hp, "network", DEFAULT))
        # Schedules do not shape a step: losses and rules get their numbers as inputs.
        settings = {k: v for k, v in self.hp if not isinstance(v, Schedule)}
        return f"{self.spec.name}{settings!r}{self.spaces!r}{network}"

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Return the networks, by attribute."""
        return {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}

    @property
    def steps(self) -> dict[str, Step]:
        """Return the optimizer steps, by attribute."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Step)}

    @property
    def updates(self) -> int:
        """Return how many optimizer steps were taken."""
        return sum(step.updates for step in self.steps.values())

    def note(self, **values: float) -> None:
        """Report values of which only the last before a log line counts."""
        self._notes.update(values)

    def drain_metrics(self) -> Metrics:
        """Return the mean of what the steps reported since the last call, as `train/...`."""
        found = self._notes | mean_metrics(self.steps.values())
        self._notes = {}
        return {f"train/{name}": value for name, value in found.items()}

    def sections(self) -> Sections:
        """Return all of it for a checkpoint, in sections with their versions.

        They are "weights", "optimizer", "normalisers" and "algorithm", and those of every buffer
        that the algorithm owns, each of which is written only when it changed.
        """
        parts: dict[str, State] = {
            "weights": {}, "optimizer": {}, "normalisers": {}, "algorithm": {},
        }  # fmt: skip
        buffers: Sections = {}
        for name, value in sorted(vars(self).items()):
            if isinstance(value, nn.Module):
                tensors = value.state_dict()
                parts["weights"][name] = {k: to_array(v) for k, v in tensors.items()}
            elif isinstance(value, Step):
                parts["optimizer"][name] = value.state()
            elif isinstance(value, np.random.Generator):
                parts["algorithm"][name] = seeding.rng_state(value)
            elif isinstance(value, Sectioned):
                buffers |= value.sections(_OWNED + name)
            elif hasattr(value, "load_state"):
                parts["normalisers"][name] = value.state()
            else:
                refuse_unsaved(name, value)
        # Values since the last log line are part of where a run is.
        parts["algorithm"]["notes"] = dict(self._notes)
        return {name: (state, None) for name, state in parts.items()} | buffers

    def state(self) -> dict[str, State]:
        """Return the state of each of the `sections`."""
        return {name: state for name, (state, _) in self.sections().items()}

    def load_state(self, sections: dict[str, State]) -> None:
        """Restore what `state` returned, in place.

        An agent that only acts needs no optimizer and no buffers.
        """
        for name, value in sorted(vars(self).items()):
            if isinstance(value, nn.Module):
                load_module(name, value, sections["weights"].get(name, {}))
            elif isinstance(value, Step):
                if self.context.learns:
                    value.load_state(sections["optimizer"][name])
            elif isinstance(value, np.random.Generator):
                seeding.set_rng_state(value, sections["algorithm"][name])
            elif isinstance(value, Sectioned):
                if self.context.learns:
                    value.load_sections(sections, _OWNED + name)
            elif hasattr(value, "load_state"):
                value.load_state(sections["normalisers"][name])
        self._notes = dict(sections["algorithm"]["notes"])


def bound(loss: Callable[..., Any], *first: Any) -> Callable[[dict[str, Tensor]], Any]:
    """Return a loss with its first arguments given, which can be an objective of a step."""
    return functools.update_wrapper(functools.partial(loss, *first), loss)


def _wrong_actions(spec: AlgorithmSpec, spaces: Spaces) -> SpaceError:
    kind, allowed = type(spaces.action).__name__, " or ".join(spec.own_actions)
    if spaces.team is not None:
        return SpaceError(
            f"{spec.name} handles {allowed} actions; agent '{spaces.team.agents[0]}' has "
            f"{spaces.team.actions[0]}.",
            f"Choose another algorithm for several agents: {', '.join(_fitting(spaces))}.",
        )
    return SpaceError(
        f"{spec.name} handles {allowed} actions; this environment has {spaces.action}.",
        f"Choose an algorithm for {kind} actions: `assay algorithms` lists them.",
    )


def _fitting(spaces: Spaces) -> list[str]:
    """Return the algorithms for an environment with as many agents and such actions."""
    found = [registry.get(name).spec for name in sorted(registry.built_in())]
    of_team, kind = spaces.team is not None, type(spaces.action).__name__
    return [
        one.name
        for one in found
        if (one.agents == "many") == of_team and kind in one.actions and one.expert is None
        if one.loop in ("on_policy", "off_policy") and not {"rules", "designs"} & set(one.traits)
    ]


def _wrong_number(spec: AlgorithmSpec, spaces: Spaces) -> SpaceError:
    """Say that an environment has one agent and the algorithm is for several, or vice versa."""
    fitting = _fitting(spaces)
    if spaces.team is not None:
        return SpaceError(
            f"{spec.name} trains one agent; this environment has {spaces.team.size}: "
            f"{', '.join(spaces.team.agents)}.",
            f"Choose an algorithm for several agents: {', '.join(fitting)}.",
        )
    return SpaceError(
        f"{spec.name} trains several agents; this environment has one, with "
        f"{spaces.action} actions.",
        f"Choose an algorithm for one agent: {', '.join(fitting)}.",
    )


def _starts_at_0(space: gym.Space[Any]) -> bool:
    """Return whether all whole numbers of a space are counted from 0, as they are in here."""
    parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else (space,)
    return not any(np.any(getattr(part, "start", 0)) for part in parts)
