"""Check that an environment conforms, from where it is written: an id, or MODULE:CLASS.

    python check_env.py my_env:MyEnv-v0 [--steps 2000] [--json]
    python check_env.py my_env.env:MyEnv

Exit code 0: nothing failed. 1: a check failed. 2: there is no such module or class.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from assay.envs.checks import check_env


def found(text: str) -> Any:
    """Return the class or function that MODULE:NAME names; else the id as it is."""
    module, _, name = text.partition(":")
    if not name.isidentifier():
        return text
    sys.path.insert(0, str(Path.cwd()))
    return getattr(importlib.import_module(module), name)


def main() -> int:
    """Print every check, and what to do about it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        env = found(given.env)
    except (ImportError, AttributeError) as error:
        print(f"Error: {given.env}: {error}", file=sys.stderr)
        return 2
    results = check_env(env, steps=given.steps)
    if given.json:
        print(json.dumps([asdict(one) for one in results]))
    for one in [] if given.json else results:
        print(f"{'ok' if one.ok else 'FAILED'}: {one.name}: {one.detail}")
        if one.fix:
            print(f"  {one.fix}")
    return int(not all(one.ok for one in results))


if __name__ == "__main__":
    sys.exit(main())
