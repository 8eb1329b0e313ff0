"""All seats of a game as one environment of several agents, for self-play: batched in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.types import ACTION_MASK, AGENT_OBS, ALIVE
from assay.envs.games.base import Game, compile_game
from assay.envs.games.registry import ALL_SEATS, make_tree
from assay.envs.games.seat import UNIFORM, Seat
from assay.envs.native.team import NativeTeam, Obs, SingleTeam
from assay.functional.games.tree import CHANCE, TERMINAL, GameTree

_FOREVER = 2**62  # games end by themselves


class Table(NativeTeam):
    """Copies of a game whose players are agents, `player_0` and so on.

    Every step is one decision of one player, who alone is alive and sees what it knows, as numbers,
    with its legal actions as a mask; chance acts in between. Everybody is paid at the end of the
    game. An action that is not legal is an error; actions of the others mean nothing.

    Args:
        num_envs: Copies.
        game: A name of `assay.envs.games.registry`, or a `Game`.
        seat: "all".
        settings: Those of an OpenSpiel game.

    Raises:
        EnvError: There is no such game, or it is too large to write out.
    """

    def __init__(
        self,
        num_envs: int = 1,
        game: str | Game = "kuhn_poker",
        seat: str = ALL_SEATS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        assert seat == ALL_SEATS
        known = make_tree(game, settings) if isinstance(game, str) else compile_game(game)
        self.game = known
        agents = {
            f"player_{seat}": (known.vectors.shape[1], Discrete(known.num_actions))
            for seat in range(known.num_players)
        }
        # The only variable of a copy is the history that it has come to.
        super().__init__(num_envs, _FOREVER, agents, variables=1, masks=True)
        nodes = len(known.parent)
        # The children of a history stand side by side.
        owners, first, count = np.unique(known.parent[1:], return_index=True, return_counts=True)
        self._first, self._last = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        self._first[owners], self._last[owners] = first + 1, first + count
        self._rank = np.cumsum(known.legal, axis=1) - 1  # [I, A] which child an action leads to
        self._chance = np.cumsum(known.chance)

    def tree(self) -> GameTree:
        """Return the game written out."""
        return self.game

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        return np.array([self._dealt(0, rng)], np.float64)

    def _dealt(self, node: int, rng: np.random.Generator) -> int:
        """Let chance act, as long as it is to."""
        while self.game.player[node] == CHANCE:
            drawn = self._chance[self._first[node] - 1] + rng.random()
            place = np.searchsorted(self._chance, drawn, side="right")
            node = int(min(place, self._last[node]))
        return node

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        game, node = self.game, self._variables[:, 0].astype(np.int64)
        sets = game.infoset[node]
        chosen = actions[np.arange(self.num_envs), game.player[node]]
        legal = game.legal[sets, chosen]
        if not legal.all():
            row = int(np.flatnonzero(~legal)[0])
            raise EnvError(
                f"Environment {row} was given the action {chosen[row]}, which is not legal in "
                f"'{game.infoset_names[sets[row]]}' of '{game.name}'.",
                f"Legal are: {np.flatnonzero(game.legal[sets[row]]).tolist()}.",
            )
        after = self._first[node] + self._rank[sets, chosen]
        for row in np.flatnonzero(game.player[after] == CHANCE).tolist():
            after[row] = self._dealt(int(after[row]), self._rngs[row])
        self._variables[:, 0] = after
        return game.returns[after], game.player[after] == TERMINAL

    def _obs(self, variables: NDArray[Any]) -> Obs:
        game, node = self.game, variables[:, 0].astype(np.int64)
        rows = np.flatnonzero(game.player[node] >= 0)  # nobody acts when a game is over
        return game_obs(game, game.infoset[node[rows]], rows, len(node))


def game_obs(game: GameTree, sets: NDArray[np.int64], rows: NDArray[np.intp], count: int) -> Obs:
    """Return the joint observation of `count` copies, of which `rows` are in information sets."""
    players, mover = game.num_players, game.infoset_player[sets]
    obs: Obs = {
        AGENT_OBS: np.zeros((count, players, game.vectors.shape[1]), np.float32),
        ALIVE: np.zeros((count, players), np.int8),
        ACTION_MASK: np.ones((count, players, game.num_actions), np.int8),
    }
    obs[AGENT_OBS][rows, mover] = game.vectors[sets]
    obs[ALIVE][rows, mover] = 1
    obs[ACTION_MASK][rows, mover] = game.legal[sets]
    obs[ACTION_MASK] = obs[ACTION_MASK].reshape(count, -1)
    return obs


class SingleTable(SingleTeam):
    """One `Table`."""

    def tree(self) -> GameTree:
        """Return the game written out."""
        assert isinstance(self.envs, Table)
        return self.envs.tree()


def make_seat(
    game: str | Game = "kuhn_poker",
    seat: int | str | None = None,
    opponent: Any = UNIFORM,
    settings: Mapping[str, Any] | None = None,
) -> gym.Env[Any, Any]:
    """Return one `Seat` of a game, or with seat="all" a table at which agents play all of them.

    Raises:
        EnvError: There is no such game or seat, or no seat is left for the opponent.
    """
    if seat != ALL_SEATS:
        return Seat(game, seat, opponent, settings)  # type: ignore[arg-type]
    if opponent != UNIFORM:
        raise EnvError(
            f"opponent={opponent} has no seat: with seat={ALL_SEATS} agents play all of them.",
            "Leave opponent out, or give the number of one seat.",
        )
    return SingleTable(Table(1, game, ALL_SEATS, settings))
