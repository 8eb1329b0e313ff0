"""The report of a study, regenerated from its ledger and artifacts alone.

The same facts become Markdown, for a terminal or a pull request, and one HTML file that needs
nothing from anywhere: no scripts, no fonts, no network; plots are SVG drawn here. The numbers of a
verdict are those of its ledger event. Texts of candidates are hostile input and escaped.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import numpy as np

from assay.core.errors import AssayError
from assay.evaluation import statistics
from assay.study import (
    advice,
    budget,
    contract,
    gate,
    monitor,
    probe,
    reflection,
    results,
    runner,
    states,
    verdict,
)
from assay.study.extractors import Point
from assay.study.gate import Scores
from assay.study.layout import Study, StudyError
from assay.study.ledger import Event
from assay.study.models import APPROVALS, Candidate, Contract, Phase, RunRecord

# A study may have thousands of candidates; a page with all their plots would help nobody. What is
# left out is said, and every verdict with its numbers is in the table.
MOST_DETAILED = 40
MOST_CURVES = 12
MOST_RUNS = 1000
MOST_EVENTS = 200
LONGEST_TEXT = 1500

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def report(study: Study) -> str:
    """Return the report as Markdown.

    Raises:
        AssayError: The ledger is damaged, so that nothing can be said.
    """
    return _markdown(_document(_read(study), plots=False))


def html_report(study: Study) -> str:
    """Return the report as one HTML file with plots.

    Raises:
        AssayError: The ledger is damaged, so that nothing can be said.
    """
    facts = _read(study)
    title = f"Study {study.task}/{study.name}"
    return _html(title, _document(facts, plots=True))


# ---------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class _Judgement:
    """A verdict on record, and whom the candidate was held against when it was given."""

    event: Event
    candidate: str
    phase: Phase
    rival: str

    @property
    def comparison(self) -> Mapping[str, Any]:
        return self.event.data.get("comparison") or {}


@dataclass(slots=True)
class _Facts:
    """All that the report says, as it was read."""

    study: Study
    agreed: Contract | None
    problems: list[str]
    events: list[Event]
    statuses: dict[str, str]
    runs: dict[str, list[results.Run]]  # by candidate
    judgements: list[_Judgement]
    baseline: str
    holder: str
    unapproved: dict[str, str]
    next_step: advice.Advice | None
    series: dict[str, list[Point]] = field(default_factory=dict)  # by run, once it was read

    def arm(self, candidate: str, phase: Phase, metric: str) -> Scores:
        return results.arm(self.runs.get(candidate, []), candidate, phase, metric)


def _read(study: Study) -> _Facts:
    problems: list[str] = []
    events = list(study.ledger.events())
    problems += _anchor_problems(study, events)
    agreed: Contract | None = None
    unapproved: dict[str, str] = {}
    try:
        agreed = study.contract()
        unapproved = contract.missing(study, agreed)
    except AssayError as error:
        problems.append(f"The contract cannot be used: {error.message}")
    by_candidate: dict[str, list[results.Run]] = {}
    for run in results.runs(events):
        by_candidate.setdefault(run.candidate, []).append(run)
    baseline = _baseline(study)
    judgements, holders = [], [baseline]
    for event in events:
        if event.kind == verdict.GIVEN:
            name, phase = str(event.data["candidate"]), cast("Phase", event.data["phase"])
            judgements.append(_Judgement(event, name, phase, holders[-1]))
        elif event.kind == states.EVENT and event.data["to"] == "accepted":
            holders.append(str(event.data["candidate"]))
        elif event.kind == states.EVENT and event.data["to"] == "reverted":
            holders = [name for name in holders if name != event.data["candidate"]] or [baseline]
    try:
        step = advice.next_step(study)
    except AssayError as error:
        step = None
        problems.append(f"What comes next cannot be told: {error.message}")
    return _Facts(
        study=study,
        agreed=agreed,
        problems=problems,
        events=events,
        statuses=dict(states.current(events)),
        runs=by_candidate,
        judgements=judgements,
        baseline=baseline,
        holder=holders[-1],
        unapproved=unapproved,
        next_step=step,
    )


def _anchor_problems(study: Study, events: Sequence[Event]) -> list[str]:
    """Say where the ledger is not the one that was anchored; reading it has checked the chain."""
    try:
        anchors = study.anchors()
    except AssayError as error:
        return [f"The ledger's anchors cannot be read: {error.message}"]
    return [
        f"The ledger does not hold the event {head.seq} that {place} knows: its end was cut off, "
        "or it was rewritten."
        for place, head in anchors.items()
        if head.seq and (head.seq > len(events) or events[head.seq - 1].hash != head.hash)
    ]


def _baseline(study: Study) -> str:
    """Return the baseline's name, or "" if there is none, without parsing a thousand files."""
    for name in study.candidates():
        try:
            if b"baseline" in study.candidate_path(name).read_bytes() and (
                study.candidate(name).kind == "baseline"
            ):
                return name
        except (OSError, AssayError):
            continue
    return ""


def _candidate(study: Study, name: str) -> Candidate | None:
    try:
        return study.candidate(name)
    except AssayError:
        return None


def _record(study: Study, run: str) -> RunRecord | None:
    try:
        return study.run(run)
    except AssayError:
        return None


# ---------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class _Value:
    """A number as it is, and as it is shown."""

    exact: float
    shown: str


@dataclass(frozen=True, slots=True)
class _Badge:
    """A word that decides, set apart."""

    word: str


Cell = str | _Value | _Badge


