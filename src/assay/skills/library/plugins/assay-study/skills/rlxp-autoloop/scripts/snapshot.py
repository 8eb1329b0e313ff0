"""Print where a study is and what comes next, as one JSON object. Starts no run.

python snapshot.py [--root DIR]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys


def ask(verb: str, root: str | None) -> dict[str, object]:
    """Return what a command of the study says, or its error."""
    command = ["assay", "study", verb, "--json", *(["--root", root] if root else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": (done.stderr or done.stdout).strip(), "exit_code": done.returncode}


def main() -> int:
    """Print the snapshot; exit 2 if a part of it could not be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="the repository of the study")
    given = parser.parse_args()
    seen = {verb: ask(verb, given.root) for verb in ("next", "status")}
    print(json.dumps(seen, indent=1))
    return 2 if any("error" in part for part in seen.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
