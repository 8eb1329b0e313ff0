"""The tables of learning from recorded data: what was learned, and which goals are met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from offline import (
    ABOVE,
    ABOVE_SET,
    ALGORITHMS,
    ALPHA,
    BASELINE,
    EXPERT_SHARE,
    EXPERTS,
    FEWEST,
    QUALITIES,
    SPEARMAN,
    STORE,
    TASKS,
    lines_of,
    scores,
)

from assay.evaluation import statistics
from assay.evaluation.formatting import number, signed
from assay.evaluation.statistics import Interval

HEAD = (
    "| environment | set | return of the set | algorithm | IQM over seeds [95% interval] "
    "| share of the expert | less BC [95% interval] | verdict |",
    "|---|---|---|---|---|---|---|---|",
)
GOALS = ("", "| where | goal | measured | met |", "|---|---|---|---|")


@dataclass(frozen=True, slots=True)
class Against:
    """An algorithm against the baseline on one set.

    Attributes:
        difference: Of the means, with Welch's interval.
        p_value: The larger of both tests, corrected; NaN where there are too few seeds.
    """

    difference: Interval
    p_value: float

    @property
    def verdict(self) -> str:
        """Return what `assay compare` would say."""
        if math.isnan(self.p_value):
            return "unknown"
        if self.p_value > ALPHA:
            return "not shown"
        return "better" if self.difference.point > 0 else "worse"


def against(base: Sequence[float], others: dict[str, Sequence[float]]) -> dict[str, Against]:
    """Compare algorithms with the baseline, as `assay compare` does."""
    found: dict[str, tuple[Interval, list[float]]] = {}
    for name, values in others.items():
        point = float(np.mean(values) - np.mean(base))
        if min(len(base), len(values)) < 2:
            found[name] = Interval(point, math.nan, math.nan, 1 - ALPHA), []
            continue
        welch = statistics.welch_test(values, base, 1 - ALPHA)
        permutation = statistics.permutation_test(values, base, rng=0)
        both = [p for p in (welch.p_value, permutation.p_value) if not math.isnan(p)]
        found[name] = welch.interval or Interval(point, math.nan, math.nan, 1 - ALPHA), both
    judged = [name for name, (_, both) in found.items() if both]
    corrected = statistics.holm([max(found[name][1]) for name in judged]) if judged else []
    p_values = dict(zip(judged, map(float, corrected), strict=True))
    return {n: Against(one, p_values.get(n, math.nan)) for n, (one, _) in found.items()}


def table(path: Path = STORE) -> str:
    """Return the tables: what was learned from each set, the ranking, and the goals."""
    rows, goals = _rows(path)
    if not rows:
        return "Not measured yet: `python benchmarks/offline.py run`."
    goals += _followed_goals(path) + _tuned_goals(path)
    goals += [
        f"| {line['env']} | fitted Q ranks {len(line['policies'])} policies | Spearman "
        f"{line['spearman']:.2f} | {_yes(_ranks_well(line))} |"
        for line in lines_of(path, "rank")
        if line["spearman"] is not None
    ]
    lines = [row for _, row in rows]
    return "\n".join([*HEAD, *lines, *GOALS, *goals])


def page_table(algorithm: str, path: Path = STORE) -> str:
    """Return the rows of one algorithm, and what it reached in half of the steps; "" for none."""
    own = [row for name, row in _rows(path)[0] if name == algorithm]
    if not own:
        return ""
    every = _followed_goals(path) + _tuned_goals(path)
    goals = [g for g in every if f"| {algorithm} after " in g or f"| {algorithm} follows " in g]
    return "\n".join([*HEAD, *own, *(GOALS if goals else ()), *goals])


def _rows(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Return a row of each algorithm on each set, and the goals of sets."""
    found = scores(path)
    # Sets that were recorded again are other sets: each is compared with BC on itself.
    recorded = [(line["env"], line["sets"]) for line in lines_of(path, "prepare")]
    every = [(e, q, s) for e in TASKS for q in QUALITIES for env, s in recorded if env == e]
    over = {(line["sha256"], line["algorithm"]): line["over"] for line in lines_of(path, "learn")}
    rows: list[tuple[str, str]] = []
    goals: list[str] = []
    for env, quality, sets in every:
        sha = sets.get(quality, {}).get("sha256", "")
        arms = {a: list(seeds.values()) for a, seeds in found.get((env, quality, sha), {}).items()}
        base = arms.get(BASELINE, [])
        judged = against(base, {a: s for a, s in arms.items() if a != BASELINE}) if base else {}
        for algorithm in (a for a in ALGORITHMS if a in arms):
            share = _share(float(np.mean(arms[algorithm])), sets)
            versus = judged.get(algorithm)
            tuned = (f"{k}={v}" for k, v in over[sha, algorithm].items())
            row = (
                f"| {env} | {quality} | {number(sets[quality]['mean'])} | "
                f"{' '.join([algorithm, *tuned])} | {_iqm(arms[algorithm])} | {share:.0%} | "
                f"{_difference(versus)} | {'-' if versus is None else versus.verdict} |"
            )
            rows.append((algorithm, row))
            where = f"{env} {quality} ({number(sets[quality]['mean'])})"
            goals += _goals(where, quality, algorithm, share, versus)
            if algorithm in ABOVE_SET and quality == "medium":
                goals.append(_above_set(where, algorithm, arms[algorithm], sets[quality]))
    return rows, goals


