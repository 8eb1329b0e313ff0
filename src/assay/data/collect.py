"""Make datasets: of episodes as they come, and of tables of transitions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import DataError
from assay.core.types import Tree, pack
from assay.data.dataset import Dataset, Episode, FlatSource, bytes_of
from assay.data.schema import (
    FLAGS,
    OBS,
    Array,
    Columns,
    Schema,
    check_columns,
    check_lengths,
    extra_fields,
    make_schema,
)
from assay.runs.files import run_error


def from_columns(
    columns: Mapping[str, Array],
    lengths: Array,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    name: str = "the dataset",
) -> Dataset:
    """Return a dataset of arrays that hold all rows, checked against the spaces.

    Raises:
        DataError: An array is missing or does not fit.
    """
    steps = check_lengths(np.asarray(lengths), name)
    schema = make_schema(observation_space, action_space, extra_fields(columns))
    fitting = check_columns(schema, columns, steps, name)
    return Dataset(schema, steps, FlatSource(fitting, steps), metadata=metadata, name=name)


def from_episodes(
    episodes: Iterable[Episode],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    name: str = "the dataset",
) -> Dataset:
    """Return a dataset in memory.

    Raises:
        DataError: There is no episode, or one does not fit the spaces; it is named.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> one = Episode(np.zeros((3, 1)), np.array([0, 1]), np.ones(2), np.array([0, 1], bool),
        ...               np.zeros(2, bool))
        >>> from_episodes([one], Box(-1, 1, (1,)), Discrete(2))
        Dataset(the dataset, episodes=1, steps=2)
    """
    parts: dict[str, list[Array]] = {}
    lengths: list[int] = []
    for columns, _, steps in _checked(episodes, observation_space, action_space, name):
        lengths.append(steps)
        for field, rows in columns.items():
            parts.setdefault(field, []).append(rows)
    if not lengths:
        raise _nothing(name)
    joined = {field: np.concatenate(rows) for field, rows in parts.items()}
    spaces = observation_space, action_space
    return from_columns(joined, np.array(lengths), *spaces, metadata=metadata, name=name)


def from_transitions(
    obs: Tree,
    action: Array,
    reward: Array,
    next_obs: Tree,
    terminated: Array,
    truncated: Array,
    *,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    extras: Mapping[str, Array] | None = None,
    metadata: Mapping[str, Any] | None = None,
    name: str = "the dataset",
) -> Dataset:
    """Return a dataset of a table with a row for each transition, in the order of time.

    An episode ends where a transition is terminated or truncated, and where the next row does not
    go on from its `next_obs`; such an episode, which nothing ended, is truncated.

    Raises:
        DataError: An array does not fit.
    """
    before, after = (
        {key: np.asarray(part) for key, part in pack(OBS, tree).items()} for tree in (obs, next_obs)
    )
    reward = np.asarray(reward)
    terminated, truncated = _flag(terminated, FLAGS[0], name), _flag(truncated, FLAGS[1], name)
    steps = {"action": np.asarray(action), "reward": reward, "terminated": terminated}
    steps |= {f"extra/{key}": np.asarray(rows) for key, rows in (extras or {}).items()}
    _same_rows({**before, **{f"next_{k}": v for k, v in after.items()}, **steps}, name)
    goes_on = _continues(before, after) & ~(terminated | truncated)
    ends = np.flatnonzero(~goes_on) + 1
    lengths = np.diff(ends, prepend=0)
    cut = truncated.copy()
    cut[ends - 1] |= ~terminated[ends - 1]
    # The observation after each episode's last step is put in.
    columns = {
        key: np.insert(rows, ends, after[key][ends - 1], axis=0) for key, rows in before.items()
    }
    columns |= {**steps, "truncated": cut}
    spaces = observation_space, action_space
    return from_columns(columns, lengths, *spaces, metadata=metadata, name=name)


def _flag(values: Any, field: str, name: str) -> NDArray[np.bool_]:
    rows = np.asarray(values)
    bad = np.flatnonzero((rows != 0) & (rows != 1))
    if len(bad):
        raise DataError(
            f"Row {bad[0]} of '{field}' of {name} has the value {rows[bad[0]]}; expected true or "
            "false.",
            "Write 0 and 1, or booleans.",
        )
    return rows.astype(np.bool_)


def _continues(before: Columns, after: Columns) -> NDArray[np.bool_]:
    """Return which rows the next row goes on from; the last one has none."""
    count = len(next(iter(before.values())))
    same = np.ones(count, np.bool_)
    same[-1:] = False
    for key, rows in before.items():
        alike = after[key][:-1] == rows[1:]
        same[:-1] &= alike.all(axis=tuple(range(1, alike.ndim)))
    return same


def _same_rows(columns: Columns, name: str) -> None:
    counts = {key: rows.shape[0] if rows.ndim else 0 for key, rows in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise DataError(
            f"The fields of {name} have different numbers of rows: {listed}.",
            "Give one row for each transition in every field.",
        )


@contextmanager
def collected(
    episodes: Iterable[Episode],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    directory: Path,
    metadata: Mapping[str, Any] | None = None,
    name: str = "the dataset",
) -> Iterator[Dataset]:
    """Yield a dataset of episodes that come one by one, kept in files of `directory` meanwhile.

    So that a set larger than the memory can be written: save it within the block.

    Raises:
        DataError: There is no episode, or one does not fit the spaces.
        RunError: The directory cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".collect-", dir=directory) as place:
            with ExitStack() as files:
                spool = _Spool(Path(place), files)
                for columns, schema, steps in _checked(
                    episodes, observation_space, action_space, name
                ):
                    spool.add(columns, schema, steps)
            if spool.schema is None:
                raise _nothing(name)
            lengths = np.array(spool.lengths, np.int64)
            source = FlatSource(spool.mapped(spool.schema), lengths)
            yield Dataset(spool.schema, lengths, source, metadata=metadata, name=name)
    except OSError as error:
        raise run_error(error, f"collect episodes in '{directory}'") from None


