"""Race Assay against its peers on one core, taking turns, and say which targets are met.

    make bench                     # everything, in .venv-bench: about half an hour
    make bench ARGS='--races sac'  # one race, shown and not stored (a file's races all: stored)
    make bench ARGS=--quick        # does the harness work? The numbers mean nothing

Every measurement is a fresh process bound to the same core, with one torch thread. In each repeat
every entry of a race runs once, in order, so that a machine that slows down slows all of them.
A missed target is a result, not an error: the exit code is 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evidence
import report
from cases import ENTRIES, QUICK_STEPS, RACES, Entry
from children import ONE_THREAD, caches, finish

from assay.core.errors import AssayError, ConfigError, nearest

MODULES = {
    "assay": "assay", "sb3": "stable_baselines3", "sb3-contrib": "sb3_contrib", "skrl": "skrl",
}  # fmt: skip
WARM_STEPS = 2_048  # one rollout of the largest kind, and enough to start learning from replay
RUN_TIMEOUT = 1_800


def scaled(entry: Entry, steps: int) -> Entry:
    """Return the same entry with a small budget."""
    rollout = entry.settings.get("num_envs", entry.settings.get("n_envs", 1)) * 32
    return dataclasses.replace(entry, env_steps=max(steps, rollout))


def pin(core: int) -> bool:
    """Bind this process to one core, where the system lets us."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {core})
    return True


def child(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure one entry in this process."""
    pinned = pin(spec["core"])
    import contestants

    entry = dataclasses.replace(ENTRIES[spec["entry"]], compile=spec["compile"])
    if spec["steps"] is not None:
        entry = scaled(entry, spec["steps"])
    launched = spec["launched"] if entry.from_command else None
    return contestants.run(entry, spec["seed"], launched) | {"pinned": pinned}


def launch(
    entry: Entry, seed: int, core: int, cache: Path, steps: int | None = None
) -> dict[str, Any]:
    """Measure one entry in a process of its own.

    Args:
        entry: What to run.
        seed: Its seed.
        core: Where.
        cache: Compiled steps; a cold entry gets an empty directory instead.
        steps: A smaller budget than the entry's.

    Raises:
        AssayError: The process failed; the end of what it wrote is shown.
    """
    # A compiler in the background may still be at work in a cold entry's cache.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        place = Path(scratch) if entry.cold else cache
        answer = Path(scratch) / "answer.json"
        environment = {
            **os.environ,
            **ONE_THREAD,
            **caches(str(place)),  # torch's too, which would make a cold run lukewarm
            "ASSAY_COMPILE": "false" if entry.compile is False else "auto",
        }
        spec = {
            "entry": entry.name, "seed": seed, "core": core, "steps": steps,
            "compile": entry.compile, "launched": time.monotonic(),
        }  # fmt: skip
        command = [sys.executable, __file__, "--child", json.dumps(spec), str(answer)]
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
        )
        if done.returncode != 0 or not answer.exists():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise AssayError(f"{entry.name} failed with exit code {done.returncode}:\n{tail}")
        return json.loads(answer.read_text())


def measure(
    races: Sequence[str], only: Sequence[str], core: int, quick: bool
) -> list[dict[str, Any]]:
    """Run the races and return one record per measurement."""
    runs: list[dict[str, Any]] = []
    steps = QUICK_STEPS if quick else None
    with tempfile.TemporaryDirectory() as cache:
        for race in (RACES[name] for name in races):
            entries = [e for e in race.entries if not only or e.name in only]
            absent = {e.library for e in entries if not _installed(e.library)}
            if absent and not quick:
                raise ConfigError(
                    f"Not installed here: {', '.join(sorted(absent))}.",
                    "Run `make bench`, which makes an environment with the peers.",
                )
            entries = [e for e in entries if e.library not in absent]
            for entry in entries:
                if entry.compile is not False and not entry.cold:
                    print(f"{race.name}: compiling for {entry.name}", flush=True)
                    first = dataclasses.replace(entry, compile=True)  # which waits for it
                    launch(first, 0, core, Path(cache), WARM_STEPS)
            for repeat in range(1 if quick else race.repeats):
                for entry in entries:
                    load = os.getloadavg()[0]
                    result = launch(entry, repeat + 1, core, Path(cache), steps)
                    record = {"race": race.name, "entry": entry.name, "repeat": repeat}
                    runs.append(record | result | {"load": round(load, 2)})
                    print(_line(runs[-1]), flush=True)
    return runs


def _installed(library: str) -> bool:
    return importlib.util.find_spec(MODULES[library]) is not None


def _line(run: dict[str, Any]) -> str:
    goal = run["seconds_to_return"]
    tail = "" if goal is None else f", goal after {goal:.2f} s"
    return (
        f"{run['race']} {run['repeat'] + 1}: {run['entry']:<26} "
        f"{run['env_steps_per_second']:>10,.0f} steps/s {run['updates_per_second']:>8,.0f} "
        f"updates/s, return {run['final_return']:.1f}{tail}"
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        ConfigError: A race, an entry or the core does not exist.
    """
    parser = argparse.ArgumentParser(description="Race Assay against its peers on one core.")
    parser.add_argument("--races", default=",".join(RACES), help="some of: " + ", ".join(RACES))
    parser.add_argument("--only", default="", help="some entries, by name")
    parser.add_argument("--core", type=int, help="the core to use; the last one by default")
    parser.add_argument("--quick", action="store_true", help="tiny budgets, one repeat")
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    parser.add_argument("--child", nargs=2, metavar=("SPEC", "ANSWER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.races = _known(options.races, RACES, "race")
    options.only = _known(options.only, ENTRIES, "entry")
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    if options.core is None:
        options.core = usable[-1]
    elif options.core not in usable:
        raise ConfigError(f"--core {options.core} is not one of {usable}.")
    return options


def _known(text: str, known: dict[str, Any], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"Unknown {what} '{name}'. {nearest(name, known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, store and show."""
    options = parse(arguments)
    if options.child is not None:
        spec, answer = options.child
        Path(answer).write_text(json.dumps(child(json.loads(spec))))
        return 0
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"The machine is busy (load {busy:.1f}): the numbers will be noisy.", flush=True)
    content = {
        "schema": evidence.SCHEMA,
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "machine": evidence.machine(),
        "runs": measure(options.races, options.only, options.core, options.quick),
    }
    print()
    print(report.speed_table([content]))
    if options.out is not None:
        evidence.write_json(options.out, content)
    elif not options.quick and not options.only and (stored := store(content, options.races)):
        print(f"Stored: {', '.join(path.name for path in stored)}")
        report.write_blocks()
    return 0


def store(content: dict[str, Any], races: Sequence[str]) -> list[Path]:
    """Write the evidence files whose races were all run, and return which these are."""
    stored = []
    for path in evidence.SPEED_FILES:
        names = {race.name for race in RACES.values() if race.file == path.stem}
        if names <= set(races):
            runs = [run for run in content["runs"] if run["race"] in names]
            evidence.write_json(path, {**content, "runs": runs})
            stored.append(path)
    return stored


if __name__ == "__main__":
    finish(main)
