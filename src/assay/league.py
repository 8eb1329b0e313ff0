"""A league: agents of runs, their past versions and built-in players, who all play each other.

A league is a directory. `league.json` says which game it is, who takes part and how every two of
them have played; it is written whole after each pair. `table` makes `table.md`, `table.json` and
`table.png` of it: pay-offs, and Elo with intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from assay.agents import Agent, load
from assay.core.errors import ConfigError, RunError, nearest
from assay.core.seeding import derive_seed
from assay.envs.boards.players import Draws, Player, is_player, make_player
from assay.evaluation.matches import Match, play_match
from assay.evaluation.ratings import Floats, elo, payoff
from assay.evaluation.statistics import Interval
from assay.functional.boards import GAMES, BoardGame, Boards, Moves
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.runs.files import dump_json, read_json_object, run_error, write_atomic

FORMAT = 1
_FILE = "league.json"


class RunPlayer:
    """The agent of a run as a player: deterministic, whatever the draws."""

    def __init__(self, agent: Agent, game: BoardGame) -> None:
        self.agent, self.game = agent, game

    def choose(self, boards: Boards, draws: Draws) -> Moves:
        """Return its moves [N]."""
        policy = self.agent.policy
        obs = self.game.observe(boards)
        return np.asarray(policy.act(obs, policy.initial_carry(len(boards)), False).action)


def run_game(path: Path) -> BoardGame:
    """Return the board game that a run has learned.

    Raises:
        ConfigError: It has learned something else.
    """
    config = RunDirectory.open(path).config
    name = str(config.get("env"))
    if name not in GAMES:
        raise ConfigError(
            f"The run '{path}' was trained on '{name}', which is not a board game.",
            f"Only players of {', '.join(GAMES)} can meet. `assay compare` sets returns of runs on "
            "one task side by side, and `assay evaluate equilibria` judges strategies of games.",
        )
    return GAMES[name]


def find_player(
    game: BoardGame,
    who: str | Path,
    *,
    checkpoint_path: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Player:
    """Return a built-in player by its name, or the agent of a run by its path.

    Raises:
        ConfigError: The run plays another game.
        AssayError: There is no such player or run.
    """
    if is_player(str(who)):
        return make_player(game, str(who))
    own = run_game(Path(who))
    if own is not game:
        raise ConfigError(
            f"The run '{who}' plays {own.name}, not {game.name}: they cannot meet.",
            f"Choose a run of {game.name}, or a built-in player.",
        )
    agent = load(Path(who), checkpoint_path=checkpoint_path, settings=settings)
    return RunPlayer(agent, game)


def evaluate_against(
    path: Path,
    against: str | Path,
    *,
    games: int,
    seed: int = 0,
    opening: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Match:
    """Return how the agent of a run plays against a built-in player or the agent of another run.

    Args:
        path: The run.
        against: `random`, `perfect`, `minimax:DEPTH`, or the path of a run of the same game.
        games: How many, half of them from each seat.
        seed: Fixes the openings, and the opponent's draws.
        opening: Random moves that games begin with; None: as many as the game suggests.
        settings: Hyperparameters of the run that only acting reads, such as `simulations`.

    Raises:
        ConfigError: They play different games, or one of them no board game.
    """
    game = run_game(path)
    one = find_player(game, path, settings=settings)
    two = find_player(game, against)
    return play_match(game, one, two, games=games, seed=seed, opening=opening)


@dataclass(frozen=True, slots=True)
class Member:
    """Who takes part.

    Attributes:
        name: In tables; unique.
        player: A built-in player, or the path of a run.
        checkpoint: Which checkpoint of the run, by its name; None for a built-in player.
        settings: Of the run's agent, for acting.
    """

    name: str
    player: str
    checkpoint: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Where a league stands; members from the best to the worst.

    Attributes:
        names: [P].
        ratings: [P] Elo with intervals, of mean 0.
        payoffs: [P, P] the share of points that the row's player made against the column's.
        games: [P, P] how many they played.
    """

    names: list[str]
    ratings: list[Interval]
    payoffs: Floats
    games: np.ndarray


