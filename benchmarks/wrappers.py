"""What wrappers cost: PPO on CartPole with each of them, beside PPO without.

    python benchmarks/wrappers.py            # all wrappers that fit: minutes
    python benchmarks/wrappers.py --store    # ... and keep the result as evidence
    python benchmarks/wrappers.py --quick    # does it work? The numbers mean nothing

One process, one thread; the contestants take turns, each turn being a short training with the
preset and compiled steps. What counts is the processor's time of this process from one rollout to a
later one (collecting and learning, without the start), so that other programs on the machine cost
all of them the same. A wrapper that makes observations longer also pays for the larger network, and
`action_repeat` for twice the steps of the environment.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import evidence
import torch
from children import finish

import assay
from assay.loops.events import Event, Logged

EVIDENCE = evidence.ROOT / "evidence" / "wrappers.json"
ROLLOUT = 1024  # steps of one rollout of the preset
SKIPPED, COUNTED = 8, 40  # rollouts of a turn
TURNS = 5
TARGET = 0.20  # of the steps per second, at most
PLAIN = "none"
SETS: Mapping[str, list[Any]] = {
    PLAIN: [],
    "clip_obs": [{"clip_obs": 5}],
    "hide_sensors": [{"hide_sensors": [1]}],
    "noise": [{"noise": 0.01}],
    "dropout": [{"dropout": 0.05}],
    "obs_delay": [{"obs_delay": 1}],
    "frame_stack": [{"frame_stack": 4}],
    "time_in_obs": [{"time_in_obs": 500}],
    "action_delay": [{"action_delay": 1}],
    "sticky_actions": [{"sticky_actions": 0.25}],
    "action_repeat": [{"action_repeat": 2}],
    "scale_reward": [{"scale_reward": 0.1}],
    "sign_reward": ["sign_reward"],
    "three": [{"noise": 0.01}, {"sticky_actions": 0.1}, {"scale_reward": 0.1}],
}


def seconds_per_step(
    wrappers: list[Any], seed: int, skipped: int, counted: int, **own: Any
) -> float:
    """Train for some rollouts and return what one step of the last ones took of the processor."""
    marks: dict[int, float] = {}

    def mark(event: Event) -> None:
        if isinstance(event, Logged):
            marks[event.clock.env_steps] = time.process_time()

    steps = (skipped + counted) * ROLLOUT
    with tempfile.TemporaryDirectory() as root:
        assay.train(
            "ppo", "CartPole-v1", root=root, name="run", seed=seed, wrappers=wrappers,
            env_steps=steps, log_every=ROLLOUT, eval_every=steps, eval_episodes=1,
            checkpoint_every=steps, sinks=(), device="cpu", callbacks=[mark], **own,
        )  # fmt: skip
    first, last = skipped * ROLLOUT, steps
    return (marks[last] - marks[first]) / (last - first)


def result(
    names: Sequence[str], turns: int, skipped: int, counted: int, **own: Any
) -> dict[str, Any]:
    """Measure, and return what is stored: microseconds per step, of every turn."""
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names:
            taken = seconds_per_step(SETS[name], turn, skipped, counted, **own)
            found[name].append(1e6 * taken)
    return {
        "schema": evidence.SCHEMA,
        "rollouts": counted,
        "microseconds": {name: evidence.rounded(values, 2) for name, values in found.items()},
        "machine": evidence.machine(),
    }


def costs(content: Mapping[str, Any]) -> dict[str, float]:
    """Return which share of the steps per second each costs, against PPO in the same turns.

    Of every turn the ratio is taken, and of those the median.
    """
    taken = content["microseconds"]
    plain = taken[PLAIN]
    return {
        name: 1.0 - statistics.median(a / b for a, b in zip(plain, values, strict=True))
        for name, values in taken.items()
    }


def lines(content: Mapping[str, Any]) -> str:
    """Return the result as a table, with whether the goal is reached."""
    shares = costs(content)
    rows = ["| `wrappers=` | processor per step | cost in steps/s |", "| --- | --- | --- |"]
    for name, values in content["microseconds"].items():
        shown = "`[noise, sticky_actions, scale_reward]`" if name == "three" else f"`{name}`"
        cost = "" if name == PLAIN else f"{100 * shares[name]:.1f} %"
        rows.append(f"| {shown} | {statistics.median(values):.1f} us | {cost} |")
    over = [name for name, share in shares.items() if share >= TARGET]
    met = "reached by all" if not over else f"**missed** by {', '.join(over)}"
    turns, machine = len(content["microseconds"][PLAIN]), content["machine"]
    rows += [
        "",
        f"PPO on CartPole-v1 with its preset, {turns} turns of {content['rollouts']} rollouts "
        f"each, medians. Asked: less than {100 * TARGET:.0f} % of the steps per second; {met}.",
        "",
        f"Measured by the processor's time on one core of {machine['cpu']} "
        f"(torch {machine['versions']['torch']}).",
    ]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; a missed target is a result, not an error."""
    parser = argparse.ArgumentParser(description="Time wrappers.")
    parser.add_argument("--quick", action="store_true", help="few rollouts; measures nothing")
    parser.add_argument("--store", action="store_true", help="keep the result as evidence")
    parser.add_argument("--only", nargs="+", choices=SETS, help="these, beside none")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args(arguments)
    if options.quick:
        content = result([PLAIN, "three"], 1, 1, 1, compile=False)
    else:
        names = list(SETS) if options.only is None else [PLAIN, *options.only]
        content = result(names, options.turns, SKIPPED, COUNTED, compile=True)
    if options.store and not options.quick and options.only is None:
        evidence.write_json(EVIDENCE, content)
    print(lines(content))
    return 0


if __name__ == "__main__":
    finish(main)
