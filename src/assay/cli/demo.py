"""`assay demo`: train, evaluate and compare, in two minutes."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from assay.cli import output
from assay.cli.shared_options import RunsRoot
from assay.core.errors import RunError
from assay.core.paths import runs_root
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.cli.seeds import Job

ALGORITHM, ENV = "ppo", "CartPole-v1"
CHANGE = ("lr=3e-5",)  # the preset decreases it from 2.5e-3


@dataclass(frozen=True, slots=True)
class Size:
    """How much the demo does."""

    seeds: int
    settings: tuple[str, ...]
    episodes: int


# Four seeds are the fewest with which a permutation test can show anything at the 5% level.
NORMAL = Size(5, ("env_steps=50_000", "eval_every=5_000"), 50)
FAST = Size(
    2,
    ("env_steps=512", "num_envs=8", "horizon=32", "minibatch_size=64", "eval_every=256",
     "eval_episodes=4", "compile=false", "sinks=[]"),
    4,
)  # fmt: skip


def demo(
    root: RunsRoot = None,
    jobs: int = typer.Option(None, "--jobs", min=1, help="Most runs to train at once."),
    fast: bool = typer.Option(
        False, "--fast", help="Train only briefly: shows that it runs, not that it learns."
    ),
) -> None:
    """Watch an agent learn, evaluate it, and compare two settings."""
    from assay.api import open_run
    from assay.cli.compare import show_comparison
    from assay.evaluation.compare import compare
    from assay.evaluation.plots import plot_comparison, text_chart

    began = time.monotonic()
    size = FAST if fast else NORMAL
    name = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    place = runs_root(root) / name
    arms = {"preset": (), "small-steps": CHANGE}

    _heading("1. Learn")
    output.say(
        f"{ALGORITHM} learns to balance a pole ({ENV}: 500 is the best possible return), from the "
        f"shipped settings, under {size.seeds} different seeds.\n"
        f"The same as typing: {_command(name, 'preset', arms['preset'], size)}"
    )
    _train(place / "preset", _jobs(place, name, "preset", arms["preset"], size), jobs)

    _heading("2. Evaluate")
    first = place / "preset" / "seed-1"
    result = open_run(first).evaluate(size.episodes, seed=0)
    output.say(
        f"The agent of seed 1 in {size.episodes} new episodes, without exploration: mean return "
        f"{number(result.mean)}, worst {number(float(result.returns.min()))}.\n"
        f"The same as typing: assay evaluate {_quoted(first)} --episodes {size.episodes}"
    )

    _heading("3. Change something")
    output.say(
        f"The same again with a smaller learning rate ({' '.join(CHANGE)}).\n"
        f"The same as typing: {_command(name, 'small-steps', CHANGE, size)}"
    )
    _train(place / "small-steps", _jobs(place, name, "small-steps", CHANGE, size), jobs)

    _heading("4. Compare")
    comparison = compare([place / arm for arm in arms])
    show_comparison(comparison)
    output.say("\n" + text_chart({arm.name: arm.curves for arm in comparison.arms}))
    plot = plot_comparison(comparison, place / "comparison.png")
    output.say(f"\nPlot: {plot}")
    both = " ".join(_quoted(place / arm) for arm in arms)
    output.say(f"The same as typing: assay compare {both} --plot {_quoted(plot)}")

    _heading("What this means")
    output.say(
        "- A seed is one measurement. The IQM is the mean of the middle half of the seeds, and the "
        "interval says where it would fall if you trained more of them.\n"
        "- P(better) is the chance that a run with the change beats one without it.\n"
        "- A difference counts only if two tests agree on it; otherwise the line says how many "
        "seeds it would take."
    )
    output.say("\nTry next:")
    for command, comment in (
        (f"assay evaluate {_quoted(first)} --video", "a video of the agent"),
        (f"assay algorithms {ALGORITHM}", "all settings and their meaning"),
        ("assay train sac Pendulum-v1 --seeds 3", "another algorithm, another task"),
        ("assay runs", "everything that was trained"),
    ):
        output.say(f"  {command}  # {comment}")
    output.say(f"\nTook {output.duration(time.monotonic() - began)}. All files: {place}")


def _jobs(place: Path, name: str, arm: str, change: tuple[str, ...], size: Size) -> list[Job]:
    from assay.cli.seeds import Job
    from assay.core.config import parse_assignments

    steps = int(parse_assignments(list(size.settings))["env_steps"])
    return [
        Job(
            label=f"{arm}, seed {seed}",
            arguments=(
                "train", ALGORITHM, ENV, *size.settings, *change, "--seed", str(seed), "--name",
                f"{name}/{arm}/seed-{seed}", "--root", str(place.parent), "--quiet",
            ),
            path=place / arm / f"seed-{seed}",
            total=steps,
        )
        for seed in range(1, size.seeds + 1)
    ]  # fmt: skip


def _train(group: Path, todo: list[Job], jobs: int | None) -> None:
    from assay.cli.progress import Bars
    from assay.cli.results import group_result, show_group
    from assay.cli.seeds import cores, run_jobs

    with Bars("bar" if sys.stderr.isatty() else "lines") as bars:
        outcomes = run_jobs(todo, jobs or cores(), bars)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        raise RunError(
            f"{failed[0].job.label} failed: {failed[0].message}",
            "`assay doctor` shows what may be missing here.",
        )
    if any(outcome.status != "done" for outcome in outcomes):
        raise KeyboardInterrupt
    show_group(group_result(group, outcomes))


def _command(name: str, arm: str, change: tuple[str, ...], size: Size) -> str:
    words = ["assay", "train", ALGORITHM, ENV, *size.settings, *change]
    return shlex.join([*words, "--seeds", str(size.seeds), "--name", f"{name}/{arm}"])


def _heading(text: str) -> None:
    from rich.text import Text

    output.out().print(Text(f"\n{text}", "bold"))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
