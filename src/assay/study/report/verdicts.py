"""The part of a report on verdicts: every one with its numbers, then candidate by candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from assay.core.wording import counted
from assay.study.judge import gate
from assay.study.measure import monitor
from assay.study.measure.extractors import Point
from assay.study.report import charts
from assay.study.report.blocks import (
    Badge,
    Block,
    Cell,
    Figure,
    Heading,
    Items,
    Table,
    Text,
    finite,
    number,
    shown,
)
from assay.study.report.facts import Facts, Judgement, readable

# A study may have thousands of candidates; a page with all their plots would help nobody. What is
# left out is said, and every verdict with its numbers is in the table.
MOST_DETAILED = 40
MOST_CURVES = 12


def verdict_part(facts: Facts, plots: bool) -> list[Block]:
    """Return all verdicts as one table."""
    blocks: list[Block] = [Heading(2, "Verdicts")]
    if facts.judgements:
        rows = [_verdict_row(judgement) for judgement in facts.judgements]
        columns = (
            "candidate", "phase", "against", "verdict", "effect", "low", "high", "minimum",
            "p", "alpha", "seeds", "failed", "reasons",
        )  # fmt: skip
        caption = (
            "All verdicts; positive effects favour the candidate, low and high are its one-sided "
            f"{gate.GUARD_LEVEL:.0%} limits"
        )
        if plots:
            newest = facts.judgements[-MOST_DETAILED:]
            blocks.append(
                Figure(
                    charts.effects([_effect(judgement) for judgement in newest]),
                    f"Effects with their limits against the minimum effect, {len(newest)} of "
                    f"{counted(len(facts.judgements), 'verdict')}, the newest last",
                )
            )
        blocks.append(Table(caption, columns, rows))
    else:
        blocks.append(Text("No verdict has been given yet."))
    return blocks


def _effect(judgement: Judgement) -> charts.Effect:
    effect, low, high = (finite(judgement.comparison.get(k)) for k in ("effect", "low", "high"))
    return charts.Effect(
        f"{judgement.candidate} {judgement.phase}",
        str(judgement.event.data["outcome"]),
        effect,
        low,
        high,
        finite(judgement.minimum),
    )


def _verdict_row(judgement: Judgement) -> list[Cell]:
    data, seen = judgement.event.data, judgement.comparison
    seeds = seen.get("seeds") or ("-", "-")
    return [
        judgement.candidate, judgement.phase, judgement.rival or "-", Badge(str(data["outcome"])),
        number(seen.get("effect"), "+.4g"), number(seen.get("low")), number(seen.get("high")),
        number(judgement.minimum), number(seen.get("p_better")), number(data.get("alpha")),
        f"{seeds[0]} and {seeds[1]}", number(seen.get("failures"), ".0%"),
        " ".join(map(str, data.get("reasons", ()))),
    ]  # fmt: skip


def detail_part(facts: Facts, plots: bool) -> list[Block]:
    """Return the candidates one by one, with the numbers, seeds and curves of their verdicts."""
    order = _most_telling(facts)
    if not order:
        return []
    blocks: list[Block] = [Heading(2, "Candidates")]
    if len(order) > MOST_DETAILED:
        text = f"{MOST_DETAILED} of {len(order)} candidates, the most telling ones first."
        blocks.append(Text(f"{text} The verdicts of all are in the table above."))
    curves = 0
    for name in order[:MOST_DETAILED]:
        blocks += _candidate_blocks(facts, name)
        for judgement in facts.judgements:
            if judgement.candidate != name:
                continue
            blocks += _judgement_blocks(judgement)
            blocks += _seed_blocks(facts, judgement, plots)
            if plots and curves < MOST_CURVES:
                blocks += _curve_blocks(facts, judgement)
                curves += 1
    return blocks


def _most_telling(facts: Facts) -> list[str]:
    """Return candidates: those accepted, then those judged, then those run, the newest first."""
    judged = {judgement.candidate: judgement.event.seq for judgement in facts.judgements}
    rank = {"accepted": 0, "reverted": 1}
    position = {name: i for i, name in enumerate(facts.history.status)}

    def key(name: str) -> tuple[int, int, int, int]:
        last = judged.get(name, 0)
        return (
            rank.get(facts.history.status[name], 2), -last, -len(facts.history.over(name)),
            position[name],
        )  # fmt: skip

    return sorted((n for n in facts.history.status if n != facts.baseline), key=key)


def _candidate_blocks(facts: Facts, name: str) -> list[Block]:
    blocks: list[Block] = [Heading(3, name)]
    candidate = readable(facts.study.candidate, name)
    rows: list[list[Cell]] = [["state", Badge(facts.history.shown_state(name))]]
    if candidate is None:
        blocks.append(Text("Its file is missing or cannot be read.", warning=True))
    else:
        change = [f"{key} = {value}" for key, value in candidate.change.parameters.items()]
        if candidate.change.patch:
            change.append(f"a patch of {counted(len(candidate.change.patch.splitlines()), 'line')}")
        rows += [
            ["kind", f"{candidate.kind}, proposed by {candidate.proposer}"],
            ["hypothesis", candidate.hypothesis],
            ["change", ", ".join(change) or "none"],
            ["expected", candidate.expected],
            ["rollback", candidate.rollback],
        ]
        for label, text in (
            ("reward reflection", candidate.reflection),
            ("probe", candidate.probe),
            ("why none", candidate.why_none),
            ("evidence", ", ".join(candidate.evidence)),
        ):
            if text:
                rows.append([label, text])
    blocks.append(Table(f"What {name} is", ("", ""), rows))
    if not any(judgement.candidate == name for judgement in facts.judgements):
        blocks.append(Text("No verdict has been given on it."))
    return blocks


def _judgement_blocks(judgement: Judgement) -> list[Block]:
    data, seen = judgement.event.data, judgement.comparison
    title = f"{judgement.candidate}, {judgement.phase}: {data['outcome']}"
    blocks: list[Block] = [
        Heading(4, title), Items([str(reason) for reason in data.get("reasons", ())])
    ]  # fmt: skip
    if not seen:
        return blocks
    least, alpha = number(judgement.minimum), number(data.get("alpha"))
    rows = [_comparison_row(judgement.metric or "primary metric", seen, least, alpha)]
    for name, found in data.get("guardrails", {}).items():
        margin = finite(judgement.margins.get(name))
        allowed = number(-margin if margin is not None else None)
        rows.append(_comparison_row(f"guardrail {name}", found or {}, allowed, "-"))
    columns = (
        "metric", "effect", "low", "high", "must reach", "p", "alpha", "test", "seeds",
        "Hedges' g", "P(better)", "r by seed", "worst seed", "failed",
    )  # fmt: skip
    caption = f"Numbers of {judgement.candidate}, {judgement.phase}"
    blocks.append(Table(caption, columns, rows))
    arms = [
        f"{name} {point:.4g} [{low:.4g}, {high:.4g}]"
        + "".join(f" over {counted(n, 'seed')}" for n in count)  # verdicts of old have none
        for name, (point, low, high, *count) in (data.get("iqm") or {}).items()
    ]
    if arms:
        text = f"Interquartile means with 95 % limits (stratified bootstrap): {', '.join(arms)}."
        blocks.append(Text(f"{text} They are shown; the test above decides."))
    needed, seen_too = data.get("seeds_needed"), data.get("seeds_for_seen")
    if needed:
        text = f"At this noise {needed} seeds per arm see the minimum effect with the wanted power"
        text += f", and {seen_too} the effect that was seen." if seen_too else "."
        blocks.append(Text(text))
    return blocks


def _comparison_row(name: str, seen: Mapping[str, Any], least: Cell, alpha: Cell) -> list[Cell]:
    seeds, worst = seen.get("seeds") or ("-", "-"), seen.get("worst") or ("-", None)
    return [
        name, number(seen.get("effect"), "+.4g"), number(seen.get("low")),
        number(seen.get("high")), least, number(seen.get("p_better")), alpha,
        str(seen.get("test", "-")), f"{seeds[0]} and {seeds[1]}",
        number(seen.get("standardised"), ".3g"), number(seen.get("improvement"), ".0%"),
        number(seen.get("correlation"), ".2f"),
        f"{worst[0]}: {shown(number(worst[1]))}", number(seen.get("failures"), ".0%"),
    ]  # fmt: skip


def _seed_blocks(facts: Facts, judgement: Judgement, plots: bool) -> list[Block]:
    arms = _arms(facts, judgement)
    if not all(arm for _, arm in arms):
        return []
    seeds = sorted({seed for _, arm in arms for seed in arm})
    caption = f"{judgement.metric} of every seed, {judgement.phase}"
    columns = ("seed", *(name for name, _ in arms))
    rows: list[list[Cell]] = [
        [str(seed), *(number(arm[seed]) if arm.get(seed) is not None else
                      ("failed" if seed in arm else "-") for _, arm in arms)]
        for seed in seeds
    ]  # fmt: skip
    table = Table(caption, columns, rows)
    if not plots:
        return [table]
    return [seed_figure(facts, judgement), table]


def seed_figure(facts: Facts, judgement: Judgement) -> Figure:
    """Return every seed of both arms of a verdict, as dots with their means."""
    caption = f"{judgement.metric} of every seed, {judgement.phase}: dots, with the means as bars"
    return Figure(charts.dots(_arms(facts, judgement), _axis_name(facts)), caption)


def _arms(facts: Facts, judgement: Judgement) -> list[tuple[str, dict[int, float | None]]]:
    """Return the scores of both arms that a verdict rests on, whatever was run since."""
    names, history = (judgement.rival, judgement.candidate), facts.history
    arms = [(name, history.arm(name, judgement.phase, judgement.metric)) for name in names]
    seeds = judgement.event.data.get("seeds")
    return [
        (name, {seed: score for seed, score in arm.items() if seeds is None or seed in seeds})
        for name, arm in arms
    ]


def _axis_name(facts: Facts) -> str:
    if facts.agreed is None:
        return ""
    metric = facts.agreed.metrics.primary
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def _curve_blocks(facts: Facts, judgement: Judgement) -> list[Block]:
    """Return learning curves of both arms, where their artifacts hold series."""
    arms, gone = [], 0
    for name in (judgement.rival, judgement.candidate):
        runs = facts.history.selected(name, judgement.phase)
        series = {run.seed: _series(facts, run.id) for run in runs}
        gone += sum(not (facts.study.path / "runs" / run.id / "out").is_dir() for run in runs)
        whole = [series[run.seed] for run in runs if run.outcome == "done"]
        arms.append((name, [points for points in series.values() if len(points) > 1], whole))
    text = f"The artifacts of {gone} runs are missing; their curves cannot be drawn."
    missing: list[Block] = [Text(text, warning=True)] if gone else []
    if not any(lines for _, lines, _ in arms):
        return [*missing, Text("The artifacts hold no series of the primary metric, so there are "
                                "no learning curves.")]  # fmt: skip
    caption = (
        f"Learning curves, {judgement.phase}: every seed thin, the mean of the finished ones thick "
        "with its 95 % t-interval over seeds"
    )
    return [*missing, Figure(charts.curves(arms, _axis_name(facts)), caption)]


def _series(facts: Facts, run: str) -> list[Point]:
    if facts.agreed is None:
        return []  # a contract that cannot be read names no metric
    if run not in facts.series:
        place = facts.study.path / "runs" / run
        points = monitor.points_of(facts.agreed.metrics.primary, place)
        facts.series[run] = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    return facts.series[run]
