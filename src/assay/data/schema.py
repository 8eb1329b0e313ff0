"""What a dataset holds: its fields, which follow from its spaces, and what is refused.

docs/data.md has the schema in words. Fields are flat: `obs`, or `obs/arm/joints` of an observation
of several parts, `action`, `reward`, `terminated`, `truncated` and any `extra/NAME`. Observations
have T + 1 rows in an episode of T steps, all other fields T.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, DataError
from assay.core.types import State
from assay.core.wording import counted
from assay.envs.space_codec import space_from_state, space_to_state
from assay.envs.spaces import ActionMap, ObservationMap
from assay.runs.files import dump_json, restore_floats

Array = NDArray[Any]
Columns = dict[str, Array]

OBS, EXTRA = "obs", "extra/"
LOG_PROB = "log_prob"  # the extra that holds the log-probabilities of who acted
FLAGS = ("terminated", "truncated")
VERSION = 1
NOT_OURS = "Write it with assay.data.save, or make a dataset of its arrays: assay data build"
MAX_HEADER = 64 << 20  # bytes; the spaces of a camera of 4K with a bound per pixel fit


class Field(NamedTuple):
    """One array of a dataset."""

    dtype: np.dtype[Any]  # of its values
    shape: tuple[int, ...]  # of a row
    more: int = 0  # rows that an episode has beyond its steps: 1 for observations

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Schema:
    """The spaces of a dataset, and the fields that follow from them."""

    observation: gym.Space[Any]  # one array space, or a flat Dict of such (`arm/joints`)
    action: gym.Space[Any]  # a Box, Discrete, MultiDiscrete or MultiBinary
    fields: Mapping[str, Field]  # by name

    @property
    def extras(self) -> dict[str, Field]:
        """Return the fields that only some datasets have, by their full names."""
        return {name: one for name, one in self.fields.items() if name.startswith(EXTRA)}

    def shapes(self, steps: int, episodes: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array with the rows of so many steps."""
        fields = self.fields.items()
        return {name: (steps + one.more * episodes, *one.shape) for name, one in fields}

    def total_bytes(self, steps: int, episodes: int) -> int:
        """Return the bytes of so many steps."""
        return sum(one.row_bytes * (steps + one.more * episodes) for one in self.fields.values())


def make_schema(
    observation: gym.Space[Any],
    action: gym.Space[Any],
    extras: Mapping[str, Field] | None = None,
) -> Schema:
    """Return the schema of data with these spaces; nested observations are flattened.

    Raises:
        SpaceError: A space is not supported.
    """
    observations = ObservationMap(observation)
    sources = {name: leaf.source for name, leaf in observations.fields(OBS).items()}
    action = ActionMap(action).source
    fields = {name: _field(space, 1) for name, space in sources.items()}
    fields["action"] = _field(action, 0)
    fields["reward"] = Field(np.dtype(np.float64), ())
    fields |= dict.fromkeys(FLAGS, Field(np.dtype(np.bool_), ()))
    fields |= dict(sorted((extras or {}).items()))
    bare = OBS in sources
    flat = {name.removeprefix(f"{OBS}/"): space for name, space in sources.items()}
    return Schema(sources[OBS] if bare else gym.spaces.Dict(flat), action, fields)


def _field(space: gym.Space[Any], more: int) -> Field:
    assert space.dtype is not None and space.shape is not None, space
    return Field(np.dtype(space.dtype), tuple(space.shape), more)


def extra_fields(columns: Mapping[str, Array]) -> dict[str, Field]:
    """Return the fields of the extras among some columns."""
    return {
        name: Field(array.dtype, array.shape[1:])
        for name, array in columns.items()
        if name.startswith(EXTRA)
    }


# Checks


def check_columns(
    schema: Schema, columns: Mapping[str, Array], lengths: Array, where: str
) -> Columns:
    """Return the columns of the schema, or say which is missing, or does not fit.

    Args:
        schema: What is expected.
        columns: Arrays with all rows of the episodes, one episode after the other.
        lengths: Steps of each episode.
        where: The file and perhaps the episode, as messages name them.

    Raises:
        DataError: A field is missing, unknown, of another type or shape, or has too many or too
            few rows.
    """
    missing = [name for name in schema.fields if name not in columns]
    if missing:
        raise DataError(
            f"{where} lacks {', '.join(missing)}; it holds {', '.join(columns) or 'nothing'}.",
            f"Write these fields: {', '.join(schema.fields)}.",
        )
    unknown = [name for name in columns if name not in schema.fields]
    if unknown:
        raise DataError(
            f"{where} has the unknown fields {', '.join(unknown)}.",
            f"Leave them out, or call them {EXTRA}NAME; known are {', '.join(schema.fields)}.",
        )
    for name, field in schema.fields.items():
        check_column(name, field, columns[name], lengths, where)
    return {name: columns[name] for name in schema.fields}


