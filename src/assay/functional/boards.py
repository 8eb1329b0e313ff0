"""Rules of board games of two players, for many boards at once, in NumPy.

A board is a row of cells, from the top left to the bottom right, as the player to move sees it: 1
is a piece of its own, -1 one of the opponent, 0 is empty. So nothing says whose turn it is, and
`play` returns boards seen from the other side. Who completes a line of `in_row` wins; a full board
without a line is a draw. All functions are pure.

An environment of such a game has observations whose entry is named after the game, beside the
action mask; `game_of` finds the rules by that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import SpaceError
from assay.core.types import ACTION_MASK, Tree

Boards = NDArray[np.int8]
Flags = NDArray[np.bool_]
Moves = NDArray[np.int64]


class Played(NamedTuple):
    """What moves lead to.

    Attributes:
        boards: [N, cells], seen by the player who moves next.
        won: [N] whether the move won.
        over: [N] whether the game has ended, won or drawn.
    """

    boards: Boards
    won: Flags
    over: Flags


class Outlook(NamedTuple):
    """What the rules alone say about the next two moves.

    Attributes:
        worth: [N] 1 where who is to move wins at once, -1 where the opponent does whatever is
            played, else 0: nothing is decided.
        moves: [N, actions] those that matter: the wins; or else those that leave the opponent no
            win, if there are any; or else blocks; or else all that are legal.
    """

    worth: NDArray[np.float32]
    moves: Flags


@dataclass(frozen=True)
class BoardGame:
    """A game of lines on a rectangle.

    Attributes:
        name: What its environment and the entry of its observations are called.
        rows: Of the board.
        columns: Of the board.
        in_row: How many pieces make a line: in a row, a column or a diagonal.
        gravity: Whether a move is a column, whose lowest empty cell is taken; else it is a cell.
        opening: How many random moves games of a match begin with, unless told otherwise.

    Example:
        >>> boards = TICTACTOE.initial(1)
        >>> for cell in (0, 3, 1, 4):
        ...     boards = TICTACTOE.play(boards, np.array([cell])).boards
        >>> TICTACTOE.play(boards, np.array([2])).won
        array([ True])
    """

    name: str
    rows: int
    columns: int
    in_row: int
    gravity: bool = False
    opening: int = 0

    @property
    def cells(self) -> int:
        """Return the size of the board, which is also the longest game."""
        return self.rows * self.columns

    @property
    def actions(self) -> int:
        """Return how many moves there are on an empty board."""
        return self.columns if self.gravity else self.cells

    @property
    def observation_space(self) -> gym.spaces.Dict:
        """Return the space of observations: the board, and which moves are legal."""
        board = gym.spaces.Box(-1.0, 1.0, (self.rows, self.columns), np.float32)
        return gym.spaces.Dict(
            {self.name: board, ACTION_MASK: gym.spaces.MultiBinary(self.actions)}
        )

    @cached_property
    def lines(self) -> NDArray[np.intp]:
        """Return the cells of every line, [lines, in_row]."""
        steps = np.arange(self.in_row)
        found = []
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            for row in range(self.rows):
                for column in range(self.columns):
                    r, c = row + down * steps, column + right * steps
                    if 0 <= r[-1] < self.rows and 0 <= c[-1] < self.columns:
                        found.append(r * self.columns + c)
        return np.array(found, np.intp)

    @cached_property
    def within(self) -> NDArray[np.float32]:
        """Return 1 where a cell is in a line, [cells, lines]."""
        return (np.arange(self.cells)[:, None, None] == self.lines).any(2).astype(np.float32)

    @cached_property
    def _lines_through(self) -> NDArray[np.intp]:
        """Return the lines through each cell, [cells, most, in_row]; some twice, to be as many."""
        through = [self.lines[(self.lines == cell).any(1)] for cell in range(self.cells)]
        most = max(map(len, through))
        return np.stack([part[np.arange(most) % len(part)] for part in through])

    @cached_property
    def symmetries(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the ways to turn and mirror a game, [S, cells] and [S, actions]; first, none.

        `boards[:, cells[s]]` is another board, on which move `a` is what `actions[s, a]` was. Where
        pieces fall, there is only the mirror.
        """
        grid = np.arange(self.cells).reshape(self.rows, self.columns)
        if self.gravity:
            columns = np.arange(self.columns)
            cells = np.stack([grid.ravel(), grid[:, ::-1].ravel()])
            return cells, np.stack([columns, columns[::-1]])
        turns = range(4) if self.rows == self.columns else (0, 2)
        turned = [np.rot90(grid, turn) for turn in turns]
        cells = np.stack([g.ravel() for one in turned for g in (one, one[:, ::-1])])
        return cells, cells

    def initial(self, count: int) -> Boards:
        """Return empty boards."""
        return np.zeros((count, self.cells), np.int8)

    def legal(self, boards: Boards) -> Flags:
        """Return which moves are possible, [N, actions]; on a board that is won, too."""
        return boards[:, : self.actions] == 0  # a column has room if its top cell is empty

    def place(self, boards: Boards, moves: Moves) -> tuple[Boards, Moves]:
        """Return boards [N, cells] after legal moves [N], as the next player sees them, and cells.

        The cells [N] are those of the new pieces. The boards that were given stay as they are.
        """
        rows, cell = np.arange(len(boards)), moves
        if self.gravity:
            pieces = boards.reshape(-1, self.rows, self.columns)[rows, :, moves] != 0
            cell = moves + self.columns * (self.rows - 1 - pieces.sum(1))
        after = np.negative(boards)
        after[rows, cell] = -1
        return after, cell

    def play(self, boards: Boards, moves: Moves) -> Played:
        """Return what legal moves [N] lead to; the boards that were given stay as they are."""
        after, cell = self.place(boards, moves)
        # Only lines through the new piece can be new.
        lines = self._lines_through[cell]  # [N, most, in_row]
        won = (after[np.arange(len(after))[:, None, None], lines] == -1).all(2).any(1)
        return Played(after, won, won | ~self.legal(after).any(1))

    def look_ahead(self, boards: Boards) -> Outlook:
        """Return what two moves decide on boards that are not over."""
        # A line that lacks one piece has a sum of in_row - 1, and that cell is its only empty one.
        sums = boards.astype(np.float32) @ self.within  # [N, lines]
        lacking = np.stack([sums, -sums]) == self.in_row - 1
        empty = boards == 0
        own, other = ((lacking.astype(np.float32) @ self.within.T) > 0) & empty  # [N, cells]
        legal = self.legal(boards)
        safe = legal
        if self.gravity:
            # A piece lands on the lowest empty cell, and then the one above it can be taken.
            grid = (-1, self.rows, self.columns)
            own, other, empty = own.reshape(grid), other.reshape(grid), empty.reshape(grid)
            lands = empty.copy()
            lands[:, :-1] &= ~empty[:, 1:]
            safe = legal & ~(lands[:, 1:] & other[:, :-1]).any(1)
            own, other = (own & lands).any(1), (other & lands).any(1)
        threats = other.sum(1)[:, None]
        safe = np.where(threats == 0, safe, safe & other & (threats == 1))
        wins, saved = own.any(1), safe.any(1)
        moves = np.where(threats > 0, other, legal)
        moves[saved], moves[wins] = safe[saved], own[wins]
        worth = np.where(wins, 1.0, np.where(saved, 0.0, -1.0)).astype(np.float32)
        return Outlook(worth, moves)

    def ended(self, boards: Boards) -> tuple[Flags, NDArray[np.float32]]:
        """Return which games are over [N], and what that is worth to who would move: -1 or 0.

        It is the opponent who moved last, so a line is the opponent's.
        """
        lost = (boards[:, self.lines] == -1).all(2).any(1)
        full = (boards[:, : self.actions] != 0).all(1)
        return lost | full, np.where(lost, -1.0, 0.0).astype(np.float32)

    def observe(self, boards: Boards) -> dict[str, NDArray[Any]]:
        """Return the observations of who is to move."""
        seen = boards.reshape(-1, self.rows, self.columns).astype(np.float32)
        return {self.name: seen, ACTION_MASK: self.legal(boards).astype(np.int8)}

    def boards(self, obs: Tree) -> Boards:
        """Return the boards that observations [N, ...] show."""
        return np.asarray(obs[self.name]).astype(np.int8).reshape(-1, self.cells)

    def text(self, board: Boards, pieces: str = "XO.") -> str:
        """Return a board as lines: who is to move, the opponent, and what is empty.

        Example:
            >>> print(TICTACTOE.text(np.array([1, -1, 0, 0, 1, 0, 0, 0, -1])))
            X O .
            . X .
            . . O
        """
        symbols = {1: pieces[0], -1: pieces[1], 0: pieces[2]}
        return "\n".join(" ".join(symbols[int(x)] for x in row) for row in self._grid(board))

    def _grid(self, board: Boards) -> Iterator[Boards]:
        return iter(board.reshape(self.rows, self.columns))


TICTACTOE = BoardGame("tictactoe", 3, 3, 3, opening=1)
CONNECT_FOUR = BoardGame("connect_four", 6, 7, 4, gravity=True, opening=2)
GAMES = {game.name: game for game in (TICTACTOE, CONNECT_FOUR)}


def game_of(space: gym.Space[Any], who: str) -> BoardGame:
    """Return the game that observations are of, for `who` needs its rules.

    Raises:
        SpaceError: It is none of `GAMES`.
    """
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {}
    for name, game in GAMES.items():
        if name in parts and parts[name].shape == (game.rows, game.columns):
            return game
    raise SpaceError(
        f"{who} needs the rules of a board game, and this environment is not one: {space}.",
        f"Use one of: {', '.join(GAMES)}.",
    )
