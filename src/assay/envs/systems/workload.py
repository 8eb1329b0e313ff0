"""Workloads of parallel machines: the Standard Workload Format, and a model that makes them.

`read_swf` reads version 2.2 of the format of the Parallel Workloads Archive: comments behind `;`,
of which those of the form `; Key: Value` make the header, and a line of 18 numbers per job, -1
where something is not known.

`lublin` draws a workload from the model of Lublin and Feitelson (2003, JPDC 63:1105) with its
parameters for jobs that are not divided into batch and interactive ones:

* sizes: serial with probability 0.244, else 2^u with u from a two-stage uniform distribution,
  and u rounded with probability 0.576, so that powers of two are frequent;
* run times: e^x with x from a hyper-gamma distribution, whose share of long jobs rises with size;
* arrivals: e^x with x from a gamma distribution, stretched and squeezed by a daily cycle of 48
  half hours.

Where this differs: the gaps between arrivals are scaled by one factor, before the daily cycle is
laid over them, so that a load can be set. And the model has no estimates, which schedulers need, so
they are added: a fifth of the jobs ask for what they need, the others for 1/a of it with an
accuracy a from 0.05 to 1, all rounded up to a usual limit such as 15 minutes or 4 hours.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import gammainc

from assay.core.errors import AssayError

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors",
    "average CPU time", "used memory", "requested processors", "requested time",
    "requested memory", "status", "user", "group", "executable", "queue", "partition",
    "preceding job", "think time",
)  # fmt: skip
SHIPPED = Path(__file__).parent / "data" / "lublin-256.swf.gz"
DAY = 86_400.0

_FRACTIONAL = {1, 2, 3, 5, 6, 8, 9, 17}  # fields that may have a decimal point: times and memory
_CANCELLED = 5
_GZIP = b"\x1f\x8b"

# The model, in the names of its authors.
_SERIAL, _POW2 = 0.244, 0.576
_U_LOW, _U_MED_BELOW, _U_PROB = 0.8, 2.5, 0.86
_A1, _B1, _A2, _B2, _PA, _PB = 4.2, 0.94, 312.0, 0.03, -0.0054, 0.78
_A_ARR, _B_ARR = 10.2303 * 1.0225, 0.4871
_A_NUM, _B_NUM = 8.1737, 3.9631
_MOST_RUN, _MOST_GAP = 12.0, 13.0  # logarithms
_BUCKETS, _FIRST_BUCKET = 48, 11

# Usual limits of run times, in seconds.
_LIMITS = 60.0 * np.array(
    [1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1080, 1440, 2160, 2880]
)
_EXACT, _LEAST_ACCURACY = 0.2, 0.05


class WorkloadError(AssayError):
    """A workload file is not in the Standard Workload Format, or lacks what is needed."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a workload; times in seconds.

    Attributes:
        number: Its number in the file.
        submit: When it was submitted.
        run: How long it runs, which no scheduler knows.
        size: Processors it needs.
        requested: How long its user says that it runs at most.
    """

    number: int
    submit: float
    run: float
    size: int
    requested: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their submission, and the machine they are for.

    Attributes:
        jobs: The jobs.
        processors: Size of the machine.
        header: The header comments of the file.
        left_out: How many lines were jobs that never ran, or of unknown size or run time.
    """

    jobs: tuple[Job, ...]
    processors: int
    header: dict[str, str] = field(default_factory=dict)
    left_out: int = 0

    @property
    def load(self) -> float:
        """Return the work that was submitted, as a share of what the machine can do meanwhile."""
        span = self.jobs[-1].submit - self.jobs[0].submit
        work = sum(job.run * job.size for job in self.jobs)
        return work / (self.processors * span) if span > 0 else math.inf


