"""The report on equilibria: Markdown for people, JSON for programs, and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.core.errors import ConfigError
from assay.evaluation.equilibria import UNIFORM, rank
from assay.evaluation.formatting import markdown_table
from assay.evaluation.game_plots import plot_alpha_rank, plot_payoffs, plot_replicator
from assay.evaluation.payoffs import PayoffTable
from assay.runs.files import replacing

FORMATS = ("svg", "png")
_PROFILES = {
    "uniform": "all strategies alike",
    "nash": "Nash equilibrium (linear programme)",
    "replicator_average": "mean of the replicator dynamics",
    "given": "given",
}
_GAPS = ("nash_conv", "ce_gap", "cce_gap")
_WELFARE = {
    "social_welfare": "sum",
    "worst_off": "worst off",
    "nash_welfare": "geometric mean",
    "jain_index": "Jain index",
    "gini": "Gini",
}


def write_report(
    place: Path, found: Mapping[str, Any], payoffs: PayoffTable | None, picture: str = "svg"
) -> list[Path]:
    """Write `report.md`, `report.json` and the pictures of a pay-off table, and return the files.

    Args:
        place: The directory; it is made.
        found: What `assay.evaluation.equilibria` measured: `game` and `table`, each if there is.
        payoffs: What to draw.
        picture: "svg" or "png".

    Raises:
        ConfigError: There is no such kind of picture.
        RunError: A file cannot be written.
    """
    check_picture(picture)
    files, pictures = [], []
    if payoffs is not None:
        pictures.append(plot_payoffs(payoffs, place / f"payoffs.{picture}"))
        pictures.append(plot_replicator(payoffs, place / f"replicator.{picture}"))
        settings = found["table"].get("alpha_rank")
        if settings is not None:
            chosen = {key: settings[key] for key in ("alpha", "population")}
            ranking = rank(payoffs, **chosen)
            assert ranking is not None
            file = place / f"alpha_rank.{picture}"
            pictures.append(plot_alpha_rank(payoffs, ranking, file))
    for name, text in (
        ("report.json", json.dumps(found, indent=2) + "\n"),
        ("report.md", markdown(found, [file.name for file in pictures])),
    ):
        with replacing(place / name) as draft:
            draft.write_text(text, encoding="utf-8")
        files.append(place / name)
    return files + pictures


def check_picture(kind: str) -> None:
    """Refuse pictures of another kind than reports have."""
    if kind not in FORMATS:
        raise ConfigError(f"Pictures as '{kind}': expected {' or '.join(FORMATS)}.")


def markdown(found: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """Return the report as Markdown; numbers have six digits, as quoted ones should."""
    lines: list[str] = []
    game, table = found.get("game"), found.get("table")
    if game is not None:
        lines += [f"# Equilibria of {game['game']}", "", *_game_lines(game)]
    if table is not None:
        lines += [f"{'#' if game is None else '##'} Pay-offs of {table['name']}", ""]
        lines += _table_lines(table)
    for name in pictures:
        title = name.partition(".")[0].replace("_", " ")
        lines += [f"![{title}]({name})", ""]
    return "\n".join(lines)


def _game_lines(game: Mapping[str, Any]) -> list[str]:
    players = game["players"]
    lines = [
        f"{players} players, {game['histories']:,} histories, {game['information_sets']:,} "
        "information sets. All figures are exact: every history was counted.",
        "",
        "NashConv is what all players together could gain by best responses, each alone against "
        "the others; exploitability is NashConv over the number of players. Both are 0 in a Nash "
        "equilibrium.",
        "",
    ]
    head = ["policy", "NashConv", "exploitability"]
    head += [f"value {p}" for p in range(players)] + [f"best response {p}" for p in range(players)]
    rows = [
        [
            name,
            one["nash_conv"],
            one["exploitability"],
            *one["values"],
            *one["best_response_values"],
        ]
        for name, one in game["policies"].items()
    ]
    lines += _rows(head, rows)
    lines += ["", "What everybody gets when all follow the policy:", ""]
    lines += _welfare(game["policies"])
    return [*lines, ""]


def _table_lines(table: Mapping[str, Any]) -> list[str]:
    kind = "zero-sum" if table["zero_sum"] else "general-sum"
    symmetric = ", symmetric" if table["symmetric"] else ""
    first = table["strategies"][0]
    lines = [f"{len(table['strategies'])} players, {kind}{symmetric}.", ""]
    if len(table["strategies"]) == 2:
        for player, values in enumerate(table["payoffs"]):
            if player and (table["symmetric"] or table["zero_sum"]):
                continue
            lines += [
                f"What player {player} gets, for strategies of player 0 (rows) and 1 (columns):",
                "",
            ]
            rows = [[name, *row] for name, row in zip(first, values, strict=True)]
            lines += _rows(["", *table["strategies"][1]], rows)
            lines += [""]
    lines += [
        "How far profiles are from equilibria: NashConv; the gap to a correlated equilibrium (CE) "
        "and to a coarse one (CCE), for the joint distribution that the profile gives.",
        "",
    ]
    head = ["profile", "NashConv", "CE gap", "CCE gap"]
    head += [f"return {p}" for p in range(len(table["strategies"]))]
    each = table["profiles"]
    rows = [
        [_PROFILES.get(name, name), *(one[key] for key in _GAPS), *one["returns"]]
        for name, one in each.items()
    ]
    lines += [*_rows(head, rows), ""]
    for name, one in each.items():
        if name == UNIFORM:
            continue
        for player, shares in enumerate(one["strategies"]):
            pairs = zip(table["strategies"][player], shares, strict=True)
            text = ", ".join(f"{k} {_cell(v)}" for k, v in pairs)
            lines += [f"- {_PROFILES.get(name, name)}, player {player}: {text}"]
    lines += ["", "Welfare and fairness:", ""]
    best = table["best_welfare"]
    named = {_PROFILES.get(name, name): one for name, one in each.items()}
    lines += _welfare({**named, f"largest sum: {best['profile']}": best})
    ranking = table.get("alpha_rank")
    if ranking is not None:
        count = ranking["populations"]
        lines += [
            "",
            f"Alpha-rank (alpha {ranking['alpha']:g}, populations of {ranking['population']}, "
            f"{count} of them): the share of time that each profile is played in the long run.",
            "",
            *_rows(["profile", "mass"], [[r["profile"], r["mass"]] for r in ranking["ranking"]]),
        ]
    return [*lines, ""]


def _welfare(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    head = ["", *_WELFARE.values()]
    rows = [[name, *(one["welfare"][key] for key in _WELFARE)] for name, one in figures.items()]
    lines = _rows(head, rows)
    if any(value is None for row in rows for value in row):
        lines += [
            "",
            "A dash: not defined, because somebody gets less than nothing, or nobody anything.",
        ]
    return lines


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return markdown_table(head, [[_cell(value) for value in row] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) >= 1e-9 else "0"
    return str(value)