def _goals(
    where: str, quality: str, algorithm: str, share: float, versus: Against | None
) -> list[str]:
    made = []
    if quality in ABOVE.get(algorithm, ()) and versus is not None:
        better = versus.verdict == "better"
        made.append(f"| {where} | {algorithm} above BC | {_difference(versus)} | {_yes(better)} |")
    if algorithm in EXPERTS and quality == "expert":
        made.append(
            f"| {where} | {algorithm} at {EXPERT_SHARE:.0%} of the expert | {share:.0%} | "
            f"{_yes(share >= EXPERT_SHARE)} |"
        )
    return made


def _followed_goals(path: Path) -> list[str]:
    """Return what policies returned that were asked for low to high returns: more for more."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines_of(path, "follow"):
        found.setdefault((line["env"], line["quality"], line["algorithm"]), []).append(line)
    made = []
    for (env, quality, algorithm), seeds in found.items():
        got = np.array([one["got"] for one in seeds])  # [seeds, targets]
        rising = (np.diff(got, axis=1) > 0).all(1)
        asked = ", ".join(number(x) for x in np.mean([one["asked"] for one in seeds], axis=0))
        means = ", ".join(_iqm(list(column)) for column in got.T)
        made.append(
            f"| {env} {quality} | {algorithm} follows the returns {asked} | {means}; rising with "
            f"{rising.sum()} of {len(seeds)} seeds | {_yes(bool(rising.all()))} |"
        )
    return made


def _tuned_goals(path: Path) -> list[str]:
    """Return what was reached from a set in half of the steps, beside who had no set and all."""
    found: dict[tuple[str, str], list[float]] = {}
    steps: dict[tuple[str, str], int] = {}
    for line in lines_of(path, "tune"):
        key = line["env"], line["algorithm"]
        found.setdefault(key, []).append(line["mean"])
        steps[key] = line["env_steps"]
    made = []
    for (env, algorithm), values in found.items():
        alone = env, TASKS[env].algorithm
        if algorithm == alone[1] or alone not in found:
            continue
        made.append(
            f"| {env} medium, then online | {algorithm} after {steps[env, algorithm]:,} steps as "
            f"good as {alone[1]} after {steps[alone]:,} | {_iqm(values)} against "
            f"{_iqm(found[alone])} | {_yes(_reaches(values, found[alone]))} |"
        )
    return made


def _reaches(values: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether the IQM of values is at least the lower end of the others' interval."""
    one, other = (statistics.stratified_bootstrap(np.array(x), rng=0) for x in (values, others))
    return one.point >= (other.point if math.isnan(other.low) else other.low)


def _above_set(where: str, algorithm: str, values: Sequence[float], facts: dict[str, Any]) -> str:
    mean, worst = facts["mean"], min(values)
    return (
        f"| {where} | {algorithm} above the set with every seed | at least {number(worst)} "
        f"against {number(mean)} | {_yes(worst > mean)} |"
    )


def _ranks_well(line: dict[str, Any]) -> bool:
    return len(line["policies"]) >= FEWEST and line["spearman"] >= SPEARMAN


def _share(mean: float, sets: dict[str, Any]) -> float:
    """Return a return between that of acting at random (0) and that of the expert (1)."""
    low, high = sets["random"]["mean"], sets["expert"]["mean"]
    return (mean - low) / ((high - low) or 1.0)


def _iqm(values: Sequence[float]) -> str:
    one = statistics.stratified_bootstrap(np.array(values), rng=0)
    bounds = "" if math.isnan(one.low) else f" [{number(one.low)}, {number(one.high)}]"
    return f"{number(one.point)}{bounds} ({len(values)})"


def _difference(versus: Against | None) -> str:
    if versus is None:
        return "-"
    one = versus.difference
    bounds = "" if math.isnan(one.low) else f" [{signed(one.low)}, {signed(one.high)}]"
    return f"{signed(one.point)}{bounds}"


def _yes(met: bool) -> str:
    return "yes" if met else "no"
