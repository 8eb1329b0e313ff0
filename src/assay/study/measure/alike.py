"""Which seeds gave one and the same run, by the numbers that were written.

Texts prove nothing: times and paths differ between equal runs. Equal scores alone prove nothing
either: a task may be solved, or never solved, with every seed. So the equal values have to be such
that seeds which matter would not give them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np

from assay.study.agree.protocol import fingerprint
from assay.study.files.contract import Metric
from assay.study.measure import discover, extractors, monitor

FEWEST = 3  # seeds that all scored the same
TELLING = 4  # different values of a curve
EPISODES = 100  # a mean over so many episodes of whole scores is one of few values
_TIMES = re.compile(  # and what else differs between equal runs
    r"(^|[^a-z])(time|t|date|clock|timestamp|runtime|elapsed|duration|seconds?|secs?|ms|minutes?"
    r"|hours?|eta|fps|sps|speed|throughput|took|wall|memory|pid|seed)($|[^a-z])"
)

Curve = tuple[float, ...]


def alike(metric: Metric, places: Mapping[int, Path]) -> list[int]:
    """Return the seeds whose runs are the same, [] where nothing shows it.

    Args:
        metric: What decides.
        places: The directory of each seed's finished run.
    """
    seeds: dict[Curve, list[int]] = {}
    for seed, place in sorted(places.items()):
        curve = tuple(extractors.finite(monitor.points_of(metric, place)).tolist())
        seeds.setdefault(curve, []).append(seed)
    for curve, same in seeds.items():
        if len(same) > 1 and len({v for v in curve if not _one_of_few(v)}) >= TELLING:
            return same
    if len(places) < FEWEST or len(seeds) > 1:
        return []
    (curve,) = seeds
    telling = len(set(curve)) >= TELLING or not all(map(_one_of_few, curve))
    return sorted(places) if telling or _wrote_the_same(list(places.values())) else []


def _one_of_few(value: float) -> bool:
    """Return whether a value is a mean of whole numbers, to the digits that it was written with."""
    digits = 10.0 ** -len(repr(value).partition(".")[2])
    with np.errstate(over="ignore"):
        single = abs(value) * 1e-7 if float(np.float32(value)) == value else 0.0
    nearest = Fraction(value).limit_denominator(EPISODES)
    return abs(value - float(nearest)) <= max(digits, single)


def _wrote_the_same(places: list[Path]) -> bool:
    """Return whether all other numbers and binary files are the same, and some are telling."""
    first, *others = map(_written, places)
    telling = [values for key, values in first.items() if key == "" or _wavers(values)]
    return bool(telling) and all(other == first for other in others)


def _wavers(values: tuple[float | str, ...]) -> bool:
    """Return whether a curve rises and falls, as neither a count nor a schedule does."""
    moves = np.diff(np.array(values, float))
    return len(set(values)) >= TELLING and bool((moves > 0).any() and (moves < 0).any())


def _written(place: Path) -> dict[str, tuple[float | str, ...]]:
    """Return a run's curves by their names, without times, and the hashes of its binary files."""
    out = place / "out"
    found: dict[str, tuple[float | str, ...]] = {
        f"{written.source.path} {written.source.key}": written.values
        for written in discover.discover(out, place / "stdout.log")
        if not _TIMES.search(written.source.key.lower())
    }
    files = [path for path in out.rglob("*") if path.is_file() and not discover.kind_of(path)]
    hashes = sorted(fingerprint(path) for path in files if b"\0" in path.read_bytes())
    return found | ({"": tuple(hashes)} if hashes else {})
