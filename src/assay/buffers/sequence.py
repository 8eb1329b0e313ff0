"""Replay of sequences with a stored carry, for recurrent and world-model agents.

Sequences have a fixed length and overlap (R2D2, Kapturowski et al., 2019). Every observation is
stored once: what a step led to is the observation of the next row, and at an episode's end the next
row holds the final observation and is not a transition (`valid` 0).

Sequences do not cross episodes: the last one of an episode is padded at the end, which is not
`valid` either. With `cross_episodes` (DreamerV3) a sequence runs on over episode ends, marked by
`is_first`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from assay.buffers.allocation import Spec, allocate, require_memory, space_spec, tree_bytes
from assay.buffers.prioritized import Priorities, PrioritizedOptions, SumTree
from assay.buffers.storage import (
    HEAD,
    Ring,
    Sectioned,
    Sections,
    Staging,
    as_array,
    make_staging,
    put_rows,
    same_settings,
    section,
    write_back,
)
from assay.core.errors import AssayError, ConfigError
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import Array, SequenceBatch, Spaces, State, Transition, Tree, tree_map

_SCALARS = ("reward", "terminated", "truncated", "is_first", "valid")


class SequenceReplay(Sectioned):
    """The last sequences of every environment, to sample batches [B, L] from.

    A returned batch lives in memory that the next `sample` of the same size reuses: it is valid
    until then (`index` for as long as you like). Clone what must last longer.

    Args:
        spaces: What is stored.
        capacity: Stored steps in all: room for capacity // length sequences.
        num_envs: Rows of every `add`.
        length: L.
        rng: Source of all randomness.
        overlap: Steps that a sequence shares with the next one of its episode.
        cross_episodes: Let sequences run on over episode ends.
        device: Where sampled tensors live.
        prioritized: Draw in proportion to the priorities of sequences; None draws uniformly.

    Raises:
        ConfigError: A setting is out of range, or the memory does not suffice.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        num_envs: int = 1,
        *,
        length: int,
        rng: np.random.Generator,
        overlap: int = 0,
        cross_episodes: bool = False,
        device: torch.device | str = "cpu",
        prioritized: PrioritizedOptions | None = None,
    ) -> None:
        if num_envs < 1 or not 1 <= length <= capacity or not 0 <= overlap < length:
            raise ConfigError(
                f"Bad sequence replay: capacity={capacity}, num_envs={num_envs}, length={length}, "
                f"overlap={overlap}.",
                "Use 1 <= length <= capacity and 0 <= overlap < length.",
            )
        self.slots, self.length, self.num_envs = capacity // length, length, num_envs
        self.overlap, self.cross_episodes = overlap, cross_episodes
        self.device, self._rng = torch.device(device), rng
        self._row: dict[str, Tree] = {
            **{name: Spec((length,), np.dtype(np.float32)) for name in _SCALARS},
            "action": _times(space_spec(spaces.action), length),
            "obs": _times(space_spec(spaces.observation), length + 1),
        }
        tree = SumTree.plan(self.slots) if prioritized else []
        needed = tree_bytes(self._row, self.slots + num_envs) + sum(s.nbytes for s in tree)
        what = f"A replay of {self.slots:,} sequences of {length} steps"
        require_memory(needed, what, capacity=capacity)
        self._store: dict[str, Any] = allocate(_times(self._row, self.slots))
        self._open: dict[str, Any] = allocate(_times(self._row, num_envs))  # being written
        self._priorities = Priorities(self.slots, prioritized) if prioritized else None
        self._started = False  # extras and carry are known from the first add
        self._updated: set[str] = set()  # of those, what was written after it was stored
        self._head = 0  # sequences ever stored
        self._position = np.zeros(num_envs, np.int64)  # steps in the open window
        self._stored = np.zeros(num_envs, np.int64)  # of which another sequence has these already
        self._first = np.ones(num_envs, bool)
        self._envs = np.arange(num_envs)
        self._staging: dict[int, Staging] = {}

    def __len__(self) -> int:
        """Return the number of sequences that can be drawn."""
        return min(self._head, self.slots)

    def add(self, step: Transition) -> None:
        """Record one step of every environment; a sequence is stored when it is complete."""
        given = {"extras": step.extras or {}, "carry": step.carry}
        if not self._started:
            self._start(tree_map(lambda x: Spec(np.shape(x)[1:], np.asarray(x).dtype), given))
        if given["extras"].keys() != self._open["extras"].keys():
            known = sorted(self._open["extras"])
            raise ValueError(f"extras {sorted(given['extras'])} were given; expected {known}")
        envs = self._envs if step.valid is None else np.flatnonzero(step.valid)
        at = (envs, self._position[envs])
        given |= {
            "obs": step.obs,
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "is_first": self._first,
            "valid": np.ones(self.num_envs),
        }
        tree_map(lambda rows, store: _put(store, at, np.asarray(rows)[envs]), given, self._open)
        after = (envs, at[1] + 1)
        tree_map(
            lambda rows, store: _put(store, after, rows[envs]), step.next_obs, self._open["obs"]
        )
        self._position[envs] += 1
        over = np.asarray(step.terminated, bool) | np.asarray(step.truncated, bool)
        self._first[envs] = over[envs]
        full = self._position[envs] == self.length
        for env in envs[full | over[envs]].tolist():
            self._advance(env, over=bool(over[env]))

    def cut_episodes(self) -> None:
        """End the episodes under way as truncated, for a loop that resets mid-episode."""
        for env in np.flatnonzero(~self._first).tolist():
            self._first[env] = True
            if self._position[env] == 0:
                continue
            self._open["truncated"][env, self._position[env] - 1] = 1.0
            if self.cross_episodes:
                self._add_final(env)
            elif self._position[env] > self._stored[env]:
                self._close(env, keep=0)
            else:
                self._position[env] = self._stored[env] = 0

    def sample(self, batch_size: int, beta: float = 1.0) -> SequenceBatch:
        """Draw sequences, with replacement; `beta` is the exponent of importance weights.

        Returns:
            Tensors on the buffer's device; `index` is always on the CPU.

        Raises:
            AssayError: No sequence is complete yet.
        """
        count = len(self)
        if count == 0:
            raise AssayError(
                "Cannot sample: no sequence is complete yet.",
                f"Add at least {self.length} transitions of one environment, or a whole episode.",
            )
        staging = self._staging.get(batch_size) or self._stage(batch_size)
        staging.wait()
        if self._priorities is None:
            slots = self._rng.integers(count, size=batch_size)
        else:
            slots, weight = self._priorities.draw(self._rng, batch_size, beta, count)
            staging.arrays["weight"][:] = weight
        tree_map(
            lambda column, out: column.take(slots, axis=0, out=out, mode="clip"),
            self._store,
            staging.arrays,
        )
        newest = self._head - 1
        index = newest - (newest - slots) % self.slots  # outlives the slot
        tensors = tree_map(lambda tensor: tensor, staging.deliver())  # dicts of its own
        return SequenceBatch(**tensors, index=torch.from_numpy(index))

    def update(self, index: Array, **columns: Tree) -> None:
        """Write to sampled sequences; those that were overwritten since are left out.

        Steps that another sequence has as well are left alone there.

        Args:
            index: [B] of the batch.
            **columns: [B, ...] each: `priority` (such as 0.9 max + 0.1 mean of a sequence's TD
                errors), `carry`, or extras by name, [B, L, ...].

        Raises:
            ConfigError: There are no priorities, because draws are uniform.
            ValueError: There is no such extra.
        """
        serial = as_array(index)
        held = serial >= self._head - self.slots
        slots = serial[held] % self.slots
        if "priority" in columns:
            if self._priorities is None:
                raise ConfigError("This replay draws uniformly and has no priorities.")
            self._priorities.update(slots, as_array(columns.pop("priority"))[held])
        write_back(_given(self._store), slots, held, columns)
        self._updated |= columns.keys()

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        head = section(state, HEAD)
        written = int(head["head"])
        same_settings(head["settings"], self._settings(), "sequence replay", written=written)
        set_rng_state(self._rng, head["rng"])
        saved = head["open"]
        for part in (self._row, self._store, self._open):
            part.pop("extras", None)
            part.pop("carry", None)
        self._staging.clear()
        self._started = False
        if head["started"]:
            given = {"extras": saved.get("extras") or {}, "carry": saved.get("carry")}
            self._start(tree_map(lambda x: Spec(np.shape(x)[2:], np.asarray(x).dtype), given))
        put_rows(self._open, 0, self.num_envs, saved, HEAD)
        self._head = int(head["head"])
        self._position[:], self._stored[:] = head["position"], head["stored"]
        self._first[:] = head["first"]
        self._ring().load(state)
        if self._priorities is not None:
            self._priorities.load_state(head["priorities"])

    def _sections(self) -> Sections:
        head: State = {
            "settings": self._settings(),
            "rng": rng_state(self._rng),
            "started": self._started,
            "head": self._head,
            "open": self._open,
            "position": self._position,
            "stored": self._stored,
            "first": self._first,
        }
        if self._priorities is not None:
            head["priorities"] = self._priorities.state()
        return {HEAD: (head, None), **self._ring().sections(self._fingerprint)}

    def _fingerprint(self, part: State) -> Tree:
        """Return what tells two states of a chunk apart that was written to as often."""
        updated = {name: column for name, column in _given(part).items() if name in self._updated}
        return {"action": part["action"], "reward": part["reward"], "updated": updated}

    def _advance(self, env: int, *, over: bool) -> None:
        """Store the open window of `env`, which is full or whose episode is over, and go on."""
        if not self.cross_episodes:
            self._close(env, keep=0 if over else self.overlap)
            return
        if self._position[env] == self.length:
            self._close(env, keep=self.overlap)
        if over:
            self._add_final(env)

    def _add_final(self, env: int) -> None:
        """Make a row of the final observation, which lies behind the last step of `env`."""
        at = self._position[env]
        if at == 0:  # the sequence that was stored last ends with it
            return
        for name, window in self._open.items():
            if name == "carry":
                tree_map(lambda x: _put(x, (env, at), x[env, at - 1]), window)
            else:  # what comes after the final observation is not known yet
                row = at + 1 if name == "obs" else at
                tree_map(lambda x, row=row: _put(x, (env, row), 0), window)
        self._position[env] += 1
        if self._position[env] == self.length:
            self._close(env, keep=self.overlap)

    def _close(self, env: int, *, keep: int) -> None:
        """Store the open window of `env`, padded with zeros; `keep` rows of it begin the next."""
        slot, steps = self._head % self.slots, self._position[env]

        def close(store: np.ndarray, window: np.ndarray) -> None:
            more = window.shape[1] - self.length  # 1 of observations, of which there is one more
            store[slot, : steps + more] = window[env, : steps + more]
            store[slot, steps + more :] = 0
            window[env, : keep + more] = window[env, self.length - keep :].copy()

        def close_carry(store: np.ndarray, window: np.ndarray) -> None:
            store[slot] = window[env, 0]
            window[env, :keep] = window[env, self.length - keep :].copy()

        for name, store in self._store.items():
            tree_map(close_carry if name == "carry" else close, store, self._open[name])
        self._position[env] = self._stored[env] = keep
        if self._priorities is not None:
            self._priorities.insert(np.array([slot]))
        self._head += 1

    def _start(self, given: dict[str, Tree]) -> None:
        """Allocate room for extras and carry of the kinds first seen."""
        window = _times(given, self.length)
        stored = {"extras": window["extras"], "carry": given["carry"]}  # of the first step alone
        needed = tree_bytes(stored, self.slots) + tree_bytes(window, self.num_envs)
        require_memory(needed, "Extras and carry of the replay", capacity=self.slots * self.length)
        self._row |= stored
        self._store |= allocate(_times(stored, self.slots))
        self._open |= allocate(_times(window, self.num_envs))
        self._started = True

    def _stage(self, batch_size: int) -> Staging:
        specs = _times(self._row, batch_size)
        if self._priorities is not None:
            specs["weight"] = Spec((batch_size,), np.dtype(np.float32))
        self._staging[batch_size] = make_staging(specs, self.device)
        return self._staging[batch_size]

    def _ring(self) -> Ring:
        heads = np.array([self._head])
        return Ring("", self._store, self.slots, heads, self.length)

    def _settings(self) -> State:
        return {
            "slots": self.slots,
            "length": self.length,
            "num_envs": self.num_envs,
            "overlap": self.overlap,
            "cross_episodes": self.cross_episodes,
            "prioritized": self._priorities is not None,
        }


def _given(columns: State) -> dict[str, Tree]:
    """Return what steps were recorded with beside themselves, by name."""
    carry = columns.get("carry")
    return dict(columns.get("extras", {})) | ({} if carry is None else {"carry": carry})


def _put(store: np.ndarray, at: Any, value: Any) -> None:
    store[at] = value


def _times(specs: Tree, count: int) -> Tree:
    """Return specs with a leading axis of `count`."""
    return tree_map(lambda spec: Spec((count, *spec.shape), spec.dtype), specs)
