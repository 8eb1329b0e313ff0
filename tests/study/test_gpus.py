"""Every run has a GPU of its own, also where several loops launch at the same time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_samples import approved_study, candidate_values, contract_values
from typer.testing import CliRunner

from assay.cli.app import app
from assay.runs import provenance
from assay.study.agree.budget import Busy
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError, write_json_document
from assay.study.judge import audit
from assay.study.record.study import Study
from assay.study.run import gpus, launcher, planning, recovery, supervisor
from assay.study.run.queue import Queue
from assay.study.steps import candidates
from assay.study.steps.loop import Loop

Give = Callable[..., None]
A, B = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"


@pytest.fixture(autouse=True)
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Give:
    """Let this machine have some GPUs, none at first, with locks of the test's own."""
    monkeypatch.setattr(gpus, "LOCKS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def to_this_machine(*names: str) -> None:
        found = [
            {"index": str(i), "uuid": f"GPU-{i}{i}{i}", "name": name, "memory.total": "80 GiB",
             "driver_version": "1"} for i, name in enumerate(names)
        ]  # fmt: skip
        monkeypatch.setattr(provenance, "gpus", lambda: found)

    to_this_machine()
    return to_this_machine


def contract(parallel: int = 4, env: dict[str, str] | None = None, **hardware: Any) -> Contract:
    values = contract_values(hardware={"kind": "gpu"} | hardware)
    values["budget"] |= {"parallel": parallel, "gpu_hours": 10.0}
    values["baseline"]["env"] = env or {}
    return Contract(**values)


def numbers(agreed: Contract) -> list[str]:
    return [gpu["index"] for gpu in gpus.usable(agreed)]


class TestUsable:
    def test_a_contract_without_gpus_is_given_none(self, give: Give) -> None:
        give(A, A)
        assert numbers(Contract(**contract_values())) == []

    def test_all_of_one_model(self, give: Give) -> None:
        give(B, A, A)
        assert numbers(contract()) == ["1", "2"]
        assert numbers(contract(gpu_model="h200")) == ["0"]

    @pytest.mark.parametrize(
        ("words", "seen"), [("1", ["1"]), ("2,0", ["0", "2"]), ("GPU-11", ["1"]), ("1,7,2", ["1"])]
    )
    def test_those_that_the_user_left(self, give, monkeypatch, words: str, seen) -> None:
        give(A, A, A)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
        assert numbers(contract()) == seen

    def test_those_that_both_user_and_contract_left(self, give, monkeypatch) -> None:
        give(A, A, A)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
        assert numbers(contract(env={"CUDA_VISIBLE_DEVICES": "0,1"})) == ["1"]

    @pytest.mark.parametrize("words", ["", "-1", "5"])
    def test_none_is_one_message(self, give, monkeypatch, words: str) -> None:
        give(A)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
        with pytest.raises(StudyError, match=f"CUDA_VISIBLE_DEVICES='{words}' in the environment"):
            gpus.usable(contract())

    def test_fewer_than_a_run_needs(self, give: Give) -> None:
        give(A, B)
        with pytest.raises(StudyError, match=r"asks for 2 GPU\(s\) for each run, of one model; th"):
            gpus.usable(contract(gpus=2))

    @pytest.mark.parametrize(
        ("hardware", "runs"),
        [({}, 3), ({"gpus": 2}, 1), ({"runs_per_gpu": 2}, 6), ({"gpus": 2, "runs_per_gpu": 2}, 3)],
    )
    def test_as_many_runs_as_they_hold(self, give: Give, hardware, runs: int) -> None:
        give(A, A, A)
        agreed = contract(parallel=8, **hardware)
        assert gpus.at_once(agreed, gpus.usable(agreed)) == runs
        assert gpus.at_once(contract(parallel=1), gpus.usable(agreed)) == 1


def taken(agreed: Contract, stack: contextlib.ExitStack) -> list[str]:
    held = stack.enter_context(gpus.lease(agreed, gpus.usable(agreed)))
    return list(held.names)


class TestLease:
    def test_each_has_its_own_until_it_ends(self, give: Give) -> None:
        give(A, A)
        with contextlib.ExitStack() as all_of_them:
            assert taken(contract(), all_of_them) == ["0"]
            with contextlib.ExitStack() as one:
                assert taken(contract(), one) == ["1"]
                with pytest.raises(Busy, match="0 of the 2 GPUs"):
                    taken(contract(), one)
            assert taken(contract(), all_of_them) == ["1"]

    def test_a_run_that_needs_two_takes_no_single_one(self, give: Give) -> None:
        give(A, A, A)
        with contextlib.ExitStack() as stack:
            assert taken(contract(gpus=2), stack) == ["0", "1"]
            with pytest.raises(Busy, match="1 of the 3 GPUs"):
                taken(contract(gpus=2), stack)
            assert taken(contract(), stack) == ["2"]

    def test_runs_share_where_the_contract_says_so(self, give: Give) -> None:
        give(A, A)
        small = contract(runs_per_gpu=2)
        with contextlib.ExitStack() as stack:
            assert [taken(small, stack) for _ in range(4)] == [["0"], ["1"], ["0"], ["1"]]
            with pytest.raises(Busy):
                taken(small, stack)

    def test_who_shares_leaves_alone_who_does_not(self, give: Give) -> None:
        give(A, A)
        with contextlib.ExitStack() as stack:
            assert taken(contract(), stack) == ["0"]
            assert taken(contract(runs_per_gpu=2), stack) == ["1"]
            with pytest.raises(Busy):
                taken(contract(), stack)
            assert taken(contract(runs_per_gpu=2), stack) == ["1"]

    def test_it_is_held_by_whoever_inherits_it(self, give: Give) -> None:
        give(A)
        with gpus.lease(contract(), gpus.usable(contract())) as held:
            words = [sys.executable, "-c", "input()"]
            child = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=held.locks)
        with pytest.raises(Busy), contextlib.ExitStack() as stack:
            taken(contract(), stack)
        child.kill()
        child.wait()
        with contextlib.ExitStack() as stack:
            assert taken(contract(), stack) == ["0"]


