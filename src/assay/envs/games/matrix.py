"""Matrix games: everybody chooses once, and nobody sees what the others chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.core.errors import EnvError
from assay.envs.games.base import Game, History
from assay.functional.games.tree import TERMINAL, Floats


class MatrixGame(Game):
    """A normal-form game, played one after the other behind a screen.

    Args:
        name: What it is called.
        table: [P, A, ..., A] what each player gets for every joint action.
        action_names: What actions are called.

    Raises:
        EnvError: The table has another shape, or numbers that are not finite.
    """

    def __init__(self, name: str, table: Any, action_names: Sequence[str] | None = None) -> None:
        self.name = name
        self.table: Floats = np.asarray(table, np.float64)
        shape = self.table.shape
        players = shape[0] if shape else 0
        if players < 1 or len(shape) != players + 1 or len(set(shape[1:])) != 1:
            raise EnvError(
                f"The pay-off table of '{name}' has the shape {shape}.",
                "Expected [players, actions, ..., actions], with as many actions for everybody.",
            )
        if not np.isfinite(self.table).all():
            raise EnvError(f"The pay-off table of '{name}' has a number that is not finite.")
        self.num_players, self.vector_size = players, players
        self.action_names = tuple(action_names or (str(i) for i in range(shape[1])))
        if len(self.action_names) != shape[1]:
            raise EnvError(
                f"The game '{name}' has {shape[1]} actions and {len(self.action_names)} names.",
                "Give one name for each action.",
            )

    def start(self) -> History:
        """Return the moment before anybody has chosen."""
        return _Moment(self)


@dataclass(frozen=True, slots=True)
class _Moment(History):
    game: MatrixGame
    chosen: tuple[int, ...] = ()

    @property
    def player(self) -> int:
        return TERMINAL if len(self.chosen) == self.game.num_players else len(self.chosen)

    def legal_actions(self) -> Sequence[int]:
        return range(len(self.game.action_names))

    def chance_probabilities(self) -> Sequence[float]:
        raise NotImplementedError("Chance does nothing in a matrix game.")

    def child(self, action: int) -> History:
        return _Moment(self.game, (*self.chosen, action))

    def information(self) -> str:
        return f"player {self.player}"

    def information_vector(self) -> Sequence[float]:
        return [float(player == self.player) for player in range(self.game.num_players)]

    def returns(self) -> Sequence[float]:
        return [float(own[self.chosen]) for own in self.game.table]


def _zero_sum(name: str, payoff: Any, names: Sequence[str]) -> MatrixGame:
    first = np.asarray(payoff, np.float64)
    return MatrixGame(name, [first, -first], names)


def _symmetric(name: str, payoff: Any, names: Sequence[str]) -> MatrixGame:
    first = np.asarray(payoff, np.float64)
    return MatrixGame(name, [first, first.T], names)


_RPS = ("rock", "paper", "scissors")
MATRIX_GAMES = {
    game.name: game
    for game in (
        _zero_sum("matching_pennies", [[1, -1], [-1, 1]], ("heads", "tails")),
        _zero_sum("rock_paper_scissors", [[0, -1, 1], [1, 0, -1], [-1, 1, 0]], _RPS),
        # Rock against scissors counts double; the equilibrium is (1/4, 1/2, 1/4).
        _zero_sum("biased_rock_paper_scissors", [[0, -1, 2], [1, 0, -1], [-2, 1, 0]], _RPS),
        _symmetric("prisoners_dilemma", [[3, 0], [5, 1]], ("cooperate", "defect")),
        _symmetric("stag_hunt", [[4, 0], [3, 2]], ("stag", "hare")),
        _symmetric("chicken", [[0, -1], [1, -10]], ("swerve", "straight")),
        MatrixGame(
            "battle_of_the_sexes", [[[3, 0], [0, 2]], [[2, 0], [0, 3]]], ("opera", "football")
        ),
    )
}