class League:
    """A directory of players who play each other; open or make it with `open` and `new`."""

    def __init__(self, path: Path, game: BoardGame, content: dict[str, Any]) -> None:
        self.path, self.game = path, game
        self.members = [Member(**one) for one in content["members"]]
        self._played: dict[str, dict[str, Any]] = content["played"]

    @classmethod
    def new(cls, path: Path, game: str) -> League:
        """Make an empty league.

        Raises:
            ConfigError: There is no such game, or a league is there already.
        """
        if game not in GAMES:
            raise ConfigError(f"There is no board game '{game}'.", nearest(game, GAMES))
        if (path / _FILE).exists():
            raise ConfigError(f"'{path}' is a league already.", "Add players to it.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise run_error(error, f"create the league '{path}'") from None
        league = cls(path, GAMES[game], {"members": [], "played": {}})
        league._write()
        return league

    @classmethod
    def open(cls, path: Path) -> League:
        """Read a league.

        Raises:
            RunError: There is none, or it cannot be read.
        """
        if not (path / _FILE).exists():
            raise RunError(
                f"'{path}' is not a league: it has no {_FILE}.",
                "Make one with: assay league new DIR --game connect_four",
            )
        content = read_json_object(path / _FILE)
        if content.get("format") != FORMAT or content.get("game") not in GAMES:
            raise RunError(
                f"'{path / _FILE}' has format {content.get('format')!r} and the game "
                f"{content.get('game')!r}; expected format {FORMAT} and a known game."
            )
        return cls(path, GAMES[content["game"]], content)

    def add(
        self,
        player: str | Path,
        *,
        name: str | None = None,
        versions: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Member]:
        """Add a built-in player, or a run's agent; with `versions`, that of every checkpoint.

        Returns:
            Who is new. One who takes part already is not added again.

        Raises:
            ConfigError: The run plays another game, a name is taken, or an option does not fit.
        """
        made = list(self._candidates(player, name, versions, dict(settings or {})))
        fresh = [one for one in made if one not in self.members]
        for one in fresh:
            if any(one.name == other.name for other in self.members):
                raise ConfigError(
                    f"The league has a player '{one.name}' already.", "Give it another --name."
                )
            self.members.append(one)
        self._write()
        return fresh

    def _candidates(
        self, player: str | Path, name: str | None, versions: bool, settings: dict[str, Any]
    ) -> Iterator[Member]:
        if is_player(str(player)):
            if versions or settings:
                raise ConfigError(
                    f"The built-in player '{player}' has no versions and no settings.",
                    "Leave out --versions and --set.",
                )
            make_player(self.game, str(player))
            yield Member(name or str(player), str(player))
            return
        path = Path(player).resolve()
        found = checkpoint.list_checkpoints(RunDirectory.open(path).checkpoints_path)
        if not found:
            raise ConfigError(f"The run '{player}' has no checkpoint.", "Train it first.")
        for place in found if versions else found[-1:]:
            find_player(
                self.game, path, checkpoint_path=place, settings=settings
            )  # or it fails now
            own = name or path.name
            label = f"{own}@{int(place.name.split('.')[0])}" if versions else own
            yield Member(label, str(path), place.name, settings)

    def player(self, member: Member) -> Player:
        """Return a member, ready to play."""
        if member.checkpoint is None:
            return find_player(self.game, member.player)
        directory = RunDirectory.open(Path(member.player))
        place = directory.checkpoints_path / member.checkpoint
        return find_player(
            self.game, member.player, checkpoint_path=place, settings=member.settings
        )

    def play(
        self,
        games: int,
        *,
        seed: int = 0,
        opening: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Let every two play until they have played `games` games; return how many were played.

        Pairs that have are left alone, so a league can be stopped and go on, and a new member plays
        only its own games.
        """
        if len(self.members) < 2:
            raise ConfigError(
                f"The league '{self.path}' has {len(self.members)} player(s).", "Add at least two."
            )
        made: dict[str, Player] = {}
        pairs = [
            pair for pair in combinations(self.members, 2) if self._count(*pair)["games"] < games
        ]
        total = 0
        for done, (one, two) in enumerate(pairs):
            so_far = self._count(one, two)
            for member in (one, two):
                if member.name not in made:
                    made[member.name] = self.player(member)
            wanted = games - so_far["games"]
            match = play_match(
                self.game, made[one.name], made[two.name], games=wanted,
                seed=derive_seed(seed, one.name, two.name, so_far["games"]), opening=opening,
            )  # fmt: skip
            tally = dict(zip(("wins", "draws", "losses"), match.tally, strict=True))
            self._played[_key(one, two)] = {
                "games": so_far["games"] + match.games,
                **{name: so_far[name] + count for name, count in tally.items()},
            }
            self._write()
            total += match.games
            if progress is not None:
                progress(done + 1, len(pairs))
        return total

    def _count(self, one: Member, two: Member) -> dict[str, int]:
        nothing = {"games": 0, "wins": 0, "draws": 0, "losses": 0}
        return self._played.get(_key(one, two), nothing)

    def table(self) -> Table:
        """Return where the league stands.

        Raises:
            ConfigError: No game was played yet.
        """
        count = len(self.members)
        scores, games = np.zeros((count, count)), np.zeros((count, count), np.int64)
        for (i, one), (j, two) in combinations(enumerate(self.members), 2):
            played = self._count(one, two)
            games[i, j] = games[j, i] = played["games"]
            scores[i, j] = played["wins"] + played["draws"] / 2
            scores[j, i] = played["games"] - scores[i, j]
        if not games.any():
            raise ConfigError(
                f"No game was played in the league '{self.path}'.",
                "Play some with: assay league play DIR",
            )
        ratings = elo(scores, games)
        order = sorted(range(count), key=lambda i: -ratings[i].point)
        grid = np.ix_(order, order)
        names = [self.members[i].name for i in order]
        return Table(names, [ratings[i] for i in order], payoff(scores, games)[grid], games[grid])

    def report(self) -> tuple[Table, list[Path]]:
        """Write the table as Markdown, JSON and a picture, and return it with the files."""
        from assay.evaluation.plots import plot_league

        table = self.table()
        paths = [self.path / f"table.{ending}" for ending in ("md", "json", "png")]
        write_atomic(paths[0], markdown(table, self.game.name).encode())
        write_atomic(paths[1], dump_json(to_json(table, self.game.name), indent=1))
        plot_league(table.names, table.ratings, table.payoffs, paths[2], title=self.game.name)
        return table, paths

    def _write(self) -> None:
        members = [asdict(member) for member in self.members]
        content = {
            "format": FORMAT, "game": self.game.name, "members": members, "played": self._played,
        }  # fmt: skip
        write_atomic(self.path / _FILE, dump_json(content, indent=1))


def _key(one: Member, two: Member) -> str:
    return f"{one.name} - {two.name}"


def to_json(table: Table, game: str) -> dict[str, Any]:
    """Return a table as plain values."""
    players = [
        {"name": name, "elo": rating.point, "low": rating.low, "high": rating.high}
        for name, rating in zip(table.names, table.ratings, strict=True)
    ]
    payoffs = [[None if np.isnan(x) else float(x) for x in row] for row in table.payoffs]
    return {"game": game, "players": players, "payoffs": payoffs, "games": table.games.tolist()}


def markdown(table: Table, game: str) -> str:
    """Return a table as Markdown."""
    lines = [f"# League of {game}", "", "| player | Elo | 95% interval | games |",
             "|---|---:|---:|---:|"]  # fmt: skip
    for i, (name, rating) in enumerate(zip(table.names, table.ratings, strict=True)):
        spread = f"{rating.low:.0f} to {rating.high:.0f}"
        lines.append(f"| {name} | {rating.point:.0f} | {spread} | {int(table.games[i].sum())} |")
    lines += ["", "Share of points of the row's player against the column's:", ""]
    lines.append(f"| | {' | '.join(table.names)} |")
    lines.append("|---|" + "---:|" * len(table.names))
    for name, row in zip(table.names, table.payoffs, strict=True):
        lines.append(f"| {name} | {' | '.join('' if np.isnan(x) else f'{x:.2f}' for x in row)} |")
    return "\n".join(lines) + "\n"
