"""Arguments of an environment's constructor as parameters, called `env_kwargs.NAME`.

An environment is made again where one of them changes, which takes as long as making it does. Only
numbers and flags that have a value already can be named: a default, or one in `env_kwargs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym

from assay.core.errors import EnvError
from assay.core.seeding import derive_seed
from assay.envs.env_errors import SEED_BITS

PREFIX = "env_kwargs."
Make = Callable[[Mapping[str, Any]], gym.Env[Any, Any]]


class Remade(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that is made again where its arguments change; a reset must follow.

    The new one is seeded by the last seed and how often it was made, so that resets without a seed
    do not depend on the operating system.

    Args:
        make: Makes it with some arguments.
        usual: The arguments that may change, as they are at first.
    """

    def __init__(self, make: Make, usual: Mapping[str, Any]) -> None:
        super().__init__(make({}))
        self._make, self._values = make, dict(usual)
        self._seed, self._times, self._is_new = 0, 0, False

    def arguments(self) -> dict[str, float]:
        """Return the current arguments by the names of their parameters."""
        return {PREFIX + name: float(value) for name, value in self._values.items()}

    def remake(self, arguments: Mapping[str, float]) -> None:
        """Make it with other arguments, by the names of their parameters.

        Raises:
            EnvError: It would have other spaces.
        """
        changed = self._values | {
            name.removeprefix(PREFIX): _as_kind(self._values[name.removeprefix(PREFIX)], value)
            for name, value in arguments.items()
        }
        if changed == self._values:
            return
        made = self._make(changed)
        for space in ("observation_space", "action_space"):
            if getattr(made, space) != getattr(self.env, space):
                made.close()
                raise EnvError(
                    f"With {changed} the {space} is {getattr(made, space)} in place of "
                    f"{getattr(self.env, space)}.",
                    "Randomize arguments that leave the spaces as they are.",
                )
        self.env.close()
        self.env, self._values = made, changed
        self._times, self._is_new = self._times + 1, True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self._seed, self._times = seed, 0
        elif self._is_new:
            seed = derive_seed(self._seed, "remade", self._times) & SEED_BITS
        self._is_new = False
        return self.env.reset(seed=seed, options=options)


def _as_kind(usual: Any, value: float) -> Any:
    """Return a number as a flag, a whole number or a float, as the usual value is one."""
    if isinstance(usual, bool):
        return value >= 0.5
    return round(value) if isinstance(usual, int) else value


def arguments_of(parameters: Iterable[str]) -> tuple[str, ...]:
    """Return which arguments are among parameters."""
    return tuple(name.removeprefix(PREFIX) for name in parameters if name.startswith(PREFIX))


def remade_of(env: gym.Env[Any, Any]) -> Remade | None:
    """Return the wrapper that makes an environment again, if it has one."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, Remade):
            return env
        env = env.env
    return None
