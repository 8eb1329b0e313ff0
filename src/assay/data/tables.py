"""Datasets from the logs of a real system: CSV, JSON lines, Parquet or arrays, by their columns.

A row is a step, in the order of time. The last observation of an episode, which a log often lacks,
comes from the first of these that there is: the columns of `next_obs`; a last row whose action is
empty. Otherwise the observation of a terminated step is repeated, since nothing is learned from
what follows it; and where the episode goes on, its last row gives the observation alone, so that
the episode has a step less. Where a row does not go on from the `next_obs` of the one before, rows
are missing: the episode is truncated, and another one begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import ConfigError, DataError, nearest
from assay.core.wording import counted
from assay.data.collect import collected
from assay.data.dataset import Dataset, Episode
from assay.data.files import check_target, load, save
from assay.data.findings import spaces_of
from assay.data.rows import EMPTY, Numbers, Row, cell_of, numbers_of, place_of, rows_of
from assay.data.schema import EXTRA, FLAGS, OBS, Array
from assay.envs.spaces import ObservationMap

NEXT, EPISODE = "next_obs", "episode"
_REQUIRED = ("action", "reward", "terminated")


def build(
    sources: Sequence[str | Path],
    columns: Mapping[str, Sequence[str]],
    out: str | Path,
    *,
    env: Any = None,
    actions: gym.Space[Any] | tuple[float, float] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Make a dataset of logs, write it and return it.

    Args:
        sources: Files that end in .csv or .jsonl (or .csv.gz or .jsonl.gz), .parquet, or in .npz,
            .hdf5 or .h5 with an array for each column; an episode may not span two of them.
        columns: The columns of each field: `obs` (or `obs/PART`), `action`, `reward` and
            `terminated`, and if there are such `truncated`, `episode`, `next_obs` (or
            `next_obs/PART`) and `extra/NAME`. Several columns, and lists in a cell, are put one
            after the other; a number inside of an object is `state.level`. Without `episode`, an
            episode ends where a step is terminated or truncated.
        out: Where to, as of `assay.data.save`.
        env: The environment whose spaces these are, as of `assay.train`.
        actions: The action space, where there is no environment, or the bounds of every number of
            an action; an unbounded Box by default.
        words: The words of columns that hold words: the first becomes 0, the second 1. If the
            action is such a column, the action space is Discrete by default.

    Raises:
        ConfigError: The map lacks a field, or has one that does not exist.
        DataError: `out` is one of the logs, a column is missing, or a cell cannot be read: the
            file, the line and the column are named.
    """
    listed = {f"The columns of '{name}'": names for name, names in columns.items()}
    for what, names in {"The logs": sources, **listed}.items():
        if isinstance(names, str | Path):
            raise ConfigError(f"{what} are the text '{names}'.", f"Give a list: ['{names}'].")
    _check_map(columns)
    if not sources:
        raise ConfigError("No logs are given.", "Give at least one file.")
    directory = check_target(out, keep=sources)
    numbers = _numbers(words or {}, columns)
    spoken = numbers.get(columns["action"][0]) if len(columns["action"]) == 1 else None
    if spoken and env is None and actions is None:
        actions = gym.spaces.Discrete(len(spoken))
    spaces = _spaces(sources, columns, env, actions, numbers)
    # An environment may clip what lies outside; bounds that were given are meant.
    reader = _Reader(columns, spaces, numbers, bounded=env is None)
    episodes = (one for source in sources for one in reader.episodes(Path(source)))
    first = next(episodes, None)
    if first is None:
        logs = ", ".join(f"'{source}'" for source in sources)
        raise DataError(
            f"No step in {logs} has an observation after it.",
            "Map next_obs, or terminated to a column that is true where an episode ends.",
        )
    metadata: dict[str, Any] = {"built_from": [str(source) for source in sources]}
    if isinstance(env, str):
        metadata["env"] = env
    if words:
        metadata["words"] = {name: list(listed) for name, listed in words.items()}
    with collected(
        chain([first], episodes), *spaces, directory=directory, metadata=metadata, name=f"'{out}'"
    ) as made:
        return load(save(made, out))


def _check_map(columns: Mapping[str, Sequence[str]]) -> None:
    known = (OBS, NEXT, EPISODE, "truncated", *_REQUIRED)
    for name in columns:
        parted = name.split("/")[0] in (OBS, NEXT) or name.removeprefix(EXTRA) not in (name, "")
        if not parted and name not in known:
            hint = nearest(name, [*known, f"{EXTRA}NAME"])
            raise ConfigError(f"The map of columns has the unknown field '{name}'.", hint)
    missing = [name for name in _REQUIRED if not columns.get(name)]
    if not any(name.split("/")[0] == OBS for name in columns):
        missing.insert(0, OBS)
    if missing:
        raise ConfigError(
            f"The map of columns lacks {', '.join(missing)}.",
            f"Say which columns they are, such as {missing[0]}=COLUMN.",
        )
    parts = {name.removeprefix("next_") for name in columns if name.split("/")[0] == NEXT}
    if parts and parts != {name for name in columns if name.split("/")[0] == OBS}:
        raise ConfigError(
            "The map of columns has next_obs of other parts than obs.", "Map the same parts."
        )


