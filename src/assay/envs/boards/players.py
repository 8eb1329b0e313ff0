"""Players of board games that need no learning: random, perfect, and minimax of some depth.

A player is a function of boards and of one random number for each, so it has no state: the same
boards and numbers give the same moves, however many there are.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.functional.boards import BoardGame, Boards, Moves

Draws = NDArray[np.float64]

RANDOM, PERFECT, MINIMAX = "random", "perfect", "minimax"
MOST_DEPTH = 12
SOLVABLE = 9  # cells of the largest board that is solved in a moment
_WIN = 1_000_000
# What a line is worth that holds so many pieces of one side alone.
_WORTH = (0, 1, 4, 16, 64, 256, 1024)


class Player(Protocol):
    """Who chooses moves."""

    def choose(self, boards: Boards, draws: Draws) -> Moves:
        """Return legal moves [N] for boards [N, cells] that are not over.

        `draws` [N] are uniform in [0, 1), for a player that does not always do the same.
        """


class RandomPlayer:
    """Takes any legal move."""

    def __init__(self, game: BoardGame) -> None:
        self.game = game

    def choose(self, boards: Boards, draws: Draws) -> Moves:
        """Return legal moves [N]."""
        return pick(self.game.legal(boards), draws)


class PerfectPlayer:
    """Takes any of the best moves, by a table of all positions."""

    def __init__(self, game: BoardGame) -> None:
        if game.cells > SOLVABLE:
            raise EnvError(
                f"There is no perfect player of {game.name}: only small games are solved here.",
                f"Use {MINIMAX}:4 or another depth.",
            )
        self.game = game

    def choose(self, boards: Boards, draws: Draws) -> Moves:
        """Return best moves [N]."""
        table = solve(self.game)
        best = np.stack([table[board.tobytes()][1] for board in np.ascontiguousarray(boards)])
        return pick(best, draws)


class MinimaxPlayer:
    """Looks `depth` moves ahead (alpha-beta), and takes any of the moves that are best then.

    A win counts more the sooner it comes, and a loss less the later. Positions at the full depth
    are judged by the lines that only one side has pieces in.
    """

    def __init__(self, game: BoardGame, depth: int) -> None:
        if not 1 <= depth <= MOST_DEPTH:
            raise EnvError(f"{MINIMAX}:{depth}: the depth is from 1 to {MOST_DEPTH}.")
        self.game, self.depth = game, depth
        self._best = lru_cache(2**16)(self._search)

    def choose(self, boards: Boards, draws: Draws) -> Moves:
        """Return best moves [N]."""
        return pick(np.stack([self.best(board) for board in boards]), draws)

    def best(self, board: Boards) -> NDArray[np.bool_]:
        """Return which moves are best by what it sees, [actions]."""
        return self._best(*(_bits(board == side) for side in (1, -1)))

    def _search(self, own: int, other: int) -> NDArray[np.bool_]:
        rules = _bit_rules(self.game)
        scores: dict[int, int] = {}
        # Moves that are as good as the best are wanted exactly, so only worse ones may be cut.
        best = -2 * _WIN
        for move, bit in rules.moves(own | other):
            scores[move] = -rules.value(other, own | bit, bit, self.depth - 1, -2 * _WIN, 1 - best)
            best = max(best, scores[move])
        return np.array([scores.get(move) == best for move in range(self.game.actions)])


def make_player(game: BoardGame, name: str) -> Any:
    """Return a built-in player: random, perfect, or minimax:DEPTH.

    Raises:
        EnvError: There is no such player of this game.
    """
    kind, _, depth = name.partition(":")
    if kind == MINIMAX and depth.isdigit():
        return MinimaxPlayer(game, int(depth))
    if name == RANDOM:
        return RandomPlayer(game)
    if name == PERFECT:
        return PerfectPlayer(game)
    raise EnvError(f"There is no player '{name}'.", f"Use {RANDOM}, {PERFECT} or {MINIMAX}:DEPTH.")


def is_player(name: str) -> bool:
    """Return whether a name is that of a built-in player, by its form."""
    kind, _, depth = name.partition(":")
    return name in (RANDOM, PERFECT) or (kind == MINIMAX and depth.isdigit())


def pick(allowed: NDArray[np.bool_], draws: Draws) -> Moves:
    """Return one of the moves that are allowed in each row, by a number in [0, 1).

    Example:
        >>> pick(np.array([[True, False, True]] * 2), np.array([0.2, 0.7]))
        array([0, 2])
    """
    counts = allowed.cumsum(1)
    return np.asarray((counts > np.floor(draws * counts[:, -1])[:, None]).argmax(1))


@cache
def solve(game: BoardGame) -> dict[bytes, tuple[int, NDArray[np.bool_]]]:
    """Return of every position that can be reached its value to who is to move, and best moves.

    Positions are the bytes of int8 boards. A position that is over has no best move.
    """
    table: dict[bytes, tuple[int, NDArray[np.bool_]]] = {}

    def value(board: Boards, over: bool, lost: bool) -> int:
        key = board.tobytes()
        if key not in table:
            best = np.zeros(game.actions, np.bool_)
            worth = -1 if lost else 0
            if not over:
                moves = np.flatnonzero(game.legal(board[None])[0])
                after = game.play(np.repeat(board[None], len(moves), 0), moves)
                parts = zip(after.boards, after.over, after.won, strict=True)
                worths = [-value(*part) for part in parts]
                worth = max(worths)
                best[moves] = np.array(worths) == worth
            table[key] = worth, best
        return table[key][0]

    value(game.initial(1)[0], False, False)
    return table


# ---------------------------------------------------------------------- minimax on bits


class _BitRules:
    """The rules on two whole numbers, whose bit `c` says who has cell `c`."""

    def __init__(self, game: BoardGame) -> None:
        self.game = game
        masks = [sum(1 << int(cell) for cell in line) for line in game.lines]
        self.lines = masks
        self.full = (1 << game.cells) - 1
        self.through = [[m for m in masks if m >> cell & 1] for cell in range(game.cells)]
        # The middle first, where moves tend to be better: more is cut.
        middle = (game.rows - 1) / 2, (game.columns - 1) / 2
        if game.gravity:
            order = sorted(range(game.columns), key=lambda c: abs(c - middle[1]))
            self.columns = [
                (c, [1 << r * game.columns + c for r in reversed(range(game.rows))]) for c in order
            ]
        else:
            far = [abs(c // game.columns - middle[0]) + abs(c % game.columns - middle[1])
                   for c in range(game.cells)]  # fmt: skip
            self.columns = [(c, [1 << c]) for c in sorted(range(game.cells), key=far.__getitem__)]

    def moves(self, taken: int) -> list[tuple[int, int]]:
        """Return legal moves, each with the bit that it sets."""
        found = []
        for move, bits in self.columns:
            for bit in bits:
                if not taken & bit:
                    found.append((move, bit))
                    break
        return found

    def value(self, own: int, other: int, last: int, depth: int, alpha: int, beta: int) -> int:
        """Return what a position is worth to who is to move, after the opponent set bit `last`."""
        for line in self.through[last.bit_length() - 1]:
            if other & line == line:
                return -_WIN - depth  # a loss that is nearer is worse
        if own | other == self.full:
            return 0
        if depth == 0:
            return self.judge(own, other)
        best = -2 * _WIN
        for _, bit in self.moves(own | other):
            score = -self.value(other, own | bit, bit, depth - 1, -beta, -alpha)
            if score > best:
                best = score
                if best >= beta:
                    break
                alpha = max(alpha, best)
        return best

    def judge(self, own: int, other: int) -> int:
        """Return a guess of what a position is worth."""
        total = 0
        for line in self.lines:
            mine, theirs = own & line, other & line
            if not theirs:
                total += _WORTH[mine.bit_count()]
            elif not mine:
                total -= _WORTH[theirs.bit_count()]
        return total


_bit_rules = cache(_BitRules)


def _bits(cells: NDArray[np.bool_]) -> int:
    """Return a whole number whose bit `c` is set where cell `c` is."""
    return int.from_bytes(np.packbits(cells, bitorder="little").tobytes(), "little")
