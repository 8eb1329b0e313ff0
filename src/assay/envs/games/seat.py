"""One seat of a game as a Gymnasium environment; the others play strategies that do not learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.types import ACTION_MASK
from assay.envs.games.base import Game, History, Player, moved_on
from assay.envs.games.registry import make_game, make_tree
from assay.envs.games.strategies import read_strategy
from assay.functional.games.tree import TERMINAL, GameTree

UNIFORM = "uniform"


def uniform(moment: History) -> Sequence[float]:
    """Take every legal action equally often."""
    count = len(moment.legal_actions())
    return [1.0 / count] * count


def tabular(tree: GameTree, strategy: NDArray[np.float64]) -> Player:
    """Return who plays a strategy [I, A] of a game that is written out."""
    index = tree.infoset_index

    def play(moment: History) -> Sequence[float]:
        row = strategy[index[moment.information()]]
        return [float(row[action]) for action in moment.legal_actions()]

    return play


class Seat(gym.Env[dict[str, Any], Any]):
    """Play one seat of a game against a fixed strategy in all others.

    An observation is what the player knows, as numbers, and which actions are legal. The reward is
    the player's return, at the end of the game; there is none before. An action that is not legal
    is an error.

    Args:
        game: A name of `assay.envs.games.registry`, or a `Game`.
        seat: Which one to play; by default another one each time, drawn at the start.
        opponent: "uniform", the path of a strategy file, or a function of a `History`.
        settings: Those of an OpenSpiel game.

    Raises:
        EnvError: There is no such game or seat.
        DataError: The strategy file does not fit the game.
    """

    def __init__(
        self,
        game: str | Game = "kuhn_poker",
        seat: int | None = None,
        opponent: str | Path | Player = UNIFORM,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._name, self._settings = game, settings
        self.game = make_game(game, settings) if isinstance(game, str) else game
        players = self.game.num_players
        if seat is not None and seat not in range(players):
            raise EnvError(
                f"seat={seat}: '{self.game.name}' has {players} players.",
                f"Give a number from 0 to {players - 1}, or leave it out to draw one.",
            )
        self.seat = seat
        self.opponent = self._opponent(opponent)
        self.action_space = Discrete(len(self.game.action_names))
        parts: dict[str, gym.Space[Any]] = {
            "information": Box(-np.inf, np.inf, (self.game.vector_size,), np.float32),
            ACTION_MASK: MultiBinary(len(self.game.action_names)),
        }
        self.observation_space = Dict(parts)
        self._playing = 0
        self._actions: list[int] = []  # all of the history, those of chance as well
        self._moment = self.game.start()

    def tree(self) -> GameTree:
        """Return the game written out.

        Raises:
            EnvError: It is too large.
        """
        if isinstance(self._name, str):
            return make_tree(self._name, self._settings)
        from assay.envs.games.base import compile_game

        return compile_game(self.game)

    def _opponent(self, given: str | Path | Player) -> Player:
        if callable(given):
            return given
        if str(given) == UNIFORM:
            return uniform
        tree = self.tree()
        return tabular(tree, read_strategy(tree, Path(given)))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Deal, and play to the first decision of the seat; games that end before are dealt again.

        Raises:
            EnvError: In a hundred games the seat had nothing to decide.
        """
        super().reset(seed=seed)
        for _ in range(100):
            drawn = self.np_random.integers(self.game.num_players)
            self._playing = int(drawn) if self.seat is None else self.seat
            self._actions, self._moment = [], self.game.start()
            self._advance()
            if self._moment.player != TERMINAL:
                return self._observation(), {}
        raise EnvError(f"Player {self._playing} of '{self.game.name}' has nothing to decide.")

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Act, and play to the next decision or to the end."""
        choice = int(action)
        if choice not in self._moment.legal_actions():
            raise EnvError(
                f"The action {choice} is not legal in '{self._moment.information()}' of "
                f"'{self.game.name}'.",
                f"Legal are: {list(self._moment.legal_actions())}.",
            )
        self._do(choice)
        self._advance()
        if self._moment.player != TERMINAL:
            return self._observation(), 0.0, False, False, {}
        reward = float(self._moment.returns()[self._playing])
        return self._nothing(), reward, True, False, {}

    def _do(self, action: int) -> None:
        self._actions.append(action)
        self._moment = self._moment.child(action)

    def _advance(self) -> None:
        """Let chance and the others act until it is the seat's turn, or over."""
        while self._moment.player not in (TERMINAL, self._playing):
            action, self._moment = moved_on(self._moment, self.opponent, self.np_random)
            self._actions.append(action)

    def _observation(self) -> dict[str, Any]:
        mask = np.zeros(len(self.game.action_names), np.int8)
        mask[list(self._moment.legal_actions())] = 1
        known = np.asarray(self._moment.information_vector(), np.float32)
        return {"information": known, ACTION_MASK: mask}

    def _nothing(self) -> dict[str, Any]:
        """Return what is seen when the game is over; nothing is to be decided by it."""
        return {
            "information": np.zeros(self.game.vector_size, np.float32),
            ACTION_MASK: np.ones(len(self.game.action_names), np.int8),
        }

    def get_state(self) -> dict[str, Any]:
        """Return where the game is."""
        return {"playing": self._playing, "actions": np.array(self._actions, np.int64)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._playing = int(state["playing"])
        self._actions, self._moment = [], self.game.start()
        for action in state["actions"]:
            self._do(int(action))