@dataclass(frozen=True, slots=True)
class _Heading:
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class _Items:
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Table:
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class _Figure:
    svg: str
    caption: str


Block = _Heading | _Text | _Items | _Table | _Figure


def _number(value: Any, spec: str = ".4g") -> Cell:
    """Return a cell for a number; a dash where there is none."""
    exact = _float(value)
    return "-" if exact is None else _Value(exact, f"{exact:{spec}}")


def _float(value: Any) -> float | None:
    """Return what is a finite number; the ledger may hold anything that somebody appended."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _shown(cell: Cell) -> str:
    if isinstance(cell, _Value):
        return cell.shown
    return cell.word if isinstance(cell, _Badge) else cell


# ---------------------------------------------------------------------- what the report says


def _document(facts: _Facts, *, plots: bool) -> list[Block]:
    blocks: list[Block] = [_Heading(1, f"Study {facts.study.task}/{facts.study.name}")]
    blocks += [_Text(problem, warning=True) for problem in facts.problems]
    parts: tuple[Callable[[_Facts, bool], list[Block]], ...] = (
        _summary, _contract_part, _noise_part, _verdict_part, _detail_part, _audit_part,
        _reward_part, _budget_part, _runs_part, _ledger_part, _next_part,
    )  # fmt: skip
    for part in parts:
        blocks += part(facts, plots)
    return blocks


def _summary(facts: _Facts, plots: bool) -> list[Block]:
    question = facts.agreed.question if facts.agreed else "The contract does not say yet."
    counts: dict[str, int] = {}
    for status in facts.statuses.values():
        counts[status] = counts.get(status, 0) + 1
    listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    if facts.holder and facts.holder != facts.baseline:
        answer = f"{facts.holder} was accepted and is the incumbent."
    else:
        answer = "No candidate has been accepted; the baseline stands."
    if facts.events:
        last = facts.events[-1]
        state = f"As of event {last.seq} of the ledger ({last.time}, {last.hash[:12]})."
    else:
        state = "The ledger is empty: nothing has happened yet."
    return [
        _Heading(2, "Question"),
        _Text(question),
        _Text(f"{answer} Candidates: {listed or 'none'}. {state}"),
    ]


def _contract_part(facts: _Facts, plots: bool) -> list[Block]:
    agreed = facts.agreed
    if agreed is None:
        return [_Heading(2, "Contract"), _Text("There is no contract that can be read.")]
    primary, evaluation = agreed.metrics.primary, agreed.evaluation
    pools = evaluation.pools
    rows: list[list[Cell]] = [
        ["task", f"{agreed.task.id}: {agreed.task.description} ({agreed.task.env})"],
        ["primary metric", f"{primary.name}, {primary.direction}, minimum effect "
         f"{primary.minimum_effect:g} {primary.unit}".rstrip()],
        ["guardrails", "; ".join(_limits(guard) for guard in agreed.metrics.guardrails) or "none"],
        ["scope", ", ".join([*agreed.scope.parameters, *agreed.scope.files]) or "nothing"],
        ["baseline command", " ".join(agreed.baseline.command)],
        ["evaluation", f"{evaluation.episodes} episodes per seed, test {evaluation.test}, alpha "
         f"{evaluation.alpha:g} over {evaluation.expected_candidates} candidates; seeds: "
         f"promotion {_seeds(pools.promotion)}, validation {_seeds(pools.validation)}"],
        ["hardware", f"{agreed.hardware.kind}, {agreed.hardware.launcher}"],
        ["mode", agreed.experiment.mode],
    ]  # fmt: skip
    if primary.training_reward:
        rows.append(["why the training reward decides", primary.why_training_reward])
    rows += [[f"waived: {rule}", why] for rule, why in agreed.experiment.exceptions.items()]
    approvals: list[list[Cell]] = []
    for item, what in APPROVALS.items():
        given, reason = agreed.approvals.get(item), facts.unapproved.get(item)
        word = "valid" if reason is None else "void" if given else "missing"
        who = [given.by, given.at] if given else ["-", "-"]
        approvals.append([item, what, *who, _Badge(word), reason or ""])
    return [
        _Heading(2, "Contract"),
        _Table("What was agreed on", ("part", "content"), rows),
        _Table("Approvals", ("part", "covers", "by", "at", "state", "why not"), approvals),
    ]


def _limits(guard: Any) -> str:
    words = [f"{guard.name} ({guard.direction}"]
    if guard.bound is not None:
        words.append(f"bound {guard.bound:g}")
    if guard.margin is not None:
        words.append(f"margin {guard.margin:g}")
    return ", ".join(words) + ")"


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds[:12]))
    return listed + (f" and {len(seeds) - 12} more" if len(seeds) > 12 else "")


def _noise_part(facts: _Facts, plots: bool) -> list[Block]:
    heading = _Heading(2, "Noise floor")
    if facts.agreed is None or not facts.holder:
        return [heading, _Text("There is no baseline yet.")]
    metric = facts.agreed.metrics.primary
    first, second = (facts.arm(facts.holder, phase, metric.name) for phase in runner.DECIDING)
    try:
        spread, seen = gate.noise_floor(first, second, metric.direction)
    except StudyError as error:
        return [heading, _Text(f"The A/A test of {facts.holder} is not complete: {error.message}")]
    rows: list[list[Cell]] = [
        [
            facts.holder, f"{len(first)} and {len(second)}", _number(spread),
            _number(seen.effect, "+.4g"), _number(min(1.0, 2 * min(seen.p_better, seen.p_worse))),
        ]
    ]  # fmt: skip
    columns = ("arm", "seeds", f"deviation of {metric.name}", "A/A difference", "p, two-sided")
    caption = "The arm that candidates are held against, on its two pools of seeds"
    return [heading, _Table(caption, columns, rows)]


def _verdict_part(facts: _Facts, plots: bool) -> list[Block]:
    blocks: list[Block] = [_Heading(2, "Verdicts")]
    judged = {judgement.candidate for judgement in facts.judgements}
    if facts.judgements:
        rows = [_verdict_row(facts, judgement) for judgement in facts.judgements]
        columns = (
            "candidate", "phase", "against", "verdict", "effect", "low", "high", "minimum",
            "p", "alpha", "seeds", "failed", "reasons",
        )  # fmt: skip
        caption = (
            "All verdicts; positive effects favour the candidate, low and high are its one-sided "
            f"{gate.GUARD_LEVEL:.0%} limits"
        )
        if plots:
            shown = facts.judgements[-MOST_DETAILED:]
            blocks.append(
                _Figure(
                    _effects(shown, _minimum(facts)),
                    f"Effects with their limits against the minimum effect, {len(shown)} of "
                    f"{len(facts.judgements)} verdicts, the newest last",
                )
            )
        blocks.append(_Table(caption, columns, rows))
    else:
        blocks.append(_Text("No verdict has been given yet."))
    rest: list[list[Cell]] = [
        [name, _Badge(status), str(len(facts.runs.get(name, [])))]
        for name, status in facts.statuses.items()
        if name not in judged
    ]
    if rest:
        caption = "Candidates without a verdict"
        blocks.append(_Table(caption, ("candidate", "state", "runs that are over"), rest))
    return blocks


def _minimum(facts: _Facts) -> float | None:
    return facts.agreed.metrics.primary.minimum_effect if facts.agreed else None


def _verdict_row(facts: _Facts, judgement: _Judgement) -> list[Cell]:
    data, seen = judgement.event.data, judgement.comparison
    seeds = seen.get("seeds") or ("-", "-")
    return [
        judgement.candidate, judgement.phase, judgement.rival or "-", _Badge(str(data["outcome"])),
        _number(seen.get("effect"), "+.4g"), _number(seen.get("low")), _number(seen.get("high")),
        _number(_minimum(facts)), _number(seen.get("p_better")), _number(data.get("alpha")),
        f"{seeds[0]} and {seeds[1]}", _number(seen.get("failures"), ".0%"),
        " ".join(map(str, data.get("reasons", ()))),
    ]  # fmt: skip


def _detail_part(facts: _Facts, plots: bool) -> list[Block]:
    order = _most_telling(facts)
    if not order:
        return []
    blocks: list[Block] = [_Heading(2, "Candidates")]
    if len(order) > MOST_DETAILED:
        text = f"{MOST_DETAILED} of {len(order)} candidates, the most telling ones first."
        blocks.append(_Text(f"{text} The verdicts of all are in the table above."))
    curves = 0
    for name in order[:MOST_DETAILED]:
        blocks += _candidate_blocks(facts, name)
        for judgement in facts.judgements:
            if judgement.candidate != name:
                continue
            blocks += _judgement_blocks(facts, judgement)
            blocks += _seed_blocks(facts, judgement, plots)
            if plots and curves < MOST_CURVES:
                blocks += _curve_blocks(facts, judgement)
                curves += 1
    return blocks


def _most_telling(facts: _Facts) -> list[str]:
    """Return candidates: those accepted, then those judged, then those run, the newest first."""
    judged = {judgement.candidate: judgement.event.seq for judgement in facts.judgements}
    rank = {"accepted": 0, "reverted": 1}
    position = {name: i for i, name in enumerate(facts.statuses)}

    def key(name: str) -> tuple[int, int, int, int]:
        last = judged.get(name, 0)
        return (
            rank.get(facts.statuses[name], 2), -last, -len(facts.runs.get(name, [])),
            position[name],
        )  # fmt: skip

    return sorted((n for n in facts.statuses if n != facts.baseline), key=key)


def _candidate_blocks(facts: _Facts, name: str) -> list[Block]:
    blocks: list[Block] = [_Heading(3, name)]
    candidate = _candidate(facts.study, name)
    rows: list[list[Cell]] = [["state", _Badge(facts.statuses[name])]]
    if candidate is None:
        blocks.append(_Text("Its file is missing or cannot be read.", warning=True))
    else:
        change = [f"{key} = {value}" for key, value in candidate.change.parameters.items()]
        if candidate.change.patch:
            change.append(f"a patch of {len(candidate.change.patch.splitlines())} lines")
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
    blocks.append(_Table(f"What {name} is", ("", ""), rows))
    if not any(judgement.candidate == name for judgement in facts.judgements):
        blocks.append(_Text("No verdict has been given on it."))
    return blocks


def _judgement_blocks(facts: _Facts, judgement: _Judgement) -> list[Block]:
    data, seen = judgement.event.data, judgement.comparison
    title = f"{judgement.candidate}, {judgement.phase}: {data['outcome']}"
    blocks: list[Block] = [
        _Heading(4, title), _Items([str(reason) for reason in data.get("reasons", ())])
    ]  # fmt: skip
    if not seen:
        return blocks
    agreed = facts.agreed
    primary = agreed.metrics.primary.name if agreed else "primary metric"
    margins = {g.name: g.margin for g in agreed.metrics.guardrails} if agreed else {}
    rows = [_comparison_row(primary, seen, _number(_minimum(facts)), _number(data.get("alpha")))]
    for name, found in data.get("guardrails", {}).items():
        margin = margins.get(name)
        allowed = _number(-margin if margin is not None else None)
        rows.append(_comparison_row(f"guardrail {name}", found or {}, allowed, "-"))
    columns = (
        "metric", "effect", "low", "high", "must reach", "p", "alpha", "test", "seeds",
        "Hedges' g", "P(better)", "worst seed", "failed",
    )  # fmt: skip
    caption = f"Numbers of {judgement.candidate}, {judgement.phase}"
    blocks.append(_Table(caption, columns, rows))
    needed = data.get("seeds_needed")
    if needed:
        text = f"At this noise {needed} seeds per arm see the minimum effect with the wanted power."
        blocks.append(_Text(text))
    return blocks


def _comparison_row(name: str, seen: Mapping[str, Any], least: Cell, alpha: Cell) -> list[Cell]:
    seeds, worst = seen.get("seeds") or ("-", "-"), seen.get("worst") or ("-", None)
    return [
        name, _number(seen.get("effect"), "+.4g"), _number(seen.get("low")),
        _number(seen.get("high")), least, _number(seen.get("p_better")), alpha,
        str(seen.get("test", "-")), f"{seeds[0]} and {seeds[1]}",
        _number(seen.get("standardised"), ".3g"), _number(seen.get("improvement"), ".0%"),
        f"{worst[0]}: {_shown(_number(worst[1]))}", _number(seen.get("failures"), ".0%"),
    ]  # fmt: skip


def _seed_blocks(facts: _Facts, judgement: _Judgement, plots: bool) -> list[Block]:
    if facts.agreed is None:
        return []
    metric = facts.agreed.metrics.primary
    arms = [
        (name, facts.arm(name, judgement.phase, metric.name))
        for name in (judgement.rival, judgement.candidate)
    ]
    if not all(arm for _, arm in arms):
        return []
    seeds = sorted({seed for _, arm in arms for seed in arm})
    caption = f"{metric.name} of every seed, {judgement.phase}"
    columns = ("seed", *(name for name, _ in arms))
    rows: list[list[Cell]] = [
        [str(seed), *(_number(arm[seed]) if arm.get(seed) is not None else
                      ("failed" if seed in arm else "-") for _, arm in arms)]
        for seed in seeds
    ]  # fmt: skip
    table = _Table(caption, columns, rows)
    if not plots:
        return [table]
    drawn = _dots(arms, _axis_name(facts))
    return [_Figure(drawn, f"{caption}: dots, with the means as bars"), table]


def _axis_name(facts: _Facts) -> str:
    if facts.agreed is None:
        return ""
    metric = facts.agreed.metrics.primary
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def _curve_blocks(facts: _Facts, judgement: _Judgement) -> list[Block]:
    """Return learning curves of both arms, where their artifacts hold series."""
    arms, gone = [], 0
    for name in (judgement.rival, judgement.candidate):
        runs = results.selected(facts.runs.get(name, []), name, judgement.phase)
        series = {run.seed: _series(facts, run.id) for run in runs}
        gone += sum(not (facts.study.path / "runs" / run.id / "out").is_dir() for run in runs)
        whole = [series[run.seed] for run in runs if run.outcome == "done"]
        arms.append((name, [points for points in series.values() if len(points) > 1], whole))
    if gone:
        text = f"The artifacts of {gone} runs are missing; their curves cannot be drawn."
        missing: list[Block] = [_Text(text, warning=True)]
    else:
        missing = []
    if not any(lines for _, lines, _ in arms):
        return [*missing, _Text("The artifacts hold no series of the primary metric, so there are "
                                "no learning curves.")]  # fmt: skip
    caption = (
        f"Learning curves, {judgement.phase}: every seed thin, the mean of the finished ones thick "
        "with its 95 % t-interval over seeds"
    )
    return [*missing, _Figure(_curves(arms, _axis_name(facts)), caption)]


def _series(facts: _Facts, run: str) -> list[Point]:
    if run not in facts.series:
        assert facts.agreed is not None
        place = facts.study.path / "runs" / run
        points = monitor.points_of(facts.agreed.metrics.primary, place)
        facts.series[run] = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    return facts.series[run]


def _audit_part(facts: _Facts, plots: bool) -> list[Block]:
    audits = [event for event in facts.events if event.kind == verdict.AUDITED]
    blocks: list[Block] = [_Heading(2, "Audits of results")]
    if not audits:
        return [*blocks, _Text("No result has been audited yet.")]
    rows: list[list[Cell]] = []
    for event in audits:
        checks = event.data.get("checks", ())
        failed = [check for check in checks if not check["passed"]]
        found = [f"{check['name']}: no ({check['detail']})" for check in failed]
        word = "passed" if event.data["passed"] else "failed"
        rows.append(
            [
                str(event.data["candidate"]), str(event.data["phase"]), _Badge(word),
                f"{len(checks) - len(failed)} of {len(checks)}", "; ".join(found) or "nothing",
            ]
        )  # fmt: skip
    columns = ("candidate", "phase", "audit", "checks passed", "findings")
    return [*blocks, _Table("What the audits found", columns, rows)]


def _reward_part(facts: _Facts, plots: bool) -> list[Block]:
    blocks: list[Block] = []
    looked = [event for event in facts.events if event.kind == reflection.REFLECTED]
    if looked:
        rows: list[list[Cell]] = [
            [str(e.data["run"]), _Badge(str(e.data["hacking_risk"])), " ".join(e.data["findings"])]
            for e in looked
        ]
        columns = ("run", "hacking risk", "findings")
        blocks.append(_Heading(2, "Reward reflections"))
        blocks.append(_Table("What runs say about their reward", columns, rows))
    probes = [event for event in facts.events if event.kind == probe.SUMMARISED]
    if probes:
        rows = [
            [str(e.data["plan"]), str(e.data["parameter"]), _number(e.data["lowest"]),
             _number(e.data["highest"])]
            for e in probes
        ]  # fmt: skip
        columns4 = ("probe", "parameter", "lowest that succeeds", "highest that succeeds")
        blocks.append(_Heading(2, "Probes"))
        blocks.append(_Table("How far a parameter may be moved", columns4, rows))
    return blocks


def _budget_part(facts: _Facts, plots: bool) -> list[Block]:
    used = budget.usage(facts.events)
    waiting = set(used.open)
    held = [e.data for e in facts.events if e.kind == budget.RESERVED and e.data["run"] in waiting]
    hours = sum(float(data["wall_clock_hours"]) for data in held)
    gpu = sum(float(data["gpu_hours"]) for data in held)
    limits = facts.agreed.budget if facts.agreed else None
    lines = [
        ("wall-clock hours", used.wall_clock_hours - hours, hours,
         limits.wall_clock_hours if limits else None),
        ("GPU-hours", used.gpu_hours - gpu, gpu, limits.gpu_hours if limits else None),
        ("runs", used.runs - len(held), len(held), limits.runs if limits else None),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, settled, reserved, limit in lines:
        share = (settled + reserved) / limit if limit else None
        rows.append(
            [name, _number(settled), _number(reserved), _number(limit), _number(share, ".0%")]
        )
    blocks: list[Block] = [_Heading(2, "Budget")]
    if plots and limits is not None:
        caption = f"Budget: settled, reserved, and the warning at {budget.WARN_AT:.0%}"
        blocks.append(_Figure(_bars(lines), caption))
    columns = ("what", "settled", "reserved by open runs", "approved", "used")
    return [*blocks, _Table("Budget use", columns, rows)]


def _runs_part(facts: _Facts, plots: bool) -> list[Block]:
    every = [event for event in facts.events if event.kind == runner.PREPARED]
    blocks: list[Block] = [_Heading(2, "Runs")]
    if not every:
        return [*blocks, _Text("Nothing has been run yet.")]
    over = {run.id: run for runs in facts.runs.values() for run in runs}
    hosts = {
        e.data["run"]: str(e.data.get("host", ""))
        for e in facts.events
        if e.kind == runner.LAUNCHED
    }
    if len(every) > MOST_RUNS:
        text = f"The newest {MOST_RUNS:,} of {len(every):,} runs; all of them are in the ledger."
        blocks.append(_Text(text))
    metric = facts.agreed.metrics.primary.name if facts.agreed else ""
    rows: list[list[Cell]] = []
    gone = 0
    for event in every[-MOST_RUNS:]:
        name = str(event.data["run"])
        run, record = over.get(name), _record(facts.study, name)
        there = (facts.study.path / "runs" / name / "out").is_dir()
        gone += not there
        commit = f"{record.commit[:12]}{'+changes' if record.dirty else ''}" if record else ""
        rows.append(
            [
                name, str(event.data["candidate"]), str(event.data["phase"]),
                str(event.data["seed"]), _Badge(run.outcome if run else "under way"),
                _number(run.metrics.get(metric)) if run else "-",
                _number(run.hours, ".3g") if run else "-", commit or "-",
                hosts.get(name) or (record.host if record else "") or "-",
                (record.gpu if record else "") or "-", str(event.data["protocol"])[:12],
                "there" if there else "missing", run.reason if run else "",
            ]
        )  # fmt: skip
    if gone:
        text = f"The artifacts of {gone} of these runs are missing; their numbers are the ledger's."
        blocks.append(_Text(text, warning=True))
    columns = (
        "run", "candidate", "phase", "seed", "outcome", metric or "metric", "hours", "commit",
        "host", "GPU", "protocol", "artifacts", "reason",
    )  # fmt: skip
    return [*blocks, _Table("Runs with their provenance", columns, rows)]


def _ledger_part(facts: _Facts, plots: bool) -> list[Block]:
    if not facts.events:
        return []
    blocks: list[Block] = [_Heading(2, "Ledger")]
    if plots:
        caption = f"What happened when: all {len(facts.events):,} events, by kind"
        blocks.append(_Figure(_timeline(facts.events), caption))
    newest = facts.events[-MOST_EVENTS:]
    rows: list[list[Cell]] = [
        [str(e.seq), e.time, e.kind, e.actor, _gist(e), e.hash[:12]] for e in newest
    ]
    caption = f"The newest {len(newest)} of {len(facts.events):,} events"
    return [*blocks, _Table(caption, ("event", "time", "kind", "by", "about", "hash"), rows)]


def _gist(event: Event) -> str:
    keys = ("item", "candidate", "run", "plan", "to", "phase", "outcome", "reason")
    found = [str(event.data[key]) for key in keys if event.data.get(key) not in (None, "")]
    return ", ".join(found)


def _next_part(facts: _Facts, plots: bool) -> list[Block]:
    step = facts.next_step
    if step is None:
        return []
    words = [f"{step.action}: {step.reason}."]
    if step.command:
        words.append(f"Type: {step.command}")
    if not step.safe:
        words.append("A person decides on it.")
    return [_Heading(2, "What comes next"), _Text(" ".join(words))]


# ---------------------------------------------------------------------- texts


def _clean(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text on one line, without what could hide or turn it around, and not endless."""
    text = _UNSAFE.sub("\ufffd", " ".join(text[: 4 * most].split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def _escape_markdown(text: str) -> str:
    text = html.escape(_clean(text), quote=False)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)


def _markdown(blocks: Iterable[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, _Heading):
            lines.append(f"{'#' * block.level} {_escape_markdown(block.text)}")
        elif isinstance(block, _Text):
            text = _escape_markdown(block.text)
            lines.append(f"> **Attention:** {text}" if block.warning else _no_list(text))
        elif isinstance(block, _Items):
            lines += [f"- {_escape_markdown(item)}" for item in block.items]
        elif isinstance(block, _Table):
            lines.append(f"{_escape_markdown(block.caption)}:")
            lines.append("")
            lines.append(_row(block.columns))
            lines.append("|" + " --- |" * len(block.columns))
            lines += [_row([_shown(cell) for cell in row]) for row in block.rows]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape_markdown(cell) for cell in cells) + " |"


def _no_list(text: str) -> str:
    """Keep a paragraph from being read as a list or a rule by how it begins."""
    return re.sub(r"^(\d+)([.)])|^([-+=#])", lambda m: f"{m[1] or ''}\\{m[2] or m[3]}", text)


# ---------------------------------------------------------------------- the page

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --one: #0b62c4; --two: #b3480f; --good: #1a6b33; --bad: #b3261e; --warn: #7a5200;
  --wash: #f3f5f8 }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8eaed; --soft: #a7b0ba;
  --line: #3a424c; --one: #6db3ff; --two: #ffa366; --good: #6fd08c; --bad: #ff8a80; --warn: #f0c060;
  --wash: #1d2228 } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 76rem; padding: 1rem 1.5rem 4rem }
h1, h2, h3, h4 { line-height: 1.25; overflow-wrap: anywhere }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; padding-bottom: .25rem }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0 }
a { color: var(--one) }
p, li { max-width: 60rem; overflow-wrap: anywhere }
.warning { border-left: 4px solid var(--warn); background: var(--wash); padding: .5rem 1rem }
.scroll { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .875rem }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left;
  vertical-align: top; overflow-wrap: break-word; max-width: 32rem }
