"""Turn committed evidence into the tables of the READMEs and of the documentation.

python benchmarks/report.py                   # rewrite the tables between their markers
python benchmarks/report.py --collect DIR     # first put the seeds in DIR into evidence files
python benchmarks/report.py --check           # change nothing; fail if a table is out of date
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import defaults
import evidence
import imitators
import numpy as np
import offline_table
from cases import CASES, COMPARISONS, GROUPS, Case, Measure, cases_of
from children import finish
from evidence import EvidenceError, Ratio

from assay.evaluation.plots import plot_panels
from assay.runs.metrics import Series

# Where each table goes. A file without the markers of a table does not show it.
BENCHMARKS_README = evidence.ROOT / "README.md"
PROJECT_README = evidence.ROOT.parent / "README.md"
NAMES = ("learning", "speed", "priorities", "phases", "memory", "gate", "server")
# Pages with a table of their own, called `evidence`; the index of algorithms is `algorithms`.
DOCS = evidence.ROOT.parent / "docs"
INDEX = DOCS / "algorithms" / "README.md"
_TOPICS = {"hindsight.md": ("Goals",), "exploration.md": ("Exploration",)}
# Pages that show tables of `tables()`.
_PAGES = {
    "environments.md": ("wrappers",),
    "systems-tasks.md": ("systems",),
    "games.md": ("games",),
    "multi-agent.md": ("teams",),
    "imitation.md": ("imitation", "imitation-speed"),
    "preferences.md": ("preferences",),
    "randomization.md": ("randomisation", "mazes"),
}
_UNITS: dict[Measure, str] = {
    "env_steps_per_second": "steps/s",
    "updates_per_second": "updates/s",
    "seconds_to_return": "s",
}


# ---------------------------------------------------------------------- tables


def learning_table(directory: Path = evidence.LEARNING) -> str:
    """Return the tables of all learning cases, those without evidence among them, by group."""
    parts, machines = [], []
    for title, group in GROUPS.items():
        table, used = case_table(group, directory)
        parts.append(f"**{title}**\n\n{table}")
        machines += used
    if machines:
        parts.append(f"Measured on {'; '.join(dict.fromkeys(machines))}.")
    return "\n\n".join(parts)


def case_table(
    cases: Sequence[Case], directory: Path = evidence.LEARNING, *, minutes: bool = False
) -> tuple[str, list[str]]:
    """Return a table of some cases, and the machines that their evidence comes from.

    Args:
        cases: Which ones; those without evidence are shown as not measured.
        directory: Where the evidence is.
        minutes: Show how long the seeds trained.
    """
    head = ["case", "environment steps", "goal", "IQM [95% interval]", "per seed", "passed"]
    head += ["minutes per seed"] if minutes else []
    lines, notes, machines = [_row(head), _row(["---"] * len(head))], [], []
    for case in cases:
        cells = [case.title, f"{case.env_steps:,}", case.goal]
        path = directory / f"{case.name}.json"
        if not path.exists():
            lines.append(_row([*cells, "not measured", *[""] * (len(head) - 4)]))
            continue
        found = evidence.read_learning(path)
        low, high = found["interval"]
        cells.append(f"{_shown(case, found['iqm'])} [{_shown(case, low)}, {_shown(case, high)}]")
        scores = [evidence.seed_score(case, entry["evaluation"]) for entry in found["seeds"]]
        cells.append(", ".join(_shown(case, score) for score in scores))
        cells.append("yes" if found["passed"] else "**no**")
        if minutes:
            spent = [entry["train_seconds"] / 60 for entry in found["seeds"]]
            cells.append(f"{min(spent):.1f} to {max(spent):.1f}")
        lines.append(_row(cells))
        notes += _rivalry(case, found, directory)
        machines += [machine_line(entry["machine"]) for entry in found["seeds"]]
    return "\n".join(["\n".join(lines), *(f"\n{note}" for note in notes)]), machines


def _rivalry(case: Case, content: Mapping[str, Any], directory: Path) -> list[str]:
    """Return the sentence that compares a case with its rival, if both were measured."""
    path = directory / f"{case.rival}.json"
    if case.rival is None or not path.exists():
        return []
    rival = CASES[case.rival]
    found = evidence.difference(content, evidence.read_learning(path))
    signed = [f"{value:+,.0f}" for value in (found.point, found.low, found.high)]
    return [
        f"{case.title} less {rival.title} after {rival.env_steps:,} steps: {signed[0]} "
        f"[{signed[1]}, {signed[2]}] (means over seeds, Welch's 95% interval)."
    ]


def evidence_block(page: Path, cases: Sequence[Case], directory: Path = evidence.LEARNING) -> str:
    """Return what a documentation page shows between its `evidence` markers."""
    if not cases:
        return offline_table.page_table(page.stem) or "No learning case measures it yet."
    table, machines = case_table(cases, directory, minutes=True)
    if not machines:
        return table
    link = os.path.relpath(picture_of(page), page.parent)
    curves = f"![Evaluation return over environment steps]({link})"
    return f"{table}\n\n{curves}\n\nMeasured on {'; '.join(dict.fromkeys(machines))}."


# ---------------------------------------------------------------------- pictures


def picture_of(page: Path) -> Path:
    """Return where the learning curves of a documentation page are."""
    return DOCS / "pictures" / f"{page.stem}.svg"


def shown_cases(page: Path) -> list[Case]:
    """Return the learning cases that a documentation page shows."""
    if page.parent == INDEX.parent:
        return list(cases_of(page.stem))
    return [case for group in _TOPICS.get(page.name, ()) for case in GROUPS[group]]


def curves_of(
    cases: Sequence[Case], directory: Path = evidence.LEARNING
) -> dict[str, dict[str, list[Series]]]:
    """Return the curves of the cases that were measured: environment -> case -> seeds."""
    panels: dict[str, dict[str, list[Series]]] = {}
    for case in cases:
        path = directory / f"{case.name}.json"
        if path.exists():
            seeds = [seed["curve"] for seed in evidence.read_learning(path)["seeds"]]
            panels.setdefault(case.env, {})[case.name] = [
                (np.array(curve["env_steps"]), np.array(curve["mean"], float)) for curve in seeds
            ]
    return panels


def digest(panels: Mapping[str, Mapping[str, Sequence[Series]]]) -> str:
    """Return a name for curves, by which an old picture of them is known."""
    plain = {
        env: {
            name: [[part.tolist() for part in one] for one in seeds] for name, seeds in by.items()
        }
        for env, by in panels.items()
    }
    return f"curves {evidence.config_hash(plain)}"


def drawn(page: Path) -> bool:
    """Return whether the picture of a page shows the committed evidence."""
    panels, picture = curves_of(shown_cases(page)), picture_of(page)
    return not panels or (picture.exists() and digest(panels) in picture.read_text())


def draw(page: Path) -> None:
    """Draw the learning curves of a page, if they are not what its picture shows."""
    if not drawn(page):
        panels = curves_of(shown_cases(page))
        plot_panels(panels, "eval/return_mean", picture_of(page), note=digest(panels))
        print(f"drew {picture_of(page).name}")


def algorithm_index() -> str:
    """Return the table of all built-in algorithms, from the registry."""
    from assay.core import registry

    head = ["algorithm", "what it is", "family", "actions", "paper"]
    lines = [_row(head), _row(["---"] * len(head))]
    for name in registry.names():
        spec = registry.get(name).spec
        link = f"[{name}]({name}.md)"
        actions = ", ".join(spec.own_actions)
        lines.append(_row([link, spec.summary, spec.family, actions, spec.paper]))
    return "\n".join(lines)


def speed_table(contents: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of speed measurements; comparisons that did not run are left out."""
    head = ["comparison", "Assay", "peer", "ratio [range]", "target", "met", "final returns"]
    lines = [_row(head), _row(["---"] * len(head))]
    places: dict[str, None] = {}
    for comparison in COMPARISONS:
        for content in contents:
            found = evidence.compare(comparison, content["runs"])
            if found is not None:
                lines.append(_row(_speed_cells(found)))
                date = f"on {content['date']} " if "date" in content else ""
                places[f"{date}on one core of {machine_line(content['machine'])}"] = None
    lines += ["", f"Measured {'; '.join(places)}."]
    return "\n".join(lines)


