"""`assay league`: players of a board game who all play each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.shared_options import AsJson, RunsRoot

app = typer.Typer(
    help="Let runs, their past versions and built-in players play each other.", no_args_is_help=True
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The league's directory.")]


@app.command("new")
def new(
    directory: Directory, game: str = typer.Option(..., "--game", help="tictactoe or connect_four.")
) -> None:
    """Make an empty league."""
    from assay.league import League

    league = League.new(directory, game)
    output.say(f"League: {league.path} ({league.game.name})")


@app.command("add")
def add(
    directory: Directory,
    players: list[str] = typer.Argument(
        ..., metavar="PLAYER...", help="Runs (paths, or names), random, perfect, minimax:DEPTH."
    ),
    versions: bool = typer.Option(
        False, "--versions", help="Every checkpoint that a run has, not only the last."
    ),
    name: str = typer.Option(None, "--name", help="What to call it; for one player."),
    settings: list[str] | None = typer.Option(
        None, "--set", metavar="KEY=VALUE", help="A setting that only acting reads: simulations=N."
    ),
    root: RunsRoot = None,
) -> None:
    """Add players.

    Runs keep two checkpoints unless keep_checkpoints says otherwise.
    """
    from assay.core.config import parse_assignments
    from assay.core.errors import ConfigError
    from assay.envs.boards.players import is_player
    from assay.league import League

    if name is not None and len(players) > 1:
        raise ConfigError(f"--name is one name, and there are {len(players)} players.")
    league = League.open(directory)
    chosen = parse_assignments(settings or [])
    for player in players:
        who = player if is_player(player) else locate(player, root)
        added = league.add(who, name=name, versions=versions, settings=chosen)
        for member in added:
            output.say(f"Added: {member.name}")
        if not added:
            output.say(f"Nothing to add: {player} is in the league.")


@app.command("play")
def play(
    directory: Directory,
    games: int = typer.Option(20, "--games", min=1, help="Games of every two players in all."),
    seed: int = typer.Option(0, "--seed", min=0, help="Fixes openings and draws."),
    opening: int = typer.Option(
        None, "--opening", min=0, help="Random moves at the start of games. [default: the game's]"
    ),
) -> None:
    """Let every two play, both seats alike; pairs that have played are left alone."""
    from assay.league import League

    def tell(done: int, pairs: int) -> None:
        output.note(f"{done} of {pairs} pairs have played")

    played = League.open(directory).play(games, seed=seed, opening=opening, progress=tell)
    output.say(f"Played {played} games")


@app.command("table")
def table(directory: Directory, as_json: AsJson = False) -> None:
    """Show ratings and pay-offs; write table.md, table.json and table.png."""
    from assay.league import League, to_json

    league = League.open(directory)
    found, paths = league.report()
    if as_json:
        output.print_json(to_json(found, league.game.name))
        return
    rows = [
        (name, f"{one.point:.0f}", f"{one.low:.0f} to {one.high:.0f}", int(found.games[i].sum()))
        for i, (name, one) in enumerate(zip(found.names, found.ratings, strict=True))
    ]
    output.show(output.table(("player", "Elo>", "95% interval>", "games>"), rows))
    for path in paths:
        output.say(f"Written: {path}")
