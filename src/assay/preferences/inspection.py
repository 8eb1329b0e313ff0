"""What answers are like: who agrees with whom, who favours a side, and what was compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import binomtest

from assay.core.types import tree_leaves
from assay.preferences.files import CHOICES, Label, PreferenceSet

_UNLIKELY = 1e-3  # below which a side is favoured, not met by chance
_POOR = 0.2  # Cohen's kappa below which two annotators hardly agree
_ENOUGH = 20  # answers in common by which that is judged
_BINS = 10


@dataclass(frozen=True, slots=True)
class Annotator:
    """The answers of one annotator.

    Attributes:
        name: Who.
        answers: How many.
        choices: How often each choice was made.
        left: Share of the left among those that chose a side; None if none did.
        p_value: Of a side that is favoured this much, if none were.
    """

    name: str
    answers: int
    choices: dict[str, int]
    left: float | None
    p_value: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two annotators say the same about pairs that both answered.

    Attributes:
        one: The first of them.
        other: The second.
        pairs: How many both answered.
        share: On which they agree.
        kappa: Cohen's kappa: 1 is agreement, 0 what chance would give; None if not defined.
    """

    one: str
    other: str
    pairs: int
    share: float
    kappa: float | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` finds.

    Attributes:
        pairs: How many there are.
        labelled: How many have an answer that says something.
        held_out: How many of these are held out.
        annotators: Those who answered.
        agreements: Of every two of them.
        episodes: Episodes in all, and those that a pair with an answer is of.
        coverage: Of each number of the observation, the share of its range that was compared, in
            tenths between the least and the largest value in the episodes.
        flags: What is suspicious, as sentences.
    """

    pairs: int
    labelled: int
    held_out: int
    annotators: list[Annotator]
    agreements: list[Agreement]
    episodes: tuple[int, int]
    coverage: list[float]
    flags: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def inspect(found: PreferenceSet) -> Inspection:
    """Look at the answers of a set."""
    pairs, labels = found.pairs(), found.labels()
    by_annotator: dict[str, dict[str, Label]] = defaultdict(dict)
    for label in labels:
        by_annotator[label.annotator][label.pair] = label
    annotators = [_annotator(name, list(said.values())) for name, said in by_annotator.items()]
    agreements = [
        made
        for one, other in combinations(by_annotator, 2)
        if (made := _agreement(one, other, by_annotator)) is not None
    ]
    decided = {label.pair for label in labels if label.choice != "unsure"}
    episodes, coverage = _coverage(found, decided)
    return Inspection(
        len(pairs), len(decided), sum(pairs[id].held_out for id in decided),
        annotators, agreements, episodes, coverage, [*_flags(annotators, agreements)],
    )  # fmt: skip


def biased(found: PreferenceSet) -> list[str]:
    """Return a sentence about every annotator who favours a side."""
    return [text for text in inspect(found).flags if "favours" in text]


def _annotator(name: str, labels: list[Label]) -> Annotator:
    counts = Counter(label.choice for label in labels)
    left, sides = counts["left"], counts["left"] + counts["right"]
    return Annotator(
        name,
        len(labels),
        {choice: counts[choice] for choice in CHOICES},
        left / sides if sides else None,
        float(binomtest(left, sides).pvalue) if sides else 1.0,
    )


def _agreement(one: str, other: str, said: dict[str, dict[str, Label]]) -> Agreement | None:
    common = [
        (said[one][pair].choice, said[other][pair].choice)
        for pair in said[one]
        if pair in said[other]
        and "unsure" not in (said[one][pair].choice, said[other][pair].choice)
    ]
    if not common:
        return None
    share = sum(a == b for a, b in common) / len(common)
    first, second = (Counter(answers) for answers in zip(*common, strict=True))
    # kappa = (p - q) / (1 - q), q: what two who answer independently would agree on
    chance = sum(first[choice] * second[choice] for choice in first) / len(common) ** 2
    kappa = (share - chance) / (1.0 - chance) if chance < 1.0 else None
    return Agreement(one, other, len(common), share, kappa)


def _coverage(found: PreferenceSet, pairs: set[str]) -> tuple[tuple[int, int], list[float]]:
    """Return how many episodes there are and were compared, and the share of ranges that were."""
    everything: list[np.ndarray[Any, Any]] = []
    compared: list[np.ndarray[Any, Any]] = []
    total = 0
    used: set[tuple[int, int]] = set()
    for batch in found.batches:
        total += batch.dataset.num_episodes
        segments = [s for p in batch.pairs if p.id in pairs for s in (p.left, p.right)]
        by_episode: dict[int, list[int]] = defaultdict(list)
        for segment in segments:
            by_episode[segment.episode].append(segment.start)
        for number, episode in enumerate(batch.dataset.episodes()):
            flat = [leaf[:-1].reshape(episode.steps, -1) for leaf in tree_leaves(episode.obs)]
            rows = np.concatenate(flat, 1).astype(np.float64)
            everything.append(rows)
            for start in by_episode.get(number, ()):
                used.add((batch.number, number))
                compared.append(rows[start : start + found.length])
    if not compared:
        return (total, 0), []
    rows, seen = np.concatenate(everything), np.concatenate(compared)
    low, span = rows.min(0), np.ptp(rows, 0)
    tenth = np.where(span > 0, span, 1.0) / _BINS

    def occupied(values: np.ndarray[Any, Any]) -> list[int]:
        bins = np.minimum((values - low) / tenth, _BINS - 1).astype(np.int64)
        return [len(np.unique(column)) for column in bins.T]

    shares = [a / b for a, b in zip(occupied(seen), occupied(rows), strict=True)]
    return (total, len(used)), shares


def _flags(annotators: list[Annotator], agreements: list[Agreement]) -> list[str]:
    flags = []
    said = sum((Counter(one.choices) for one in annotators), Counter[str]())
    if said["equal"] and not said["left"] + said["right"]:
        flags.append(
            f"All {said['equal']} answers are equal: nothing to learn from. Sample longer segments "
            "or other episodes."
        )
    for one in annotators:
        if one.left is not None and one.p_value < _UNLIKELY:
            sides = one.choices["left"] + one.choices["right"]
            side = "left" if one.left > 0.5 else "right"
            flags.append(
                f"'{one.name}' favours the {side}: {one.choices[side]} of {sides} answers "
                f"(p = {one.p_value:.1g}). Fit without them: --without {one.name}"
            )
    flags += [
        f"'{one.one}' and '{one.other}' hardly agree: kappa {one.kappa:.2f} on {one.pairs} pairs."
        for one in agreements
        if one.kappa is not None and one.kappa < _POOR and one.pairs >= _ENOUGH
    ]
    return flags
