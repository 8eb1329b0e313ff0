"""Replay of single transitions: uniform or prioritised, n-step, images stored once.

Layout: one ring per environment, [slots, num_envs, ...] with slots = capacity // num_envs, each
with its own write head, since rows that are not a transition (`valid=False`) are not recorded.

n-step returns are put together when they are sampled. A window starts at the drawn transition and
ends with the first of: n transitions, a terminated or truncated one, the newest one of its
environment. So no window crosses an episode's end or the write head, and every stored transition
can be drawn; the youngest ones of an unfinished episode give shorter returns, each with the
bootstrap and the discount gamma^k of the k steps really taken.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from assay.buffers.allocation import (
    Spec,
    allocate,
    require_memory,
    space_spec,
    stacked,
    tree_bytes,
)
from assay.buffers.frames import FrameColumn, has_byte_images, make_column, observation_plan
from assay.buffers.prioritized import Priorities, PrioritizedOptions, SumTree
from assay.buffers.storage import (
    HEAD,
    Ring,
    Sectioned,
    Sections,
    Staging,
    as_array,
    make_staging,
    same_settings,
    section,
    write_back,
)
from assay.core.errors import AssayError, ConfigError
from assay.core.images import has_images
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import Array, Batch, Spaces, State, Transition, Tree, tree_map

_FLOAT = np.dtype(np.float32)


def replay_bytes(
    spaces: Spaces,
    capacity: int,
    num_envs: int = 1,
    *,
    frame_stack: int | None = None,
    prioritized: bool = False,
) -> int:
    """Return the bytes that such a `ReplayBuffer` will allocate, without allocating them.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> atari = Spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(6))
        >>> replay_bytes(atari, 1_000_000, frame_stack=4) / (84 * 84 * 1_000_000) < 1.1
        True
    """
    return tree_bytes(_plan(spaces, capacity // num_envs, num_envs, frame_stack, prioritized))


class ReplayBuffer(Sectioned):
    """The last `capacity` transitions, to sample batches from.

    A returned batch lives in memory that the next `sample` of the same size reuses: it is valid
    until then (`index` for as long as you like). Clone what must last longer.

    Args:
        spaces: What is stored.
        capacity: Transitions in all, shared evenly by the environments.
        num_envs: Rows of every `add`.
        n_step: Longest return.
        gamma: Discount factor. Below 0, rewards count by turns for and against: of two players who
            alternate, what one gets the other loses.
        device: Where sampled tensors live.
        rng: Source of all randomness.
        prioritized: Draw in proportion to TD errors; None draws uniformly.
        frame_stack: k, if uint8 images [k * channels, height, width] (or [k, ...] of four axes) are
            stacks of k frames, newest last: each frame is then stored once. 1 stores unstacked
            images once. None stores observations and next observations in full, as is done for all
            that are not images.

    Raises:
        ConfigError: A setting is out of range, or the memory does not suffice.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        num_envs: int = 1,
        *,
        rng: np.random.Generator,
        n_step: int = 1,
        gamma: float = 0.99,
        device: torch.device | str = "cpu",
        prioritized: PrioritizedOptions | None = None,
        frame_stack: int | None = None,
    ) -> None:
        self.slots = capacity // max(1, num_envs)
        if num_envs < 1 or not 1 <= n_step <= self.slots or not -1.0 <= gamma <= 1.0:
            given = f"capacity={capacity}, num_envs={num_envs}, n_step={n_step}, gamma={gamma}"
            raise ConfigError(
                f"Bad replay: {given}.",
                "Use n_step >= 1, gamma between -1 and 1, and capacity >= num_envs * n_step.",
            )
        plan = _plan(spaces, self.slots, num_envs, frame_stack, prioritized is not None)
        what = f"A replay of {capacity:,} transitions"
        advice = partial(_advice, spaces.observation, frame_stack)
        require_memory(tree_bytes(plan), what, capacity=capacity, advice=advice)
        self.capacity, self.num_envs = self.slots * num_envs, num_envs
        self.n_step, self.gamma, self.device = n_step, gamma, torch.device(device)
        self._rng = rng
        self._spec = space_spec(spaces.observation)
        keys = self._spec if isinstance(self._spec, dict) else [None]  # None: it is one array
        columns = [make_column(leaf) for leaf in plan["leaves"].values()]
        self._leaves = dict(zip(keys, columns, strict=True))
        self._frames = [leaf for leaf in columns if isinstance(leaf, FrameColumn)]
        self._fixed = allocate(plan["fixed"])
        self._reward, self._action = self._fixed["reward"], self._fixed["action"]
        self._terminated, self._truncated = self._fixed["terminated"], self._fixed["truncated"]
        self._flat_action = self._action.reshape(-1, *self._action.shape[2:])
        self._extras: dict[str, np.ndarray] | None = None  # known at the first add
        self._updated: set[str] = set()  # extras that were written after they were added
        self._priorities = Priorities(self.capacity, prioritized) if prioritized else None
        self._envs = np.arange(num_envs)
        # Transitions ever written: one number while all environments agree, which is fast, and
        # `_heads` otherwise. `_tails`, the oldest ones still held, are kept where frames are.
        self._head: int | None = 0
        self._heads = np.zeros(num_envs, np.int64)
        self._tails = np.zeros(num_envs, np.int64)
        self._staging: dict[int, Staging] = {}
        # gamma^j for n-step sums: [n]
        self._powers = gamma ** np.arange(n_step + 1)

    def __len__(self) -> int:
        """Return the number of transitions that can be drawn."""
        if self._head is not None and self._aligned():
            return min(self._head, self.slots) * self.num_envs
        heads, tails = self._bounds()
        return int((heads - tails).sum())

    def add(self, step: Transition) -> None:
        """Record one transition of every environment."""
        valid, extras = step.valid, step.extras
        if self._extras is None or len(self._extras) != len(extras or ()):
            self._check(step)
        if self._head is None or (valid is not None and not valid.all()):
            self._add_rows(self._envs if valid is None else np.flatnonzero(valid), step)
            return
        row = self._head % self.slots
        for name, column in self._fixed.items():
            column[row] = getattr(step, name)
        for leaf, obs, next_obs in self._by_leaf(step.obs, step.next_obs):
            leaf.write_row(row, obs, next_obs)
        if extras:
            for name, column in self._extras.items():  # type: ignore[union-attr]
                column[row] = extras[name]
        self._head += 1
        if self._priorities is not None:
            self._priorities.insert(row * self.num_envs + self._envs)
        if self._frames:
            self._evict()

    def cut_episodes(self) -> None:
        """Mark the newest transition of every environment as truncated, unless it ended anyway.

        For a loop that resets environments mid-episode: n-step windows then end there.
        """
        heads, tails = self._bounds()
        rows, envs = (heads - 1) % self.slots, self._envs
        held = (heads > tails) & (self._terminated[rows, envs] == 0.0)
        self._truncated[rows[held], envs[held]] = 1.0

    def sample(self, batch_size: int, beta: float = 1.0) -> Batch:
        """Draw transitions, with replacement.

        `beta` is the exponent of the importance weights of prioritised replay; where the draw is
        uniform, none are given. Tensors are on the buffer's device, `index` always on the CPU.
        `terminated`, `truncated` and `next_obs` are those of the last transition of the n-step
        window. An empty buffer raises an AssayError.
        """
        return self._deliver(*self._gather(batch_size, beta))

    def _gather(self, batch_size: int, beta: float) -> tuple[Staging, np.ndarray]:
        """Draw transitions into the arrays that they leave from; return these, and the places."""
        count = len(self)
        if count == 0:
            raise AssayError(
                "Cannot sample from an empty replay.", "Add transitions before the first update."
            )
        staging = self._staging.get(batch_size) or self._stage(batch_size)
        staging.wait()
        out = staging.arrays
        if self._priorities is None:
            first = self._draw(batch_size, count)
        else:
            first, out["weight"][:] = self._priorities.draw(self._rng, batch_size, beta, count)
        last = first
        if self.n_step > 1:
            last = self._look_ahead(first, out)
        else:
            for name in ("reward", "terminated", "truncated"):
                self._fixed[name].take(first, out=out[name], mode="clip")
        self._flat_action.take(first, axis=0, out=out["action"], mode="clip")
        for leaf, obs, next_obs in self._by_leaf(out["obs"], out["next_obs"]):
            leaf.gather(first, last, obs, next_obs)
        for name, column in (self._extras or {}).items():
            flat = column.reshape(-1, *column.shape[2:])
            flat.take(first, axis=0, out=out["extras"][name], mode="clip")
        return staging, first

    def history(self, env: int) -> Transition:
        """Return what is held of one environment, [K, ...] in the order of time."""
        heads, tails = self._bounds()
        rows = np.arange(tails[env], heads[env]) % self.slots * self.num_envs + env
        obs, after = (allocate(stacked(self._spec, len(rows))) for _ in range(2))
        for leaf, first, last in self._by_leaf(obs, after):
            leaf.gather(rows, rows, first, last)
        fixed = {n: c.reshape(-1, *c.shape[2:])[rows] for n, c in self._fixed.items()}
        return Transition(obs, next_obs=after, **fixed)

    def all(self) -> Transition:
        """Return all that is held [K, ...], one environment after the other, each as `history`."""
        parts = [self.history(env) for env in range(self.num_envs)]
        names = ("obs", "next_obs", *self._fixed)
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        join = partial(tree_map, lambda *rows: np.concatenate(rows))
        return Transition(**{name: join(*rows) for name, rows in columns.items()})

    def update(self, index: Array, **columns: Tree) -> None:
        """Write to sampled transitions; those that were overwritten since are left out.

        Args:
            index: [B] of the batch. It names transitions, not slots.
            **columns: [B, ...] each: `priority`, TD errors of any sign, or extras by name.

        Raises:
            ConfigError: There are no priorities, because draws are uniform.
            ValueError: There is no such extra.
        """
        serial, env = np.divmod(as_array(index), self.num_envs)
        held = serial >= self._bounds()[1][env]
        rows = (serial % self.slots * self.num_envs + env)[held]
        if "priority" in columns:
            if self._priorities is None:
                raise ConfigError("This replay draws uniformly and has no priorities.")
            self._priorities.update(rows, as_array(columns.pop("priority"))[held])
        extras = self._extras or {}
        flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in extras.items()}
        write_back(flat, rows, held, columns)
        self._updated |= columns.keys()

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        head = section(state, HEAD)
        # Of frames there may be some more than slots.
        frames = [int(np.max(part["written"])) for part in head.get("frames", {}).values()]
        written = max(int(np.max(head["heads"])), *frames, 0)
        same_settings(head["settings"], self._settings(), "replay", written=written)
        set_rng_state(self._rng, head["rng"])
        self._set_heads(np.asarray(head["heads"]))
        self._tails[:] = head["tails"]
        self._staging.clear()
        self._extras = None
        if head["started"]:
            self._extras = {
                name: np.zeros((self.slots, self.num_envs, *item["shape"]), item["dtype"])
                for name, item in head.get("extras", {}).items()
            }
        for i, leaf in enumerate(self._frames):
            leaf.load_state(head["frames"][str(i)])
        for ring in self._rings():
            ring.load(state)
        if self._priorities is not None:
            self._priorities.load_state(head["priorities"])

    def _sections(self) -> Sections:
        heads, tails = self._bounds()
        head: State = {
            "settings": self._settings(),
            "rng": rng_state(self._rng),
            "heads": heads,
            "tails": tails,
            "started": self._extras is not None,
            "extras": {
                name: {"shape": list(column.shape[2:]), "dtype": column.dtype.str}
                for name, column in (self._extras or {}).items()
            },
            "frames": {str(i): leaf.state() for i, leaf in enumerate(self._frames)},
        }
        if self._priorities is not None:
            head["priorities"] = self._priorities.state()
        transitions, *pools = self._rings()
        found: Sections = {HEAD: (head, None)}
        found |= transitions.sections(self._fingerprint)
        for pool in pools:
            found |= pool.sections(lambda part: part["pool"][::256])
        return found

    def _add_rows(self, envs: np.ndarray, step: Transition) -> None:
        if not envs.size:
            return
        heads = self._bounds()[0].copy()
        row = heads[envs] % self.slots
        flat = row * self.num_envs + envs
        for name, column in self._fixed.items():
            column[row, envs] = getattr(step, name)[envs]
        for leaf, obs, next_obs in self._by_leaf(step.obs, step.next_obs):
            leaf.write_at(flat, envs, obs[envs], next_obs[envs])
        for name, column in (self._extras or {}).items():
            column[row, envs] = step.extras[name][envs]  # type: ignore[index]
        heads[envs] += 1
        self._set_heads(heads)
        if self._priorities is not None:
            self._priorities.insert(flat)
        if self._frames:
            self._evict()

    def _by_leaf(self, *trees: Tree) -> list[tuple[Any, ...]]:
        """Return the column of each part of an observation, with that part of all `trees`."""
        leaves = self._leaves.items()
        return [(leaf, *(t if key is None else t[key] for t in trees)) for key, leaf in leaves]

    def _evict(self) -> None:
        """Give up the oldest transitions whose frames the pools have overwritten."""
        heads, tails = self._bounds()
        for leaf in self._frames:
            while True:
                flat = tails % self.slots * self.num_envs + self._envs
                gone = leaf.gone(flat) & (tails < heads)
                if not gone.any():
                    break
                if self._priorities is not None:
                    self._priorities.remove(flat[gone])
                tails = tails + gone
        self._tails[:] = tails

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [N] transitions ever written and [N] the first of them still held."""
        if self._head is not None:
            self._heads.fill(self._head)
        return self._heads, np.maximum(self._heads - self.slots, self._tails)

    def _set_heads(self, heads: np.ndarray) -> None:
        self._heads[:] = heads
        self._head = int(heads[0]) if (heads == heads[0]).all() else None

    def _aligned(self) -> bool:
        """Return whether the first slots of all environments, or all slots, are what is held."""
        return self._head is not None and not self._frames

    def _draw(self, batch_size: int, count: int) -> np.ndarray:
        """Draw places uniformly. Which number means which transition follows from the heads."""
        number = self._rng.integers(count, size=batch_size)
        if self._aligned():
            return number
        heads, tails = self._bounds()
        ends = np.cumsum(heads - tails)
        env = np.searchsorted(ends, number, side="right")
        serial = number - (ends - heads)[env]  # = tail + offset within the environment
        return serial % self.slots * self.num_envs + env

    def _serial(self, flat: np.ndarray) -> np.ndarray:
        """Return names of transitions that outlive their slots: serial * num_envs + env."""
        slot, env = np.divmod(flat, self.num_envs)
        newest = self._bounds()[0][env] - 1
        return (newest - (newest - slot) % self.slots) * self.num_envs + env

    def _look_ahead(self, first: np.ndarray, out: dict[str, Any]) -> np.ndarray:
        """Sum n-step rewards into `out` and return the places of the windows' last transitions."""
        slot, env = np.divmod(first, self.num_envs)
        newer = (self._bounds()[0][env] - 1 - slot) % self.slots  # [B] transitions after the first
        steps = np.arange(self.n_step)
        window = (slot[:, None] + steps) % self.slots * self.num_envs + env[:, None]  # [B, n]
        terminated, truncated = self._terminated.take(window), self._truncated.take(window)
        ended = (terminated + truncated)[:, :-1] > 0.0
        inside = steps <= newer[:, None]
        inside[:, 1:] &= ~np.logical_or.accumulate(ended, axis=1)
        length = inside.sum(axis=1)
        rows = np.arange(len(first))
        # R = sum_j gamma^j r_{t+j}
        out["reward"][:] = (self._reward.take(window) * inside * self._powers[:-1]).sum(axis=1)
        out["terminated"][:] = terminated[rows, length - 1]
        out["truncated"][:] = truncated[rows, length - 1]
        out["discount"][:] = self._powers[length]
        return window[rows, length - 1]

    def _deliver(self, staging: Staging, first: np.ndarray) -> Batch:
        """Return what was gathered, the transitions at the places `first`, as a batch."""
        index = None
        if self._priorities is not None or self._extras:  # else there is nothing to update
            index = torch.from_numpy(self._serial(first))
        tensors = staging.deliver().items()
        # A caller may change the dicts of its batch.
        own = {name: dict(part) if isinstance(part, dict) else part for name, part in tensors}
        return Batch(**own, index=index)

    def _stage(self, batch_size: int) -> Staging:
        """Prepare the arrays that batches of one size are gathered into."""
        columns = {**self._fixed, "extras": self._extras or {}}
        specs = tree_map(lambda c: Spec((batch_size, *c.shape[2:]), c.dtype), columns)
        obs = stacked(self._spec, batch_size)
        more = {"obs": obs, "next_obs": obs, "discount": specs["reward"]}
        if self._priorities is not None:
            more["weight"] = specs["reward"]
        staging = self._staging[batch_size] = make_staging(specs | more, self.device)
        staging.arrays["discount"].fill(self.gamma)
        return staging

    def _fingerprint(self, part: State) -> Tree:
        """Return what tells two states of a chunk apart that was written to as often."""
        updated = {name: part["extras"][name] for name in self._updated}
        return {name: part[name] for name in self._fixed} | {"extras": updated}

    def _columns(self) -> State:
        """Return all arrays whose first axis is the slot."""
        return {
            **self._fixed,
            "extras": self._extras or {},
            "leaves": {str(i): leaf.columns for i, leaf in enumerate(self._leaves.values())},
        }

    def _rings(self) -> list[Ring]:
        """Return the ring of transitions, and those of the frame pools."""
        heads = self._bounds()[0]
        rings = [Ring("", self._columns(), self.slots, heads, self.num_envs)]
        for i, leaf in enumerate(self._frames):
            arrays = {"pool": leaf.pool}
            name = f"frames{i}-"
            rings.append(Ring(name, arrays, leaf.rows, leaf.written, self.num_envs))
        return rings

    def _settings(self) -> State:
        return {
            "slots": self.slots,
            "num_envs": self.num_envs,
            "prioritized": self._priorities is not None,
            "frame_stacks": [getattr(leaf, "stack", None) for leaf in self._leaves.values()],
        }

    def _check(self, step: Transition) -> None:
        """Refuse rows of the wrong shape or kind, and learn the extras, at the first add."""
        extras = step.extras or {}
        if self._extras is not None:
            raise ValueError(f"extras {sorted(extras)} were given; expected {sorted(self._extras)}")
        for name, tree in (("obs", step.obs), ("next_obs", step.next_obs)):
            for key, leaf in self._leaves.items():
                at, rows = (name, tree) if key is None else (f"{name}[{key!r}]", tree[key])
                self._check_array(at, rows, leaf.spec)
        self._check_array("action", step.action, Spec(self._action.shape[2:], self._action.dtype))
        columns = {}
        for name, value in extras.items():
            rows = np.asarray(value)
            columns[name] = Spec((self.slots, self.num_envs, *rows.shape[1:]), rows.dtype)
            self._check_array(name, rows, Spec(rows.shape[1:], rows.dtype))
        require_memory(tree_bytes(columns), "The extras of the replay", capacity=self.capacity)
        self._extras = allocate(columns)

    def _check_array(self, name: str, value: Array, spec: Spec) -> None:
        rows, shape = np.asarray(value), (self.num_envs, *spec.shape)
        if rows.shape != shape or not np.can_cast(rows.dtype, spec.dtype, "same_kind"):
            raise ValueError(
                f"{name} is {rows.dtype}{list(rows.shape)}; expected {spec.dtype}{list(shape)}"
            )


def _plan(
    spaces: Spaces, slots: int, num_envs: int, frame_stack: int | None, prioritized: bool
) -> dict[str, Tree]:
    """Return the specs of all arrays: columns, those of the observations' parts, the sum tree."""
    action = space_spec(spaces.action)
    fixed = dict.fromkeys(("reward", "terminated", "truncated"), Spec((slots, num_envs), _FLOAT))
    fixed["action"] = Spec((slots, num_envs, *action.shape), action.dtype)
    leaves = observation_plan(spaces.observation, slots, num_envs, frame_stack)
    tree = SumTree.plan(slots * num_envs) if prioritized else []
    return {"fixed": fixed, "leaves": leaves, "tree": dict(enumerate(tree))}


def _advice(space: gym.Space[Any], frame_stack: int | None) -> str:
    can_stack = has_byte_images(space)
    if frame_stack is None and can_stack:
        return "store each frame once (frame_stack=4 for stacks of four, 1 for single images)"
    if not can_stack and has_images(space):
        return "keep images as uint8, a quarter of float32"
    return ""
