"""What waits to be sent: bounded, counted, and without a lock between acting and sending.

One side acts and offers (its calls are serialised by the agent), the other side sends. They meet in
a deque, whose ends are atomic, and every counter is written by one side alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from assay.core.types import Tree, pack, tree_leaves
from assay.server.spec import MOST_VALUE

Array = np.ndarray[Any, Any]
Overflow = Literal["block", "drop_oldest", "reservoir"]


@dataclass(slots=True)
class Step:
    """One decision and what came of it; arrays have a leading axis of 1."""

    obs: Tree  # the canonical observation, its action mask included
    action: Array  # what was done, canonical
    raw: Array  # the action before it was clipped, which a Gaussian's log-probability belongs to
    log_prob: float  # of what the policy did
    version: int  # of the model that decided; 0 where none did
    flags: int  # why the step is not a sample of the policy (`Flag`); 0 if it is one
    event: int  # number of the decision
    reward: float = 0.0  # sum of the rewards since
    terminated: bool = False  # the episode ended here by itself
    truncated: bool = False  # the episode was cut off here
    final: Tree = None  # the observation after a truncated step


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps, of one episode or several."""

    steps: tuple[Step, ...]  # the steps, which nobody changes any more
    episode: int  # number of the first step's episode
    start_step: int  # number of the first step within its episode
    # The observation after the last step, where its episode goes on; else None.
    bootstrap: Tree = None

    def fields(self) -> dict[str, Array]:
        """Return the arrays by the names of `assay.server.tensors`; the sender's thread pays."""
        steps = self.steps
        finals = [step.final for step in steps if step.truncated and not step.terminated]
        if self.bootstrap is not None:
            finals.append(self.bootstrap)
        fields = pack("obs", _join([step.obs for step in steps], steps[0].obs))
        fields |= {
            "action": np.concatenate([step.action for step in steps]),
            "reward": np.array([step.reward for step in steps], np.float32),
            "log_prob": np.array([step.log_prob for step in steps], np.float32),
            "version": np.array([step.version for step in steps], np.int64),
            "flags": np.array([step.flags for step in steps], np.uint8),
            "terminated": np.array([step.terminated for step in steps]),
            "truncated": np.array([step.truncated for step in steps]),
            "event": np.array([step.event for step in steps], np.uint64),
        }
        if fields["action"].dtype.kind == "f":
            # A heuristic's number may be beyond the limit, and its step is still worth sending.
            raw = np.concatenate([step.raw for step in steps])
            fields["raw_action"] = np.where(np.abs(raw) <= MOST_VALUE, raw, fields["action"])
        return fields | pack("bootstrap", _join(finals, steps[0].obs))


@dataclass(frozen=True, slots=True)
class RewardPatch:
    """A reward that came after its step had been closed."""

    steps: ClassVar[tuple[Step, ...]] = ()
    event: int  # number of the decision it belongs to
    reward: float  # what is added to the step's reward


@dataclass(frozen=True, slots=True)
class Rewards:
    """Late rewards that travel together."""

    steps: ClassVar[tuple[Step, ...]] = ()
    by_event: dict[int, float]  # what is added to the rewards of which decisions


Offered = Segment | RewardPatch
Item = Segment | Rewards

MOST_REWARDS = 4096  # late rewards in one message


