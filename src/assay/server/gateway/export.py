"""Experience as a Minari dataset: batches are put together to the episodes of each client.

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
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.errors import MissingExtraError
from assay.core.types import unpack
from assay.server.errors import Reason, RejectionError
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import Leaf, MultiBinary, PolicySpec, gym_space, leaves_of
from assay.server.store.store import Store, Stored, iterate
from assay.server.tensors import BOOTSTRAP, EVENT, OBS, Array, Experience, Layout, decode, parts_of

log = logging.getLogger("assay.server")

_ID = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.-]*/){0,3}[A-Za-z0-9][A-Za-z0-9_.-]*-v[0-9]{1,9}")
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


def export_minari(
    store: Store, spec: PolicySpec, dataset_id: str, *, after: int = 0
) -> pb.ExportReply:
    """Write a policy's experience as a Minari dataset where Minari keeps them on this machine.

    Args:
        store: Has the experience.
        spec: Of the policy.
        dataset_id: Such as `queue/served-v0`.
        after: Leave out what stands up to this position.

    Raises:
        MissingExtraError: Minari is not installed.
        RejectionError: The name is taken or not allowed, or there is nothing to write.
    """
    try:
        import h5py  # noqa: F401  (what Minari's own format needs)
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise MissingExtraError("minari[hdf5]", "minari", "Exporting experience") from None
    if not _ID.fullmatch(dataset_id) or ".." in dataset_id:
        raise RejectionError(
            Reason.MALFORMED,
            f"'{dataset_id[:80]}' cannot be the id of a dataset.",
            "Write it like queue/served-v0.",
        )
    if dataset_id in minari.list_local_datasets():
        raise RejectionError(
            Reason.MALFORMED,
            f"There is a dataset '{dataset_id}' already.",
            "Choose another name or a higher version.",
        )
    dataset: Any = None
    waiting: list[Episode] = []
    damaged: list[str] = []
    count = steps = held = 0

    def leave_out(batch: Stored) -> None:
        damaged.append(str(batch))
        log.warning("%s: %s is not exported. %s", spec.name, batch, batch.damage)

    def write() -> None:
        nonlocal dataset, held
        buffers = [
            _buffer(EpisodeBuffer, one, number)
            for number, one in enumerate(waiting, count - len(waiting))
        ]
        if dataset is None:
            dataset = minari.create_dataset_from_buffers(
                dataset_id=dataset_id,
                buffer=buffers,
                observation_space=_observation_space(spec),
                action_space=_space(spec.action),
                algorithm_name=spec.algorithm,
                description=f"Experience of the policy '{spec.name}' on an Assay server.",
                jpeg_encoding=False,
            )
        else:
            dataset.update_dataset_from_buffer(buffers)
        waiting.clear()
        held = 0

    for episode, events in episodes(store, spec, after=after, on_damage=leave_out):
        waiting.append(episode)
        count, steps, held = count + 1, steps + episode.steps, held + episode.size
        if held > _AT_ONCE:
            write()
            events.clear()
    if not count:
        also = f", and {len(damaged)} damaged batches" if damaged else ""
        raise RejectionError(
            Reason.MALFORMED, f"'{spec.name}' has no experience behind position {after}{also}."
        )
    if waiting:
        write()
    return pb.ExportReply(
        path=str(dataset.storage.data_path), episodes=count, steps=steps, damaged=damaged
    )


def _buffer(make: Any, episode: Episode, number: int) -> Any:
    names = [name for name in episode.parts[0] if name.split("/")[0] == OBS]
    observations = {
        name: np.concatenate(
            [episode.column(name), episode.final[name.replace(OBS, BOOTSTRAP, 1)][None]]
        )
        for name in names
    }
    truncated = episode.column("truncated").copy()
    truncated[-1] |= episode.truncated
    return make(
        id=number,
        observations=unpack(OBS, observations),
        actions=episode.column("action"),
        rewards=episode.rewards(),
        terminations=episode.column("terminated"),
        truncations=truncated,
        # One more than steps, as Minari has it: the first belongs to the reset.
        infos={
            name: np.concatenate([np.zeros_like(column[:1]), column])
            for name in _EXTRAS
            for column in (episode.column(name),)
        },
    )


def _observation_space(spec: PolicySpec) -> gym.Space[Any]:
    parts = {name: _space(leaf) for name, leaf in leaves_of(spec.observation)}
    return parts[""] if "" in parts else gym.spaces.Dict(parts)


def _space(leaf: Leaf) -> gym.Space[Any]:
    # In a dataset the shape of bits is written as such, also where it has one axis.
    return gym.spaces.MultiBinary(leaf.shape) if isinstance(leaf, MultiBinary) else gym_space(leaf)
