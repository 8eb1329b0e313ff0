"""From a repository to a filled contract: what the audit found, and what one timed run showed.

Everything is a proposal. What a person has to decide is listed with the field that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from assay.core.config import parse
from assay.study.agree.setup import contract_template
from assay.study.files.contract import PLACEHOLDER, Contract, MetricSource
from assay.study.files.documents import StudyError, write_text
from assay.study.measure.discover import Written, discover
from assay.study.record.study import Study
from assay.study.repo.ready import Ready, Setting, outcome_rank
from assay.study.run.trial import Trial, try_once

_HEAD = (
    "# The contract of a study, filled in by `assay study start`. Change a field with\n"
    "#   assay study contract set FIELD=VALUE\n"
    "# A person approves its parts: assay study contract approve all --by NAME\n"
)
_SHARE = 0.05  # of the trial's score: what is proposed as the minimum effect
_ROOM = 2.0  # times the trial's time that a run may use
_EVALUATED = {"eval", "evaluation", "test", "success", "solved"}


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a person has to look at before approving it."""

    field: str  # of the contract
    value: Any  # that was filled in
    why: str  # where it comes from


@dataclass(slots=True)
class Draft:
    """A contract on its way."""

    values: dict[str, Any]
    decisions: list[Decision] = field(default_factory=list)

    def put(self, name: str, value: Any, why: str = "") -> None:
        """Set a field by its dotted name; with a reason it is a person's to decide."""
        *parents, last = name.split(".")
        place = self.values
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = value
        if why:
            self.decisions = [d for d in self.decisions if d.field != name]
            self.decisions.append(Decision(name, value, why))


def draft(study: Study, ready: Ready, question: str, minimum_effect: float | None) -> Draft:
    """Return a contract filled in with what the audit found.

    Raises:
        StudyError: The audit found no training command.
    """
    if not ready.train:
        raise StudyError(
            "The audit found no training command in this repository.",
            "Name the script: assay study start --script train.py",
        )
    made = Draft(yaml.safe_load(contract_template(study.task, study.name)))
    script = ready.script or " ".join(ready.train)
    made.put("question", question or f"Is a change of {script} better?", "asked by nobody yet")
    if question:
        made.decisions.clear()
    made.put("task.description", f"{script} reaches a high score.")
    made.put("task.env", ready.env or "not named", "" if ready.env else "no environment id found")
    made.put("baseline.command", list(ready.train), f"found in {', '.join(ready.evidence[:2])}")
    made.put("baseline.parameter_format", ready.parameter_format or "--{name}={value}")
    if ready.evaluate:
        made.put("evaluation.command", list(ready.evaluate), "run after each training")
    files = list(ready.measuring) or [script]
    made.put("evaluation.files", files, "these measure, so no candidate may change them")
    scope = {setting.name: bounds for setting in ready.settings if (bounds := _bounds(setting))}
    made.put("scope.parameters", scope, "what candidates may change, from the defaults")
    made.put("experiment.mode", "supervised")
    made.put("experiment.keep", 1.0)
    if minimum_effect is not None:
        made.put("metrics.primary.minimum_effect", minimum_effect)
    source = next(iter(ready.sources), None)
    if source is not None:
        _primary(made, source, "named by the code; no run has shown it yet")
    return made


