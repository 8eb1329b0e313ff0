"""How far candidates may move a setting, proposed from its type and the value that runs get."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from assay.core.errors import nearest
from assay.study.repo.proposal import ProposedParameter

_SHARES = {
    "gamma", "tau", "lam", "lambda", "discount", "polyak", "fraction", "prob", "probability",
    "epsilon", "eps", "dropout", "ratio", "momentum", "share",
}  # fmt: skip
_SMALLEST_SHARE = 1e-3  # an epsilon below that is an optimizer's
_EPSILON = re.compile(r"(start|end|initial|init|final|min|max)_e$")
# What a run costs, and what makes it another task.
_NO_CHANGE = {
    "total_timesteps", "timesteps", "total_steps", "env_steps", "steps", "epochs", "iterations",
    "num_iterations", "max_steps", "max_timesteps", "num_env_steps", "episodes", "num_episodes",
    "eval_episodes", "threads", "workers", "num_workers", "cuda", "gpu", "device", "save_every",
    "log_every", "eval_every",
}  # fmt: skip


def ranges(
    parameters: Iterable[ProposedParameter], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the ranges of a scope, around what `settings` give all runs, or the defaults."""
    found = {one.name: bounds(one, settings.get(one.name, one.default)) for one in parameters}
    return {name: limits for name, limits in found.items() if limits}


def bounds(one: ProposedParameter, value: Any) -> dict[str, Any] | None:
    """Return a range around a setting's value, or None where there is no sensible one.

    The type that the script declares counts: `type=float, default=1` takes fractions.

    Example:
        >>> bounds(ProposedParameter(name="start-e", kind="float"), 1)
        {'kind': 'float', 'low': 0.0, 'high': 1.0}
        >>> bounds(ProposedParameter(name="adam-eps", kind="float"), 1e-5)["high"]
        0.0003
        >>> bounds(ProposedParameter(name="batch-size", kind="int"), 64)
        {'kind': 'int', 'low': 8, 'high': 512}
    """
    name = _plain(one.name.rpartition(".")[2])
    if one.choices:
        return {"kind": "choice", "choices": list(one.choices)}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value <= 0 or name in _NO_CHANGE:
        return None  # switches are often other tasks, renderers or loggers
    if one.kind == "int" or (one.kind != "float" and isinstance(value, int)):
        return {"kind": "int", "low": max(1, int(value) // 8), "high": int(value) * 8}
    if _SMALLEST_SHARE <= value <= 1 and _is_share(name):
        return {"kind": "float", "low": 0.0, "high": 1.0}
    low, high = (float(f"{value * factor:.1g}") for factor in (1 / 30, 30))
    return {"kind": "float", "low": low, "high": high, "log": True}


def _is_share(name: str) -> bool:
    """Return whether a setting is a probability or a share, which 1 bounds."""
    return bool(_SHARES & {name, *name.split("_")} or _EPSILON.search(name))


def as_spelt(
    parameters: Iterable[ProposedParameter], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return settings as the script spells them, and warnings of those that it does not have.

    The audit may have missed an option, so that an unknown one is not an error yet.
    """
    known = {_plain(one.name): one.name for one in parameters}
    found, odd = {}, []
    for name, value in settings.items():
        found[known.get(_plain(name), name)] = value
        if known and _plain(name) not in known:
            hint = nearest(name, known.values())
            odd.append(f"--set {name}: the audit read no such option of the script. {hint}")
    return found, odd


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
