"""Games of OpenSpiel behind the same interface; the extra `openspiel` brings them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from assay.core.errors import EnvError, MissingExtraError, nearest
from assay.envs.games.base import Game, History
from assay.functional.games.tree import CHANCE, TERMINAL

PREFIX = "openspiel/"


class OpenSpielGame(Game):
    """A game of OpenSpiel; players who move at once move one after the other, unseen.

    Args:
        name: As OpenSpiel calls it, with or without the prefix.
        settings: Its parameters, such as `players`.

    Raises:
        MissingExtraError: OpenSpiel is not installed.
        EnvError: There is no such game, or it is not of players with information states.
    """

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None) -> None:
        short = name.removeprefix(PREFIX)
        try:
            spiel: Any = importlib.import_module("pyspiel")
        except ImportError:
            game = f"The game '{PREFIX}{short}'"
            raise MissingExtraError("open_spiel", "openspiel", game) from None
        known = spiel.registered_names()
        if short not in known:
            raise EnvError(f"OpenSpiel has no game '{short}'.", nearest(short, known))
        try:
            loaded = spiel.load_game(short, dict(settings or {}))
            if loaded.get_type().dynamics == spiel.GameType.Dynamics.SIMULTANEOUS:
                loaded = spiel.convert_to_turn_based(loaded)
        except spiel.SpielError as error:
            raise EnvError(f"OpenSpiel cannot load '{short}': {error}.") from None
        kind = loaded.get_type()
        if kind.dynamics != spiel.GameType.Dynamics.SEQUENTIAL or not (
            kind.provides_information_state_string and kind.provides_information_state_tensor
        ):
            raise EnvError(
                f"OpenSpiel's '{short}' does not say what players know as a string and a tensor.",
                "Choose one of its sequential games with information states.",
            )
        self.name = PREFIX + short
        self.num_players = loaded.num_players()
        start = loaded.new_initial_state()
        count = loaded.num_distinct_actions()
        self.action_names = tuple(_action_name(start, action) for action in range(count))
        size = 1
        for length in loaded.information_state_tensor_shape():
            size *= length
        self.vector_size = self.num_players + size
        self._loaded = loaded

    def start(self) -> History:
        """Return the moment before anything has happened."""
        return _Moment(self, self._loaded.new_initial_state())


def _action_name(state: Any, action: int) -> str:
    while state.is_chance_node():
        state = state.child(state.legal_actions()[0])
    try:
        return str(state.action_to_string(state.current_player(), action))
    except Exception:  # it need not have a name before it is possible
        return str(action)


class _Moment(History):
    __slots__ = ("game", "state")

    def __init__(self, game: OpenSpielGame, state: Any) -> None:
        self.game, self.state = game, state

    @property
    def player(self) -> int:
        if self.state.is_terminal():
            return TERMINAL
        return CHANCE if self.state.is_chance_node() else int(self.state.current_player())

    def legal_actions(self) -> Sequence[int]:
        return list(self.state.legal_actions())

    def chance_probabilities(self) -> Sequence[float]:
        return [probability for _, probability in self.state.chance_outcomes()]

    def child(self, action: int) -> History:
        return _Moment(self.game, self.state.child(int(action)))

    def information(self) -> str:
        return f"{self.player}:{self.state.information_state_string()}"

    def information_vector(self) -> Sequence[float]:
        """Return the seat, and what OpenSpiel says, in which it is not always."""
        seat = [float(player == self.player) for player in range(self.game.num_players)]
        return [*seat, *self.state.information_state_tensor()]

    def returns(self) -> Sequence[float]:
        return list(self.state.returns())
