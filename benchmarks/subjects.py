"""What the committed evidence is about, as studies: who is compared with whom, and by what.

Each study has a contract that says how it would be run again. Nobody has approved it; the results
were measured before there was a study. `adopt.py` puts these into ledgers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boards
import evidence
import imitators
import numpy as np
import offline
import teams
from cases import CASES, FINAL_EPISODES, GROUPS, Case

from assay.study.files.contract import Contract
from assay.study.judge.adopt import Claim, Source

WAIVED = "The results were measured before the study and adopted; the gate decides on none of them."
OFFLINE_EPISODES = 100
BOARD_GAMES = 200


@dataclass(frozen=True, slots=True)
class Subject:
    """A study of what was measured.

    Attributes:
        contract: How it would be run again.
        sources: Every seed of its arms.
        claims: What they are to show.
    """

    contract: Contract
    sources: list[Source]
    claims: list[Claim]

    @property
    def task(self) -> str:
        """Return the task that the study belongs to."""
        return self.contract.task.id

    @property
    def name(self) -> str:
        """Return the name of the study."""
        return self.contract.study


def subjects(root: Path, directory: Path = evidence.LEARNING) -> Iterator[Subject]:
    """Yield all studies.

    Args:
        root: Where they are to be, which paths of evidence are relative to.
        directory: The evidence of the learning cases; that of the others lies above it.

    Raises:
        EvidenceError: The evidence contradicts itself.
    """
    yield from learning(root, directory)
    for make, name in ((of_teams, "teams"), (of_boards, "boards"), (of_imitators, "imitation")):
        path = directory.parent / f"{name}.json"
        if path.exists():
            yield from make(root, path)
    recorded = directory.parent / offline.STORE.name
    if recorded.exists():
        yield from of_recorded(root, recorded)


# ---------------------------------------------------------------------- the learning cases


def learning(root: Path, directory: Path) -> Iterator[Subject]:
    """Yield the cases with evidence that are not controls: is the goal reached, is it better?"""
    for title, group in GROUPS.items():
        for case in group:
            if case.control_of is None and (directory / f"{case.name}.json").exists():
                arms = (case, *opponents(case, directory))
                found = [source for one in arms for source in _seeds(one, root, directory)]
                yield Subject(_case_contract(slug(title), case), found, _case_claims(arms))


def opponents(case: Case, directory: Path) -> list[Case]:
    """Return what a case is compared with, as far as it was measured: control and rival."""
    names = [c.name for c in CASES.values() if c.control_of == case.name]
    names += [case.rival] if case.rival else []
    return [CASES[name] for name in names if (directory / f"{name}.json").exists()]


def _seeds(case: Case, root: Path, directory: Path) -> Iterator[Source]:
    path = directory / f"{case.name}.json"
    content = evidence.read_learning(path)
    key = "success_rate" if case.measure == "success" else "mean"
    for i, entry in enumerate(content["seeds"]):
        measured = entry["evaluation"]
        yield Source(
            candidate=case.name,
            seed=entry["seed"],
            path=_relative(path, root),
            pointer=f"/seeds/{i}/evaluation/{key}",
            metric=case.measure,
            config=entry["config_hash"],
            protocol={
                "env": case.env,
                "env_steps": case.env_steps,
                "episodes": measured["episodes"],
                "evaluation_seed": measured["seed"],
                "deterministic": True,
                "checkpoint": "last",
                "device": entry["device"],
                "code": entry["machine"]["source"],
                "torch": entry["machine"]["versions"]["torch"],
            },
        )


def _case_claims(arms: Sequence[Case]) -> list[Claim]:
    case, *others = arms
    return [
        *(_goal(case, rival.name) for rival in others),
        *([] if others else [_goal(case)]),
        *(_goal(other) for other in others if other.control_of == case.name),
    ]


def _goal(case: Case, rival: str = "") -> Claim:
    relation = "<" if case.control_of is not None else ">=" if case.inclusive else ">"
    return Claim(case.name, case.measure, "maximize", rival, relation, case.threshold)


def _case_contract(task: str, case: Case) -> Contract:
    controls = [c for c in CASES.values() if c.control_of == case.name]
    # Between the goals of a case and its control, or a twentieth of the goal.
    effect = case.threshold - controls[0].threshold if controls else abs(case.threshold) / 20
    key = "success_rate" if case.measure == "success" else "mean"
    question = f"Does {case.title} reach {case.goal} in {case.env_steps:,} environment steps"
    against = [*controls, *([CASES[case.rival]] if case.rival else [])]
    names = [other.title.removeprefix("control: ") for other in against]
    question += "".join(f", and is it better than {name}" for name in names) + "?"
    return contract(
        task, case.name, question, case.env, f"{case.goal} on {case.env}",
        metric=case.measure, effect=effect, hours=case.minutes,
        source={"kind": "json", "path": "seeds/*.json", "key": f"evaluation.{key}"},
        command=["learning.py", "--one", (against or [case])[0].name, "{seed}", "--out", "{out}"],
        episodes=FINAL_EPISODES,
    )  # fmt: skip


# ---------------------------------------------------------------------- several agents


def of_teams(root: Path, path: Path) -> Iterator[Subject]:
    """Yield one study for each algorithm and task that was run beside BenchMARL."""
    found: dict[tuple[str, str, int], list[Source]] = {}
    returns: dict[tuple[str, str, int], list[float]] = {}
    for i, one in enumerate(evidence.read_json(path)["returns"]):
        key = one["algorithm"], one["task"], one["asked"]
        source = Source(
            one["side"], one["seed"], _relative(path, root), f"/returns/{i}/return", "return",
            config="defaults",
            protocol={
                "env": one["task"], "env_steps": one["steps"], "episodes": teams.EPISODES,
                "deterministic": one["task"] != teams.FORAGING, "machine": one["machine"],
            },
        )  # fmt: skip
        found.setdefault(key, []).append(source)
        returns.setdefault(key, []).append(one["return"])
    for (algorithm, task, steps), sources in found.items():
        title = f"{algorithm.upper()} on {task} after {steps:,} environment steps"
        made = contract(
            "several-agents", slug(f"{algorithm} {task}"),
            f"Is {title} better than BenchMARL's, both at their defaults?", task, title,
            metric="return", effect=abs(float(np.mean(returns[algorithm, task, steps]))) / 20,
            hours=2.0, source={"kind": "stdout", "key": r'"return": (-?[0-9.]+)'},
            command=["teams.py", "one", "benchmarl", algorithm, task, "{seed}"],
            episodes=teams.EPISODES,
        )  # fmt: skip
        yield Subject(made, sources, [Claim("assay", "return", rival="benchmarl")])


def of_boards(root: Path, path: Path) -> Iterator[Subject]:
    """Yield what AlphaZero has learned: games won against minimax, games lost to perfect play."""
    won = r'"preset": .*?"wins": \{"count": [0-9]+, "share": ([0-9.]+)'
    rival, lost = boards.OPPONENT, r'"against_perfect": \[[0-9]+, [0-9]+, ([0-9]+)'
    asked = (
        ("connect_four", "preset/wins/share", "wins", f"win 90 % of games against {rival}", won),
        ("tictactoe", "against_perfect/2", "losses", "lose no game to perfect play", lost),
    )
    content = json.loads(path.read_text())
    for game, place, metric, words, pattern in asked:
        sources = [
            Source(
                "alphazero", one["seed"], _relative(path, root), f"/{game}/{i}/{place}", metric,
                config="preset", protocol={"env": game, "games": BOARD_GAMES},
            )
            for i, one in enumerate(content.get(game, ()))
        ]  # fmt: skip
        if not sources:
            continue
        made = contract(
            "several-agents", slug(f"alphazero {game}"), f"Does AlphaZero {words}?", game, words,
            metric=metric, effect=0.05, hours=20.0, source={"kind": "stdout", "key": pattern},
            command=["boards.py", game, "--seeds", "{seed}", "--root", "{out}"],
            episodes=BOARD_GAMES,
        )  # fmt: skip
        goal = (
            Claim("alphazero", metric, threshold=0.9)
            if metric == "wins"
            else Claim("alphazero", metric, "minimize", relation="<=", threshold=0.0)
        )
        yield Subject(made, sources, [goal])


# ---------------------------------------------------------------------- learning from data


def of_imitators(root: Path, path: Path) -> Iterator[Subject]:
    """Yield one study for each imitator that is not a control, beside its control."""
    cases = evidence.read_json(path)["cases"]
    for name, content in cases.items():
        if content["control"]:
            continue
        case = imitators.CASES[name]
        rival = "bc-pendulum" if case.algorithm == "dagger" else f"{name}-random"
        arms = [name, *([rival] if rival in cases else [])]
        sources = [
            Source(
                arm, one["seed"], _relative(path, root),
                f"/cases/{arm}/seeds/{i}/score", "score",
                config=evidence.config_hash(one["config"]),
                protocol={
                    "env": case.env, "episodes": imitators.FINAL_EPISODES, "deterministic": True,
                    "random": one["random"], "expert": one["expert"],
                    "code": one["machine"]["source"],
                },
            )
            for arm in arms
            for i, one in enumerate(cases[arm]["seeds"])
        ]  # fmt: skip
        more = f", and more than {rival}" if len(arms) > 1 else ""
        made = contract(
            "imitation", slug(name),
            f"Does {name} reach {content['goal']:g} of the expert{more}?", case.env,
            f"{content['goal']:g} of the expert on {case.env}",
            metric="score", effect=content["goal"] / 20, hours=5.0,
            source={"kind": "json", "path": "seeds/*.json", "key": "score"},
            command=["imitators.py", "--cases", arms[-1], "--first-seed", "{seed}", "--seeds", "1",
                     "--out", "{out}"],
            episodes=imitators.FINAL_EPISODES,
        )  # fmt: skip
        goals = [Claim(name, "score", rival="".join(arms[1:]), threshold=content["goal"])]
        if len(arms) > 1:
            goals.append(Claim(rival, "score", relation="<", threshold=cases[rival]["goal"]))
        yield Subject(made, sources, goals)


def of_recorded(root: Path, path: Path) -> Iterator[Subject]:
    """Yield one study for each recorded set: every algorithm beside BC."""
    found: dict[tuple[str, str, str], dict[tuple[str, int], Source]] = {}
    returns: dict[tuple[str, str, str], list[float]] = {}
    for i, one in enumerate(offline.read(path)):
        if one["kind"] != "learn":
            continue
        arm = "-".join([one["algorithm"], *(slug(f"{k} {v}") for k, v in one["over"].items())])
        key = one["env"], one["quality"], one["sha256"]
        # What was measured again counts as it was measured last, as in the table.
        found.setdefault(key, {})[arm, one["seed"]] = Source(
            arm, one["seed"], _relative(path, root), f"/{i}/mean", "return", one["config"],
            protocol={
                "env": one["env"], "set": one["sha256"], "updates": one["updates_done"],
                "episodes": OFFLINE_EPISODES, "deterministic": True,
                "code": one["machine"]["source"],
            },
        )  # fmt: skip
        returns.setdefault(key, []).append(one["mean"])
    for key, by_arm in found.items():
        env, quality, sha256 = key
        arms = sorted({arm for arm, _ in by_arm} - {offline.BASELINE})
        # Claims are made about arms that can be compared: as the table has them.
        if not arms or (offline.BASELINE, 1) not in by_arm:
            continue
        made = contract(
            "recorded-data", slug(f"{env} {quality} {sha256[:8]}"),
            f"Which algorithms learn more than BC from the {quality} set of {env} "
            f"({sha256[:8]})?", env, f"more than BC from a {quality} set of {env}",
            metric="return", effect=abs(float(np.mean(returns[key]))) / 20, hours=5.0,
            source={"kind": "jsonl", "path": "scores.jsonl", "key": "mean"},
            command=["offline.py", "run", "--stages", "prepare,learn", "--envs", env,
                     "--qualities", quality, "--algorithms", offline.BASELINE, "--seeds", "{seed}",
                     "--work", "{out}", "--out", "{out}/scores.jsonl"],
            episodes=OFFLINE_EPISODES,
        )  # fmt: skip
        claims = [Claim(arm, "return", rival=offline.BASELINE) for arm in arms]
        yield Subject(made, list(by_arm.values()), claims)


# ---------------------------------------------------------------------- shared


def contract(
    task: str,
    name: str,
    question: str,
    env: str,
    description: str,
    *,
    metric: str,
    effect: float,
    hours: float,
    source: dict[str, str],
    command: list[str],
    episodes: int,
) -> Contract:
    """Return the contract of a study: how it would be run again. Nobody has approved it."""
    script, *words = command
    values: dict[str, Any] = {
        "study": name,
        "question": question,
        "task": {"id": task, "description": description, "env": env},
        "metrics": {
            "primary": {"name": metric, "source": source, "minimum_effect": round(effect, 6)}
        },
        "scope": {},
        "budget": {"wall_clock_hours": round(hours, 2), "runs": 60},
        "hardware": {"kind": "cpu"},
        "baseline": {"command": ["{python}", f"../{script}", *words]},
        "evaluation": {
            "episodes": episodes,
            "pools": {
                "development": [0],
                "promotion": [1, 2, 3, 4, 5],
                "validation": [11, 12, 13, 14, 15],
            },
        },
        "experiment": {"exceptions": {"adopted": WAIVED}},
    }
    return Contract(**values)


def slug(title: str) -> str:
    """Return a title as the name of a directory."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _relative(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path.resolve(), root.resolve())).as_posix()
