"""Make a training set and a test set of logs in one step: build, validate, split by episode.

    python build_dataset.py log.csv --out pumps --column obs=level,inflow --column action=valve \
        --column reward=score --column terminated=overflow --column episode=shift --choices 2

It writes OUT-train.npz and OUT-test.npz. Exit code 2: an error was found, and nothing is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from gymnasium.spaces import Discrete

from assay.core.errors import AssayError
from assay.data.combine import split
from assay.data.files import save
from assay.data.findings import validate
from assay.data.tables import build


def column(text: str) -> tuple[str, list[str]]:
    """Read FIELD=NAME,NAME."""
    field, _, names = text.partition("=")
    return field, names.split(",")


def main() -> int:
    """Print findings, and what was written."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("logs", nargs="+")
    parser.add_argument("--out", required=True, help="first part of both names")
    parser.add_argument("--column", type=column, action="append", required=True)
    parser.add_argument("--choices", type=int, help="how many actions there are, without --env")
    parser.add_argument("--env", help="the environment with these spaces")
    parser.add_argument("--fraction", type=float, default=0.9, help="of episodes, for training")
    given = parser.parse_args()
    space = Discrete(given.choices) if given.choices else None
    try:
        with tempfile.TemporaryDirectory() as place:
            own = {"env": given.env, "actions": space}
            made = build(given.logs, dict(given.column), f"{place}/all.npz", **own)
            findings = validate(made, given.env)
            for one in findings:
                print(f"{one.level}: {one.code}: {one.message}")
            if any(one.level == "error" for one in findings):
                return 2
            for part, name in zip(split(made, given.fraction), ("train", "test"), strict=True):
                path = save(part, f"{given.out}-{name}.npz")
                print(f"{path}: {part.num_episodes} episodes, {len(part)} steps")
    except AssayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