th { background: var(--wash) }
td data { font-variant-numeric: tabular-nums }
.badge { border: 1px solid currentColor; border-radius: .6em; padding: 0 .5em; white-space: nowrap }
.good { color: var(--good) } .bad { color: var(--bad) } .warn { color: var(--warn) }
figure { margin: 1rem 0 } figcaption { color: var(--soft); font-size: .875rem; max-width: 60rem }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg text { fill: var(--ink) } svg .soft { fill: var(--soft) }
svg .axis { stroke: var(--line) } svg .mark { stroke: var(--soft); stroke-dasharray: 4 3 }
svg .l1 { stroke: var(--one); fill: none } svg .l2 { stroke: var(--two); fill: none }
svg .f1 { fill: var(--one) } svg .f2 { fill: var(--two) }
svg .thin { stroke-width: 1; opacity: .45 } svg .thick { stroke-width: 2.5 }
svg .mean { stroke-width: 2.5 } svg .l2.mean { stroke-dasharray: 8 3 }
svg .band { opacity: .2; stroke: none } svg .cross { stroke: var(--bad); stroke-width: 2 }
svg .held { fill: none; stroke: var(--one); stroke-dasharray: 3 2 }
"""
_GOOD = {"accept", "accepted", "valid", "passed", "done", "low"}
_BAD = {"reject", "rejected", "harmful", "invalid", "void", "failed", "killed", "lost", "high"}


def _html(title: str, blocks: Sequence[Block]) -> str:
    anchors = [(i, b) for i, b in enumerate(blocks) if isinstance(b, _Heading) and b.level == 2]
    links = "".join(f'<li><a href="#s{i}">{_escape(block.text)}</a></li>' for i, block in anchors)
    body = []
    for i, block in enumerate(blocks):
        body.append(_html_block(block, i))
        if i == 0:
            body.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>')
    # The policy forbids what the escaping makes impossible already: loading or running anything.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _escape(text: str) -> str:
    return html.escape(_clean(text), quote=True)


def _html_block(block: Block, number: int) -> str:
    if isinstance(block, _Heading):
        level = f"h{block.level}"
        return f'<{level} id="s{number}">{_escape(block.text)}</{level}>'
    if isinstance(block, _Text):
        kind = ' class="warning" role="note"' if block.warning else ""
        return f"<p{kind}>{_escape(block.text)}</p>"
    if isinstance(block, _Items):
        return "<ul>" + "".join(f"<li>{_escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, _Figure):
        return f"<figure>{block.svg}<figcaption>{_escape(block.caption)}</figcaption></figure>"
    head = ""
    if any(block.columns):
        cells = "".join(f'<th scope="col">{_escape(name)}</th>' for name in block.columns)
        head = f"<thead><tr>{cells}</tr></thead>"
    rows = []
    for row in block.rows:
        first, *others = row
        cells = "".join(f"<td>{_html_cell(cell)}</td>" for cell in others)
        rows.append(f'<tr><th scope="row">{_html_cell(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_escape(block.caption)}">'
        f"<table><caption>{_escape(block.caption)}</caption>{head}"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, _Value):
        return f'<data value="{cell.exact!r}">{_escape(cell.shown)}</data>'
    if isinstance(cell, _Badge):
        kind = "good" if cell.word in _GOOD else "bad" if cell.word in _BAD else "warn"
        return f'<span class="badge {kind}">{_escape(cell.word)}</span>'
    return _escape(cell)


# ---------------------------------------------------------------------- plots

_WIDTH = 720
_LEFT = 220
_GAP = 24


class _Scale:
    """Maps numbers to pixels, with room at both ends."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        # Half of the largest float keeps differences of hostile numbers finite.
        found = [max(-8e307, min(8e307, v)) for v in values if math.isfinite(v)] or [0.0]
        low, high = min(found), max(found)
        room = (high - low) * 0.06 or abs(low) * 0.1 or 1.0
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (max(self.low, min(self.high, value)) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Return about five round numbers inside."""
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [i * step for i in range(first, min(last, first + 10) + 1)]


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}"'
    name = _escape(label)
    return f'<svg {size} role="img" aria-label="{name}"><title>{name}</title>{"".join(parts)}</svg>'


def _label(
    x: float, y: float, text: str, anchor: str = "start", kind: str = "", most: int = 28
) -> str:
    short = _escape(text if len(text) <= most else text[: most - 1] + "…")
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{short}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def _circle(x: float, y: float, kind: str, radius: float = 4) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}"/>'


def _diamond(x: float, y: float, kind: str) -> str:
    return f'<path d="M{x:g} {y - 5:g}l5 5l-5 5l-5 -5z" class="{kind}"/>'


def _cross(x: float, y: float) -> str:
    return _line(x - 4, y - 4, x + 4, y + 4, "cross") + _line(x - 4, y + 4, x + 4, y - 4, "cross")


def _x_axis(scale: _Scale, top: float, bottom: float, name: str = "") -> list[str]:
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(_line(x, top, x, bottom, "axis"))
        parts.append(_label(x, bottom + 16, f"{tick:.4g}", "middle", "soft"))
    if name:
        parts.append(_label((scale.start + scale.end) / 2, bottom + 34, name, "middle", "soft", 60))
    return parts


def _y_axis(scale: _Scale, left: float, right: float) -> list[str]:
    parts = []
    for tick in scale.ticks():
        y = scale(tick)
        parts.append(_line(left, y, right, y, "axis"))
        parts.append(_label(left - 6, y + 4, f"{tick:.4g}", "end", "soft"))
    return parts


def _effects(judgements: Sequence[_Judgement], minimum: float | None) -> str:
    """Draw every effect with its limits, zero, and the minimum effect."""
    seen = [
        [_float(j.comparison.get(key)) for key in ("effect", "low", "high")] for j in judgements
    ]
    numbers = [v for v in [*(v for row in seen for v in row), 0.0, minimum] if v is not None]
    bottom = 34.0 + _GAP * len(judgements)
    x = _Scale(numbers, _LEFT, _WIDTH - 20)
    parts = _x_axis(x, 22, bottom, "effect; positive favours the candidate")
    parts.append(_line(x(0), 22, x(0), bottom, "mark"))
    if minimum is not None:
        parts.append(_line(x(minimum), 22, x(minimum), bottom, "l2 thick"))
        parts.append(_label(x(minimum), 14, "minimum effect", "middle", "soft"))
    for i, (judgement, (effect, low, high)) in enumerate(zip(judgements, seen, strict=True)):
        y = 42.0 + _GAP * i
        parts.append(_label(_LEFT - 8, y + 4, f"{judgement.candidate} {judgement.phase}", "end"))
        if effect is None:
            parts.append(
                _label(_LEFT + 4, y + 4, str(judgement.event.data["outcome"]), kind="soft")
            )
            continue
        # A limit that is no number is an open end.
        left, right = x.low if low is None else low, x.high if high is None else high
        parts.append(_line(x(left), y, x(right), y, "l1 thick"))
        parts.append(_circle(x(effect), y, "f1"))
    label = f"Effects of {len(judgements)} verdicts against the minimum effect of {minimum}"
    return _svg(bottom + 42, label, parts)


def _dots(arms: Sequence[tuple[str, Scores]], axis: str) -> str:
    """Draw every seed of two arms, those with the same seed joined."""
    values = [v for _, arm in arms for v in arm.values() if v is not None]
    y = _Scale(values, 230, 20)
    columns = (260.0, 520.0)
    parts = _y_axis(y, 90, _WIDTH - 20)
    parts.append(_label(10, 14, axis, kind="soft"))
    before, after = arms[0][1], arms[1][1]
    for seed in sorted(before.keys() & after.keys()):
        first, second = before[seed], after[seed]
        if first is not None and second is not None:
            parts.append(_line(columns[0], y(first), columns[1], y(second), "axis"))
    for (name, arm), x, number in zip(arms, columns, (1, 2), strict=True):
        parts.append(_label(x, 270, name, "middle"))
        scores = [v for v in arm.values() if v is not None]
        if scores:
            mean = y(float(np.mean(scores)))
            parts.append(_line(x - 40, mean, x + 40, mean, f"l{number} thick"))
        for value in arm.values():
            if value is None:
                parts.append(_cross(x, 244))
            elif number == 1:
                parts.append(_circle(x, y(value), "f1"))
            else:
                parts.append(_diamond(x, y(value), "f2"))
    failed = sum(v is None for _, arm in arms for v in arm.values())
    label = f"{axis} per seed of {arms[0][0]} and {arms[1][0]}; {failed} failed"
    return _svg(284, label, parts)


_Lines = list[list[Point]]


def _curves(arms: Sequence[tuple[str, _Lines, _Lines]], axis: str) -> str:
    """Draw every seed's course, and the mean of the finished ones with its interval."""
    lines = [points for _, every, _ in arms for points in every]
    x = _Scale([step for points in lines for step, _ in points], 90, _WIDTH - 20)
    y = _Scale([value for points in lines for _, value in points], 270, 34)
    parts = [*_y_axis(y, 90, _WIDTH - 20), *_x_axis(x, 34, 270, "step")]
    parts.append(_label(10, 14, axis, kind="soft"))
    for number, (name, every, whole) in enumerate(arms, 1):
        parts += [_path(_thinned(points), x, y, f"l{number} thin") for points in every]
        mean, band = _mean(whole)
        if band:
            corners = " ".join(f"{x(step):g},{y(value):g}" for step, value in band)
            parts.append(f'<polygon points="{corners}" class="f{number} band"/>')
        if mean:
            parts.append(_path(mean, x, y, f"l{number} mean"))
        left = 240.0 if number == 1 else 480.0
        parts.append(_line(left, 14, left + 28, 14, f"l{number} mean"))
        parts.append(_label(left + 34, 18, name))
    label = f"Learning curves of {arms[0][0]} and {arms[1][0]}: {axis} over steps"
    return _svg(312, label, parts)


def _path(points: Sequence[Point], x: _Scale, y: _Scale, kind: str) -> str:
    corners = " ".join(f"{x(step):g},{y(value):g}" for step, value in points)
    return f'<polyline points="{corners}" class="{kind}"/>'


def _thinned(points: Sequence[Point], most: int = 120) -> list[Point]:
    keep = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).astype(int))
    return [points[i] for i in keep]


