"""Matches, ratings, and leagues of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.core.errors import AssayError, ConfigError, RunError
from assay.envs.boards.players import RandomPlayer, make_player
from assay.evaluation.matches import Match, play_all_replies, play_match
from assay.evaluation.ratings import elo, opponent_weights, payoff, wilson
from assay.functional.boards import CONNECT_FOUR, TICTACTOE, BoardGame
from assay.league import League, evaluate_against

SMALL = {
    "hidden": (16,), "batch_size": 8, "learning_starts": 8, "simulations": 4, "num_envs": 4,
    "eval_every": 0, "sinks": (), "compile": False, "preset": False, "buffer_size": 400,
}  # fmt: skip


class Lowest:
    """Takes the first legal move."""

    def choose(self, boards: np.ndarray, draws: np.ndarray) -> np.ndarray:
        return (boards == 0).argmax(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a run of each game, and one of another environment."""
    root = tmp_path_factory.mktemp("runs")
    made = {}
    for game in ("tictactoe", "connect_four"):
        run = assay.train(
            "alphazero", game, root=root, name=game, env_steps=64, checkpoint_every=24,
            keep_checkpoints=9, **SMALL,
        )  # fmt: skip
        made[game] = run.path
    other = assay.train(
        "dqn", "CartPole-v1", root=root, name="cartpole", env_steps=300, learning_starts=50,
        eval_every=0, sinks=(), compile=False,
    )  # fmt: skip
    return made | {"cartpole": other.path}


# ---------------------------------------------------------------------- matches


def test_a_match_of_two_who_always_do_the_same_by_hand() -> None:
    """Both take the lowest free cell: X 0, 2, 4, 6 and O 1, 3, 5, so X has the diagonal 2, 4, 6."""
    match = play_match(TICTACTOE, Lowest(), Lowest(), games=10, seed=0, opening=0)
    assert match == Match(first=(5, 0, 0), second=(0, 0, 5), distinct=2)
    assert match.tally == (5, 0, 5) and match.score == 0.5


def test_openings_are_played_from_both_seats() -> None:
    """So a player against itself has the same games twice, with the roles exchanged."""
    match = play_match(CONNECT_FOUR, Lowest4(), Lowest4(), games=60, seed=3, opening=2)
    assert match.first == match.second[::-1]
    assert 2 < match.distinct <= 60


class Lowest4(Lowest):
    """Takes the first column with room."""

    def choose(self, boards: np.ndarray, draws: np.ndarray) -> np.ndarray:
        return CONNECT_FOUR.legal(boards).argmax(1)


def test_perfect_beats_random_and_draws_with_itself() -> None:
    perfect, anybody = make_player(TICTACTOE, "perfect"), RandomPlayer(TICTACTOE)
    match = play_match(TICTACTOE, perfect, anybody, games=100, seed=0, opening=0)
    assert match.tally[2] == 0 and match.tally[0] > 60
    assert play_match(TICTACTOE, perfect, perfect, games=40, seed=0).tally == (0, 40, 0)
    mirrored = play_match(TICTACTOE, anybody, perfect, games=100, seed=0, opening=0)
    assert mirrored.tally[0] == 0
    again = play_match(TICTACTOE, perfect, anybody, games=100, seed=0, opening=0)
    assert again == match


def test_every_reply_is_tried() -> None:
    """A player of perfect moves loses no line, and who takes the lowest cell loses some."""
    perfect = make_player(TICTACTOE, "perfect")
    for first in (True, False):
        assert play_all_replies(TICTACTOE, perfect, first=first)[2] == 0
        assert play_all_replies(TICTACTOE, Lowest(), first=first)[2] > 0
    # Two cells are free on this board of four: 2 x 2, two in a row; who begins always wins.
    tiny = BoardGame("tiny", 2, 2, 2)
    assert play_all_replies(tiny, Lowest(), first=True) == (3, 0, 0)
    # 4 first moves, of which the player's answer leaves the opponent 2 that both win.
    assert play_all_replies(tiny, Lowest(), first=False) == (0, 0, 8)


