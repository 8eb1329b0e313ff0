"""Board games as environments, and the players that need no learning."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.core.errors import ConfigError, EnvError
from assay.envs.boards.players import MinimaxPlayer, RandomPlayer, make_player, pick, solve
from assay.envs.boards.vector import Board, BoardVector
from assay.envs.make import make_vector
from assay.functional.boards import CONNECT_FOUR, GAMES, TICTACTOE, BoardGame, Boards
from assay.testing.algorithms import Rig

games = pytest.mark.parametrize("game", GAMES.values(), ids=lambda game: game.name)


def random_moves(env: Any, obs: Any, rng: np.random.Generator) -> np.ndarray:
    return pick(obs["action_mask"].astype(bool), rng.random(env.num_envs))


def plain_minimax(game: BoardGame, board: Boards, depth: int) -> int:
    """Return the value of a board for who is to move, without cuts, at depth 0 by open lines."""
    over, worth = game.ended(board[None])
    if over[0]:
        return int(worth[0]) * (1_000_000 + depth)
    if depth == 0:
        lines = board[game.lines]
        own, other = (lines == 1).sum(1), (lines == -1).sum(1)
        worths = np.array([0, 1, 4, 16, 64])
        return int(worths[own[other == 0]].sum() - worths[other[own == 0]].sum())
    moves = np.flatnonzero(game.legal(board[None])[0])
    after = game.play(np.repeat(board[None], len(moves), 0), moves).boards
    return max(-plain_minimax(game, one, depth - 1) for one in after)


# ---------------------------------------------------------------------- players


def test_the_solved_table_is_that_of_tic_tac_toe() -> None:
    table = solve(TICTACTOE)
    assert len(table) == 5478  # positions that can be reached
    value, best = table[TICTACTOE.initial(1)[0].tobytes()]
    assert value == 0 and best.all()  # every first move draws
    corner = TICTACTOE.play(TICTACTOE.initial(1), np.array([0])).boards[0]
    value, best = table[corner.tobytes()]
    assert value == 0 and np.flatnonzero(best).tolist() == [4]  # only the middle holds a corner


def test_perfect_players_draw_and_do_not_lose_to_anybody() -> None:
    perfect, rng = make_player(TICTACTOE, "perfect"), np.random.default_rng(0)
    for second in (False, True):
        for other in (perfect, RandomPlayer(TICTACTOE)):
            boards, losses, wins = TICTACTOE.initial(200), 0, 0
            players = [other, perfect] if second else [perfect, other]
            for ply in range(9):
                player = players[ply % 2]
                after = TICTACTOE.play(boards, player.choose(boards, rng.random(len(boards))))
                won = int(after.won.sum())
                losses, wins = (losses, wins + won) if player is perfect else (losses + won, wins)
                boards = after.boards[~after.over]
            assert losses == 0
            assert wins == 0 if other is perfect else wins > 50


@games
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_alpha_beta_finds_what_plain_minimax_finds(game: BoardGame, depth: int) -> None:
    rng, player = np.random.default_rng(depth), MinimaxPlayer(game, depth)
    boards = game.initial(3)
    while len(boards):
        for board in boards[:1]:
            moves = np.flatnonzero(game.legal(board[None])[0])
            after = game.play(np.repeat(board[None], len(moves), 0), moves).boards
            values = np.array([-plain_minimax(game, one, depth - 1) for one in after])
            best = moves[values == values.max()]
            np.testing.assert_array_equal(np.flatnonzero(player.best(board)), best)
        after = game.play(boards, pick(game.legal(boards), rng.random(len(boards))))
        boards = after.boards[~after.over]


def test_minimax_wins_and_blocks() -> None:
    grid = np.zeros((6, 7), np.int8)
    grid[5, 1:4], grid[4, 1:3] = -1, 1  # three of the opponent in the bottom row
    player = MinimaxPlayer(CONNECT_FOUR, 2)
    assert np.flatnonzero(player.best(-grid.ravel())).tolist() == [0, 4]  # wins at either end
    grid[5, 0] = 1
    assert np.flatnonzero(player.best(grid.ravel())).tolist() == [4]  # or the other end is taken


@pytest.mark.parametrize(
    ("game", "name", "words"),
    [
        (TICTACTOE, "nobody", "no player 'nobody'"),
        (TICTACTOE, "minimax", "no player 'minimax'"),
        (CONNECT_FOUR, "perfect", "no perfect player of connect_four"),
        (CONNECT_FOUR, "minimax:0", "from 1 to"),
        (CONNECT_FOUR, "minimax:99", "from 1 to"),
    ],
)
def test_players_that_do_not_exist_are_refused(game: BoardGame, name: str, words: str) -> None:
    with pytest.raises(EnvError, match=words):
        make_player(game, name)


# ---------------------------------------------------------------------- environments


@games
def test_self_play_alternates_and_rewards_who_wins(game: BoardGame) -> None:
    rng = np.random.default_rng(0)
    with make_vector(game.name, 50) as env:
        assert env.self_play
        obs, boards = env.reset(1), game.initial(50)
        ends = 0
        for _ in range(60):
            moves = random_moves(env, obs, rng)
            expected = game.play(boards, moves)
            obs, reward, terminated, truncated, valid, final = env.step(moves)
            np.testing.assert_array_equal(reward, expected.won)
            np.testing.assert_array_equal(terminated, expected.over)
            assert not truncated.any() and valid is None
            if final is not None:
                over = expected.over
                np.testing.assert_array_equal(game.boards(final)[over], expected.boards[over])
                ends += int(over.sum())
            boards = np.where(expected.over[:, None], 0, expected.boards).astype(np.int8)
            np.testing.assert_array_equal(game.boards(obs), boards)
        assert ends > 50


@games
def test_against_an_opponent_both_seats_are_played_by_turns(game: BoardGame) -> None:
    rng = np.random.default_rng(0)
    env = BoardVector(game, 40, "random")
    obs, _ = env.reset(seed=10)
    second = np.arange(40) % 2 == 1  # copy i has the seed 10 + i; an even one begins
    pieces = np.count_nonzero(game.boards(obs), axis=1)
    np.testing.assert_array_equal(pieces, second)
    seen = {-1: 0, 0: 0, 1: 0}
    for _ in range(150):
        before = game.boards(obs)
        moves = random_moves(env, obs, rng)
        after = game.play(before, moves)
        obs, reward, over, _, info = env.step(moves)
        assert (reward[after.won] == 1).all() and (reward[~after.over & ~over] == 0).all()
        if over.any():
            last = game.boards(info["final_obs"])
            lost = game.ended(last)[1] == -1  # for the agent, who would be to move
            answered = over & ~after.over
            np.testing.assert_array_equal(reward[answered] == -1, lost[answered])
            second[over] = ~second[over]
            pieces = np.count_nonzero(game.boards(obs), axis=1)
            np.testing.assert_array_equal(pieces[over], second[over])
        for value in reward[over]:
            seen[int(value)] += 1
    assert seen[1] > 20 and seen[-1] > 20


@games
@pytest.mark.parametrize("opponent", ["self", "random"])
def test_a_saved_game_goes_on_as_if_nothing_had_happened(game: BoardGame, opponent: str) -> None:
    kwargs = {"env_kwargs": {"opponent": opponent}}
    with make_vector(game.name, 8, **kwargs) as one, make_vector(game.name, 8, **kwargs) as two:
        obs, rng = one.reset(3), np.random.default_rng(4)
        for _ in range(15):
            obs = one.step(random_moves(one, obs, rng))[0]
        two.reset(99)
        two.set_state(one.get_state())
        for _ in range(40):
            moves = random_moves(one, obs, rng)
            here, there = one.step(moves), two.step(moves)
            for left, right in zip(here[:4], there[:4], strict=True):
                for key in left if isinstance(left, dict) else [None]:
                    a, b = (x if key is None else x[key] for x in (left, right))
                    np.testing.assert_array_equal(a, b)
            obs = here[0]


def test_a_copy_depends_neither_on_the_others_nor_on_their_number() -> None:
    """So an evaluation of n episodes is the same with one environment at a time."""
    seen = []
    for count in (1, 5):
        env = BoardVector(CONNECT_FOUR, count, "random")
        obs, rows = env.reset(seed=7)[0], []
        for _ in range(30):
            moves = obs["action_mask"].argmax(1)
            obs, reward, *_ = env.step(moves)
            rows.append((obs["connect_four"][0].tolist(), reward[0]))
        seen.append(rows)
    assert seen[0] == seen[1]


@games
def test_the_single_environment_follows_gymnasiums_rules(game: BoardGame) -> None:
    env = gym.make(game.name, opponent="random", render_mode="ansi").unwrapped
    rng = np.random.default_rng(0)
    starts = []
    for episode in range(6):
        obs, _ = env.reset(seed=4 if episode == 0 else None)
        starts.append(int(np.count_nonzero(obs[game.name])))
        assert env.observation_space.contains(obs)
        over = False
        while not over:
            move = rng.choice(np.flatnonzero(obs["action_mask"]))
            obs, reward, over, cut, _ = env.step(move)
            assert env.observation_space.contains(obs) and not cut
        lost = game.ended(game.boards({game.name: obs[game.name][None]}))[1][0] == -1
        assert (reward == -1) == lost
        assert env.render().count("\n") == game.rows - 1
    assert starts == [0, 1, 0, 1, 0, 1]  # an even seed has the first seat, then by turns


def test_a_board_is_drawn() -> None:
    env = gym.make("connect_four", render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    blank = env.render()
    env.step(3)
    assert blank.shape == (6 * 32, 7 * 32, 3) and (blank != env.render()).any()


def test_bad_moves_are_refused_and_change_nothing() -> None:
    env = BoardVector(TICTACTOE, 2)
    with pytest.raises(EnvError, match="before its first reset"):
        env.step(np.array([0, 0]))
    env.reset(seed=0)
    env.step(np.array([4, 0]))
    boards = env.boards.copy()
    with pytest.raises(EnvError, match=r"Environment 0 was given the move 4, which is not legal"):
        env.step(np.array([4, 1]))
    with pytest.raises(EnvError, match="the move 9"):
        env.step(np.array([1, 9]))
    with pytest.raises(EnvError, match=r"shape \(3,\)"):
        env.step(np.array([1, 2, 3]))
    with pytest.raises(EnvError, match="float"):
        env.step(np.array([1.0, 2.0]))
    np.testing.assert_array_equal(env.boards, boards)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(EnvError, match="no setting 'oponent'") as caught:
        make_vector("tictactoe", 2, env_kwargs={"oponent": "random"})
    assert "opponent" in caught.value.fix
    with pytest.raises(EnvError, match="a game ends by itself"):
        make_vector("tictactoe", 2, max_episode_steps=5)


def test_one_player_algorithms_need_an_opponent() -> None:
    with pytest.raises(ConfigError, match="dqn learns as one player") as caught:
        Rig("dqn", "tictactoe")
    assert "opponent" in caught.value.fix


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (lambda: Board("tictactoe"), {}),
        (Board("tictactoe"), {}),
        (BoardVector(GAMES["tictactoe"], 2), {"num_envs": 2}),
        ("tictactoe", {"wrappers": ["sign_reward"]}),
    ],
    ids=["factory", "object", "vector", "wrapped"],
)
def test_boards_that_are_not_named_need_one_as_well(
    env: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="dqn learns as one player"):
        assay.train("dqn", env, env_steps=10, eval_every=0, root=tmp_path, **settings)


def test_a_board_with_an_opponent_is_for_one_player() -> None:
    with make_vector(partial(Board, "tictactoe", "random"), 2) as env:
        assert not env.self_play
    with make_vector(partial(Board, "tictactoe"), 2) as env:
        assert env.self_play


def test_evaluation_is_against_a_yardstick() -> None:
    with make_vector("tictactoe", 2, training=False) as env:
        assert not env.self_play and env.backend.env.opponent == "perfect"
    with make_vector("tictactoe", 2, training=False, env_kwargs={"opponent": "random"}) as env:
        assert env.backend.env.opponent == "random"
