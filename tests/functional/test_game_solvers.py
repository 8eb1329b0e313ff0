"""Solvers and measures of games, by numbers that were worked out by hand or are published."""

from __future__ import annotations

import numpy as np
import pytest

from assay.core.errors import AssayError, ConfigError
from assay.envs.games.base import compile_game
from assay.envs.games.matrix import MATRIX_GAMES, MatrixGame
from assay.envs.games.registry import make_tree
from assay.functional.games import normal_form as nf
from assay.functional.games.alpha_rank import alpha_rank, fixation, stationary
from assay.functional.games.best_response import best_response, exploitation
from assay.functional.games.cfr import cfr_iteration, regret_matching
from assay.functional.games.fictitious_play import fictitious_play
from assay.functional.games.psro import psro
from assay.functional.games.tree import Floats, GameTree, normalized
from assay.functional.games.welfare import gini, jain_index, welfare

KUHN, LEDUC = make_tree("kuhn_poker"), make_tree("leduc_poker")
BIASED = make_tree("biased_rock_paper_scissors")


def kuhn(**bets: float) -> Floats:
    """Return a strategy by how often it bets in each information set; 0 where nothing is said."""
    strategy = np.zeros(KUHN.legal.shape)
    for name, index in KUHN.infoset_index.items():
        strategy[index] = 1 - bets.get(name, 0.0), bets.get(name, 0.0)
    return strategy


def equilibrium(alpha: float) -> Floats:
    """Return Kuhn's equilibrium in which the first player bluffs with a jack that often."""
    first = {"J": alpha, "K": 3 * alpha, "Qpb": alpha + 1 / 3, "Kpb": 1.0}
    return kuhn(**first, Jp=1 / 3, Kp=1.0, Qb=1 / 3, Kb=1.0)


def solve(tree: GameTree, iterations: int, **options: bool) -> tuple[Floats, Floats]:
    regret, average = np.zeros(tree.legal.shape), np.zeros(tree.legal.shape)
    for iteration in range(1, iterations + 1):
        cfr_iteration(tree, regret, average, iteration, **options)
    return regret, normalized(average, tree.legal)


class TestTree:
    def test_sizes_are_those_of_the_games(self) -> None:
        assert (len(KUHN.parent), KUHN.num_infosets) == (58, 12)
        assert (len(LEDUC.parent), LEDUC.num_infosets) == (9457, 936)

    def test_chance_and_players_make_histories_likely(self) -> None:
        reached = LEDUC.reach(LEDUC.edges(LEDUC.uniform()))
        assert reached[LEDUC.player == -2].sum() == pytest.approx(1.0)

    def test_expected_returns_of_uniform_play(self) -> None:
        # Six deals. Both pass: the higher card wins 1. A fold wins 1, a call is for 2.
        assert KUHN.expected_returns(KUHN.uniform()) == pytest.approx([1 / 8, -1 / 8])
        assert LEDUC.expected_returns(LEDUC.uniform()) == pytest.approx([-0.078125, 0.078125])

    def test_expected_length(self) -> None:
        # One decision, then always a second, and a third after pass and bet: 2 + 1/4.
        assert KUHN.expected_length(KUHN.uniform()) == pytest.approx(2.25)

    def test_own_depth_counts_own_decisions(self) -> None:
        depth = {name: KUHN.own_depth[i] for name, i in KUHN.infoset_index.items()}
        assert depth["J"] == depth["Kb"] == 0 and depth["Qpb"] == 1

    def test_players_are_combined_by_their_own_sets(self) -> None:
        pure = kuhn(**dict.fromkeys(KUHN.infoset_names, 1.0))
        both = KUHN.combine([KUHN.uniform(), pure])
        np.testing.assert_array_equal(both[KUHN.infoset_index["J"]], [0.5, 0.5])
        np.testing.assert_array_equal(both[KUHN.infoset_index["Jb"]], [0, 1])


