"""How segments of many clients become the data that an algorithm asks for.

On-policy, steps are laid one below the other into a rollout of one column, each client's together,
so that a return runs on from batch to batch. Where a client's steps end and its episode goes on,
the row is marked as truncated, with what followed as its final observation. So there is no padding,
and no row's return reaches into another client's steps.

Off-policy, steps go into one replay; a segment's end cuts n-step returns in the same way. Updates
are owed by environment steps, as in `assay.loops.off_policy`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from assay.algorithms.base import Algorithm, ReplayNeeds, RolloutNeeds
from assay.buffers.prioritized import PrioritizedOptions
from assay.buffers.replay import ReplayBuffer
from assay.buffers.rollout import Rollout
from assay.core import seeding
from assay.core.types import Clock, State, Tree, action_mask, tree_map
from assay.networks.actor_critic import Policy
from assay.server.client.shield import Flag
from assay.server.learner.imitation import Imitation
from assay.server.learner.segments import Steps, runs_of

Array = np.ndarray[Any, Any]

MAX_CLIENTS = 10_000  # of whom something is remembered from batch to batch
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

    @abstractmethod
    def take(self, position: int, steps: Steps) -> None:
        """Store the steps of one batch and learn as often as is due."""

    @abstractmethod
    def _find(self, client: str, event: int, reward: float) -> bool:
        """Add a late reward to its step; return whether it is still there."""

    @abstractmethod
    def _forget(self, client: str) -> None:
        """Take it that a client's earlier events name other steps from now on."""

    @property
    @abstractmethod
    def due(self) -> bool:
        """Say whether a version is to be published."""

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
        }

    def load_state(self, state: State) -> None:
        """Put back what `state` returned."""
        self.counts = Counter({name: int(count) for name, count in state["counts"].items()})
        self._carries = {client: float(carry) for client, carry in state["carries"]}
        self._last_event = {client: int(event) for client, event in state["last_event"]}

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
        """Forget a client's events where its numbers begin anew."""
        if steps.event is None:
            return
        if int(steps.event.min()) <= self._last_event.get(steps.client, -1):
            self._forget(steps.client)
        _remember(self._last_event, steps.client, int(steps.event.max()))

    def _observe_rewards(self, client: str, begins: bool, reward: Array, done: Array) -> None:
        """Show consecutive rewards [L] of one client, whose return goes on where it was."""
        scaler = self.algorithm.reward_scale
        if scaler is None:
            return
        carry = 0.0 if begins else self._carries.get(client, 0.0)
        scaler.load_state(scaler.state() | {"carry": np.array([carry])})
        self.algorithm.observe_rewards(reward[:, None], done[:, None])
        _remember(self._carries, client, float(scaler.state()["carry"][0]))


def _remember(table: dict[str, Any], client: str, value: Any) -> None:
    """Put a value into a table that forgets whoever was silent longest."""
    table.pop(client, None)
    table[client] = value
    if len(table) > MAX_CLIENTS:
        del table[next(iter(table))]


# -------------------------------------------------------------------------------------------------
# On-policy
# -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Piece:
    """Rows of the rollout that came from one client in one batch."""

    client: str
    begin: int
    end: int
    first: tuple[int, int, int]  # session and episode of the first row, and its step within it
    after: tuple[int, int, int]  # the same of the step that follows the last row
    ends: Array  # [rows] whether an episode ended there, not only its segment
    event: Array | None


