"""Write candidates for all combinations of settings, to be proposed with `assay study propose`.

python grid.py lr=1e-4,1e-3 width=64,256 --hypothesis "..." > candidates.yaml
"""

from __future__ import annotations

import argparse
import itertools
import json
import re


def value(text: str) -> object:
    """Read a number, true, false or null as such; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def candidates(settings: dict[str, list[object]], hypothesis: str, hours: float) -> list[dict]:
    """Return one candidate for every combination."""
    found = []
    for combination in itertools.product(*settings.values()):
        parameters = dict(zip(settings, combination, strict=True))
        words = "-".join(f"{key}-{setting}" for key, setting in parameters.items())
        found.append(
            {
                "id": re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip("-._")[:46],
                "kind": "hyperparameter",
                "hypothesis": hypothesis,
                "change": {"parameters": parameters},
                "expected": "the primary metric improves by at least the minimum effect",
                "rollback": "Keep the incumbent's settings.",
                "budget": {"wall_clock_hours": hours},
            }
        )
    return found


def main() -> None:
    """Print the candidates as YAML documents; JSON is YAML."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE,VALUE")
    parser.add_argument("--hypothesis", required=True)
    parser.add_argument("--hours", type=float, default=0.1, help="that one run may take")
    given = parser.parse_args()
    settings = {}
    for word in given.settings:
        key, sign, values = word.partition("=")
        if not key or not sign or not values:
            parser.error(f"{word!r} is not KEY=VALUE,VALUE")
        settings[key] = [value(one) for one in values.split(",")]
    print("\n---\n".join(map(json.dumps, candidates(settings, given.hypothesis, given.hours))))


if __name__ == "__main__":
    main()