def _mean(lines: _Lines) -> tuple[list[Point], list[Point]]:
    """Return the mean over seeds where all have data, and the outline of its 95 % t-interval."""
    if not lines or any(len(points) < 2 for points in lines):
        return [], []
    low, high = max(p[0][0] for p in lines), min(p[-1][0] for p in lines)
    if low >= high:
        return [], []
    grid = np.linspace(low, high, 60)
    table = np.array([np.interp(grid, *np.array(points).T) for points in lines])
    if float(np.abs(table).max()) > 1e150:  # whose squares are no numbers any more
        return [], []
    mean = [(float(step), float(value)) for step, value in zip(grid, table.mean(0), strict=True)]
    if len(lines) < 2:
        return mean, []
    found = [statistics.t_interval(column) for column in table.T]
    upper = [(step, interval.high) for (step, _), interval in zip(mean, found, strict=True)]
    lower = [(step, interval.low) for (step, _), interval in zip(mean, found, strict=True)]
    outline = [*upper, *reversed(lower)]
    return mean, outline if all(math.isfinite(value) for _, value in outline) else []


def _bars(lines: Sequence[tuple[str, float, float, float | None]]) -> str:
    """Draw what is settled and reserved as shares of what is approved."""
    parts = []
    shown = [line for line in lines if line[3]]
    left, full = float(_LEFT), 380.0
    for i, (name, settled, reserved, limit) in enumerate(shown):
        assert limit
        y = 14.0 + 34 * i
        first, second = (full * min(1.1, v / limit) for v in (settled, settled + reserved))
        parts.append(_label(left - 8, y + 15, name, "end"))
        parts.append(f'<rect x="{left:g}" y="{y:g}" width="{first:.4g}" height="20" class="f1"/>')
        width = max(0.0, second - first)
        parts.append(
            f'<rect x="{left + first:g}" y="{y:g}" width="{width:.4g}" height="20" class="held"/>'
        )
        for share, kind in ((budget.WARN_AT, "mark"), (1.0, "l2 thick")):
            parts.append(_line(left + full * share, y - 4, left + full * share, y + 24, kind))
        parts.append(_label(left + full + 46, y + 15, f"of {limit:.4g}", kind="soft"))
    names = "; ".join(f"{n}: {s + r:.4g} of {limit:.4g}" for n, s, r, limit in shown if limit)
    return _svg(24 + 34 * len(shown), f"Budget use. {names}", parts)


