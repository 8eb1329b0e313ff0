"""Where a study's files are, and how they are read and written.

State lives in the target repository under `.rlxp/`:

    registry.yaml                      which task and study are active
    shared/{schemas,metric_extractors,templates}/
    tasks/<task>/{task_card.md,adapter.yaml}
    tasks/<task>/studies/<study>/      contract, state, ledger, candidates, runs, audits, report

The old flat layout had the files of one study directly below `.rlxp/`; it is read, never written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from assay.core.errors import AssayError, nearest
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import (
    ROOT,
    StudyError,
    checked_name,
    digest,
    flat_refusal,
    read_json_document,
    read_yaml_document,
    write_json_document,
)
from assay.study.files.records import Adapter, LedgerFile, RunRecord, State
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import History, Transaction
from assay.study.record.ledger import (
    WAY_OUT,
    Event,
    GitRef,
    Head,
    Ledger,
    LedgerError,
    Problem,
    Reading,
)

_DERIVED = ("state.json disagrees", "state.json cannot be read")  # how such problems begin
_GONE = "its head is noted in the Git ref"
_WHY_GONE = (
    "which is gone: it was deleted, not fetched with the repository "
    "(git fetch origin 'refs/rlxp/*:refs/rlxp/*'; without a place to fetch it from a person goes "
    "on with assay study re-anchor --why TEXT), or Git refuses to read it"
)


class Study:
    """The directory of one study: its files by name, read checked and written whole.

    Args:
        root: The target repository.
        task: Its name.
        study: Its name.
        flat: Whether its files are in the old flat layout, which is only read.
    """

    def __init__(self, root: Path, task: str, study: str, *, flat: bool = False) -> None:
        self.root = root
        self.task, self.name = task, study
        self.flat = flat
        self.task_path = root / ROOT / "tasks" / checked_name(task, "task")
        self.path = self.task_path / "studies" / checked_name(study, "study")
        if flat:
            self.task_path = self.path = root / ROOT
        refusal = flat_refusal(root) if flat else None
        self.ledger = Ledger(self.path / "ledger.jsonl", refusal=refusal)
        self.ref = GitRef(root, f"refs/rlxp/{task}/{study}/ledger")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Hold the ledger alone, to decide on what it says and append in one go."""
        with self.ledger.transaction() as writer:
            yield Transaction(writer)

    def history(self) -> History:
        """Return all that happened, by the ledger as it is now."""
        return History.read(self.ledger.events())

    def refuse_copy(self) -> None:
        """Refuse a study that Git keeps the record of, in a directory without its .git.

        Raises:
            StudyError: It is such a copy, of an archive for example.
        """
        kept = self._own_state()
        if kept is not None and kept.progress.anchored and not self.ref.possible:
            raise StudyError(
                f"'{self.root}' has no .git, and study {self.task}/{self.name} is recorded in Git "
                f"({self.ref.name}): this is a copy without its history, whose runs and ledger "
                "cannot be checked.",
                "Copy the repository together with its .git. Or begin a new study here: git init, "
                "git add -A, git commit, assay study init --study NAME --activate. (verify and "
                "report still read the old one.)",
            )

    def require_writable(self) -> None:
        """Refuse to go on where the study can only be read."""
        if self.flat:
            raise flat_refusal(self.root)

    def refuse_damage(self, problems: Sequence[Problem], way_out: str) -> None:
        """Refuse to go on where something is wrong with the ledger, its anchors or state.json."""
        if problems:
            raise StudyError(
                f"The ledger of {self.task}/{self.name} is damaged, {problems[0]}.", way_out
            )

    @property
    def contract_path(self) -> Path:
        """Return where the contract is."""
        return self.path / "contract.yaml"

    def contract(self) -> Contract:
        """Read the contract.

        Raises:
            StudyError: It is missing, malformed, or of another task or study.
        """
        contract = read_yaml_document(self.contract_path, Contract)
        if (contract.task.id, contract.study) != (self.task, self.name):
            raise StudyError(
                f"'{self.contract_path}' is the contract of {contract.task.id}/{contract.study}; "
                f"expected {self.task}/{self.name}.",
                "Studies share nothing: write a contract of its own for this one.",
            )
        return contract

    def adapter(self) -> Adapter:
        """Read what the audit of the repository found."""
        return read_yaml_document(self.task_path / "adapter.yaml", Adapter)

    def candidate_path(self, name: str) -> Path:
        """Return where a candidate is."""
        return self.path / "candidates" / f"{checked_name(name, 'candidate')}.yaml"

    def candidate(self, name: str) -> Candidate:
        """Read a candidate.

        Raises:
            StudyError: It is missing, malformed, or of another task or study.
        """
        path = self.candidate_path(name)
        if not path.exists():
            hint = nearest(name, self.candidates()) if self.candidates() else "There are none yet."
            raise StudyError(f"There is no candidate '{name}' in study {self.name}.", hint)
        candidate = read_yaml_document(path, Candidate)
        if (candidate.task, candidate.study) != (self.task, self.name):
            raise StudyError(
                f"Candidate '{name}' belongs to {candidate.task}/{candidate.study}, not to "
                f"{self.task}/{self.name}.",
                "Studies share no candidates: propose it again in this one.",
            )
        if candidate.id != name:
            raise StudyError(f"'{path}' calls itself '{candidate.id}'; expected '{name}'.")
        return candidate

    def candidates(self) -> list[str]:
        """Return the names of all candidates, in order."""
        return sorted(path.stem for path in (self.path / "candidates").glob("*.yaml"))

    def run(self, name: str) -> RunRecord:
        """Read the record of a run."""
        path = self.path / "runs" / checked_name(name, "run") / "run.json"
        return read_json_document(path, RunRecord)

    def state(self) -> State:
        """Read the state."""
        return read_json_document(self.path / "state.json", State)

    def examine(self) -> Reading:
        """Read the whole ledger, and find what is wrong with it, its anchors and state.json."""
        problems: list[Problem] = []
        anchors: dict[str, Head] = {}
        kept = None
        # Each anchor by itself: what is wrong with one does not hide the other.
        if (self.path / "state.json").exists():
            try:
                kept = self.state()
                anchors["state.json"] = Head(kept.head.seq, kept.head.hash)
            except AssayError as error:
                reason = f"state.json cannot be read: {error.message.rstrip('.')}; it is derived "
                problems.append(Problem(0, reason + "from the ledger, and can be deleted"))
        chain, refusal = self.ref.chain()
        if chain:
            anchors[self.ref.name] = chain[0]
        reading = self.ledger.read(anchors)
        if not reading.problems:
            problems += self._unchained(reading.events, chain, refusal)
            problems += _disagreements(kept, reading.events) if kept is not None else []
        return Reading(reading.events, [*reading.problems, *problems])

    def _unchained(
        self, events: Sequence[Event], chain: Sequence[Head], refusal: str
    ) -> list[Problem]:
        """Say where the heads that Git noted, one commit after another, are not the ledger's."""
        begun = [event for event in events if event.kind == kinds.ANCHORED]
        if not begun or not begun[-1].data["ref"]:
            return []
        ref = self.ref.name
        if begun[-1].data["ref"] != ref:
            reason = f"its head was noted in {begun[-1].data['ref']}, and this is {ref}"
            return [Problem(begun[-1].seq, f"{reason}: it is the ledger of another study")]
        if not chain:  # the first note may have been made since; it comes before its event
            chain, refusal = self.ref.chain()
            chain = [noted for noted in chain if noted.seq <= events[-1].seq]
        if not chain:
            return [Problem(0, f"{_GONE} {ref}, {_WHY_GONE}{refusal}")]
        hashes = {event.seq: event.hash for event in events}
        for noted in chain:
            if hashes.get(noted.seq) != noted.hash:
                reason = f"{ref} once noted event {noted.seq} by another hash"
                return [Problem(noted.seq, f"{reason}: history was rewritten")]
        if chain[-1].seq > begun[-1].seq:
            reason = f"the commits of {ref} begin with event {chain[-1].seq}, and it was "
            reason += f"noted there from event {begun[-1].seq} on: the ref was made again"
            return [Problem(begun[-1].seq, reason)]
        return []

    def problems(self) -> list[Problem]:
        """Find everything that is wrong with the ledger, its anchors and state.json."""
        return self.examine().problems

    def book(self) -> tuple[Book, list[Problem]]:
        """Return where the study is, and what is wrong with its ledger.

        state.json is taken at its word while the Git ref notes its hash and its head, and the
        ledger's file is the very one that it was made from, by size, times and inode; otherwise,
        and without Git, the ledger is read and checked. So an edit of either shows, but whoever
        forges the ref as well can mislead this one answer. Nothing rests on it: launching, judging
        and `verify` examine everything.
        """
        kept = self._own_state()
        if kept is not None and kept.ledger == self._file() and self._agrees(kept):
            return self.label(Book(kept)), []
        continued = self._continued()
        if continued is not None:
            return self.label(continued), []
        reading = self.examine()
        if reading.problems:
            return Book(), reading.problems
        return self.label(Book.read(reading.events)), []

    def sync(self) -> None:
        """Bring state.json and the anchors up to what the ledger says.

        The end of every command, and of every run. Where nothing was appended, nothing is written.

        Raises:
            AssayError: The ledger does not continue what was noted before, so that it is not noted
                again; or the place cannot be written to.
        """
        if self.flat or not self.ledger.path.exists() or self._noted_already():
            return
        with self.transaction() as transaction:
            book = self._continued()
            continues = book is not None and bool(book.anchored)
            if book is None:
                reading = self.examine()
                # What is derived is made again, whatever state.json says.
                broken = [p for p in reading.problems if not p.reason.startswith(_DERIVED)]
                if broken:
                    raise LedgerError(
                        f"The ledger of {self.task}/{self.name} is damaged, {broken[0]}.",
                        WAY_OUT,
                    )
                book = Book.read(reading.events)
            if not book.anchored and self.ref.note(book.head):
                facts = {"ref": self.ref.name}
                book.add(transaction.append(kinds.ANCHORED, facts, actor="assay"))
            state = book.state(self.task, self.name, self._file())
            told = _told(state)
            # First, since what state.json says is not noted again.
            if book.anchored and not self.ref.note(book.head, told, continues=continues):
                raise StudyError(
                    f"Git cannot note the ledger's head in {self.ref.name}; the ledger is whole.",
                    "Free some space if the disk is full, see that .git can be written to, and "
                    "run `assay study status`, which notes it.",
                )
            write_json_document(self.path / "state.json", state)

    def anchor_again(self, actor: str, why: str) -> None:
        """Note the ledger's head in the Git ref again, after the ref was lost.

        A clone does not bring the refs of a study along, and a repository may be moved out of Git.
        Whoever goes on there says so, in the ledger.

        Raises:
            StudyError: There is no reason given, or something else is wrong with the books.
        """
        if not why.strip():
            raise StudyError("Anchoring again needs a reason.", "Say it with --why TEXT.")
        others = [p for p in self.problems() if not p.reason.startswith((_GONE, *_DERIVED))]
        self.refuse_damage(others, "Its head is not noted again until it is repaired.")
        with self.ledger.transaction() as writer:
            ref = self.ref.name if self.ref.note(writer.head) else ""
            event = writer.append(kinds.ANCHORED, {"ref": ref, "why": why}, actor=actor)
            if ref:
                self.ref.note(Head(event.seq, event.hash))
        self.sync()

    def _noted_already(self) -> bool:
        """Return whether there is nothing to note; so it is in a copy that nobody wrote to."""
        state, file = self._own_state(), self._file()
        if state is None or state.ledger is None or file is None or state.ledger.size != file.size:
            return False
        if state.ledger == file:
            return True
        book = self._continued()
        if book is None or not (book.anchored or not self.ref.possible):
            return False
        return book.head == Head(state.head.seq, state.head.hash)

    def _file(self) -> LedgerFile | None:
        """Return what tells the ledger's file from another one, or from itself once edited."""
        try:
            seen = self.ledger.path.stat()
        except OSError:
            return None
        return LedgerFile(
            size=seen.st_size,
            modified=seen.st_mtime_ns,
            changed=seen.st_ctime_ns,
            inode=seen.st_ino,
        )

    def _continued(self) -> Book | None:
        """Return state.json, brought up to the ledger's end, if that continues it."""
        state = self._own_state()
        if state is None or state.ledger is None or not self._agrees(state):
            return None
        events = self.ledger.since(Head(state.head.seq, state.head.hash), state.ledger.size)
        if events is None:
            return None
        book = Book(state)
        for event in events:
            book.add(event)
        return book

    def _own_state(self) -> State | None:
        """Return state.json if it is this study's, and made from a ledger."""
        if not (self.path / "state.json").exists():
            return None
        try:
            state = self.state()
        except AssayError:
            return None
        mine = (state.task, state.study) == (self.task, self.name)
        return state if mine and state.ledger is not None else None

    def _agrees(self, state: State) -> bool:
        """Return whether the Git ref notes the head and the hash of a state, and it is whole."""
        if state.progress.shares is None:
            return False  # of an earlier version
        noted, told = self.ref.last()
        return noted == Head(state.head.seq, state.head.hash) and told == _told(state)

    def label(self, book: Book) -> Book:
        """Look up what candidates are whose events do not say so."""
        for name in [name for name, kind in book.kind.items() if not kind]:
            book.kind[name] = self.candidate(name).kind
        return book


