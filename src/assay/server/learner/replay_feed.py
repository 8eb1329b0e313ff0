"""How segments of many clients become a replay, for off-policy algorithms.

Steps go into one replay; a segment's end cuts n-step returns as a time limit would. Updates are
owed by environment steps, as in `assay.loops.off_policy`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.algorithms.base import Algorithm, ReplayNeeds
from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer
from assay.core import seeding
from assay.core.types import State, Transition, tree_map
from assay.server.learner.feed import Feed
from assay.server.learner.segments import Steps, runs_of

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class _Record:
    """Transitions of the replay that came from one batch."""

    position: int
    version: int  # the newest when they came, which says what was too old
    count: int
    serial: int  # of the first
    client: str = ""
    event: Array | None = None  # [count]


class ReplayFeed(Feed):
    """Steps for an off-policy algorithm, and the updates that they owe.

    The replay itself is in no checkpoint: it is filled again from the log. The transitions then
    lie in the slots where they were, and draws go on as before; priorities start again.
    """

    def __init__(
        self, algorithm: Algorithm, max_lag: int | None, *, seed: int, publish_steps: int
    ) -> None:
        super().__init__(algorithm, max_lag)
        needs = algorithm.needs
        assert isinstance(needs, ReplayNeeds)
        self.needs = needs
        self.publish_steps = publish_steps
        self.rounds = 0
        self.rng = seeding.derive_rng(seed, "replay")
        prioritized = None
        if needs.prioritized is not None:
            prioritized = PrioritizedOptions(alpha=needs.prioritized)
        self.replay = RefillReplay(
            algorithm.spaces, needs.capacity, 1, rng=self.rng, n_step=needs.n_step,
            gamma=needs.gamma, device=algorithm.device, prioritized=prioritized,
        )  # fmt: skip
        self.written = 0
        self._since = 0  # environment steps since the last version
        self._warm = needs.learning_starts > 0  # whether that version acts at random
        self._records: deque[_Record] = deque()
        self._expected: dict[int, _Record] = {}

    @property
    def warming_up(self) -> bool:
        """Return whether learning has not started yet."""
        return self.clock.env_steps < self.needs.learning_starts

    def take(self, position: int, steps: Steps) -> None:
        """Add steps to the replay, each followed by the updates that it owes."""
        self._notice_restart(steps)
        kept = self._fresh(steps, self.version)
        self._add_record(position, self.version, steps, kept)
        begins, done = steps.start == 0, steps.terminated | steps.truncated
        needs, clock, algorithm = self.needs, self.clock, self.algorithm
        for begin, end in runs_of(kept):
            for t in range(begin, end):
                self._store(steps, t, cut=t == end - 1)
                if algorithm.has_running_stats:
                    row = slice(t, t + 1)
                    first = t == 0 and begins
                    self._observe_rewards(steps.client, first, steps.reward[row], done[row])
                    obs = tree_map(lambda array, row=row: array[row], steps.obs)
                    algorithm.update_obs_stats(obs)
                self._since += 1
                owed = (clock.env_steps + 1 - needs.learning_starts) // needs.train_every
                while self.rounds < owed:
                    self.rounds += 1
                    self.updates += 1
                    for _ in range(needs.updates):
                        self._update(self.replay)
                clock.env_steps += 1  # last, as in the local loops
        self._drop_records()

    @property
    def due(self) -> bool:
        """Return whether enough was learned; the first lesson counts at once."""
        return self.updates > 0 and (self._since >= self.publish_steps or self._warm)

    def published(self, version: int) -> None:
        """Take note of a new version."""
        super().published(version)
        self._since = 0
        self._warm = self.warming_up

    def replay_from(self, position: int) -> int:
        """Return the position before the oldest batch of which a transition is held."""
        return self._records[0].position - 1 if self._records else position

    def refill(self, position: int, steps: Steps) -> None:
        """Put a batch back where it was, if it was there."""
        known = self._expected.pop(position, None)
        if known is None:
            return
        self._notice_restart(steps)
        kept = self._fresh(steps, known.version, counts=False)
        self._add_record(position, known.version, steps, kept)
        for begin, end in runs_of(kept):
            for t in range(begin, end):
                self._store(steps, t, cut=t == end - 1)
        self._drop_records()

    def _store(self, steps: Steps, t: int, *, cut: bool) -> None:
        """Add one transition; the last of its segment ends n-step returns."""
        terminated = steps.terminated[t : t + 1]
        truncated = steps.truncated[t : t + 1]
        if cut and not terminated[0]:
            truncated = np.ones(1, bool)
        self.replay.add(
            Transition(
                tree_map(lambda array: array[t : t + 1], steps.obs),
                steps.action[t : t + 1],
                steps.reward[t : t + 1],
                tree_map(lambda array: array[None], steps.next_obs(t)),
                terminated,
                truncated,
            )
        )
        self.written += 1

    def _add_record(self, position: int, version: int, steps: Steps, kept: Array) -> None:
        count = int(np.count_nonzero(kept))
        if count:
            event = None if steps.event is None else steps.event[kept]
            self._records.append(
                _Record(position, version, count, self.written, steps.client, event)
            )

    def _drop_records(self) -> None:
        """Forget batches of which no transition is held any more."""
        oldest = self.written - self.replay.slots
        while self._records and self._records[0].serial + self._records[0].count <= oldest:
            self._records.popleft()

    def _received(self) -> deque[_Record]:
        return self._records

    def _add_reward(self, batch: _Record, row: int, reward: float) -> bool:
        return self.replay.add_reward(batch.serial + row, reward)

    def state(self) -> State:
        """Return everything that later updates depend on, but for the replay's transitions."""
        records = [[one.position, one.version, one.count] for one in self._records]
        return super().state() | {
            "rounds": self.rounds,
            "rng": seeding.rng_state(self.rng),
            "written": self.written,
            "since": self._since,
            "warm": self._warm,
            "records": np.array(records, np.int64).reshape(-1, 3),
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned; `refill` then brings the transitions."""
        super().load_state(state)
        self._last_event, self._sessions = {}, {}  # the log tells it again
        self.rounds = int(state["rounds"])
        seeding.set_rng_state(self.rng, state["rng"])
        self._since, self._warm = int(state["since"]), bool(state["warm"])
        records = [(int(p), int(v), int(n)) for p, v, n in state["records"]]
        self.written = int(state["written"]) - sum(count for _, _, count in records)
        self._expected = {p: _Record(p, v, n, 0) for p, v, n in records}
        if self.written:
            self.replay.start_at(self.written)


class RefillReplay(ReplayBuffer):
    """A replay whose transitions are numbered from any number on.

    A number chooses a slot. So a replay that is filled again with its last transitions holds them
    in the slots where they were, and draws what it would have drawn.
    """

    _full_from = 0  # the head from which on every slot up to it is held

    def start_at(self, serial: int) -> None:
        """Give the first transition of an empty replay this number.

        Raises:
            ValueError: It is not empty.
        """
        if self._bounds()[0].any():
            raise ValueError("the replay holds transitions; expected an empty one")
        self._set_heads(np.full(self.num_envs, serial))
        self._tails[:] = serial
        self._notice_tails()

    def add_reward(self, serial: int, reward: float, env: int = 0) -> bool:
        """Add a late reward to a transition, if it is still held; return whether it was.

        Args:
            serial: Its number, counted from 0 in the order of `add`.
            reward: What is added.
            env: Its environment.
        """
        heads, tails = self._bounds()
        held = bool(tails[env] <= serial < heads[env])
        if held:
            self._reward[serial % self.slots, env] += reward
        return held

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self._notice_tails()

    def _notice_tails(self) -> None:
        tails = self._tails
        self._full_from = int(tails.max()) + self.slots if tails.any() else 0

    def _aligned(self) -> bool:
        """Return whether the first slots of all environments, or all slots, are what is held."""
        return super()._aligned() and self._head is not None and self._head >= self._full_from
