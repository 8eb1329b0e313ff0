"""What a report says, section by section.

The numbers of a verdict are those of its ledger event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.core.wording import counted
from assay.study.agree import budget
from assay.study.files.contract import APPROVALS, Contract
from assay.study.files.documents import StudyError
from assay.study.files.records import RunRecord
from assay.study.judge import adopt, gate, verdict
from assay.study.record import kinds
from assay.study.record.ledger import Event
from assay.study.report import charts
from assay.study.report.blocks import Badge, Block, Cell, Figure, Heading, Table, Text, number
from assay.study.report.facts import Facts, Judgement, readable
from assay.study.report.scorecard import scorecard
from assay.study.report.standings import Standing, answer, standings
from assay.study.report.verdicts import detail_part, seed_figure, verdict_part

MOST_RUNS = 1000
MOST_EVENTS = 200
MOST_CARDS = 12


def document(facts: Facts, *, plots: bool) -> list[Block]:
    """Return all that a report says."""
    blocks: list[Block] = [Heading(1, f"Study {facts.study.task}/{facts.study.name}")]
    blocks += [Text(problem, warning=True) for problem in facts.problems]
    parts: tuple[Callable[[Facts, bool], list[Block]], ...] = (
        _summary, _next_part, verdict_part, _scorecard_part, detail_part, _noise_part,
        _contract_part, _adopted_part, _audit_part, _reward_part, _budget_part, _runs_part,
        _ledger_part,
    )  # fmt: skip
    for part in parts:
        blocks += part(facts, plots)
    return blocks


def _summary(facts: Facts, plots: bool) -> list[Block]:
    """Return the answer first: what was found, both arms' means, the effect, and a picture."""
    metric = facts.agreed.metrics.primary if facts.agreed else None
    rows = standings(facts.history, facts.agreed)
    question = facts.agreed.question if facts.agreed else "The contract does not say yet."
    blocks: list[Block] = [
        Heading(2, "Answer"),
        Text(answer(rows, facts.history.incumbent, metric)),
        Text(f"Question: {question}"),
    ]
    judged = [judgement for judgement in facts.judgements if judgement.comparison]
    if plots and judged:
        blocks.append(seed_figure(facts, _telling(facts, judged)))
    if rows:
        columns = (
            "candidate", "state", "phase", "seeds", f"mean {metric.name if metric else 'score'}",
            "against", "mean of that", "effect", "low", "high", "why",
        )  # fmt: skip
        caption = (
            "Every candidate in the phase that it got to; positive effects favour the candidate, "
            f"low and high are the one-sided {gate.GUARD_LEVEL:.0%} limits"
        )
        blocks.append(Table(caption, columns, [_standing_cells(row) for row in rows]))
    if facts.events:
        last = facts.events[-1]
        state = f"As of event {last.seq} of the ledger ({last.time}, {last.hash[:12]})."
    else:
        state = "The ledger is empty: nothing has happened yet."
    return [*blocks, Text(state)]


def _telling(facts: Facts, judged: Sequence[Judgement]) -> Judgement:
    """Return the verdict that the answer rests on: the incumbent's last, or the newest."""
    own = [j for j in judged if j.candidate == facts.history.incumbent]
    return (own or list(judged))[-1]


def _standing_cells(row: Standing) -> list[Cell]:
    return [
        row.name, Badge(row.state), row.phase or "-", row.seeds_text(), number(row.mean),
        row.rival or "-", number(row.rival_mean), number(row.effect, "+.4g"), number(row.low),
        number(row.high), row.reason,
    ]  # fmt: skip