_LANES = ("contract", "candidate", "run", "budget", "result", "verdict", "other")


def _timeline(events: Sequence[Event]) -> str:
    """Draw when how much of what happened; a dot's area grows with the count."""
    bins, first, last = 100, _seconds(events[0].time), _seconds(events[-1].time)
    span = (last - first) or 1.0
    counts: dict[tuple[str, int], int] = {}
    for event in events:
        lane = event.kind.partition(".")[0]
        lane = lane if lane in _LANES else "other"
        share = max(0.0, min(1.0, (_seconds(event.time) - first) / span))
        place = (lane, int(share * bins))
        counts[place] = counts.get(place, 0) + 1
    most = max(counts.values())
    lanes = [lane for lane in _LANES if any(key[0] == lane for key in counts)]
    width = _WIDTH - 140.0
    parts = []
    for i, lane in enumerate(lanes):
        y = 20.0 + 26 * i
        parts.append(_label(100, y + 4, lane, "end"))
        parts.append(_line(112, y, _WIDTH - 16, y, "axis"))
        for (name, slot), count in counts.items():
            if name == lane:
                radius = 2.5 + 7 * math.sqrt(count / most)
                parts.append(_circle(118 + width * slot / bins, y, "f1", round(radius, 2)))
    bottom = 20.0 + 26 * len(lanes)
    parts.append(_label(112, bottom + 8, events[0].time[:19], kind="soft"))
    parts.append(_label(_WIDTH - 16, bottom + 8, events[-1].time[:19], "end", "soft"))
    label = f"{len(events)} events from {events[0].time} to {events[-1].time}"
    return _svg(bottom + 20, label, parts)


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
