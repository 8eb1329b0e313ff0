"""The benchmark of the training server: it runs, and its table says what was measured."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import evidence  # noqa: E402
import report  # noqa: E402
import server  # noqa: E402

GOOD: dict[str, Any] = {
    "schema": evidence.SCHEMA,
    "date": "2030-01-02",
    "machine": {"cpu": "a processor", "cores": 2, "versions": {"python": "3.12"}},
    "act_us": {"assay": [10.0, 30.0], "reference": [500.0, 900.0]},
    "heads_us": {
        "categorical": {"learner": [20.0, 40.0], "C++": [0.5, 1.0]},
        "gaussian": {"learner": [20.0, 40.0], "C++": [0.6, 2.5]},
    },
    "codec_ms": {"assay": [0.03, 0.04], "reference": [5.0, 6.0]},
    "ingest": {
        "clients": 4, "batch_steps": 1000, "seconds": 5.0, "bare_syncs": 700.0,
        "assay": [600_000.0, 900_000.0, 800_000.0], "with_reader": [5e5], "reference": [2000.0],
    },
    "publish_ms": {"versions": 300, "p50_p99": [12.0, 40.0]},
    "restart": {
        "rounds": 5, "period_ms": 1.0,
        "assay": {"decisions": 10_000, "missed": 0, "late": 3, "us": [15.0, 60.0, 900.0],
                  "sessions": 6, "dropped_steps": 0},
        "reference": {"decisions": 10_000, "missed": 2500, "us": [500.0, 900.0, 1e6]},
    },
    "kills": {"kills": 1000, "acknowledged": 9000, "stored": 9000, "lost": 0, "doubled": 0,
              "disordered": 0, "unanswered": 0, "sessions": 2000, "versions": 700, "problems": []},
}  # fmt: skip


def test_the_table_compares_what_was_measured_together() -> None:
    text = server.lines(GOOD)
    assert "| 10.0 us | 500 us | 50x | 20 us | yes |" in text
    assert "| 2.50 us |  |  | 3 us | yes |" in text  # the slowest head
    assert "| 0.070 ms | 11.0 ms | 157x | 0.1 ms | yes |" in text
    assert "| 800,000 steps/s | 2,000 steps/s, not durable | 400x |" in text  # medians
    assert "| 0 of 10,000 | 25% |" in text
    assert "after 1,000 kills | 0 / 0 |" in text
    assert "**no**" not in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("act_us", "assay"), [21.0, 30.0]),
        (("heads_us", "categorical", "C++"), [0.5, 3.1]),
        (("codec_ms", "assay"), [0.06, 0.06]),
        (("ingest", "assay"), [499_999.0]),
        (("publish_ms", "p50_p99"), [1.0, 51.0]),
        (("restart", "assay", "missed"), 1),
        (("kills", "lost"), 1),
        (("kills", "doubled"), 1),
        (("kills", "disordered"), 1),
        (("kills", "problems"), ["the last gateway did not end in order"]),
    ],
)
def test_a_target_that_is_missed_is_shown(path: tuple[str, ...], value: Any) -> None:
    content = copy.deepcopy(GOOD)
    part = content
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    assert server.lines(content).count("**no**") == 1


def test_without_a_compiler_the_rest_is_shown() -> None:
    content = copy.deepcopy(GOOD)
    for ways in content["heads_us"].values():
        del ways["C++"]
    assert "| not built |  |  | 3 us |  |" in server.lines(content)


def test_the_report_shows_it_and_refuses_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server.json"
    monkeypatch.setattr(server, "EVIDENCE", path)
    assert "Not measured yet" in report.server_table()
    evidence.write_json(path, GOOD)
    assert "Measured on 2030-01-02 on a processor (Python 3.12), 2 cores." in report.server_table()
    evidence.write_json(path, {**GOOD, "kills": {}})
    with pytest.raises(evidence.EvidenceError, match=r"server.json"):
        report.server_table()


@pytest.mark.slow
def test_a_quick_run_measures_a_little_of_all() -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "server.py"), "--quick"],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    # What does not depend on the machine holds even here.
    assert "after 4 kills | 0 / 0 | all in memory |  | 0 / 0 | yes |" in done.stdout
    assert "| decisions missed while the server restarts | 0 of " in done.stdout
