"""Write the golden batches: recorded steps, and the bytes that a client must send for them.

    python clients/golden/make_batches.py

The bytes are those of `assay.server.tensors.encode`, which the server reads back. The C++ client is
held to them bit for bit.

`batches.json` lists the batches. A step holds its observation (the numbers of all entries but the
action mask, one after another in the order of their names), its mask or null, action, raw action,
reward, log-probability, version, flags, ends, event, and the final observation of a truncated step
or null. `bootstrap` is the observation after the last step, null where its episode has ended.
`NAME.bin` is the serialised message.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from assay.server.crc import crc32c
from assay.server.spec import (
    Bounds,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    PolicySpec,
    leaf_layout,
    leaves_of,
)
from assay.server.tensors import Experience, Layout, encode

MASK = "action_mask"
SPECS = {
    "vector": PolicySpec(
        name="vector", observation=Box(shape=(3,)), action=Discrete(n=4), algorithm="ppo"
    ),
    "masked": PolicySpec(
        name="masked",
        observation=Dict(spaces={"obs": Box(shape=(2,), low=-1.0), MASK: MultiBinary(shape=(5,))}),
        action=MultiDiscrete(nvec=(2, 3)),
        algorithm="ppo",
    ),
    "mixed": PolicySpec(
        name="mixed",
        observation=Dict(
            spaces={
                "arm": Dict(spaces={"joints": Box(shape=(2, 2)), "grip": Discrete(n=3)}),
                "image": Box(shape=(2, 2, 1), dtype="uint8"),
                "mode": MultiDiscrete(nvec=(2, 7)),
                "switch": MultiBinary(shape=(3,)),
            }
        ),
        action=Box(shape=(2,), low=(-1.0, 0.0), high=1.0),
        bounds=Bounds(high=0.5),
        algorithm="sac",
    ),
    "bits": PolicySpec(
        name="bits",
        observation=Box(shape=(1,)),
        action=MultiBinary(shape=(6,)),
        algorithm="ppo",
    ),
}
# Which steps end, and how: T terminated, C cut off, B both, . goes on.
ENDS = {"vector": "...T.", "masked": ".C..C", "mixed": "C.TB.C.", "bits": "T"}


def draw(leaf: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return one value of a leaf, in its dtype."""
    dtype, shape = leaf_layout(leaf)
    if isinstance(leaf, Box):
        if dtype.kind == "f":
            return rng.normal(size=shape).astype(dtype)
        return rng.integers(0, 256, shape).astype(dtype)
    most = np.array(getattr(leaf, "nvec", getattr(leaf, "n", 2)))
    return rng.integers(0, most, shape).astype(dtype)


def observation(spec: PolicySpec, rng: np.random.Generator, *, all_valid: bool) -> dict[str, Any]:
    """Return one observation by leaf; a final one has no mask of its own."""
    found = {key: draw(leaf, rng) for key, leaf in leaves_of(spec.observation)}
    if all_valid and MASK in found:
        found[MASK][:] = 1
    return found


def flat(leaves: dict[str, Any]) -> list[float]:
    """Return the numbers as the C++ client is given them."""
    return [float(x) for key, part in leaves.items() if key != MASK for x in np.ravel(part)]


def join(prefix: str, rows: list[dict[str, Any]], spec: PolicySpec) -> dict[str, Any]:
    """Return observations one below the other, by the names of the wire."""
    fields = {}
    for key, leaf in leaves_of(spec.observation):
        dtype, shape = leaf_layout(leaf)
        name = f"{prefix}/{key}" if key else prefix
        fields[name] = np.array([row[key] for row in rows], dtype).reshape(len(rows), *shape)
    return fields


def make(name: str) -> tuple[dict[str, Any], bytes]:
    """Return the description of a batch and its bytes."""
    spec, ends = SPECS[name], ENDS[name]
    rng = np.random.default_rng(sorted(SPECS).index(name))
    count = len(ends)
    seen = [observation(spec, rng, all_valid=False) for _ in ends]
    finals = {i: observation(spec, rng, all_valid=True) for i, end in enumerate(ends) if end == "C"}
    goes_on = ends[-1] == "."
    bootstrap = observation(spec, rng, all_valid=False) if goes_on else None
    actions = np.array([draw(spec.action, rng) for _ in ends])
    raw = rng.normal(size=actions.shape).astype(np.float32)
    limits = spec.action_limits()
    if limits is not None:
        actions = np.clip(raw, *limits).astype(np.float32)
    fields: dict[str, Any] = {
        **join("obs", seen, spec),
        "action": actions,
        "reward": rng.normal(size=count).astype(np.float32),
        "log_prob": -rng.random(count).astype(np.float32),
        "version": rng.integers(0, 1 << 40, count),
        "flags": rng.integers(0, 32, count).astype(np.uint8),
        "terminated": np.array([end in "TB" for end in ends]),
        "truncated": np.array([end in "CB" for end in ends]),
        "event": (1 << 33) + np.arange(count).astype(np.uint64),
    }
    if limits is not None:
        fields["raw_action"] = raw
    last = [finals[i] for i in sorted(finals)] + ([bootstrap] if bootstrap is not None else [])
    fields |= join("bootstrap", last, spec)
    experience = Experience(epoch=7, seq=300, fields=fields, episode=12, start_step=130, dropped=2)
    steps = [
        {
            "obs": flat(seen[i]),
            "mask": seen[i][MASK].tolist() if MASK in seen[i] else None,
            "action": np.ravel(actions[i]).tolist(),
            "raw": np.ravel(raw[i]).tolist() if limits is not None else None,
            **{
                key: fields[key][i].item()
                for key in (
                    "reward", "log_prob", "version", "flags", "terminated", "truncated", "event"
                )
            },
            "final": flat(finals[i]) if i in finals else None,
        }
        for i in range(count)
    ]  # fmt: skip
    entry = {
        "name": name,
        "spec": json.loads(spec.canonical()),
        "steps": steps,
        "patches": [],
        "bootstrap": flat(bootstrap) if bootstrap is not None else None,
        "bootstrap_mask": bootstrap[MASK].tolist() if bootstrap and MASK in bootstrap else None,
    }
    return entry, encode(experience, Layout(spec)).SerializeToString(deterministic=True)


def make_patches() -> tuple[dict[str, Any], bytes]:
    """Return a batch of late rewards alone."""
    spec = SPECS["vector"]
    patches = {5: 0.5, 9: -2.25, 1 << 40: 1.0}
    experience = Experience(epoch=7, seq=300, fields={}, dropped=2, patches=patches)
    entry = {
        "name": "patches",
        "spec": json.loads(spec.canonical()),
        "steps": [],
        "patches": [list(item) for item in patches.items()],
        "bootstrap": None,
        "bootstrap_mask": None,
    }
    return entry, encode(experience, Layout(spec)).SerializeToString(deterministic=True)


def write(directory: Path) -> None:
    """Write all files."""
    directory.mkdir(parents=True, exist_ok=True)
    made = [make(name) for name in SPECS] + [make_patches()]
    texts = ["", "123456789", "a" * 1000, "".join(chr(i) for i in range(128))]
    content = {
        "batches": [entry for entry, _ in made],
        "checksums": [{"text": text, "crc32c": crc32c(text.encode())} for text in texts],
    }
    (directory / "batches.json").write_text(json.dumps(content, indent=1) + "\n")
    for entry, data in made:
        (directory / f"{entry['name']}.bin").write_bytes(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path(__file__).parent / "batches")
    write(parser.parse_args().directory)