class TestExploitation:
    def test_uniform_strategies_have_the_published_values(self) -> None:
        found = exploitation(KUHN, KUHN.uniform())
        assert found.nash_conv == pytest.approx(11 / 12, abs=1e-12)
        assert found.best == pytest.approx([1 / 2, 5 / 12])
        assert found.exploitability == pytest.approx(11 / 24)
        assert exploitation(LEDUC, LEDUC.uniform()).nash_conv == pytest.approx(4.7472222, abs=1e-7)

    @pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
    def test_kuhns_equilibria_cannot_be_exploited(self, alpha: float) -> None:
        found = exploitation(KUHN, equilibrium(alpha))
        assert found.nash_conv == pytest.approx(0.0, abs=1e-12)
        assert found.values == pytest.approx([-1 / 18, 1 / 18])

    def test_a_little_off_can_be(self) -> None:
        assert exploitation(KUHN, equilibrium(0.5)).nash_conv > 0.05

    def test_who_always_bets_is_called_with_a_queen_and_a_king(self) -> None:
        always = kuhn(**dict.fromkeys(KUHN.infoset_names, 1.0))
        answer, value = best_response(KUHN, always, 1)
        row = {name: answer[i].tolist() for name, i in KUHN.infoset_index.items()}
        # A call with the queen wins 2 or loses 2, which beats a fold for 1.
        assert row["Jb"] == [1, 0] and row["Qb"] == [0, 1] and row["Kb"] == [0, 1]
        # J folds: -1. Q: (2 - 2) / 2 = 0. K: 2. On average 1 / 3.
        assert value == pytest.approx(1 / 3)
        np.testing.assert_array_equal(answer[KUHN.infoset_player == 0][:, 1], 1.0)

    def test_three_players(self) -> None:
        table = np.zeros((3, 2, 2, 2))
        table[2, 0, 0, 1] = 4.0  # the third gains by its second action if the others stay
        tree = compile_game(MatrixGame("three", table))
        assert exploitation(tree, tree.uniform()).gains == pytest.approx([0, 0, 0.5])


class TestCFR:
    def test_one_iteration_by_hand(self) -> None:
        """Against uniform play rock is worth (0 - 1 + 2) / 3, paper 0, scissors -1/3."""
        regret, average = np.zeros((2, 3)), np.zeros((2, 3))
        cfr_iteration(BIASED, regret, average, 1)
        assert regret[0] == pytest.approx([1 / 3, 0, -1 / 3])
        # The first player has rock by now. Against it: 0, 1 and -2, and -1/3 on average.
        assert regret[1] == pytest.approx([1 / 3, 4 / 3, -5 / 3])
        assert regret_matching(regret, BIASED)[1] == pytest.approx([1 / 5, 4 / 5, 0])

    def test_without_turns_both_see_the_same(self) -> None:
        regret, average = np.zeros((2, 3)), np.zeros((2, 3))
        cfr_iteration(BIASED, regret, average, 1, alternating=False)
        assert regret[1] == pytest.approx([1 / 3, 0, -1 / 3])

    def test_the_average_by_hand(self) -> None:
        _, average = solve(BIASED, 2)  # uniform, then rock
        assert average[0] == pytest.approx([2 / 3, 1 / 6, 1 / 6])
        _, average = solve(BIASED, 2, plus=True)  # weights 1 and 2
        assert average[0] == pytest.approx([7 / 9, 1 / 9, 1 / 9])

    def test_plus_forgets_negative_regret(self) -> None:
        regret, _ = solve(BIASED, 1, plus=True)
        assert regret[1] == pytest.approx([1 / 3, 4 / 3, 0])

    def test_counterfactual_regret_by_hand(self) -> None:
        """A jack that passes gets -1 or -1.5, one that bets 1 or -2; deals have 1/6 each."""
        regret, _ = solve(KUHN, 1)
        # pass: (-1 - 1.5) / 2 = -1.25; bet: (1 - 2) / 2 = -0.5; mean -0.875; two deals of 1/6.
        assert regret[KUHN.infoset_index["J"]] == pytest.approx([-0.125, 0.125])

    def test_it_finds_kuhns_value(self) -> None:
        _, average = solve(KUHN, 300)
        assert exploitation(KUHN, average).exploitability < 0.005
        assert KUHN.expected_returns(average)[0] == pytest.approx(-1 / 18, abs=0.003)

    def test_plus_is_faster(self) -> None:
        plain, plus = solve(KUHN, 200)[1], solve(KUHN, 200, plus=True)[1]
        found = [exploitation(KUHN, one).exploitability for one in (plain, plus)]
        assert found[1] < found[0] / 3