def read_swf(path: Path | str, processors: int | None = None) -> Workload:
    """Read a workload in the Standard Workload Format, packed with gzip or not.

    A job's size is the number of processors that it requested, or else was given; its estimate is
    the time that it requested, or else its run time (which is more than a scheduler would know).
    Jobs without size or run time, and those cancelled before they ran, are left out.

    Args:
        path: The file.
        processors: Size of the machine; by default what the header says (MaxProcs, else MaxNodes).

    Raises:
        WorkloadError: The file cannot be read, a line is not as the format says, jobs are not
            ordered by submit time, one is larger than the machine, or there is none.
    """
    path = Path(path)
    header: dict[str, str] = {}
    jobs: list[Job] = []
    left_out, latest = 0, 0.0
    for number, line in enumerate(_lines(path), start=1):
        where = f"Line {number} of '{path}'"
        text = line.strip()
        if not text:
            continue
        if text.startswith(";"):
            key, colon, value = text.lstrip("; \t").partition(":")
            if colon and key.strip():
                header.setdefault(key.strip(), value.strip())
            continue
        values = _numbers(text, where)
        if values[1] < latest:
            raise WorkloadError(
                f"{where} has submit time {values[1]:g}, the job before it {latest:g}.",
                "Sort the jobs by their submit time.",
            )
        latest = values[1]
        job = _job(values)
        if job is None:
            left_out += 1
        else:
            jobs.append(job)
    if not jobs:
        raise WorkloadError(f"'{path}' has no job that ran; at least one was expected.")
    size = _machine(header, path) if processors is None else processors
    for job in jobs:
        if job.size > size:
            raise WorkloadError(
                f"Job {job.number} of '{path}' needs {job.size} processors; the machine has {size}."
            )
    return Workload(tuple(jobs), size, header, left_out)


def write_swf(path: Path | str, workload: Workload) -> None:
    """Write a workload in the Standard Workload Format; packed if the name ends with `.gz`."""
    header = {"Version": "2.2", "MaxJobs": str(len(workload.jobs))} | workload.header
    header |= {"MaxProcs": str(workload.processors)}
    lines = [f"; {key}: {value}" for key, value in header.items()]
    for job in workload.jobs:
        lines.append(
            f"{job.number} {job.submit:.15g} -1 {job.run:.15g} {job.size} -1 -1 "
            f"{job.size} {job.requested:.15g} -1 1" + " -1" * 7
        )
    data = ("\n".join(lines) + "\n").encode("ascii")
    path = Path(path)
    # Without a time stamp, the same workload gives the same file.
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def lublin(jobs: int, processors: int = 256, *, load: float = 0.9, seed: int = 0) -> Workload:
    """Draw a workload from the model of Lublin and Feitelson, in whole seconds.

    Args:
        jobs: How many.
        processors: Size of the machine; the largest jobs take all of it.
        load: The work that is submitted, as a share of what the machine can do meanwhile.
        seed: The same seed gives the same workload.

    Raises:
        WorkloadError: A number is out of range.

    Example:
        >>> round(lublin(2000, load=0.8, seed=1).load, 2)
        0.8
    """
    if jobs < 2 or processors < 4 or not 0 < load < math.inf:
        raise WorkloadError(
            f"jobs={jobs}, processors={processors}, load={load}: expected at least 2 jobs, "
            "4 processors and a positive load."
        )
    rng = np.random.default_rng(seed)
    size = _sizes(rng, jobs, processors)
    run = _runs(rng, size)
    span = float((size * run).sum()) / (processors * load)
    submit = np.round(_arrivals(rng, jobs, span))
    requested = _estimates(rng, run)
    columns = (submit, run, size, requested)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    header = {
        "Computer": "a model: Lublin and Feitelson 2003, with estimates added",
        "Note": f"assay.envs.systems.workload.lublin({jobs}, {processors}, {load=}, {seed=})",
    }
    made = (Job(n, s, r, int(p), q) for n, (s, r, p, q) in enumerate(rows, start=1))
    return Workload(tuple(made), processors, header)


def _sizes(rng: np.random.Generator, jobs: int, processors: int) -> np.ndarray:
    high = math.log2(processors)
    medium = max(high - _U_MED_BELOW, _U_LOW)
    first = rng.random(jobs) < _U_PROB
    low = np.where(first, _U_LOW, medium)
    u = low + rng.random(jobs) * (np.where(first, medium, high) - low)
    kind = rng.random(jobs)
    u = np.where(kind < _SERIAL + _POW2, np.round(u), u)
    sizes = np.where(kind < _SERIAL, 1, np.round(2.0**u))
    return np.clip(sizes, 1, processors).astype(np.int64)


