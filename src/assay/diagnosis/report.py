"""Diagnose a run, a group of runs or a foreign log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import ConfigError
from assay.diagnosis import learning_rules as learning
from assay.diagnosis import outcome_rules as outcome
from assay.diagnosis.case import EVALUATION, RETURN, SEVERITIES, Case, Finding
from assay.diagnosis.reading import read_log, read_run
from assay.evaluation.formatting import number
from assay.runs.directory import group_runs

_LEAST_SEEDS = 3

Rule = Callable[[Case], Finding | None]
# Each looks at one case for one kind of failure, and returns None where it lacks what it reads. Its
# name is that of the finding, and the first line of its docstring is what `assay diagnose --rules`
# prints. The limits were chosen on a few runs, and are measured on others
# (`benchmarks/diagnosis.py`).
RULES: tuple[Rule, ...] = (
    learning.diverged,
    learning.failed,
    learning.loss_explodes,
    learning.values_explode,
    learning.values_do_not_fit,
    learning.temperature,
    learning.learning_rate,
    learning.policy_does_not_move,
    learning.entropy_collapse,
    learning.stays_random,
    learning.kl_spikes,
    learning.clip_fraction,
    learning.discount,
    learning.replay_ratio,
    learning.value_support,
    learning.dead_units,
    learning.stale_normalizer,
    learning.inputs_unscaled,
    outcome.episodes_end_at_once,
    outcome.no_episode_ends,
    outcome.no_reward_signal,
    outcome.always_truncated,
    outcome.never_improves,
    outcome.plateau,
    outcome.collapse_of_returns,
    outcome.evaluation_gap,
    outcome.reward_hacking,
    outcome.slows_down,
    outcome.bottleneck,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found in one run or log.

    Attributes:
        case: What was looked at.
        findings: Errors first, then warnings and infos, each in the order of the rules.
    """

    case: Case
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        case = self.case
        facts = {"path": str(case.source), "kind": case.kind, "columns": case.columns}
        about = ("algorithm", "env", "status", "unit", "count")
        facts |= {name: getattr(case, name) for name in about}
        return facts | {"findings": [one.to_dict() for one in self.findings]}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in all runs that were asked about, and in the group that they are."""

    diagnoses: tuple[Diagnosis, ...]
    group: tuple[Finding, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Return all findings."""
        return [*self.group, *(one for each in self.diagnoses for one in each.findings)]

    @property
    def healthy(self) -> bool:
        """Return whether there is no error."""
        return not any(one.severity == "error" for one in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "healthy": self.healthy,
            "runs": [one.to_dict() for one in self.diagnoses],
            "group": [one.to_dict() for one in self.group],
        }


def diagnose(path: Path, columns: Mapping[str, str] | None = None) -> Report:
    """Diagnose a run directory, a group of them, or another program's log.

    Args:
        path: A run, a group, or a file.
        columns: Assay's name of a metric -> the log's column, where the guess is wrong.

    Raises:
        AssayError: There is nothing that can be read, or a column does not exist.
    """
    if path.is_file():
        return Report((examine(read_log(path, columns)),))
    if columns:
        raise ConfigError(
            "--column has a meaning for another program's log; '" + str(path) + "' is a run.",
            "Leave out --column.",
        )
    cases = [read_run(run) for run in group_runs(path)]
    return Report(tuple(examine(case) for case in cases), tuple(_across_seeds(cases)))


def examine(case: Case) -> Diagnosis:
    """Apply every rule to a case."""
    found = [finding for rule in RULES if (finding := rule(case)) is not None]
    found.sort(key=lambda one: SEVERITIES.index(one.severity))
    return Diagnosis(case, tuple(found))


def _across_seeds(cases: list[Case]) -> list[Finding]:
    """Compare the runs of a group that differ in their seed alone."""
    if len(cases) < _LEAST_SEEDS or len({(case.algorithm, case.env) for case in cases}) > 1:
        return []
    metric = EVALUATION if all(case.get(EVALUATION, 3) for case in cases) else RETURN
    curves = [case.get(metric, 3) for case in cases]
    ends = [float(np.mean(curve[1][-max(1, len(curve[1]) // 5) :])) for curve in curves if curve]
    starts = [one.start for case in cases for one in case.progress if one.metric == metric]
    if len(ends) < len(cases) or not starts:
        return []
    start, middle = float(np.median(starts)), float(np.median(ends))
    gains = np.array(ends) - start
    typical = float(np.max(gains))
    if typical <= 0.1 * abs(start):
        return []
    lost = int((gains < 0.3 * typical).sum())
    if lost == 0 or lost == len(ends):
        return []
    worst = int(np.argmin(ends))
    return [
        Finding(
            "seed_variance", "warning",
            f"{metric} ends between {number(min(ends))} and {number(max(ends))} over "
            f"{len(ends)} seeds (median {number(middle)}); {lost} reached less than a third of the "
            f"best gain, '{cases[worst].source.name}' the least",
            "Whether the run succeeds depends on its seed: exploration or the step size is at the "
            "edge of what works.",
            "Diagnose the worst seed, compare with more seeds, and report all of them.",
            f"assay diagnose {cases[worst].source}", metric, None, float(min(ends)),
        )
    ]  # fmt: skip


def describe(rule: Rule) -> tuple[str, str]:
    """Return a rule's name and what it looks for."""
    text = (rule.__doc__ or "").strip().partition("\n")[0]
    return rule.__name__, re.sub(r"\.$", "", text)
