"""Experience as a dataset: batches are put together to the episodes of each client.

An episode whose beginning was trimmed away, or that a gap has cut, is a shorter one of its own. One
that was cut or goes on ends truncated, with the observation that the client sent to bootstrap from.
The observation after a terminated step is not sent, since nothing is learned from it; the one
before it stands in its place. Late rewards are added to their steps while these are still at hand.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import DataError
from assay.core.types import unpack
from assay.data import dataset as data
from assay.data.collect import collected
from assay.data.files import FORMATS, MINARI, check_target, data_root, minari_root, save
from assay.server.errors import Reason, RejectionError
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import PolicySpec, gym_space, leaves_of
from assay.server.store.store import Store, Stored, iterate
from assay.server.tensors import BOOTSTRAP, EVENT, OBS, Array, Experience, Layout, decode, parts_of

log = logging.getLogger("assay.server")

_NAME = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9_.-]*/){0,3}[A-Za-z0-9][A-Za-z0-9_.-]*"
    rf"(?:-v[0-9]{{1,9}}|{'|'.join(map(re.escape, FORMATS))})"
)
_AT_ONCE = 64 << 20  # bytes of episodes that are held before they are written
_EXTRAS = ("log_prob", "version", "flags")


@dataclass(slots=True)
class Episode:
    """Consecutive steps of one client, up to an end of some kind."""

    client: str  # who acted
    number: int  # of the episode, as the client counts
    start: int  # of the first step, within its episode
    # The step fields, one after the other.
    parts: list[dict[str, Array]] = field(default_factory=list)
    # The observation after the last step, in its parts.
    final: dict[str, Array] = field(default_factory=dict)
    truncated: bool = True  # whether it was cut although the client did not end it
    late: dict[int, float] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Return how many steps there are."""
        return sum(len(part["reward"]) for part in self.parts)

    @property
    def size(self) -> int:
        """Return how many bytes it takes."""
        return sum(array.nbytes for part in self.parts for array in part.values())

    def column(self, name: str) -> Array:
        """Return one field of all steps."""
        return np.concatenate([part[name] for part in self.parts])

    def rewards(self) -> Array:
        """Return the rewards, late ones added."""
        rewards = self.column("reward").astype(np.float64)
        if self.late:
            place = {int(event): at for at, event in enumerate(self.column(EVENT).tolist())}
            for event, late in self.late.items():
                rewards[place[event]] += late
        return rewards


def episodes(
    store: Store,
    spec: PolicySpec,
    *,
    after: int = 0,
    on_damage: Callable[[Stored], None] = lambda batch: None,
) -> Iterator[tuple[Episode, dict[int, Episode]]]:
    """Yield the episodes of a policy's log, client by client as they end.

    With each comes the map of its client's late-reward events to episodes that were yielded, which
    the caller may clear. A batch that cannot be read is left out, and cuts its episode.
    """
    layout = Layout(spec)
    running: dict[str, Episode] = {}
    events: dict[str, dict[int, Episode]] = {}
    for stored in iterate(store, spec.name, after=after):
        if stored.damage is not None:
            on_damage(stored)
            continue
        experience = decode(pb.Batch.FromString(stored.payload), layout)
        known = events.setdefault(stored.client, {})
        done: list[Episode] = []
        for episode, ended in _cut(experience, stored.client, running, layout):
            if EVENT in episode.parts[-1]:
                known.update(dict.fromkeys(episode.parts[-1][EVENT].tolist(), episode))
            if ended:
                done.append(episode)
        for event, reward in experience.patches.items():
            late = known.get(event)
            if late is not None:
                late.late[event] = late.late.get(event, 0.0) + reward
        for episode in done:
            yield episode, known
    for episode in running.values():
        yield episode, {}


def _cut(
    experience: Experience, client: str, running: dict[str, Episode], layout: Layout
) -> Iterator[tuple[Episode, bool]]:
    """Add a batch to its client's episodes; yield each that it touched, and whether it ended."""
    if not experience.steps:
        return
    fields = experience.fields
    ended = fields["terminated"] | fields["truncated"]
    names = [one.name for one in layout.steps if one.name in fields]
    row = 0
    number, start = experience.episode, experience.start_step
    for part, over in parts_of(ended):
        last = part.stop - 1
        episode = running.pop(client, None)
        if episode is not None and (
            episode.number != number
            or episode.start + episode.steps != start
            or (EVENT in episode.parts[-1]) != (EVENT in fields)
        ):
            yield episode, True
            episode = None
        if episode is None:
            episode = Episode(client, number, start)
        episode.parts.append({name: fields[name][part] for name in names})
        if fields["terminated"][last]:
            episode.final = {
                name.replace(OBS, BOOTSTRAP, 1): fields[name][last]
                for name in names
                if name.split("/")[0] == OBS
            }
        else:
            episode.final = {one.name: fields[one.name][row] for one in layout.bootstrap}
            row += 1
        episode.truncated = not over
        if not over:
            running[client] = episode
        yield episode, over
        number, start = number + 1, 0


