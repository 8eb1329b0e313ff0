"""The contract: what a person and an agent agree on before anything is trained.

What a person approves are parts of it, each hashed by itself, so that an edit voids exactly the
approval that covered it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from assay.study.files.base import (
    MINIMUM_SEEDS,
    POOLS,
    Direction,
    Document,
    Grown,
    Name,
    Part,
    Phase,
    Sha256,
    Text,
)

PLACEHOLDER = "FILL IN"
APPROVALS: dict[str, str] = {
    "task": "the task definition",
    "metrics": "the primary metric with its guardrails",
    "scope": "the tuning scope",
    "budget": "the wall-clock and GPU budget",
    "hardware": "the hardware target",
    "baseline": "the baseline command",
    "evaluation": "the evaluation protocol",
    "experiment": "the experiment inside scope and budget",
}
EXCEPTIONS: dict[str, str] = {
    "aa-test": "go on although the halves of the baseline differ",
    "adopted": "the study shows results that were measured before it; nothing is run",
    "dirty-tree": "launch although the working tree has uncommitted changes",
    "discarded-baselines": "plan another baseline although several with scores were discarded",
    "equal-seeds": "go on although seeds of the baseline gave the same run",
    "failed-baseline": "go on with a baseline some of whose seeds failed",
    "reward-reflection": "reward engineering without a reward reflection",
}


class MetricSource(Part):
    """Where a metric is read from after a run."""

    kind: Literal[
        "assay",
        "tensorboard",
        "csv",
        "json",
        "jsonl",
        "stdout",
        "wandb",
        "sb3-monitor",
        "sb3-evaluations",
    ] = Field(description="The format, read by Assay itself; no code of the repository is run.")
    path: str = Field("", description="File or glob, relative to the run's output directory.")
    key: Text = Field(description="Column, tag or dotted key; for stdout a pattern with a group.")
    step: str | None = Field(None, description="Column or key of the step axis.")
    reduce: Literal["last", "max", "min", "mean", "tail-mean"] = Field(
        "last", description="How a series becomes one number per seed."
    )
    tail: float = Field(0.1, gt=0, le=1, description="Share of the series that tail-mean takes.")

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError(
                f"'{path}' leaves the run's output directory; write it relative to that, "
                "without '..'"
            )
        return path


class Metric(Grown):
    """A number that every training seed yields."""

    later: ClassVar[tuple[str, ...]] = ("range",)
    name: Name = Field(description="What the study calls it.")
    direction: Direction = Field("maximize", description="Which way is better.")
    source: MetricSource = Field(description="Where it is read from.")
    unit: str = Field("", description="For tables and axes.")
    range: tuple[float, float] | None = Field(
        None, description="Lowest and highest value that it can have; others are errors."
    )

    @field_validator("range")
    @classmethod
    def _ordered(cls, limits: tuple[float, float] | None) -> tuple[float, float] | None:
        if limits is not None and not limits[0] < limits[1]:
            raise ValueError(f"the range needs low < high, not {list(limits)}")
        return limits


class PrimaryMetric(Metric, Grown):
    """The one metric that decides."""

    later: ClassVar[tuple[str, ...]] = ("seed_bound",)
    minimum_effect: float = Field(gt=0, description="Smallest improvement worth having, absolute.")
    seed_bound: float | None = Field(
        None,
        description="No seed of a candidate may be worse than this; by default three standard "
        "deviations worse than the baseline's worst seed.",
    )
    training_reward: bool = Field(False, description="Whether it is the reward trained on.")
    why_training_reward: str = Field("", description="Why that may decide; needed if it is.")

    @model_validator(mode="after")
    def _justified(self) -> PrimaryMetric:
        if self.training_reward and not self.why_training_reward.strip():
            raise ValueError(
                "the primary metric is the training reward; say why in why_training_reward"
            )
        return self


class Guardrail(Metric):
    """A metric that must not get worse."""

    bound: float | None = Field(None, description="Absolute limit for every arm's mean.")
    margin: float | None = Field(None, ge=0, description="How much worse than the baseline is ok.")

    @model_validator(mode="after")
    def _limits(self) -> Guardrail:
        if self.bound is None and self.margin is None:
            raise ValueError(f"guardrail '{self.name}' limits nothing; give a bound or a margin")
        return self


class Metrics(Part):
    """All metrics of a study."""

    primary: PrimaryMetric = Field(description="Decides.")
    guardrails: tuple[Guardrail, ...] = Field((), description="Must not get worse.")
    components: tuple[Metric, ...] = Field((), description="Parts of the reward.")
    diagnostics: tuple[Metric, ...] = Field((), description="Watched, never decide.")
    training_reward: Metric | None = Field(
        None, description="What is trained on, to be compared with the primary metric."
    )
    honeypot: Metric | None = Field(
        None, description="A metric that only cheating moves; it must not move."
    )

    @model_validator(mode="after")
    def _unique(self) -> Metrics:
        names = [metric.name for metric in self.all()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"metric names are used twice: {', '.join(twice)}")
        return self

    def all(self) -> list[Metric]:
        """Return every metric, the primary one first."""
        others = [m for m in (self.training_reward, self.honeypot) if m is not None]
        return [self.primary, *self.guardrails, *self.components, *self.diagnostics, *others]


class Parameter(Part):
    """A setting that candidates may change, and how far."""

    kind: Literal["float", "int", "choice"] = Field(description="What values it takes.")
    low: float | None = Field(None, description="Smallest allowed value.")
    high: float | None = Field(None, description="Largest allowed value.")
    log: bool = Field(False, description="Sample on a logarithmic scale.")
    choices: tuple[Any, ...] = Field((), description="Allowed values of a choice.")

    @model_validator(mode="after")
    def _consistent(self) -> Parameter:
        if self.kind == "choice":
            if not self.choices:
                raise ValueError("a choice needs choices")
        elif self.low is None or self.high is None or not self.low <= self.high:
            raise ValueError(f"a {self.kind} needs low <= high")
        elif self.log and self.low <= 0:
            raise ValueError("a logarithmic scale needs low > 0")
        return self

    def refusal(self, value: Any) -> str | None:
        """Return why a value is out of scope, or None if it is inside."""
        if self.kind == "choice":
            allowed = ", ".join(map(repr, self.choices))
            return None if value in self.choices else f"expected one of {allowed}"
        kinds = int if self.kind == "int" else int | float  # 3.0 is written differently from 3
        if not isinstance(value, kinds) or isinstance(value, bool):
            return f"expected {'a whole number' if self.kind == 'int' else 'a number'}"
        assert self.low is not None and self.high is not None
        if not self.low <= value <= self.high:
            return f"expected {self.low:g} to {self.high:g}"
        return None


class Task(Part):
    """What is being learned."""

    id: Name = Field(description="Its directory under tasks/.")
    description: Text = Field(description="What a solved task looks like.")
    env: Text = Field(description="Environment id.")
    env_version: str = Field("", description="Version of the package that holds it.")


class Scope(Part):
    """What candidates may change."""

    parameters: dict[str, Parameter] = Field({}, description="Settings, with their ranges.")
    files: tuple[str, ...] = Field((), description="Globs of files that patches may touch.")
    protected: tuple[str, ...] = Field(
        (), description="Globs that stay byte-identical, besides evaluation files and .rlxp."
    )


class Budget(Part):
    """What the study may spend in all."""

    wall_clock_hours: float = Field(gt=0, description="Summed over all runs.")
    gpu_hours: float = Field(0.0, ge=0, description="Summed over all runs and GPUs.")
    runs: int = Field(gt=0, description="Training runs, crashed ones included.")
    parallel: int = Field(1, gt=0, description="Runs at the same time.")


class Hardware(Grown):
    """Where it runs."""

    later: ClassVar[tuple[str, ...]] = ("runs_per_gpu",)

    kind: Literal["cpu", "gpu"] = Field("cpu", description="What a run needs.")
    gpus: int = Field(0, ge=0, description="GPUs per run; 1 by default where the kind is gpu.")
    gpu_model: str = Field("", description="Part of the GPU's name, if it matters.")
    runs_per_gpu: int = Field(
        1, gt=0, description="Runs that may share a GPU at the same time, where they are small."
    )
    launcher: Literal["local", "tmux", "torchrun", "slurm", "ray", "kubernetes", "custom"] = Field(
        "local",
        description="What the baseline command starts runs with; recorded and approved, for "
        "people. Assay itself starts that command on this machine.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_at_least(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") == "gpu":
            return {"gpus": 1} | values
        return values

    @model_validator(mode="after")
    def _some(self) -> Hardware:
        if self.kind == "gpu" and not self.gpus:
            raise ValueError("the kind is gpu and gpus is 0: no GPU-hours would be counted")
        return self


class Baseline(Grown):
    """What candidates are compared with."""

    later: ClassVar[tuple[str, ...]] = ("outputs",)

    command: tuple[str, ...] = Field(
        min_length=1, description="Arguments; {seed}, {out} and {parameters} are filled in."
    )
    cwd: str = Field(".", description="Directory to run in, relative to the repository.")
    parameters: dict[str, Any] = Field({}, description="The baseline's own values.")
    parameter_format: str = Field(
        "{name}={value}", description="How {parameters} writes each changed setting."
    )
    shortened: dict[Phase, dict[str, Any]] = Field(
        {}, description="Settings that make a smoke or short run short; they go last."
    )
    env: dict[str, str] = Field({}, description="Environment variables to set.")
    env_allow: tuple[str, ...] = Field(
        ("PATH", "HOME", "LANG", "VIRTUAL_ENV"),
        description="Environment variables that are passed on; the same in all deciding runs.",
    )
    untracked: tuple[str, ...] = Field(
        (), description="Paths that Git does not hold and runs need (data, build outputs)."
    )
    outputs: tuple[str, ...] = Field(
        (), description="Globs below cwd of what a run writes beside {out}; it is moved there."
    )

    @field_validator("shortened")
    @classmethod
    def _never_deciding(cls, shortened: dict[Phase, dict[str, Any]]) -> dict[Phase, dict[str, Any]]:
        wrong = sorted(set(shortened) - {"smoke", "short"})
        if wrong:
            raise ValueError(f"the {wrong[0]} phase decides and is never shortened")
        return shortened

    @field_validator("command")
    @classmethod
    def _placeholders(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not any("{seed}" in word for word in command):
            raise ValueError("the command has no {seed}; the training seed is the unit of evidence")
        return command


class Pools(Part):
    """Training seeds that may be used for what; no seed is in two pools."""

    development: tuple[int, ...] = Field(min_length=1, description="Smoke and short trials.")
    promotion: tuple[int, ...] = Field(
        min_length=MINIMUM_SEEDS, description="The deciding comparison."
    )
    validation: tuple[int, ...] = Field(
        min_length=MINIMUM_SEEDS, description="Fresh seeds for the winner."
    )

    def of(self, phase: Phase) -> tuple[int, ...]:
        """Return the seeds of a phase."""
        seeds: tuple[int, ...] = getattr(self, POOLS[phase])
        return seeds

    @model_validator(mode="after")
    def _disjoint(self) -> Pools:
        pools = {"development": self.development, "promotion": self.promotion}
        pools["validation"] = self.validation
        seen: dict[int, str] = {}
        for name, seeds in pools.items():
            if len(set(seeds)) != len(seeds):
                raise ValueError(f"the {name} pool names a seed twice")
            for seed in seeds:
                if seed in seen:
                    raise ValueError(f"seed {seed} is in the {seen[seed]} and the {name} pool")
                seen[seed] = name
        return self


class Evaluation(Grown):
    """The fixed protocol by which every arm is measured."""

    later: ClassVar[tuple[str, ...]] = ("changeable", "looks")
    command: tuple[str, ...] = Field(
        (), description="Run after training; empty where training itself writes the metric."
    )
    episodes: int | None = Field(
        None,
        gt=0,
        description="Per seed, averaged inside it; empty where there is no evaluation apart from "
        "training, or nobody knows.",
    )
    deterministic: bool = Field(
        True,
        description="Whether the policy acts greedily; recorded and hashed, for people: the "
        "commands are what does it.",
    )
    checkpoint: Literal["last", "best-on-held-out"] = Field(
        "last",
        description="What is measured; recorded and hashed, for people: the commands do it.",
    )
    files: tuple[str, ...] = Field((), description="Globs of the files that do the measuring.")
    changeable: tuple[str, ...] = Field(
        (),
        description="Globs of files that the evaluation imports and patches may still change (the "
        "policy's own code); who approves this answers for it.",
    )
    pools: Pools = Field(description="Training seeds, by use.")
    test: Literal["auto", "welch", "paired", "permutation"] = Field(
        "auto",
        description="Decision test; auto is welch. Pair only where the arms' scores correlate by "
        "seed: otherwise pairing halves the degrees of freedom.",
    )
    looks: tuple[int, ...] = Field(
        (),
        description="Seeds per arm after which promotion is judged early, at a part of the "
        "candidate's alpha; clear cases end there. Validation always has its whole pool.",
    )
    alpha: float = Field(0.05, gt=0, lt=0.5, description="Error rate of the whole study.")
    power: float = Field(0.8, gt=0.5, lt=1, description="Wanted chance to see a real effect.")
    expected_candidates: int = Field(20, gt=0, description="How many tests alpha is spread over.")

    @field_validator("looks")
    @classmethod
    def _in_order(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if list(looks) != sorted(set(looks)) or (looks and looks[0] < MINIMUM_SEEDS):
            raise ValueError(
                f"looks are rising numbers of seeds, from {MINIMUM_SEEDS} on; got {list(looks)}"
            )
        return looks

    def stage(self, phase: Phase, looked: int = 0) -> tuple[int, ...]:
        """Return the seeds that a phase is judged on next, after a look at `looked` of them."""
        pool = self.pools.of(phase)
        if phase != "promotion":
            return pool
        return pool[: next((n for n in self.looks if looked < n < len(pool)), len(pool))]


class StopRules(Grown):
    """When a run or the study ends by itself."""

    later: ClassVar[tuple[str, ...]] = ("output_gb",)
    nan: bool = Field(True, description="Stop a run whose metrics are not numbers.")
    frozen_minutes: float = Field(30.0, gt=0, description="Stop a run that writes nothing.")
    overrun: float = Field(1.5, gt=1, description="Stop a run beyond this share of its request.")
    entropy_below: float | None = Field(None, description="Stop a run whose entropy collapsed.")
    output_gb: float = Field(10.0, gt=0, description="Stop a run that writes more gigabytes.")
    failures: int = Field(3, gt=0, description="Stop the study after so many crashes in a row.")
    candidates: int | None = Field(None, gt=0, description="Stop the study after so many.")


class Experiment(Grown):
    """How far the study may go by itself."""

    later: ClassVar[tuple[str, ...]] = ("signers", "signed")
    mode: Literal["manual", "supervised", "autonomous"] = Field(
        "manual",
        description="manual asks for each launch; supervised runs what was proposed until it is "
        "decided; autonomous proposes too.",
    )
    keep: float = Field(
        1 / 3, gt=0, le=1, description="Share of the short trials that goes on to promotion."
    )
    stop: StopRules = Field(StopRules(), description="When to end.")
    network: bool = Field(False, description="Whether runs and audits may use the network.")
    wandb: bool = Field(False, description="Whether W&B may be read over the network.")
    signers: str = Field(
        "",
        description="A file of allowed signers (ssh-keygen(1)), relative to the repository's top: "
        "whose SSH keys sign approvals.",
    )
    signed: bool = Field(False, description="Whether every approval must be signed.")
    exceptions: dict[str, Text] = Field(
        {}, description=f"Rules that are waived, and why; known: {', '.join(EXCEPTIONS)}."
    )

    @field_validator("exceptions")
    @classmethod
    def _known(cls, exceptions: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(exceptions) - set(EXCEPTIONS))
        if unknown:
            raise ValueError(f"unknown exception {unknown[0]!r}; known: {', '.join(EXCEPTIONS)}")
        return exceptions

    @model_validator(mode="after")
    def _signable(self) -> Experiment:
        if self.signed and not self.signers:
            raise ValueError("signed approvals are demanded; name the allowed signers in signers")
        return self


class Approval(Part):
    """A person's word for a part of the contract."""

    by: Text = Field(description="Who.")
    at: Text = Field(description="When, ISO 8601.")
    hash: Sha256 = Field(description="Of what was approved.")
    commit: str = Field("", description="Of the code that it was approved with.")


