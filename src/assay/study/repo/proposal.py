"""What a contract can take over from an audit: commands, metrics and parameters, filled in."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from assay.study.files.base import PRINTED, Direction, Part
from assay.study.files.contract import MetricSource
from assay.study.files.records import Adapter, Answer
from assay.study.repo.answers.metrics import is_outcome
from assay.study.repo.files import words
from assay.study.repo.words import SMALLER_IS_BETTER

METRICS = 20
_SOURCES = {  # where the files of a sink usually are
    "tensorboard": "**/events.out.tfevents.*",
    "csv": "**/*.csv",
    "jsonl": "**/*.jsonl",
    "json": "**/*.json",
    "wandb": "**/*.wandb",
}
_HELD_OUT = {"eval", "evaluation", "evaluate", "test", "val", "validation", "success", "solved"}
_REWARDS = {"reward", "rewards", "rew", "return", "returns", "ret"}


class ProposedCommand(Part):
    """A command as a contract takes it."""

    command: tuple[str, ...] = Field(description="With {python}, {seed}, {out} and {parameters}.")
    parameter_format: str = Field(description="How {parameters} writes a setting; may be empty.")
    documented: str = Field(description="The command as it was found.")
    placeholders: dict[str, str] = Field(description="How each was found, or why it is missing.")
    missing: tuple[str, ...] = Field((), description="Required options that it is not given.")
    evidence: tuple[str, ...] = ()
    confidence: float = 0.0


class ProposedMetric(Part):
    """A metric, and where a run leaves it."""

    name: str
    direction: Direction = "maximize"
    source: MetricSource | None = Field(None, description="None where `unreadable` says why.")
    unreadable: str = Field("", description="Why no file is known that holds it; empty if one is.")
    outcome: bool = Field(description="Whether a study could decide by it, judged by its name.")
    training_reward: bool = Field(description="Whether it is likely the reward trained on.")
    evidence: tuple[str, ...] = ()
    confidence: float = 0.0


class ProposedParameter(Part):
    """A setting of the train command."""

    name: str
    kind: Literal["float", "int", "bool", "str", "choice", ""] = ""
    default: Any = None
    choices: tuple[Any, ...] = ()
    place: str = ""


class Proposal(Part):
    """What an audit can fill into a contract; nothing of it is approved."""

    train: ProposedCommand | None = None
    evaluate: ProposedCommand | None = None
    metrics: tuple[ProposedMetric, ...] = Field(
        (), description="The likeliest primary metric first, if it is an outcome."
    )
    parameters: tuple[ProposedParameter, ...] = ()


def propose(adapter: Adapter) -> Proposal:
    """Return what a contract can take over from the first answers of an audit."""
    return Proposal(
        train=_command(adapter.train),
        evaluate=_command(adapter.evaluate),
        metrics=tuple(_metric(answer, adapter.logging) for answer in adapter.metrics[:METRICS]),
        parameters=_parameters(adapter.train),
    )


def _command(answers: tuple[Answer, ...]) -> ProposedCommand | None:
    if not answers:
        return None
    best = answers[0]
    known = {key: best.value[key] for key in ProposedCommand.model_fields if key in best.value}
    known.setdefault("documented", " ".join(best.value["command"]))
    known.setdefault("placeholders", {})
    return ProposedCommand(**known, evidence=best.evidence, confidence=best.confidence)


def _parameters(answers: tuple[Answer, ...]) -> tuple[ProposedParameter, ...]:
    rows = answers[0].value.get("parameters", ()) if answers else ()
    kinds = ("float", "int", "bool", "str", "choice")
    return tuple(
        ProposedParameter(**{**row, "kind": row["kind"] if row["kind"] in kinds else ""})
        for row in rows
    )


def _metric(answer: Answer, logging: tuple[Answer, ...]) -> ProposedMetric:
    name = str(answer.value)
    source = _source(name, [str(item.value) for item in logging])
    unreadable = "" if source else "no log that a run writes was found"
    if "{" in name:
        source, unreadable = None, "a part of its name is known only when it runs"
    named = set(words(name))
    return ProposedMetric(
        name=name,
        direction="minimize" if named & SMALLER_IS_BETTER else "maximize",
        source=source,
        unreadable=unreadable,
        outcome=is_outcome(name),
        training_reward=bool(named & _REWARDS) and not named & _HELD_OUT,
        evidence=answer.evidence,
        confidence=answer.confidence,
    )


def _source(name: str, sinks: list[str]) -> MetricSource | None:
    """Return where a metric is read from: the sink that is on by default."""
    if name == "eval/mean_reward" and "tensorboard" not in sinks:
        return MetricSource(kind="sb3-evaluations", path="**/evaluations.npz", key="results")
    if name == "rollout/ep_rew_mean" and "tensorboard" not in sinks:
        return MetricSource(kind="sb3-monitor", path="**/*monitor.csv", key="r")
    for sink in sinks:
        if sink in _SOURCES:
            values = {"kind": sink, "path": _SOURCES[sink], "key": name}
            return MetricSource.model_validate(values)
    if "stdout" not in sinks:
        return None
    key = rf"{re.escape(name)}\s*[:=]?\s*{PRINTED}"
    return MetricSource(kind="stdout", key=key, reduce="tail-mean")
