"""`assay evaluate equilibria`, and runs of CFR on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli

from assay.envs.games.registry import make_tree


@pytest.fixture
def solved(cli: Cli, root: Path) -> Path:
    words = ("updates=40", "eval_every=0", "sinks=[]", "--name", "solved")
    done = cli("train", "cfr", "kuhn_poker", *words)
    assert done.exit_code == 0, done.output
    return root / "solved"


def test_uniform_play_is_the_default(cli: Cli) -> None:
    done = cli("evaluate", "equilibria", "kuhn_poker")
    assert done.exit_code == 0 and "0.916667" in done.output and "0.458333" in done.output


def test_policies_of_every_kind_and_a_report(cli: Cli, solved: Path, tmp_path: Path) -> None:
    always = {name: [0, 1] for name in make_tree("kuhn_poker").infoset_names}
    (tmp_path / "bets.json").write_text(json.dumps({"game": "kuhn_poker", "strategy": always}))
    words = ("evaluate", "equilibria", "kuhn_poker", "uniform", "solved", "bets.json")
    done = cli(*words, "--out", tmp_path / "report", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    policies = found["game"]["policies"]
    assert list(policies) == ["uniform", "solved", "bets.json"]
    assert policies["solved"]["exploitability"] < 0.05 < policies["uniform"]["exploitability"]
    assert found["table"]["alpha_rank"]["ranking"][0]["profile"] == "solved"
    assert len(found["files"]) == 5 and all(Path(file).is_file() for file in found["files"])


def test_a_table_of_a_league(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "league.csv").write_text("name,old,new\nold,0,-1\nnew,1,0\n")
    done = cli("evaluate", "equilibria", "league.csv")
    assert done.exit_code == 0 and "new" in done.output and "1.0000" in done.output


def test_the_table_that_a_league_writes(cli: Cli, tmp_path: Path) -> None:
    players = [{"name": "old", "elo": -100.0}, {"name": "new", "elo": 100.0}]
    league = {"game": "tictactoe", "players": players, "payoffs": [[None, 0.25], [0.75, None]]}
    (tmp_path / "table.json").write_text(json.dumps(league))
    done = cli("evaluate", "equilibria", "table.json", "--json")
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)["table"]
    assert table["payoffs"] == [[[0.0, -0.5], [0.5, 0.0]], [[0.0, 0.5], [-0.5, 0.0]]]
    league["payoffs"][0][1] = None  # type: ignore[index]
    (tmp_path / "table.json").write_text(json.dumps(league))
    done = cli("evaluate", "equilibria", "table.json")
    assert done.exit_code == 2 and "'old' and 'new' of 'table.json' have not met" in done.output


def test_a_run_of_cfr_is_evaluated_exactly(cli: Cli, solved: Path) -> None:
    done = cli("evaluate", "solved", "--json")
    found = json.loads(done.stdout)
    assert len(found["episodes"]) == 2 and found["mean"] == pytest.approx(-found["exploitability"])
    shown = cli("evaluate", "solved")
    assert "Exploitability" in shown.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("kun_poker",), "Did you mean 'kuhn_poker'"),
        (("kuhn_poker", "nobody"), "'nobody' is neither a run nor a file"),
        (("leduc_poker", "solved"), "learned 'kuhn_poker', and the game is 'leduc_poker'"),
        (("kuhn_poker", "half.json"), "lacks the information set 'J' and 11 more"),
        (("table.csv",), "must be square"),
        (("table.csv", "uniform"), "has its strategies"),
        (("kuhn_poker", "--alpha", "-1", "uniform", "solved"), "expected a positive alpha"),
    ],
)
def test_mistakes_are_explained(
    words: tuple[str, ...], message: str, cli: Cli, solved: Path, tmp_path: Path
) -> None:
    (tmp_path / "half.json").write_text('{"strategy": {}}')
    (tmp_path / "table.csv").write_text("n,a,b\na,1,2\n")
    done = cli("evaluate", "equilibria", *words)
    assert done.exit_code == 2 and message in " ".join(done.output.split())


def test_evaluate_itself_is_as_before(cli: Cli) -> None:
    done = cli("evaluate", "--help")
    assert done.exit_code == 0 and "--episodes" in done.output
    assert "--alpha" in cli("evaluate", "equilibria", "--help").output
