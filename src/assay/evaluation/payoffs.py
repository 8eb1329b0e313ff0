"""Pay-off tables: what strategies get against each other, computed, played or read from a file.

A CSV file is square: a header with the names of strategies, and for each of them a row with its
name and what it gets against each. It is a symmetric game of two. A JSON file is the same
(`{"strategies": ["a", "b"], "payoffs": [[0, 1], [-1, 0]]}`), or has a table for each player
(`"payoffs": [table of player 0, table of player 1]`, with `strategies` a list for each player).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import DataError
from assay.core.seeding import derive_rng
from assay.envs.games.base import Game, Player, moved_on
from assay.functional.games.psro import payoff_table
from assay.functional.games.tree import TERMINAL, Floats, GameTree


@dataclass(frozen=True, slots=True, eq=False)
class PayoffTable:
    """What everybody gets for every choice of strategies.

    Attributes:
        name: What it is of.
        strategies: The names of each player's strategies.
        table: [P, K_1, ..., K_P].
        errors: The standard errors of `table` where it was estimated by playing, or None.
    """

    name: str
    strategies: tuple[tuple[str, ...], ...]
    table: Floats
    errors: Floats | None = None

    def profile_name(self, profile: Sequence[int]) -> str:
        """Return what a choice of strategies is called; one number stands for one population."""
        names = [own[k] for own, k in zip(self.strategies, profile, strict=False)]
        return " / ".join(names)


def computed_payoffs(tree: GameTree, strategies: Mapping[str, Floats]) -> PayoffTable:
    """Return exactly what strategies [I, A] get against each other, in every seat."""
    own = list(strategies.values())
    names = (tuple(strategies),) * tree.num_players
    return PayoffTable(tree.name, names, payoff_table(tree, [own] * tree.num_players))


def both_seats(table: PayoffTable) -> PayoffTable:
    """Return a game of two in which every pair plays in both seats: symmetric, one population.

    Both players must have the same strategies.
    """
    first = (table.table[0] + table.table[1].T) / 2
    return PayoffTable(table.name, table.strategies, np.stack([first, first.T]))


def played_payoffs(
    game: Game, players: Mapping[str, Player], *, episodes: int, seed: int = 0
) -> PayoffTable:
    """Estimate what players get against each other, for games too large to write out.

    Args:
        game: What they play.
        players: Who plays, by name.
        episodes: How often each choice of players meets.
        seed: Fixes all of it.
    """
    everybody, shape = list(players.values()), (len(players),) * game.num_players
    mean = np.zeros((game.num_players, *shape))
    error = np.zeros_like(mean)
    rng = derive_rng(seed, "payoffs")
    for choice in np.ndindex(*shape):
        seated = [everybody[k] for k in choice]
        got = np.array([play_game(game, seated, rng) for _ in range(episodes)])
        mean[:, *choice] = got.mean(axis=0)
        error[:, *choice] = got.std(axis=0, ddof=min(1, episodes - 1)) / np.sqrt(episodes)
    return PayoffTable(game.name, (tuple(players),) * game.num_players, mean, error)


def play_game(game: Game, players: Sequence[Player], rng: np.random.Generator) -> Sequence[float]:
    """Play once and return what each player got."""
    moment = game.start()
    while moment.player != TERMINAL:
        _, moment = moved_on(moment, players[max(0, moment.player)], rng)
    return moment.returns()


def read_payoffs(path: Path) -> PayoffTable:
    """Read a pay-off table from a CSV or JSON file.

    Raises:
        DataError: It cannot be read, is not square, or holds something else than numbers.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from None
    if path.suffix.lower() == ".csv":
        return _from_csv(text, path)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"'{path}' is not JSON: {error}.") from None
    return _from_json(content, path)