def _speed_cells(found: Ratio) -> list[str]:
    comparison = found.comparison
    unit = _UNITS[comparison.measure]
    target = "" if comparison.target is None else f"{comparison.target:g}x"
    met = {None: "", True: "yes", False: "**no**"}[found.met]
    span = f"{_times(found.ratio)} [{_times(found.low)}, {_times(found.high)}]"
    ours, peer = (_quantity(value, unit) for value in (found.ours, found.peer))
    returns = f"{_score(found.our_return)} / {_score(found.peer_return)}"
    return [comparison.title, ours, peer, span, target, met, returns]


def memory_line() -> str:
    """Return what a replay of a million stacked frames needs, planned and (if there) measured."""
    from memory import CAPACITY, frame_bytes, planned_bytes

    frames, planned = frame_bytes(CAPACITY), planned_bytes(CAPACITY)
    text = (
        f"A replay of {CAPACITY:,} transitions of 84x84x4 uint8 frames allocates {planned:,} "
        f"bytes, {planned / frames:.3f} times the {frames:,} bytes of its frames."
    )
    if evidence.MEMORY.exists():
        found = evidence.read_json(evidence.MEMORY)
        try:
            share = found["resident_bytes"] / frame_bytes(found["capacity"])
            text += (
                f" Filled with {found['capacity']:,} transitions, the process had grown by "
                f"{found['resident_bytes']:,} bytes, {share:.3f} times the frames."
            )
        except (KeyError, TypeError) as error:
            raise EvidenceError(f"'{evidence.MEMORY.name}' is refused: {error}.") from None
    return text