def _scorecard_part(facts: Facts, plots: bool) -> list[Block]:
    """Return the cards of the newest candidates with deciding runs: every metric beside a rival."""
    if facts.agreed is None:
        return []
    history = facts.history
    tried = [
        name
        for name in history.status
        if history.kind[name] != "baseline"
        and any(history.selected(name, phase) for phase in kinds.DECIDING)
    ]
    rows: list[list[Cell]] = []
    for name in tried[-MOST_CARDS:]:
        card = scorecard(facts.study, history, name)
        rows += [
            [f"{name}, {card.phase}", line.role, line.metric, str(line.seeds), number(line.mean),
             number(line.rival_mean), number(line.better, "+.4g"), Badge(line.state), line.detail]
            for line in card.lines
        ]  # fmt: skip
    if not rows:
        return []
    columns = (
        "candidate", "role", "metric", "seeds", "mean", "rival", "better by", "state", "seen",
    )  # fmt: skip
    caption = "All metrics of the newest candidates; only the verdict on the primary metric decides"
    return [Heading(2, "Scorecards"), Table(caption, columns, rows)]


def _contract_part(facts: Facts, plots: bool) -> list[Block]:
    agreed = facts.agreed
    if agreed is None:
        return [Heading(2, "Contract"), Text("There is no contract that can be read.")]
    primary, evaluation = agreed.metrics.primary, agreed.evaluation
    pools, candidates = evaluation.pools, counted(evaluation.expected_candidates, "candidate")
    rows: list[list[Cell]] = [
        ["task", f"{agreed.task.id}: {agreed.task.description} ({agreed.task.env})"],
        ["primary metric", f"{primary.name}, {primary.direction}, minimum effect "
         f"{primary.minimum_effect:g} {primary.unit}".rstrip()],
        ["guardrails", "; ".join(_limits(guard) for guard in agreed.metrics.guardrails) or "none"],
        ["scope", ", ".join([*agreed.scope.parameters, *agreed.scope.files]) or "nothing"],
        ["baseline command", " ".join(agreed.baseline.command)],
        ["evaluation", f"{_measured(agreed)}, test {evaluation.test}, alpha "
         f"{evaluation.alpha:g} over {candidates}; seeds: "
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
        signed = "yes" if len(facts.history.approvals.get(item, ())) > 2 else "no"
        approvals.append([item, what, *who, signed, Badge(word), reason or ""])
    columns = ("part", "covers", "by", "at", "signed", "state", "why not")
    return [
        Heading(2, "Contract"),
        Table("What was agreed on", ("part", "content"), rows),
        Table("Approvals", columns, approvals),
        Text(_proof(facts)),
    ]


def _measured(agreed: Contract) -> str:
    """Return what one score is, as far as the contract says."""
    if agreed.evaluation.episodes is not None:
        return f"{counted(agreed.evaluation.episodes, 'episode')} per seed"
    if agreed.metrics.primary.training_reward:
        return "no evaluation apart from training"
    return "episodes per seed not recorded"


def _proof(facts: Facts) -> str:
    """Say whether anybody proved who approved."""
    words = facts.history.approvals
    signed = sorted({word[0] for word in words.values() if len(word) > 2})
    if not signed:
        return (
            "Nobody proved who approved: no approval is signed. The names above are what was "
            "typed; experiment.signers and `contract approve --key` sign them."
        )
    unsigned = [item for item, word in words.items() if len(word) < 3]
    rest = f" Nobody proved who approved {', '.join(unsigned)}." if unsigned else ""
    return f"Signed with the SSH keys of {', '.join(signed)}; `assay study verify` checks it.{rest}"


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
    known = {key: event.data for key, event in facts.history.adopted.items()}
    if not known:
        return []
    rows: list[list[Cell]] = []
    for (name, rival, metric), event in facts.history.shown.items():
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
    if facts.agreed is None or not facts.baseline:
        return [heading, Text("There is no baseline yet.")]
    metric, arm = facts.agreed.metrics.primary, facts.history.arm
    first, second = (arm(facts.baseline, phase, metric.name) for phase in kinds.DECIDING)
    try:
        spread, seen = gate.noise_floor(first, second, metric.direction)
    except StudyError as error:
        return [heading, Text(f"The A/A test of {facts.baseline} is not complete: {error.message}")]
    rows: list[list[Cell]] = [
        [
            facts.baseline, f"{len(first)} and {len(second)}", number(spread),
            number(seen.effect, "+.4g"), number(min(1.0, 2 * min(seen.p_better, seen.p_worse))),
        ]
    ]  # fmt: skip
    columns = ("arm", "seeds", f"deviation of {metric.name}", "A/A difference", "p, two-sided")
    caption = "The baseline on its two pools of seeds"
    blocks: list[Block] = [heading, Table(caption, columns, rows)]
    discarded = verdict.discarded(facts.history, metric.name)
    return [*blocks, *(Text(f"The baseline {said}.", warning=True) for said in discarded)]


def _audit_part(facts: Facts, plots: bool) -> list[Block]:
    audits = [event for event in facts.events if event.kind == kinds.AUDITED]
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
    looked = [event for event in facts.events if event.kind == kinds.REFLECTED]
    if looked:
        rows: list[list[Cell]] = [
            [str(e.data["run"]), Badge(str(e.data["hacking_risk"])), " ".join(e.data["findings"])]
            for e in looked
        ]
        columns = ("run", "hacking risk", "findings")
        blocks.append(Heading(2, "Reward reflections"))
        blocks.append(Table("What runs say about their reward", columns, rows))
    probes = [event for event in facts.events if event.kind == kinds.SUMMARISED]
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
    history, used = facts.history, facts.history.usage
    held = [history.reserved[run] for run in used.open]
    hours, gpu = (sum(amounts[i] for amounts in held) for i in (0, 1))
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
        amounts = [number(amount) for amount in (settled, reserved, limit)]
        rows.append([name, *amounts, number(share, ".0%")])
    blocks: list[Block] = [Heading(2, "Budget")]
    if plots and limits is not None:
        caption = f"Budget: settled, reserved, and the warning at {budget.WARN_AT:.0%}"
        blocks.append(Figure(charts.bars(lines), caption))
    columns = ("what", "settled", "reserved by open runs", "approved", "used")
    return [*blocks, Table("Budget use", columns, rows)]


def _runs_part(facts: Facts, plots: bool) -> list[Block]:
    every = list(facts.history.runs.values())
    blocks: list[Block] = [Heading(2, "Runs")]
    if not every:
        return [*blocks, Text("Nothing has been run yet.")]
    if len(every) > MOST_RUNS:
        text = f"The newest {MOST_RUNS:,} of {len(every):,} runs; all of them are in the ledger."
        blocks.append(Text(text))
    metric = facts.agreed.metrics.primary.name if facts.agreed else ""
    rows: list[list[Cell]] = []
    gone = 0
    for run in every[-MOST_RUNS:]:
        record = readable(facts.study.run, run.id)
        there = (facts.study.path / "runs" / run.id / "out").is_dir()
        gone += not there
        for found in (run.exit or {}).get("tampered", ()):
            blocks.append(Text(f"While run {run.id} was under way: {found}.", warning=True))
        commit = f"{record.commit[:12]}{'+changes' if record.dirty else ''}" if record else ""
        rows.append(
            [
                run.id, run.candidate, run.phase, str(run.seed), Badge(run.outcome or "under way"),
                number(run.metrics.get(metric)) if run.ended else "-",
                number(run.hours, ".3g") if run.ended else "-", commit or "-",
                run.host or (record.host if record else "") or "-",
                (record.gpu if record else "") or "-", run.protocol[:12], _watched(record),
                (record.sandbox if record else "") or "-",
                "there" if there else "missing", run.reason,
            ]
        )  # fmt: skip
    if gone:
        text = f"The artifacts of {gone} of these runs are missing; their numbers are the ledger's."
        blocks.append(Text(text, warning=True))
    columns = (
        "run", "candidate", "phase", "seed", "outcome", metric or "metric", "hours", "commit",
        "host", "GPU", "protocol", "files loaded", "sandbox", "artifacts", "reason",
    )  # fmt: skip
    return [*blocks, Table("Runs with their provenance", columns, rows)]


def _watched(record: RunRecord | None) -> str:
    """Return how many files of the repository a run loaded, where that is known."""
    if record is None or record.unrecorded or not record.loaded:
        return "not known"
    return str(len(record.loaded))


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
        words.append(step.asks)
    return [Heading(2, "What comes next"), Text(" ".join(words))]
