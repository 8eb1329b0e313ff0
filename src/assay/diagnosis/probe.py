"""What the last checkpoint of a run tells: units that do nothing, what normalisers have seen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError
from assay.core.types import State
from assay.policies.layers import Activation, Dense, make_input
from assay.policies.model_file import from_state
from assay.policies.recurrent import Recurrent
from assay.runs.checkpoint import POLICY, latest, read_checkpoint, read_manifest

_LEAST_ROWS = 16  # of observations, to say that a unit does nothing
_MOST_ROWS = 512
_SATURATED = 0.99  # of a tanh


@dataclass(frozen=True, slots=True)
class Units:
    """How many units of a layer do nothing."""

    layer: int  # its place in the network, from 1
    size: int  # how many units there are
    dead: int  # how many give the same on every observation: 0 (relu), or -1 or 1 (tanh)
    rows: int  # observations that were looked at


@dataclass(frozen=True, slots=True)
class Probe:
    """What a checkpoint tells."""

    path: Path  # the checkpoint
    # Of each hidden layer of the policy; empty if it cannot be run here.
    units: tuple[Units, ...] = ()
    seen: int | None = None  # observations that the normaliser has seen, None without one
    # Median over the observations of how far they lie from the normaliser's mean, in its
    # deviations; None without a normaliser.
    distance: float | None = None
    # Mean absolute value of the largest feature of observations that are not normalised; None with
    # a normaliser, or without observations.
    size: float | None = None
    choices: int | None = None  # of a Discrete action, None otherwise


def probe(checkpoints: Path) -> Probe | None:
    """Look at the newest checkpoint; None if there is none that can be read."""
    path = latest(checkpoints)
    if path is None:
        return None
    try:
        sections = set(read_manifest(path)["sections"])
        wanted = {"run", "collector", "normalisers", POLICY} & sections
        chunk = next((name for name in sorted(sections) if name.startswith("replay-0")), None)
        states = read_checkpoint(path, wanted | ({chunk} if chunk else set()))
    except AssayError:
        return None
    rows = _observations(states, chunk)
    action = states.get("run", {}).get("action", {})
    choices = int(action["n"]) if action.get("kind") == "Discrete" else None
    seen, distance = _normalizer(states.get("normalisers", {}), rows)
    size = None
    if seen is None and rows is not None and rows.dtype.kind == "f":
        size = float(np.abs(rows).reshape(len(rows), -1).mean(0).max(initial=0.0))
    return Probe(path, _units(states.get(POLICY), rows), seen, distance, size, choices)


def _observations(states: dict[str, State], chunk: str | None) -> NDArray[Any] | None:
    """Return what the agent saw, of a replay or of its environments; None if not one array."""
    if chunk is not None:
        leaves = states[chunk].get("leaves", {})
        if set(leaves) != {"0"}:
            return None
        obs = np.asarray(leaves["0"]["obs"])
        terminated = np.asarray(states[chunk]["terminated"])
        obs = obs.reshape(-1, *obs.shape[terminated.ndim :])
        obs = obs[obs.reshape(len(obs), -1).any(1)]  # rows that were never written are zeros
    else:
        current = states.get("collector", {}).get("obs")
        if not isinstance(current, np.ndarray):
            return None
        obs = current
    if len(obs) > _MOST_ROWS:
        obs = obs[np.linspace(0, len(obs) - 1, _MOST_ROWS).astype(int)]
    return obs if len(obs) else None


def _normalizer(states: State, rows: NDArray[Any] | None) -> tuple[int | None, float | None]:
    """Return how many observations a normaliser has seen, and how far `rows` lie from its mean."""
    entry = states.get("obs_norm", {}).get("")
    if entry is None:
        return None, None
    seen = int(entry["count"])
    if rows is None or rows.shape[1:] != np.shape(entry["mean"]):
        return seen, None
    scale = np.sqrt(np.maximum(entry["var"], 1e-12))
    return seen, float(np.median(np.abs((rows - entry["mean"]) / scale).mean(-1)))


def _units(policy: State | None, rows: NDArray[Any] | None) -> tuple[Units, ...]:
    """Run the policy on observations, and count the units that do nothing."""
    if policy is None or rows is None or len(rows) < _LEAST_ROWS:
        return ()
    try:
        model = from_state(policy)
    except AssayError:
        return ()
    about, arrays = model.architecture, model.arrays
    if any(entry.key is not None for entry in about.inputs):
        return ()
    x = make_input(about.inputs)(rows)
    if about.normalization is not None:
        mean, factor, limit = (arrays[name] for name in about.normalization.model_dump().values())
        x = np.clip((x - mean) * factor, -limit, limit).astype(np.float32)
    found = []
    for place, layer in enumerate(about.layers[:-1], start=1):
        if isinstance(layer, Recurrent):
            break
        x = np.array(layer.build(arrays)(x))
        activation = layer.activation if isinstance(layer, Dense | Activation) else None
        if activation == "relu":
            dead = (x <= 0).all(0)
        elif activation == "tanh":
            dead = (x > _SATURATED).all(0) | (x < -_SATURATED).all(0)
        else:
            continue
        found.append(Units(place, x.shape[1], int(dead.sum()), len(rows)))
    return tuple(found)
