"""What a study writes as it goes on: runs, reflections, probes, audits, its state and ledger."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from assay.study.files.base import Document, Grown, Name, Part, Phase, Sha256, Status, Text


class Seen(Document, Grown):
    """What the supervisor saw of a run besides what it wrote."""

    later: ClassVar[tuple[str, ...]] = ("sandbox", "loaded", "unrecorded", "tampered")

    sandbox: str = Field("", description="What its evaluation was shut in, or none.")
    loaded: dict[str, str] = Field(
        {}, description="Hashes of the repository's files that its Python loaded, by path."
    )
    unrecorded: str = Field("", description="Why that is not known, where it is not.")
    tampered: tuple[str, ...] = Field((), description="What was changed while it ran.")


class RunRecord(Seen):
    """One training run, as the runner saw it."""

    later: ClassVar[tuple[str, ...]] = ("gpus",)

    id: Name
    candidate: Name
    phase: Phase
    seed: int
    argv: tuple[str, ...]
    evaluation: tuple[str, ...] = Field((), description="What was run after it.")
    cwd: str
    out: str
    env: dict[str, str] = Field({}, description="What the process was given, without secrets.")
    commit: str = ""
    dirty: bool = False
    diff: str = Field("", description="Hash of the working tree's diff.")
    lock: str = Field("", description="Hash of the lock file.")
    versions: dict[str, str] = Field({})
    host: str = ""
    gpu: str = Field("", description="The GPUs of its machine.")
    gpus: tuple[str, ...] = Field((), description="Those that it was given: number and name.")
    protocol: Sha256 = Field(description="Hash of the evaluation protocol.")
    ended: str = ""
    exit_code: int | None = None
    outcome: Literal["running", "done", "failed", "killed", "lost"] = "running"
    reason: str = ""
    hours: float = Field(0.0, ge=0)
    artifacts: dict[str, str] = Field({}, description="Hashes of what it wrote, by file.")
    metrics: dict[str, float | None] = Field({}, description="What was extracted.")


class ReflectionComponent(Part):
    """How one part of the reward behaved."""

    name: Text
    share: float = Field(ge=0, le=1, description="Of the summed magnitude.")
    trend: Literal["rising", "falling", "flat", "unknown"]
    saturated: bool
    dominant: bool


class RewardReflection(Document):
    """What a run says about its reward: `runs/<run>/reward_reflection.json`."""

    run: Name
    task_metrics: dict[str, float]
    components: tuple[ReflectionComponent, ...]
    hacking_risk: Literal["low", "medium", "high"]
    findings: tuple[str, ...] = ()


class ProbePlan(Document):
    """One randomised parameter at a time, from its nominal value outwards."""

    id: Name
    parameter: Text
    nominal: float
    values: tuple[float, ...] = Field(min_length=2)
    success: Text = Field(description="What counts as still succeeding.")
    safety: Text = Field(description="What could go wrong, and what stops it.")


class ProbeSummary(Document):
    """What a probe found."""

    plan: Name
    parameter: Text
    lowest: float | None = Field(description="Lowest value that still succeeds.")
    highest: float | None = Field(description="Highest value that still succeeds.")
    results: dict[str, float]
    safety: Text


class QueueItem(Part):
    """One run that waits, runs or is over."""

    id: Name
    candidate: Name
    phase: Phase
    seed: int
    state: Literal["queued", "leased", "running", "done", "failed", "stale", "cancelled"]
    owner: str = ""
    pid: int | None = None
    attempts: int = Field(0, ge=0)


class QueueManifest(Document):
    """The queue, as it is shown and exported."""

    items: tuple[QueueItem, ...] = ()


class AuditCheck(Part):
    """One thing that was looked at."""

    name: Text
    passed: bool
    detail: str = ""
    final: bool = Field(False, description="Whether the candidate is rejected for it.")


class ResultAudit(Document):
    """Whether a candidate's evidence can be trusted: `audits/<candidate>.json`."""

    candidate: Name
    passed: bool
    checks: tuple[AuditCheck, ...]


class Answer(Part):
    """What the audit of a repository found for one question."""

    value: Any = Field(None, description="The answer; none where there is none.")
    confidence: float = Field(0.0, ge=0, le=1)
    evidence: tuple[str, ...] = Field((), description="file:line of what it rests on.")
    note: str = Field("", description="What kind of answer it is, where that needs a word.")