def check_lengths(lengths: Array, where: str) -> NDArray[np.int64]:
    """Return the steps of each episode, checked.

    Raises:
        DataError: There are none, or an episode is empty.
    """
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise DataError(
            f"'lengths' of {where} has the shape {lengths.shape} and the type {lengths.dtype}; "
            "expected one whole number for each episode.",
            "Write the steps of each episode.",
        )
    if not len(lengths):
        raise DataError(f"{where} holds no episodes.", "Record some and write it again.")
    empty = np.flatnonzero(lengths < 1)
    if len(empty):
        raise DataError(
            f"Episode {empty[0]} of {where} is empty: it has {lengths[empty[0]]} steps.",
            "Leave episodes without steps out.",
        )
    return lengths.astype(np.int64)


def check_column(name: str, field: Field, array: Array, lengths: Array, where: str) -> None:
    """Refuse rows that are not what the field says.

    Raises:
        DataError: They are of another type or shape, or too many or too few.
    """
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, field.dtype, "same_kind"):
        raise DataError(
            f"'{name}' of {where} is of type {array.dtype}; expected {field.dtype}.",
            "Write it in one type, as the environment gives it.",
        )
    if array.shape[1:] != field.shape:
        raise DataError(
            f"A row of '{name}' of {where} has the shape {array.shape[1:]}; expected "
            f"{field.shape}.",
            "Write it in the shape that the space declares.",
        )
    steps, episodes = int(lengths.sum()), len(lengths)
    expected = steps + field.more * episodes
    if array.shape[:1] != (expected,):
        rows = array.shape[0] if array.ndim else "no"
        why = f"the {counted(steps, 'step')} of {counted(episodes, 'episode')}"
        if field.more:
            why += ", and the last observation of each (T + 1 observations for T steps)"
        raise DataError(
            f"'{name}' of {where} has {rows} rows; expected {expected:,}: {why}.",
            "Write one row for each step"
            + (", and the observation after the last one." if field.more else "."),
        )


# Headers: what a file says of its data


def header_json(schema: Schema, metadata: Mapping[str, Any]) -> bytes:
    """Return the header of a file."""
    return dump_json(
        {
            "assay_data": VERSION,
            "spaces": spaces_state(schema),
            "metadata": dict(metadata),
        }
    )


def read_header(text: bytes, where: str) -> tuple[gym.Space[Any], gym.Space[Any], dict[str, Any]]:
    """Return the observation space, the action space and the metadata of a header.

    Raises:
        DataError: It is not a header, or of a later version.
    """
    try:
        header = restore_floats(json.loads(text))
        version = header["assay_data"]
        if version != VERSION:
            raise DataError(
                f"{where} is of version {version}; this Assay reads version {VERSION}.",
                "Install the Assay that wrote it, or a later one.",
            )
        found = [space_from_state(_arrays(header["spaces"][n])) for n in ("observation", "action")]
        return found[0], found[1], dict(header["metadata"])
    except AssayError:
        raise
    except Exception as error:  # any content can stand there
        raise DataError(
            f"The header of {where} cannot be read ({type(error).__name__}: {error}).",
            "Write the file again with assay.data.save.",
        ) from None


def spaces_state(schema: Schema) -> State:
    """Return the spaces in plain values; equal bounds are written once."""
    spaces = {"observation": schema.observation, "action": schema.action}
    return {name: _plain(space_to_state(space)) for name, space in spaces.items()}


def _plain(state: Any) -> Any:
    if isinstance(state, np.ndarray):
        same = state.size > 0 and (state == state.flat[0]).all()
        values = state.flat[0].item() if same else state.reshape(-1).tolist()
        return {"array": values, "shape": list(state.shape), "dtype": str(state.dtype)}
    if isinstance(state, Mapping):
        return {str(key): _plain(value) for key, value in state.items()}
    return [_plain(value) for value in state] if isinstance(state, list) else state


def _arrays(state: Any) -> Any:
    if isinstance(state, Mapping):
        if "array" in state:
            values = np.asarray(state["array"], np.dtype(state["dtype"]))
            shape: Sequence[int] = state["shape"]
            return np.full(shape, values) if not values.ndim else values.reshape(shape)
        return {key: _arrays(value) for key, value in state.items()}
    return [_arrays(value) for value in state] if isinstance(state, list) else state
