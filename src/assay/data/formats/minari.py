"""Minari: a directory whose name is a dataset id, with a group for each episode in one HDF5 file.

It is written and read as Minari documents it, without the package: `data/metadata.json` with the
spaces, and `data/main_data.hdf5` with `episode_0/observations` and so on. Infos have a row more
than steps there, the first for the reset; extras are kept as infos, and infos that are numbers are
read as extras.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, DataError
from assay.data.dataset import Dataset
from assay.data.formats.hdf5 import new_file, plain_arrays, require
from assay.data.schema import (
    EXTRA,
    OBS,
    Array,
    Columns,
    Field,
    Schema,
    check_column,
    check_lengths,
    make_schema,
)
from assay.runs.files import read_json_object, write_synced

__all__ = ["datasets_below", "is_minari", "read", "require", "write"]

_FILE, _FACTS = "main_data.hdf5", "metadata.json"
_VERSION = "0.5.3"  # of the layout that is written
_STEPS = {
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminations",
    "truncated": "truncations",
}


def is_minari(path: Path) -> bool:
    """Return whether a directory holds a Minari dataset."""
    return (path / "data" / _FACTS).is_file()


def read(path: Path) -> Dataset:
    """Open a dataset; episodes are read as they are needed.

    Raises:
        DataError: It lacks something, or has an encoding or a space that is not supported.
    """
    name, facts = f"'{path}'", read_json_object(path / "data" / _FACTS)
    if facts.get("data_format", "hdf5") != "hdf5":
        raise DataError(
            f"{name} is in the format '{facts['data_format']}'; expected hdf5.",
            "Let Minari write it as hdf5.",
        )
    observation, action = (_space(facts, kind, name) for kind in ("observation", "action"))
    file = path / "data" / _FILE
    with require().File(file, "r") as opened:
        arrays = plain_arrays(opened, name)
        lengths = check_lengths(_lengths(arrays, name), name)
        schema = make_schema(observation, action, _extras(arrays, int(lengths[0])))
    image = [name for name, field in schema.fields.items() if _is_image(field)]
    if image and facts.get("jpeg_encoding", True):
        raise DataError(
            f"'{image[0]}' of {name} is stored as JPEG images, which are not what was seen.",
            "Write the set with jpeg_encoding=False.",
        )
    metadata = {key: value for key, value in facts.items() if not key.endswith("_space")}
    return Dataset(schema, lengths, _Episodes(file, schema, name), metadata=metadata, name=name)


def write(dataset: Dataset, path: Path, dataset_id: str | None = None) -> None:
    """Write a dataset into a new directory."""
    place = path / "data"
    place.mkdir(parents=True)
    with new_file(place / _FILE, track_order=True) as file:
        for number, episode in enumerate(dataset.episodes()):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": episode.steps})
            for name, rows in episode.columns().items():
                if name.startswith(EXTRA):
                    rows = np.concatenate([np.zeros_like(rows[:1]), rows])
                group[_inside(name)] = rows
    facts = {
        **dataset.metadata,
        "dataset_id": dataset_id or path.name,
        "total_episodes": dataset.num_episodes,
        "total_steps": len(dataset),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_to_json(_nested(dataset.schema.observation))),
        "action_space": json.dumps(_to_json(dataset.schema.action)),
        "minari_version": _VERSION,
        "dataset_size": round((place / _FILE).stat().st_size / 1e6, 1),
    }
    write_synced(place / _FACTS, json.dumps(facts, default=str).encode())


def _is_image(field: Field) -> bool:
    """Return whether Minari stores the field as images, unless it is told not to."""
    shape = field.shape
    return field.dtype == np.uint8 and len(shape) in (2, 3) and min(shape[:2]) >= 32


def _inside(field: str) -> str:
    """Return where a field is in the group of an episode."""
    if field.startswith(EXTRA):
        return f"infos/{field.removeprefix(EXTRA)}"
    return _STEPS.get(field) or field.replace(OBS, "observations", 1)


class _Episodes:
    """The groups of a file, read as they are needed."""

    def __init__(self, file: Path, schema: Schema, name: str) -> None:
        self._file, self._schema, self._name = file, schema, name

    def block(self, first: int, last: int, names: Iterable[str]) -> Columns:
        """Read the episodes."""
        parts: dict[str, list[Array]] = {name: [] for name in names}
        with require().File(self._file, "r") as file:
            for number in range(first, last):
                group, where = file[f"episode_{number}"], f"episode {number} of {self._name}"
                steps = np.array([group["rewards"].shape[0]])
                for name, found in parts.items():
                    found.append(self._rows(group, name, steps, where))
        return {name: np.concatenate(found) for name, found in parts.items()}

    def _rows(self, group: Any, name: str, steps: NDArray[np.int64], where: str) -> Array:
        place, field = _inside(name), self._schema.fields[name]
        if place not in group and name.startswith(f"{OBS}/"):
            place = _tuples(place, group)
        if place not in group:
            raise DataError(f"{where} lacks {place}.", "Leave the episode out, or write it again.")
        rows: Array = group[place][()]
        if name.startswith(EXTRA) and len(rows) == steps[0] + 1:
            rows = rows[1:]
        check_column(name, field, rows, steps, where)
        return rows

    def columns(self) -> None:
        """Return nothing: the rows lie apart."""
        return None


def _tuples(place: str, group: Any) -> str:
    """Return where a part of a Tuple is, whose numbers have a prefix in the file."""
    words = place.split("/")
    for at, word in enumerate(words):
        numbered = "/".join([*words[:at], f"_index_{word}"])
        if word.isdecimal() and numbered in group:
            words[at] = f"_index_{word}"
    return "/".join(words)


def _lengths(arrays: Mapping[str, Any], name: str) -> NDArray[np.int64]:
    groups = {path.partition("/")[0] for path in arrays}
    steps = []
    for number in range(len(groups)):
        rewards = arrays.get(f"episode_{number}/rewards")
        if rewards is None or rewards.ndim != 1:
            raise DataError(
                f"{name} lacks episode_{number}/rewards, or has it in another shape than one "
                "number for each step.",
                "Write the set again with Minari.",
            )
        steps.append(rewards.shape[0])
    return np.array(steps, np.int64)


def _extras(arrays: Mapping[str, Any], steps: int) -> dict[str, Field]:
    """Return the infos of the first episode that are numbers, one for each step."""
    prefix = "episode_0/infos/"
    return {
        f"{EXTRA}{path.removeprefix(prefix)}": Field(one.dtype, one.shape[1:])
        for path, one in arrays.items()
        if path.startswith(prefix)
        and one.dtype.kind in "biuf"
        and one.shape[:1] in ((steps,), (steps + 1,))
    }


# Spaces, in Minari's own words


def _space(facts: Mapping[str, Any], kind: str, name: str) -> gym.Space[Any]:
    text = facts.get(f"{kind}_space")
    if not isinstance(text, str):
        raise DataError(
            f"The metadata of {name} lack {kind}_space.", "Write the set with Minari 0.5 or later."
        )
    try:
        return _from_json(json.loads(text))
    except AssayError:
        raise
    except Exception as error:  # any content can stand there
        raise DataError(
            f"The {kind} space of {name} cannot be read ({type(error).__name__}: {error})."
        ) from None


def _from_json(state: Mapping[str, Any]) -> gym.Space[Any]:
    kind = state["type"]
    if kind == "Box":
        dtype = np.dtype(state["dtype"])
        low, high = (np.array(state[bound], dtype) for bound in ("low", "high"))
        return gym.spaces.Box(low, high, tuple(state["shape"]), dtype.type)
    if kind == "Discrete":
        return gym.spaces.Discrete(state["n"], start=state["start"])
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(np.array(state["nvec"]), start=np.array(state["start"]))
    if kind == "MultiBinary":
        n = state["n"]
        return gym.spaces.MultiBinary(n if isinstance(n, int) else tuple(n))
    if kind == "Dict":
        return gym.spaces.Dict({k: _from_json(part) for k, part in state["subspaces"].items()})
    if kind == "Tuple":
        return gym.spaces.Tuple([_from_json(part) for part in state["subspaces"]])
    raise DataError(f"A space of the kind {kind} is not supported.", "Leave that part out.")


def _to_json(space: gym.Space[Any]) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        start, n = int(space.start), int(space.n)
        return {"type": "Discrete", "dtype": "int64", "start": start, "n": n}
    if isinstance(space, gym.spaces.MultiDiscrete):
        values = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), **values}
    if isinstance(space, gym.spaces.MultiBinary):
        # The shape, also where it has one axis: then a single number would do.
        return {"type": "MultiBinary", "n": list(space.shape)}
    assert isinstance(space, gym.spaces.Dict), space
    return {"type": "Dict", "subspaces": {k: _to_json(part) for k, part in space.items()}}


def _nested(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return a flat Dict with its names taken apart: HDF5 makes a group of each `/`."""
    if not isinstance(space, gym.spaces.Dict):
        return space
    made: dict[str, Any] = {}
    for key, part in space.items():
        *groups, last = key.split("/")
        place = made
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = part
    return _dict_space(made)


def _dict_space(tree: dict[str, Any]) -> gym.spaces.Dict:
    return gym.spaces.Dict(
        {k: _dict_space(part) if isinstance(part, dict) else part for k, part in tree.items()}
    )


def datasets_below(root: Path) -> Iterator[Path]:
    """Yield the directories of the datasets below one."""
    for facts in sorted(root.rglob(f"data/{_FACTS}")):
        yield facts.parents[1]
