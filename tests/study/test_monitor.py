"""What a run's files say about its health, and which of it may end the run."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_samples import candidate_values, contract_values

from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_json_document, write_yaml_document
from assay.study.files.records import RunRecord
from assay.study.measure import monitor
from assay.study.measure.monitor import Watch, health
from assay.study.record.study import Study
from assay.study.run import switch
from assay.study.steps import candidates

NAMES = (
    "policy_entropy", "approx_kl", "explained_variance", "value_loss", "fps", "ankle_torque",
)  # fmt: skip


def agreed(**stop: Any) -> Contract:
    values = contract_values()
    source = {"kind": "jsonl", "path": "log.jsonl", "step": "step"}
    metric = {"name": "return", "source": source | {"key": "return"}, "minimum_effect": 10.0}
    values["metrics"] = {
        "primary": metric,
        "training_reward": {"name": "reward", "source": source | {"key": "reward"}},
        "diagnostics": [{"name": name, "source": source | {"key": name}} for name in NAMES],
    }
    values["experiment"] = {"stop": stop}
    return Contract(**values)


def shown(value: Any) -> float | str:
    """Return a number as JSON can say it."""
    return "NaN" if math.isnan(value) else float(value)


def log(place: Path, **columns: Any) -> None:
    """Write series of equal length as a run's log."""
    (place / "out").mkdir(parents=True, exist_ok=True)
    rows = zip(*columns.values(), strict=True)
    lines = [
        json.dumps({"step": 100 * i} | dict(zip(columns, map(shown, row), strict=True)))
        for i, row in enumerate(rows)
    ]
    (place / "out" / "log.jsonl").write_text("\n".join(lines) + "\n")


def levels(contract: Contract, place: Path, over: bool = False) -> dict[str, str]:
    """Return the worst level by name."""
    found: dict[str, str] = {}
    for item in monitor.learning(contract, place, over=over):
        if found.get(item.name, "ok") == "ok":
            found[item.name] = item.level
    return found


RISING = np.linspace(0, 100, 40)


class TestWatch:
    def test_silence_ends_a_run_and_any_sign_of_life_does_not(self, tmp_path: Path) -> None:
        watch = Watch(agreed(frozen_minutes=1), tmp_path)
        log(tmp_path, **{"return": [1.0]})
        assert watch.look(0.0) is None
        assert watch.look(59.0) is None
        path = tmp_path / "out/log.jsonl"
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # written again, with the same size
        assert watch.look(100.0) is None
        assert watch.look(159.0) is None
        assert watch.look(161.0) == "it has written nothing for 1 minutes"

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_metric_that_is_no_number(self, tmp_path: Path, value: float) -> None:
        log(tmp_path, reward=[1.0, value])
        assert Watch(agreed(), tmp_path).look(0.0) == f"reward is {value}"
        assert Watch(agreed(nan=False), tmp_path).look(0.0) is None

    def test_entropy_below_the_rule(self, tmp_path: Path) -> None:
        log(tmp_path, policy_entropy=[0.7, 0.01])
        reason = Watch(agreed(entropy_below=0.05), tmp_path).look(0.0)
        assert reason == "policy_entropy is 0.01, below 0.05"
        assert Watch(agreed(entropy_below=0.005), tmp_path).look(0.0) is None
        assert Watch(agreed(), tmp_path).look(0.0) is None

    def test_what_only_warns_ends_nothing(self, tmp_path: Path) -> None:
        log(
            tmp_path,
            **{"return": RISING[::-1]},
            approx_kl=np.full(40, 9.0),
            explained_variance=np.zeros(40),
            value_loss=np.geomspace(1, 1e9, 40),
            fps=RISING[::-1],
        )
        warned = {n for n, level in levels(agreed(), tmp_path).items() if level == "warn"}
        assert warned == {"collapse", "KL", "dead value function", "divergence", "throughput"}
        assert Watch(agreed(), tmp_path).look(0.0) is None

    @pytest.mark.parametrize(
        ("name", "content"),
        [("evaluations.npz", b"PK\x03\x04 torn"), ("progress.csv", b"a\n" + b"x" * 200_000)],
    )
    def test_a_file_that_breaks_its_reader_does_not_break_the_watch(
        self, tmp_path: Path, name: str, content: bytes
    ) -> None:
        values = agreed().model_dump(mode="json")
        kind = "csv" if name.endswith("csv") else "sb3-evaluations"
        values["metrics"]["primary"]["source"] = {"kind": kind, "path": name, "key": "results"}
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / name).write_bytes(content)
        assert Watch(Contract(**values), tmp_path).look(0.0) is None

    def test_long_logs_are_read_less_often(self, tmp_path: Path) -> None:
        seconds = iter([0.0, 1.0, 1.0, 2.0])  # each reading takes one second
        watch = Watch(agreed(), tmp_path, clock=lambda: next(seconds))
        log(tmp_path, reward=[1.0])
        assert watch.look(0.0) is None
        log(tmp_path, reward=[1.0, math.nan])
        assert watch.look(10.0) is None
        assert watch.look(1 / monitor.READING_SHARE + 1) == "reward is nan"

    def test_what_did_not_change_is_not_read_again(self, tmp_path: Path) -> None:
        ticks: list[float] = []
        watch = Watch(agreed(), tmp_path, clock=lambda: ticks.append(0.0) or 0.0)
        log(tmp_path, reward=[1.0])
        for now in range(5):
            watch.look(float(now))
        assert len(ticks) == 2


