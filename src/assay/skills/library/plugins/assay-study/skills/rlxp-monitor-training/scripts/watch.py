"""Poll `assay study monitor` until something needs attention or nothing is under way.

    python watch.py --minutes 30 --every 20

Exit code 0: nothing is under way any more, or the time is over and all is well. 1: a finding is not
ok; it is printed. 2: the command failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time


def look(root: str | None) -> dict[str, list[dict[str, str]]]:
    """Return the findings of every run that is under way."""
    command = ["assay", "study", "monitor", "--json", *(["--root", root] if root else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr or done.stdout, file=sys.stderr)
        raise SystemExit(2)
    return json.loads(done.stdout)


def main() -> int:
    """Watch, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two looks")
    parser.add_argument("--root", help="the repository of the study")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    while True:
        seen = look(given.root)
        odd = [(run, f) for run, findings in seen.items() for f in findings if f["level"] != "ok"]
        for run, finding in odd:
            print(f"{run}: {finding['level']}: {finding['name']}: {finding['detail']}")
        if odd:
            return 1
        if not seen or time.monotonic() > end:
            print(f"{len(seen)} runs are under way, all is well.")
            return 0
        time.sleep(given.every)


if __name__ == "__main__":
    sys.exit(main())
