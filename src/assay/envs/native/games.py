"""Matrix games of two agents, and the two-step game of QMIX, batched in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from assay.envs.arguments import require_integer
from assay.envs.native.team import NativeTeam, SingleTeam

_FOREVER = 2**62  # these games end by themselves

# What both get for the actions of the first (row) and the second (column).
CLIMBING = ((11, -30, 0), (-30, 7, 6), (0, 0, 5))  # Claus and Boutilier (1998)
STATE_2A = ((7, 7), (7, 7))
STATE_2B = ((0, 1), (1, 8))
# What each gets, [first's action, second's action, agent]: to stay silent (0) or to betray (1).
PRISONERS = (((-1, -1), (-3, 0)), ((0, -3), (-2, -2)))


class TwoStep(NativeTeam):
    """The two-step game of QMIX (arXiv:1803.11485, section 5).

    In the first step the first agent chooses the game that both play in the second: in one of them
    both get 7, whatever they do; in the other 8 if both take their second action, 1 if one of them
    does and 0 else. Values that add up over agents cannot represent the second game, and choose the
    first. Both agents see which of the three states they are in.
    """

    def __init__(self, num_envs: int = 1, max_episode_steps: int = _FOREVER) -> None:
        agents = {f"agent_{i}": (3, Discrete(2)) for i in range(2)}
        super().__init__(num_envs, max_episode_steps, agents, variables=1, state=3)
        self._payoff = np.array([STATE_2A, STATE_2B], np.float64)

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        return np.zeros(1)

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        place = self._variables[:, 0].astype(np.int64)  # 0: the choice, 1: state 2A, 2: state 2B
        ended = place > 0
        paid = self._payoff[np.maximum(place - 1, 0), actions[:, 0], actions[:, 1]] * ended
        self._variables[:, 0] = np.where(ended, place, 1 + actions[:, 0])
        return np.repeat(paid[:, None], 2, 1), ended

    def _look(self, variables: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        state = np.eye(3, dtype=np.float32)[variables[:, 0].astype(np.int64)]
        return np.repeat(state[:, None], 2, 1), state


class MatrixGame(NativeTeam):
    """Two agents choose at once, `rounds` times in an episode, and see what was chosen last.

    An agent sees its own last action and the other's, each one-hot; zeros in the first round.

    Args:
        payoff: What each gets, [first's action, second's action, agent].
        num_envs: Copies.
        max_episode_steps: Truncates episodes that have more rounds.
        rounds: After which the episode ends.
    """

    def __init__(
        self,
        payoff: NDArray[Any],
        num_envs: int = 1,
        max_episode_steps: int = _FOREVER,
        rounds: int = 1,
    ) -> None:
        require_integer("rounds", rounds)
        self.payoff, self.rounds = np.asarray(payoff, np.float64), rounds
        self.choices = self.payoff.shape[:2]
        seen = sum(self.choices)
        agents = {f"agent_{i}": (seen, Discrete(n)) for i, n in enumerate(self.choices)}
        # The last actions, -1 before the first round, and how many rounds there were.
        super().__init__(num_envs, max_episode_steps, agents, variables=3)

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        return np.array([-1.0, -1.0, 0.0])

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        self._variables[:, :2] = actions
        self._variables[:, 2] += 1
        return self.payoff[actions[:, 0], actions[:, 1]], self._variables[:, 2] >= self.rounds

    def _look(self, variables: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        last = variables[:, :2].astype(np.int64)
        hot = [
            np.eye(n + 1, n, -1, dtype=np.float32)[last[:, i] + 1]
            for i, n in enumerate(self.choices)
        ]
        return np.stack([np.concatenate(hot, 1), np.concatenate(hot[::-1], 1)], 1), None


def _common(table: Any) -> NDArray[Any]:
    return np.repeat(np.asarray(table, np.float64)[:, :, None], 2, 2)


class Climbing(MatrixGame):
    """The climbing game: the best pair of actions lies next to the worst."""

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = _FOREVER, rounds: int = 1
    ) -> None:
        super().__init__(_common(CLIMBING), num_envs, max_episode_steps, rounds)


class Penalty(MatrixGame):
    """The penalty game: two best pairs, and `penalty` for who mixes them up."""

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = _FOREVER,
        rounds: int = 1,
        penalty: float = -100.0,
    ) -> None:
        table = ((10, 0, penalty), (0, 2, 0), (penalty, 0, 10))
        super().__init__(_common(table), num_envs, max_episode_steps, rounds)


class PrisonersDilemma(MatrixGame):
    """The prisoner's dilemma: to betray pays for each, and costs both."""

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = _FOREVER, rounds: int = 10
    ) -> None:
        super().__init__(np.array(PRISONERS), num_envs, max_episode_steps, rounds)


def make_two_step() -> SingleTeam:
    """Return one `TwoStep`."""
    return SingleTeam(TwoStep(1))


def make_climbing(rounds: int = 1) -> SingleTeam:
    """Return one `Climbing`."""
    return SingleTeam(Climbing(1, rounds=rounds))


def make_penalty(rounds: int = 1, penalty: float = -100.0) -> SingleTeam:
    """Return one `Penalty`."""
    return SingleTeam(Penalty(1, rounds=rounds, penalty=penalty))


def make_prisoners_dilemma(rounds: int = 10) -> SingleTeam:
    """Return one `PrisonersDilemma`."""
    return SingleTeam(PrisonersDilemma(1, rounds=rounds))
