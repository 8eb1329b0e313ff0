"""Train with a callback that writes evaluations to a file of your own and stops at a goal.

    python tracking_callback.py ppo CartPole-v1 env_steps=20_000 --out scores.jsonl --goal 475

`Tracker` is the callback, to copy: a callable of one event, which returns `assay.STOP` to end.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import assay
from assay.core.config import parse_assignments
from assay.core.errors import AssayError
from assay.loops.events import Evaluated, Event


class Tracker:
    """Append a line for each evaluation, and stop at the goal."""

    def __init__(self, out: Path, goal: float = math.inf) -> None:
        self.out, self.goal = out, goal

    def __call__(self, event: Event) -> Any:
        """Take one event."""
        if not isinstance(event, Evaluated):
            return None
        mean, steps = event.result.mean, event.clock.env_steps
        line = {"env_steps": steps, "mean": mean, "success_rate": event.result.success_rate}
        with self.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return assay.STOP if mean >= self.goal else None


def main() -> int:
    """Train, and say where the lines are."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("scores.jsonl"))
    parser.add_argument("--goal", type=float, default=math.inf, help="mean return at which to stop")
    given = parser.parse_args()
    tracker = Tracker(given.out, given.goal)
    try:
        settings = parse_assignments(given.settings)
        run = assay.train(given.algorithm, given.env, callbacks=[tracker], **settings)
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(f"{run.path}: evaluations in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