class TestLearning:
    def test_a_run_that_learns(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        log(
            tmp_path,
            **{"return": RISING + rng.normal(0, 2, 40)},
            policy_entropy=np.linspace(1.4, 0.6, 40),
            approx_kl=rng.uniform(0, 0.02, 40),
            explained_variance=np.linspace(-0.2, 0.9, 40),
            value_loss=np.linspace(5, 1, 40),
            fps=rng.normal(1000, 30, 40),
        )
        found = levels(agreed(), tmp_path)
        assert set(found.values()) == {"ok"}
        assert {"numbers", "progress", "entropy", "KL", "throughput", "divergence"} <= set(found)

    @pytest.mark.parametrize(
        ("columns", "name"),
        [
            ({"return": [*RISING, *np.full(10, 20.0)]}, "collapse"),
            ({"return": np.where(RISING < 30, RISING, 30.0)}, "plateau"),
            ({"policy_entropy": [1.0, 0.9, 0.01]}, "entropy"),
            ({"approx_kl": np.linspace(0, 1, 20)}, "KL"),
            ({"explained_variance": np.linspace(0, -3, 20)}, "explained variance"),
            ({"explained_variance": np.full(20, 0.001)}, "dead value function"),
            ({"value_loss": np.full(20, 3.0)}, "dead value function"),
            ({"fps": [*np.full(15, 900.0), *np.full(5, 200.0)]}, "throughput"),
            ({"value_loss": np.geomspace(1, 1e8, 20)}, "divergence"),
        ],
    )
    def test_what_goes_wrong_has_a_name(self, tmp_path: Path, columns: Any, name: str) -> None:
        log(tmp_path, **columns)
        found = levels(agreed(), tmp_path)
        assert [n for n, level in found.items() if level != "ok"] == [name]

    def test_noise_alone_is_no_collapse(self, tmp_path: Path) -> None:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            log(tmp_path, **{"return": rng.normal(50, 10, 200)})
            assert "collapse" not in levels(agreed(), tmp_path)

    def test_less_is_better_where_the_contract_says_so(self, tmp_path: Path) -> None:
        values = agreed().model_dump(mode="json")
        values["metrics"]["primary"]["direction"] = "minimize"
        log(tmp_path, **{"return": RISING})
        assert levels(Contract(**values), tmp_path)["collapse"] == "warn"
        log(tmp_path, **{"return": RISING[::-1]})
        assert levels(Contract(**values), tmp_path)["progress"] == "ok"

    def test_standing_still_at_the_end_of_a_finished_run_is_nothing_odd(self, tmp_path) -> None:
        log(tmp_path, **{"return": np.where(RISING < 30, RISING, 30.0)})
        assert levels(agreed(), tmp_path, over=True)["plateau"] == "ok"

    def test_a_rule_that_can_never_apply_is_pointed_out(self, tmp_path: Path) -> None:
        values = agreed(entropy_below=0.1).model_dump(mode="json")
        values["metrics"]["diagnostics"] = []
        [found] = [
            f for f in monitor.learning(Contract(**values), tmp_path, over=False) if f.level != "ok"
        ]
        assert (found.name, found.level) == ("entropy", "warn")

    def test_kl_is_a_word_and_not_two_letters(self, tmp_path: Path) -> None:
        log(tmp_path, ankle_torque=np.full(20, 50.0))
        assert "KL" not in levels(agreed(), tmp_path)


class TestHealth:
    @pytest.fixture
    def study(self, tmp_path: Path) -> Study:
        study = Study(tmp_path, "cartpole", "lr")
        study.path.mkdir(parents=True)
        write_yaml_document(study.contract_path, agreed(frozen_minutes=10))
        candidates.propose(study, Candidate(**candidate_values()), "agent")  # asks for 3 minutes
        record = RunRecord(
            id="c1-short-0", candidate="c1", phase="short", seed=0, argv=("x",), cwd=".",
            out="out", protocol="0" * 64,
        )  # fmt: skip
        write_json_document(study.path / "runs/c1-short-0/run.json", record)
        return study

    @staticmethod
    def begun(study: Study) -> float:
        """Put a run under way on record and return when it began."""
        place = study.path / "runs/c1-short-0"
        for name in ("claim.json", "process.json", "heartbeat.json"):
            (place / name).write_text("{}")
        log(place, **{"return": RISING})
        return time.time()

    @staticmethod
    def of(study: Study, now: float | None = None) -> dict[str, str]:
        return {f.name: f.level for f in health(study, "c1-short-0", now)}

    def test_a_run_under_way(self, study: Study) -> None:
        now = self.begun(study)
        found = self.of(study, now)
        expected = ("process", "time", "output", "numbers", "progress")
        assert {name: found[name] for name in expected} == dict.fromkeys(expected, "ok")

    @pytest.mark.parametrize(
        ("minutes", "expected"),
        [
            (1.0, {"process": "warn", "time": "ok", "output": "ok"}),
            (4.0, {"process": "warn", "time": "warn", "output": "ok"}),
            (6.0, {"process": "warn", "time": "stop", "output": "warn"}),
            (11.0, {"process": "warn", "time": "stop", "output": "stop"}),
        ],
    )
    def test_time_passes_and_nothing_happens(self, study: Study, minutes, expected) -> None:
        found = self.of(study, self.begun(study) + 60 * minutes)
        assert {name: found[name] for name in expected} == expected

    def test_the_kill_switch(self, study: Study) -> None:
        now = self.begun(study)
        switch.stop(study, "enough", "ada")
        assert self.of(study, now)["kill switch"] == "stop"

    @pytest.mark.parametrize(("outcome", "level"), [("done", "ok"), ("killed", "warn")])
    def test_a_run_that_is_over(self, study: Study, outcome: str, level: str) -> None:
        self.begun(study)
        facts = {"outcome": outcome, "exit_code": 0, "reason": "because", "hours": 0.1}
        record = study.run("c1-short-0").model_copy(update=facts)
        write_json_document(study.path / "runs/c1-short-0/run.json", record)
        [process] = [f for f in health(study, "c1-short-0") if f.name == "process"]
        assert process.level == level and f"{outcome}, because" in process.detail
        assert "output" not in self.of(study)

    def test_a_run_that_was_never_started_and_one_that_is_not_there(self, study: Study) -> None:
        assert self.of(study)["process"] == "warn"
        with pytest.raises(StudyError, match="c9"):
            health(study, "c9")
