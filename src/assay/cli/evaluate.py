"""`assay evaluate`: evaluate trained agents over new episodes, or from recorded ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from assay.cli import output
from assay.cli.find_run import locate
from assay.cli.progress import Bars, choose_mode
from assay.cli.results import show_agents
from assay.cli.shared_options import AsJson, RunsRoot
from assay.core.errors import ConfigError
from assay.core.wording import counted
from assay.evaluation.formatting import bounds, number

if TYPE_CHECKING:
    from assay.api import Run


def evaluate(
    runs: list[str] = typer.Argument(
        ..., metavar="RUN_OR_GROUP...", help="Paths, or names under runs."
    ),
    episodes: int = typer.Option(
        None, "--episodes", min=1, help="How many to play. [default: 100]"
    ),
    seed: int = typer.Option(
        0, "--seed", min=0, help="Fixes the episodes: the same seed plays the same ones."
    ),
    settings: list[str] | None = typer.Option(
        None,
        "--set",
        metavar="KEY=VALUE",
        help="A setting that only acting reads: target_return=N.",
    ),
    against: str = typer.Option(
        None,
        "--against",
        metavar="PLAYER",
        help="Board games: a run of the same game, random, perfect or minimax:DEPTH.",
    ),
    opening: int = typer.Option(
        None, "--opening", min=0, help="With --against: random moves at the start of games."
    ),
    video: bool = typer.Option(False, "--video", help="Record the first episode to RUN/videos."),
    video_format: str = typer.Option(None, "--format", help="Video: gif or mp4. [default: gif]"),
    offline: str = typer.Option(
        None, "--offline", metavar="SET", help="Estimate from recorded data; plays nothing."
    ),
    gamma: float = typer.Option(None, "--gamma", help="With --offline: discount. [default: 0.99]"),
    sampled: bool = typer.Option(
        False, "--sampled", help="Draw actions as in training, where the policy does."
    ),
    levels: str = typer.Option(
        None,
        "--levels",
        metavar="LEVELS",
        help='Each level by itself: "[{maze: labyrinth}, ...]", ids, or named for all with a name.',
    ),
    updates: int = typer.Option(
        None, "--updates", min=1, help="With --offline: steps of fitted Q. [default: 20000]"
    ),
    root: RunsRoot = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes with the agents of runs, or estimate their returns from recorded data.

    The policy is the deterministic one of the last checkpoint. Every episode is stored in RUN/eval.
    Returns are of the environment's own rewards, without normalisation or clipping.

    With --offline nothing is played and no environment is needed: the discounted return is
    estimated from a dataset, and several runs are ranked. A run that solves a game is measured
    exactly: `assay evaluate equilibria` says more about games.

    With --against, games are played from both seats, and wins, draws and losses are counted.

    With --levels, as many episodes are played in each of some levels: arguments of the
    environment's constructor, other ids, or `named` (all mazes of assay/Maze-v0 with a name). A
    level that is always the same has one episode with a deterministic policy: add --sampled.
    """
    if offline is not None:
        played = {"--episodes": episodes, "--video": video, "--format": video_format}
        played |= {"--against": against, "--opening": opening, "--levels": levels}
        _refuse(played | {"--set": settings or None}, "without")
        own = {"gamma": gamma, "updates": updates}
        given = {name: value for name, value in own.items() if value is not None}
        _offline(runs, offline, root, as_json, sampled=sampled, seed=seed, **given)
        return
    _refuse({"--gamma": gamma, "--updates": updates}, "with")
    _refuse({"--format": None if video else video_format}, "with", "--video")
    from assay.core.config import parse_assignments

    chosen = parse_assignments(settings or [])
    asked = _Asked(runs, root, episodes or 100, seed, sampled, chosen, as_json)
    if against is not None:
        from assay.envs.boards.players import is_player

        others = {"--video": video, "--levels": levels, "--sampled": sampled}
        _refuse(others, "without", "--against")
        _match(asked, against if is_player(against) else locate(against, root), opening)
        return
    _refuse({"--opening": opening}, "with", "--against")
    if levels is not None:
        _refuse({"--video": video}, "without", "--levels")
        _levels(asked, parse_assignments([f"levels={levels}"])["levels"])
        return
    _play(asked, (video_format or "gif") if video else None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which runs are to play, and how."""

    runs: list[str]
    root: Path | None
    episodes: int
    seed: int
    sampled: bool
    settings: dict[str, Any]
    as_json: bool

    @property
    def paths(self) -> list[Path]:
        return _found(self.runs, self.root)

    def printed(self, results: list[dict[str, Any]]) -> bool:
        """Print the results as JSON, if that is asked for, and return whether it is."""
        if self.as_json:
            output.print_json(results[0] if len(results) == 1 else results)
        return self.as_json


def _refuse(options: dict[str, Any], word: str, other: str = "--offline") -> None:
    """Refuse options that would have no effect."""
    for name, value in options.items():
        if value not in (None, False):
            raise ConfigError(f"{name} has a meaning only {word} {other}.", f"Leave out {name}.")


def _found(runs: list[str], root: Path | None) -> list[Path]:
    from assay.runs.directory import group_runs

    return [one.path for run in runs for one in group_runs(locate(run, root))]


def _play(asked: _Asked, video_format: str | None) -> None:
    from assay.api import open_run

    results = []
    for path in asked.paths:
        opened, seed, settings = open_run(path), asked.seed, asked.settings
        measured = opened.evaluate(
            asked.episodes, seed=seed, sampled=asked.sampled, settings=settings
        )
        result = {"run": str(opened.path), **measured.to_json()}
        if video_format is not None:
            result["video"] = str(_film(opened, seed, video_format, settings))
        results.append(result)
    if asked.printed(results):
        return
    _show(("run",), {(result["run"],): result for result in results})
    for result in results:
        show_agents(result["run"], result.get("agents"))
        if "exploitability" in result:
            output.say(
                f"Exploitability of {result['run']}: {result['exploitability']:.6g} (NashConv "
                f"{result['nash_conv']:.6g}), exactly. Its rows are seats, and a return is minus "
                "what a best response gains."
            )
        if "levels" in result:
            told = ", ".join(f"{name} {number(x)}" for name, x in result["levels"].items())
            output.say(f"Levels of {result['run']}: {told}")
        if "video" in result:
            output.say(f"Video: {result['video']}")


def _levels(asked: _Asked, levels: Any) -> None:
    from assay.robustness.levels import evaluate_levels, summary

    play = functools.partial(
        evaluate_levels, levels=levels, episodes=asked.episodes, seed=asked.seed,
        sampled=asked.sampled, settings=asked.settings,
    )  # fmt: skip
    results = [{"run": str(path), **summary(play(path))} for path in asked.paths]
    if asked.printed(results):
        return
    rows: dict[tuple[str, ...], dict[str, Any]]
    rows = {(r["run"], name): own for r in results for name, own in r["by_level"].items()}
    _show(("run", "level"), rows)
    for result in results:
        rate = result.get("success_rate")
        told = "" if rate is None else f", success {_percent(rate)}"
        count = len(result["by_level"])
        output.say(
            f"Mean of {counted(count, 'level')}, {result['run']}: {number(result['mean'])}{told}"
        )


def _match(asked: _Asked, other: str | Path, opening: int | None) -> None:
    from assay.evaluation.matches import OUTCOMES
    from assay.league import evaluate_against

    play = functools.partial(
        evaluate_against, against=other, games=asked.episodes, seed=asked.seed, opening=opening,
        settings=asked.settings,
    )  # fmt: skip
    results = [
        {"run": str(path), "against": str(other), **play(path).to_json()} for path in asked.paths
    ]
    if asked.printed(results):
        return
    rows = []
    for result in results:
        shares = (_share(result[name]) for name in OUTCOMES)
        seats = ("/".join(map(str, seat.values())) for seat in result["by_seat"].values())
        rows.append((result["run"], result["games"], f"{result['score']:.3f}", *shares, *seats))
    columns = ("run", "games>", "score>", *(f"{name} (95%)>" for name in OUTCOMES))
    output.show(output.table((*columns, "first seat>", "second seat>"), rows))


def _share(part: dict[str, float]) -> str:
    return f"{part['share']:.3f} ({part['low']:.3f} to {part['high']:.3f})"


def _offline(runs: list[str], data: str, root: Path | None, as_json: bool, **settings: Any) -> None:
    from assay.evaluation.offline import ESTIMATORS, FQE, describe_behaviour
    from assay.offline_evaluation import evaluate_offline

    with Bars(choose_mode(quiet=False, as_json=as_json)) as bars:
        update = functools.partial(bars.update, unit="updates")
        found = evaluate_offline(_found(runs, root), data, progress=update, **settings)
    if as_json:
        output.print_json(found.to_json())
        return
    own = number(found.data_value.point)
    output.say(f"Discounted returns (gamma {found.gamma:g}) from {found.data}, which has {own}")
    ranked = [
        (one.name, one.rank, number(one.value), bounds(one.estimates[FQE]))
        for one in found.policies
    ]
    output.show(output.table(("run", "rank>", f"{ESTIMATORS[FQE]}>", "95% interval>"), ranked))
    others = [
        (policy.name, ESTIMATORS[name], number(one.point), bounds(one),
         number(policy.effective_episodes))
        for policy in found.policies
        for name, one in policy.estimates.items()
        if name != FQE
    ]  # fmt: skip
    if others:
        columns = ("run", "estimate", "value>", "95% interval>", "effective episodes>")
        output.show(output.table(columns, others))
        output.say(describe_behaviour(found.behaviour))
    notes: dict[str, list[str]] = {}
    for policy in found.policies:
        for text in policy.notes:
            notes.setdefault(text, []).append(policy.name)
    for text, names in notes.items():
        output.say(f"Note: {', '.join(names)}: {text}")


def _show(keys: tuple[str, ...], results: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Show evaluations as a table, with how often they succeed where one of them says so."""
    told = any("success_rate" in result for result in results.values())
    columns = ("episodes>", *(("success>",) if told else ()), "mean>", "IQM>", "std>", "min>",
               "max>", "length>")  # fmt: skip
    rows = [(*names, *_row(result, told)) for names, result in results.items()]
    output.show(output.table((*keys, *columns), rows))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _row(result: dict[str, Any], told: bool) -> tuple[Any, ...]:
    episodes = result["episodes"]
    returns = [episode["return"] for episode in episodes]
    return (
        len(episodes),
        *((_percent(result.get("success_rate")),) if told else ()),
        *(number(result[key]) for key in ("mean", "iqm", "std")),
        number(min(returns)),
        number(max(returns)),
        number(sum(episode["length"] for episode in episodes) / len(episodes)),
    )


def _film(run: Run, seed: int, video_format: str, settings: dict[str, Any]) -> Path:
    """Record a video of the first episode."""
    from assay.agents import drawable, load
    from assay.evaluation.video import record

    agent, config = load(run.path, settings=settings), run.config
    name = f"{agent.clock.count:012d}-seed{seed}.{video_format.lower()}"
    place, wrappers = run.directory.videos_path / name, config.run.wrappers
    return record(agent.policy, drawable(config), place, seed=seed, wrappers=wrappers).path
