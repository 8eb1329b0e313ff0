"""AlphaZero: the contract, its loss and its data by hand, and learning tic-tac-toe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import ConfigError, SpaceError
from assay.core.types import tree_map
from assay.envs.boards.vector import Board
from assay.evaluation.matches import play_all_replies
from assay.functional import tree_search
from assay.functional.boards import CONNECT_FOUR, TICTACTOE, BoardGame
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Case,
    Rig,
    make_algorithm,
    make_batch,
)

SMALL = {
    "hidden": (16,), "batch_size": 8, "learning_starts": 8, "train_every": 2, "updates": 1,
    "simulations": 4, "buffer_size": 400,
}  # fmt: skip


TICTACTOE_EMPTY = {"tictactoe": torch.zeros(1, 3, 3)}


class Unsaved(Board):
    """A game that cannot be saved."""

    get_state = set_state = None


class BoardCase(Case):
    """A board game in place of an `Identity` environment."""

    def factory(self, **options: Any) -> Callable[[], Any]:
        """Return a factory of the game."""
        return partial(Board if options.get("saves", True) else Unsaved, self.name)


def make(game: BoardGame = TICTACTOE, **settings: Any) -> Any:
    space = spaces.Discrete(game.actions)
    return make_algorithm("alphazero", game.observation_space, space, **{**SMALL, **settings})


class TestContract(AlgorithmContract):
    """The contract, on both games."""

    algorithm = "alphazero"
    settings = SMALL

    def cases(self) -> Iterator[Case]:
        """Yield the games: it plays nothing else."""
        for game in (TICTACTOE, CONNECT_FOUR):
            yield BoardCase(game.name, spaces.Discrete(game.actions))

    def test_exported_policy_is_the_agent(self, case: Case) -> None:
        """A search is not exported, and its network alone is, which is what acts without one."""
        rig = self.rig(case, num_envs=6)
        rig.learn(self.updates)
        policy = rig.algorithm.policy
        with pytest.raises(ConfigError, match="searches the game's tree") as caught:
            policy.module()
        assert "simulations=0" in caught.value.fix
        alone = make(policy.game, simulations=4)
        alone.network.load_state_dict(policy.network.state_dict())
        alone.policy.options = _without_search(alone.policy.options)
        module = alone.policy.module()
        for _ in range(10):
            expected = alone.act(rig.obs, None, False).action
            with torch.no_grad():
                found = module(tree_map(torch.from_numpy, rig.obs)).numpy()
            np.testing.assert_array_equal(found, expected)
            rig.collector.obs = rig.env.step(expected)[0]


def _without_search(options: Any) -> Any:
    return dataclasses.replace(options, simulations=0)


# ---------------------------------------------------------------------- by hand


def test_loss_by_hand() -> None:
    """Two positions, the network set to logits 0 but for one, and a value of 0.5."""
    algorithm = make(weight_decay=0.1, value_coef=2.0, symmetries=False, value_mix=0.25)
    net = algorithm.network
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.policy.bias[1] = math.log(3.0)
        net.value.bias[0] = math.atanh(0.5)
    legal = [[1, 1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]]
    pi = [[0.5, 0.5] + [0.0] * 7, [1.0] + [0.0] * 8]
    sample = make_batch(
        obs={"tictactoe": np.zeros((2, 3, 3)), "action_mask": legal},
        next_obs={"tictactoe": np.zeros((2, 3, 3)), "action_mask": legal},
        action=[0, 0], reward=[-1.0, 1.0], terminated=[1.0, 0.0], visits=pi, value=[0.6, 0.0],
    )  # fmt: skip
    loss, metrics = algorithm._loss(algorithm._batch(sample))
    # p = (1/4, 3/4) and (1/5, 3/5, 1/5) among legal moves
    first = -(0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    second = -math.log(0.2)
    # 3/4 of the outcome -1 and 1/4 of the search's 0.6; the second game has not ended
    value = (0.75 * -1.0 + 0.25 * 0.6 - 0.5) ** 2
    penalty = math.log(3.0) ** 2 + math.atanh(0.5) ** 2
    assert metrics["policy_loss"].item() == pytest.approx((first + second) / 2, rel=1e-5)
    assert metrics["value_loss"].item() == pytest.approx(value, rel=1e-5)
    assert metrics["search_entropy"].item() == pytest.approx(math.log(2.0) / 2, rel=1e-5)
    expected = (first + second) / 2 + 2.0 * value + 0.1 * penalty
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_symmetries_turn_board_moves_and_mask_together() -> None:
    """Whatever the turn, the visited move is on the same cell of the turned board."""
    algorithm = make()
    board = np.zeros((64, 3, 3))
    board[:, 0, 1] = 1.0  # the visited move is the corner beside it, which is the only legal one
    visits = np.zeros((64, 9))
    visits[:, 0] = 1.0
    sample = make_batch(
        obs={"tictactoe": board, "action_mask": visits.astype(np.int8)},
        next_obs={"tictactoe": board, "action_mask": visits.astype(np.int8)},
        action=[0] * 64, reward=[0.0] * 64, visits=visits, value=[0.0] * 64,
    )  # fmt: skip
    batch = algorithm._batch(sample)
    places = {
        (int(b.flatten().argmax()), int(p.argmax()))
        for b, p in zip(batch["board"], batch["pi"], strict=True)
    }
    # An edge and a corner beside it: eight of them, and all are drawn.
    beside = {(1, 0), (1, 2), (3, 0), (3, 6), (5, 2), (5, 8), (7, 6), (7, 8)}
    assert places == beside
    assert torch.equal(batch["legal"].float(), batch["pi"])


def test_the_replay_gives_every_position_its_games_outcome() -> None:
    """z is 1 for who won in the end, -1 for the other, 0 for a draw; unfinished games say so."""
    rig = Rig("alphazero", "tictactoe", num_envs=4, env_steps=400, **{**SMALL, "buffer_size": 400})
    games: list[list[tuple[bytes, int]]] = [[] for _ in range(4)]
    known: dict[tuple[int, int], float | None] = {}
    count = [0] * 4
    while rig.clock.env_steps < 240:
        boards = TICTACTOE.boards(rig.obs)
        before = rig.clock.episodes
        rig.loop.iterate()
        after = rig.collector.obs
        for n in range(4):
            games[n].append((boards[n].tobytes(), count[n]))
            count[n] += 1
            if TICTACTOE.boards(after)[n].any():
                continue
            # The board is empty again: the game is over. Play its last move by the replay's record.
            last = rig.loop.replay.history(n)
            assert last.terminated[-1] == 1.0
            for back, (_, k) in enumerate(reversed(games[n])):
                known[n, k] = float(last.reward[-1]) * (-1.0) ** back
            games[n] = []
        assert rig.clock.episodes >= before
    assert rig.clock.episodes > 20
    sample = rig.loop.replay.sample(2000)
    for i, name in enumerate(sample.index.tolist()):
        k, n = divmod(name, 4)
        if sample.terminated[i]:
            assert sample.reward[i].item() == known[n, k]
        else:
            assert (n, k) not in known
    assert set(sample.reward.tolist()) >= {-1.0, 1.0}


def test_noise_and_draws_are_for_exploring_alone() -> None:
    algorithm = make(simulations=30, sampled_moves=9)
    obs = TICTACTOE.observe(TICTACTOE.initial(200))
    moves = algorithm.act(obs, None, True)
    assert len(np.unique(moves.action)) > 3
    np.testing.assert_allclose(moves.extras["visits"].sum(1), 1.0, rtol=1e-5)
    best = algorithm.act(obs, None, False)
    assert len(np.unique(best.action)) == 1 and not best.extras


def test_self_play_has_a_number_of_simulations_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def counted(*args: Any, simulations: int, **options: Any) -> Any:
        counts.append(simulations)
        return tree_search.search(*args, simulations=simulations, **options)

    monkeypatch.setattr("assay.policies.search.search", counted)
    obs = TICTACTOE.observe(TICTACTOE.initial(2))
    for settings in ({"simulations": 5}, {"simulations": 5, "training_simulations": 3}):
        algorithm = make(**settings)
        for explore in (False, True):
            algorithm.act(obs, None, explore)
    assert counts == [5, 5, 5, 3]
    make(simulations=0, training_simulations=3)


def test_moves_are_drawn_at_the_start_of_games_only() -> None:
    algorithm = make(simulations=30, sampled_moves=1, noise_share=0.0)
    started = TICTACTOE.play(TICTACTOE.initial(100), np.zeros(100, np.int64)).boards
    assert len(np.unique(algorithm.act(TICTACTOE.observe(started), None, True).action)) == 1
    fresh = TICTACTOE.observe(TICTACTOE.initial(100))
    assert len(np.unique(algorithm.act(fresh, None, True).action)) > 1


def test_first_moves_are_at_random_half_the_time() -> None:
    """A position with one good move: half the games play it, the others any of seven columns."""
    algorithm = make(CONNECT_FOUR, simulations=30, sampled_moves=0, random_moves=7, noise_share=0.0)
    # x has three in a row at the bottom, and wins in column 3: six pieces are on the board.
    board = np.zeros((1, 42), np.int8)
    board[0, 35:38], board[0, 28:31] = 1, -1
    obs = CONNECT_FOUR.observe(np.repeat(board, 1400, 0))
    moves = algorithm.act(obs, None, True)
    counts = np.bincount(moves.action, minlength=7)
    # 1400 (1/2 + 1/14) = 800 with a deviation of 19, and 100 of each other with one of 10
    assert 720 < counts[3] < 880 and (np.delete(counts, 3) > 60).all()
    # What is learned is what the search found.
    assert (moves.extras["visits"].argmax(1) == 3).all() and (moves.extras["value"] == 1.0).all()
    assert (algorithm.act(obs, None, False).action == 3).all()
    later = make(CONNECT_FOUR, simulations=30, sampled_moves=0, random_moves=6, noise_share=0.0)
    assert (later.act(obs, None, True).action == 3).all()


def test_random_first_moves_are_legal() -> None:
    algorithm = make(simulations=4, random_moves=9)
    full = np.array([[1, -1, 1, -1, 1, -1, 0, -1, 0]], np.int8)
    moves = algorithm.act(TICTACTOE.observe(np.repeat(full, 100, 0)), None, True).action
    assert set(moves.tolist()) <= {6, 8}


def test_the_agent_takes_wins_and_blocks_before_it_has_learned() -> None:
    algorithm = make(simulations=60)
    # x at 0, 1 and o at 3, 4 (x to move: 2 wins); o at 0, 1 and x at 3, 8 (x must block at 2)
    boards = np.array([[1, 1, 0, -1, -1, 0, 0, 0, 0], [-1, -1, 0, 1, 0, 0, 0, 0, 1]], np.int8)
    assert algorithm.act(TICTACTOE.observe(boards), None, False).action.tolist() == [2, 2]


# ---------------------------------------------------------------------- bad input


def test_other_environments_and_settings_are_refused() -> None:
    with pytest.raises(SpaceError, match="alphazero needs the rules of a board game"):
        make_algorithm("alphazero", spaces.Box(-1, 1, (3,)), spaces.Discrete(2), **SMALL)
    with pytest.raises(ConfigError, match="simulations=0 has nothing to learn from"):
        make(simulations=0)
    with pytest.raises(ConfigError, match="hidden"):
        make(hidden=())
    for settings in ({"channels": 8}, {"blocks": 1, "lines": True}, {"n_step": 3}):
        with pytest.raises(ConfigError, match=list(settings)[-1]):
            make(**settings)


def test_lines_of_one_side_alone_are_seen() -> None:
    network = make(lines=True).network
    # x at 0, 1 and o at 4: row 0 has two of x; column 2 nothing; the diagonals are mixed or o's.
    board = torch.tensor([[1.0, 1.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]])
    found, cells = network._line_features(board)
    lines = [tuple(line) for line in TICTACTOE.lines.tolist()]
    rows = found.view(4, 8)  # x 1, x 2, o 1, o 2 of each line
    seen = [[lines[i] for i in row.nonzero().flatten()] for row in rows]
    assert seen == [[(0, 3, 6)], [(0, 1, 2)], [(3, 4, 5), (2, 4, 6)], []]
    assert cells[0].nonzero().flatten().tolist() == [2]  # of x; the other's would be 9 more
    assert network._line_features(-board)[1][0].nonzero().flatten().tolist() == [9 + 2]
    assert network(TICTACTOE_EMPTY).shape == (1, 10)


def test_residual_blocks_see_the_board() -> None:
    algorithm = make(CONNECT_FOUR, blocks=2, channels=8)
    board = np.zeros((2, 6, 7), np.float32)
    board[1, 5, 3] = 1.0
    out = algorithm.network({"connect_four": torch.from_numpy(board)})
    assert out.shape == (2, 8) and not torch.equal(out[0], out[1])
    seen = {"connect_four": board, "action_mask": np.ones((2, 7), np.int8)}
    sample = make_batch(
        obs=seen, next_obs=seen, action=[0, 0], reward=[1.0, -1.0], terminated=[1.0, 1.0],
        visits=np.eye(7)[:2], value=[0.0, 0.0],
    )  # fmt: skip
    data = CannedReplay(sample)
    before = algorithm.network.blocks[0].second.weight.clone()
    algorithm.update(data)
    algorithm.update(data)
    assert not torch.equal(before, algorithm.network.blocks[0].second.weight)


# ---------------------------------------------------------------------- learning


class Playing:
    """A policy as a player."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def choose(self, boards: np.ndarray, draws: np.ndarray) -> np.ndarray:
        return self.policy.act(TICTACTOE.observe(boards), None, False).action