def test_fictitious_play_comes_close_in_kuhn() -> None:
    assert exploitation(KUHN, fictitious_play(KUHN, 700)).exploitability < 0.01


def test_fictitious_play_by_hand() -> None:
    """Against uniform play rock is the best response of both: half uniform, half rock."""
    average = fictitious_play(BIASED, 1)
    assert average == pytest.approx(np.array([[2 / 3, 1 / 6, 1 / 6]] * 2))


class TestPSRO:
    def test_the_double_oracle_solves_small_games(self) -> None:
        found = psro(BIASED, 20)
        assert found.converged and found.nash_conv[-1] == pytest.approx(0.0, abs=1e-9)
        assert found.strategy[0] == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=1e-6)
        found = psro(KUHN, 30)
        assert found.converged and found.nash_conv[-1] < 1e-9
        assert found.nash_conv[0] == pytest.approx(11 / 12)

    def test_a_mixture_plays_as_one_that_was_drawn(self) -> None:
        found = psro(KUHN, 3)
        assert KUHN.expected_returns(found.strategy) == pytest.approx(
            nf.expected_payoffs(found.table, nf.joint(found.profile))
        )

    @pytest.mark.parametrize(("meta", "most"), [("uniform", 0.3), ("replicator", 0.3)])
    def test_other_meta_solvers_come_closer(self, meta: str, most: float) -> None:
        assert psro(KUHN, 5, meta=meta).nash_conv[-1] < most  # type: ignore[arg-type]

    def test_a_dilemma_is_answered_by_defection(self) -> None:
        tree = make_tree("prisoners_dilemma")
        found = psro(tree, 2, meta="replicator")
        assert found.strategies[0][-1][0].tolist() == [0, 1]

    def test_bad_input(self) -> None:
        with pytest.raises(ConfigError, match="meta='magic'"):
            psro(KUHN, 1, meta="magic")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="zero-sum"):
            psro(make_tree("prisoners_dilemma"), 1)


class TestNormalForm:
    def test_equilibria_by_linear_programming(self) -> None:
        x, y, value = nf.zero_sum_nash(np.array([[3.0, -1.0], [-2.0, 1.0]]))
        # x: 3p - 2(1-p) = -p + (1-p) gives p = 3/7; the value is 1/7; y: 3q - (1-q) = 1/7.
        assert x == pytest.approx([3 / 7, 4 / 7]) and value == pytest.approx(1 / 7)
        assert y == pytest.approx([2 / 7, 5 / 7])
        with pytest.raises(AssayError, match="finite"):
            nf.zero_sum_nash(np.array([[np.nan]]))

    def test_deviation_gains_by_hand(self) -> None:
        table = MATRIX_GAMES["prisoners_dilemma"].table
        # All cooperate: 3 each; to defect gets 5.
        assert nf.deviation_gains(table, [np.array([1.0, 0.0])] * 2) == pytest.approx([2, 2])

    def test_the_traffic_light_is_a_correlated_equilibrium(self) -> None:
        """Aumann's chicken: each of three outcomes a third of the time, better than any mixed."""
        first = np.array([[6.0, 2.0], [7.0, 0.0]])
        table = np.stack([first, first.T])
        light = np.array([[1.0, 1.0], [1.0, 0.0]]) / 3
        assert nf.correlated_gap(table, light) == pytest.approx(0.0)
        assert nf.coarse_correlated_gap(table, light) == pytest.approx(0.0)
        assert nf.expected_payoffs(table, light) == pytest.approx([5, 5])
        # Always (6, 6): each gains 1 by the second action.
        both = np.array([[1.0, 0.0], [0.0, 0.0]])
        assert nf.correlated_gap(table, both) == pytest.approx(2.0)
        assert nf.coarse_correlated_gap(table, both) == pytest.approx(2.0)

    def test_a_coarse_equilibrium_need_not_be_a_correlated_one(self) -> None:
        """Rock, paper, scissors without ties: each tie is worse than leaving at random."""
        table = MATRIX_GAMES["rock_paper_scissors"].table
        ties = np.eye(3) / 3
        # Told rock, paper wins 1, a third of the time, for each action and each player.
        assert nf.correlated_gap(table, ties) == pytest.approx(2.0)
        assert nf.coarse_correlated_gap(table, ties) == pytest.approx(0.0)

    def test_replicator_by_hand(self) -> None:
        table = MATRIX_GAMES["prisoners_dilemma"].table
        half = np.array([0.5, 0.5])
        # Cooperation is worth 1.5, defection 3, on average 2.25.
        assert nf.replicator(table, [half, half])[0] == pytest.approx([-0.375, 0.375])
        path = nf.replicator_path(table, [half, half], steps=400)
        assert path[0][-1][1] > 0.999

    def test_replicator_keeps_its_invariant(self) -> None:
        """In rock, paper, scissors the product of the shares is constant."""
        table = MATRIX_GAMES["rock_paper_scissors"].table
        start = np.array([0.5, 0.3, 0.2])
        path = nf.replicator_path(table, [start, start], steps=500, dt=0.02)[0]
        assert path.prod(axis=1) == pytest.approx(0.03, abs=1e-7)

    def test_kinds(self) -> None:
        kinds = {
            n: (nf.is_zero_sum(g.table), nf.is_symmetric(g.table)) for n, g in MATRIX_GAMES.items()
        }
        assert kinds["rock_paper_scissors"] == (True, True)
        assert kinds["matching_pennies"] == (True, False)
        assert kinds["stag_hunt"] == (False, True)
        assert kinds["battle_of_the_sexes"] == (False, False)