def _disagreements(kept: State, events: Iterable[Event]) -> list[Problem]:
    """Say where a state that was kept is not what the events up to its head come to."""
    made = Book()
    for event in events:
        if event.seq > kept.head.seq:
            break
        made.add(event)
    derived = made.state(kept.task, kept.study, kept.ledger)
    if kept.progress.shares is None:  # of an earlier version
        lacking = derived.progress.model_copy(update={"shares": None})
        derived = derived.model_copy(update={"progress": lacking})
    if derived.head != kept.head or derived == kept:
        return []  # another head is a matter of anchors, and said there
    reasons = []
    if derived.incumbent != kept.incumbent:
        told, true = kept.incumbent or "nobody", derived.incumbent or "nobody"
        reasons.append(f"it calls {told} the incumbent, and the ledger {true}")
    for name in sorted({*kept.candidates, *derived.candidates}):
        told, true = (state.candidates.get(name, "unknown") for state in (kept, derived))
        if told != true:
            reasons.append(f"it calls {name} {told}, and the ledger {true}")
    reasons = reasons or ["its progress is not what the ledger comes to"]
    derived_from = "; it is derived from the ledger, and can be deleted"
    return [
        Problem(0, f"state.json disagrees with the ledger: {reason}{derived_from}")
        for reason in reasons
    ]


def _told(state: State) -> str:
    """Return the hash of what a state says, whichever file it was made from."""
    return digest(state.model_dump(mode="json", exclude={"ledger"}))
