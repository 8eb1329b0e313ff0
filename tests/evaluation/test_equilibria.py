"""Equilibria are measured, pay-off tables read and played, and reports say what was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.errors import ConfigError, DataError
from assay.envs.games.kuhn import KuhnPoker
from assay.envs.games.matrix import MATRIX_GAMES
from assay.envs.games.registry import make_tree
from assay.envs.games.seat import tabular, uniform
from assay.evaluation.equilibria import measure_game, measure_strategy, measure_table, rank
from assay.evaluation.equilibria_report import markdown, write_report
from assay.evaluation.payoffs import (
    PayoffTable,
    both_seats,
    computed_payoffs,
    played_payoffs,
    read_payoffs,
)

KUHN = make_tree("kuhn_poker")
ALWAYS = np.tile([0.0, 1.0], (KUHN.num_infosets, 1))  # bets whatever it has


def matrix(name: str) -> PayoffTable:
    game = MATRIX_GAMES[name]
    return PayoffTable(name, (game.action_names,) * 2, game.table)


class TestFigures:
    def test_of_uniform_play(self) -> None:
        found = measure_strategy(KUHN, KUHN.uniform())
        assert found["nash_conv"] == pytest.approx(11 / 12)
        assert found["gains"] == pytest.approx([3 / 8, 13 / 24])
        assert found["welfare"]["social_welfare"] == pytest.approx(0.0)
        assert found["welfare"]["jain_index"] is None

    def test_of_the_prisoners(self) -> None:
        found = measure_table(matrix("prisoners_dilemma"))
        half = found["profiles"]["uniform"]
        # Returns (3 + 0 + 5 + 1) / 4; to defect gets 3.
        assert half["returns"] == pytest.approx([2.25, 2.25])
        assert half["nash_conv"] == half["cce_gap"] == pytest.approx(1.5)
        assert found["best_welfare"]["profile"] == "cooperate / cooperate"
        assert found["best_welfare"]["welfare"]["social_welfare"] == 6
        assert found["best_welfare"]["welfare"]["jain_index"] == pytest.approx(1.0)
        assert "nash" not in found["profiles"] and found["symmetric"]
        assert found["alpha_rank"]["ranking"][0] == {"profile": "defect", "mass": pytest.approx(1)}
        assert found["replicator_end"][0][1] == pytest.approx(1.0, abs=1e-6)

    def test_of_a_zero_sum_game_with_its_equilibrium(self) -> None:
        found = measure_table(matrix("biased_rock_paper_scissors"))
        nash = found["profiles"]["nash"]
        assert nash["strategies"][0] == pytest.approx([1 / 4, 1 / 2, 1 / 4])
        assert nash["nash_conv"] == pytest.approx(0.0) and nash["ce_gap"] == pytest.approx(0.0)
        # Uniform: rock gains 1/3, and so does rock of the other.
        assert found["profiles"]["uniform"]["nash_conv"] == pytest.approx(2 / 3)

    def test_numbers_out_of_range(self) -> None:
        for wrong in ({"alpha": 0.0}, {"population": 1}):
            with pytest.raises(ConfigError, match="expected a positive alpha"):
                measure_table(matrix("chicken"), **wrong)  # type: ignore[arg-type]

    def test_a_given_profile_is_judged(self) -> None:
        first = [np.array([1.0, 0.0])] * 2
        found = measure_table(matrix("stag_hunt"), profile=first)
        assert found["profiles"]["given"]["nash_conv"] == pytest.approx(0.0)
        assert found["profiles"]["given"]["returns"] == [4, 4]


class TestPayoffs:
    def test_computed_by_hand(self) -> None:
        """Who always bets meets itself: the higher card wins 2. Nobody gains on average."""
        found = computed_payoffs(KUHN, {"uniform": KUHN.uniform(), "always": ALWAYS})
        assert found.table[:, 1, 1] == pytest.approx([0, 0])
        assert found.table[:, 0, 0] == pytest.approx([1 / 8, -1 / 8])
        # Uniform against a bet: a fold loses 1, a call wins or loses 2: -1/2 on average.
        assert found.table[:, 1, 0] == pytest.approx([0.5, -0.5])
        assert found.strategies == (("uniform", "always"),) * 2

    def test_both_seats_are_averaged(self) -> None:
        found = both_seats(computed_payoffs(KUHN, {"uniform": KUHN.uniform(), "always": ALWAYS}))
        # Uniform first passes half the time, then is bet at: it loses 1 or plays for 2.
        # First seat: (pass: -1/2) and (bet, called: 0): -1/4; second seat: -1/2.
        assert found.table[0, 0, 1] == pytest.approx((-1 / 4 - 1 / 2) / 2)
        np.testing.assert_allclose(found.table[0], found.table[1].T)

    def test_played_ones_agree_within_their_errors(self) -> None:
        players = {"uniform": uniform, "always": tabular(KUHN, ALWAYS)}
        played = played_payoffs(KuhnPoker(), players, episodes=1500, seed=1)
        exact = computed_payoffs(KUHN, {"uniform": KUHN.uniform(), "always": ALWAYS})
        assert played.errors is not None and (played.errors > 0).all()
        assert (np.abs(played.table - exact.table) < 4 * played.errors).all()
        again = played_payoffs(KuhnPoker(), players, episodes=1500, seed=1)
        np.testing.assert_array_equal(again.table, played.table)


class TestFiles:
    def test_csv(self, tmp_path: Path) -> None:
        path = tmp_path / "league.csv"
        path.write_text("name, a, b\na, 0, 1.5\nb, -1.5, 0\n\n")
        found = read_payoffs(path)
        assert found.strategies == (("a", "b"),) * 2 and found.name == "league"
        np.testing.assert_array_equal(found.table[1], [[0, -1.5], [1.5, 0]])

    def test_json(self, tmp_path: Path) -> None:
        path = tmp_path / "table.json"
        path.write_text(json.dumps({"payoffs": [[1, 2], [3, 4]]}))
        assert read_payoffs(path).strategies[0] == ("strategy 0", "strategy 1")
        names = [["x", "y"], ["u", "v", "w"]]
        both = {"strategies": names, "payoffs": [np.ones((2, 3)).tolist()] * 2}
        path.write_text(json.dumps(both))
        assert read_payoffs(path).table.shape == (2, 2, 3)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("x.csv", "n,a,b\na,0,1\n", "1 rows and 2 columns"),
            ("x.csv", "", "must be square"),
            ("x.csv", "n,a,b\na,0,1\nb,2\n", "must be square"),
            ("x.csv", "n,a,b\nb,0,1\na,1,0\n", "rows of .* are b, a, and its columns a, b"),
            ("x.csv", "n,a\na,much\n", "not a number"),
            ("x.csv", "n,a,b\na,1,2\nb,3,nan\n", r"holds nan at \[1, 1\]"),
            ("x.csv", "n,a,a\na,0,1\na,1,0\n", "one name of its own"),
            ("x.json", "{", "is not JSON"),
            ("x.json", "[]", "no entry 'payoffs'"),
            ("x.json", '{"payoffs": [[1, 2, 3], [4, 5, 6]]}', r"shape \(2, 3\); it must be square"),
            ("x.json", '{"payoffs": [[1, 2], [3]]}', "rows of different lengths"),
            ("x.json", '{"payoffs": [[[1, 2], [3, 4]]]}', "one table for each player"),
            ("x.json", '{"payoffs": [[1]], "strategies": ["a", "b"]}', "1 strategies and the na"),
        ],
    )  # fmt: skip
    def test_bad_ones_are_explained(
        self, name: str, text: str, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=message):
            read_payoffs(tmp_path / name)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be read"):
            read_payoffs(tmp_path / "nothing.csv")


class TestReport:
    @pytest.mark.parametrize("picture", ["svg", "png"])
    @pytest.mark.parametrize(
        "name", ["rock_paper_scissors", "battle_of_the_sexes", "prisoners_dilemma"]
    )
    def test_files(self, name: str, picture: str, tmp_path: Path) -> None:
        payoffs = matrix(name)
        found: dict[str, Any] = {"table": measure_table(payoffs)}
        files = write_report(tmp_path / "out", found, payoffs, picture)
        names = {"payoffs", "replicator", "alpha_rank"}
        assert {f.name for f in files} == {"report.md", "report.json"} | {
            f"{stem}.{picture}" for stem in names
        }
        assert all(file.stat().st_size > 500 for file in files)
        assert json.loads((tmp_path / "out/report.json").read_text()) == json.loads(
            json.dumps(found)
        )
        text = (tmp_path / "out/report.md").read_text()
        assert f"![replicator](replicator.{picture})" in text

    def test_more_strategies_are_drawn_over_time(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(1)
        names = tuple("abcd"), tuple("xyz")
        payoffs = PayoffTable("random", names, rng.normal(size=(2, 4, 3)))
        files = write_report(tmp_path, {"table": measure_table(payoffs)}, payoffs)
        assert "player 1: share" in files[3].read_text()

    def test_the_same_figures_give_the_same_files(self, tmp_path: Path) -> None:
        payoffs = matrix("chicken")
        found = {"table": measure_table(payoffs)}
        one = write_report(tmp_path / "one", found, payoffs)
        two = write_report(tmp_path / "two", found, payoffs)
        assert [f.read_bytes() for f in one] == [f.read_bytes() for f in two]

    def test_numbers_can_be_quoted(self) -> None:
        text = markdown({"game": measure_game(KUHN, {"uniform": KUHN.uniform()})})
        assert "| uniform | 0.916667 | 0.458333 | 0.125 | -0.125 | 0.5 | 0.416667 |" in text
        assert "58 histories, 12 information sets" in text

    def test_another_picture(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="Pictures as 'gif': expected svg or png"):
            write_report(tmp_path, {}, None, "gif")

    def test_too_many_profiles_are_not_ranked(self) -> None:
        wide = PayoffTable("wide", (tuple("abcdefghijklmnopqrstu"),) * 2, np.zeros((2, 21, 21)))
        wide.table[0, 0, 1] = 1.0  # not symmetric: 441 profiles
        assert rank(wide, alpha=1.0, population=5) is None
