"""The report of a study, regenerated from its ledger and artifacts alone.

The same facts become Markdown, for a terminal or a pull request, and one HTML file with plots. The
numbers of a verdict are those of its ledger event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from assay.study.agree import budget
from assay.study.files.models import APPROVALS, VERSION
from assay.study.judge import adopt, gate, verdict
from assay.study.measure import monitor, probe, reflection
from assay.study.measure.extractors import Point
from assay.study.record import results
from assay.study.record.book import Book
from assay.study.record.ledger import Event
from assay.study.record.study import Study, StudyError, write_text
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
    markdown,
    number,
    shown,
)
from assay.study.report.facts import Facts, Judgement, candidate_of, read, record_of
from assay.study.report.html import page
from assay.study.run import runner

# A study may have thousands of candidates; a page with all their plots would help nobody. What is
# left out is said, and every verdict with its numbers is in the table.
MOST_DETAILED = 40
MOST_CURVES = 12
MOST_RUNS = 1000
MOST_EVENTS = 200


def report(study: Study) -> str:
    """Return the report as Markdown.

    Raises:
        AssayError: The ledger is damaged, so that nothing can be said.
    """
    return markdown(_document(read(study), plots=False))


def html_report(study: Study) -> str:
    """Return the report as one HTML file with plots.

    Raises:
        AssayError: The ledger is damaged, so that nothing can be said.
    """
    facts = read(study)
    title = f"Study {study.task}/{study.name}"
    return page(title, _document(facts, plots=True))


def write(study: Study) -> tuple[Path, Path, Path]:
    """Write report.md, report.html and experiments.yaml; return where they are.

    Raises:
        AssayError: The ledger is damaged, or the place cannot be written to.
    """
    study.require_writable()
    paths = tuple(study.path / n for n in ("report.md", "report.html", "experiments.yaml"))
    write_text(paths[0], report(study))
    write_text(paths[1], html_report(study))
    events = list(study.ledger.events())
    book = study.label(Book.read(events))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in book.status}
    for run in results.runs(events):
        seen = {"run": run.id, "phase": run.phase, "seed": run.seed, "outcome": run.outcome}
        runs[run.candidate].append(seen | {"metrics": run.metrics})
    experiments = [
        {"candidate": name, "kind": book.kind[name], "state": status, "runs": runs[name]}
        for name, status in book.status.items()
    ]
    made = {"schema_version": VERSION, "incumbent": book.incumbent, "experiments": experiments}
    write_text(paths[2], yaml.safe_dump(made, sort_keys=False, allow_unicode=True))
    return paths[0], paths[1], paths[2]


# ---------------------------------------------------------------------- what the report says


def _document(facts: Facts, *, plots: bool) -> list[Block]:
    blocks: list[Block] = [Heading(1, f"Study {facts.study.task}/{facts.study.name}")]
    blocks += [Text(problem, warning=True) for problem in facts.problems]
    parts: tuple[Callable[[Facts, bool], list[Block]], ...] = (
        _summary, _contract_part, _adopted_part, _noise_part, _verdict_part, _detail_part,
        _audit_part, _reward_part, _budget_part, _runs_part, _ledger_part, _next_part,
    )  # fmt: skip
    for part in parts:
        blocks += part(facts, plots)
    return blocks


def _summary(facts: Facts, plots: bool) -> list[Block]:
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
        Heading(2, "Question"),
        Text(question),
        Text(f"{answer} Candidates: {listed or 'none'}. {state}"),
    ]


def _contract_part(facts: Facts, plots: bool) -> list[Block]:
    agreed = facts.agreed
    if agreed is None:
        return [Heading(2, "Contract"), Text("There is no contract that can be read.")]
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
        approvals.append([item, what, *who, Badge(word), reason or ""])
    return [
        Heading(2, "Contract"),
        Table("What was agreed on", ("part", "content"), rows),
        Table("Approvals", ("part", "covers", "by", "at", "state", "why not"), approvals),
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


def _adopted_part(facts: Facts, plots: bool) -> list[Block]:
    """Show results that were measured elsewhere, apart from everything that was decided."""
    known = {key: event.data for key, event in adopt.standing(facts.events).items()}
    if not known:
        return []
    rows: list[list[Cell]] = []
    for (name, rival, metric), event in adopt.shown(facts.events).items():
        goal, reached = event.data.get("threshold"), event.data.get("reached")
        seen = event.data.get("comparison") or {}
        values = adopt.arm(known, name, metric).values()
        rows.append([
            name, metric, ", ".join(f"{value:.4g}" for value in values),
            number(event.data.get("iqm")),
            "-" if goal is None else f"{event.data.get('relation')} {goal:g}",
            "-" if reached is None else "reached" if reached else "missed",
            rival or "-", number(seen.get("effect"), "+.4g"),
            number(seen.get("p_better"), ".2g"), str(event.data.get("verdict")),
        ])  # fmt: skip
    columns = (
        "adopted", "metric", "per seed", "IQM", "goal", "result", "against", "effect", "p",
        "verdict",
    )  # fmt: skip
    note = (
        "These results were measured before this study or elsewhere, and adopted: they were not "
        "registered beforehand, so they are shown, and nothing is decided by them."
    )
    files: dict[str, Cell] = {str(d["path"]): str(d["sha256"])[:12] for d in known.values()}
    return [
        Heading(2, "Adopted results"),
        Text(note),
        Table("What the adopted results say", columns, rows),
        Table(
            "Where they are from", ("file", "SHA-256"), [[p, h] for p, h in sorted(files.items())]
        ),
    ]


def _noise_part(facts: Facts, plots: bool) -> list[Block]:
    heading = Heading(2, "Noise floor")
    if facts.agreed is None or not facts.holder:
        return [heading, Text("There is no baseline yet.")]
    metric = facts.agreed.metrics.primary
    first, second = (facts.arm(facts.holder, phase, metric.name) for phase in runner.DECIDING)
    try:
        spread, seen = gate.noise_floor(first, second, metric.direction)
    except StudyError as error:
        return [heading, Text(f"The A/A test of {facts.holder} is not complete: {error.message}")]
    rows: list[list[Cell]] = [
        [
            facts.holder, f"{len(first)} and {len(second)}", number(spread),
            number(seen.effect, "+.4g"), number(min(1.0, 2 * min(seen.p_better, seen.p_worse))),
        ]
    ]  # fmt: skip
    columns = ("arm", "seeds", f"deviation of {metric.name}", "A/A difference", "p, two-sided")
    caption = "The arm that candidates are held against, on its two pools of seeds"
    return [heading, Table(caption, columns, rows)]


def _verdict_part(facts: Facts, plots: bool) -> list[Block]:
    blocks: list[Block] = [Heading(2, "Verdicts")]
    judged = {judgement.candidate for judgement in facts.judgements}
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
                    f"{len(facts.judgements)} verdicts, the newest last",
                )
            )
        blocks.append(Table(caption, columns, rows))
    else:
        blocks.append(Text("No verdict has been given yet."))
    rest: list[list[Cell]] = [
        [name, Badge(status), str(len(facts.runs.get(name, [])))]
        for name, status in facts.statuses.items()
        if name not in judged
    ]
    if rest:
        caption = "Candidates without a verdict"
        blocks.append(Table(caption, ("candidate", "state", "runs that are over"), rest))
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


def _detail_part(facts: Facts, plots: bool) -> list[Block]:
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
    position = {name: i for i, name in enumerate(facts.statuses)}

    def key(name: str) -> tuple[int, int, int, int]:
        last = judged.get(name, 0)
        return (
            rank.get(facts.statuses[name], 2), -last, -len(facts.runs.get(name, [])),
            position[name],
        )  # fmt: skip

    return sorted((n for n in facts.statuses if n != facts.baseline), key=key)


def _candidate_blocks(facts: Facts, name: str) -> list[Block]:
    blocks: list[Block] = [Heading(3, name)]
    candidate = candidate_of(facts.study, name)
    rows: list[list[Cell]] = [["state", Badge(facts.statuses[name])]]
    if candidate is None:
        blocks.append(Text("Its file is missing or cannot be read.", warning=True))
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
        "Hedges' g", "P(better)", "worst seed", "failed",
    )  # fmt: skip
    caption = f"Numbers of {judgement.candidate}, {judgement.phase}"
    blocks.append(Table(caption, columns, rows))
    needed = data.get("seeds_needed")
    if needed:
        text = f"At this noise {needed} seeds per arm see the minimum effect with the wanted power."
        blocks.append(Text(text))
    return blocks


def _comparison_row(name: str, seen: Mapping[str, Any], least: Cell, alpha: Cell) -> list[Cell]:
    seeds, worst = seen.get("seeds") or ("-", "-"), seen.get("worst") or ("-", None)
    return [
        name, number(seen.get("effect"), "+.4g"), number(seen.get("low")),
        number(seen.get("high")), least, number(seen.get("p_better")), alpha,
        str(seen.get("test", "-")), f"{seeds[0]} and {seeds[1]}",
        number(seen.get("standardised"), ".3g"), number(seen.get("improvement"), ".0%"),
        f"{worst[0]}: {shown(number(worst[1]))}", number(seen.get("failures"), ".0%"),
    ]  # fmt: skip


def _seed_blocks(facts: Facts, judgement: Judgement, plots: bool) -> list[Block]:
    arms = [
        (name, facts.arm(name, judgement.phase, judgement.metric))
        for name in (judgement.rival, judgement.candidate)
    ]
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
    drawn = charts.dots(arms, _axis_name(facts))
    return [Figure(drawn, f"{caption}: dots, with the means as bars"), table]


def _axis_name(facts: Facts) -> str:
    if facts.agreed is None:
        return ""
    metric = facts.agreed.metrics.primary
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def _curve_blocks(facts: Facts, judgement: Judgement) -> list[Block]:
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
        missing: list[Block] = [Text(text, warning=True)]
    else:
        missing = []
    if not any(lines for _, lines, _ in arms):
        return [*missing, Text("The artifacts hold no series of the primary metric, so there are "
                                "no learning curves.")]  # fmt: skip
    caption = (
        f"Learning curves, {judgement.phase}: every seed thin, the mean of the finished ones thick "
        "with its 95 % t-interval over seeds"
    )
    return [*missing, Figure(charts.curves(arms, _axis_name(facts)), caption)]


def _series(facts: Facts, run: str) -> list[Point]:
    if run not in facts.series:
        assert facts.agreed is not None
        place = facts.study.path / "runs" / run
        points = monitor.points_of(facts.agreed.metrics.primary, place)
        facts.series[run] = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    return facts.series[run]


def _audit_part(facts: Facts, plots: bool) -> list[Block]:
    audits = [event for event in facts.events if event.kind == verdict.AUDITED]
    blocks: list[Block] = [Heading(2, "Audits of results")]
    if not audits:
        return [*blocks, Text("No result has been audited yet.")]
    rows: list[list[Cell]] = []
    for event in audits:
        checks = event.data.get("checks", ())
        failed = [check for check in checks if not check["passed"]]
        word = "passed" if event.data["passed"] else "failed"
        rows.append(
            [
                str(event.data["candidate"]), str(event.data["phase"]), Badge(word),
                f"{len(checks) - len(failed)} of {len(checks)}",
                verdict.findings(failed) or "nothing",
            ]
        )  # fmt: skip
    columns = ("candidate", "phase", "audit", "checks passed", "findings")
    return [*blocks, Table("What the audits found", columns, rows)]


def _reward_part(facts: Facts, plots: bool) -> list[Block]:
    blocks: list[Block] = []
    looked = [event for event in facts.events if event.kind == reflection.REFLECTED]
    if looked:
        rows: list[list[Cell]] = [
            [str(e.data["run"]), Badge(str(e.data["hacking_risk"])), " ".join(e.data["findings"])]
            for e in looked
        ]
        columns = ("run", "hacking risk", "findings")
        blocks.append(Heading(2, "Reward reflections"))
        blocks.append(Table("What runs say about their reward", columns, rows))
    probes = [event for event in facts.events if event.kind == probe.SUMMARISED]
    if probes:
        rows = [
            [str(e.data["plan"]), str(e.data["parameter"]), number(e.data["lowest"]),
             number(e.data["highest"])]
            for e in probes
        ]  # fmt: skip
        columns4 = ("probe", "parameter", "lowest that succeeds", "highest that succeeds")
        blocks.append(Heading(2, "Probes"))
        blocks.append(Table("How far a parameter may be moved", columns4, rows))
    return blocks


def _budget_part(facts: Facts, plots: bool) -> list[Block]:
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
            [
                name,
                number(settled),
                number(reserved),
                number(limit),
                number(share, ".0%"),
            ]
        )
    blocks: list[Block] = [Heading(2, "Budget")]
    if plots and limits is not None:
        caption = f"Budget: settled, reserved, and the warning at {budget.WARN_AT:.0%}"
        blocks.append(Figure(charts.bars(lines), caption))
    columns = ("what", "settled", "reserved by open runs", "approved", "used")
    return [*blocks, Table("Budget use", columns, rows)]


def _runs_part(facts: Facts, plots: bool) -> list[Block]:
    every = [event for event in facts.events if event.kind == runner.PREPARED]
    blocks: list[Block] = [Heading(2, "Runs")]
    if not every:
        return [*blocks, Text("Nothing has been run yet.")]
    over = {run.id: run for runs in facts.runs.values() for run in runs}
    hosts = {
        e.data["run"]: str(e.data.get("host", ""))
        for e in facts.events
        if e.kind == runner.LAUNCHED
    }
    if len(every) > MOST_RUNS:
        text = f"The newest {MOST_RUNS:,} of {len(every):,} runs; all of them are in the ledger."
        blocks.append(Text(text))
    metric = facts.agreed.metrics.primary.name if facts.agreed else ""
    rows: list[list[Cell]] = []
    gone = 0
    for event in every[-MOST_RUNS:]:
        name = str(event.data["run"])
        run, record = over.get(name), record_of(facts.study, name)
        there = (facts.study.path / "runs" / name / "out").is_dir()
        gone += not there
        commit = f"{record.commit[:12]}{'+changes' if record.dirty else ''}" if record else ""
        rows.append(
            [
                name, str(event.data["candidate"]), str(event.data["phase"]),
                str(event.data["seed"]), Badge(run.outcome if run else "under way"),
                number(run.metrics.get(metric)) if run else "-",
                number(run.hours, ".3g") if run else "-", commit or "-",
                hosts.get(name) or (record.host if record else "") or "-",
                (record.gpu if record else "") or "-", str(event.data["protocol"])[:12],
                "there" if there else "missing", run.reason if run else "",
            ]
        )  # fmt: skip
    if gone:
        text = f"The artifacts of {gone} of these runs are missing; their numbers are the ledger's."
        blocks.append(Text(text, warning=True))
    columns = (
        "run", "candidate", "phase", "seed", "outcome", metric or "metric", "hours", "commit",
        "host", "GPU", "protocol", "artifacts", "reason",
    )  # fmt: skip
    return [*blocks, Table("Runs with their provenance", columns, rows)]


def _ledger_part(facts: Facts, plots: bool) -> list[Block]:
    if not facts.events:
        return []
    blocks: list[Block] = [Heading(2, "Ledger")]
    if plots:
        caption = f"What happened when: all {len(facts.events):,} events, by kind"
        blocks.append(Figure(charts.timeline(facts.events), caption))
    newest = facts.events[-MOST_EVENTS:]
    rows: list[list[Cell]] = [
        [str(e.seq), e.time, e.kind, e.actor, _gist(e), e.hash[:12]] for e in newest
    ]
    caption = f"The newest {len(newest)} of {len(facts.events):,} events"
    return [*blocks, Table(caption, ("event", "time", "kind", "by", "about", "hash"), rows)]


def _gist(event: Event) -> str:
    keys = ("item", "candidate", "run", "plan", "to", "phase", "outcome", "reason")
    found = [str(event.data[key]) for key in keys if event.data.get(key) not in (None, "")]
    return ", ".join(found)


def _next_part(facts: Facts, plots: bool) -> list[Block]:
    step = facts.next_step
    if step is None:
        return []
    words = [f"{step.action}: {step.reason}."]
    if step.command:
        words.append(f"Type: {step.command}")
    if not step.safe:
        words.append("A person decides on it.")
    return [Heading(2, "What comes next"), Text(" ".join(words))]