def export_experience(
    store: Store, spec: PolicySpec, name: str, *, after: int = 0
) -> pb.ExportReply:
    """Write a policy's experience as a dataset on this machine, in any format of `assay.data`.

    Args:
        store: Has the experience.
        spec: Of the policy.
        name: `queue/served-v0` is a Minari dataset where Minari keeps them; `queue/served.hdf5`,
            or another ending, a file in `assay.data.files.data_root`.
        after: Leave out what stands up to this position.

    Raises:
        MissingExtraError: The format needs a package that is not installed.
        RejectionError: The name is taken or not allowed, or there is nothing to write.
    """
    target = _target(name)
    damaged: list[str] = []

    def leave_out(batch: Stored) -> None:
        damaged.append(str(batch))
        log.warning("%s: %s is not exported. %s", spec.name, batch, batch.damage)

    metadata = {
        "algorithm_name": spec.algorithm,
        "description": f"Experience of the policy '{spec.name}' on an Assay server.",
    }
    source = _settled(store, spec, after, leave_out)
    try:
        first = next(source, None)
        if first is None:
            also = f", and {len(damaged)} damaged batches" if damaged else ""
            raise DataError(f"'{spec.name}' has no experience behind position {after}{also}.")
        with collected(
            chain([first], source),
            _observation_space(spec),
            gym_space(spec.action),
            directory=check_target(target),
            metadata=metadata,
            name=f"the experience of '{spec.name}'",
        ) as made:
            path = save(made, target)
            counts = {"episodes": made.num_episodes, "steps": len(made)}
    except DataError as error:
        raise RejectionError(Reason.MALFORMED, error.message, error.fix or "") from None
    return pb.ExportReply(path=str(path), damaged=damaged, **counts)


def _target(name: str) -> str:
    """Return where a dataset of this name goes; a client cannot choose the directory."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise RejectionError(
            Reason.MALFORMED,
            f"'{name[:80]}' cannot be the id of a dataset.",
            f"Write it like queue/served-v0 for Minari, or end it with {', '.join(FORMATS)}.",
        )
    ending = Path(name).suffix in FORMATS
    target = str(data_root() / name) if ending else f"{MINARI}{name}"
    if (data_root() if ending else minari_root()).joinpath(name).exists():
        raise RejectionError(
            Reason.MALFORMED,
            f"There is a dataset '{name}' already.",
            "Choose another name or a higher version.",
        )
    return target


def _settled(
    store: Store, spec: PolicySpec, after: int, on_damage: Callable[[Stored], None]
) -> Iterator[data.Episode]:
    """Yield episodes when so many are held that late rewards are no longer waited for."""
    waiting: list[Episode] = []
    held = 0
    for episode, events in episodes(store, spec, after=after, on_damage=on_damage):
        waiting.append(episode)
        held += episode.size
        if held > _AT_ONCE:
            yield from map(_recorded, waiting)
            waiting.clear()
            events.clear()
            held = 0
    yield from map(_recorded, waiting)


def _recorded(episode: Episode) -> data.Episode:
    names = [name for name in episode.parts[0] if name.split("/")[0] == OBS]
    observations = {
        name: np.concatenate(
            [episode.column(name), episode.final[name.replace(OBS, BOOTSTRAP, 1)][None]]
        )
        for name in names
    }
    truncated = episode.column("truncated").astype(np.bool_)
    truncated[-1] |= episode.truncated
    return data.Episode(
        unpack(OBS, observations),
        episode.column("action"),
        episode.rewards(),
        episode.column("terminated").astype(np.bool_),
        truncated,
        {name: episode.column(name) for name in _EXTRAS},
    )


def _observation_space(spec: PolicySpec) -> gym.Space[Any]:
    parts = {name: gym_space(leaf) for name, leaf in leaves_of(spec.observation)}
    return parts[""] if "" in parts else gym.spaces.Dict(parts)