def all_games(policy: Any) -> list[tuple[int, int, int]]:
    """Return wins, draws and losses against every way to reply, from both seats."""
    return [play_all_replies(TICTACTOE, Playing(policy), first=first) for first in (True, False)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_learns_tic_tac_toe(seed: int) -> None:
    """It hardly ever loses, against every reply, with or without search; untrained it does.

    One that learns visits of another board stays there. Which player's value is learned is pinned
    by the outcomes in the replay and the loss by hand: exact proofs cover a wrong one up here.
    """
    rig = Rig(
        "alphazero", "tictactoe", seed=seed, num_envs=64, env_steps=3_000, simulations=16,
        learning_starts=256, train_every=64, updates=8, batch_size=128, hidden=(128,),
        buffer_size=8000, lr=3e-3,
    )  # fmt: skip
    policy = rig.algorithm.policy
    full, policy.options = policy.options, _without_search(policy.options)
    before = all_games(policy)
    policy.options = full
    rig.train()
    searched = all_games(policy)
    policy.options = _without_search(policy.options)
    tried = (before, searched, all_games(policy))
    lost = [sum(t[2] for t in tallies) / sum(map(sum, tallies)) for tallies in tried]
    assert lost[0] > 0.4 and lost[1] < 0.05 and lost[2] < 0.1, lost