class Outbox:
    """Segments that wait for the transport, or for its acknowledgement.

    Args:
        capacity: Most steps held, those under way included.
        overflow: What gives when it is full. `block`: the caller of `reward` and `end` waits, up
            to a limit, and then the new steps are dropped; `drop_oldest`: what waits longest is
            dropped; `reservoir`: what is kept is an even sample of all that came since it was
            full. What is under way is never dropped.
        rng: Draws the reservoir.
    """

    def __init__(self, capacity: int, overflow: Overflow, rng: np.random.Generator) -> None:
        self.capacity = capacity
        self.overflow = overflow
        self.closed = False  # whether nobody sends any more, so that there is no use in waiting
        self._rng = rng
        self._queue: deque[Offered] = deque()
        self._under_way: deque[tuple[int, Item]] = deque()  # the sender's alone
        self._next_seq = 1
        self._seen_while_full = 0
        # Written by the acting side:
        self.offered_steps = 0
        self.dropped_steps = 0
        # Written by the sending side:
        self.acknowledged_steps = 0
        self.refused_steps = 0

    # ------------------------------------------------------------------ the acting side

    @property
    def held_steps(self) -> int:
        """Return how many steps wait or are under way."""
        gone = self.dropped_steps + self.acknowledged_steps + self.refused_steps
        return self.offered_steps - gone

    def has_room(self, steps: int) -> bool:
        """Return whether so many more steps fit."""
        return self.held_steps + steps <= self.capacity

    def offer(self, item: Offered) -> bool:
        """Take an item in, making room as the policy says; return whether it was kept."""
        count = len(item.steps)
        self.offered_steps += count
        if self.closed:
            self._count_dropped(item)
            return False
        # A reward is small, but without steps there is no end to them either.
        full = (
            len(self._queue) >= 2 * self.capacity if count == 0 else self.held_steps > self.capacity
        )
        if not full:
            self._seen_while_full = 0
            self._queue.append(item)
            return True
        if self.overflow == "drop_oldest":
            return self._drop_oldest(item)
        if self.overflow == "reservoir":
            return self._sample(item)
        self._count_dropped(item)
        return False

    def wait_for_room(
        self, steps: int, seconds: float, sleep: Callable[[float], None] = time.sleep
    ) -> bool:
        """Wait until so many steps fit, without any lock; return whether they do."""
        pause = 0.001
        waited = 0.0
        while not self.has_room(steps):
            if waited >= seconds or self.closed:
                return False
            sleep(pause)
            waited += pause
        return True

    def _drop_oldest(self, item: Offered) -> bool:
        self._queue.append(item)
        kept = True
        while self.held_steps > self.capacity or len(self._queue) > 2 * self.capacity:
            try:
                oldest = self._queue.popleft()
            except IndexError:  # all that is left is under way
                break
            self._count_dropped(oldest)
            kept = kept and oldest is not item
        return kept

    def _sample(self, item: Offered) -> bool:
        # Algorithm R over what came since the outbox was full. The sender may take from the left
        # meanwhile: what it took is no longer a candidate.
        waiting: list[Offered] = []
        try:
            while True:
                waiting.append(self._queue.popleft())
        except IndexError:
            pass
        if self._seen_while_full == 0:
            self._seen_while_full = len(waiting)
        self._seen_while_full += 1
        place = int(self._rng.integers(self._seen_while_full))
        kept = place < len(waiting)
        if kept:
            self._count_dropped(waiting.pop(place))
            waiting.append(item)
        else:
            self._count_dropped(item)
        # Segments differ in length: one for one may not be enough.
        while waiting and self.held_steps > self.capacity:
            gone = waiting.pop(int(self._rng.integers(len(waiting))))
            self._count_dropped(gone)
            kept = kept and gone is not item
        self._queue.extend(waiting)
        return kept

    def _count_dropped(self, item: Offered) -> None:
        self.dropped_steps += len(item.steps)

    # ------------------------------------------------------------------ the sending side

    def take(self) -> tuple[int, Item] | None:
        """Return the next item with its sequence number, now under way; None if none waits.

        Late rewards that wait in a row become one item.
        """
        try:
            first = self._queue.popleft()
        except IndexError:
            return None
        item: Item = self._gathered(first) if isinstance(first, RewardPatch) else first
        # Numbers are given here, after the drops, so that the server sees no gap.
        numbered = (self._next_seq, item)
        self._next_seq += 1
        self._under_way.append(numbered)
        return numbered

    def _gathered(self, first: RewardPatch) -> Rewards:
        rewards = {first.event: first.reward}
        while len(rewards) < MOST_REWARDS:
            try:
                following = self._queue.popleft()
            except IndexError:
                break
            if isinstance(following, RewardPatch):
                total = rewards.get(following.event, 0.0) + following.reward
                if abs(total) <= MOST_VALUE:
                    rewards[following.event] = total
                    continue
            # Only this side takes from here for good; the other may drop it meanwhile.
            self._queue.appendleft(following)
            break
        return Rewards(rewards)

    def acknowledge(self, seq: int) -> None:
        """Forget what is durable on the server: everything up to `seq`."""
        while self._under_way and self._under_way[0][0] <= seq:
            _, item = self._under_way.popleft()
            self.acknowledged_steps += len(item.steps)

    def refuse(self, seq: int) -> int:
        """Forget an item that the server will never take; return how many steps it held."""
        for numbered in self._under_way:
            if numbered[0] == seq:
                self._under_way.remove(numbered)
                count = len(numbered[1].steps)
                self.refused_steps += count
                return count
        return 0

    @property
    def empty(self) -> bool:
        """Return whether nothing waits and nothing is under way."""
        return not self._queue and not self._under_way

    def under_way(self) -> tuple[tuple[int, Item], ...]:
        """Return what was taken and not acknowledged, in order."""
        return tuple(self._under_way)


def _join(trees: list[Tree], like: Tree) -> Tree:
    """Return observations one below the other; where there are none, arrays of no rows."""
    if isinstance(like, dict):
        return {key: _join([tree[key] for tree in trees], like[key]) for key in like}
    return np.concatenate(trees) if trees else tree_leaves(like)[0][:0]
