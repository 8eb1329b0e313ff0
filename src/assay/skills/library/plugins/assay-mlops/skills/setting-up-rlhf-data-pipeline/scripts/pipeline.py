"""Run the whole way from pairs to a reward once: sample, answer, inspect, fit.

    python pipeline.py --env Pendulum-v1 --out pairs --reward reward --pairs 200 --length 25
    python pipeline.py --env Pendulum-v1 --out pairs --reward reward --answers answers.jsonl

Without --answers the environment's own reward answers: a rehearsal before people are asked. Exit
code 1: somebody's answers are suspicious, and nothing is fitted. 2: bad input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay.core.errors import AssayError
from assay.experts.reward_model import FitSettings
from assay.preferences.files import PreferenceSet, read_answers
from assay.preferences.fit import fit
from assay.preferences.inspection import inspect
from assay.preferences.oracle import ask_oracle
from assay.preferences.sample import random_source, sample


def main() -> int:
    """Take each step, and print what it found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", required=True)
    parser.add_argument("--out", type=Path, default=Path("preferences"))
    parser.add_argument("--reward", type=Path, default=Path("reward"))
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--length", type=int, default=25)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--noise", type=float, default=0.0, help="share of wrong answers")
    parser.add_argument("--answers", type=Path, help="lines of people, as `assay prefer label` has")
    given = parser.parse_args()
    try:
        source = random_source(given.env, episodes=given.episodes)
        sample(given.out, [source], pairs=given.pairs, length=given.length)
        pairs = PreferenceSet.open(given.out)
        if given.answers is not None:
            lines = read_answers(given.answers)
            pairs.add_labels((pair, choice, name or "file") for pair, choice, name in lines)
        else:
            ask_oracle(pairs, noise=given.noise)
        found = inspect(pairs)
        print(f"{found.labelled} of {found.pairs} pairs answered, {found.held_out} held out")
        for flag in found.flags:
            print(f"suspicious: {flag}")
        if found.flags:
            return 1
        model = fit(pairs, given.reward, FitSettings(epochs=given.epochs))
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    quality = model.facts["quality"]
    print(f"held-out accuracy {quality['accuracy']:.3f}, log loss {quality['log_loss']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