def priorities_table() -> str:
    """Return what a prioritised sample costs, if it was measured."""
    from priorities import lines

    if not evidence.PRIORITIES.exists():
        return "Not measured yet: `python benchmarks/priorities.py --store`."
    found = evidence.read_json(evidence.PRIORITIES)
    try:
        place = f"Measured on one core of {machine_line(found['machine'])}."
        return f"{lines(found)}\n\n{place}"
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"'{evidence.PRIORITIES.name}' is refused: {error}.") from None


def plain_table(module: str, hint: str) -> str:
    """Return the table of a benchmark that has `EVIDENCE` and `lines`, if it was run.

    Args:
        module: Of the benchmark.
        hint: What to run where there is no evidence.
    """
    benchmark = importlib.import_module(module)
    if not benchmark.EVIDENCE.exists():
        return f"Not measured yet: `{hint}`."
    try:
        return str(benchmark.lines(evidence.read_json(benchmark.EVIDENCE))).strip("\n")
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"'{benchmark.EVIDENCE.name}' is refused: {error}.") from None


def server_table() -> str:
    """Return what the training server reaches, if it was measured."""
    from server import EVIDENCE, lines

    if not EVIDENCE.exists():
        return "Not measured yet: `python benchmarks/server.py --store`."
    found = evidence.read_json(EVIDENCE)
    try:
        place = f"Measured on {found['date']} on {machine_line(found['machine'])}"
        return f"{lines(found)}\n\n{place}, {found['machine']['cores']} cores."
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"'{EVIDENCE.name}' is refused: {error}.") from None


def offline_speed_table() -> str:
    """Return the races of offline updates, if they were run."""
    from offline_speed import STORE, table

    return table(evidence.read_json(STORE) if STORE.exists() else None)


def imitation_table(algorithm: str | None = None) -> str:
    """Return what the imitators reached, if it was measured; of one algorithm, if that is given."""
    if not imitators.EVIDENCE.exists():
        return "Not measured yet: `python benchmarks/imitators.py`."
    found = evidence.read_json(imitators.EVIDENCE)
    try:
        cases = imitators.cases_of(found, algorithm)
        machines = [machine_line(one["machine"]) for c in cases.values() for one in c["seeds"]]
        place = f"Measured on {'; '.join(dict.fromkeys(machines))}."
        return f"{imitators.table({'cases': cases})}\n\n{place}"
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"'{imitators.EVIDENCE.name}' is refused: {error}.") from None


def seeds_table(name: str) -> str:
    """Return the table of a script that keeps every seed with its machine, if it was measured."""
    script = importlib.import_module(name)
    if not script.EVIDENCE.exists():
        return f"Not measured yet: `python benchmarks/{name}.py`."
    found = evidence.read_json(script.EVIDENCE)
    try:
        lines = dict.fromkeys(machine_line(one["machine"]) for one in script.all_seeds(found))
        return f"{script.table(found)}\n\nMeasured on {'; '.join(lines)}."
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"'{script.EVIDENCE.name}' is refused: {error}.") from None


