"""Where candidates come from: a file that someone wrote, or a sampler inside the approved scope."""

from __future__ import annotations

import importlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.core.config import parse
from assay.core.errors import MissingExtraError
from assay.study.agree.rules import refuse_unreflected
from assay.study.agree.scope import refuse_scope
from assay.study.files.base import Phase
from assay.study.files.candidate import BudgetRequest, Candidate, Change
from assay.study.files.contract import placeholders
from assay.study.files.documents import StudyError, read_yaml
from assay.study.record.study import Study
from assay.study.steps import candidates


def from_file(study: Study, path: Path, actor: str) -> list[str]:
    """Propose the candidates of a YAML file: one, a list, or several documents.

    All are checked before the first is written. `task` and `study` may be left out.

    Raises:
        StudyError: The file is malformed, or holds none.
    """
    found = [
        parse(Candidate, {"task": study.task, "study": study.name} | values, what=f"'{path}'")
        for values in _flat(read_yaml(path), path)
    ]
    if not found:
        raise StudyError(f"'{path}' holds no candidate.")
    for candidate in found:
        left = placeholders(candidate.model_dump(mode="json"))
        if left:
            raise StudyError(
                f"'{path}', candidate '{candidate.id}': still to be filled in: {', '.join(left)}.",
                "Write what the template asks for there; it is recorded before the first run.",
            )
    counts = Counter(candidate.id for candidate in found)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise StudyError(f"'{path}' names '{twice[0]}' twice.")
    for candidate in found:
        if candidate.kind == "reward-engineering" and not candidate.reflection:
            refuse_unreflected(study, study.contract(), candidate)
    candidates.propose_all(study, found, actor)
    return [candidate.id for candidate in found]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change as it is typed on the command line."""

    parameters: dict[str, Any]
    patch: str = ""
    name: str | None = None  # by default made of what changes
    hypothesis: str = ""


def from_change(study: Study, proposal: Proposal, request: BudgetRequest, actor: str) -> str:
    """Propose one change of settings or code; return the candidate's name.

    Raises:
        StudyError: There is no reason for it, it is malformed, or it is out of scope.
    """
    if not proposal.hypothesis.strip():
        raise StudyError(
            "A candidate needs a hypothesis: why should it be better?",
            "Say it with --hypothesis TEXT. It is recorded before the first run.",
        )
    agreed = study.contract()
    metric = agreed.metrics.primary
    values = {
        "id": proposal.name or _named(study, proposal),
        "task": study.task,
        "study": study.name,
        "kind": "hyperparameter",
        "hypothesis": proposal.hypothesis,
        "change": {"parameters": proposal.parameters, "patch": proposal.patch},
        "budget": request.model_dump(),
        "expected": f"{metric.name} improves by at least {metric.minimum_effect:g}",
        "rollback": "Keep the incumbent's settings and code.",
        "proposer": actor,
    }
    candidate = parse(Candidate, values, what="the proposed change")
    refuse_scope(study, agreed, candidate)
    candidates.propose(study, candidate, actor)
    return candidate.id


def read_patch(path: Path | None) -> str:
    """Return a patch's text, "" without one.

    Raises:
        StudyError: It cannot be read.
    """
    if path is None:
        return ""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"The patch '{path}' cannot be read: {error}.") from None


def _named(study: Study, proposal: Proposal) -> str:
    """Return a name that says what changes, and that is free."""
    words = [f"{key}-{value}" for key, value in proposal.parameters.items()] or ["patch"]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-._")[:36] or "change"
    taken = study.book()[0].status
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(free for free in numbered if free not in taken)


def _flat(documents: list[Any], path: Path) -> Iterator[dict[str, Any]]:
    for document in documents:
        for values in document if isinstance(document, list) else [document]:
            if not isinstance(values, dict):
                raise StudyError(
                    f"'{path}' holds {type(values).__name__} where a candidate is expected."
                )
            yield values


def from_optuna(
    study: Study, count: int, budget: BudgetRequest, actor: str, *, phase: Phase = "short"
) -> list[str]:
    """Propose settings sampled by Optuna inside the approved scope.

    The sampler is told of every candidate that has results in `phase`, so that a fresh process
    goes on where the last one was; nothing is kept but the ledger.

    Raises:
        StudyError: The scope has no parameters.
        MissingExtraError: Optuna is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise MissingExtraError("optuna", "study", "Sampling candidates") from None
    agreed = study.contract()
    if not agreed.scope.parameters:
        raise StudyError(
            "The approved scope has no parameters to sample.", "Add some to scope.parameters."
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    history = study.history()
    known = history.status
    mine = [name for name in known if study.candidate(name).proposer == "optuna"]
    direction = agreed.metrics.primary.direction
    # Seeded by how much has been proposed: the same record gives the same next candidates.
    sampler = optuna.samplers.TPESampler(seed=len(mine), constant_liar=True)
    search = optuna.create_study(direction=direction, sampler=sampler)
    space = {name: _distribution(optuna, p) for name, p in agreed.scope.parameters.items()}
    for name in known:
        values = study.candidate(name).change.parameters
        scores = history.arm(name, phase, agreed.metrics.primary.name)
        numbers = [score for score in scores.values() if score is not None]
        if set(values) == set(space) and numbers:
            trial = optuna.trial.create_trial(
                params=values, distributions=space, value=sum(numbers) / len(numbers)
            )
            search.add_trial(trial)
    made = []
    for i in range(count):
        trial = search.ask(space)
        name = f"optuna-{len(mine) + i + 1:03d}"
        candidate = Candidate(
            id=name,
            task=study.task,
            study=study.name,
            kind="hyperparameter",
            hypothesis="A sampled setting is better than the incumbent's.",
            change=Change(parameters=dict(trial.params)),
            budget=budget,
            expected=f"{agreed.metrics.primary.name} improves",
            rollback="Keep the incumbent's settings.",
            proposer="optuna",
        )
        made.append(candidate)
    candidates.propose_all(study, made, actor)
    return [candidate.id for candidate in made]


def _distribution(optuna: Any, parameter: Any) -> Any:
    if parameter.kind == "choice":
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    if parameter.kind == "int":
        return optuna.distributions.IntDistribution(
            int(parameter.low), int(parameter.high), log=parameter.log
        )
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.log)
