"""From a repository to a filled contract: what the audit found, and what one timed run showed.

Everything is a proposal. What a person has to decide is listed with the field that holds it. How
far candidates may move a setting is proposed from its type and the value that runs get.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from assay.core.config import parse
from assay.core.errors import nearest
from assay.study.agree import interpreter
from assay.study.agree.scope import pinned
from assay.study.agree.setup import contract_template, refused_by_git
from assay.study.files.contract import PLACEHOLDER, Contract, MetricSource
from assay.study.files.documents import StudyError, read_yaml, write_text
from assay.study.measure.discover import Written, discover
from assay.study.record.opening import open_study
from assay.study.record.study import Study
from assay.study.repo.answers.metrics import promise
from assay.study.repo.proposal import Proposal, ProposedCommand, ProposedParameter
from assay.study.run.recovery import log_tail
from assay.study.run.trial import Trial, try_once

_HEAD = (
    "# The contract of a study, filled in by `assay study start`. Change a field with\n"
    "#   assay study contract set FIELD=VALUE\n"
    "# A person approves its parts: assay study contract approve all --by NAME\n"
)
_SHARE = 0.05  # of the trial's score: what is proposed as the minimum effect
_ROOM = 2.0  # times the trial's time that a run may use
_SPARE = 60.0  # seconds beyond that, for a machine that is busy
_EVALUATED = {"eval", "evaluation", "evaluations", "test", "success", "solved"}
_ENVIRONMENTS = {"env", "env_id", "env_name", "environment", "gym_id", "game"}
_UNKNOWN_OPTION = re.compile(
    r"unrecognized (arguments|options)|no such option|unknown (command line flag|option|argument)",
    re.IGNORECASE,
)
_NOT_A_SCORE = 8  # of `promise`
_WITHOUT_GIT = (
    " In a Git repository with a commit, what runs write to their working directory is kept apart."
)
_SHARES = {
    "gamma", "tau", "lam", "lambda", "discount", "polyak", "fraction", "prob", "probability",
    "epsilon", "eps", "dropout", "ratio", "momentum", "share",
}  # fmt: skip
_SMALLEST_SHARE = 1e-3  # an epsilon below that is an optimizer's
_EPSILON = re.compile(r"(start|end|initial|init|final|min|max)_e$")
# What a run costs, and what makes it another task.
_NO_CHANGE = {
    "total_timesteps", "timesteps", "total_steps", "env_steps", "steps", "epochs", "iterations",
    "num_iterations", "max_steps", "max_timesteps", "num_env_steps", "episodes", "num_episodes",
    "eval_episodes", "threads", "workers", "num_workers", "cuda", "gpu", "device", "save_every",
    "log_every", "eval_every",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a person has to look at before approving it."""

    field: str  # of the contract
    value: Any  # that was filled in
    why: str  # where it comes from


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user may say before the contract is filled in."""

    question: str = ""
    minimum_effect: float | None = None
    candidates: int = 3  # that the error rate is shared by
    seeds: int = 10  # of each deciding phase
    python: str = "{python}"  # the interpreter; by default that of Assay
    settings: Mapping[str, Any] = field(default_factory=dict)  # that all runs are given


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
            self.ask(name, why)

    def wish(self, wishes: Wishes) -> None:
        """Put in what the user said, which is then decided."""
        said = {
            "question": wishes.question or None,
            "metrics.primary.minimum_effect": wishes.minimum_effect,
            "baseline.parameters": dict(wishes.settings) or None,
        }
        for name, value in said.items():
            if value is not None:
                self.put(name, value)
                self.decisions = [d for d in self.decisions if d.field != name]

    def ask(self, name: str, why: str) -> None:
        """Let a person decide on a field as it is."""
        value: Any = self.values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        self.decisions = [d for d in self.decisions if d.field != name]
        self.decisions.append(Decision(name, value, why))


def refuse_python(root: Path, python: str) -> None:
    """Refuse an interpreter that is not there.

    Raises:
        StudyError: Names it.
    """
    if not interpreter.is_there(root, python):
        raise StudyError(
            f"--python: the interpreter '{python}' was not found.",
            "Give the absolute path of the repository's own, or leave it out for the one that runs "
            "Assay.",
        )


def unapproved(root: Path, task: str | None, name: str | None) -> Study | None:
    """Return a study that was only started yet, so that it can be filled in again.

    Without names it is the active one. Where anything of it is approved, and where there is none,
    it is None.
    """
    try:
        study = open_study(root, task, name)
    except StudyError:
        return None
    return None if study.history().approvals else study


def again(study: Study, wishes: Wishes) -> Draft:
    """Return the contract as it is now, with what the user wants, to try it out."""
    made = Draft(read_yaml(study.contract_path)[0])
    made.wish(wishes)
    return made


def refuse_unusable(root: Path, found: Proposal) -> ProposedCommand:
    """Return the training command that a study can use.

    Raises:
        StudyError: The audit found no training command, or one without a seed.
    """
    train = found.train
    if train is None:
        raise StudyError(
            "The audit found no training command in this repository.",
            "Name the script that trains: assay study start train.py",
        )
    for name in ("seed", "out"):
        beside = name == "out" and pinned(root)  # what it writes beside can be moved there
        if name == "out" and not beside and (said := refused_by_git(root)):
            raise StudyError(
                f"Git cannot be used in '{root}', and runs need it to be kept apart: {said}",
                "Do what Git says; where the directory has another owner: git config --global "
                f"--add safe.directory {root}",
            )
        if not beside and not any(f"{{{name}}}" in word for word in train.command):
            raise StudyError(
                f"'{train.documented}' cannot be studied as it is: "
                f"{train.placeholders.get(name, '').removeprefix('none: ')}.",
                f"Give the script an option for it; every run gets its own {{{name}}}."
                + _WITHOUT_GIT * (name == "out"),
            )
    return train


def draft(study: Study, found: Proposal, wishes: Wishes) -> Draft:
    """Return a contract filled in with what the audit found, and with what the user wants.

    Raises:
        StudyError: The audit found no training command, or one without a seed.
    """
    train = refuse_unusable(study.root, found)
    made = Draft(yaml.safe_load(contract_template(study.task, study.name)))
    script = _script(train.command)
    made.put("question", f"Is a change of {script} better?")
    made.ask("question", "nobody has asked yet; --question says it")
    made.put("task.description", f"What {script} trains has a high score.")
    env = _environment(found)
    made.put("task.env", env or "unknown", "" if env else "no environment id was found")
    command = [word.replace("{python}", wishes.python) for word in train.command]
    made.put("baseline.command", command, f"found at {', '.join(train.evidence[:2])}")
    if train.missing:
        made.ask("baseline.command", f"it needs {', '.join(train.missing)} as well")
    made.put("baseline.parameter_format", train.parameter_format or "--{name}={value}")
    _measured_by(made, found, script)
    scope = ranges(found.parameters, wishes.settings)
    why = "what candidates may change; ranges around the values that runs get"
    made.put("scope.parameters", scope, why)
    made.put("experiment.mode", "supervised")
    made.put("experiment.keep", 1.0)
    made.ask("metrics.primary.minimum_effect", "how much better is worth having? --minimum-effect")
    _episodes(made, train.command)
    if not any("{out}" in word for word in train.command):
        made.ask("baseline.outputs", "the script writes to its working directory: name what it "
                 "writes, such as [runs/**/*], or let a trial find it")  # fmt: skip
    made.wish(wishes)
    made.put("budget.parallel", max(1, len(os.sched_getaffinity(0))))
    made.put("evaluation.expected_candidates", wishes.candidates)
    made.put("evaluation.pools.promotion", list(range(1, 1 + wishes.seeds)))
    made.put("evaluation.pools.validation", list(range(1 + wishes.seeds, 1 + 2 * wishes.seeds)))
    best = next((metric for metric in found.metrics if metric.source), None)
    if best is not None and best.source is not None:
        why = "the code names it; no run has shown it yet"
        if best.training_reward:
            why += "; by its name it is a reward of training, and an evaluation's score is better"
        _primary(made, best.name, best.source, why)
        made.put("metrics.primary.direction", best.direction)
    else:
        lack = "no number was found that a run writes"
        if found.metrics:
            first = found.metrics[0]
            lack = f"the code names '{first.name}', but {first.unreadable}"
        why = f"{lack}: name its file and key, or let a trial find them"
        made.ask("metrics.primary.source", why)
    return made


def _episodes(made: Draft, command: Sequence[str]) -> None:
    """Ask how many episodes a score averages; a number that nobody said is not written down."""
    if not any("{episodes}" in word for word in command):
        made.put("evaluation.episodes", None)
    made.ask("evaluation.episodes", "how many episodes one score averages, for the record; empty "
             "where the script evaluates nothing")  # fmt: skip


def _script(command: Sequence[str]) -> str:
    """Return what a command runs: a file, or a module's name."""
    for index, word in enumerate(command):
        if word.endswith(".py"):
            return word
        if word == "-m" and index + 1 < len(command):
            return command[index + 1]
    return command[0]


