"""Where a study is, folded out of its ledger event by event.

The fold is kept in state.json together with the ledger's head that it was made at, so that a later
process goes on from there instead of reading everything again. It holds what the next step is
decided by and no more: of a candidate that is decided, its state and kind alone. The fold of
everything, which takes the whole ledger, is a `History`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from assay.study.files.base import Phase, Status
from assay.study.files.contract import Contract
from assay.study.files.records import Anchor, LedgerFile, Progress, State
from assay.study.record import kinds
from assay.study.record.ledger import Event, Head

T = TypeVar("T")
DECIDED = frozenset({"accepted", "rejected", "no-effect", "reverted"})


class Attempt(NamedTuple):
    """A run that is over, as far as the next step depends on it."""

    id: str
    phase: str
    seed: int
    outcome: str
    reason: str


@dataclass(slots=True)
class Share:
    """A part of the study's error rate that was given to a candidate."""

    candidate: str  # to whom
    alpha: float  # how much
    seen: bool  # whether a score of its promotion runs is on record
    open: bool = True  # whether it waits for a verdict


class _Over(Protocol):
    """A run that is over: an `Attempt`, or a `Run` of the history."""

    @property
    def id(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def reason(self) -> str: ...


def never_started(run: _Over) -> bool:
    """Return whether a run was lost before anybody could see a score of it."""
    return run.outcome == "lost" and run.reason == kinds.UNSTARTED


def losses(runs: Iterable[_Over]) -> list[list[str]]:
    """Return the runs that were lost, by occasion.

    What one stop of the study ended is one occasion: it ends all that runs, nobody chooses. What
    was never started had no scores that somebody could dislike, and does not count.
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.outcome == "lost" and not never_started(run):
            together = run.reason.startswith(f"{kinds.SWITCHED} (")
            found.setdefault(run.reason if together else run.id, []).append(run.id)
    return list(found.values())


def _by_pair(kept: Mapping[str, Mapping[str, T]]) -> dict[tuple[str, str], T]:
    return {(name, phase): value for name, found in kept.items() for phase, value in found.items()}


def _by_name(found: Mapping[tuple[str, str], T]) -> dict[str, dict[str, T]]:
    kept: dict[str, dict[str, T]] = {}
    for name, phase in sorted(found):
        kept.setdefault(name, {})[phase] = found[name, phase]
    return kept


class Book:
    """What the events so far come to, by candidate."""

    def __init__(self, state: State | None = None) -> None:
        kept = state.progress if state else Progress()
        self.head = Head(state.head.seq, state.head.hash) if state else Head()  # the newest event
        # Where each candidate is, the oldest first.
        self.status: dict[str, Status] = dict(state.candidates) if state else {}
        self.kind = dict(kept.kinds)  # what each one is; "" where no event says so
        self.probe = dict(kept.probes)  # the probe that each belongs to, if any
        # Runs that are over; of undecided candidates, baselines and probes.
        self.attempts = {name: [Attempt(*run) for run in r] for name, r in kept.attempts.items()}
        # Of the baselines' runs, every metric.
        self.scores = {run: dict(metrics) for run, metrics in kept.scores.items()}
        # Runs that are prepared and not over: candidate, phase and seed.
        self.under_way = dict(kept.open)
        # Candidate and phase.
        self.audited = {(name, phase) for name, phases in kept.audited.items() for phase in phases}
        self.judged = _by_pair(kept.judged)  # the last outcome, by candidate and phase
        # Seeds of the last early look that was not clear, by candidate and phase.
        self.looked = _by_pair(kept.looked)
        # What measures the baselines, as they were registered: short hashes by field or file.
        self.measures = {name: dict(parts) for name, parts in kept.measures.items()}
        self.promoted = set(kept.promoted)  # who went on after the short trials
        self.summarised = set(kept.summarised)  # probes
        # Accepted candidates that were not taken back; the last one is the incumbent.
        self.holders = list(kept.holders)
        self.launched = kept.runs  # how many runs there were in all
        self.held = dict.fromkeys(kept.held)  # runs that are reserved and not settled
        # Who approved which hash last, by the part of the contract.
        self.approvals = dict(kept.approvals)
        self.anchored = kept.anchored  # the Git ref that notes the ledger's head, or ""
        self.shares = [Share(*share) for share in kept.shares or ()]  # the oldest first
        self._open_shares = {share.candidate: share for share in self.shares if share.open}

    @classmethod
    def read(cls, events: Iterable[Event]) -> Self:
        """Fold events, from the first one on."""
        book = cls()
        for event in events:
            book.add(event)
        return book

    def state(self, task: str, study: str, file: LedgerFile | None = None) -> State:
        """Return the file that keeps the book."""
        audited = _by_name(dict.fromkeys(self.audited))
        progress = Progress(
            kinds=self.kind,
            probes=self.probe,
            attempts={name: tuple(map(tuple, runs)) for name, runs in self.attempts.items()},
            scores=self.scores,
            open=self.under_way,
            audited={name: tuple(phases) for name, phases in audited.items()},
            judged=_by_name(self.judged),
            looked=_by_name(self.looked),
            measures=self.measures,
            promoted=tuple(sorted(self.promoted)),
            summarised=tuple(sorted(self.summarised)),
            holders=tuple(self.holders),
            runs=self.launched,
            held=tuple(self.held),
            approvals=self.approvals,
            anchored=self.anchored,
            shares=tuple(map(astuple, self.shares)),
        )
        return State(
            task=task,
            study=study,
            head=Anchor(seq=self.head.seq, hash=self.head.hash),
            ledger=file,
            incumbent=self.incumbent,
            candidates=self.status,
            progress=progress,
        )

    # ------------------------------------------------------------------ questions

    @property
    def incumbent(self) -> str:
        """Return the candidate that was last accepted and not reverted, or ""."""
        return self.holders[-1] if self.holders else ""

    def open(self, name: str, phase: str) -> set[int]:
        """Return the seeds of a candidate's phase that are under way."""
        return {seed for who, what, seed in self.under_way.values() if (who, what) == (name, phase)}

    def stage(self, agreed: Contract, name: str, phase: Phase) -> tuple[int, ...]:
        """Return the seeds that a candidate needs next in a phase; a baseline needs all."""
        if phase not in kinds.DECIDING or self.kind.get(name) in kinds.UNJUDGED:
            return agreed.evaluation.pools.of(phase)
        return agreed.evaluation.stage(phase, self.looked.get((name, phase), 0))

    def left(self, agreed: Contract, name: str, phase: Phase) -> tuple[int, ...]:
        """Return the seeds that a phase needs next, have no result and are not under way."""
        have = self.open(name, phase)
        have |= {r.seed for r in self.of(name) if r.phase == phase and r.outcome != "lost"}
        return tuple(seed for seed in self.stage(agreed, name, phase) if seed not in have)

    def of(self, name: str) -> list[Attempt]:
        """Return a candidate's runs that are over."""
        return self.attempts.get(name, [])

    def complete(self, agreed: Contract, name: str, phase: Phase) -> bool:
        """Return whether a phase has all the results that it is judged on next."""
        return not self.left(agreed, name, phase) and not self.open(name, phase)

    def failed(self, agreed: Contract, name: str, phase: Phase) -> dict[int, int]:
        """Return the seeds of a phase whose last result is a failure, and how often they were run.

        What was lost is not a result.
        """
        runs = [run for run in self.of(name) if run.phase == phase]
        last = {run.seed: run.outcome for run in runs if run.outcome != "lost"}
        times = Counter(run.seed for run in runs)
        pool = agreed.evaluation.pools.of(phase)
        return {seed: times[seed] for seed in pool if last.get(seed, "done") != "done"}

    def measured(self, name: str, phase: Phase, metric: str) -> dict[int, float]:
        """Return what a baseline's runs that are done say of a metric, by seed."""
        done = (run for run in self.of(name) if (run.phase, run.outcome) == (phase, "done"))
        found = {run.seed: self.scores.get(run.id, {}).get(metric) for run in done}
        return {seed: score for seed, score in found.items() if score is not None}

    def baselines(self) -> list[str]:
        """Return the candidates that others are compared with, the oldest first."""
        return [n for n, k in self.kind.items() if k == "baseline" and self.status[n] != "rejected"]

    def discarded_baselines(self, measures: Mapping[str, str] | None = None) -> list[str]:
        """Return the baselines that were discarded after a score of theirs was known.

        Those that were measured in another way than the last one, or than `measures`, do not count.
        """
        last = list(self.measures.values())[-1:] or [{}]
        wanted = last[0] if measures is None else measures
        return [
            name
            for name, kind in self.kind.items()
            if kind == "baseline"
            and self.status[name] == "rejected"
            and self.measures.get(name) == wanted
            and any(r.phase in kinds.DECIDING and r.outcome == "done" for r in self.of(name))
        ]

    def cohort(self) -> list[str]:
        """Return who is in the short trials: neither decided, nor gone on, nor a probe."""
        going = ("validated", "launched", "completed")
        return [
            name
            for name, status in self.status.items()
            if status in going and self.kind[name] not in kinds.UNJUDGED and not self.goes_on(name)
        ]

    def goes_on(self, name: str) -> bool:
        """Return whether a candidate is past its short trial."""
        deciding = any(run.phase in kinds.DECIDING for run in self.of(name))
        return deciding or name in self.promoted or bool(self.open(name, "promotion"))

    def share(self, name: str) -> Share | None:
        """Return the part of the error rate that waits for a verdict on a candidate."""
        return self._open_shares.get(name)

    # ------------------------------------------------------------------ the fold

    def add(self, event: Event) -> None:
        """Take one more event in."""
        self.head = Head(event.seq, event.hash)
        data = event.data
        match event.kind:
            case kinds.APPROVED:
                # The last word counts alone: what was approved before is withdrawn.
                word = (str(data["by"]), str(data["hash"]))
                self.approvals[str(data["item"])] = (
                    (*word, "signed") if data.get("signature") else word
                )
            case kinds.STATE:
                self._moved(data)
            case kinds.REGISTERED:
                self._labelled(data)
                if data.get("kind") == "baseline" and data.get("measures"):
                    self.measures[str(data["candidate"])] = dict(data["measures"])
            case kinds.RESERVED:
                self.launched += 1
                self.held[str(data["run"])] = None
            case kinds.SETTLED:
                self.held.pop(str(data["run"]), None)
            case kinds.PREPARED:
                place = (str(data["candidate"]), str(data["phase"]), int(data["seed"]))
                self.under_way[str(data["run"])] = place
                if data.get("alpha") is not None:
                    self._share_given(place[0], float(data["alpha"]), seen=False)
            case kinds.MEASURED:
                self._measured(str(data["run"]), data["metrics"])
            case kinds.ENDED:
                self._ended(data)
            case kinds.AUDITED:
                self._audited(str(data["candidate"]), str(data["phase"]))
            case kinds.GIVEN:
                self._given(data)
            case kinds.RANKED:
                self.promoted |= set(data["promoted"])
            case kinds.SUMMARISED:
                self.summarised.add(str(data["plan"]))
            case kinds.ANCHORED:
                self.anchored = str(data["ref"])

    def _measured(self, run: str, metrics: Mapping[str, float | None]) -> None:
        if run not in self.under_way:
            return
        name, phase, _ = self.under_way[run]
        if self.kind.get(name) == "baseline":
            self.scores[run] = dict(metrics)
        if any(value is not None for value in metrics.values()):
            self._scored(name, phase)

    def _moved(self, data: Mapping[str, Any]) -> None:
        name, to = str(data["candidate"]), data["to"]
        if to == "rejected":
            self._share_closed(name)
        self.status[name] = to
        self.kind.setdefault(name, "")
        self._labelled(data)
        if to == "accepted":
            self.holders.append(name)
        elif to == "reverted" and name in self.holders:
            self.holders.remove(name)
        replaced = to == "rejected" and self.kind[name] == "baseline"
        if to in ("accepted", "reverted") or replaced:
            # Who was found better than the last rival has yet to be compared with the new one,
            # whose runs no audit has seen.
            again = ("accept", "invalid")
            self.judged = {key: seen for key, seen in self.judged.items() if seen not in again}
            self.audited &= self.judged.keys()
        if to in DECIDED and self.kind[name] not in kinds.UNJUDGED:
            self.attempts.pop(name, None)
            self.audited -= {(name, phase) for phase in kinds.DECIDING}
            self.promoted.discard(name)
            for phase in kinds.DECIDING:
                self.judged.pop((name, phase), None)
                self.looked.pop((name, phase), None)

    def _audited(self, name: str, phase: str) -> None:
        """Note an audit; evidence that was invalid can be judged again after it."""
        self.audited.add((name, phase))
        if self.judged.get((name, phase)) == "invalid":
            del self.judged[name, phase]

    def _given(self, data: Mapping[str, Any]) -> None:
        key = str(data["candidate"]), str(data["phase"])
        if key[1] == "promotion" and data["outcome"] != "invalid":
            self._share_used(key[0], data)
        if data["outcome"] == kinds.CONTINUE:
            self.looked[key] = len(data["seeds"])
            self.audited.discard(key)
        else:
            self.judged[key] = str(data["outcome"])

    def _reopened(self, name: str, phase: str) -> None:
        """Forget audits and verdicts that a further run of an arm has overtaken."""
        everyone = self.kind[name] == "baseline" or name in self.holders
        for key in [*self.audited, *self.judged]:
            if key[1] == phase and (everyone or key[0] == name):
                self.audited.discard(key)
                self.judged.pop(key, None)

    def _labelled(self, data: Mapping[str, Any]) -> None:
        """Note what a candidate is, where an event says so."""
        name = str(data["candidate"])
        if name in self.status and "kind" in data:
            self.kind[name] = str(data["kind"])
        if name in self.status and data.get("probe"):
            self.probe[name] = str(data["probe"])

    def _ended(self, data: Mapping[str, Any]) -> None:
        run = str(data["run"])
        if run not in self.under_way:
            return
        name, phase, seed = self.under_way.pop(run)
        if self.status.get(name) not in DECIDED or self.kind[name] in kinds.UNJUDGED:
            over = Attempt(run, phase, seed, str(data["outcome"]), str(data["reason"]))
            self.attempts.setdefault(name, []).append(over)
        if data["outcome"] != "lost":
            self._scored(name, phase)
            if phase in kinds.DECIDING:
                self._reopened(name, phase)

    # ------------------------------------------------------------------ the error rate

    def _share_given(self, name: str, alpha: float, *, seen: bool) -> Share:
        share = self._open_shares[name] = Share(name, alpha, seen)
        self.shares.append(share)
        return share

    def _scored(self, name: str, phase: str) -> None:
        share = self.share(name)
        if share is not None and phase == "promotion":
            share.seen = True

    def _share_used(self, name: str, data: Mapping[str, Any]) -> None:
        """Close the share of a candidate that was judged, unless its next look has it too."""
        share = self.share(name)
        if share is None:  # judged on runs that brought no share along
            alpha = float(data.get("share") or data.get("alpha") or 0.0)
            share = self._share_given(name, alpha, seen=True)
        if data["outcome"] != kinds.CONTINUE:
            share.open = False
            del self._open_shares[name]

    def _share_closed(self, name: str) -> None:
        """Close the share of a candidate that was discarded; looking at a score has spent it."""
        share = self._open_shares.pop(name, None)
        if share is None:
            return
        share.open = False
        if not share.seen:
            self.shares = [other for other in self.shares if other is not share]