def imitation_speed_table() -> str:
    """Return the race of GAIL, if it was run."""
    from imitation_speed import STORE, table

    return table(evidence.read_json(STORE) if STORE.exists() else None)


def world_speed_table() -> str:
    """Return the races of world models, if they were run."""
    from world_speed import STORE, table

    return table(evidence.read_json(STORE) if STORE.exists() else None)


def dataset_memory_lines() -> str:
    """Return what training from a set larger than the memory costs, if it was measured."""
    from dataset_memory import STORE, lines

    if not STORE.exists():
        return "Not measured yet: `python benchmarks/dataset_memory.py --store`."
    return lines(evidence.read_json(STORE))


def tables() -> dict[str, str]:
    """Return every table from the committed evidence.

    Raises:
        EvidenceError: An evidence file is damaged.
    """
    measured = [evidence.read_speed(path) for path in evidence.SPEED_FILES if path.exists()]
    speed = speed_table(measured) if measured else "Not measured yet: `make bench`."
    phases = "Not measured yet: `python benchmarks/phases.py --compile --store`."
    if evidence.PHASES.exists():
        phases = evidence.PHASES.read_text().strip()
    return {
        "learning": learning_table(),
        "speed": speed,
        "priorities": priorities_table(),
        "phases": phases,
        "memory": memory_line(),
        "gate": plain_table("gate", "python benchmarks/gate.py --store"),
        "defaults": defaults.table(),
        "offline": offline_table.table(),
        "offline-speed": offline_speed_table(),
        "imitation": imitation_table(),
        "imitation-speed": imitation_speed_table(),
        "preferences": seeds_table("preferences"),
        "randomisation": seeds_table("randomisation"),
        "mazes": seeds_table("mazes"),
        "world-speed": world_speed_table(),
        "dataset-memory": dataset_memory_lines(),
        "server": server_table(),
        "server-learning": plain_table("server_learning", "python benchmarks/server_learning.py"),
        "games": plain_table("games", "python benchmarks/games.py"),
        "teams": plain_table("teams", "python benchmarks/teams.py returns"),
        "wrappers": plain_table("wrappers", "python benchmarks/wrappers.py --store"),
        "systems": plain_table("systems", "python benchmarks/systems.py --store"),
    }


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _score(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _shown(case: Case, value: float) -> str:
    return f"{value:.0%}" if case.measure == "success" else _score(value)


def _quantity(value: float, unit: str) -> str:
    if math.isinf(value):
        return "not reached"
    return f"{value:.2f} {unit}" if unit == "s" else f"{value:,.0f} {unit}"


def _times(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}x" if value >= 1 else f"{value:.2f}x"


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return the processor and the versions that matter on one line."""
    names = {
        "python": "Python", "torch": "torch", "stable-baselines3": "SB3",
        "sb3-contrib": "sb3-contrib", "skrl": "skrl",
    }  # fmt: skip
    versions = facts["versions"]
    parts = [f"{title} {versions[name]}" for name, title in names.items() if name in versions]
    return f"{facts['cpu']} ({', '.join(parts)})"


# ---------------------------------------------------------------------- READMEs


def block(text: str, name: str) -> str | None:
    """Return what stands between the markers of a table, or None without markers."""
    found = re.search(_pattern(name), text, re.DOTALL)
    return None if found is None else found[2].strip("\n")


def with_block(text: str, name: str, table: str) -> str:
    """Return the text with another table between its markers."""
    return re.sub(
        _pattern(name), lambda found: f"{found[1]}\n{table}\n{found[3]}", text, flags=re.DOTALL
    )


def _pattern(name: str) -> str:
    return rf"(<!-- {name}:begin -->)(.*?)(<!-- {name}:end -->)"


def pages() -> list[Path]:
    """Return every file that shows tables."""
    topics = [DOCS / name for name in (*_TOPICS, *_PAGES)]
    own = sorted((DOCS / "algorithms").glob("*.md"))
    found = [BENCHMARKS_README, PROJECT_README, *topics, *own]
    return [path for path in found if path.exists()]


def wanted_blocks(path: Path) -> dict[str, str]:
    """Return the tables that a file may show, by name."""
    if path == INDEX:
        return {"algorithms": algorithm_index()}
    if path.name in _PAGES:
        every = tables()
        return {name: every[name] for name in _PAGES[path.name]}
    if path.parent == INDEX.parent and path.stem in imitators.ALGORITHMS:
        return {"evidence": imitation_table(path.stem)}
    if path.parent in (INDEX.parent, DOCS):
        blocks = {"evidence": evidence_block(path, shown_cases(path))}
        if path.stem == "option_critic":
            hint = "python benchmarks/hierarchy.py moved-goal"
            blocks["moved-goal"] = plain_table("hierarchy", hint)
        return blocks
    return tables()


def outdated(path: Path) -> list[str]:
    """Return the names of the tables in a file that are not what the evidence says."""
    text = path.read_text()
    wanted = wanted_blocks(path)
    return [name for name, table in wanted.items() if block(text, name) not in (None, table)]


def write_blocks(paths: Sequence[Path] | None = None) -> None:
    """Rewrite every table that the files (all pages, if not given) have markers for."""
    for path in pages() if paths is None else paths:
        old = text = path.read_text()
        wanted = wanted_blocks(path)
        shown = [name for name in wanted if block(text, name) is not None]
        for name in shown:
            text = with_block(text, name, wanted[name])
        draw(path)
        if text != old:
            path.write_text(text)
            print(f"{path.name} of {path.parent.name}: {', '.join(shown)}")


# ---------------------------------------------------------------------- evidence


def collect(directory: Path, target: Path = evidence.LEARNING) -> list[Path]:
    """Put the seeds that `learning.py` left in a directory into one evidence file per case.

    Raises:
        EvidenceError: Seeds of a case contradict each other, or none is there at all.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(directory.glob("seeds/*.json")):
        result = evidence.read_json(path)
        found.setdefault(result["case"], []).append(result)
    if not found:
        raise EvidenceError(f"There are no seeds in '{directory}'.", "Run learning.py first.")
    written = []
    for name, results in found.items():
        if len(results) < CASES[name].seeds:
            print(f"{name}: {len(results)} of {CASES[name].seeds} seeds, left out")
            continue
        path = target / f"{name}.json"
        evidence.write_json(path, evidence.aggregate(CASES[name], results))
        evidence.read_learning(path)
        written.append(path)
    return written


def stale(case: Case, content: Mapping[str, Any]) -> list[str]:
    """Return the settings that the shipped preset now has otherwise than the evidence."""
    from learning import resolved

    now, then = resolved(case, 0), content["config"]
    parts = [(now["hyperparameters"], then["hyperparameters"])]
    parts.append(({"num_envs": now["run"]["num_envs"]}, {"num_envs": then["run"]["num_envs"]}))
    return [k for new, old in parts for k in old if new.get(k) != old[k]]


def check() -> list[str]:
    """Return what is wrong: tables out of date, evidence for settings no longer shipped."""
    wrong = []
    for path in pages():
        wrong += [f"the table '{n}' of {path.name} is out of date" for n in outdated(path)]
        wrong += [] if drawn(path) else [f"the picture of {path.name} is out of date"]
    for case in CASES.values():
        path = evidence.LEARNING / f"{case.name}.json"
        if path.exists() and (names := stale(case, evidence.read_learning(path))):
            wrong.append(f"{case.name}: the preset changed ({', '.join(names)}); measure again")
    if (
        not evidence.MEASURED.exists()
        or evidence.read_json(evidence.MEASURED) != evidence.measured()
    ):
        wrong.append(f"{evidence.MEASURED.name} of assay.design is out of date")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect, then rewrite or check."""
    parser = argparse.ArgumentParser(description="Turn evidence into the tables of the READMEs.")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="where learning.py worked")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    if options.collect is not None:
        for path in collect(options.collect):
            print(f"wrote {path.name}")
    if options.check:
        wrong = check()
        print("\n".join(wrong) or "All tables agree with the evidence.")
        return 1 if wrong else 0
    write_blocks()
    evidence.write_json(evidence.MEASURED, evidence.measured())
    return 0


if __name__ == "__main__":
    finish(main)