class TestAlphaRank:
    def test_fixation_by_hand(self) -> None:
        assert fixation(0.0, 50) == pytest.approx(1 / 50)
        e = np.e
        assert fixation(1.0, 2) == pytest.approx((1 - 1 / e) / (1 - 1 / e**2))
        assert fixation(-1.0, 2) == pytest.approx((1 - e) / (1 - e**2))
        assert fixation(1e5, 50) == 1.0 and 0 < fixation(-1e5, 50) < 1e-50

    def test_stationary_by_hand(self) -> None:
        """Detailed balance: 0.2 p0 = 0.6 p1."""
        assert stationary(np.array([[0.8, 0.2], [0.6, 0.4]])) == pytest.approx([0.75, 0.25])

    def test_a_cycle_is_shared_and_a_winner_takes_all(self) -> None:
        found = alpha_rank(MATRIX_GAMES["rock_paper_scissors"].table)
        assert found.single and found.mass == pytest.approx([1 / 3] * 3)
        found = alpha_rank(MATRIX_GAMES["prisoners_dilemma"].table)
        assert found.mass == pytest.approx([0, 1])

    def test_two_populations(self) -> None:
        found = alpha_rank(MATRIX_GAMES["battle_of_the_sexes"].table)
        assert found.profiles == ((0, 0), (0, 1), (1, 0), (1, 1)) and not found.single
        # Both pure equilibria: leaving one costs a player 3 in one population, 2 in the other.
        assert found.mass == pytest.approx([0.5, 0, 0, 0.5])


class TestWelfare:
    def test_by_hand(self) -> None:
        shares = np.array([1.0, 3.0])
        assert jain_index(shares) == pytest.approx(16 / 20)
        assert gini(shares) == pytest.approx(4 / (2 * 2 * 4))
        found = welfare(shares)
        assert found["social_welfare"] == 4 and found["worst_off"] == 1
        assert found["nash_welfare"] == pytest.approx(np.sqrt(3))

    def test_equal_and_unequal_shares(self) -> None:
        assert jain_index(np.ones(5)) == pytest.approx(1.0) and gini(np.ones(5)) == 0.0
        assert jain_index(np.array([0.0, 0, 0, 7])) == pytest.approx(1 / 4)
        assert gini(np.array([0.0, 0, 0, 7])) == pytest.approx(3 / 4)

    def test_losses_have_no_shares(self) -> None:
        assert jain_index(np.array([-1.0, 1.0])) is None and gini(np.array([-1.0, 2.0])) is None
        assert jain_index(np.zeros(2)) is None
