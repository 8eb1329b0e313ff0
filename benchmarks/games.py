"""How exactly, how fast and how well small games are solved, beside OpenSpiel.

    python benchmarks/games.py                 # all parts, each kept as soon as it is done
    python benchmarks/games.py cfr             # or cfr_plus, fictitious_play, responses, self_play
    python benchmarks/games.py --seconds 400   # begin nothing new after so long

Parts that are in the evidence already are not measured again; delete a part there to do so.
CFR and OpenSpiel's C++ CFRSolver take the same number of iterations in Leduc poker, in one process
and on one thread, one after the other. The responses are trained against uniform play in Kuhn
poker, five seeds for each seat, and valued exactly. Self-play is that of the shipped presets, five
seeds each; its exploitability is exact, at the end of the run.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import evidence
import numpy as np

import assay
from assay.best_responses import train_best_response
from assay.core.errors import EXIT_USER_ERROR, AssayError
from assay.envs.games.registry import make_tree
from assay.functional.games.best_response import exploitation
from assay.functional.games.cfr import cfr_iteration
from assay.functional.games.fictitious_play import fictitious_play
from assay.functional.games.tree import normalized

EVIDENCE = evidence.ROOT / "evidence" / "games.json"
ITERATIONS = 1000
SEEDS = (1, 2, 3, 4, 5)
ALGORITHMS = {"dqn": 20_000, "ppo": 20_000}  # environment steps
MARGIN = 0.02  # of a trained response below the exact one
SELF_PLAY = {  # and the exploitability that is asked for
    ("ippo", "kuhn_poker"): 0.1,
    ("nfsp", "kuhn_poker"): 0.1,
    ("ippo", "leduc_poker"): 1.0,
}


def solve(plus: bool) -> dict[str, Any]:
    """Solve Leduc poker here and with OpenSpiel, and compare both strategies."""
    import pyspiel

    tree = make_tree("openspiel/leduc_poker")
    regret, average = np.zeros(tree.legal.shape), np.zeros(tree.legal.shape)
    begun = time.process_time()
    for iteration in range(1, ITERATIONS + 1):
        cfr_iteration(tree, regret, average, iteration, plus=plus)
    ours = time.process_time() - begun
    game = pyspiel.load_game("leduc_poker")
    solver = (pyspiel.CFRPlusSolver if plus else pyspiel.CFRSolver)(game)
    begun = time.process_time()
    for _ in range(ITERATIONS):
        solver.evaluate_and_update_policy()
    theirs = time.process_time() - begun
    policy, strategy = solver.average_policy(), normalized(average, tree.legal)
    differences = [
        abs(row[action] - probability)
        for row, name in zip(strategy, tree.infoset_names, strict=True)
        for action, probability in policy.action_probabilities(name.partition(":")[2]).items()
    ]
    return {
        "iterations": ITERATIONS,
        "exploitability": exploitation(tree, strategy).exploitability,
        "openspiel_exploitability": pyspiel.exploitability(game, policy),
        "largest_difference": max(differences),
        "seconds": ours,
        "openspiel_seconds": theirs,
        "machine": evidence.machine(),
    }


def play_fictitiously() -> dict[str, Any]:
    """Play Kuhn poker fictitiously."""
    tree = make_tree("kuhn_poker")
    found = {
        str(n): exploitation(tree, fictitious_play(tree, n)).exploitability for n in (100, 1000)
    }
    return {"exploitability": found, "machine": evidence.machine()}


def respond(algorithm: str, seat: int, seed: int) -> dict[str, Any]:
    """Train one response."""
    tree = make_tree("kuhn_poker")
    with tempfile.TemporaryDirectory() as root:
        found = train_best_response(
            "kuhn_poker",
            seat=seat,
            algorithm=algorithm,
            env_steps=ALGORITHMS[algorithm],
            seed=seed,
            tree=tree,
            root=root,
            compile=False,
        )
    return {
        "value": found.value,
        "exact": found.exact,
        "env_steps": ALGORITHMS[algorithm],
        "machine": evidence.machine(),
    }


def play_oneself(algorithm: str, game: str, seed: int) -> dict[str, Any]:
    """Train in self-play with the shipped preset, and measure the last policy exactly."""
    tree = make_tree(game)
    with tempfile.TemporaryDirectory() as root:
        run = assay.train(algorithm, game, root=root, seed=seed, threads=1, sinks=())
        judged = run.evaluate().figures
        steps = run.config.run.env_steps
    return {
        "exploitability": judged["exploitability"],
        "uniform": exploitation(tree, tree.uniform()).exploitability,
        "env_steps": steps,
        "machine": evidence.machine(),
    }


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what can be measured, by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "cfr": lambda: solve(False),
        "cfr_plus": lambda: solve(True),
        "fictitious_play": play_fictitiously,
    }
    for algorithm in ALGORITHMS:
        for seat in (0, 1):
            for seed in SEEDS:
                name = f"responses/{algorithm}/{seat}/{seed}"
                found[name] = functools.partial(respond, algorithm, seat, seed)
    for algorithm, game in SELF_PLAY:
        for seed in SEEDS:
            name = f"self_play/{algorithm}/{game}/{seed}"
            found[name] = functools.partial(play_oneself, algorithm, game, seed)
    return found


def lines(found: Mapping[str, Any]) -> str:
    """Return the tables of the evidence."""
    rows = []
    if "cfr" in found or "cfr_plus" in found:
        rows += [
            "| Leduc poker, 1,000 iterations | exploitability | OpenSpiel's | largest difference "
            "of a probability | times as fast |",
            "|---|---|---|---|---|",
        ]
    for name, title in (("cfr", "CFR"), ("cfr_plus", "CFR+")):
        if name in found:
            one = found[name]
            times = one["openspiel_seconds"] / one["seconds"]
            rows.append(
                f"| {title} | {one['exploitability']:.9f} | "
                f"{one['openspiel_exploitability']:.9f} | {one['largest_difference']:.1e} | "
                f"{times:.1f} |"
            )
    if "fictitious_play" in found:
        values = found["fictitious_play"]["exploitability"]
        each = ", ".join(f"{value:.4f} after {n} iterations" for n, value in values.items())
        rows += ["", f"Fictitious play in Kuhn poker: exploitability {each}."]
    rows += [
        "",
        "| trained in Kuhn poker against uniform play | seat | exact best response | worst of the "
        "seeds | seeds within 0.02 |",
        "|---|---|---|---|---|",
    ]
    for algorithm, steps in ALGORITHMS.items():
        for seat in (0, 1):
            start = f"responses/{algorithm}/{seat}/"
            got = [one for name, one in found.items() if name.startswith(start)]
            if not got:
                continue
            exact = got[0]["exact"]
            worst = min(one["value"] for one in got)
            near = sum(exact - one["value"] < MARGIN for one in got)
            rows.append(
                f"| {algorithm}, {steps:,} steps | {seat} | {exact:.4f} | {worst:.4f} | "
                f"{near} of {len(got)} |"
            )
    return "\n".join([*rows, "", *_self_play_lines(found)])


def _self_play_lines(found: Mapping[str, Any]) -> list[str]:
    rows = [
        "| self-play | steps | exploitability, by seed | goal | met | uniform play |",
        "|---|---|---|---|---|---|",
    ]
    for (algorithm, game), goal in SELF_PLAY.items():
        start = f"self_play/{algorithm}/{game}/"
        got = [one for name, one in found.items() if name.startswith(start)]
        if not got:
            continue
        values = [one["exploitability"] for one in got]
        each = ", ".join(f"{value:.3f}" for value in values)
        met = sum(value < goal for value in values)
        rows.append(
            f"| {algorithm}, {game} | {got[0]['env_steps']:,} | {each} | < {goal:g} | "
            f"{met} of {len(got)} | {got[0]['uniform']:.3f} |"
        )
    return rows


def main() -> int:
    """Measure what is missing, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="what to measure; by default everything")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after them")
    options = parser.parse_args()
    begun = time.monotonic()
    found = {"schema": evidence.SCHEMA} | (
        evidence.read_json(EVIDENCE) if EVIDENCE.exists() else {}
    )
    try:
        for name, measure in parts().items():
            wanted = not options.names or any(name.startswith(each) for each in options.names)
            if name in found or not wanted or time.monotonic() - begun > options.seconds:
                continue
            found[name] = measure()
            evidence.write_json(EVIDENCE, found)
            print(name, {k: v for k, v in found[name].items() if k != "machine"}, flush=True)
    except AssayError as error:
        print(error, file=sys.stderr)
        return EXIT_USER_ERROR
    print(lines(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
