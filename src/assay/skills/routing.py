"""A scripted model that routes queries to skills by their words, and how well it does.

It sees what a host lists: the name and the description of each skill. BM25 (Robertson and Zaragoza,
2009) over their words scores them, and the best takes the query, if it has a score of at least
`LEAST`. It knows no synonyms and reads nothing: where it routes well, the descriptions have the
words that people type. A real model does better; a description that fails here has to rely on it.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.skills import evals
from assay.skills.evals import Query
from assay.skills.library import LIBRARY, Skill, plugins

K1, B = 1.2, 0.75  # of BM25, the usual ones
LEAST = 3.0  # below it, no skill takes a query
_WORD = re.compile(r"[a-z0-9&+]+")
_STOP = frozenset(
    "a an and are as at be by can do does for from has have how i if in into is it its me my no "
    "not of on one or our so that the their them there this to up use used we what when which who "
    "why will with you your".split()
)
_ENDINGS = ("isation", "ization", "ations", "ation", "ings", "ing", "ies", "ed", "es", "s", "e")
KINDS = ("none", "ci", "all")  # of cases to run


def words(text: str) -> list[str]:
    """Return the words of a text without endings, and without those that every text has.

    Example:
        >>> words("Checkpoints are resumed; tuning of the learning rates")
        ['checkpoint', 'resum', 'tun', 'learn', 'rat']
    """
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


class Router:
    """BM25 over the names and descriptions of skills."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._names = [skill.name for skill in skills]
        texts = (f"{skill.name} {skill.description}" for skill in skills)
        self._counts = [Counter(words(text)) for text in texts]
        self._mean = sum(c.total() for c in self._counts) / max(1, len(skills))
        seen = Counter(word for counts in self._counts for word in counts)
        size = len(skills)
        self._rarity = {w: math.log(1 + (size - n + 0.5) / (n + 0.5)) for w, n in seen.items()}

    def scores(self, query: str) -> dict[str, float]:
        """Return the score of every skill for a query."""
        asked = set(words(query)) & set(self._rarity)
        return {
            name: sum(self._score(counts, word) for word in asked)
            for name, counts in zip(self._names, self._counts, strict=True)
        }

    def _score(self, counts: Counter[str], word: str) -> float:
        # idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean length))
        n, length = counts[word], counts.total() / self._mean
        return self._rarity[word] * n * (K1 + 1) / (n + K1 * (1 - B + B * length))

    def route(self, query: str) -> str | None:
        """Return the skill that takes a query; the first by name among equals."""
        scores = self.scores(query)
        best = min(scores, key=lambda name: (-scores[name], name))
        return best if scores[best] >= LEAST else None


@dataclass(frozen=True, slots=True)
class Tally:
    """How a skill was routed to."""

    right: int = 0  # its queries that it took
    missed: int = 0  # its queries that another took, or none
    wrong: int = 0  # queries of others that it took

    @property
    def precision(self) -> float:
        """Return the share of the queries it took that are its own; 1 if it took none."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Return the share of its own queries that it took."""
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


@dataclass(frozen=True, slots=True)
class Routing:
    """How all queries were routed."""

    tallies: Mapping[str, Tally]
    misrouted: tuple[tuple[Query, str | None], ...]  # and the skill that took it
    near_misses: int
    near_misses_left: int  # those that the skill of their file did not take
    queries: int

    @property
    def accuracy(self) -> float:
        """Return the share of queries that went to their skill, or to none where none is right."""
        return 1 - len(self.misrouted) / self.queries if self.queries else 1.0


def measure(skills: Sequence[Skill], queries: Iterable[Query]) -> Routing:
    """Route queries among skills, and count."""
    router = Router(skills)
    tallies = {skill.name: [0, 0, 0] for skill in skills}
    every = list(queries)
    misrouted: list[tuple[Query, str | None]] = []
    left = 0
    for query in every:
        found = router.route(query.text)
        if not query.taken and found != query.skill:
            left += 1
        if found == query.owner:
            if found is not None:
                tallies[found][0] += 1
            continue
        misrouted.append((query, found))
        if query.owner in tallies:
            tallies[query.owner][1] += 1
        if found is not None:
            tallies[found][2] += 1
    near = sum(not query.taken for query in every)
    done = {name: Tally(*counts) for name, counts in tallies.items()}
    return Routing(done, tuple(misrouted), near, left, len(every))


# ---------------------------------------------------------------------- a whole library


def routing(root: Path = LIBRARY) -> Routing:
    """Route every query of a library among all its skills.

    Raises:
        SkillsError: Evaluations are malformed.
    """
    skills = [skill for plugin in plugins(root) for skill in plugin.skills]
    found = (evals.read(skill.path) for skill in skills)
    return measure(skills, [query for each in found if each for query in each.queries])


def outcomes(skills: Sequence[Skill], kind: str) -> Iterator[evals.Outcome]:
    """Run cases of skills, each in a temporary directory of its own."""
    for skill in skills if kind != "none" else ():
        found = evals.read(skill.path)
        for case in found.cases if found else ():
            if kind == "all" or case.ci:
                with tempfile.TemporaryDirectory(prefix="assay-skill-") as name:
                    yield evals.run(case, skill.path, Path(name))