def _numbers(words: Mapping[str, Sequence[str]], columns: Mapping[str, Sequence[str]]) -> Numbers:
    """Return the number of each word, by column."""
    mapped = {name for names in columns.values() for name in names}
    for name, listed in words.items():
        if name not in mapped:
            raise ConfigError(
                f"words has the column '{name}', which no field is made of.",
                nearest(name, sorted(mapped)),
            )
        if len(set(listed)) < len(listed) or not all(listed):
            raise ConfigError(
                f"The words of the column '{name}' are {', '.join(map(repr, listed))}.",
                "Give each word once, and none that is empty.",
            )
    return {name: {word: i for i, word in enumerate(listed)} for name, listed in words.items()}


def _spaces(
    sources: Sequence[str | Path],
    columns: Mapping[str, Sequence[str]],
    env: Any,
    actions: Any,
    numbers: Numbers,
) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the spaces: those of the environment, or as wide as the columns."""
    if env is not None:
        if actions is not None:
            raise ConfigError("Both an environment and actions are given.", "Give one of them.")
        observations, own = spaces_of(env)
        return observations.source, own.source
    first = Path(sources[0])
    number, row = next(rows_of(first), (0, None))
    if row is None:
        raise DataError(f"'{first}' holds no rows.", "Give a log with at least one step.")
    widths = {
        name: len(numbers_of(row, names, place_of(first, number), numbers))
        for name, names in columns.items()
        if name.split("/")[0] in (OBS, "action")
    }
    boxes = {name: gym.spaces.Box(-np.inf, np.inf, (width,)) for name, width in widths.items()}
    action = boxes.pop("action")
    if isinstance(actions, tuple):
        low, high = actions
        action = gym.spaces.Box(low, high, action.shape)
    elif actions is not None:
        action = actions
    if OBS in boxes:
        return boxes[OBS], action
    return gym.spaces.Dict(
        {name.removeprefix(f"{OBS}/"): box for name, box in boxes.items()}
    ), action


@dataclass(slots=True)
class _Steps:
    """The rows of an episode as they come."""

    fields: dict[str, list[Array]] = field(default_factory=dict)
    last: dict[str, Array] | None = None  # the observation after the last step

    def add(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            self.fields.setdefault(name, []).append(value)


class _Reader:
    """Cut rows into episodes."""

    def __init__(
        self,
        columns: Mapping[str, Sequence[str]],
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        numbers: Numbers,
        bounded: bool,
    ) -> None:
        self._columns, self._numbers = columns, numbers
        self._action, self._bounded = spaces[1], bounded
        self._obs = [name for name in columns if name.split("/")[0] == OBS]
        self._next = [name for name in columns if name.split("/")[0] == NEXT]
        self._episode = columns.get(EPISODE, ())
        self._others = [n for n in columns if n not in (*self._obs, *self._next, EPISODE)]
        self._shapes = self._row_shapes(*spaces)

    def _row_shapes(
        self, observation: gym.Space[Any], action: gym.Space[Any]
    ) -> dict[str, tuple[int, ...]]:
        leaves = ObservationMap(observation).fields(OBS)
        shapes = {name: tuple(leaf.source.shape or ()) for name, leaf in leaves.items()}
        shapes |= {f"next_{name}": shape for name, shape in shapes.items()}
        for name in (*self._obs, *self._next):
            if name not in shapes:
                listed = ", ".join(one for one in leaves)
                raise ConfigError(
                    f"The map of columns has '{name}'; the observations are {listed}.",
                    "Name the parts as the environment does.",
                )
        shapes |= {"action": tuple(action.shape or ()), "reward": ()}
        return shapes | {"terminated": (), "truncated": ()}

    def episodes(self, path: Path) -> Iterator[Episode]:
        """Yield the episodes of a log."""
        steps, current, begun = _Steps(), None, set()
        over = ""  # what ended the episode
        for number, row in rows_of(path):
            where = place_of(path, number)
            key = self._key(row, where)
            bare = all(cell_of(row, name, where) in EMPTY for name in self._columns["action"])
            if key != current:
                yield from self._finished(steps)
                steps, over = _Steps(), ""
                if self._episode and key in begun:
                    raise DataError(
                        f"The episode {_shown(key)} goes on in {where}, after rows of others.",
                        "Sort the log, so that the rows of an episode follow each other in time.",
                    )
                begun.add(key)
            elif over and self._episode and not (bare and steps.fields):
                raise DataError(
                    f"{over}, but its episode {_shown(key)} goes on.",
                    "Correct the cell, leave the row out, or give what follows another episode.",
                )
            current = key
            values = {name: self._value(row, name, where) for name in self._obs}
            if steps.last and not all(np.allclose(steps.last[n], values[n]) for n in self._obs):
                yield from self._finished(steps)  # rows are missing after its `next_obs`
                steps = _Steps()
            if bare:
                steps.last = values
                yield from self._finished(steps)
                steps, over = _Steps(), f"The action in {where} is empty"
                continue
            values |= {name: self._value(row, name, where) for name in self._others}
            steps.add(values)
            steps.last = None
            if self._next:
                after = {name: self._value(row, name, where) for name in self._next}
                steps.last = {name.removeprefix("next_"): value for name, value in after.items()}
            ended = [name for name in FLAGS if values.get(name)]
            if ended:
                over = f"The step in {where} is {ended[0]}"
                if not self._episode:
                    yield from self._finished(steps)
                    steps = _Steps()
        yield from self._finished(steps)

    def _key(self, row: Row, where: str) -> tuple[Any, ...]:
        """Return what names the episode of a row."""
        key = {name: cell_of(row, name, where) for name in self._episode}
        for name, part in key.items():
            if part in EMPTY:
                raise DataError(
                    f"The column '{name}' in {where} is empty; expected the name of an episode.",
                    "Fill the cell, or leave the row out.",
                )
        return tuple(key.values())

    def _value(self, row: Row, name: str, where: str) -> Array:
        columns = self._columns[name]
        flags = name in ("reward", "terminated", "truncated")
        spoken = not flags or any(column in self._numbers for column in columns)
        values = numbers_of(row, columns, where, self._numbers if spoken else None)
        if not np.isfinite(values).all():
            raise DataError(
                f"'{name}' in {where} is {values}; expected finite numbers.",
                "Correct the cell, or leave the row out.",
            )
        if name == "action":
            self._refuse_outside(values, where)
        if name in ("terminated", "truncated") and any(v not in (0.0, 1.0) for v in values):
            raise DataError(
                f"'{name}' in {where} is {values[0]:g}; expected true or false, or 1 or 0.",
                "Correct the cell.",
            )
        shape = self._shapes.get(name, () if len(values) == 1 else (len(values),))
        if math.prod(shape) != len(values):
            raise DataError(
                f"'{name}' in {where} has {counted(len(values), 'number')}; expected "
                f"{math.prod(shape)}.",
                "Map as many columns as the space has components.",
            )
        return np.array(values).reshape(shape)

    def _refuse_outside(self, values: list[float], where: str) -> None:
        """Refuse choices that there are not, and numbers outside of bounds that were given."""
        space, found = self._action, np.array(values, np.float32)
        inside = True
        if isinstance(space, gym.spaces.Discrete):
            inside = bool(
                (found % 1 == 0).all() and space.start <= found[0] < space.start + space.n
            )
        elif self._bounded and isinstance(space, gym.spaces.Box) and found.size == space.low.size:
            inside = bool(((found >= space.low.ravel()) & (found <= space.high.ravel())).all())
        if not inside:
            raise DataError(
                f"The action in {where} is {', '.join(f'{value:g}' for value in values)}; it is "
                f"not in {space}.",
                "Correct the cell, or the action space.",
            )

    def _finished(self, steps: _Steps) -> Iterator[Episode]:
        """Yield the episode, if it has a step whose next observation is known."""
        if not steps.fields:
            return
        found = {name: np.array(values) for name, values in steps.fields.items()}
        terminated = found.pop("terminated") > 0
        truncated = found.pop("truncated", np.zeros(len(terminated))) > 0
        last = steps.last
        count = len(terminated)
        if last is None and not terminated[-1]:
            count -= 1  # its observation is all that the last row can give
        last = {name: found[name][-1] for name in self._obs} if last is None else last
        if not count:
            return
        truncated, terminated = truncated[:count], terminated[:count]
        truncated[-1] |= not terminated[-1]
        obs = {
            name.removeprefix(f"{OBS}/"): np.concatenate([found[name][:count], last[name][None]])
            for name in self._obs
        }
        yield Episode(
            obs[OBS] if OBS in obs else obs,
            _typed(found["action"][:count]),
            found["reward"][:count],
            terminated,
            truncated,
            {n.removeprefix(EXTRA): v[:count] for n, v in found.items() if n.startswith(EXTRA)},
        )


def _shown(key: tuple[Any, ...]) -> str:
    return ", ".join(repr(str(part)) for part in key)


def _typed(actions: Array) -> Array:
    """Return whole numbers as integers: a Discrete takes no others."""
    whole = actions.astype(np.int64)
    return whole if (whole == actions).all() else actions
