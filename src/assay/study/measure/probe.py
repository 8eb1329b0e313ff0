"""Probe what randomisation a policy can stand, before any is designed.

A probe moves one parameter at a time, from its nominal value outwards, and asks at each value
whether training still succeeds. Its plan is written down before its first run, with what counts as
success, and its summary says how far one may go to either side.

Plan and summary are `audits/probes/<id>/{plan,summary}.json`; both hashes are in the ledger.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from assay.core.errors import nearest
from assay.study.agree import protocol
from assay.study.files.candidate import BudgetRequest, Candidate, Change
from assay.study.files.contract import Contract
from assay.study.files.documents import (
    StudyError,
    checked_name,
    digest_of,
    read_json_document,
    write_json_document,
)
from assay.study.files.records import ProbePlan, ProbeSummary
from assay.study.measure.extractors import number
from assay.study.record import kinds
from assay.study.record.history import History, Run
from assay.study.record.study import Study

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_CONDITION = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(>=|<=|>|<)\s*(\S+)\s*$")

Condition = tuple[str, str, float]  # metric, comparison, limit


def directory(study: Study, plan_id: str) -> Path:
    """Return where a probe's files are."""
    return study.path / "audits" / "probes" / checked_name(plan_id, "probe")


def plan_probe(study: Study, plan: ProbePlan, actor: str = "assay") -> Path:
    """Write a plan down, for good, before its first run; return where it is.

    Raises:
        StudyError: The id is taken, a value is out of scope, the nominal value is not among the
            values, or what counts as success cannot be read.
    """
    agreed = study.contract()
    known = agreed.scope.parameters.get(plan.parameter)
    if known is None:
        options = ", ".join(agreed.scope.parameters) or "none"
        raise StudyError(f"'{plan.parameter}' is not in the contract's scope ({options}).")
    if known.kind == "choice":
        raise StudyError(
            f"'{plan.parameter}' is a choice; a probe needs a number with a range.",
            "Probe a float or an int.",
        )
    for value in plan.values:
        whole = known.kind == "int" and value == int(value)
        reason = known.refusal(int(value) if whole else value)
        if reason:
            raise StudyError(f"{plan.parameter}={value!r} is out of scope: {reason}.")
    if len(set(plan.values)) != len(plan.values):
        raise StudyError(f"The values of probe '{plan.id}' name one twice: {_list(plan.values)}.")
    if plan.nominal not in plan.values:
        raise StudyError(
            f"The nominal value {plan.nominal:g} is not among the values ({_list(plan.values)}).",
            "Add it: a probe begins where training is known to work.",
        )
    conditions(plan.success, agreed)
    path = directory(study, plan.id) / "plan.json"
    with study.transaction() as transaction:
        if plan.id in transaction.history.plans:
            raise StudyError(
                f"There is a probe '{plan.id}' already, and a plan is not changed.",
                "Give the new one another id.",
            )
        write_json_document(path, plan)
        facts = {
            "plan": plan.id, "parameter": plan.parameter, "values": list(plan.values),
            "success": plan.success, "hash": digest_of(plan),
        }  # fmt: skip
        transaction.append(kinds.PLANNED, facts, actor=actor)
    return path


def drafts(study: Study, plan: ProbePlan, request: BudgetRequest) -> list[Candidate]:
    """Return the candidates that a plan asks for, one per value, ready to be proposed."""
    whole = study.contract().scope.parameters[plan.parameter].kind == "int"
    return [
        Candidate(
            id=f"{plan.id}-{i}",
            task=study.task,
            study=study.name,
            kind="dr-probe",
            hypothesis=f"{plan.success} with {plan.parameter}={value:g}",
            change=Change(parameters={plan.parameter: int(value) if whole else value}),
            budget=request,
            expected=plan.success,
            rollback=f"Set {plan.parameter} back to {plan.nominal:g}.",
            probe=plan.id,
        )
        for i, value in enumerate(plan.values, 1)
    ]


def conditions(success: str, agreed: Contract) -> list[Condition]:
    """Read what counts as success, such as `return >= 150 and falls < 0.1`.

    Raises:
        StudyError: It cannot be read, or names a metric that the contract does not have.
    """
    found = []
    names = [metric.name for metric in agreed.metrics.all()]
    for part in re.split(r"\s+and\s+", success.strip()):
        match = _CONDITION.match(part)
        limit = number(match[3]) if match else math.nan
        if match is None or not math.isfinite(limit):
            raise StudyError(
                f"'{part}' does not say what success is.",
                "Write METRIC >= NUMBER (or <=, >, <), several joined by 'and'.",
            )
        if match[1] not in names:
            raise StudyError(
                f"'{match[1]}' is not a metric of the contract.", nearest(match[1], names)
            )
        found.append((match[1], match[2], limit))
    return found


