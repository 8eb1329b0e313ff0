"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495).

Of every sampled batch, a share is told a goal that its episode really reached: the desired goal
becomes one that was achieved after transition t or later, and reward and termination are computed
again for it. A goal is taken from the `achieved_goal` of the next observation of transition

    future   t' drawn uniformly from t .. T      (T: the last transition of the episode)
    final    T
    episode  t' drawn uniformly from t_0 .. T    (t_0: the first one)

Goals are chosen when a batch is sampled, so nothing is stored twice. Only what is stored counts: of
an episode that is still running, T is its newest transition, and of one whose beginning the ring
has overwritten, t_0 is the oldest that is left. Where episodes end is read from the stored flags,
so a checkpoint holds what that of a plain replay holds.

`truncated` is left as it was: a time limit does not depend on the goal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from assay.buffers.replay import ReplayBuffer
from assay.core.errors import ConfigError, SpaceError
from assay.core.types import Batch, Spaces, State, Transition

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
Strategy = Literal["future", "final", "episode"]
# (achieved [B, ...], desired [B, ...]) -> (reward [B], terminated [B])
Goals = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
_LANE = 1 << 40  # numbers of one environment's transitions before those of the next begin


_ODD_STEPS, _ODD_SHARE = 2, 0.02  # disagreements that rounding may cause


@dataclass(frozen=True, slots=True)
class HindsightOptions:
    """How goals are relabelled.

    Attributes:
        strategy: Which achieved goals are taken: "future", "final" or "episode".
        ratio: Share of every batch that is relabelled.
    """

    strategy: Strategy = "future"
    ratio: float = 0.8