class _Spool:
    """A raw file for each field, to which episodes are added."""

    def __init__(self, place: Path, opened: ExitStack) -> None:
        self.place, self._opened = place, opened
        self.schema: Schema | None = None
        self.lengths: list[int] = []
        self._files: dict[str, BinaryIO] = {}

    def add(self, columns: Columns, schema: Schema, steps: int) -> None:
        if self.schema is None:
            self.schema = schema
            for number, name in enumerate(schema.fields):
                file = open(self.place / str(number), "wb")
                self._files[name] = self._opened.enter_context(file)
        for name, rows in columns.items():
            self._files[name].write(bytes_of(rows))
        self.lengths.append(steps)

    def mapped(self, schema: Schema) -> Columns:
        found, shapes = {}, schema.shapes(sum(self.lengths), len(self.lengths))
        for number, (name, one) in enumerate(schema.fields.items()):
            file, dtype = self.place / str(number), one.dtype.newbyteorder("<")
            found[name] = map_rows(file, dtype, shapes[name], 0)
        return found


def map_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    """Return rows of a file, mapped; pages are read as they are used."""
    if not np.prod(shape):
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape)


def _checked(
    episodes: Iterable[Episode],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    name: str,
) -> Iterator[tuple[Columns, Schema, int]]:
    """Yield the fields of each episode in the types of the schema, which the first one fixes."""
    schema: Schema | None = None
    for number, episode in enumerate(episodes):
        columns = _flattened(episode).columns()
        if schema is None:
            schema = make_schema(observation_space, action_space, extra_fields(columns))
        where = f"episode {number} of {name}"
        if not episode.steps:
            raise DataError(f"Episode {number} of {name} is empty.", "Leave it out.")
        steps = np.array([episode.steps])
        check_columns(schema, columns, steps, where)
        fields = schema.fields.items()
        typed = {field: columns[field].astype(one.dtype, copy=False) for field, one in fields}
        yield typed, schema, episode.steps


def _flattened(episode: Episode) -> Episode:
    """Return the episode with the parts of its observations side by side."""
    if not isinstance(episode.obs, Mapping):
        return episode
    parts: dict[str, Array] = {}

    def walk(tree: Tree, path: str) -> None:
        items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        for key, part in items:
            if isinstance(part, Mapping | tuple):
                walk(part, f"{path}{key}/")
            else:
                parts[f"{path}{key}"] = part

    walk(episode.obs, "")
    return replace(episode, obs=parts)


def _nothing(name: str) -> DataError:
    return DataError(f"{name} holds no episodes.", "Record some first.")
