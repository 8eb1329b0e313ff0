"""Comparisons on the disk: which segments are compared, and what was answered.

A directory with `set.json`; for every call of `sample` a batch, `batch-0001.npz` (whole episodes, a
dataset as any other) and `batch-0001.json` (the pairs, written last); and `labels.jsonl`, to which
answers are appended. An answer is taken back by another line. What is torn at the end of that file
is left out.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from assay.core.errors import DataError, RunError, nearest
from assay.core.wording import counted
from assay.data.dataset import Dataset
from assay.data.files import load, save
from assay.runs.files import dump_json, read_json_object, run_error, write_atomic

FORMAT = "assay-preferences"
SCHEMA = 1
SET_FILE = "set.json"
LABELS = "labels.jsonl"
UNDO = "undo"  # in place of a choice: the annotator's answer does not count any more

Choice = Literal["left", "right", "equal", "unsure"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
TARGETS: dict[str, float] = {"left": 1.0, "right": 0.0, "equal": 0.5}  # of those that say something


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one episode of a batch, as many as the set says."""

    batch: int
    episode: int
    start: int

    @property
    def name(self) -> str:
        """Return a name that is unique in its set."""
        return f"{self.batch}-{self.episode}-{self.start}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two segments to compare."""

    id: str  # unique in its set, such as `2-17`
    left: Segment  # one of them
    right: Segment  # the other one
    # Whether it is kept to measure models by, and none is fitted to it: both segments are of
    # episodes that all other pairs leave alone.
    held_out: bool


@dataclass(frozen=True, slots=True)
class Label:
    """What somebody answered."""

    pair: str
    choice: Choice
    annotator: str