class HindsightReplay(ReplayBuffer):
    """A replay whose batches are partly told goals that were reached.

    `goals` is `(achieved, desired) -> (reward, terminated)`, on batches of canonical goals. For the
    other arguments see `ReplayBuffer`.

    Raises:
        SpaceError: The observations have no goals.
        ConfigError: A setting is out of range, or the memory does not suffice.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        num_envs: int = 1,
        *,
        rng: np.random.Generator,
        options: HindsightOptions,
        goals: Goals,
        gamma: float = 0.99,
        device: torch.device | str = "cpu",
    ) -> None:
        require_goals(spaces.observation)
        if not 0.0 <= options.ratio <= 1.0:
            raise ConfigError(f"her_ratio={options.ratio}; expected a share between 0 and 1.")
        super().__init__(spaces, capacity, num_envs, rng=rng, gamma=gamma, device=device)
        self.options, self.goals = options, goals
        column = self._leaves[ACHIEVED].columns["next_obs"]
        self._next_achieved = column.reshape(-1, *column.shape[2:])
        # Names `env * _LANE + number` of the last transitions of finished episodes, sorted; those
        # that ended since the last sample are not in it yet.
        self._ends = np.zeros(0, np.int64)
        self._new_ends: list[np.ndarray] = []
        self._usual: float | None = None  # the first reward that was recorded
        self._seen, self._odd = 0, [0, 0]  # steps checked against the goals; disagreements

    def add(self, step: Transition) -> None:
        """Record one transition of every environment.

        Raises:
            ConfigError: Rewards or ends are not what the goals say.
        """
        self._check_goals(step)
        super().add(step)
        done = np.logical_or(step.terminated, step.truncated)
        if done.any():
            self._note_ends(done if step.valid is None else done & step.valid)

    def cut_episodes(self) -> None:
        """Mark the newest transition of every environment as truncated, unless it ended anyway."""
        super().cut_episodes()
        heads, tails = self._bounds()
        self._note_ends(heads > tails)

    def sample(self, batch_size: int, beta: float = 1.0) -> Batch:
        """Draw transitions, with replacement; the first `ratio` of them are relabelled.

        `beta` is without effect, because transitions are drawn uniformly.

        Returns:
            As `ReplayBuffer.sample`.

        Raises:
            AssayError: The buffer is empty.
        """
        staging, first = self._gather(batch_size, beta)
        # Which rows are relabelled does not matter: each is drawn like any other.
        relabelled = round(self.options.ratio * batch_size)
        if relabelled:
            self._relabel(first[:relabelled], staging.arrays)
        return self._deliver(staging, first)

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self._usual, self._seen, self._odd = None, 0, [0, 0]
        slot, env = np.nonzero(self._terminated + self._truncated)
        serial = self._serial(slot * self.num_envs + env) // self.num_envs
        held = serial >= self._bounds()[1][env]
        self._ends = np.sort(env[held] * _LANE + serial[held])
        self._new_ends.clear()

    def _relabel(self, first: np.ndarray, out: dict[str, Any]) -> None:
        """Give the transitions at the places `first`, the first ones of `out`, reached goals."""
        rows = slice(0, len(first))
        serial, env = np.divmod(self._serial(first), self.num_envs)
        start, end = self._episode(serial, env)
        if self.options.strategy == "final":
            chosen = end
        else:
            low = serial if self.options.strategy == "future" else start
            chosen = self._rng.integers(low, end, endpoint=True)
        goal = self._next_achieved[chosen % self.slots * self.num_envs + env]
        out["obs"][DESIRED][rows] = goal
        out["next_obs"][DESIRED][rows] = goal
        reward, terminated = self.goals(out["next_obs"][ACHIEVED][rows], goal)
        out["reward"][rows] = reward
        out["terminated"][rows] = terminated

    def _episode(self, serial: np.ndarray, env: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last transition stored of the episodes of transitions."""
        heads, tails = self._bounds()
        if self._new_ends:
            held = self._ends[self._ends % _LANE >= tails[self._ends // _LANE]]
            self._ends = np.sort(np.concatenate([held, *self._new_ends]), kind="stable")
            self._new_ends.clear()
        start, end = tails[env], heads[env] - 1
        if len(self._ends):
            after = np.searchsorted(self._ends, env * _LANE + serial)  # the first end >= t
            owner, number = np.divmod(self._ends[np.minimum(after, len(self._ends) - 1)], _LANE)
            known = (after < len(self._ends)) & (owner == env)
            end = np.where(known, number, end)
            owner, number = np.divmod(self._ends[np.maximum(after - 1, 0)], _LANE)
            known = (after > 0) & (owner == env)
            start = np.where(known, np.maximum(number + 1, start), start)
        return start, end

    def _note_ends(self, rows: np.ndarray) -> None:
        """Remember that the newest transitions of the environments `rows` end their episodes."""
        envs = np.flatnonzero(rows)
        names = envs * _LANE + self._bounds()[0][envs] - 1
        self._new_ends.append(names)

    def _check_goals(self, step: Transition) -> None:
        """Refuse goals that tell another reward or end than the environment itself.

        Looked at are the first step, every end of an episode and every reward that differs from
        the first one. A few disagreements are let pass: goals are kept in float32, and one that is
        met by a hair in float64 may be missed by it.
        """
        reward, terminated = np.asarray(step.reward, np.float64), np.asarray(step.terminated, bool)
        if self._usual is None:
            rows, self._usual = np.ones(self.num_envs, bool), float(reward[0])
        else:
            rows = terminated | np.asarray(step.truncated, bool) | (reward != self._usual)
        rows = np.flatnonzero(rows if step.valid is None else rows & np.asarray(step.valid, bool))
        if not rows.size:
            return
        told = self.goals(step.next_obs[ACHIEVED][rows], step.next_obs[DESIRED][rows])
        self._seen += rows.size
        found = reward[rows], terminated[rows]
        for i, (name, mine, theirs) in enumerate(
            zip(("reward", "terminated"), found, told, strict=True)
        ):
            odd = np.flatnonzero(~np.isclose(mine, theirs, rtol=1e-3, atol=1e-4))
            self._odd[i] += odd.size
            first = self._seen <= self.num_envs
            if odd.size and (first or self._odd[i] > max(_ODD_STEPS, _ODD_SHARE * self._seen)):
                raise ConfigError(
                    f"A step of the environment has {name}={mine[odd[0]]}, but its "
                    f"compute_{name}() says {theirs[odd[0]]} for the goals of that step. Hindsight "
                    "replay would mix the two.",
                    f"Remove wrappers that change it, or let compute_{name}() depend on "
                    "the two goals alone and say what step() says.",
                )


def require_goals(space: Any) -> None:
    """Refuse observations that hindsight cannot relabel.

    Raises:
        SpaceError: An entry is missing, or the two goals are of different kinds.
    """
    parts = getattr(space, "spaces", {})
    missing = [key for key in ("observation", ACHIEVED, DESIRED) if key not in parts]
    if missing:
        raise SpaceError(
            f"her needs observations with the entry '{missing[0]}'; this environment has {space}.",
            "Use a goal environment (a Dict of observation, achieved_goal and desired_goal), or "
            "leave her out.",
        )
    achieved, desired = parts[ACHIEVED], parts[DESIRED]
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise SpaceError(
            f"achieved_goal is {achieved} and desired_goal {desired}; her puts one in the place "
            "of the other.",
            "Give both the same shape and dtype.",
        )