def _bounds(setting: Setting) -> dict[str, Any] | None:
    """Return a range around a setting's default, or None where there is no sensible one."""
    value = setting.default
    if setting.choices:
        return {"kind": "choice", "choices": list(setting.choices)}
    if isinstance(value, bool):
        return {"kind": "choice", "choices": [True, False]}
    if isinstance(value, int) and value > 0:
        return {"kind": "int", "low": max(1, value // 8), "high": value * 8}
    if isinstance(value, float) and value > 0:
        if value < 1 and setting.name.rpartition(".")[2] in ("gamma", "tau", "gae_lambda", "lam"):
            return {"kind": "float", "low": 0.0, "high": 1.0}
        return {"kind": "float", "low": value / 30, "high": value * 30, "log": True}
    return None


def _primary(made: Draft, source: MetricSource, why: str) -> None:
    name = source.key.rpartition("/")[2] if source.kind != "stdout" else source.key.split("\\")[0]
    clean = "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip("-._")[:60]
    made.put("metrics.primary.name", clean or "score")
    plain = source.model_dump(mode="json", exclude_defaults=True)
    made.put("metrics.primary.source", plain, why)


def provisional(made: Draft, path: str) -> Contract:
    """Return the contract as far as a trial needs it."""
    values = yaml.safe_load(yaml.safe_dump(made.values))
    if str(values["metrics"]["primary"]["source"].get("key", "")).startswith(PLACEHOLDER):
        values["metrics"]["primary"]["source"]["key"] = "unknown"
    return parse(Contract, values, what=f"'{path}'")


def learn(made: Draft, study: Study, limit: float, actor: str) -> Trial:
    """Run the training command once, and fill in what it shows: metrics, time, budget.

    Raises:
        StudyError: It failed; the end of its log is shown.
    """
    agreed = provisional(made, str(study.contract_path))
    seed = agreed.evaluation.pools.development[0]
    trial = try_once(study, agreed, seed, limit, actor)
    if trial.exit_code != 0:
        ended = f"exited with {trial.exit_code}"
        if trial.exit_code is None:
            ended = f"did not end within {limit / 60:g} minutes and was stopped"
        raise StudyError(
            f"The training command {ended}: {' '.join(trial.argv)}\n{_tail(trial)}",
            "Correct baseline.command (assay study contract set), shorten the run, or give it "
            "more time with --minutes.",
        )
    _learn_metrics(made, discover(trial.out, trial.log))
    _learn_budget(made, agreed, trial.seconds)
    return trial


def _tail(trial: Trial) -> str:
    lines = trial.log.read_text(errors="replace").splitlines()[-8:]
    return "\n".join([f"  log: {trial.log}", *(f"  | {line[:300]}" for line in lines)])


def _learn_metrics(made: Draft, written: Sequence[Written]) -> None:
    ranked = sorted(written, key=lambda metric: outcome_rank(metric.source))
    useful = [metric for metric in ranked if outcome_rank(metric.source) < math.inf]
    if not useful:
        listed = ", ".join(sorted({metric.source.key for metric in written})[:10]) or "nothing"
        made.put(
            "metrics.primary.source.key",
            f"{PLACEHOLDER} which metric decides",
            f"no score was recognised in what the trial wrote ({listed})",
        )
        return
    best = useful[0]
    others = ", ".join(dict.fromkeys(m.source.key for m in useful[1:6]))
    _primary(made, best.source, "the trial wrote it" + (f"; also: {others}" if others else ""))
    evaluated = bool(_EVALUATED & set(_words(best.source))) or best.points == 1
    if best.points > 1 and not evaluated:
        made.put("metrics.primary.source.reduce", "tail-mean")
        made.put("metrics.primary.training_reward", True)
        made.put(
            "metrics.primary.why_training_reward",
            "Nothing else is written; the last tenth of the training curve is averaged.",
            "the only score is the one that is trained on; a separate evaluation is better",
        )
    training = next((m for m in useful[1:] if m.points > 1), None)
    if evaluated and training is not None:
        made.put("metrics.training_reward", {
            "name": "training-reward",
            "source": training.source.model_dump(mode="json", exclude_defaults=True),
        })  # fmt: skip
    if not any(d.field == "metrics.primary.minimum_effect" for d in made.decisions):
        _minimum(made, best.last)


def _words(source: MetricSource) -> list[str]:
    text = f"{source.path} {source.key}".lower()
    return "".join(c if c.isalpha() else " " for c in text).split()


def _minimum(made: Draft, score: float) -> None:
    if made.values["metrics"]["primary"].get("minimum_effect") != 1.0:
        return  # the user's own
    effect = float(f"{max(abs(score) * _SHARE, 1e-6):.1g}")
    made.put(
        "metrics.primary.minimum_effect", effect, f"{_SHARE:.0%} of the trial's score {score:.4g}"
    )


def _learn_budget(made: Draft, agreed: Contract, seconds: float) -> None:
    pools = agreed.evaluation.pools
    expected = agreed.evaluation.expected_candidates
    deciding = len(pools.promotion) + len(pools.validation)
    runs = deciding * (1 + expected) + len(pools.development) * expected
    hours = max(runs * seconds * _ROOM / 3600, 0.01)
    made.put("budget.runs", runs + runs // 10)
    made.put(
        "budget.wall_clock_hours",
        float(f"{hours:.2g}"),
        f"{runs} runs of {seconds:.3g} s each (the trial's time), doubled",
    )


def write(study: Study, made: Draft) -> None:
    """Write the contract."""
    text = yaml.safe_dump(made.values, sort_keys=False, allow_unicode=True, width=100)
    write_text(study.contract_path, _HEAD + text)
