"""What becomes of steps, whatever is learned from them: they are counted, dated and found again."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Reversible
from typing import Any

import numpy as np

from assay.algorithms.base import Algorithm
from assay.core.types import Clock, State, Tree, tree_leaves, tree_map
from assay.server.learner.segments import Steps, remember

Array = np.ndarray[Any, Any]

COUNTS = (
    "steps",
    "steps_flagged",
    "steps_too_old",
    "steps_unknown_version",
    "late_rewards",
    "late_rewards_missed",
)


class Feed(ABC):
    """What a learner does with steps.

    Args:
        algorithm: Who learns.
        max_lag: Versions that a step may be behind; None for no limit.

    Attributes:
        version: The newest version that was published.
        updates: Rounds of learning since it was.
        counts: Steps and late rewards, by what became of them.
    """

    def __init__(self, algorithm: Algorithm, max_lag: int | None) -> None:
        self.algorithm = algorithm
        self.clock: Clock = algorithm.clock
        self.max_lag = max_lag
        self.version = 0
        self.updates = 0
        self.counts: Counter[str] = Counter()
        self._carries: dict[str, float] = {}  # of the reward scaler, by client
        self._last_event: dict[str, int] = {}
        # Of each client: the last session, the one in which its process began, and a digest of the
        # observation that comes next.
        self._sessions: dict[str, tuple[int, int, str]] = {}

    @abstractmethod
    def take(self, position: int, steps: Steps) -> None:
        """Store the steps of one batch and learn as often as is due."""

    @abstractmethod
    def _received(self) -> Reversible[Any]:
        """Return what is held of batches; each has a `client`, and an `event` [rows] or None."""

    @abstractmethod
    def _add_reward(self, batch: Any, row: int, reward: float) -> bool:
        """Add a late reward to a row of what is held; return whether it is still there."""

    def _find(self, client: str, event: int, reward: float) -> bool:
        """Add a late reward to its step; return whether it is still there."""
        for one in reversed(self._received()):
            if one.client == client and one.event is not None:
                rows = np.flatnonzero(one.event == np.uint64(event))
                if len(rows):
                    return self._add_reward(one, int(rows[0]), reward)
        return False

    def _forget(self, client: str) -> None:
        """Take it that a client's earlier events name other steps from now on."""
        for one in reversed(self._received()):
            if one.client == client:
                one.event = None

    @property
    @abstractmethod
    def due(self) -> bool:
        """Return whether a version is to be published."""

    @abstractmethod
    def replay_from(self, position: int) -> int:
        """Return after which position the log is needed to go on from a checkpoint at this one."""

    @abstractmethod
    def refill(self, position: int, steps: Steps) -> None:
        """Take a batch that was learned from before the checkpoint."""

    def patch(self, client: str, patches: dict[int, float], *, counts: bool = True) -> None:
        """Add late rewards to steps that are still waiting or in the replay."""
        for event, reward in patches.items():
            found = self._find(client, event, reward)
            if counts:
                self.counts["late_rewards"] += 1
                self.counts["late_rewards_missed"] += not found

    def _update(self, data: Any) -> None:
        """Let the algorithm learn once."""
        self.algorithm.update(data)
        self.clock.updates = self.algorithm.updates

    def published(self, version: int) -> None:
        """Take note of a new version."""
        self.version = version
        self.updates = 0

    def metrics(self) -> dict[str, float]:
        """Return the counts as metrics."""
        return {f"server/{name}": float(self.counts[name]) for name in COUNTS}

    def state(self) -> State:
        """Return everything that later updates depend on."""
        return {
            "counts": dict(self.counts),
            "carries": [[client, carry] for client, carry in self._carries.items()],
            "last_event": [[client, event] for client, event in self._last_event.items()],
            "sessions": [[client, *known] for client, known in self._sessions.items()],
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.counts = Counter({name: int(count) for name, count in state["counts"].items()})
        self._carries = {client: float(carry) for client, carry in state["carries"]}
        self._last_event = {client: int(event) for client, event in state["last_event"]}
        self._sessions = {
            client: (int(last), int(begun), followed)
            for client, last, begun, followed in state["sessions"]
        }

    def _fresh(self, steps: Steps, newest: int, *, counts: bool = True) -> Array:
        """Return [L] which steps are recent enough; those of no model always are."""
        known = steps.version <= newest
        recent = known.copy()
        if self.max_lag is not None:
            recent &= (steps.version >= newest - self.max_lag) | (steps.version == 0)
        if counts:
            self.counts["steps"] += len(steps)
            self.counts["steps_flagged"] += int(np.count_nonzero(steps.flags))
            self.counts["steps_unknown_version"] += int(np.count_nonzero(~known))
            self.counts["steps_too_old"] += int(np.count_nonzero(known & ~recent))
        return recent

    def _notice_restart(self, steps: Steps) -> None:
        """Tell a client that was started again from one that only connected again.

        The first counts its events from the beginning: what was known of earlier ones is forgotten.
        Where events run on, from the very observation that was said to follow, it is the other one,
        and its steps are given the session in which they began.
        """
        client, event = steps.client, steps.event
        last = self._last_event.get(client)
        known, begun, followed = self._sessions.get(client, (None, steps.session, ""))
        runs_on = False
        if event is not None:
            if last is not None and int(event.min()) <= last:
                self._forget(client)
            first = tree_map(lambda array: array[0], steps.obs)
            runs_on = last is not None and int(event[0]) == last + 1 and followed == _digest(first)
            remember(self._last_event, client, int(event.max()))
        if known != steps.session and not runs_on:
            begun = steps.session
        following = _digest(steps.next_obs(len(steps) - 1))
        remember(self._sessions, client, (steps.session, begun, following))
        steps.session = begun

    def _observe_rewards(self, client: str, begins: bool, reward: Array, done: Array) -> None:
        """Show consecutive rewards [L] of one client, whose return goes on where it was."""
        scaler = self.algorithm.reward_scale
        if scaler is None:
            return
        carry = 0.0 if begins else self._carries.get(client, 0.0)
        scaler.load_state(scaler.state() | {"carry": np.array([carry])})
        self.algorithm.update_reward_stats(reward[:, None], done[:, None])
        remember(self._carries, client, float(scaler.state()["carry"][0]))


def _digest(obs: Tree) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for leaf in tree_leaves(obs):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
