"""Leduc poker: six cards, two rounds, a public card between them.

Southey et al. 2005, "Bayes' Bluff". Both put 1 into the pot and get a card; the deck has J, Q and K
twice. In a round players fold, call (or check) and raise, by 2 in the first and 4 in the second,
with at most two raises in each. After the first a card is shown. Who has a pair with it wins, else
the higher card; equal cards share. Information sets tell the two cards of a rank apart, as those of
OpenSpiel do (936 in all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.envs.games.base import Game, History
from assay.functional.games.tree import CHANCE, TERMINAL

_DECK = ("J1", "J2", "Q1", "Q2", "K1", "K2")
_MOVES = "fcr"  # fold, call, raise
_FOLD, _CALL, _RAISE = range(3)
_SIZES = (2.0, 4.0)  # of a raise, by round
_MOST_RAISES = 2
_LONGEST = 4  # actions of a round: check, raise, raise, call


@dataclass(frozen=True, slots=True)
class _Moment(History):
    cards: tuple[int, ...] = ()  # of the two players, and the public one
    rounds: tuple[str, ...] = ("",)  # the moves of each round so far

    @property
    def _dealing(self) -> bool:
        return len(self.cards) < 1 + len(self.rounds)

    @property
    def _folded(self) -> bool:
        return self.rounds[-1].endswith("f")

    @property
    def player(self) -> int:
        if self._dealing:
            return CHANCE
        if self._folded or _is_closed(self.rounds[-1]):
            return TERMINAL
        return len(self.rounds[-1]) % 2

    def legal_actions(self) -> Sequence[int]:
        if self._dealing:
            return [card for card in range(6) if card not in self.cards]
        moves = self.rounds[-1]
        fold = [_FOLD] if moves.endswith("r") else []
        more = [_RAISE] if moves.count("r") < _MOST_RAISES else []
        return [*fold, _CALL, *more]

    def chance_probabilities(self) -> Sequence[float]:
        left = 6 - len(self.cards)
        return [1.0 / left] * left

    def child(self, action: int) -> History:
        if self._dealing:
            return _Moment((*self.cards, action), self.rounds)
        moves = self.rounds[-1] + _MOVES[action]
        rounds = (*self.rounds[:-1], moves)
        if len(rounds) == 1 and _is_closed(moves):
            rounds = (moves, "")
        return _Moment(self.cards, rounds)

    def information(self) -> str:
        seen = _DECK[self.cards[self.player]] + (_DECK[self.cards[2]] if self.cards[2:] else "")
        return f"{self.player}:{seen}:{'/'.join(self.rounds)}"

    def information_vector(self) -> Sequence[float]:
        """Return the seat (2), the own (6) and the public card (6), and the moves (2 x 4 x 3)."""
        vector = [0.0] * (14 + 2 * _LONGEST * 3)
        vector[self.player] = 1.0
        vector[2 + self.cards[self.player]] = 1.0
        if self.cards[2:]:
            vector[8 + self.cards[2]] = 1.0
        for number, moves in enumerate(self.rounds):
            for place, move in enumerate(moves):
                vector[14 + 3 * (_LONGEST * number + place) + _MOVES.index(move)] = 1.0
        return vector

    def returns(self) -> Sequence[float]:
        paid = [1.0, 1.0]
        for size, moves in zip(_SIZES, self.rounds, strict=False):
            for place, move in enumerate(moves):
                if move == "c":
                    paid[place % 2] = max(paid)
                elif move == "r":
                    paid[place % 2] = max(paid) + size
        if self._folded:
            loser = (len(self.rounds[-1]) - 1) % 2
            return (-paid[0], paid[0]) if loser == 0 else (paid[1], -paid[1])
        first, second = (self._strength(player) for player in (0, 1))
        if first == second:
            return (0.0, 0.0)
        return (paid[1], -paid[1]) if first > second else (-paid[0], paid[0])

    def _strength(self, player: int) -> int:
        rank = self.cards[player] // 2
        return rank + (3 if rank == self.cards[2] // 2 else 0)


def _is_closed(moves: str) -> bool:
    """Return whether both have agreed on the stakes of a round."""
    return len(moves) > 1 and moves.endswith("c")


class LeducPoker(Game):
    """Leduc poker for two; its value for the first player is about -0.0856."""

    name = "leduc_poker"
    num_players = 2
    action_names = ("fold", "call", "raise")
    vector_size = 14 + 2 * _LONGEST * 3

    def start(self) -> History:
        """Return the moment before cards are dealt."""
        return _Moment()