def test_bad_matches_are_refused() -> None:
    player = RandomPlayer(TICTACTOE)
    with pytest.raises(ConfigError, match="opening=5") as caught:
        play_match(TICTACTOE, player, player, games=2, seed=0, opening=5)
    assert "0 to 4" in caught.value.fix

    class Cheat:
        def choose(self, boards: np.ndarray, draws: np.ndarray) -> np.ndarray:
            return np.zeros(len(boards), np.int64)

    with pytest.raises(ConfigError, match="not legal in tictactoe"):
        play_match(TICTACTOE, Cheat(), Cheat(), games=2, seed=0)


# ---------------------------------------------------------------------- ratings


def test_wilson_by_hand() -> None:
    """8 of 10: centre (0.8 + 3.8415 / 20) / 1.38415, half width as in the formula."""
    z2 = 3.8414588
    centre = (0.8 + z2 / 20) / (1 + z2 / 10)
    half = math.sqrt(z2) * math.sqrt(0.8 * 0.2 / 10 + z2 / 400) / (1 + z2 / 10)
    found = wilson(8, 10)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), rel=1e-6)
    assert wilson(0, 5).low == pytest.approx(0.0, abs=1e-12) and wilson(5, 5).low < 0.6
    assert wilson(5, 5).high == pytest.approx(1.0)


def test_elo_recovers_ratings_that_games_were_drawn_from() -> None:
    true = np.array([300.0, 100.0, 0.0, -150.0, -250.0])
    chance = 1 / (1 + 10 ** ((true[None, :] - true[:, None]) / 400))
    games = np.full((5, 5), 20_000) - np.diag(np.full(5, 20_000))
    found = elo(chance * games, games)
    np.testing.assert_allclose([r.point for r in found], true - true.mean(), atol=1.0)
    assert sum(r.point for r in found) == pytest.approx(0.0, abs=1e-6)


def test_intervals_of_elo_cover_the_truth_as_often_as_they_say() -> None:
    true, rng = np.array([150.0, 0.0, -150.0]), np.random.default_rng(0)
    chance = 1 / (1 + 10 ** ((true[None, :] - true[:, None]) / 400))
    covered = []
    for _ in range(200):
        upper = np.triu(rng.binomial(50, chance), 1)
        scores = upper + np.tril(50 - upper.T, -1)
        found = elo(scores, np.full((3, 3), 50) - 50 * np.eye(3, dtype=int))
        covered += [r.low <= t <= r.high for r, t in zip(found, true, strict=True)]
    assert 0.91 < np.mean(covered) < 0.99


def test_who_won_everything_has_a_finite_rating() -> None:
    found = elo([[0, 10], [0, 0]], [[0, 10], [10, 0]])
    assert 100 < found[0].point < 1000 and found[0].low < found[0].point < found[0].high


def test_payoffs() -> None:
    shares = payoff([[0, 7.5], [2.5, 0]], [[0, 10], [10, 0]])
    np.testing.assert_array_equal(shares, [[np.nan, 0.75], [0.25, np.nan]])


def test_whom_to_play_next() -> None:
    rates = [0.9, 0.5, 0.0]
    np.testing.assert_allclose(opponent_weights(rates, "uniform"), [1 / 3] * 3)
    np.testing.assert_allclose(opponent_weights(rates, "recent"), [1 / 7, 2 / 7, 4 / 7])
    np.testing.assert_allclose(
        opponent_weights(rates, "hard"), np.array([0.01, 0.25, 1.0]) / 1.26, rtol=1e-6
    )
    np.testing.assert_allclose(opponent_weights(rates, "even"), [0.09 / 0.34, 0.25 / 0.34, 0.0])
    np.testing.assert_allclose(opponent_weights([1.0, 1.0], "hard"), [0.5, 0.5])
    with pytest.raises(ConfigError, match="no past version"):
        opponent_weights([], "uniform")
    with pytest.raises(ConfigError, match="'newest'"):
        opponent_weights([0.5], "newest")


