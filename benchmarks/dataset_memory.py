"""Train from a dataset that is larger than the memory, beside one that lies in the memory.

    python benchmarks/dataset_memory.py                    # 20 GB, within 4 GB of memory
    python benchmarks/dataset_memory.py --size 1 --limit 2 --updates 500
    python benchmarks/dataset_memory.py --sparse           # a file of holes: without the disk
    python benchmarks/dataset_memory.py --store            # ... and keep the result as evidence

An HDF5 file of random steps (or, sparse, of zeros that take no room) is written, evicted from the
page cache, and removed at the end. Each side is a process of its own on one core that may allocate
no more than the limit (RLIMIT_DATA), and learns with IQL at two layers of 256 and batches of 256,
compiled. The first side draws from the mapped file, the second from arrays of half a gigabyte.
Sides take turns. What the system keeps of the file in memory that is free is not counted: it is
given up as soon as anybody needs it. A written file is read from the disk row by row at first, so
that the figure is the disk's as well; a sparse one shows what mapping alone costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import evidence
import gymnasium as gym
import numpy as np
from children import ask, finish
from numpy.typing import NDArray
from speed import pin

from assay.core.errors import ConfigError
from assay.data.dataset import Dataset, FlatSource
from assay.data.files import load, save
from assay.data.schema import Columns, Schema, header_json, make_schema

STORE = evidence.ROOT / "evidence" / "dataset_memory.json"
SIZE_GB, LIMIT_GB, IN_MEMORY_GB = 20.0, 4.0, 0.5
SHARE = 0.8  # of the speed in memory
KINDS = ("written", "sparse")
EPISODE = 1_000
OBSERVATION = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTION = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)


class Noise:
    """Random steps, made when they are asked for; the same ones each time."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def block(self, first: int, last: int, names: Iterable[str]) -> Columns:
        """Return the rows of some episodes."""
        found: Columns = {}
        for name in names:
            one = self.schema.fields[name]
            rows = (last - first) * (EPISODE + one.more)
            rng = np.random.default_rng([first, len(name)])
            if one.dtype == bool:
                found[name] = np.zeros(rows, bool)
                if name == "truncated":
                    found[name][EPISODE - 1 :: EPISODE] = True
            else:
                noise = rng.random((rows, *one.shape), dtype=np.float32)
                found[name] = (noise * 2.0 - 1.0).astype(one.dtype)
        return found

    def columns(self) -> None:
        """Return nothing: rows are made episode by episode."""
        return None


def noise(gigabytes: float) -> Dataset:
    """Return a dataset of about so many bytes."""
    schema = make_schema(OBSERVATION, ACTION)
    episodes = max(1, round(gigabytes * 1e9 / schema.total_bytes(EPISODE, 1)))
    lengths: NDArray[np.int64] = np.full(episodes, EPISODE)
    return Dataset(schema, lengths, Noise(schema), name="noise")


def in_memory(gigabytes: float) -> Dataset:
    """Return such a dataset as arrays."""
    made = noise(gigabytes)
    steps, episodes = len(made), made.num_episodes
    fields = made.schema.fields
    arrays = {
        n: np.empty((steps + f.more * episodes, *f.shape), f.dtype) for n, f in fields.items()
    }
    made.copy_into(arrays)
    return Dataset(made.schema, made.lengths, FlatSource(arrays, made.lengths), name="memory")


def write_sparse(dataset: Dataset, path: Path) -> None:
    """Write a file of this layout whose rows are holes, which read as zeros."""
    import h5py

    with h5py.File(path, "w") as file:
        file["header"] = np.frombuffer(header_json(dataset.schema, {}), np.uint8)
        file["lengths"] = dataset.lengths
        for name, one in dataset.schema.fields.items():
            rows = len(dataset) + one.more * dataset.num_episodes
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            shape = h5py.h5s.create_simple((rows, *one.shape))
            kind = h5py.h5t.py_create(one.dtype, logical=True)
            h5py.h5d.create(file.id, name.encode(), kind, shape, layout)