class RolloutFeed(Feed):
    """Steps for an on-policy algorithm: one update for every full rollout."""

    def __init__(self, algorithm: Algorithm, max_lag: int | None, *, imitate: bool) -> None:
        super().__init__(algorithm, max_lag)
        needs = algorithm.needs
        policy = getattr(algorithm, "policy", None)
        assert isinstance(needs, RolloutNeeds) and isinstance(policy, Policy)
        self.policy = policy
        self.distribution: Any = getattr(algorithm, "distribution", None)
        self.imitation = Imitation(algorithm) if imitate else None
        self.length = needs.horizon
        self.rollout = Rollout(algorithm.spaces, self.length, 1)
        self.flags = np.zeros(self.length, np.uint8)
        self.filled = 0
        self._pieces: list[_Piece] = []
        self._boxed = self.policy.choose.bounds is not None
        extras = {"log_prob": np.zeros(1, np.float32), "policy_weight": np.zeros(1, np.float32)}
        if self._boxed:
            extras["raw_action"] = np.zeros((1, *self.rollout.action.shape[2:]), np.float32)
        first = tree_map(lambda array: array[0], self.rollout.obs)
        flag = np.zeros(1, bool)
        self.rollout.write(0, first, self.rollout.action[0], np.zeros(1), flag, flag, extras=extras)
        self.rollout.reset()

    def take(self, position: int, steps: Steps) -> None:
        """Lay steps into the rollout; learn whenever it is full."""
        self._notice_restart(steps)
        for begin, end in runs_of(self._fresh(steps, self.version)):
            while begin < end:
                rows = min(end - begin, self.length - self.filled)
                self._lay(steps, begin, begin + rows)
                begin += rows
                if self.filled == self.length:
                    self._learn()

    @property
    def due(self) -> bool:
        """Say whether something was learned."""
        return self.updates > 0

    def replay_from(self, position: int) -> int:
        """Return the position itself: what waits is in the checkpoint."""
        return position

    def refill(self, position: int, steps: Steps) -> None:
        """Do nothing: no data is used twice."""

    def _lay(self, steps: Steps, begin: int, end: int) -> None:
        rollout, t = self.rollout, self.filled
        rows, cut = slice(t, t + end - begin), slice(begin, end)
        taken = (slice(begin, end), None)  # [L, 1, ...]
        tree_map(lambda to, array: np.copyto(to[rows], array[taken]), rollout.obs, steps.obs)
        rollout.action[rows] = steps.action[taken]
        rollout.reward[rows] = steps.reward[taken]
        rollout.terminated[rows] = steps.terminated[taken]
        truncated = steps.truncated[cut].copy()
        ends = steps.terminated[cut] | truncated
        if not ends[-1]:  # the segment, the rollout or what is fresh ends here
            truncated[-1] = True
        rollout.truncated[rows, 0] = truncated
        rollout.valid[rows] = True
        for row in np.flatnonzero(truncated).tolist():
            rollout.add_final(t + row, 0, steps.next_obs(begin + row))
        sampled = (steps.flags[cut] == 0) & (steps.version[cut] > 0)
        if self._boxed:
            # A client that always does what is best (explore: false) states 0, which is no density.
            sampled &= steps.log_prob[cut] != 0.0
        extras = rollout.extras
        extras["log_prob"][rows] = steps.log_prob[taken]
        extras["policy_weight"][rows, 0] = sampled
        if self._boxed:
            # What was not sampled has no action before clipping, only the one that was done.
            executed = sampled.reshape(-1, *[1] * (steps.action.ndim - 1))
            extras["raw_action"][rows, 0] = np.where(executed, steps.raw[cut], steps.action[cut])
        self.flags[rows] = steps.flags[cut]
        event = None if steps.event is None else steps.event[cut]
        first, after = steps.place(begin), steps.place(end)
        self._pieces.append(_Piece(steps.client, t, rows.stop, first, after, ends, event))
        self.filled = rows.stop

    def _join(self) -> None:
        """Lay each client's pieces together, and take back the cuts between them."""
        by_client: dict[str, list[_Piece]] = {}
        for piece in self._pieces:
            by_client.setdefault(piece.client, []).append(piece)
        self._pieces = [piece for pieces in by_client.values() for piece in pieces]
        order = np.concatenate([np.arange(piece.begin, piece.end) for piece in self._pieces])
        begin = 0
        for piece in self._pieces:
            piece.begin, piece.end, begin = begin, begin + len(piece.ends), begin + len(piece.ends)
        joined = [
            one.end - 1
            for one, other in itertools.pairwise(self._pieces)
            if one.client == other.client and one.after == other.first and not one.ends[-1]
        ]
        self.flags = self.flags[order]
        self.rollout.rearrange(order, uncut=np.array(joined, np.int64))

    def _learn(self) -> None:
        rollout, algorithm = self.rollout, self.algorithm
        self._join()
        finals = rollout.finals
        last_row = tree_map(lambda array: array[-1], rollout.obs)
        if finals is not None and finals.step[-1] == self.length - 1:
            last_row = tree_map(lambda array: array[-1:], finals.obs)
        rollout.last_obs = last_row
        self.clock.env_steps += self.length
        for piece in self._pieces:
            rows = slice(piece.begin, piece.end)
            begins = piece.first[-1] == 0
            self._observe_rewards(piece.client, begins, rollout.reward[rows, 0], piece.ends)
        self._neutralise()
        algorithm.update(rollout)
        algorithm.observe_observations(rollout.obs, rollout.valid)
        if self.imitation is not None:
            heuristic = self.flags & Flag.HEURISTIC != 0
            self.imitation.update(
                tree_map(lambda array: array[heuristic, 0], rollout.obs),
                rollout.action[heuristic, 0],
                share=float(heuristic.mean()),
            )
        rollout.reset()
        self.filled = 0
        self._pieces.clear()
        self.updates += 1

    def _neutralise(self) -> None:
        """Give steps that the policy did not sample the ratio 1; their weight is 0 already."""
        extras = self.rollout.extras
        outside = extras["policy_weight"][:, 0] == 0
        if outside.any():
            extras["log_prob"][outside, 0] = self._log_prob()[outside]

    def _log_prob(self) -> Array:
        """Return [T] log-probabilities of the rollout's actions under the policy as it is now."""
        rollout, forward = self.rollout, self.policy.forward
        action = rollout.extras.get("raw_action", rollout.action)[:, 0]
        obs: Tree = tree_map(lambda array: array[:, 0], rollout.obs)
        with torch.no_grad():
            tensors = forward.tensors(self.algorithm.normalized(obs))
            params = self.policy.actor(tensors)
            values = torch.from_numpy(np.ascontiguousarray(action)).to(params.device)
            found = self.distribution.log_prob(params, values, action_mask(tensors))
        log_prob: Array = found.cpu().numpy()
        return log_prob

    def _find(self, client: str, event: int, reward: float) -> bool:
        for piece in reversed(self._pieces):
            if piece.client == client and piece.event is not None:
                rows = np.flatnonzero(piece.event == np.uint64(event))
                if len(rows):
                    self.rollout.reward[piece.begin + int(rows[0]), 0] += reward
                    return True
        return False

    def _forget(self, client: str) -> None:
        for piece in self._pieces:
            if piece.client == client:
                piece.event = None

    def state(self) -> State:
        """Return everything that later updates depend on, the steps that wait included."""
        rollout, filled = self.rollout, self.filled

        def waiting(array: Array) -> Array:
            return array[:filled].copy()

        finals = rollout.finals
        state = super().state() | {
            "obs": tree_map(waiting, rollout.obs),
            "action": waiting(rollout.action),
            "reward": waiting(rollout.reward),
            "terminated": waiting(rollout.terminated),
            "truncated": waiting(rollout.truncated),
            "extras": {name: waiting(array) for name, array in rollout.extras.items()},
            "flags": waiting(self.flags),
            "finals": None if finals is None else {"step": finals.step, "obs": finals.obs},
            "pieces": [
                {
                    "client": piece.client, "begin": piece.begin, "end": piece.end,
                    "first": list(piece.first), "after": list(piece.after), "ends": piece.ends,
                    "event": piece.event,
                }
                for piece in self._pieces
            ],
        }  # fmt: skip
        if self.imitation is not None:
            state["imitation"] = self.imitation.state()
        return state

    def load_state(self, state: State) -> None:
        """Put back what `state` returned."""
        super().load_state(state)
        rollout = self.rollout
        rollout.reset()
        self.filled = filled = len(state["flags"])

        def put(to: Array, array: Array) -> None:
            to[:filled] = array

        tree_map(put, rollout.obs, state["obs"])
        for name in ("action", "reward", "terminated", "truncated"):
            put(getattr(rollout, name), state[name])
        tree_map(put, rollout.extras, state["extras"])
        put(self.flags, state["flags"])
        rollout.valid[:filled] = True
        if state["finals"] is not None:
            obs = state["finals"]["obs"]
            for k, step in enumerate(state["finals"]["step"].tolist()):
                rollout.add_final(step, 0, tree_map(lambda array, k=k: array[k], obs))
        self._pieces = [
            _Piece(**piece | {key: tuple(piece[key]) for key in ("first", "after")})
            for piece in state["pieces"]
        ]
        if self.imitation is not None and "imitation" in state:
            self.imitation.load_state(state["imitation"])