class Contract(Document):
    """What a person and an agent agreed on before anything is trained."""

    study: Name = Field(description="Its directory under studies/.")
    question: Text = Field(description="What the study is to find out.")
    task: Task
    metrics: Metrics
    scope: Scope
    budget: Budget
    hardware: Hardware
    baseline: Baseline
    evaluation: Evaluation
    experiment: Experiment = Field(Experiment())
    approvals: dict[str, Approval] = Field({}, description="By the part that is approved.")

    @field_validator("approvals")
    @classmethod
    def _known(cls, approvals: dict[str, Approval]) -> dict[str, Approval]:
        unknown = sorted(set(approvals) - set(APPROVALS))
        if unknown:
            raise ValueError(f"unknown approval {unknown[0]!r}; known: {', '.join(APPROVALS)}")
        return approvals

    @model_validator(mode="after")
    def _filled_in(self) -> Contract:
        left = placeholders(self.model_dump(mode="json"))
        if left:
            raise ValueError(f"still to be filled in: {', '.join(left)}")
        return self

    def part(self, item: str) -> Any:
        """Return what the approval of `item` covers, as plain data."""
        part = {"study": self.study, item: getattr(self, item).model_dump(mode="json")}
        if item == "task":
            part["question"] = self.question
        return part


def placeholders(value: Any, place: str = "") -> list[str]:
    """Return the fields that are still to be filled in."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in placeholders(v, f"{place}.{k}".strip("."))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in placeholders(v, f"{place}[{i}]")]
    return [place] if isinstance(value, str) and value.startswith(PLACEHOLDER) else []
