"""Fit how much each sign counts by which the audit tells what trains, and say how well it does.

    python benchmarks/fit_audit.py DIRECTORY [--write] [--strength 2] [--misses]

DIRECTORY is that of `audits.py`. A repository's programs and the answer "none" are one choice, and
the chance of a program is proportional to exp(sum of its signs' weights). Each set is answered by
weights that were fitted to the others; `--write` then fits to all and writes `weights.yaml`.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from audits import ORDER, TRUTHS
from scipy.optimize import minimize

import assay.study.repo
from assay.study.repo.answers.evidence import NONE, Program, programs, signs
from assay.study.repo.hints import find_hints
from assay.study.repo.repository import Repository

WEIGHTS = Path(assay.study.repo.__file__).with_name("weights.yaml")
HEADER = """\
# How much each sign speaks for a program being the one that trains (answers/evidence.py).
# Fitted to the truths of benchmarks/audits.yaml by benchmarks/fit_audit.py; not chosen by hand.
"""


@dataclass
class Choice:
    """The programs of one repository, and which of them train."""

    package: str
    group: str
    names: list[str]
    signs: list[dict[str, float]]
    right: np.ndarray


def read(place: Path, case: dict[str, Any]) -> Choice | None:
    """Return the choice that a repository poses; none where its truth is not among its programs."""
    root = place / case["package"]
    repo = Repository(root, find_hints(root, None))
    if not repo.is_rl():
        return None
    truth = case["truth"].get("train", [])
    found = programs(repo)
    names = [f"{program.target} {program.verb}".strip() for program in found]
    shown = [signs(repo, program) for program in found]
    right = [any(runs(program, line) for line in truth) for program in found]
    seeded = [ok and "takes a seed" in own for ok, own in zip(right, shown, strict=True)]
    if any(seeded) and all("{seed}" in line for line in truth):
        right = seeded
    right.append(not truth)
    if not any(right):
        return None
    return Choice(
        case["package"], case["set"], [*names, NONE], [*shown, {NONE: 1.0}], np.array(right)
    )


def runs(program: Program, truth: str) -> bool:
    """Return whether a program is the one that a command of the truths runs."""
    path = program.target.removeprefix("src/").removesuffix(".py")
    module = re.sub(r"/__(main|init)__$", "", path)
    known = ["python", program.target, path.replace("/", "."), module.replace("/", ".")]
    known += [word for entry in program.entries for word in (entry.name, entry.module)]
    known += [program.verb, *(word for command in program.commands for word in command.argv)]
    wanted = [
        word
        for word in truth.split()
        if word != "python" and not re.search(r"^-|[={]|\.(ya?ml|json|gin|toml)$", word)
    ][:2]
    if len(wanted) == 2 and wanted[0].endswith(".py") and not program.verb:
        wanted.pop()
    return bool(wanted) and all(
        any(fnmatch.fnmatchcase(word, pattern) for word in known) for pattern in wanted
    )


def fit(choices: list[Choice], names: list[str], strength: float) -> np.ndarray:
    """Return the weights under which the right programs are likeliest, pulled towards zero."""
    tables = [(table(choice, names), choice.right) for choice in choices]

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        total, slope = strength / 2 * weights @ weights, strength * weights
        for rows, right in tables:
            logits = rows @ weights
            chance = np.exp(logits - logits.max())
            share = np.where(right, chance, 0.0)
            total -= np.log(share.sum() / chance.sum())
            slope = slope + rows.T @ (chance / chance.sum() - share / share.sum())
        return float(total), slope

    return minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B").x


def table(choice: Choice, names: list[str]) -> np.ndarray:
    """Return the signs of a choice, a row for each program."""
    return np.array([[shown.get(name, 0.0) for name in names] for shown in choice.signs])


def main() -> None:
    """Fit, answer each set by the others, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--strength", type=float, default=2.0, help="of the pull towards zero")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--sets", nargs="*", default=list(ORDER[:12]), choices=ORDER)
    args = parser.parse_args()
    cases = [c for c in yaml.safe_load(TRUTHS.read_text()) if c["set"] in args.sets]
    choices = [choice for case in cases if (choice := read(args.directory, case)) is not None]
    names = sorted({name for choice in choices for shown in choice.signs for name in shown})
    for group in args.sets:
        weights = fit([c for c in choices if c.group != group], names, args.strength)
        own = [c for c in choices if c.group == group]
        first = {c.package: int((table(c, names) @ weights).argmax()) for c in own}
        good = sum(bool(c.right[first[c.package]]) for c in own)
        print(f"{group:9} {good} of {len(own)} by the weights of the others")
        for choice in own if args.misses else ():
            if not choice.right[first[choice.package]]:
                print(f"    {choice.package}: {choice.names[first[choice.package]]}")
    if args.write:
        weights = fit(choices, names, args.strength)
        rows = sorted(zip(names, weights, strict=True), key=lambda row: -row[1])
        WEIGHTS.write_text(HEADER + "".join(f"{name}: {value:.2f}\n" for name, value in rows))


if __name__ == "__main__":
    main()
