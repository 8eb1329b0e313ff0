"""Specs and steps that the tests of the server share."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.server.spec import Bounds, Box, Dict, Discrete, MultiBinary, MultiDiscrete, PolicySpec
from assay.server.spec import Tuple as TupleSpace
from assay.server.tensors import Array, Experience, Field, Layout, bootstrap_rows

NESTED = Dict(
    spaces={
        "arm": Dict(spaces={"joints": Box(shape=(3, 2), dtype="float64")}),
        "image": Box(shape=(4, 4, 1), dtype="uint8"),
        "mode": TupleSpace(spaces=(Discrete(n=5, start=2), MultiBinary(shape=(3,)))),
    }
)
SPECS = {
    "vector": PolicySpec(
        name="vector", observation=Box(shape=(8,)), action=Discrete(n=4), algorithm="ppo"
    ),
    "nested": PolicySpec(
        name="nested",
        observation=NESTED,
        action=Box(shape=(2,), low=(-1.0, 0.0), high=1.0),
        bounds=Bounds(high=0.5),
        algorithm="sac",
        settings={"gamma": 0.99},
    ),
    "multi": PolicySpec(
        name="multi",
        observation=MultiDiscrete(nvec=(3, 7)),
        action=MultiDiscrete(nvec=(2, 5, 3)),
        algorithm="a2c",
    ),
    "bits": PolicySpec(
        name="bits",
        observation=Box(shape=(), dtype="int16"),
        action=MultiBinary(shape=(6,)),
        algorithm="ppo",
    ),
    "free": PolicySpec(
        name="free", observation=Box(shape=(1,)), action=Box(shape=(1,)), algorithm="td3"
    ),
}


def _rows(one: Field, spec: PolicySpec, rows: int, rng: np.random.Generator) -> Array:
    shape = (rows, *one.shape)
    leaf: Any = spec.action
    limits = spec.action_limits()
    if one.name == "action" and limits is not None:
        low, high = (np.clip(limit, -9, 9) for limit in limits)
        return rng.uniform(low, high, shape).astype(one.dtype)
    if one.name == "action":
        most = np.array(getattr(leaf, "nvec", getattr(leaf, "n", 2)))
        return rng.integers(0, most, shape).astype(one.dtype)
    if one.dtype.kind == "f":
        return rng.normal(size=shape).astype(one.dtype)
    # 2 is inside every integer observation of these specs but for bits, which are 0 and 1.
    high = 2 if one.dtype.kind == "i" and one.dtype.itemsize == 1 else 3
    low = 2 if one.name.endswith("mode/0") else 0
    return rng.integers(low, high, shape).astype(one.dtype)


def experience(
    spec: PolicySpec,
    steps: int,
    seed: int = 0,
    *,
    event: bool = False,
    **header: Any,
) -> Experience:
    """Return random steps that fit a spec."""
    rng = np.random.default_rng(seed)
    layout = Layout(spec)
    fields: dict[str, Array] = {}
    for one in layout.steps:
        if one.dtype.kind == "b":
            fields[one.name] = rng.random(steps) < 0.2
        elif not one.optional or event:
            fields[one.name] = _rows(one, spec, steps, rng)
    rows = bootstrap_rows(fields)
    for one in layout.bootstrap:
        fields[one.name] = _rows(one, spec, rows, rng)
    return Experience(**{"epoch": 1, "seq": 1, **header}, fields=fields)
