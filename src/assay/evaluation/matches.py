"""Matches of two players of a board game: the same openings from both seats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.seeding import derive_rng
from assay.envs.boards.players import Player, pick
from assay.evaluation.ratings import wilson
from assay.functional.boards import BoardGame

OUTCOMES = ("wins", "draws", "losses")


@dataclass(frozen=True, slots=True)
class Match:
    """How games ended for the first of two players.

    Attributes:
        first: Wins, draws and losses of the games in which it moved first.
        second: Those in which it moved second.
        distinct: How many different games there were: players who always do the same repeat them.
    """

    first: tuple[int, int, int]
    second: tuple[int, int, int]
    distinct: int

    @property
    def tally(self) -> tuple[int, int, int]:
        """Return wins, draws and losses from both seats."""
        wins, draws, losses = (a + b for a, b in zip(self.first, self.second, strict=True))
        return wins, draws, losses

    @property
    def games(self) -> int:
        """Return how many games were played."""
        return sum(self.tally)

    @property
    def score(self) -> float:
        """Return the mean of 1 for a win, 1/2 for a draw and 0 for a loss."""
        wins, draws, _ = self.tally
        return (wins + draws / 2) / self.games

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with shares and their 95 % intervals (Wilson)."""
        shares = {}
        for name, count in zip(OUTCOMES, self.tally, strict=True):
            found = wilson(count, self.games)
            shares[name] = {
                "count": count, "share": found.point, "low": found.low, "high": found.high,
            }  # fmt: skip
        seats = {"first": self.first, "second": self.second}
        by_seat = {s: dict(zip(OUTCOMES, t, strict=True)) for s, t in seats.items()}
        return {
            "games": self.games, "score": self.score, **shares, "by_seat": by_seat,
            "distinct_games": self.distinct,
        }  # fmt: skip


def play_match(
    game: BoardGame, one: Player, two: Player, *, games: int, seed: int, opening: int | None = None
) -> Match:
    """Play games of `one` against `two`, all at the same time.

    Games come in pairs that begin with the same random moves, and in which each has the first seat
    once; an odd number is rounded up.

    Args:
        game: What is played.
        one: Whose result is returned.
        two: The other one.
        games: How many.
        seed: Fixes openings and the players' random numbers.
        opening: Random moves before the players begin; None: as many as the game suggests.

    Raises:
        ConfigError: A game could end within the opening.
    """
    opening = game.opening if opening is None else opening
    if not 0 <= opening < 2 * game.in_row - 1:
        raise ConfigError(
            f"opening={opening}: in {game.name} a game may be over then.",
            f"Use 0 to {2 * game.in_row - 2}.",
        )
    pairs = -(-games // 2)
    rng = derive_rng(seed, "match")
    draws = rng.random((game.cells, 2 * pairs))
    draws[:opening, pairs:] = draws[:opening, :pairs]
    begins = np.arange(2 * pairs) < pairs  # where `one` has the first seat
    boards, going = game.initial(2 * pairs), np.arange(2 * pairs)
    result = np.zeros(2 * pairs, np.int64)  # 1 where `one` won, -1 where it lost
    record = np.full((game.cells, 2 * pairs), -1)
    for ply in range(game.cells):
        if not len(going):
            break
        own = begins[going] == (ply % 2 == 0)  # where it is the turn of `one`
        moves = _moves(game, (one, two), boards, own, draws[ply, going], ply < opening)
        record[ply, going] = moves
        after = game.play(boards, moves)
        result[going[after.won]] = np.where(own[after.won], 1, -1)
        boards, going = after.boards[~after.over], going[~after.over]
    seats = [
        tuple(int((result[rows] == sign).sum()) for sign in (1, 0, -1))
        for rows in (begins, ~begins)
    ]
    distinct = len({(bool(b), *line) for b, line in zip(begins, record.T.tolist(), strict=True)})
    return Match(seats[0], seats[1], distinct)  # type: ignore[arg-type]


def play_all_replies(game: BoardGame, player: Player, *, first: bool) -> tuple[int, int, int]:
    """Return wins, draws and losses of a deterministic player against every way to reply.

    For small games: all lines of play are followed. Who loses none of them cannot be beaten.
    """
    boards, own = game.initial(1), first
    wins = draws = losses = 0
    while len(boards):
        if own:
            moves = player.choose(boards, np.zeros(len(boards)))
        else:
            rows, moves = np.nonzero(game.legal(boards))
            boards = boards[rows]
        after = game.play(boards, moves)
        won = int(after.won.sum())
        wins, losses = (wins + won, losses) if own else (wins, losses + won)
        draws += int(after.over.sum()) - won
        boards, own = after.boards[~after.over], not own
    return wins, draws, losses


def _moves(
    game: BoardGame,
    players: tuple[Player, Player],
    boards: NDArray[np.int8],
    own: NDArray[np.bool_],
    draws: NDArray[np.float64],
    at_random: bool,
) -> NDArray[np.int64]:
    legal = game.legal(boards)
    if at_random:
        return pick(legal, draws)
    moves = np.zeros(len(boards), np.int64)
    for player, rows in zip(players, (own, ~own), strict=True):
        if rows.any():
            moves[rows] = player.choose(boards[rows], draws[rows])
    if not legal[np.arange(len(moves)), moves].all():
        raise ConfigError(f"A player chose a move that is not legal in {game.name}.")
    return moves