def _runs(rng: np.random.Generator, size: np.ndarray) -> np.ndarray:
    short = rng.random(len(size)) < np.clip(_PA * size + _PB, 0.0, 1.0)
    logs = np.full(len(size), np.inf)
    while (redo := logs > _MOST_RUN).any():
        draw = np.where(short, rng.gamma(_A1, _B1, len(size)), rng.gamma(_A2, _B2, len(size)))
        logs = np.where(redo, draw, logs)
    return np.maximum(np.floor(np.exp(logs)), 1.0)


def _arrivals(rng: np.random.Generator, jobs: int, span: float) -> np.ndarray:
    """Return submit times that begin at 0 and end at `span`, at the rhythm of a day."""
    logs = np.full(jobs - 1, np.inf)
    while (redo := logs > _MOST_GAP).any():
        logs = np.where(redo, rng.gamma(_A_ARR, _B_ARR, jobs - 1), logs)
    gaps = np.exp(logs)
    # "Points" pass at the rate of the present half hour: time runs fast in busy ones.
    edges = np.arange(_FIRST_BUCKET, _FIRST_BUCKET + _BUCKETS + 1) - 0.5
    weights = np.roll(np.diff(gammainc(_A_NUM, edges / _B_NUM)), _FIRST_BUCKET - 1)
    days = math.ceil(span / DAY) + 1
    rates = np.tile(weights / weights.mean(), days)
    clock = np.arange(len(rates) + 1) * (DAY / _BUCKETS)
    points = np.concatenate([[0.0], np.cumsum(rates)]) * (DAY / _BUCKETS)
    whole = np.interp(span, clock, points)
    passed = np.concatenate([[0.0], np.cumsum(gaps)]) * (whole / gaps.sum())
    times = np.interp(passed, points, clock)
    return times - times[0]


def _estimates(rng: np.random.Generator, run: np.ndarray) -> np.ndarray:
    accuracy = rng.uniform(_LEAST_ACCURACY, 1.0, len(run))
    accuracy[rng.random(len(run)) < _EXACT] = 1.0
    index = np.searchsorted(_LIMITS, run / accuracy)
    return _LIMITS[np.minimum(index, len(_LIMITS) - 1)]


def _lines(path: Path) -> Iterator[str]:
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        return iter(data.decode("utf-8", "strict").splitlines())
    except FileNotFoundError:
        raise WorkloadError(f"There is no workload '{path}'.", "Give the path of a file.") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise WorkloadError(f"The workload '{path}' cannot be read: {error}") from None


def _numbers(text: str, where: str) -> list[float]:
    words = text.split()
    if len(words) != len(FIELDS):
        raise WorkloadError(f"{where} has {len(words)} fields; {len(FIELDS)} were expected.")
    values = []
    for index, word in enumerate(words):
        try:
            value = float(word) if index in _FRACTIONAL else float(int(word))
        except ValueError:
            kind = "a number" if index in _FRACTIONAL else "a whole number"
            raise WorkloadError(f"{where}: {FIELDS[index]} is '{word}', not {kind}.") from None
        if not math.isfinite(value) or (value < 0 and value != -1):
            raise WorkloadError(
                f"{where}: {FIELDS[index]} is {word}; a number from 0, or -1, was expected."
            )
        values.append(value)
    if values[1] < 0:
        raise WorkloadError(f"{where} has no submit time.")
    return values


def _job(values: Sequence[float]) -> Job | None:
    """Return the job of a line, or None if it never ran or its size or run time is unknown."""
    run, status = values[3], values[10]
    size = values[7] if values[7] > 0 else values[4]
    if run < 0 or size <= 0 or (status == _CANCELLED and run == 0):
        return None
    requested = values[8] if values[8] > 0 else run
    return Job(int(values[0]), values[1], run, int(size), requested)


def _machine(header: dict[str, str], path: Path) -> int:
    for key in ("MaxProcs", "MaxNodes"):
        if key in header:
            try:
                size = int(header[key])
            except ValueError:
                size = 0
            if size < 1:
                raise WorkloadError(
                    f"'{path}' says {key}: {header[key]}; a positive whole number was expected."
                )
            return size
    raise WorkloadError(
        f"The header of '{path}' says neither MaxProcs nor MaxNodes.",
        "Give the size of the machine: processors=128.",
    )