TRAIN = """
import json, os, pathlib, sys, time
seed, out = sys.argv[1:]
out = pathlib.Path(out)
given = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")]
(out / "given.json").write_text(json.dumps(given))
place = out.parents[2] / f"in-use-{given[0]}"
place.mkdir()  # which fails while another run has the same GPU
time.sleep(0.2)
place.rmdir()
row = {"eval/return_mean": 100 + int(seed) % 10, "time/elapsed": 1.0}
(out / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
"""


def gpu_study(root: Path, parallel: int = 4, **hardware: Any) -> Study:
    """Return an approved study of a script that says which GPU it was given, with a baseline."""
    (root / "train.py").write_text(TRAIN)
    (root / ".gitignore").write_text(".rlxp/\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    values = contract(parallel, **hardware).model_dump(mode="json")
    command = ["{python}", "train.py", "{seed}", "{out}"]
    values["baseline"] = {"command": command, "env_allow": ["PATH"]}
    values["scope"] = {}
    values["experiment"] = {"mode": "supervised"}
    study = approved_study(root, values)
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**base), "agent")
    candidates.validate(study, "base", "agent")
    return study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "r").mkdir()
    return tmp_path / "r"


def launch(study: Study, seed: int) -> str:
    return launcher.launch(study, "base", "promotion", seed, confirm=None, actor="agent").run


def launch_when_free(study: Study, seed: int) -> str:
    """Launch; a GPU is free when the supervisor of a run that ended is gone as well."""
    until = time.monotonic() + 60
    while True:
        try:
            return launch(study, seed)
        except Busy:
            assert time.monotonic() < until, "no GPU became free"
            time.sleep(0.05)


