"""Names of metrics that are put together when a program runs: `{phase}/reward`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.study.repo.answers.ranking import Found
from assay.study.repo.files import words
from assay.study.repo.measures import is_metric
from assay.study.repo.repository import Repository

_PLACE = re.compile(r"\{(\w+)\}")
_VALUES = 6  # of one place
# What a name consists of that says no more than that it is an outcome.
_OUTCOMES = ("reward", "return", "returns", "score")
# Names of variables that are given other things elsewhere.
_ANY = {"name", "key", "k", "tag", "metric", "n", "i", "label", "title", "id", "env", "env_id"}
_WHERE = {"eval", "evaluation", "test", "val", "episode", "rollout", "train"}


def filled(repo: Repository, found: Iterable[Found]) -> list[Found]:
    """Return the names with what calls and defaults put into their places."""
    open_names = [item for item in found if _PLACE.search(str(item.value))]
    if not open_names:
        return []
    values = _values(repo)
    plain = {str(item.value) for item in found if repo.distance(item.place) == 0}
    made = []
    for item in open_names:
        for name in _fill(str(item.value), values, plain):
            if is_metric(name):
                made.append(Found(name, item.place, min(item.confidence + 0.15, 0.9), item.note))
    return made


def _fill(name: str, values: dict[str, list[str]], plain: set[str]) -> list[str]:
    """Return what a name can become; none where a place stays open."""
    names = [name]
    for place in dict.fromkeys(_PLACE.findall(name)):
        known = values.get(place, [])
        if not known and _WHERE & set(words(_PLACE.sub("", name))):
            # `eval/episode_{key}`, where the rewards are among what is summed up.
            known = [outcome for outcome in _OUTCOMES if outcome in plain][:1]
        names = [n.replace(f"{{{place}}}", text) for n in names for text in known[:_VALUES]]
    return names


def _values(repo: Repository) -> dict[str, list[str]]:
    """Return the strings that arguments and variables get, by their names."""
    values: dict[str, dict[str, None]] = {}
    for fact in repo.relevant():
        for name, texts in fact.texts.items():
            if name not in _ANY:
                values.setdefault(name, {}).update(dict.fromkeys(texts))
        for call in fact.spoken:
            for argument, text in call.texts:
                if (
                    isinstance(argument, str)
                    and argument not in _ANY
                    and re.fullmatch(r"[\w-]+", text)
                ):
                    values.setdefault(argument, {}).setdefault(text)
    return {name: list(texts) for name, texts in values.items()}
