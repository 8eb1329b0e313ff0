"""Check a dataset against spaces: what is wrong with it, and what is worth a look.

An error means that nothing should learn from it; a warning, that it may not be what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import DataError
from assay.core.wording import counted
from assay.data.dataset import Block, Dataset
from assay.data.files import load
from assay.data.schema import OBS, Array, Field
from assay.data.summary import summarise
from assay.envs.spaces import ActionMap, ObservationMap

_ROUNDING = 1e-5  # by which an action may lie beyond a bound, relative to the bound
_COVERED = 0.25  # share of choices, or of a component's range, below which a warning is due
_OTHER = "Give data of the environment that the agent is to act in."


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a dataset.

    Attributes:
        level: "error" or "warning".
        code: What kind of thing: `unreadable`, `spaces`, `not_finite`, `out_of_bounds`,
            `early_terminal`, `missing_terminal`, `duplicate`, `coverage`, `constant`.
        message: A sentence, with the file.
        field: The field, where it is about one.
        episode: The first episode that has it, where it is about episodes.
        step: The first row within that episode.
        count: How many rows, episodes or components have it.
    """

    level: Literal["error", "warning"]
    code: str
    message: str
    field: str | None = None
    episode: int | None = None
    step: int | None = None
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def validate(source: str | Path | Dataset, env: Any = None) -> list[Finding]:
    """Return what is wrong with a dataset, errors first.

    Args:
        source: What `load` takes. A file that cannot be read is a finding.
        env: What `assay.train` takes; its spaces are compared with. Without it, the spaces that
            the dataset states.

    Raises:
        EnvError: There is no such environment.
    """
    try:
        dataset = load(source)
        own = dataset.schema
        maps = ObservationMap(own.observation), ActionMap(own.action)
        found = list(errors(dataset, *(maps if env is None else spaces_of(env))))
        return found + list(_warnings(dataset)) if not found else found
    except DataError as error:  # of the file, or of an episode that is read later
        return [Finding("error", "unreadable", error.message)]


def require_valid(dataset: Dataset, observations: ObservationMap, actions: ActionMap) -> None:
    """Refuse a dataset that does not fit these spaces.

    Raises:
        DataError: The first error.
    """
    for finding in errors(dataset, observations, actions):
        raise DataError(
            finding.message,
            _OTHER
            if finding.code in ("spaces", "out_of_bounds")
            else "Leave such episodes out; `assay data validate` lists everything.",
        )


def errors(dataset: Dataset, observations: ObservationMap, actions: ActionMap) -> Iterator[Finding]:
    """Yield what makes a dataset useless for these spaces; a few episodes are read at a time."""
    foreign = list(_foreign(dataset, observations, actions))
    yield from foreign
    if foreign:
        return
    bounds: dict[str, gym.Space[Any]] = {"action": actions.source}
    for name, leaf in observations.fields(OBS).items():
        if not isinstance(leaf.source, gym.spaces.Box):  # few environments keep to those bounds
            bounds[name] = leaf.source
    tallies: dict[tuple[str, str], Finding] = {}
    for block in dataset.blocks():
        for name, field in dataset.schema.fields.items():
            add = partial(_add, tallies, dataset, block, name, field)
            rows = block.columns[name]
            finite = np.isfinite(rows)
            add("not_finite", ~finite, "a finite number")
            if name in bounds:
                inside = _inside(rows, bounds[name]) | ~finite
                add("out_of_bounds", ~inside, f"a value of {bounds[name]}")
        _early(tallies, dataset, block)
    yield from tallies.values()


def _add(
    tallies: dict[tuple[str, str], Finding],
    dataset: Dataset,
    block: Block,
    name: str,
    field: Field,
    code: str,
    bad: NDArray[np.bool_],
    expected: str,
) -> None:
    """Count bad values, and keep the place of the first."""
    if not bad.any():
        return
    count = int(bad.reshape(len(bad), -1).any(axis=1).sum())
    known = tallies.get((code, name))
    if known is not None:
        tallies[code, name] = replace(known, count=known.count + count)
        return
    place = tuple(np.argwhere(bad)[0].tolist())
    episode, step = block.place(place[0], field.more)
    value = block.columns[name][place]
    message = (
        f"Step {step} of episode {episode} of {dataset.name} has the value {value} in '{name}'; "
        f"expected {expected}."
    )
    tallies[code, name] = Finding("error", code, message, name, episode, step, count)