def _measured_by(made: Draft, found: Proposal, script: str) -> None:
    """Fill in what evaluates, and protect its file."""
    evaluate = found.evaluate
    usable = evaluate is not None and any("{out}" in word for word in evaluate.command)
    if evaluate is not None and usable and _script(evaluate.command) != script:
        made.ask("evaluation.command", "none is run after training; the audit knows "
                 f"'{' '.join(evaluate.command)}'")  # fmt: skip
    if script.endswith(".py"):
        made.put("evaluation.files", [script], "it measures, so no candidate may change it")
    else:
        made.ask("evaluation.files", "name the files that measure; no candidate may change them")


def _environment(found: Proposal) -> str:
    for one in found.parameters:
        name = one.name.rpartition(".")[2].replace("-", "_").lower()
        if name in _ENVIRONMENTS and isinstance(one.default, str):
            return one.default
    return ""


def _primary(made: Draft, name: str, source: MetricSource, why: str) -> None:
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60]
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
    if trial.outputs:
        why = "the trial wrote these to its working directory; they are moved to the run's output"
        made.put("baseline.outputs", list(trial.outputs), why)
    if trial.exit_code in (0, None):
        _learn_metrics(made, discover(trial.out, trial.log))
    if trial.exit_code != 0:
        write(study, made)
        ended = f"exited with {trial.exit_code}"
        if trial.exit_code is None:
            ended = f"did not end within {limit / 60:g} minutes and was stopped"
        tail = log_tail(trial.log.parent)
        raise StudyError(
            f"The training command {ended}: {' '.join(trial.argv)}\n{tail}", _after_failure(tail)
        )
    _learn_budget(made, agreed, trial.seconds)
    return trial


