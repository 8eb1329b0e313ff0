"""Kuhn poker: one card each of a deck of three, one bet.

Kuhn 1950. Both put 1 into the pot and get one of J, Q and K. In turn they pass or bet 1 more; a
bet is answered by a pass, which folds, or a bet, which calls. The higher card wins the pot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.envs.games.base import Game, History
from assay.functional.games.tree import CHANCE, TERMINAL

_CARDS = "JQK"
_MOVES = "pb"  # pass, bet
_OVER = {"pp", "bp", "bb", "pbp", "pbb"}


@dataclass(frozen=True, slots=True)
class _Moment(History):
    cards: tuple[int, ...] = ()
    moves: str = ""

    @property
    def player(self) -> int:
        if len(self.cards) < 2:
            return CHANCE
        return TERMINAL if self.moves in _OVER else len(self.moves) % 2

    def legal_actions(self) -> Sequence[int]:
        if len(self.cards) < 2:
            return [card for card in range(3) if card not in self.cards]
        return (0, 1)

    def chance_probabilities(self) -> Sequence[float]:
        left = 3 - len(self.cards)
        return [1.0 / left] * left

    def child(self, action: int) -> History:
        if len(self.cards) < 2:
            return _Moment((*self.cards, action))
        return _Moment(self.cards, self.moves + _MOVES[action])

    def information(self) -> str:
        return _CARDS[self.cards[self.player]] + self.moves

    def information_vector(self) -> Sequence[float]:
        """Return the seat (2), the card (3) and three moves, each as one of two (6)."""
        vector = [0.0] * 11
        vector[self.player] = 1.0
        vector[2 + self.cards[self.player]] = 1.0
        for place, move in enumerate(self.moves):
            vector[5 + 2 * place + _MOVES.index(move)] = 1.0
        return vector

    def returns(self) -> Sequence[float]:
        first = self.cards[0] > self.cards[1]
        if self.moves.endswith("bp"):  # whoever passed after a bet has folded
            first = self.moves == "bp"
        won = 2.0 if self.moves.endswith("bb") else 1.0
        return (won, -won) if first else (-won, won)


class KuhnPoker(Game):
    """Kuhn poker for two; its value for the first player is -1/18."""

    name = "kuhn_poker"
    num_players = 2
    action_names = ("pass", "bet")
    vector_size = 11

    def start(self) -> History:
        """Return the moment before cards are dealt."""
        return _Moment()