class Adapter(Document):
    """How a repository is trained, evaluated, configured and logged."""

    profile: str = "generic"
    train: tuple[Answer, ...] = ()
    evaluate: tuple[Answer, ...] = ()
    config: tuple[Answer, ...] = ()
    logging: tuple[Answer, ...] = ()
    metrics: tuple[Answer, ...] = ()
    guardrails: tuple[Answer, ...] = ()
    reward: tuple[Answer, ...] = ()
    termination: tuple[Answer, ...] = ()
    curriculum: tuple[Answer, ...] = ()
    randomization: tuple[Answer, ...] = ()
    launcher: tuple[Answer, ...] = ()


class Registry(Document):
    """Which task and study are meant where none is named."""

    task: Name | None = None
    study: Name | None = None


class Anchor(Part):
    """The ledger's newest event, noted outside of it."""

    seq: int = Field(0, ge=0)
    hash: Sha256 = Field("0" * 64)


class LedgerFile(Part):
    """The ledger's file, as it was when the state was made from it."""

    size: int = Field(ge=0, description="In bytes.")
    modified: int = Field(description="In nanoseconds.")
    changed: int = Field(description="Of its inode, in nanoseconds; nobody can set this one.")
    inode: int


class Progress(Grown):
    """What the next step is decided by, so that the ledger need not be read again for it."""

    later: ClassVar[tuple[str, ...]] = ("shares",)

    kinds: dict[str, str] = Field({}, description="Of every candidate.")
    probes: dict[str, str] = Field({}, description="The probe that a candidate belongs to.")
    attempts: dict[str, tuple[tuple[str, str, int, str, str], ...]] = Field(
        {}, description="Runs that are over: name, phase, seed, outcome, reason; by candidate."
    )
    scores: dict[str, dict[str, float | None]] = Field(
        {}, description="What the baselines' runs measured: metrics, by run."
    )
    open: dict[str, tuple[str, str, int]] = Field(
        {}, description="Runs that are prepared and not over: candidate, phase, seed."
    )
    audited: dict[str, tuple[str, ...]] = Field({}, description="Phases, by candidate.")
    judged: dict[str, dict[str, str]] = Field({}, description="Last outcomes, by candidate.")
    looked: dict[str, dict[str, int]] = Field(
        {}, description="Seeds of early looks that were not clear, by candidate and phase."
    )
    measures: dict[str, dict[str, str]] = Field(
        {}, description="What measures the baselines: short hashes by field or file."
    )
    promoted: tuple[str, ...] = Field((), description="Who went on after the short trials.")
    summarised: tuple[str, ...] = Field((), description="Probes.")
    holders: tuple[str, ...] = Field((), description="Accepted and not reverted, oldest first.")
    runs: int = Field(0, ge=0, description="Launched in all.")
    held: tuple[str, ...] = Field((), description="Runs that are reserved and not settled.")
    approvals: dict[str, tuple[str, ...]] = Field(
        {},
        description="Who approved which hash last, by the part of the contract; and 'signed', "
        "where it is.",
    )
    anchored: str = Field("", description="The Git ref that notes the ledger's head.")
    shares: tuple[tuple[str, float, bool, bool], ...] | None = Field(
        None,
        description="Of the error rate, the oldest first: candidate, alpha, whether a score was "
        "seen, whether it waits for a verdict. Files of earlier versions have none.",
    )


class State(Document):
    """Where a study is; everything but the anchor is derived from the ledger."""

    task: Name
    study: Name
    head: Anchor = Field(Anchor())
    ledger: LedgerFile | None = Field(None, description="What it was made from.")
    incumbent: str = ""
    candidates: dict[str, Status] = Field({})
    progress: Progress = Field(Progress())


class LedgerEvent(Part):
    """One line of ledger.jsonl."""

    schema_version: Literal[1] = Field(alias="schema", description="Version of the event's schema.")
    seq: int = Field(ge=1, description="From 1, without gaps.")
    time: Text = Field(description="When it was appended, UTC, ISO 8601.")
    kind: Text = Field(description="What happened.")
    actor: str = Field(description="Who did it.")
    data: dict[str, Any] = Field(description="What the kind asks for.")
    prev: Sha256 = Field(description="Hash of the event before; zeros for the first.")
    hash: Sha256 = Field(description="Over the canonical bytes of all of the above.")