def _early(tallies: dict[tuple[str, str], Finding], dataset: Dataset, block: Block) -> None:
    last = np.cumsum(block.lengths) - 1
    for name in ("terminated", "truncated"):
        flags = block.columns[name].copy()
        flags[last] = False
        field = dataset.schema.fields[name]
        expected = "false before the last step of an episode"
        _add(tallies, dataset, block, name, field, "early_terminal", flags, expected)


def _foreign(
    dataset: Dataset, observations: ObservationMap, actions: ActionMap
) -> Iterator[Finding]:
    """Yield the fields that are not what the spaces say."""
    expected = {name: leaf.source for name, leaf in observations.fields(OBS).items()}
    expected["action"] = actions.source
    held = dataset.schema.fields
    for name, space in expected.items():
        if name not in held:
            parts = ", ".join(one for one in held if one.split("/")[0] == OBS)
            message = f"{dataset.name} lacks '{name}', which is {space}; it holds {parts}."
        elif held[name].shape != tuple(space.shape or ()):
            message = (
                f"A row of '{name}' of {dataset.name} has the shape {held[name].shape}; expected "
                f"{tuple(space.shape or ())}, of {space}."
            )
        elif not np.can_cast(held[name].dtype, np.dtype(space.dtype), "same_kind"):
            message = (
                f"'{name}' of {dataset.name} is of type {held[name].dtype}; expected "
                f"{space.dtype}, of {space}."
            )
        else:
            continue
        yield Finding("error", "spaces", message, name)


def _inside(rows: Array, space: gym.Space[Any]) -> NDArray[np.bool_]:
    low, high = bounds_of(space)
    room_low, room_high = (_ROUNDING * np.maximum(1.0, np.abs(x)) for x in (low, high))
    return np.asarray((rows >= low - room_low) & (rows <= high + room_high))


def bounds_of(space: gym.Space[Any]) -> tuple[Array, Array]:
    """Return the least and the greatest value of each component."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return np.asarray(0), np.asarray(1)  # MultiBinary


def _warnings(dataset: Dataset) -> Iterator[Finding]:
    summary, name = summarise(dataset), dataset.name
    if summary.open_ends:
        first, count = summary.open_ends[0], len(summary.open_ends)
        message = (
            f"{counted(count, 'episode')} of {name} {'ends' if count == 1 else 'end'} neither "
            f"terminated nor truncated, the first of them episode {first}; that counts as "
            "truncated."
        )
        yield Finding("warning", "missing_terminal", message, None, first, count=count)
    if summary.duplicates:
        (later, first), count = summary.duplicates[0], len(summary.duplicates)
        repeat = "repeats another" if count == 1 else "repeat others"
        message = (
            f"{counted(count, 'episode')} of {name} {repeat}: episode {later} is episode {first}."
        )
        yield Finding("warning", "duplicate", message, None, later, count=count)
    if summary.coverage is not None and (low := summary.coverage < _COVERED).any():
        box = isinstance(dataset.schema.action, gym.spaces.Box)
        what = "the range of some components" if box else "choices"
        message = (
            f"The actions of {name} cover {summary.coverage.min():.0%} of {what}; what was never "
            "tried cannot be learned."
        )
        yield Finding("warning", "coverage", message, "action", count=int(low.sum()))
    for field, one in summary.ranges.items():
        still = np.count_nonzero(one.low == one.high)
        if field.split("/")[0] == OBS and still == one.low.size:
            message = f"'{field}' of {name} never changes."
            yield Finding("warning", "constant", message, field, count=int(still))


def spaces_of(env: Any) -> tuple[ObservationMap, ActionMap]:
    """Return what an environment sees and does; one that is given as an object stays open."""
    from assay.envs.make import make_vector

    vector = make_vector(env, 1, training=False)
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        vector.close()
    return vector.observations, vector.actions
