"""What to do about training that diverged, in the settings that the algorithm has."""

from __future__ import annotations

from assay.algorithms.base import Algorithm


def divergence_fix(algorithm: Algorithm) -> str:
    """Return what to lower and what to turn on: settings that this algorithm reads here."""
    idle = {name for name, _ in algorithm.hp.all_unused(algorithm.spaces)}
    values = {name: value for name, value in algorithm.hp if name not in idle}
    rates = [name for name in values if name == "lr" or name.endswith("_lr")]
    # One that is None takes the value of another.
    high = [name for name in rates if values[name] is not None]
    if values.get("max_grad_norm") is not None:
        high.append("max_grad_norm")
    lower = f"Lower {_listed(high)}" if high else "Make rewards smaller"
    plain = [name for name in ("normalize_obs", "normalize_reward") if values.get(name) is False]
    fix = f"{lower}, or set {_listed([f'{name}=true' for name in plain])}" if plain else lower
    return f"{fix}."


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
