"""List the checkpoints of a run, check every file of them, say what they cost, keep the newest.

    python checkpoints.py runs/mine [--keep 3]

Exit code 0: the newest is intact. 1: it is damaged, and an older one is not. 2: nothing is left.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay.core.errors import AssayError, CheckpointError
from assay.runs.checkpoint import list_checkpoints, prune, verify_checkpoint


def intact(path: Path) -> bool:
    """Return whether every file is what the manifest says."""
    try:
        verify_checkpoint(path)
    except CheckpointError:
        return False
    return True


def main() -> int:
    """Print a line for each."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--keep", type=int, help="delete all but so many, if the newest is intact")
    given = parser.parse_args()
    place, seen, found = given.run / "checkpoints", set(), []
    for path in list_checkpoints(place):
        files = [file.stat() for file in path.rglob("*") if file.is_file()]
        own = sum(one.st_size for one in files if one.st_ino not in seen)  # not hard-linked before
        seen |= {one.st_ino for one in files}
        size = sum(one.st_size for one in files)
        found.append({"name": path.name, "intact": intact(path), "bytes": size, "own_bytes": own})
    for one in found:
        word = "ok" if one["intact"] else "DAMAGED"
        print(f"{one['name']}: {word}, {one['bytes']:,} bytes, {one['own_bytes']:,} of its own")
    if not any(one["intact"] for one in found):
        print(f"Error: {place} has no checkpoint that is intact", file=sys.stderr)
        return 2
    if not found[-1]["intact"]:
        print("the newest is damaged; `assay resume RUN --force` goes on from the one before")
        return 1
    try:
        for path in [] if given.keep is None else prune(place, given.keep):
            print(f"deleted {path.name}")
    except (AssayError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