class TestRuns:
    def test_each_sees_its_own_alone_and_says_so(self, root: Path, give: Give, monkeypatch) -> None:
        give(A, A, A)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
        study = gpu_study(root)
        runs = [launch(study, 1), launch(study, 2)]
        with pytest.raises(Busy, match="0 of the 2 GPUs"):
            launch(study, 3)
        for run, number in zip(runs, "12", strict=True):
            record = recovery.wait(study, run)
            assert record.outcome == "done", record.reason
            given = json.loads((study.path / "runs" / run / "out/given.json").read_text())
            assert given == [number, "PCI_BUS_ID"]
            assert record.gpus == (f"{number}: {A}",)
            assert record.env["CUDA_VISIBLE_DEVICES"] == number
            assert study.history().runs[run].prepared.data["gpus"] == {number: A}
        assert recovery.wait(study, launch_when_free(study, 3)).outcome == "done"

    @pytest.mark.slow
    def test_two_loops_at_once(self, root: Path, give: Give) -> None:
        give(A, A)
        study = gpu_study(root)
        loops = [Loop(study, planning.CONFIRM, name) for name in ("one", "two")]
        workers = [threading.Thread(target=loop.run) for loop in loops]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        runs = [study.run(run) for run in study.history().runs]
        assert [run.outcome for run in runs] == ["done"] * 10
        assert {item.attempts for item in Queue(study).manifest().items} == {1}
        assert {run.gpus for run in runs} == {(f"0: {A}",), (f"1: {A}",)}

    def test_a_killed_supervisor_holds_nothing(self, root: Path, give: Give, monkeypatch) -> None:
        give(A)
        study = gpu_study(root)
        monkeypatch.setattr(supervisor, "start", lambda *words: None)
        launch(study, 1)  # whose supervisor is never seen
        monkeypatch.undo()
        monkeypatch.setattr(gpus, "LOCKS", root.parent)
        give(A)
        assert recovery.wait(study, launch(study, 2)).outcome == "done"

    def test_arms_on_other_models_fail_the_audit(self, root: Path, give: Give) -> None:
        give(A, B)
        study = gpu_study(root)
        runs = [launch(study, 1)]
        recovery.wait(study, runs[0])
        history = study.history()
        other = study.run(runs[0]).model_copy(update={"id": "other", "gpus": (f"1: {B}",)})
        write_json_document(study.path / "runs" / "other" / "run.json", other)
        mine = [dataclasses.replace(history.runs[runs[0]], id="other")]
        found = audit._machines(study, mine, [history.runs[runs[0]]])
        assert not found.passed and found.detail == f"other ran on {B}, {runs[0]} on {A}"
        same = other.model_copy(update={"gpus": (f"1: {A}",)})
        write_json_document(study.path / "runs" / "other" / "run.json", same)
        assert audit._machines(study, mine, [history.runs[runs[0]]]).passed


class TestMissing:
    @pytest.mark.parametrize(
        "words",
        [
            ["contract", "check"],
            ["next"],
            ["run", "base", "--phase", "promotion", "--seed", "1"],
            ["loop", "--execute", "--confirm", "RUN_CANDIDATE"],
        ],
        ids=lambda words: words[0],
    )
    def test_is_one_message_before_anything_is_spent(self, root: Path, give, words) -> None:
        give(A)
        study = gpu_study(root)
        command = ["study", *words, "--root", str(root)]
        study.sync()
        give()
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2
        message = "GPU missing: the contract asks for 1 GPU(s) for each run, of one model; this"
        assert message in " ".join(done.output.split())
        assert study.history().usage.runs == 0

    def test_it_is_there_and_a_dry_run_says_which(self, root: Path, give: Give) -> None:
        give(A, A)
        gpu_study(root).sync()
        dry = ["study", "run", "base", "--phase", "promotion", "--seed", "1", "--root", str(root)]
        assert "any free of 0, 1" in CliRunner().invoke(app, dry).output
        checked = CliRunner().invoke(app, ["study", "contract", "check", "--root", str(root)])
        assert checked.exit_code == 0
        assert "budget.parallel is 4, and the 2 GPUs" in " ".join(checked.output.split())
        assert CliRunner().invoke(app, ["study", "next", "--root", str(root)]).exit_code == 0