# -------------------------------------------------------------------------------------------------
# Off-policy
# -------------------------------------------------------------------------------------------------


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
    lie in the slots where they were, and draws go on as before; priorities begin anew.
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
        self.replay = ReplayBuffer(
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
        """Say whether learning has not started yet."""
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
                if algorithm.observes:
                    row = slice(t, t + 1)
                    first = t == 0 and begins
                    self._observe_rewards(steps.client, first, steps.reward[row], done[row])
                    obs = tree_map(lambda array, row=row: array[row], steps.obs)
                    algorithm.observe_observations(obs)
                clock.env_steps += 1
                self._since += 1
                owed = (clock.env_steps - needs.learning_starts) // needs.train_every
                while self.rounds < owed:
                    self.rounds += 1
                    self.updates += 1
                    for _ in range(needs.updates):
                        algorithm.update(self.replay)
        self._drop_records()

    @property
    def due(self) -> bool:
        """Say whether enough was learned; the first lesson counts at once."""
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
            tree_map(lambda array: array[t : t + 1], steps.obs),
            steps.action[t : t + 1],
            steps.reward[t : t + 1],
            tree_map(lambda array: array[None], steps.next_obs(t)),
            terminated,
            truncated,
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

    def _find(self, client: str, event: int, reward: float) -> bool:
        for record in reversed(self._records):
            if record.client != client or record.event is None:
                continue
            rows = np.flatnonzero(record.event == np.uint64(event))
            if len(rows):
                return self.replay.add_reward(record.serial + int(rows[0]), reward)
        return False

    def _forget(self, client: str) -> None:
        for record in self._records:
            if record.client == client:
                record.event = None

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
        """Put back what `state` returned; `refill` then brings the transitions."""
        super().load_state(state)
        self._last_event = {}  # the log tells it again
        self.rounds = int(state["rounds"])
        seeding.set_rng_state(self.rng, state["rng"])
        self._since, self._warm = int(state["since"]), bool(state["warm"])
        records = [(int(p), int(v), int(n)) for p, v, n in state["records"]]
        self.written = int(state["written"]) - sum(count for _, _, count in records)
        self._expected = {p: _Record(p, v, n, 0) for p, v, n in records}
        if self.written:
            self.replay.start_at(self.written)
