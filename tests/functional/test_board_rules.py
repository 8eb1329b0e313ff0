"""Batched board games against a slow implementation that shares nothing with them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from assay.core.errors import SpaceError
from assay.functional.boards import CONNECT_FOUR, GAMES, TICTACTOE, BoardGame, game_of

WIDE = BoardGame("wide", 3, 4, 3)  # not square: two symmetries fewer
both = pytest.mark.parametrize("game", [*GAMES.values(), WIDE], ids=lambda game: game.name)


class SlowGame:
    """One game on a dict of cells, with absolute players 0 and 1."""

    def __init__(self, game: BoardGame) -> None:
        self.game, self.pieces, self.turn = game, {}, 0

    def legal(self) -> list[int]:
        rows, columns = self.game.rows, self.game.columns
        if self.game.gravity:
            return [c for c in range(columns) if (0, c) not in self.pieces]
        return [r * columns + c for r in range(rows) for c in range(columns)
                if (r, c) not in self.pieces]  # fmt: skip

    def play(self, move: int) -> tuple[bool, bool]:
        row, column = divmod(move, self.game.columns)
        if self.game.gravity:
            column = move
            row = max(r for r in range(self.game.rows) if (r, column) not in self.pieces)
        self.pieces[row, column] = self.turn
        won = any(self.run(row, column, *way) >= self.game.in_row
                  for way in ((0, 1), (1, 0), (1, 1), (1, -1)))  # fmt: skip
        self.turn = 1 - self.turn
        return won, won or len(self.pieces) == self.game.rows * self.game.columns

    def run(self, row: int, column: int, down: int, right: int) -> int:
        owner, length = self.pieces[row, column], 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while self.pieces.get((r, c)) == owner:
                length, r, c = length + 1, r + sign * down, c + sign * right
        return length

    def board(self) -> np.ndarray:
        grid = np.zeros((self.game.rows, self.game.columns), np.int8)
        for place, owner in self.pieces.items():
            grid[place] = 1 if owner == self.turn else -1
        return grid.ravel()


@both
def test_random_games_are_those_of_the_slow_implementation(game: BoardGame) -> None:
    rng = np.random.default_rng(5)
    count = 150
    slow = [SlowGame(game) for _ in range(count)]
    boards, going = game.initial(count), np.arange(count)
    wins = draws = 0
    while len(going):
        legal = game.legal(boards)
        for row, n in enumerate(going):
            assert np.flatnonzero(legal[row]).tolist() == slow[n].legal()
        moves = np.array([rng.choice(slow[n].legal()) for n in going])
        before = boards.copy()
        after = game.play(boards, moves)
        np.testing.assert_array_equal(boards, before)  # what was given is not written to
        expected = [slow[n].play(move) for n, move in zip(going, moves, strict=True)]
        assert after.won.tolist() == [won for won, _ in expected]
        assert after.over.tolist() == [over for _, over in expected]
        np.testing.assert_array_equal(after.boards, [slow[n].board() for n in going])
        over, worth = game.ended(after.boards)
        np.testing.assert_array_equal(over, after.over)
        np.testing.assert_array_equal(worth, -after.won.astype(np.float32))
        wins += int(after.won.sum())
        draws += int((after.over & ~after.won).sum())
        boards, going = after.boards[~after.over], going[~after.over]
    assert wins + draws == count and wins and (draws or game is CONNECT_FOUR)


@both
def test_two_moves_ahead_as_by_playing_them(game: BoardGame) -> None:
    rng, seen = np.random.default_rng(6), {1: 0, 0: 0, -1: 0}
    boards = game.initial(60)
    while len(boards):
        worth, moves = game.look_ahead(boards)
        for board, value, chosen in zip(boards, worth, moves, strict=True):
            legal = np.flatnonzero(game.legal(board[None])[0])
            after = game.play(np.repeat(board[None], len(legal), 0), legal)
            wins, blocks = set(legal[after.won]), set(_wins(game, -board))
            safe = {m for m, one in zip(legal, after.boards, strict=True) if not _wins(game, one)}
            expected = wins or safe or blocks or set(legal)
            assert set(np.flatnonzero(chosen)) == expected
            assert value == (1 if wins else 0 if safe else -1)
            seen[int(value)] += 1
        after = game.play(boards, np.array([rng.choice(np.flatnonzero(m)) for m in moves]))
        boards = after.boards[~after.over]
    assert min(seen.values()) > 10, seen


def _wins(game: BoardGame, board: np.ndarray) -> list[int]:
    """Return the moves with which who is to move wins."""
    legal = np.flatnonzero(game.legal(board[None])[0])
    return legal[game.play(np.repeat(board[None], len(legal), 0), legal).won].tolist()


@both
def test_a_turned_game_is_the_same_game(game: BoardGame) -> None:
    cells, actions = game.symmetries
    assert len(cells) == (2 if game.gravity else 8 if game.rows == game.columns else 4)
    assert len(np.unique(cells, axis=0)) == len(cells)
    np.testing.assert_array_equal(cells[0], np.arange(game.cells))
    rng = np.random.default_rng(3)
    for s in range(len(cells)):
        boards = game.initial(60)
        while len(boards):
            turned = np.ascontiguousarray(boards[:, cells[s]])
            legal = game.legal(boards)
            np.testing.assert_array_equal(game.legal(turned), legal[:, actions[s]])
            there = np.array([rng.choice(np.flatnonzero(row)) for row in game.legal(turned)])
            here = actions[s][there]
            one, two = game.play(boards, here), game.play(turned, there)
            np.testing.assert_array_equal(two.boards, one.boards[:, cells[s]])
            np.testing.assert_array_equal(two.won, one.won)
            np.testing.assert_array_equal(two.over, one.over)
            boards = one.boards[~one.over]


def test_lines_are_as_many_as_the_games_are_known_to_have() -> None:
    assert len(TICTACTOE.lines) == 8
    assert len(CONNECT_FOUR.lines) == 69


@both
def test_boards_come_back_from_observations(game: BoardGame) -> None:
    rng = np.random.default_rng(1)
    boards = rng.integers(-1, 2, (5, game.cells)).astype(np.int8)
    obs = game.observe(boards)
    assert game.observation_space.contains({name: part[0] for name, part in obs.items()})
    np.testing.assert_array_equal(game.boards(obs), boards)


def test_the_game_is_found_by_its_observation() -> None:
    assert game_of(CONNECT_FOUR.observation_space, "x") is CONNECT_FOUR
    with pytest.raises(SpaceError, match=r"alphazero needs the rules.*Box") as caught:
        game_of(spaces.Box(-1.0, 1.0, (3, 3)), "alphazero")
    assert "tictactoe" in caught.value.fix
