"""Options as actions: an action chooses an option, which acts until it ends.

    wrappers=[{options: [{policy: "my_module:go_east", until: "my_module:in_a_hallway"},
                         {policy: runs/south, steps: 10}]}]

What remains is a semi-Markov decision process (Sutton, Precup and Singh 1999): the reward of an
action is the discounted sum over the option's steps, and `info["option_steps"]` says how many these
were. In evaluations the sum is not discounted, so that returns are the environment's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
from pydantic import Field, field_validator

from assay.core.config import Model
from assay.core.errors import ConfigError
from assay.core.imports import find_named, import_named
from assay.envs.wrappers.layers import Inside

OPTION_STEPS = "option_steps"


@dataclass(frozen=True, slots=True)
class Option:
    """What acts for several steps.

    Attributes:
        act: From an observation of the environment to one of its actions.
        until: Whether the option ends in an observation; None is never.
        steps: After how many steps it ends at the latest; None is any number.
        begin: Called when it is chosen, so that a policy with a memory can forget.
    """

    act: Callable[[Any], Any]
    until: Callable[[Any], Any] | None = None
    steps: int | None = None
    begin: Callable[[], Any] | None = None


class WithOptions(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose actions are options.

    Args:
        env: The environment.
        options: What can be chosen.
        gamma: Discount of the rewards of an option's steps.
        primitive: Whether the environment's own actions, which are Discrete, can be chosen as well.
            They come first.

    Raises:
        ConfigError: There are no options, or the environment's own actions cannot be among them.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        options: Sequence[Option],
        *,
        gamma: float = 0.99,
        primitive: bool = False,
    ) -> None:
        super().__init__(env)
        own = env.action_space
        if not options:
            raise ConfigError("The wrapper options has none.", "Give at least one.")
        if primitive and not isinstance(own, gym.spaces.Discrete):
            raise ConfigError(
                f"The wrapper options has primitive=true, for Discrete actions; these are {own}.",
                "Leave primitive out.",
            )
        self._options, self._gamma = tuple(options), gamma
        self._own = own if primitive and isinstance(own, gym.spaces.Discrete) else None
        first = 0 if self._own is None else int(self._own.n)
        self.action_space = gym.spaces.Discrete(first + len(self._options))
        self._first, self._obs = first, None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._obs, info = self.env.reset(**options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Let an option act until it ends, or until the episode does."""
        choice = int(action)
        if self._own is not None and choice < self._first:
            start = int(self._own.start)
            option = Option(lambda _: start + choice, steps=1)
        else:
            option = self._options[choice - self._first]
        if option.begin is not None:
            option.begin()
        total, weight, steps = 0.0, 1.0, 0
        while True:
            obs, reward, terminated, truncated, info = self.env.step(option.act(self._obs))
            self._obs = obs
            total += weight * float(reward)
            weight *= self._gamma
            steps += 1
            ended = option.until is not None and bool(option.until(obs))
            if terminated or truncated or ended or steps == option.steps:
                return obs, total, terminated, truncated, {**info, OPTION_STEPS: steps}


class OptionSettings(Model):
    """One option, as settings name it."""

    policy: str = Field(description="A run, or package.module:function of an observation.")
    until: str | None = Field(
        None, description="package.module:function: whether it ends in an observation."
    )
    steps: int | None = Field(None, gt=0, description="Steps after which it ends at the latest.")

    def option(self) -> Option:
        """Return the option.

        Raises:
            ConfigError: A function or a run cannot be found, or nothing ends the option.
        """
        if self.until is None and self.steps is None:
            raise ConfigError(
                f"The option '{self.policy}' would never end.", "Give until or steps, or both."
            )
        until = None if self.until is None else _function(self.until)
        if not Path(self.policy).is_dir():
            return Option(_function(self.policy), until, self.steps)
        # Who loads runs is above this layer, and is found by its name like a user's own function.
        agent = import_named("assay.agents").load(Path(self.policy))
        return Option(agent.act, until, self.steps, agent.reset)


class Options(Inside):
    """Actions that choose options, which act until they end; rewards are summed with a discount."""

    options: tuple[OptionSettings, ...] = Field(
        min_length=1,
        examples=["[{policy: RUN, steps: 5}]"],
        description="Each {policy: RUN or module:function, until: ..., steps: N}.",
    )
    gamma: float = Field(0.99, ge=0, le=1, description="Discount within an option, in training.")
    primitive: bool = Field(False, description="Whether Discrete actions can be chosen as well.")
    does: ClassVar[str] = "run options"

    @field_validator("options", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Take one option for a list of it."""
        return [given] if isinstance(given, dict) else given

    def inside(self, env: gym.Env[Any, Any], training: bool) -> gym.Env[Any, Any]:
        """Return an environment whose actions are options."""
        made = [one.option() for one in self.options]
        gamma = self.gamma if training else 1.0
        return WithOptions(env, made, gamma=gamma, primitive=self.primitive)


def _function(name: str) -> Callable[[Any], Any]:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(
            f"The option '{name}' is neither a run nor a function.",
            "Give the directory of a run, or package.module:function.",
        )
    found = find_named(name, f"The option '{name}'")
    if not callable(found):
        raise ConfigError(
            f"The option '{name}': '{module}' has no function '{attribute}'.",
            "Name a function of one observation.",
        )
    function: Callable[[Any], Any] = found
    return function