def _from_csv(text: str, path: Path) -> PayoffTable:
    rows = [row for row in csv.reader(text.splitlines()) if any(cell.strip() for cell in row)]
    names = tuple(cell.strip() for cell in rows[0][1:]) if rows else ()
    labels = tuple(row[0].strip() for row in rows[1:])
    widths = {len(row) - 1 for row in rows}
    if not names or len(labels) != len(names) or widths != {len(names)}:
        raise DataError(
            f"The pay-off table '{path}' has {len(labels)} rows and {len(names)} columns, or rows "
            "of other lengths; it must be square.",
            "Give a header with the names of strategies, and a row for each of them.",
        )
    if labels != names:
        raise DataError(
            f"The rows of '{path}' are {', '.join(labels)}, and its columns {', '.join(names)}.",
            "Give rows and columns the same names in the same order.",
        )
    own = _names(list(names), len(names), path)
    return _symmetric(path, own, _numbers([row[1:] for row in rows[1:]], path))


def _from_json(content: Any, path: Path) -> PayoffTable:
    if not isinstance(content, Mapping) or "payoffs" not in content:
        raise DataError(
            f"'{path}' has no entry 'payoffs'.",
            "Expected {'strategies': [names], 'payoffs': [[numbers]]}.",
        )
    if "players" in content:
        content = _of_league(content, path)
    values, names = _numbers(content["payoffs"], path), content.get("strategies")
    if values.ndim == 2:
        if values.shape[0] != values.shape[1]:
            raise DataError(
                f"The pay-off table '{path}' has the shape {values.shape}; it must be square.",
                "Give what each strategy gets against each, or one table for each player.",
            )
        own = _names(names, values.shape[0], path)
        return _symmetric(path, own, values)
    if values.ndim < 2 or len(values) != values.ndim - 1:
        raise DataError(
            f"The pay-offs of '{path}' have the shape {values.shape}.",
            "Expected a square table, or one table for each player: [players, K, ..., K].",
        )
    each = names if isinstance(names, list) and names and isinstance(names[0], list) else None
    if names is not None and (each is None or len(each) != len(values)):
        raise DataError(f"'strategies' of '{path}' must be a list of names for each player.")
    lists = [None] * len(values) if each is None else each
    known = tuple(
        _names(own, size, path) for own, size in zip(lists, values.shape[1:], strict=True)
    )
    return PayoffTable(path.stem, known, values)


def _of_league(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the table of a league with a win as 1 and a loss as -1; nobody gains on itself."""
    try:
        names = [str(player["name"]) for player in content["players"]]
        shares = np.array(content["payoffs"], np.float64).reshape(len(names), len(names))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{path}' is not the table of a league: {error!r}.") from None
    np.fill_diagonal(shares, 0.5)
    for i, k in np.argwhere(np.isnan(shares)).tolist():
        raise DataError(
            f"'{names[i]}' and '{names[k]}' of '{path}' have not met.",
            f"Let them play: assay league play {path.parent}",
        )
    return {"strategies": names, "payoffs": 2.0 * shares - 1.0}


def _symmetric(path: Path, names: tuple[str, ...], first: Floats) -> PayoffTable:
    return PayoffTable(path.stem, (names, names), np.stack([first, first.T]))


def _numbers(values: Any, path: Path) -> Floats:
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"The pay-off table '{path}' holds something that is not a number, or rows of "
            "different lengths.",
            "Give a number for every pair of strategies.",
        ) from None
    for place in np.argwhere(~np.isfinite(found)).tolist():
        raise DataError(
            f"The pay-off table '{path}' holds {found[tuple(place)]} at {place}, counted from 0.",
            "Give a finite number for every pair of strategies.",
        )
    return found


def _names(given: Any, count: int, path: Path) -> tuple[str, ...]:
    if given is None:
        return tuple(f"strategy {k}" for k in range(count))
    if not isinstance(given, list) or len(given) != count or len(set(map(str, given))) != count:
        raise DataError(
            f"'{path}' has {count} strategies and the names {given!r}.",
            "Give each strategy one name of its own.",
        )
    return tuple(map(str, given))
