"""Games: their rules, their trees, strategies as files, and one seat as an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.errors import AssayError, DataError, EnvError, MissingExtraError
from assay.envs.checks import check_env
from assay.envs.games import open_spiel
from assay.envs.games.base import History, compile_game
from assay.envs.games.kuhn import KuhnPoker
from assay.envs.games.leduc import LeducPoker
from assay.envs.games.matrix import MATRIX_GAMES, MatrixGame
from assay.envs.games.registry import OWN, make_game, make_tree
from assay.envs.games.seat import Seat, tabular
from assay.envs.games.strategies import read_strategy, strategy_from_dict
from assay.envs.make import make_vector
from assay.functional.games.best_response import exploitation
from assay.functional.games.cfr import cfr_iteration
from assay.functional.games.tree import CHANCE, TERMINAL, GameTree, normalized

KUHN = make_tree("kuhn_poker")


def follow(moment: History, *actions: int) -> History:
    for action in actions:
        assert action in moment.legal_actions()
        moment = moment.child(action)
    return moment


class TestRules:
    @pytest.mark.parametrize(
        ("cards", "moves", "won"),
        [
            ((0, 2), (0, 0), -1), ((2, 0), (0, 0), 1), ((0, 2), (1, 0), 1), ((0, 2), (1, 1), -2),
            ((2, 1), (0, 1, 0), -1), ((2, 1), (0, 1, 1), 2), ((0, 1), (0, 1, 1), -2),
        ],
    )  # fmt: skip
    def test_kuhn(self, cards: tuple[int, int], moves: Sequence[int], won: int) -> None:
        end = follow(KuhnPoker().start(), *cards, *moves)
        assert end.player == TERMINAL and list(end.returns()) == [won, -won]

    def test_what_a_player_of_kuhn_knows(self) -> None:
        moment = follow(KuhnPoker().start(), 1, 2, 0, 1)
        assert moment.player == 0 and moment.information() == "Qpb"
        assert list(moment.information_vector()) == [1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0]

    # Cards: J1 J2 Q1 Q2 K1 K2. Moves: fold 0, call 1, raise 2. The public card comes in between.
    @pytest.mark.parametrize(
        ("path", "won"),
        [
            ((4, 0, 2, 0), 1),  # a raise, and a fold: the ante
            ((4, 0, 1, 2, 2, 0), 3),  # check, raise 2, raise to 5, fold of 3
            ((4, 0, 1, 1, 2, 1, 1), 1),  # all check: the king wins the ante
            ((4, 0, 1, 1, 1, 1, 1), -1),  # the jack has a pair
            ((4, 0, 2, 1, 2, 2, 1), 7),  # 1 + 2 + 4
            ((4, 0, 1, 2, 2, 1, 2, 1, 2, 2, 1), 13),  # 1 + 4 + 8, the most there is
            ((4, 5, 2, 1, 2, 2, 1), 0),  # equal cards share
            ((4, 0, 2, 1, 2, 1, 2, 0), -3),  # check, raise, fold in the second round: 1 + 2
        ],
    )
    def test_leduc(self, path: Sequence[int], won: float) -> None:
        end = follow(LeducPoker().start(), *path)
        assert end.player == TERMINAL and list(end.returns()) == [won, -won]

    def test_what_is_legal_in_leduc(self) -> None:
        start = follow(LeducPoker().start(), 0, 1)
        assert list(start.legal_actions()) == [1, 2]  # nothing to fold to
        assert list(follow(start, 2).legal_actions()) == [0, 1, 2]
        assert list(follow(start, 2, 2).legal_actions()) == [0, 1]  # two raises are the most
        assert follow(start, 2, 1).player == CHANCE
        second = follow(start, 2, 1, 3)
        assert second.player == 0 and second.information() == "0:J1Q2:rc/"

    def test_matrices(self) -> None:
        for name, game in MATRIX_GAMES.items():
            tree = make_tree(name)
            assert tree.num_infosets == 2 and len(tree.parent) == 1 + len(game.table[0]) * (
                1 + len(game.table[0])
            )
        assert list(follow(MATRIX_GAMES["stag_hunt"].start(), 0, 1).returns()) == [0, 3]
        third = np.array([[1 / 4, 1 / 2, 1 / 4]] * 2)
        tree = make_tree("biased_rock_paper_scissors")
        assert exploitation(tree, third).nash_conv == pytest.approx(0.0)

    @pytest.mark.parametrize("name", OWN)
    def test_every_game_is_compiled_and_measured(self, name: str) -> None:
        tree = make_tree(name)
        found = exploitation(tree, tree.uniform())
        assert (found.gains >= -1e-9).all() and tree is make_tree(name)


class TestBadGames:
    def test_unknown_names(self) -> None:
        with pytest.raises(EnvError, match="Did you mean 'kuhn_poker'"):
            make_game("khun_poker")
        with pytest.raises(EnvError, match=r"no settings, and was given \['players'\]"):
            make_game("kuhn_poker", {"players": 3})

    def test_too_large(self) -> None:
        with pytest.raises(EnvError, match="more than 50 histories"):
            compile_game(KuhnPoker(), max_histories=50)

    def test_tables(self) -> None:
        with pytest.raises(EnvError, match="shape"):
            MatrixGame("odd", np.zeros((2, 2, 3)))
        with pytest.raises(EnvError, match="not finite"):
            MatrixGame("odd", [[[np.nan]], [[0.0]]])
        with pytest.raises(EnvError, match="2 actions and 1 names"):
            MatrixGame("odd", np.zeros((2, 2, 2)), ["one"])

    def test_information_sets_that_look_the_same(self) -> None:
        class Blind(MatrixGame):
            def start(self) -> Any:
                return Same(super().start())

        class Same(History):
            """A moment that gives no numbers."""

            def __init__(self, inner: Any) -> None:
                self.inner = inner

            player = property(lambda self: self.inner.player)  # type: ignore[assignment]

            def legal_actions(self) -> Sequence[int]:
                return self.inner.legal_actions()

            def chance_probabilities(self) -> Sequence[float]:
                return []

            def child(self, action: int) -> History:
                return Same(self.inner.child(action))

            def information(self) -> str:
                return self.inner.information()

            def information_vector(self) -> Sequence[float]:
                return [0.0]

            def returns(self) -> Sequence[float]:
                return self.inner.returns()

        with pytest.raises(EnvError, match="same numbers"):
            compile_game(Blind("blind", np.zeros((2, 2, 2))))


def _content(tree: GameTree, strategy: np.ndarray) -> dict[str, Any]:
    """Return what stands in a strategy file: legal actions by their names."""
    rows = zip(tree.infoset_names, strategy, tree.legal, strict=True)
    names = np.array(tree.action_names)
    table = {key: dict(zip(names[may], row[may], strict=True)) for key, row, may in rows}
    return {"game": tree.name, "strategy": table}


class TestStrategies:
    def test_a_file_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        strategy = normalized(rng.random(KUHN.legal.shape), KUHN.legal)
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(_content(KUHN, strategy)))
        np.testing.assert_allclose(read_strategy(KUHN, path), strategy, atol=1e-15)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: s.pop("Jb"), "lacks the information set 'Jb'"),
            (lambda s: s.update(Ab=[1, 0]), "'Ab', which is not an information set"),
            (lambda s: s.update(Jb=[0.5, 0.4]), "add up to 0.9, not 1"),
            (lambda s: s.update(Jb=[1.5, -0.5]), "below 0"),
            (lambda s: s.update(Jb=[1, 0, 0]), "3 numbers; expected 2"),
            (lambda s: s.update(Jb={"fold": 1.0}), "the action 'fold'; expected pass, bet"),
            (lambda s: s.update(Jb="often"), "not probabilities"),
        ],
    )
    def test_bad_ones_are_explained(self, change: Any, message: str) -> None:
        content = _content(KUHN, KUHN.uniform())
        change(content["strategy"])
        with pytest.raises(DataError, match=message):
            strategy_from_dict(KUHN, content)

    def test_other_bad_files(self, tmp_path: Path) -> None:
        leduc = make_tree("leduc_poker")
        content = _content(leduc, leduc.uniform())
        content["strategy"]["0:J1:"] = [1, 0, 0]
        with pytest.raises(DataError, match="'fold', which is not legal there"):
            strategy_from_dict(leduc, content)
        with pytest.raises(DataError, match="one for 'leduc_poker'"):
            strategy_from_dict(KUHN, content)
        with pytest.raises(DataError, match="no entry 'strategy'"):
            strategy_from_dict(KUHN, [])
        with pytest.raises(DataError, match="cannot be read"):
            read_strategy(KUHN, tmp_path / "nothing.json")
        (tmp_path / "bad.json").write_text("{")
        with pytest.raises(DataError, match="is not JSON"):
            read_strategy(KUHN, tmp_path / "bad.json")


class TestSeat:
    def test_it_is_a_sound_environment(self) -> None:
        for name in ("kuhn_poker", "leduc_poker", "stag_hunt"):
            assert all(result.ok for result in check_env(name, steps=200, seed=1))

    def test_returns_are_those_of_the_game(self) -> None:
        """Uniform play of the seat gets what the tree says: 1/8 in the first, -1/8 in the other."""
        for seat, expected in ((0, 1 / 8), (1, -1 / 8)):
            env = Seat("kuhn_poker", seat)
            env.reset(seed=seat)
            rng, got = np.random.default_rng(seat), []
            for _ in range(4000):
                env.reset()
                over = False
                while not over:
                    _, reward, over, _, _ = env.step(int(rng.integers(2)))
                got.append(reward)
            assert np.mean(got) == pytest.approx(expected, abs=0.08)  # 3 standard errors

    def test_the_opponent_is_who_was_given(self) -> None:
        always = np.tile([0.0, 1.0], (KUHN.num_infosets, 1))
        env = Seat("kuhn_poker", 1, tabular(KUHN, always))
        for seed in range(20):
            obs, _ = env.reset(seed=seed)
            assert obs["information"][5:7].tolist() == [0, 1]  # its first move is a bet

    def test_a_strategy_file_is_an_opponent(self, tmp_path: Path) -> None:
        path = tmp_path / "bets.json"
        always = np.tile([0.0, 1.0], (KUHN.num_infosets, 1))
        path.write_text(json.dumps(_content(KUHN, always)))
        settings = {"seat": 1, "opponent": str(path)}
        with make_vector("kuhn_poker", 4, env_kwargs=settings) as vector:
            assert (vector.reset(1)["information"][:, 6] == 1).all()

    def test_masks_are_what_is_legal(self) -> None:
        env = Seat("leduc_poker", 0)
        obs, _ = env.reset(seed=0)
        assert obs["action_mask"].tolist() == [0, 1, 1]
        with pytest.raises(
            EnvError, match=r"(?s)action 0 is not legal in '0:.*Legal are: \[1, 2\]"
        ) as e:
            env.step(0)
        assert isinstance(e.value, AssayError)

    def test_the_middle_of_a_game_is_saved(self) -> None:
        one, two = Seat("leduc_poker"), Seat("leduc_poker")
        one.reset(seed=3)
        two.reset(seed=4)
        one.step(1)
        two.set_state(one.get_state())
        np.testing.assert_array_equal(
            one._observation()["information"], two._observation()["information"]
        )

    def test_seats(self) -> None:
        with pytest.raises(EnvError, match="seat=2: 'kuhn_poker' has 2 players"):
            Seat("kuhn_poker", 2)
        env = Seat("kuhn_poker")
        seen = {int(env.reset(seed=s)[0]["information"][:2].argmax()) for s in range(20)}
        assert seen == {0, 1}

    def test_other_environments_are_no_games(self) -> None:
        with (
            make_vector("CartPole-v1", 1) as vector,
            pytest.raises(EnvError, match="'CartPole-v1' is not a game"),
        ):
            vector.game_tree()


class TestOpenSpiel:
    """Against the games, values and solvers of OpenSpiel itself."""

    @pytest.fixture(autouse=True)
    def spiel(self) -> Any:
        self.pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")

    @pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
    def test_our_games_are_its_games(self, name: str) -> None:
        own, theirs = make_tree(name), make_tree(f"openspiel/{name}")
        for field in ("parent", "action", "player", "infoset", "levels", "infoset_player", "legal"):
            np.testing.assert_array_equal(
                getattr(own, field), getattr(theirs, field), err_msg=field
            )
        np.testing.assert_allclose(own.returns, theirs.returns)
        np.testing.assert_allclose(own.chance, theirs.chance)

    @pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
    def test_values_are_its_values(self, name: str) -> None:
        game, tree = self.pyspiel.load_game(name), make_tree(name)
        policy = self.pyspiel.UniformRandomPolicy(game)
        assert exploitation(tree, tree.uniform()).nash_conv == pytest.approx(
            self.pyspiel.nash_conv(game, policy, True), abs=1e-9
        )

    @pytest.mark.parametrize(("name", "iterations"), [("kuhn_poker", 1000), ("leduc_poker", 20)])
    @pytest.mark.parametrize("plus", [False, True])
    def test_cfr_is_its_cfr(self, name: str, iterations: int, plus: bool) -> None:
        """Leduc for 1,000 iterations is in benchmarks/games.py."""
        game, tree = self.pyspiel.load_game(name), make_tree(f"openspiel/{name}")
        solver = (self.pyspiel.CFRPlusSolver if plus else self.pyspiel.CFRSolver)(game)
        regret, average = np.zeros(tree.legal.shape), np.zeros(tree.legal.shape)
        for iteration in range(1, iterations + 1):
            cfr_iteration(tree, regret, average, iteration, plus=plus)
            solver.evaluate_and_update_policy()
        policy, found = solver.average_policy(), normalized(average, tree.legal)
        for row, information in zip(found, tree.infoset_names, strict=True):
            theirs = policy.action_probabilities(information.partition(":")[2])
            for action, probability in theirs.items():
                assert row[action] == pytest.approx(probability, abs=1e-6)

    def test_alpha_rank_is_its_alpha_rank(self) -> None:
        alpharank = pytest.importorskip("open_spiel.python.egt.alpharank")
        from assay.functional.games.alpha_rank import alpha_rank

        rng = np.random.default_rng(0)
        first = rng.normal(size=(4, 4))
        for table in (np.stack([first, first.T]), rng.normal(size=(2, 3, 4))):
            for alpha in (0.1, 1.0):
                ours = alpha_rank(table, alpha=alpha, population=20)
                given = [table[0]] if ours.single else list(table)
                theirs = alpharank.compute(given, m=20, alpha=alpha)[2]
                np.testing.assert_allclose(ours.mass, theirs, atol=1e-8)

    def test_settings_and_simultaneous_games(self) -> None:
        three = compile_game(make_game("openspiel/kuhn_poker", {"players": 3}))
        assert three.num_players == 3 and three.num_infosets == 48
        pennies = make_tree("openspiel/matrix_mp")
        assert exploitation(pennies, pennies.uniform()).nash_conv == pytest.approx(0.0)

    def test_bad_names(self) -> None:
        with pytest.raises(EnvError, match="no game 'kuhn_pokr'"):
            make_game("openspiel/kuhn_pokr")
        with pytest.raises(EnvError, match="'tic_tac_toe' does not say what players know"):
            make_game("openspiel/tic_tac_toe")
        with pytest.raises(EnvError, match="more than 100 histories"):
            compile_game(make_game("openspiel/liars_dice"), max_histories=100)

    def test_a_seat_of_it_can_be_made_by_its_id(self) -> None:
        with make_vector("openspiel/leduc_poker", 2) as vector:
            assert vector.reset(0)["action_mask"].shape == (2, 3)


def test_without_openspiel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(MissingExtraError, match=r"assay\[openspiel\]"):
        open_spiel.OpenSpielGame("kuhn_poker")