# ---------------------------------------------------------------------- leagues


def test_an_agent_is_evaluated_against_players_and_runs(runs: dict[str, Path]) -> None:
    match = evaluate_against(runs["tictactoe"], "perfect", games=6, seed=1)
    assert match.games == 6
    same = evaluate_against(runs["tictactoe"], runs["tictactoe"], games=8, seed=1)
    assert same.first == same.second[::-1]
    searched = evaluate_against(
        runs["tictactoe"], "random", games=40, seed=1, settings={"simulations": 60}
    )
    assert searched.score > 0.8  # a search finds wins without having learned


def test_those_who_cannot_meet_are_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"plays connect_four, not tictactoe"):
        evaluate_against(runs["tictactoe"], runs["connect_four"], games=2)
    with pytest.raises(
        ConfigError, match=r"CartPole-v1', which is not a board game.\n.*`assay compare`"
    ):
        evaluate_against(runs["cartpole"], "random", games=2)
    with pytest.raises(AssayError, match="nowhere"):
        evaluate_against(runs["tictactoe"], Path("nowhere"), games=2)


def test_a_league_plays_rates_and_goes_on(runs: dict[str, Path], tmp_path: Path) -> None:
    league = League.new(tmp_path / "league", "tictactoe")
    league.add("perfect")
    league.add("random")
    past = league.add(runs["tictactoe"], versions=True)
    assert [m.name for m in past] == ["tictactoe@24", "tictactoe@48", "tictactoe@64"]
    assert not league.add(runs["tictactoe"], versions=True)  # they take part already
    assert league.play(4) == 10 * 4
    again = League.open(tmp_path / "league")
    assert again.members == league.members and again.play(4) == 0
    again.add(runs["tictactoe"], name="searching", settings={"simulations": 30})
    assert again.play(4) == 5 * 4  # only those of the new one
    assert again.play(6) == 15 * 2  # and two more of each pair
    table, paths = again.report()
    assert set(table.names) == {m.name for m in again.members}
    perfect, anybody = table.names.index("perfect"), table.names.index("random")
    assert perfect < anybody and table.payoffs[perfect, anybody] > 0.5
    np.testing.assert_allclose(
        table.payoffs[perfect, anybody] + table.payoffs[anybody, perfect], 1.0
    )
    assert (table.games.sum(1) == 6 * 5).all()
    content = json.loads(paths[1].read_text())
    assert content["game"] == "tictactoe" and len(content["players"]) == 6
    assert "| perfect |" in paths[0].read_text() and paths[2].stat().st_size > 5000


def test_bad_leagues_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no board game 'chess'"):
        League.new(tmp_path / "a", "chess")
    with pytest.raises(RunError, match="is not a league"):
        League.open(tmp_path)
    league = League.new(tmp_path / "b", "connect_four")
    with pytest.raises(ConfigError, match="is a league already"):
        League.new(tmp_path / "b", "connect_four")
    with pytest.raises(AssayError, match="no perfect player"):
        league.add("perfect")
    with pytest.raises(ConfigError, match="plays tictactoe, not connect_four"):
        league.add(runs["tictactoe"])
    with pytest.raises(ConfigError, match="no versions and no settings"):
        league.add("random", versions=True)
    with pytest.raises(ConfigError, match="has 0 player"):
        league.play(2)
    league.add("random")
    with pytest.raises(ConfigError, match="'random' already"):
        league.add("minimax:1", name="random")
    with pytest.raises(ConfigError, match="No game was played"):
        league.table()
    (tmp_path / "b" / "league.json").write_text('{"format": 9}')
    with pytest.raises(RunError, match="has format 9"):
        League.open(tmp_path / "b")
