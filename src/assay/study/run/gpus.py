"""Which GPUs of this machine a study may use, and which run has which of them.

A run has a GPU to itself, unless the contract lets several share one. Its lease is a lock on a file
that its supervisor keeps open, so that it ends with that process, however that ends. Loops that run
at the same time, of one study or of several, never give a GPU to more runs than it may have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from assay.runs import provenance
from assay.runs.files import run_error
from assay.study.agree.budget import Busy
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCKS = Path("/tmp")  # of the machine, whatever TMPDIR a loop was given
Gpu = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Lease:
    """The GPUs of one run."""

    gpus: tuple[Gpu, ...] = ()
    locks: tuple[int, ...] = ()  # open files: whoever inherits them holds the GPUs

    @property
    def names(self) -> dict[str, str]:
        """Return the GPUs' names, by the numbers that nvidia-smi gives them."""
        return {gpu["index"]: gpu["name"] for gpu in self.gpus}


def usable(agreed: Contract) -> tuple[Gpu, ...]:
    """Return the GPUs that runs may be given; none where the contract asks for none.

    They are of one model, so that all runs are alike.

    Raises:
        StudyError: There are fewer than one run needs. It is an obstacle of this machine, not a
            failure of a candidate.
    """
    wanted = agreed.hardware
    if wanted.kind != "gpu":
        return ()
    found = provenance.gpus()
    limits = {"the environment": os.environ, "the contract's baseline.env": agreed.baseline.env}
    given = {place: values[VISIBLE] for place, values in limits.items() if VISIBLE in values}
    chosen = found
    for words in given.values():
        chosen = [gpu for gpu in chosen if gpu in _named(words, found)]
    fitting = [gpu for gpu in chosen if wanted.gpu_model.lower() in gpu["name"].lower()]
    models = [(gpu["name"], gpu["memory.total"]) for gpu in fitting]
    usual = max(models, key=models.count, default=None)
    alike = [gpu for gpu, model in zip(fitting, models, strict=True) if model == usual]
    if len(alike) < wanted.gpus:
        what = f"{wanted.gpus} GPU(s) {wanted.gpu_model}".rstrip() + " for each run"
        limited = "".join(f"; {VISIBLE}={words!r} in {place}" for place, words in given.items())
        there = ", ".join(gpu["name"] for gpu in found) or "none"
        raise StudyError(
            f"GPU missing: the contract asks for {what}, of one model; this machine has {there}"
            f"{limited}.",
            "Run the study on a machine that has them, or have another hardware part approved "
            "(hardware.kind: cpu).",
        )
    return tuple(alike)


def _named(words: str, found: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES names; an unknown one ends it."""
    chosen: list[Gpu] = []
    for word in (word.strip() for word in words.split(",")):
        fits = [
            gpu
            for gpu in found
            if gpu["index"] == word or (word.startswith("GPU-") and gpu["uuid"].startswith(word))
        ]
        if not fits:
            break
        chosen += fits[:1]
    return chosen


def at_once(agreed: Contract, gpus: Sequence[Gpu]) -> int:
    """Return how many runs the contract and the GPUs allow at the same time."""
    parallel, wanted = agreed.budget.parallel, agreed.hardware
    if wanted.kind != "gpu":
        return parallel
    return min(parallel, len(gpus) * wanted.runs_per_gpu // wanted.gpus)


@contextlib.contextmanager
def lease(agreed: Contract, gpus: Sequence[Gpu]) -> Iterator[Lease]:
    """Hold free GPUs for one run; a process that inherits the lease's files holds them on.

    Raises:
        Busy: Other runs have them; it can be tried again.
    """
    wanted = agreed.hardware
    if wanted.kind != "gpu":
        yield Lease()
        return
    taken: list[Gpu] = []
    files: list[IO[bytes]] = []
    with contextlib.ExitStack() as held:
        for slot in range(wanted.runs_per_gpu):
            for gpu in gpus:
                if len(taken) == wanted.gpus or gpu in taken:
                    continue
                locks = _locked(gpu["uuid"], slot, wanted.runs_per_gpu)
                if locks:
                    taken.append(gpu)
                    files += map(held.enter_context, locks)
        if len(taken) < wanted.gpus:
            raise Busy(
                f"{len(taken)} of the {len(gpus)} GPUs that this run may use are free, and it "
                f"needs {wanted.gpus}.",
                "Wait until another run ends.",
            )
        yield Lease(tuple(taken), tuple(file.fileno() for file in files))


def _locked(name: str, slot: int, share: int) -> Sequence[IO[bytes]]:
    """Return the open files that hold a part of a GPU; none if another run has it.

    The GPU is locked by all that share it together, or by one alone; and then its part.
    """
    modes = {name: fcntl.LOCK_EX if share == 1 else fcntl.LOCK_SH}
    if share > 1:
        modes[f"{name}-{slot}"] = fcntl.LOCK_EX
    place = LOCKS / f"assay-gpus-{os.getuid()}"
    with contextlib.ExitStack() as opened:
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            files = [opened.enter_context(open(place / each, "ab")) for each in modes]
            for file, mode in zip(files, modes.values(), strict=True):
                fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        except OSError as error:
            raise StudyError(*run_error(error, f"lock a GPU in '{place}'").args) from None
        opened.pop_all()
        return files


def variables(names: Mapping[str, str]) -> dict[str, str]:
    """Return the environment by which CUDA sees the GPUs of a lease alone."""
    if not names:
        return {}
    return {VISIBLE: ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def shown(names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of a lease as a run's record has them."""
    return tuple(f"{number}: {name}" for number, name in names.items())
