"""What a repository measures, and what of it could get worse unnoticed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.study.files.records import Answer
from assay.study.repo.answers import settings
from assay.study.repo.answers.ranking import THRESHOLD, Found, ranked
from assay.study.repo.calls import is_metric
from assay.study.repo.files import words
from assay.study.repo.repository import Repository
from assay.study.repo.walk import Facts
from assay.study.repo.words import AXES, GUARDRAIL_WORDS, HANDS_ON, NO_GUARDRAIL, OUTCOME_WORDS

METRICS, GUARDRAILS = 250, 100
_GUARDRAIL_PAIRS = (
    {"action", "rate"}, {"action", "smooth"}, {"dof", "acc"}, {"joint", "acc"}, {"out", "bounds"},
    {"off", "track"}, {"bad", "orientation"}, {"error", "vel"}, {"action", "acc"},
)  # fmt: skip
# What could be a study's primary metric comes first.
_PROMISING = (
    {"success", "solved", "score", "winrate"}, {"return", "returns", "reward", "rewards"},
    {"length", "error", "tracking"},
)  # fmt: skip


def metrics(repo: Repository) -> tuple[Answer, ...]:
    """Return the names under which results are logged, the most promising first."""
    printed = [a.value for a in settings.logging(repo)] == ["stdout"]
    found = []
    for fact in repo.searched():
        nearby = fact.path in repo.own
        for hit in fact.metrics:
            name = hit.name
            if name.startswith("stdout:"):
                if not printed:
                    continue
                name = name.removeprefix("stdout:")
            if _measures(name):
                confidence = hit.confidence - (0.0 if nearby else 0.1)
                found.append(Found(name, f"{fact.path}:{hit.line}", confidence))
    found += _handed_on(repo)
    return ranked(found, METRICS, key=_promise)


def _handed_on(repo: Repository) -> Iterable[Found]:
    """Yield the keys of dictionaries that one function returns and another logs."""
    makers: dict[str, list[Facts]] = {}
    for fact in repo.searched():
        for function, keys in fact.returned.items():
            if keys:
                makers.setdefault(function, []).append(fact)
    for fact in repo.searched():
        for logged in fact.logged:
            # `to_dict` gives settings back as well, and what is not used here is another's.
            used = {item.path for item in repo.closure(fact.path, 6)}
            used |= repo.own if fact.path in repo.own else set()
            named = set(words(logged.function))
            function = logged.function.rpartition(".")[2]
            known = [
                maker
                for maker in makers.get(function, [])
                if maker.path in used
                and HANDS_ON & (named | set(words(maker.path.rpartition("/")[2])))
            ]
            if not known and is_metric(logged.instead) and _measures(logged.instead):
                place = f"{fact.path}:{logged.line}"
                yield Found(logged.instead, place, max(logged.confidence - 0.1, 0.5))
            own = [maker for maker in known if maker is fact]
            for maker in own or known:
                for hit in maker.returned[function]:
                    name = logged.template.replace("{}", hit.name)
                    if is_metric(name) and _measures(name):
                        sure = logged.confidence - (0.0 if own else 0.15)
                        yield Found(name, f"{maker.path}:{hit.line}", max(sure, 0.5))


def guardrails(repo: Repository, metrics: Iterable[Answer]) -> tuple[Answer, ...]:
    """Return the measures that must not get worse: logged, in an info, or terms of a reward."""
    extra = set(repo.hints.guardrails)
    found = [
        Found(answer.value, place, max(answer.confidence * 0.9, THRESHOLD), "logged")
        for answer in metrics
        for place in answer.evidence[:1]
        if _guards(str(answer.value), extra)
    ]
    for fact in repo.searched():
        for hit in fact.infos:
            if _guards(hit.name, extra):
                place = f"{fact.path}:{hit.line}"
                found.append(Found(hit.name, place, min(hit.confidence, 0.65), "info"))
        for slot, name, _, line in fact.terms:
            if name and slot in ("reward", "termination") and _guards(name, extra):
                place = f"{fact.path}:{line}"
                found.append(Found(name, place, 0.6, f"{slot} term"))
    return ranked(found, GUARDRAILS, noted=True)


def _guards(name: str, extra: set[str]) -> bool:
    named = set(words(name))
    if named & NO_GUARDRAIL:
        return False
    return bool(named & (GUARDRAIL_WORDS | extra)) or any(p <= named for p in _GUARDRAIL_PAIRS)


def _measures(name: str) -> bool:
    """Return whether a logged name is a metric, and no axis such as `time/step`."""
    group, _, last = name.lower().replace(" ", "_").rpartition("/")
    if not re.search("[A-Za-z]{2}", name):
        return False
    # `rewards/step` is the reward by steps.
    return last not in AXES or bool(set(words(group)) & (OUTCOME_WORDS | {"length", "lengths"}))


def _promise(name: str) -> int:
    named = set(words(name))
    for rank, group in enumerate(_PROMISING):
        if named & group:
            return rank * 2 + (0 if named & {"eval", "evaluation", "test", "episodic"} else 1)
    return 9