def summarise(study: Study, plan_id: str, actor: str = "assay") -> ProbeSummary:
    """Say how far the parameter may be moved; write the summary and record it.

    A value succeeds if every seed that was run at it does; a run that crashed or was ended does
    not. Going outwards from the nominal value, the range ends before the first that fails, so that
    a lucky value beyond a gap does not widen it.

    Raises:
        StudyError: There is no such plan, it was edited, a candidate changes more than the
            parameter, or a value has no run that is over.
    """
    agreed = study.contract()
    with study.transaction() as transaction:
        plan = _plan(study, transaction.history, plan_id)
        wanted = conditions(plan.success, agreed)
        runs = _runs(study, transaction.history, agreed, plan)
        missing = [value for value in plan.values if not runs[value]]
        if missing:
            raise StudyError(
                f"Probe '{plan.id}' has no finished run at {plan.parameter} = {_list(missing)}.",
                "Run a dr-probe candidate at each value, after the plan was made.",
            )
        shares = {
            value: sum(_succeeds(run, wanted) for run in seeds) / len(seeds)
            for value, seeds in runs.items()
        }
        lowest, highest = _range(plan, shares)
        summary = ProbeSummary(
            plan=plan.id,
            parameter=plan.parameter,
            lowest=lowest,
            highest=highest,
            results={f"{value:.12g}": shares[value] for value in sorted(shares)},
            safety=f"{plan.safety} {_incidents(runs)}",
        )
        write_json_document(directory(study, plan.id) / "summary.json", summary)
        facts = {
            "plan": plan.id, "parameter": plan.parameter, "lowest": lowest, "highest": highest,
            "hash": digest_of(summary),
        }  # fmt: skip
        transaction.append(kinds.SUMMARISED, facts, actor=actor)
    return summary


def named(study: Study, name: str) -> ProbeSummary:
    """Return the summary that a candidate names, if this study made it and nobody edited it.

    Args:
        study: The candidate's study.
        name: A probe, or the path of its summary below the study's directory.

    Raises:
        StudyError: There is none by that name, or it is not the one on record.
    """
    parts = PurePosixPath(name).parts
    inside = len(parts) == 4 and parts[:2] == ("audits", "probes") and parts[3] == "summary.json"
    probe = parts[2] if inside else name
    recorded = study.history().summaries
    if probe not in recorded:
        known = ", ".join(sorted(recorded)) or "none"
        raise StudyError(
            f"'{name}' is not a probe summary of {study.task}/{study.name} (known: {known}).",
            "Make one with `assay study probe`; studies share none.",
        )
    found = read_json_document(directory(study, probe) / "summary.json", ProbeSummary)
    if digest_of(found) != recorded[probe].data["hash"]:
        raise StudyError(
            f"The summary of probe '{probe}' is not what was recorded: it was edited.",
            "Summarise the probe again.",
        )
    return found


def _plan(study: Study, history: History, plan_id: str) -> ProbePlan:
    planned = history.plans
    if plan_id not in planned:
        hint = nearest(plan_id, planned) if planned else "There are none yet."
        raise StudyError(f"There is no probe '{plan_id}' in study {study.name}.", hint)
    plan = read_json_document(directory(study, plan_id) / "plan.json", ProbePlan)
    if digest_of(plan) != planned[plan_id].data["hash"]:
        raise StudyError(
            f"The plan of probe '{plan_id}' was edited after it was made.",
            "Take the edit back, or make a new plan.",
        )
    return plan


def _runs(
    study: Study, history: History, agreed: Contract, plan: ProbePlan
) -> dict[float, list[Run]]:
    """Return the finished runs at every value of a plan."""
    since = history.plans[plan.id].seq
    found: dict[float, list[Run]] = {value: [] for value in plan.values}
    for name in study.candidates():
        candidate = study.candidate(name)
        if candidate.kind != "dr-probe" or candidate.probe not in ("", plan.id):
            continue
        value = _probed(candidate.change, plan)
        if value is None:
            if candidate.probe == plan.id:
                raise StudyError(
                    f"Candidate '{name}' names probe '{plan.id}' and does not set "
                    f"{plan.parameter}, alone, to one of its values ({_list(plan.values)}).",
                    "A probe moves one parameter at a time: propose it again.",
                )
            continue
        # A success that was defined once the results were known is none.
        mine = [r for r in history.over(name) if r.outcome != "lost" and r.prepared.seq > since]
        for run in {(run.phase, run.seed): run for run in mine}.values():
            frozen = protocol.registration_hash(candidate, agreed, run.protocol)
            if run.registration != frozen:
                raise StudyError(
                    f"Candidate '{name}', or how it is measured, was changed after run "
                    f"'{run.id}'; that run says nothing about it.",
                    "Take the change back, or propose it as a new candidate.",
                )
            found[value].append(run)
    return found


def _probed(change: Change, plan: ProbePlan) -> float | None:
    """Return the value that a candidate probes, or None if it changes anything else."""
    if change.patch or set(change.parameters) != {plan.parameter}:
        return None
    value = change.parameters[plan.parameter]
    return next((known for known in plan.values if known == value), None)


def _succeeds(run: Run, wanted: Sequence[Condition]) -> bool:
    if run.outcome != "done":
        return False
    for metric, comparison, limit in wanted:
        value = run.metrics.get(metric)
        if value is None or not _COMPARE[comparison](value, limit):
            return False
    return True


def _range(plan: ProbePlan, shares: Mapping[float, float]) -> tuple[float | None, float | None]:
    if shares[plan.nominal] < 1:
        return None, None
    below = sorted((value for value in shares if value < plan.nominal), reverse=True)
    above = sorted(value for value in shares if value > plan.nominal)
    ends = []
    for side in (below, above):
        end = plan.nominal
        for value in side:
            if shares[value] < 1:
                break
            end = value
        ends.append(end)
    return ends[0], ends[1]


def _incidents(runs: Mapping[float, Sequence[Run]]) -> str:
    """Say which runs did not come to their end, and why."""
    all_runs = [(value, run) for value in sorted(runs) for run in runs[value]]
    bad = [
        f"{run.id} at {value:g} {run.outcome} ({run.reason})"
        for value, run in all_runs
        if run.outcome != "done"
    ]
    if not bad:
        return f"All of {len(all_runs)} runs came to their end."
    return f"{len(bad)} of {len(all_runs)} runs did not come to their end: {'; '.join(bad)}."


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