def evict(path: Path) -> None:
    """Write a file out, and let the system forget what it keeps of it in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---------------------------------------------------------------------- one side, in a child


def child(spec: dict[str, Any]) -> dict[str, Any]:
    """Train from one of the two, and return updates per second and the memory it took."""
    pin(spec["core"])
    limit = int(spec["limit"] * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import torch

    from assay.buffers.dataset import DatasetBuffer
    from assay.core.types import Spaces
    from assay.envs.spaces import ActionMap, ObservationMap
    from assay.loops.config import resolve
    from assay.loops.training import build_algorithm

    torch.set_num_threads(1)
    dataset = load(spec["path"]) if spec["mapped"] else in_memory(IN_MEMORY_GB)
    observations, actions = ObservationMap(OBSERVATION), ActionMap(ACTION)
    settings = {"data": spec["path"], "updates": spec["updates"], "device": "cpu", "seed": 1}
    settings |= {"compile": spec["compile"], "batch_size": 256, "hidden": [256, 256]}
    config = resolve("iql", "HalfCheetah-v5", settings, use_preset=False)
    spaces = Spaces(observations.space, actions.space)
    algorithm = build_algorithm(config, spaces, config.run.clock())
    rng = np.random.default_rng(1)
    buffer = DatasetBuffer(dataset, observations, actions, gamma=0.99, rng=rng)
    for _ in range(20):  # compiled, and warm
        algorithm.update(buffer)
    began = time.perf_counter()
    for _ in range(spec["updates"]):
        algorithm.update(buffer)
    seconds = time.perf_counter() - began
    return {
        "updates_per_second": round(spec["updates"] / seconds, 2),
        "bytes": dataset.nbytes,
        "allocated_bytes": _status("RssAnon"),
        "mapped_bytes": _status("RssFile"),
    }


def _status(name: str) -> int:
    """Return a number of bytes that the system tells about this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


# ---------------------------------------------------------------------- both, in the parent


def measure(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Write the file, and let both sides take turns."""
    free = shutil.disk_usage(place).free
    if free < options.size * 1.1e9 and not options.sparse:
        raise ConfigError(
            f"'{place}' has {free / 1e9:.0f} GB left, and a set of {options.size:g} GB was asked "
            "for.",
            "Name another place with --dir, or a smaller --size.",
        )
    path = place / "noise.hdf5"
    began = time.perf_counter()
    if options.sparse:
        write_sparse(noise(options.size), path)
    else:
        save(noise(options.size), path)
    print(f"wrote {path.stat().st_size / 1e9:.1f} GB in {time.perf_counter() - began:.0f} s")
    runs: dict[str, list[dict[str, Any]]] = {"mapped": [], "in_memory": []}
    for _ in range(options.repeats):
        for side in ("in_memory", "mapped"):
            evict(path)
            runs[side].append(launch(options, path, mapped=side == "mapped"))
            print(f"{side}: {runs[side][-1]}", flush=True)
    middle = {
        s: float(np.median([r["updates_per_second"] for r in all_])) for s, all_ in runs.items()
    }
    return {
        "size_gb": options.size,
        "limit_gb": options.limit,
        "updates": options.updates,
        "runs": runs,
        "share": round(middle["mapped"] / middle["in_memory"], 3),
        "machine": evidence.machine(),
    }


def launch(options: argparse.Namespace, path: Path, *, mapped: bool) -> dict[str, Any]:
    """Run one side as a process.

    Raises:
        AssayError: It failed; the end of what it wrote is shown.
    """
    spec = {"path": str(path), "mapped": mapped, "limit": options.limit}
    spec |= {"updates": options.updates}
    spec |= {"core": options.core, "compile": not options.eager}
    name = f"Training from {path if mapped else 'memory'}"
    return ask([__file__, "--child", json.dumps(spec)], name)


def store(kind: str, found: dict[str, Any]) -> None:
    """Keep what was measured with a kind of file, beside that of the other kind."""
    held = evidence.read_json(STORE) if STORE.exists() else {"schema": evidence.SCHEMA}
    evidence.write_json(STORE, held | {kind: found})


def lines(held: dict[str, Any]) -> str:
    """Return what is stored as a list."""
    return "\n".join(f"- {line(kind, held[kind])}" for kind in KINDS if kind in held)


def line(kind: str, found: dict[str, Any]) -> str:
    """Return a result in a sentence."""
    allocated = max(run["allocated_bytes"] for run in found["runs"]["mapped"])
    speeds = [
        float(np.median([run["updates_per_second"] for run in found["runs"][side]]))
        for side in ("mapped", "in_memory")
    ]
    met = (
        "met" if found["share"] >= SHARE and allocated <= found["limit_gb"] * 1e9 else "**missed**"
    )
    mapped, memory = speeds
    return (
        f"IQL from a mapped HDF5 set of {found['size_gb']:g} GB ({kind}), with "
        f"{allocated / 1e9:.2f} GB allocated: {mapped:,.0f} updates/s, {found['share']:.0%} of the "
        f"{memory:,.0f} from a set in memory (target {SHARE:.0%} within {found['limit_gb']:g} GB: "
        f"{met})."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and store if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=float, default=SIZE_GB, help="GB of the file")
    parser.add_argument("--limit", type=float, default=LIMIT_GB, help="GB that may be allocated")
    parser.add_argument("--updates", type=int, default=5_000, help="that are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--sparse", action="store_true", help="a file of holes")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--dir", type=Path, default=None, help="where the file is written")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return 0
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        found = measure(options, Path(place))
    kind = "sparse" if options.sparse else "written"
    print(line(kind, found))
    if options.store:
        store(kind, found)
    return 0


if __name__ == "__main__":
    finish(main)