class Batch:
    """The pairs of one call of `sample`, and the episodes that they are of."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self.facts = read_json_object(path.with_suffix(".json"))
        held = set(self.facts["held_out"])
        self.pairs = [
            Pair(
                f"{number}-{index}",
                Segment(number, *left),
                Segment(number, *right),
                left[0] in held,
            )
            for index, (left, right) in enumerate(self.facts["pairs"])
        ]

    @cached_property
    def dataset(self) -> Dataset:
        """Return the episodes."""
        return load(self.path.with_suffix(".npz"))

    def seed(self, episode: int) -> int | None:
        """Return what an episode was reset with, or None if that is not known."""
        found = self.facts["seeds"][episode]
        return None if found is None else int(found)


class PreferenceSet:
    """Segments, pairs and answers of one environment.

    Attributes:
        path: The directory.
        facts: What `set.json` says: `env`, `env_settings`, and `length`, the steps of a segment.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        self._batches: dict[int, Batch] = {}

    @classmethod
    def open(cls, path: Path | str) -> PreferenceSet:
        """Return the set in a directory.

        Raises:
            DataError: There is none, or it is from a newer Assay.
        """
        place = Path(path)
        if not (place / SET_FILE).is_file():
            raise DataError(
                f"There are no preferences at '{place}': '{SET_FILE}' is missing.",
                "Make them with assay prefer sample RUN --out DIRECTORY.",
            )
        facts = read_json_object(place / SET_FILE)
        if facts.get("format") != FORMAT or facts.get("schema", 0) > SCHEMA:
            raise DataError(
                f"'{place / SET_FILE}' is not one of this version of Assay.", "Upgrade Assay."
            )
        return cls(place, facts)

    @classmethod
    def begin(cls, path: Path | str, facts: Mapping[str, Any]) -> PreferenceSet:
        """Return the set in a directory, which is made if there is none.

        Args:
            path: The directory.
            facts: `env`, `env_settings` and `length`.

        Raises:
            DataError: There is one of another environment, or of segments of another length.
        """
        place = Path(path)
        if (place / SET_FILE).is_file():
            found = cls.open(place)
            for name, value in facts.items():
                if found.facts[name] != value:
                    raise DataError(
                        f"'{place}' holds pairs with {name}={found.facts[name]}, and these have "
                        f"{name}={value}.",
                        "Compare segments of one environment and one length; choose another --out.",
                    )
            return found
        made = {"format": FORMAT, "schema": SCHEMA, **facts}
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_atomic(place / SET_FILE, dump_json(made, indent=1))
        except OSError as error:
            raise run_error(error, f"write '{place}'") from None
        return cls(place, made)

    @property
    def length(self) -> int:
        """Return the steps of a segment."""
        return int(self.facts["length"])

    # Pairs

    @property
    def batches(self) -> list[Batch]:
        """Return the batches, oldest first."""
        for path in sorted(self.path.glob("batch-*.json")):
            number = int(path.stem.partition("-")[2])
            if number not in self._batches:
                self._batches[number] = Batch(path, number)
        return [self._batches[number] for number in sorted(self._batches)]

    def pairs(self) -> dict[str, Pair]:
        """Return all pairs by their ids, in the order in which they were made."""
        return {pair.id: pair for batch in self.batches for pair in batch.pairs}

    def add_batch(self, dataset: Dataset, facts: Mapping[str, Any]) -> Batch:
        """Write episodes and the pairs of their segments.

        Args:
            dataset: The episodes.
            facts: `pairs`, a list of two `(episode, start)` each; `held_out`, the episodes that
                models are measured by; `seeds` of episodes; `asked`, what they were sampled by.
        """
        number = 1 + max((batch.number for batch in self.batches), default=0)
        stem = self.path / f"batch-{number:04d}"
        save(dataset, stem.with_suffix(".npz"))
        content = {**facts, "sha256": dataset.content_hash}
        write_atomic(stem.with_suffix(".json"), dump_json(content))
        return Batch(stem, number)

    # Answers

    def labels(self) -> list[Label]:
        """Return the answers that count, in the order of pairs and annotators.

        Raises:
            DataError: A line is of another kind; it is named.
        """
        found: dict[tuple[str, str], Label] = {}
        for number, line in self._lines():
            pair, choice, who = (str(line.get(key)) for key in ("pair", "choice", "annotator"))
            if choice == UNDO:
                found.pop((pair, who), None)
            elif choice in CHOICES:
                found[pair, who] = Label(pair, choice, who)
            else:
                raise DataError(
                    f"Line {number} of '{self.path / LABELS}' has choice='{choice}'.",
                    f"Expected {', '.join(CHOICES)} or {UNDO}.",
                )
        order = {pair: index for index, pair in enumerate(self.pairs())}
        known = [one for one in found.values() if one.pair in order]
        return sorted(known, key=lambda one: (order[one.pair], one.annotator))

    def unlabelled(self, annotator: str) -> list[Pair]:
        """Return the pairs that somebody has not answered."""
        done = {one.pair for one in self.labels() if one.annotator == annotator}
        return [pair for id, pair in self.pairs().items() if id not in done]

    def add_labels(self, labels: Iterable[tuple[str, str, str]]) -> int:
        """Append answers, all of them or none, and return how many.

        Args:
            labels: Pairs, choices (also `UNDO`) and annotators.

        Raises:
            DataError: There is no such pair, or no such choice.
            RunError: The file cannot be written.
        """
        known = self.pairs()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        lines = []
        for pair, choice, annotator in labels:
            if pair not in known:
                raise DataError(
                    f"There is no pair '{pair}' in '{self.path}'.",
                    nearest(pair, known)
                    if len(known) < 20
                    else f"It has {counted(len(known), 'pair')}.",
                )
            if choice not in (*CHOICES, UNDO):
                raise DataError(
                    f"choice='{choice}' of the pair '{pair}': expected {', '.join(CHOICES)}."
                )
            lines.append(
                dump_json({"pair": pair, "choice": choice, "annotator": annotator, "time": now})
            )
        try:
            with open(self.path / LABELS, "ab", buffering=0) as file:
                # A line that a crash tore is ended, so that the next one is whole.
                torn = file.tell() and not _ends_with_newline(self.path / LABELS)
                file.write(b"\n" * bool(torn) + b"".join(lines))
                os.fsync(file.fileno())
        except OSError as error:
            raise run_error(error, f"write '{self.path / LABELS}'") from None
        return len(lines)

    def digest(self) -> str:
        """Return the SHA-256 of all pairs, episodes and answers that count."""
        content = {
            "set": self.facts,
            "batches": [[one.facts["sha256"], one.facts["pairs"]] for one in self.batches],
            "labels": [[one.pair, one.choice, one.annotator] for one in self.labels()],
        }
        return hashlib.sha256(dump_json(content)).hexdigest()

    def verify(self) -> None:
        """Check that episodes are those that pairs were made of.

        Raises:
            DataError: A file was altered; it is named.
        """
        for batch in self.batches:
            if batch.dataset.content_hash != batch.facts["sha256"]:
                raise DataError(
                    f"The episodes of '{batch.path.with_suffix('.npz')}' are not those that its "
                    "pairs were made of.",
                    "Put the file back as it was.",
                )

    def _lines(self) -> list[tuple[int, dict[str, Any]]]:
        try:
            text = (self.path / LABELS).read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise run_error(error, f"read '{self.path / LABELS}'") from None
        return list(read_lines(text, str(self.path / LABELS), torn=True))


def read_lines(
    text: bytes, name: str, *, torn: bool = False
) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their numbers.

    Args:
        text: The content.
        name: Of the file, for messages.
        torn: Leave out what a crash may have torn: lines that are not JSON.

    Raises:
        DataError: A line is not a JSON object.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            if torn:
                continue
            raise DataError(f"Line {number} of '{name}' is not JSON: {error}.") from None
        if not isinstance(found, dict):
            raise DataError(
                f"Line {number} of '{name}' holds a {type(found).__name__}; expected an object "
                'such as {"pair": "1-0", "choice": "left"}.'
            )
        yield number, found


def read_answers(path: Path) -> list[tuple[str, str, str | None]]:
    """Return the pairs, choices and annotators of a file of JSON lines.

    Raises:
        DataError: It cannot be read, or a line has no pair and choice.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RunError(f"Cannot read '{path}': {error.strerror}.", "Check the path.") from None
    answers = []
    for number, line in read_lines(text, str(path)):
        pair, choice = line.get("pair"), line.get("choice")
        if not isinstance(pair, str) or not isinstance(choice, str):
            raise DataError(
                f"Line {number} of '{path}' lacks 'pair' or 'choice'.",
                'Write lines such as {"pair": "1-0", "choice": "left"}.',
            )
        who = line.get("annotator")
        answers.append((pair, choice, None if who is None else str(who)))
    return answers


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