def _after_failure(log: str) -> str:
    """Return what helps after a trial that failed, judged by the end of its log."""
    if _UNKNOWN_OPTION.search(log):
        return (
            "The script does not take one of the options: look at --set and at baseline.command; "
            "assay study audit --json lists the options that it found (proposal.parameters)."
        )
    return (
        "Make it shorter by an option of the script (--set total-timesteps=2000), give it more "
        "time (--minutes 60), or name the repository's own interpreter (--python PATH)."
    )


def _learn_metrics(made: Draft, written: Sequence[Written]) -> None:
    """Take the metric that a study can decide by best, of those that the trial wrote."""
    ranked = sorted(
        (promise(f"{m.source.path} {m.source.key}", 1.0, 0), i) for i, m in enumerate(written)
    )
    useful = [written[i] for rank, i in ranked if rank[0] < _NOT_A_SCORE]
    if not useful:
        keys = sorted({metric.source.key for metric in written})
        listed = ", ".join(keys[:10]) or "no metric"
        made.put("metrics.primary.source.key", f"{PLACEHOLDER} which metric decides")
        made.ask("metrics.primary.source", f"no score was recognised; the trial wrote {listed}")
        return
    best = useful[0]
    others = ", ".join(dict.fromkeys(m.source.key for m in useful[1:6]))
    why = "the trial wrote it" + (f"; it wrote {others} as well" if others else "")
    name = best.source.key
    if best.source.kind == "stdout":  # a pattern: its words are the name
        name = re.split(r"\\[sd]|\(", name)[0].replace("\\", "")
    _primary(made, name, best.source, why)
    said = re.findall("[a-z]+", f"{best.source.path} {best.source.key}".lower())
    if len(best.values) > 1 and not _EVALUATED & set(said):
        made.put("metrics.primary.source.reduce", "tail-mean")
        made.put("metrics.primary.training_reward", True)
        why = "Nothing else is written; the last tenth of the curve is averaged."
        made.put("metrics.primary.why_training_reward", why)
        made.ask("metrics.primary.training_reward", "it is a curve of training; a score of an "
                 "evaluation would be better")  # fmt: skip
    else:
        curve = next((m for m in useful[1:] if len(m.values) > 1), None)
        if curve is not None:
            source = curve.source.model_dump(mode="json", exclude_defaults=True)
            made.put("metrics.training_reward", {"name": "training-reward", "source": source})
    _minimum(made, best.values[-1])


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
    hours = runs * (seconds * _ROOM + _SPARE) / 3600
    made.put("budget.runs", runs + runs // 10)
    made.put(
        "budget.wall_clock_hours",
        float(f"{hours:.2g}"),
        f"{runs} runs; the trial took {seconds:.3g} s, which is doubled, and a minute is added",
    )


def write(study: Study, made: Draft) -> None:
    """Write the contract."""
    text = yaml.safe_dump(made.values, sort_keys=False, allow_unicode=True, width=100)
    write_text(study.contract_path, _HEAD + text)


# ---------------------------------------------------------------------- ranges of settings


def ranges(
    parameters: Iterable[ProposedParameter], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the ranges of a scope, around what `settings` give all runs, or the defaults."""
    found = {one.name: bounds(one, settings.get(one.name, one.default)) for one in parameters}
    return {name: limits for name, limits in found.items() if limits}


def bounds(one: ProposedParameter, value: Any) -> dict[str, Any] | None:
    """Return a range around a setting's value, or None where there is no sensible one.

    The type that the script declares counts: `type=float, default=1` takes fractions.

    Example:
        >>> bounds(ProposedParameter(name="start-e", kind="float"), 1)
        {'kind': 'float', 'low': 0.0, 'high': 1.0}
        >>> bounds(ProposedParameter(name="adam-eps", kind="float"), 1e-5)["high"]
        0.0003
        >>> bounds(ProposedParameter(name="batch-size", kind="int"), 64)
        {'kind': 'int', 'low': 8, 'high': 512}
    """
    name = _plain(one.name.rpartition(".")[2])
    if one.choices:
        return {"kind": "choice", "choices": list(one.choices)}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf or name in _NO_CHANGE:
        return None  # switches are often other tasks, renderers or loggers
    if one.kind == "int" or (one.kind != "float" and isinstance(value, int)):
        return {"kind": "int", "low": max(1, int(value) // 8), "high": int(value) * 8}
    if _SMALLEST_SHARE <= value <= 1 and _is_share(name):
        return {"kind": "float", "low": 0.0, "high": 1.0}
    low, high = (float(f"{value * factor:.1g}") for factor in (1 / 30, 30))
    return {"kind": "float", "low": low, "high": high, "log": True}


def _is_share(name: str) -> bool:
    """Return whether a setting is a probability or a share, which 1 bounds."""
    return bool(_SHARES & {name, *name.split("_")} or _EPSILON.search(name))


def as_spelt(
    parameters: Iterable[ProposedParameter], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return settings as the script spells them, and warnings of those that it does not have.

    The audit may have missed an option, so that an unknown one is not an error yet.
    """
    known = {_plain(one.name): one.name for one in parameters}
    found, odd = {}, []
    for name, value in settings.items():
        found[known.get(_plain(name), name)] = value
        if known and _plain(name) not in known:
            hint = nearest(name, known.values())
            odd.append(f"--set {name}: the audit read no such option of the script. {hint}")
    return found, odd


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
