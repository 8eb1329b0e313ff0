"""Batches of one client as canonical steps, and the episodes that they make up."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from assay.core.types import State, Tree, tree_map
from assay.loops.collect import EPISODE_WINDOW, recent_means
from assay.server.learner.building import Canonical
from assay.server.protocol import assay_pb2 as pb
from assay.server.tensors import BOOTSTRAP, EVENT, OBS, RAW_ACTION, Layout, decode, parts_of

Array = np.ndarray[Any, Any]

MAX_CLIENTS = 10_000  # of whom something is remembered from batch to batch


@dataclass(slots=True)
class Steps:
    """L consecutive steps of one client."""

    client: str  # who acted
    # In which session the steps were sent; one process sends all of a session's. A feed puts the
    # one here in which the process began, where it can tell.
    session: int
    episode: int  # number of the first step's episode
    start: int  # number of the first step within its episode
    obs: Tree  # [L, ...] canonical
    action: Array  # [L, ...] canonical, as executed
    raw: Array  # [L, ...] before clipping, which `log_prob` belongs to
    reward: Array  # [L] float32
    log_prob: Array  # [L] float32
    version: Array  # [L] int64
    flags: Array  # [L] uint8
    terminated: Array  # [L] bool
    truncated: Array  # [L] bool, never where terminated
    event: Array | None  # [L] uint64, or None
    # What followed the last step of an episode that was cut off, and the last of all: the rows are
    # those of `after_of`.
    after: Tree
    after_of: Array  # [L] row of `after`, or -1

    def __len__(self) -> int:
        """Return how many steps there are."""
        return len(self.reward)

    def place(self, t: int) -> tuple[int, int, int]:
        """Return where step t belongs, up to the one after the last.

        Its session, its episode and its number there. Without the session, the steps of a client
        that was started again, and counts from 0 again, could pass for those that went before.
        """
        ended = np.flatnonzero((self.terminated | self.truncated)[:t])
        if not len(ended):
            return self.session, self.episode, self.start + t
        return self.session, self.episode + len(ended), t - 1 - int(ended[-1])

    def next_obs(self, t: int) -> Tree:
        """Return the observation that followed step t; its own where the episode was over."""
        row = int(self.after_of[t])
        if row >= 0:
            return tree_map(lambda array: array[row], self.after)
        last = bool(self.terminated[t])
        return tree_map(lambda array: array[t if last else t + 1], self.obs)


def read_batch(
    payload: bytes, client: str, canonical: Canonical, layout: Layout
) -> tuple[Steps | None, dict[int, float]]:
    """Unpack a batch as the store holds it: its steps, if any, and late rewards of other steps.

    Raises:
        RejectionError: It is not what the spec says.
    """
    sent = decode(pb.Batch.FromString(payload), layout)
    fields, patches = sent.fields, dict(sent.patches)
    if not sent.steps:
        return None, patches
    terminated = np.array(fields["terminated"])
    truncated = fields["truncated"] & ~terminated
    followed = truncated.copy()
    followed[-1] |= not terminated[-1]
    action = canonical.action(fields["action"])
    reward = fields["reward"].astype(np.float32)
    event = fields.get(EVENT)
    if event is not None and patches:
        for row in np.flatnonzero(np.isin(event, np.array(list(patches), np.uint64))):
            reward[row] += patches.pop(int(event[row]), 0.0)
    steps = Steps(
        client=client,
        session=sent.epoch,
        episode=sent.episode,
        start=sent.start_step,
        obs=canonical.observation(OBS, fields),
        action=action,
        raw=canonical.action(fields[RAW_ACTION]) if RAW_ACTION in fields else action,
        reward=reward,
        log_prob=fields["log_prob"],
        version=fields["version"],
        flags=fields["flags"],
        terminated=terminated,
        truncated=truncated,
        event=event,
        after=canonical.observation(BOOTSTRAP, fields),
        after_of=np.where(followed, np.cumsum(followed) - 1, -1),
    )
    return steps, patches


def runs_of(kept: Array) -> list[tuple[int, int]]:
    """Return [begin, end) of each run of True.

    Example:
        >>> runs_of(np.array([1, 1, 0, 1], bool))
        [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], kept.astype(np.int8), [0]])))
    return [(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]


def remember(table: dict[str, Any], client: str, value: Any) -> None:
    """Put a value into a table that forgets whoever was silent longest."""
    table.pop(client, None)
    table[client] = value
    if len(table) > MAX_CLIENTS:
        del table[next(iter(table))]


@dataclass(slots=True)
class _Running:
    """An episode that goes on."""

    episode: int = -1  # its number
    step: int = 0  # the number of its next step
    whole: bool = False  # whether it was seen from its first step on
    total: float = 0.0
    late: float = 0.0  # late rewards that came between episodes


class EpisodeBook:
    """Follows the episodes of every client from batch to batch.

    An episode of which a batch is missing does not count.
    """

    def __init__(self) -> None:
        self.recent: deque[tuple[float, int]] = deque(maxlen=EPISODE_WINDOW)
        self.count = 0
        self._running: dict[str, _Running] = {}

    def add(self, steps: Steps) -> None:
        """Count the steps of a batch, and the episodes that end in it."""
        one = self._running.get(steps.client) or _Running()
        remember(self._running, steps.client, one)
        if (steps.episode, steps.start) != (one.episode, one.step):
            self._begin(one, steps.episode, whole=steps.start == 0, step=steps.start)
        for part, over in parts_of(steps.terminated | steps.truncated):
            one.total += float(steps.reward[part].sum(dtype=np.float64))
            one.step += part.stop - part.start
            if over and one.whole:
                self.count += 1
                self.recent.append((one.total + one.late, one.step))
                one.late = 0.0
            if over:
                self._begin(one, one.episode + 1, whole=True)

    def add_late(self, client: str, reward: float) -> None:
        """Count a late reward in the episode that runs now, so that none is lost on average."""
        if client in self._running:
            self._running[client].late += reward

    def metrics(self) -> dict[str, float]:
        """Return the mean over the last episodes, if any has ended."""
        return recent_means(self.recent)

    def state(self) -> State:
        """Return everything that later episodes depend on."""
        return {
            "recent": np.array(self.recent, np.float64).reshape(-1, 2),
            "count": self.count,
            "running": [[client, *astuple(one)] for client, one in self._running.items()],
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.count = int(state["count"])
        self.recent = deque(((float(r), int(n)) for r, n in state["recent"]), EPISODE_WINDOW)
        self._running = {client: _Running(*values) for client, *values in state["running"]}

    @staticmethod
    def _begin(one: _Running, episode: int, *, whole: bool, step: int = 0) -> None:
        one.episode, one.step, one.whole = episode, step, whole
        one.total = 0.0
