"""Board games as vector environments: one agent in both seats, or in one against a player."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from assay.core.errors import EnvError, nearest
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import State
from assay.envs.boards.players import make_player
from assay.functional.boards import GAMES, BoardGame, Boards

SELF = "self"  # the agent plays both seats
# Whom agents are evaluated against, unless told otherwise.
YARDSTICK = {"tictactoe": "perfect", "connect_four": "minimax:4"}

Obs = dict[str, NDArray[Any]]
Step = tuple[Obs, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class BoardVector(VectorEnv[Obs, NDArray[Any], NDArray[Any]]):
    """Copies of a board game, stepped together.

    * **Observation**: the board as who is to move sees it (1 own, -1 the opponent's, 0 empty), and
      the legal moves as action mask.
    * **opponent="self"**: every step is a move of who is to move, and the next observation is the
      other one's. Reward: 1 for a move that wins, else 0.
    * **Another opponent** (random, perfect, minimax:DEPTH) answers each move in the same step. The
      agent has the first seat in every second game; copy `i` begins with it if its seed is even.
      Reward: 1 for a win, -1 for a loss. All observations are the agent's.
    * Copies that are over are reset in the same step; `info["final_obs"]` has the last observation.
      Each copy has a random stream of its own.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (typed so by Gymnasium)
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, game: BoardGame, num_envs: int = 1, opponent: str = SELF) -> None:
        self.game, self.num_envs, self.opponent = game, num_envs, opponent
        self.player: Any = None if opponent == SELF else make_player(game, opponent)
        self.single_observation_space = game.observation_space
        self.single_action_space = Discrete(game.actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.boards = game.initial(num_envs)
        self.second = np.zeros(num_envs, np.bool_)  # where the opponent began this game
        self._rngs: list[np.random.Generator] = []

    @property
    def self_play(self) -> bool:
        """Return whether one agent plays both seats."""
        return self.opponent == SELF

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start a game in every copy; copy `i` is seeded with `seed + i`."""
        if seed is None:
            seed = [int(np.random.default_rng().integers(2**31)) for _ in range(self.num_envs)]
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else list(seed)
        self._rngs = [np.random.default_rng(one) for one in seeds]
        self.second = ~(np.array(seeds) % 2).astype(np.bool_)  # turned by `_begin`
        self._begin(np.arange(self.num_envs))
        return self.game.observe(self.boards), {}

    def step(self, actions: NDArray[Any]) -> Step:
        """Make a move in every copy, and the opponent's answer if there is one.

        Raises:
            EnvError: A move is not legal; then nothing has moved.
        """
        moves = self._checked(actions)
        after = self.game.play(self.boards, moves)
        boards, over = after.boards, after.over
        reward = after.won.astype(np.float64)
        if self.player is not None:
            rows = np.flatnonzero(~over)
            boards[over] *= -1  # nobody moves next: the agent sees it as before
            if len(rows):
                answer = self._answer(boards[rows], rows)
                boards[rows], over[rows] = answer.boards, answer.over
                reward[rows] = -answer.won.astype(np.float64)
        self.boards = boards
        info: dict[str, Any] = {}
        if over.any():
            info = {"final_obs": self.game.observe(boards), "_final_obs": over.copy()}
            self._begin(np.flatnonzero(over))
        return self.game.observe(self.boards), reward, over, np.zeros_like(over), info

    def _begin(self, rows: NDArray[np.intp]) -> None:
        """Start games, each in the other seat than the last one of its copy."""
        self.boards[rows] = 0
        if self.player is None:
            return
        self.second[rows] = ~self.second[rows]
        behind = rows[self.second[rows]]
        if len(behind):
            self.boards[behind] = self._answer(self.boards[behind], behind).boards

    def _answer(self, boards: Boards, rows: NDArray[np.intp]) -> Any:
        draws = np.array([self._rngs[row].random() for row in rows])
        return self.game.play(boards, self.player.choose(boards, draws))

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        if not self._rngs:
            raise EnvError("The environment was stepped before its first reset.", "Call reset().")
        moves = np.asarray(actions)
        if moves.shape != (self.num_envs,) or moves.dtype.kind not in "iu":
            raise EnvError(
                f"The actions have shape {moves.shape} and type {moves.dtype}; {self.num_envs} "
                "integers were expected."
            )
        moves = moves.astype(np.int64)
        inside = (moves >= 0) & (moves < self.game.actions)
        rows = np.arange(self.num_envs)
        legal = inside & self.game.legal(self.boards)[rows, np.where(inside, moves, 0)]
        if not legal.all():
            row = int(np.flatnonzero(~legal)[0])
            allowed = np.flatnonzero(self.game.legal(self.boards)[row]).tolist()
            raise EnvError(
                f"Environment {row} was given the move {moves[row]}, which is not legal in "
                f"{self.game.name}; expected one of {allowed}.",
                "Choose among what the action mask of the observation allows.",
            )
        return moves

    def get_state(self) -> State:
        """Return all that the next steps depend on."""
        return {
            "boards": self.boards.copy(),
            "second": self.second.copy(),
            "rng": [rng_state(rng) for rng in self._rngs],
        }

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        boards = np.asarray(state["boards"], np.int8)
        if boards.shape != self.boards.shape:
            raise EnvError(
                f"The saved boards have the shape {boards.shape}; expected {self.boards.shape}.",
                "Restore them into as many copies of the same game.",
            )
        self.boards, self.second = boards.copy(), np.asarray(state["second"], np.bool_).copy()
        self._rngs = [np.random.default_rng() for _ in range(self.num_envs)]
        for rng, saved in zip(self._rngs, state["rng"], strict=True):
            set_rng_state(rng, saved)


class Board(gym.Env[Obs, int]):
    """One board game as an environment, against a player or with one agent in both seats.

    `render` shows the board as text, or as an image of one square per cell: X and red are who plays
    the next move.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (typed so by Gymnasium)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 2,
    }

    def __init__(self, game: str, opponent: str = SELF, render_mode: str | None = None) -> None:
        self.copies = BoardVector(GAMES[game], 1, opponent)
        self.observation_space = self.copies.single_observation_space
        self.action_space = self.copies.single_action_space
        self.render_mode, self.self_play = render_mode, self.copies.self_play
        self._shown = self.copies.boards[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start a game; without a seed, in the other seat than the last one."""
        if seed is None and self.copies._rngs:
            self.copies._begin(np.arange(1))
            obs = self.copies.game.observe(self.copies.boards)
        else:
            obs, _ = self.copies.reset(seed=seed)
        self._shown = self.copies.boards[0].copy()
        return _first(obs), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Make a move, and the opponent's answer if there is one."""
        before = self.copies.second.copy()
        obs, reward, over, _, info = self.copies.step(np.array([int(action)]))
        if over[0]:
            obs = info["final_obs"]
            self.copies.second = before  # the game after this one begins with `reset`
        self._shown = self.copies.game.boards(obs)[0]
        return _first(obs), float(reward[0]), bool(over[0]), False, {}

    def render(self) -> Any:
        """Return the board as text or as an image."""
        if self.render_mode == "ansi":
            return self.copies.game.text(self._shown)
        colours = np.array([[40, 60, 120], [220, 60, 50], [240, 200, 60]], np.uint8)  # 0, 1, -1
        grid = self._shown.reshape(self.copies.game.rows, self.copies.game.columns)
        image = np.kron(grid, np.ones((32, 32), np.int8))
        image[::32], image[:, ::32] = 0, 0
        return colours[image]

    def get_state(self) -> State:
        """Return all that the next steps depend on."""
        return self.copies.get_state() | {"shown": self._shown.copy()}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        self.copies.set_state(state)
        self._shown = np.asarray(state["shown"], np.int8).copy()


def _first(obs: Obs) -> Obs:
    return {name: part[0] for name, part in obs.items()}


def make_boards(
    name: str, num_envs: int, kwargs: Mapping[str, Any], limit: int | None, training: bool
) -> BoardVector:
    """Return copies of a game of `GAMES` for a run.

    Without the setting `opponent` they are for one agent in both seats while it trains, and against
    the `YARDSTICK` of the game when it is evaluated.

    Raises:
        EnvError: A setting is not known, or a time limit was given.
    """
    if limit is not None:
        raise EnvError(
            f"max_episode_steps={limit} cannot be set for '{name}': a game ends by itself.",
            "Leave it out.",
        )
    for key in kwargs:
        if key != "opponent":
            raise EnvError(f"'{name}' has no setting '{key}'.", nearest(key, ["opponent"]))
    opponent = kwargs.get("opponent") or (SELF if training else YARDSTICK[name])
    return BoardVector(GAMES[name], num_envs, str(opponent))
