"""Which arguments the constructor of an environment takes, and their usual values."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator

from assay.core.errors import EnvError, nearest

# Settings that Gymnasium's `make` takes itself.
MAKE_KWARGS = {"max_episode_steps", "render_mode"}


def require_integer(name: str, value: Any, least: int | None = None) -> None:
    """Refuse what is not an integer of at least `least`; by default, a positive one.

    Raises:
        EnvError: It is something else.
    """
    smallest = 1 if least is None else least
    if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
        expected = "a positive integer" if least is None else f"an integer of at least {least}"
        raise EnvError(f"{name} is {value!r}; {expected} was expected.")


def refuse_unknown(spec: EnvSpec, entry_point: Any, kwargs: dict[str, Any]) -> None:
    """Refuse settings that an entry point does not take.

    Raises:
        EnvError: One is unknown.
    """
    parameters = _names(entry_point)
    if parameters is None:
        return
    known = (parameters | MAKE_KWARGS) - {"self", "num_envs"}
    for key in kwargs:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(sorted(known))}."
            raise EnvError(f"'{spec.id}' has no setting '{key}'.", hint)


def _names(entry_point: Any) -> set[str] | None:
    """Return the names of an entry point's parameters, or None if it takes any."""
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return set(parameters)


def takes_limit(entry_point: Any) -> bool:
    """Return whether an entry point takes a time limit."""
    names = _names(entry_point)
    return names is None or "max_episode_steps" in names


def usual_arguments(
    names: Iterable[str], creator: Any, given: Mapping[str, Any], label: str
) -> dict[str, Any]:
    """Return the values of arguments: those that are given, or the defaults of the constructor.

    Raises:
        EnvError: One has no value, or one that is not a number.
    """
    creator = load_env_creator(creator) if isinstance(creator, str) else creator
    try:
        found = {n: p.default for n, p in inspect.signature(creator).parameters.items()}
    except (TypeError, ValueError):
        found = {}
    known = {n: v for n, v in {**found, **given}.items() if isinstance(v, bool | int | float)}
    for name in names:
        if name not in known:
            raise EnvError(
                f"'{label}' has no argument '{name}' with a number as its value.",
                nearest(name, known) if known else "Give it a value in env_kwargs.",
            )
    return {name: known[name] for name in names}
