"""Board games: what AlphaZero has learned, as evidence.

python benchmarks/boards.py tictactoe --seeds 1 2 3 4 5 --root DIR
python benchmarks/boards.py connect_four RUN --simulations 40 200 --games 100

The first trains the preset and plays every line against every reply; the second plays a run's
checkpoints against minimax and each other. Both write into `evidence/boards.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import assay
from assay.evaluation.matches import play_all_replies, play_match
from assay.functional.boards import CONNECT_FOUR, TICTACTOE
from assay.league import find_player
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory

EVIDENCE = Path(__file__).parent / "evidence" / "boards.json"


def tictactoe(seed: int, root: Path) -> dict[str, Any]:
    """Train one seed with the preset, and play all games against every reply."""
    began = time.process_time()
    name = f"tictactoe-{seed}"
    run = assay.train(
        "alphazero", "tictactoe", seed=seed, root=root, name=name, compile=False, device="cpu"
    )
    result: dict[str, Any] = {"seed": seed, "cpu_seconds": round(time.process_time() - began, 1)}
    for kind, settings in (("search", {}), ("network", {"simulations": 0})):
        player = find_player(TICTACTOE, run.path, settings=settings)
        result[kind] = {
            seat: play_all_replies(TICTACTOE, player, first=seat == "first")
            for seat in ("first", "second")
        }
    match = play_match(
        TICTACTOE, find_player(TICTACTOE, run.path), find_player(TICTACTOE, "perfect"),
        games=200, seed=seed, opening=0,
    )  # fmt: skip
    return result | {"against_perfect": match.tally}


def connect_four(path: Path, simulations: list[int], games: int, depth: int) -> dict[str, Any]:
    """Play the last checkpoint of a run against minimax, and against its own first ones."""
    places = checkpoint.list_checkpoints(RunDirectory.open(path).checkpoints_path)
    last = int(places[-1].name)
    found: dict[str, Any] = {"moves": last, "against": {}}
    for count in simulations:
        own = find_player(CONNECT_FOUR, path, settings={"simulations": count})
        for name in ("random", "minimax:1", "minimax:2", f"minimax:{depth}"):
            other = find_player(CONNECT_FOUR, name)
            match = play_match(CONNECT_FOUR, own, other, games=games, seed=0)
            found["against"][f"{name}, {count} simulations"] = match.to_json()
    return found


def main() -> None:
    """Measure what was asked for, and add it to the evidence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("tictactoe")
    one.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    one.add_argument("--root", type=Path, default=Path("runs"))
    two = verbs.add_parser("connect_four")
    two.add_argument("run", type=Path)
    two.add_argument("--simulations", type=int, nargs="+", default=[40, 200])
    two.add_argument("--games", type=int, default=100)
    two.add_argument("--depth", type=int, default=4)
    given = parser.parse_args()
    known = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    if given.verb == "tictactoe":
        seeds = {one["seed"]: one for one in known.get("tictactoe", [])}
        for seed in given.seeds:
            seeds[seed] = tictactoe(seed, given.root)
            print(json.dumps(seeds[seed]), flush=True)
        known["tictactoe"] = [seeds[seed] for seed in sorted(seeds)]
    else:
        found = connect_four(given.run, given.simulations, given.games, given.depth)
        known["connect_four"] = found
        print(json.dumps(found, indent=1))
    EVIDENCE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
