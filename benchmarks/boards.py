"""Board games: what AlphaZero has learned, as evidence.

python benchmarks/boards.py tictactoe --seeds 1 2 3 4 5 --root DIR
python benchmarks/boards.py connect_four --seeds 1 2 3 --jobs 3 --root DIR

Both train the preset. The first plays every line against every reply. The second plays matches
with random openings against minimax, and a league of the run's own versions; each seed is a process
with one thread, and what was stopped goes on where it was. Both write into `evidence/boards.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from children import ask

import assay
from assay.evaluation.matches import play_all_replies, play_match
from assay.functional.boards import CONNECT_FOUR, TICTACTOE
from assay.league import League, find_player, to_json
from assay.runs.directory import RunDirectory

EVIDENCE = Path(__file__).parent / "evidence" / "boards.json"
VERSION = 100_000  # moves between two versions
OPPONENT = "minimax:4"


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


def connect_four(seed: int, root: Path, games: int) -> dict[str, Any]:
    """Train one seed with the preset, or go on; play minimax and its own versions."""
    path, place = root / f"four-{seed}", root / f"four-{seed}-league"
    if path.exists():
        if RunDirectory.open(path).status != "done":
            assay.resume(path)
    else:
        assay.train(
            "alphazero", "connect_four", seed=seed, root=root, name=path.name, compile=False,
            device="cpu", eval_every=0, checkpoint_every=VERSION, keep_checkpoints=20,
        )  # fmt: skip
    fewer = {"simulations": 40}  # as in training
    result: dict[str, Any] = {"seed": seed}
    for kind, settings in (("preset", {}), ("40 simulations", fewer)):
        own = find_player(CONNECT_FOUR, path, settings=settings)
        match = play_match(
            CONNECT_FOUR, own, find_player(CONNECT_FOUR, OPPONENT), games=games, seed=seed
        )
        result[kind] = match.to_json()
    if place.exists():
        league = League.open(place)
    else:
        league = League.new(place, "connect_four")
        league.add(path, versions=True, settings=fewer)
        league.add(OPPONENT)
    league.play(games)
    return result | {"league": to_json(league.table(), "connect_four")}


def main() -> None:
    """Measure what was asked for, and add it to the evidence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("tictactoe")
    one.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    one.add_argument("--root", type=Path, default=Path("runs"))
    two = verbs.add_parser("connect_four")
    two.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    two.add_argument("--root", type=Path, default=Path("runs"))
    two.add_argument("--games", type=int, default=200)
    two.add_argument("--jobs", type=int, default=1)
    two.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.verb == "connect_four" and given.child:
        print(json.dumps(connect_four(given.seeds[0], given.root, given.games)))
        return

    def measure(seed: int) -> dict[str, Any]:
        if given.verb == "tictactoe":
            return tictactoe(seed, given.root)
        words = [__file__, "connect_four", "--child", "--seeds", str(seed)]
        words += ["--root", str(given.root), "--games", str(given.games)]
        return ask(words, f"connect_four, seed {seed}")

    known = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    seeds = {one["seed"]: one for one in known.get(given.verb, [])}
    with ThreadPoolExecutor(getattr(given, "jobs", 1)) as pool:
        for found in pool.map(measure, given.seeds):
            seeds[found["seed"]] = found
            print(json.dumps(found), flush=True)
            known[given.verb] = [seeds[seed] for seed in sorted(seeds)]
            EVIDENCE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
