"""The games by name, and their trees, each of which is written out once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from assay.core.errors import EnvError, nearest
from assay.envs.games.base import Game, compile_game
from assay.envs.games.kuhn import KuhnPoker
from assay.envs.games.leduc import LeducPoker
from assay.envs.games.matrix import MATRIX_GAMES
from assay.envs.games.open_spiel import PREFIX, OpenSpielGame
from assay.functional.games.tree import GameTree

OWN = ("kuhn_poker", "leduc_poker", *MATRIX_GAMES)

ALL_SEATS = "all"  # the setting `seat` of a game whose seats are all played by agents
_SEAT = "assay.envs.games.table:make_seat"


def is_game(env_id: str) -> bool:
    """Return whether an id is that of a game."""
    return env_id in OWN or env_id.startswith(PREFIX)


def game_entry(name: str) -> dict[str, Any]:
    """Return how Gymnasium registers a game: one seat of it, or all of them."""
    table = "assay.envs.games.table:Table"
    return {"entry_point": _SEAT, "vector_entry_point": table, "kwargs": {"game": name}}


def make_game(name: str, settings: Mapping[str, Any] | None = None) -> Game:
    """Return the game of a name: one of `OWN`, or `openspiel/NAME` with its settings.

    Raises:
        EnvError: There is no such game; the nearest name is suggested.
        MissingExtraError: It is one of OpenSpiel, which is not installed.
    """
    if name.startswith(PREFIX):
        return OpenSpielGame(name, settings)
    if name not in OWN:
        raise EnvError(
            f"There is no game '{name}'. {nearest(name, OWN)}",
            f"Games: {', '.join(OWN)}, and {PREFIX}NAME.",
        )
    if settings:
        raise EnvError(f"The game '{name}' has no settings, and was given {sorted(settings)}.")
    if name in MATRIX_GAMES:
        return MATRIX_GAMES[name]
    return KuhnPoker() if name == KuhnPoker.name else LeducPoker()


def make_tree(name: str, settings: Mapping[str, Any] | None = None) -> GameTree:
    """Return a game written out as arrays.

    Raises:
        EnvError: There is no such game, or it is too large.
    """
    return _tree(name, json.dumps(settings or {}, sort_keys=True))


@lru_cache(maxsize=8)
def _tree(name: str, settings: str) -> GameTree:
    return compile_game(make_game(name, json.loads(settings)))
