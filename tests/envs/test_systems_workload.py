"""The Standard Workload Format is read strictly, and the model gives workloads of its kind."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaincc

from assay.envs.systems.workload import (
    SHIPPED,
    Job,
    Workload,
    WorkloadError,
    lublin,
    read_swf,
    write_swf,
)

HEADER = "; Version: 2.2\n; Computer: none\n;   a remark\n; MaxProcs: 8\n; MaxNodes: 4\n\n"
#       number submit wait run procs cpu mem req time mem status user ... think time
LINES = [
    "1 0 5 100 4 -1 -1 -1 -1 -1 1 1 1 -1 1 -1 -1 -1",
    "2 10.5 -1 20.25 2 19.5 -1 3 60 -1 0 1 1 -1 1 -1 1 2.5",
    "3 11 -1 0 1 -1 -1 1 60 -1 5 1 1 -1 1 -1 -1 -1",  # cancelled before it ran
    "4 12 -1 -1 1 -1 -1 1 60 -1 -1 1 1 -1 1 -1 -1 -1",  # run time unknown
    "5 12 -1 0 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1",  # less than half a second
]


def write(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text(header + "\n".join(lines) + "\n")
    return path


class TestReading:
    def test_jobs_and_header(self, tmp_path: Path) -> None:
        workload = read_swf(write(tmp_path / "w.swf", LINES))
        assert workload.jobs == (
            Job(1, 0, 100, 4, 100),  # neither size nor time requested: what it got and took
            Job(2, 10.5, 20.25, 3, 60),
            Job(5, 12, 0, 1, 60),
        )
        assert workload.processors == 8 and workload.left_out == 2
        assert workload.header["Computer"] == "none"
        assert workload.load == (100 * 4 + 20.25 * 3) / (8 * 12)

    def test_packed(self, tmp_path: Path) -> None:
        plain = write(tmp_path / "w.swf", LINES)
        packed = tmp_path / "packed"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        assert read_swf(packed).jobs == read_swf(plain).jobs

    def test_size_of_the_machine(self, tmp_path: Path) -> None:
        nodes = write(tmp_path / "n.swf", LINES, "; MaxNodes: 16\n")
        assert read_swf(nodes).processors == 16
        assert read_swf(nodes, processors=5).processors == 5
        for header in ("; Version: 2\n", "; MaxProcs: many\n", "; MaxProcs: 0\n"):
            with pytest.raises(WorkloadError, match="MaxProcs"):
                read_swf(write(tmp_path / "x.swf", LINES, header))

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("2 1 -1 5 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1", "17 fields; 18"),
            ("2 1 -1 5 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1 -1", "19 fields; 18"),
            ("2 1 -1 five 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1", "run time is 'five'"),
            ("2 1 -1 5 1.5 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1", "allocated processors is '1.5'"),
            ("2 1 -1 nan 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1", "run time is nan"),
            ("2 1 -1 inf 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1", "run time is inf"),
            ("2 1 -7 5 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1", "wait time is -7"),
            ("2 -1 -1 5 1 -1 -1 1 60 -1 1 1 1 -1 1 -1 -1 -1", "no submit time"),
        ],
    )
    def test_bad_lines_are_named(self, tmp_path: Path, line: str, told: str) -> None:
        with pytest.raises(WorkloadError, match=r"Line 8 of '.*w\.swf'") as caught:
            read_swf(write(tmp_path / "w.swf", [LINES[0], line]))
        assert told in caught.value.message

    def test_order_and_size(self, tmp_path: Path) -> None:
        with pytest.raises(
            WorkloadError, match=r"Line 8 .* submit time 0, the job before it 10\.5"
        ):
            read_swf(write(tmp_path / "w.swf", [LINES[1], LINES[0]]))
        with pytest.raises(WorkloadError, match=r"Job 1 .* needs 4 processors; the machine has 2"):
            read_swf(write(tmp_path / "w.swf", LINES), processors=2)

    def test_what_is_not_a_workload(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="no job that ran"):
            read_swf(write(tmp_path / "w.swf", []))
        with pytest.raises(WorkloadError, match="There is no workload"):
            read_swf(tmp_path / "missing.swf")
        torn = tmp_path / "torn.swf.gz"
        torn.write_bytes(SHIPPED.read_bytes()[:1000])
        with pytest.raises(WorkloadError, match="cannot be read"):
            read_swf(torn)
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00 1 2")
        with pytest.raises(WorkloadError, match="cannot be read"):
            read_swf(tmp_path / "bytes")


@pytest.mark.parametrize("name", ["w.swf", "w.swf.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    jobs = (Job(1, 0, 12.5, 3, 60), Job(2, 1234567.25, 0, 8, 1e5))
    write_swf(tmp_path / name, Workload(jobs, 8, {"Note": "a: b"}))
    again = read_swf(tmp_path / name)
    assert again.jobs == jobs and again.processors == 8 and again.header["Note"] == "a: b"
    first = (tmp_path / name).read_bytes()
    write_swf(tmp_path / name, Workload(jobs, 8, {"Note": "a: b"}))
    assert (tmp_path / name).read_bytes() == first


class TestModel:
    def test_by_seed(self) -> None:
        assert lublin(50, seed=3) == lublin(50, seed=3)
        assert lublin(50, seed=3) != lublin(50, seed=4)

    @pytest.mark.parametrize("load", [0.5, 0.9])
    def test_distributions(self, load: float) -> None:
        workload = lublin(20_000, 256, load=load, seed=2)
        size = np.array([job.size for job in workload.jobs])
        run = np.array([job.run for job in workload.jobs])
        submit = np.array([job.submit for job in workload.jobs])
        requested = np.array([job.requested for job in workload.jobs])
        assert abs(workload.load - load) < 1e-3
        assert size.min() == 1 and size.max() == 256
        assert abs((size == 1).mean() - 0.244) < 0.01
        # The smallest parallel size is 2 (u from 0.8), the knee at 2^5.5 with 86% below it.
        assert abs((size[size > 1] <= 2**5.5).mean() - 0.86) < 0.02
        powers = np.isin(size, 2 ** np.arange(1, 9)).sum() / len(size)
        assert 0.576 < powers < 0.72  # those that are rounded, and some others by chance
        # log run time: a gamma of mean 4.2 x 0.94 and one of 312 x 0.03, of which the second
        # has a share of 1 - (0.78 - 0.0054 size)
        serial = np.log(run[size == 1])
        share = 0.78 - 0.0054
        expected = (1 - share) + share * gammaincc(4.2, 8.0 / 0.94)
        assert abs((serial > 8.0).mean() - expected) < 0.02
        assert abs(np.median(serial[serial > 8.5]) - 9.36) < 0.1
        assert (run[size > 150] > np.exp(8.0)).mean() > 0.95
        assert run.max() <= np.exp(12.0)
        # Most jobs come in the afternoon, few before dawn.
        hours = np.histogram(submit % 86400 / 3600, 24, (0, 24))[0]
        assert hours[11:17].sum() > 5 * hours[2:8].sum()
        assert (np.diff(submit) >= 0).all() and submit[0] == 0
        # Estimates are limits that people choose; few are exact, none too short but for the cap.
        assert (requested >= run).mean() > 0.999 and len(set(requested.tolist())) <= 20
        assert 0.3 < np.median(run / requested) < 0.7

    def test_refuses(self) -> None:
        for bad in ({"jobs": 1}, {"jobs": 5, "processors": 2}, {"jobs": 5, "load": 0.0}):
            with pytest.raises(WorkloadError, match="expected at least"):
                lublin(**bad)  # type: ignore[arg-type]


def test_shipped_workload() -> None:
    assert SHIPPED.stat().st_size < 400 * 1024
    workload = read_swf(SHIPPED)
    assert len(workload.jobs) == 10_000 and workload.processors == 256 and workload.left_out == 0
    assert abs(workload.load - 0.9) < 0.001
