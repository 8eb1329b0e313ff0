"""Options that every reset of an environment gets."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym

from assay.core.errors import EnvError


class ResetOptions(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose resets get options, beside those that a caller gives.

    Gymnasium lets a reset ignore options. So a warning names those that the first one did not
    look at.

    Args:
        env: The environment.
        options: By name.
        name: What the environment is called.
    """

    def __init__(self, env: gym.Env[Any, Any], options: Mapping[str, Any], name: str) -> None:
        super().__init__(env)
        self._options, self._name = dict(options), name
        self._is_new = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Raises:
            EnvError: It does so without the options, and not with them.
        """
        given = _Read(copy.deepcopy({**self._options, **(options or {})}))
        try:
            found = self.env.reset(seed=seed, options=given)
        except Exception as error:
            try:
                self.env.reset(seed=seed)
            except Exception:  # it is not because of them
                raise error from None
            raise EnvError(
                f"'{self._name}': its reset refuses the options {dict(given)} "
                f"({type(error).__name__}: {str(error).rstrip('.')}).",
                "Give options that its reset takes, such as {low: -0.2, high: 0.2} for classic "
                "control.",
            ) from error
        if self._is_new:
            self._is_new = False
            self._warn(sorted(given.keys() - given.read), sorted(given.read - given.keys()))
        return found

    def _warn(self, ignored: list[str], asked: list[str]) -> None:
        if ignored:
            others = f" It looked for: {', '.join(asked)}." if asked else ""
            warnings.warn(
                f"The reset of '{self._name}' did not look at the options "
                f"{', '.join(ignored)}.{others}",
                stacklevel=1,  # one place, so that Python shows it once
            )


class _Read(dict[str, Any]):
    """Options that remember which of them were looked at; `keys` does not count."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self.read |= super().keys()
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self.read.add(key)
        return super().pop(key, *default)

    def items(self) -> Any:
        self.read |= super().keys()
        return super().items()

    def values(self) -> Any:
        self.read |= super().keys()
        return super().values()

    def copy(self) -> dict[str, Any]:
        self.read |= super().keys()
        return dict(super().items())


def make_with_options(
    factory: Callable[[], gym.Env[Any, Any]], options: Mapping[str, Any], name: str
) -> gym.Env[Any, Any]:
    """Make an environment whose resets get options."""
    made = factory()
    # The caller refuses what is no environment.
    return ResetOptions(made, options, name) if isinstance(made, gym.Env) else made
