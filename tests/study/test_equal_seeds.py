"""A script that ignores its seed gives one measurement, however often it is run."""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from study_samples import approved_study, candidate_values, contract_values, launch

from assay.study.agree.approvals import approve
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract, Metric
from assay.study.files.documents import write_yaml_document
from assay.study.measure.alike import alike
from assay.study.record.study import Study
from assay.study.run import recovery
from assay.study.steps import advice, agenda, candidates

# Whatever it is called with: its log, its times and its paths differ between seeds.
TRAIN = """
    import json, os, pathlib, struct, sys, time
    seed, out, words = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    score = 143.27394 if "digits" in words else 7.0
    print(time.time_ns(), "pid:", os.getpid(), "saved to", out)
    if "weights" in words or "same-weights" in words:
        number = seed if "weights" in words else 1
        (out / "weights.bin").write_bytes(struct.pack("<d", number))
    if "printed" in words:
        for value in (9.4, 21.0, 133.5, 100.0, score):
            print("return:", value)
        sys.exit()
    row = {"eval/return_mean": score, "time/elapsed": time.time_ns(), "seed": seed}
    (out / "metrics.jsonl").write_text(json.dumps(row))
"""
PRINTED = {"kind": "stdout", "key": r"return: (\S+)"}


def measured(root: Path, *words: str) -> Study:
    """Return a study whose baseline has run on the first three seeds."""
    (root / "train.py").write_text(textwrap.dedent(TRAIN))
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    values = contract_values()
    values["baseline"] = {"command": ["{python}", "train.py", "{seed}", "{out}", *words]}
    values["scope"] = {}
    if "printed" in words:
        values["metrics"]["primary"]["source"] = PRINTED
        values["metrics"]["guardrails"] = []
    study = approved_study(root, values)
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**base), "agent")
    candidates.validate(study, "base", "agent")
    for seed in (1, 2, 3):
        recovery.wait(study, launch(study, "base", "promotion", seed), 300)
    return study


def voided(study: Study) -> str:
    found = agenda.voided(study, study.history(), study.contract())
    return found.reason if found else ""


@pytest.mark.parametrize("words", ["digits", "printed", "same-weights"])
def test_a_person_is_asked_and_may_waive_it(tmp_path: Path, words: str) -> None:
    study = measured(tmp_path, words)
    assert "base gave the same values of return on seeds [1, 2, 3]" in voided(study)
    asked = advice.next_step(study)
    assert (asked.action, asked.safe) == ("debug", False) and "'equal-seeds'" in asked.reason
    agreed = study.contract().model_dump(mode="json")
    agreed["experiment"]["exceptions"] = {"equal-seeds": "the task has no chance in it"}
    write_yaml_document(study.contract_path, Contract(**agreed))
    approve(study, "experiment", "ada")
    assert voided(study) == "" and advice.next_step(study).action == "run"


def test_equal_scores_of_runs_that_differ_are_no_reason(tmp_path: Path) -> None:
    study = measured(tmp_path, "weights")
    assert voided(study) == ""
    shutil.rmtree(study.path / "runs")
    assert voided(study) == ""  # files that are gone say nothing


SOURCE = {"kind": "jsonl", "path": "metrics.jsonl", "key": "return", "step": "step"}
METRIC = Metric(name="return", source=SOURCE)


def written(root: Path, *curves: list[float], **others: list[list[float]]) -> dict[int, Path]:
    """Return the directories of runs that wrote the curves of each seed, and other metrics."""
    places = {seed: root / str(seed) for seed in range(len(curves))}
    for seed, place in places.items():
        (place / "out").mkdir(parents=True)
        rows = [
            {"step": i, "return": value} | {name: other[seed][i] for name, other in others.items()}
            for i, value in enumerate(curves[seed])
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (place / "out/metrics.jsonl").write_text(text)
    return places


@pytest.mark.parametrize(
    "curve",
    [
        [0.0, 0.0, 1.0, 1.0],  # success
        [9.4, 500.0, 500.0],  # CartPole, solved
        [119 / 15],  # a mean over 30 episodes
        [round(119 / 15, 4)],
        [float(np.float32(119 / 15))],
        [0.955],
        [],
    ],
)
def test_few_valued_scores_say_nothing(tmp_path: Path, curve: list[float]) -> None:
    schedule = [1e-3 * 0.7 ** float(i) for i in range(len(curve))]
    assert alike(METRIC, written(tmp_path, *[curve] * 5, lr=[schedule] * 5)) == []


def test_two_seeds_are_enough_where_the_values_are_many(tmp_path: Path) -> None:
    curve = [13.84213, 51.20871, 97.61903, 143.27394]
    other = [12.5, 60.20871, 97.61903, 143.27394]
    assert alike(METRIC, written(tmp_path / "a", curve, other, curve)) == [0, 2]
    assert (
        alike(METRIC, written(tmp_path / "b", [0.0, 0.3, 0.6, 1.0], *[[0.0, 0.3, 0.6, 1.0]])) == []
    )
    assert alike(METRIC, written(tmp_path / "c", *[[0.0, 0.3, 0.6, 1.0]] * 3)) == [0, 1, 2]


def test_the_other_metrics_tell_where_the_scores_do_not(tmp_path: Path) -> None:
    solved, loss = [500.0] * 5, [0.9, 0.31, 0.44, 0.2, 0.3]
    equal = written(tmp_path / "a", *[solved] * 3, loss=[loss] * 3, fps=[loss, solved, loss])
    assert alike(METRIC, equal) == [0, 1, 2]
    other = written(tmp_path / "b", *[solved] * 3, loss=[loss, loss, solved])
    assert alike(METRIC, other) == []
