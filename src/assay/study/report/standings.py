"""Where every candidate stands: its scores, the effect that was found, and why it was decided so.

Effects and limits are those of verdicts on record; before a verdict only the scores are shown.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.evaluation.formatting import number, signed
from assay.study.files.base import Phase
from assay.study.files.contract import Contract, PrimaryMetric
from assay.study.record.history import History
from assay.study.record.ledger import Event

PHASES: tuple[Phase, ...] = ("validation", "promotion", "short", "smoke")  # the last one first


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate, in the phase that it got to."""

    name: str
    kind: str
    state: str
    phase: str = ""  # "" before its first score
    seeds: int = 0  # that have a score
    wanted: int = 0  # that the phase needs, or the verdict rests on
    failed: int = 0  # that have none
    mean: float | None = None  # over the seeds that have a score
    rival: str = ""  # whom the verdict compared it with; "" without a verdict
    rival_mean: float | None = None
    effect: float | None = None  # positive is better, whatever the direction
    low: float | None = None  # the effect's one-sided 95 % limits
    high: float | None = None
    reason: str = ""  # why it is in this state

    def seeds_text(self) -> str:
        """Return how many seeds have a score, of how many while some are missing, and failed."""
        whole = self.seeds + self.failed >= self.wanted
        failed = f", {self.failed} failed" if self.failed else ""
        return (f"{self.seeds}" if whole else f"{self.seeds} of {self.wanted}") + failed

    def effect_text(self) -> str:
        """Return the effect with its limits, or "" without a verdict."""
        if self.effect is None:
            return ""
        if self.low is None or self.high is None:
            return signed(self.effect)
        return f"{signed(self.effect)} [{signed(self.low)}, {signed(self.high)}]"


def standings(history: History, agreed: Contract | None) -> list[Standing]:
    """Return where the candidates stand, the oldest first.

    Args:
        history: All that happened.
        agreed: The contract; None while it cannot be read.
    """
    last = {str(event.data["candidate"]): event for event in history.verdicts}
    return [_standing(history, name, agreed, last.get(name)) for name in history.status]


def _standing(
    history: History, name: str, agreed: Contract | None, given: Event | None
) -> Standing:
    state = history.shown_state(name)
    plain = Standing(name, history.kind[name], state, reason=_reason(history, name))
    if agreed is None:
        return plain
    metric = agreed.metrics.primary
    phase = next((p for p in PHASES if history.arm(name, p, metric.name)), None)
    if phase is None:
        return plain
    seen: Mapping[str, Any] = {}
    rival, seeds = "", None
    if given is not None and given.data["phase"] == phase:
        seen, rival = given.data.get("comparison") or {}, str(given.data.get("rival", ""))
        # The effect is that of these, whatever was run since.
        seeds = given.data.get("seeds") or None
    theirs = _scores(history, rival, phase, metric.name, seeds) if rival else []
    arm = _scores(history, name, phase, metric.name, seeds)
    return dataclasses.replace(
        plain,
        phase=phase,
        seeds=sum(score is not None for score in arm),
        wanted=len(seeds or history.stage(agreed, name, phase)),
        failed=arm.count(None),
        mean=_mean(arm),
        rival=rival,
        rival_mean=_mean(theirs),
        effect=seen.get("effect"),
        low=seen.get("low"),
        high=seen.get("high"),
    )


def _scores(
    history: History, name: str, phase: Phase, metric: str, seeds: Container[int] | None
) -> list[float | None]:
    """Return a candidate's scores in a phase, on some seeds or on all."""
    arm = history.arm(name, phase, metric)
    return [score for seed, score in arm.items() if seeds is None or seed in seeds]


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known else None


def _reason(history: History, name: str) -> str:
    """Return why a candidate is where it is: of its verdict, its move or its last run."""
    given = [e for e in history.verdicts if e.data["candidate"] == name]
    moved = history.moved.get(name)
    why = str(moved.data.get("why") or "") if moved else ""
    if given and (moved is None or given[-1].seq + 1 >= moved.seq):
        return " ".join(map(str, given[-1].data["reasons"][:1]))
    runs = history.over(name)
    if history.status[name] == "completed" and runs:
        outcomes = Counter(run.outcome for run in runs)
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        return f"none of its runs is under way ({told})"
    if history.status[name] == "debug" and runs:
        return f"{runs[-1].id}: {runs[-1].reason}"
    return why


def answer(rows: list[Standing], incumbent: str, metric: PrimaryMetric | None) -> str:
    """Return what the study has found so far, in one or two sentences."""
    proposed = [row for row in rows if row.kind != "baseline"]
    tried = [row for row in proposed if row.state != "discarded"]
    winner = next((row for row in tried if row.name == incumbent), None)
    if winner is not None and metric is not None:
        return f"Yes: {winner.name} is better than {winner.rival or 'the baseline'}. " + _numbers(
            winner, metric
        )
    waiting = [row for row in tried if row.state not in ("rejected", "reverted", "no-effect")]
    base = next((row for row in rows if row.kind == "baseline"), None)
    level = ""
    if base is not None and base.mean is not None and metric is not None:
        part = base.seeds + base.failed < base.wanted
        so_far = f" so far, by {base.seeds_text()} {base.phase} seeds" if part else ""
        level = f" The baseline's {metric.name} is {_with_unit(base.mean, metric)}{so_far}."
    if not tried:
        why = "all candidates were discarded" if proposed else "no candidate was proposed"
        return f"There is no answer yet: {why}." + level
    if waiting:
        names = ", ".join(row.name for row in waiting[:5])
        more = f" and {len(waiting) - 5} more" if len(waiting) > 5 else ""
        return f"There is no answer yet: {names}{more} not decided." + level
    who = "the candidate was not" if len(tried) == 1 else f"none of {len(tried)} candidates was"
    return f"No: {who} found better than the baseline." + level


def _numbers(row: Standing, metric: PrimaryMetric) -> str:
    if row.mean is None or row.rival_mean is None:
        return ""
    return (
        f"{metric.name} is {_with_unit(row.mean, metric)} instead of "
        f"{number(row.rival_mean)} (effect {row.effect_text()}, one-sided 95 % limits) on "
        f"{row.seeds} {'fresh ' if row.phase == 'validation' else ''}training seeds per arm."
    )


def _with_unit(value: float, metric: PrimaryMetric) -> str:
    return f"{number(value)} {metric.unit}".rstrip()
