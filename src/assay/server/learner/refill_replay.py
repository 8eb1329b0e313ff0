"""A replay that is filled again from a log, and whose rewards may come late."""

from __future__ import annotations

import numpy as np

from assay.buffers.replay import ReplayBuffer
from assay.core.types import State


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
