"""`assay evaluate equilibria`: how far strategies of a game are from equilibria."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import ConfigError
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.functional.games.tree import Floats, GameTree

_TABLES = (".csv", ".json")


def equilibria(
    game: str = typer.Argument(
        ..., metavar="GAME_OR_TABLE", help="A game, or a pay-off table in FILE.csv or FILE.json."
    ),
    policies: list[str] = typer.Argument(
        None, metavar="[POLICY]...", help="uniform, runs, or strategy files. [default: uniform]"
    ),
    out: Path = typer.Option(
        None, "--out", help="A directory for report.md, report.json and pictures."
    ),
    pictures: str = typer.Option("svg", "--pictures", help="Their format: svg or png."),
    alpha: float = typer.Option(100.0, "--alpha", help="Alpha-rank: intensity of selection."),
    population: int = typer.Option(50, "--population", help="Alpha-rank: members of a population."),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far strategies are from equilibria: NashConv, exploitability, alpha-rank.

    In a game, every policy is measured exactly, and two or more are put into a pay-off table. A
    table is ranked by itself: equilibria, correlated-equilibrium gaps, replicator dynamics,
    alpha-rank, welfare and fairness.
    """
    from assay.envs.games.matrix import MATRIX_GAMES
    from assay.envs.games.registry import make_tree
    from assay.evaluation.equilibria import UNIFORM, measure_game, measure_table
    from assay.evaluation.equilibria_report import write_report
    from assay.evaluation.payoffs import PayoffTable, both_seats, computed_payoffs, read_payoffs

    found: dict[str, Any] = {}
    payoffs: PayoffTable | None = None
    if Path(game).suffix.lower() in _TABLES:
        if policies:
            raise ConfigError(
                f"'{policies[0]}' cannot be added: the pay-off table '{game}' has its strategies.",
                "Leave policies out, or name a game.",
            )
        payoffs = read_payoffs(Path(game))
    else:
        tree = make_tree(game)
        chosen = {text: _strategy(tree, text, root) for text in policies or [UNIFORM]}
        found["game"] = measure_game(tree, chosen)
        if game in MATRIX_GAMES:
            one = MATRIX_GAMES[game]
            payoffs = PayoffTable(game, (one.action_names,) * one.num_players, one.table)
        elif len(chosen) > 1:
            payoffs = computed_payoffs(tree, chosen)
            payoffs = both_seats(payoffs) if tree.num_players == 2 else payoffs
    if payoffs is not None:
        found["table"] = measure_table(payoffs, alpha=alpha, population=population)
    files = [] if out is None else write_report(out, found, payoffs, pictures)
    if as_json:
        output.print_json(found | {"files": [str(file) for file in files]})
        return
    _show(found)
    for file in files:
        output.say(f"Written: {file}")


def _strategy(tree: GameTree, text: str, root: Path | None) -> Floats:
    """Return the strategy of a policy; agents of other runs than CFR's are asked everything."""
    from assay.evaluation.equilibria import read_policy
    from assay.runs.directory import RUN_FILE, RunDirectory

    place = Path(text) if Path(text).is_file() else locate(text, root)
    if (place / RUN_FILE).is_file() and RunDirectory.open(place).config["algorithm"] != "cfr":
        from assay.best_responses import learned_strategy

        return learned_strategy(tree, place)
    return read_policy(tree, text, place)


def _show(found: dict[str, Any]) -> None:
    game, table = found.get("game"), found.get("table")
    if game is not None:
        rows = [
            (
                name,
                *(f"{one[key]:.6g}" for key in ("nash_conv", "exploitability")),
                ", ".join(number(value) for value in one["values"]),
                ", ".join(number(value) for value in one["best_response_values"]),
            )
            for name, one in game["policies"].items()
        ]
        columns = ("policy", "NashConv>", "exploitability>", "values>", "best responses>")
        output.show(output.table(columns, rows, title=game["game"]))
    if table is not None:
        profiles = [
            (name, *(f"{one[key]:.6g}" for key in ("nash_conv", "ce_gap", "cce_gap")),
             number(one["welfare"]["social_welfare"]))
            for name, one in table["profiles"].items()
        ]  # fmt: skip
        columns = ("profile", "NashConv>", "CE gap>", "CCE gap>", "welfare>")
        output.show(output.table(columns, profiles, title=f"pay-offs of {table['name']}"))
        if "alpha_rank" in table:
            ranks = [(r["profile"], f"{r['mass']:.4f}") for r in table["alpha_rank"]["ranking"]]
            output.show(output.table(("alpha-rank", "mass>"), ranks[:10]))
