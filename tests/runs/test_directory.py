import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from assay.core.errors import RunError
from assay.runs import directory as module
from assay.runs.directory import RunDirectory, find_runs, group_runs
from assay.runs.files import RunWarning

CONFIG = {"algorithm": "ppo", "env_steps": 100_000, "lr": 3e-4, "hidden": [64, 64], "clip": None}


@pytest.fixture
def make(tmp_path):
    """Create runs that are unlocked again at the end of the test."""
    made = []

    def create(name="x", root=tmp_path, **changes):
        settings = {"algorithm": "ppo", "env": "CartPole-v1", "config": CONFIG, "seed": 1}
        run = RunDirectory.create(root, name, **{**settings, **changes})
        made.append(run)
        return run

    yield create
    for run in made:
        run.unlock()


def edit(run, **fields):
    path = run.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def fails(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


# Creating


def test_a_new_run_has_its_files_and_can_be_opened(make):
    run = make()
    again = RunDirectory.open(run.path)
    assert again.config == CONFIG
    assert again.id == run.id
    assert again.name == "x"
    assert again.status == "running"
    assert again.provenance == {}
    assert again.evals() == []
    assert again.events() == []
    for key, value in {
        "algorithm": "ppo",
        "env": "CartPole-v1",
        "seed": 1,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "schema": 1,
    }.items():
        assert again.info[key] == value
    assert {p.name for p in run.path.iterdir() if p.is_dir()} == {"eval", "checkpoints", "videos"}


def test_default_names_are_tidy_and_never_the_same(make, tmp_path):
    runs = [make(None, env="ALE/Pong v5", clock=lambda: 0.0) for _ in range(5)]
    assert len({run.path for run in runs}) == 5
    for run in runs:
        assert re.fullmatch(r"ppo-ALE-Pong-v5-19\d{6}-\d{6}-[0-9a-f]{6}", run.name)
        assert run.path == tmp_path / run.name


def test_a_default_name_that_is_taken_is_drawn_again(make, monkeypatch):
    draws = iter(["aaaaaa", "id-1", "f1", "f2", "aaaaaa", "bbbbbb", "id-2", "f3", "f4"])
    monkeypatch.setattr(module.secrets, "token_hex", lambda n: next(draws))
    first, second = (make(None, clock=lambda: 0.0) for _ in range(2))
    assert first.name.endswith("-aaaaaa")
    assert second.name.endswith("-bbbbbb")


def test_seeds_are_runs_of_a_group(make, tmp_path):
    for seed in (2, 1):
        make(f"x/seed-{seed}", seed=seed)
    runs = group_runs(tmp_path / "x")
    assert [run.info["seed"] for run in runs] == [1, 2]
    assert runs[0].path == tmp_path / "x" / "seed-1"
    with pytest.raises(RunError, match="exists already"):
        make("x")
    with pytest.raises(RunError, match="is a run, so it cannot hold"):
        make("x/seed-1/again")


def test_a_taken_name_offers_resume_or_another(make):
    run = make()
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(RunError) as caught:
        make()
    assert str(run.path) in caught.value.message
    assert "assay resume" in caught.value.fix
    assert "another name" in caught.value.fix
    assert (run.path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/../b", "/abs", "a//b", "a/", ".hidden", "-rf"),
        *("a b", "a\nb", "a\n", "ü*", "a\\b", "a\0b", "x" * 101),
    ],
)
def test_names_that_could_leave_the_root_or_need_quoting_are_refused(make, tmp_path, name):
    with pytest.raises(RunError, match="cannot be the name of a run"):
        make(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [None, "x"])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "the disk is full"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_clear_message(
    make, tmp_path, monkeypatch, name, number, words
):
    monkeypatch.setattr(os, "mkdir", fails(number))
    with pytest.raises(RunError, match=f"Cannot create the run directory.*{words}") as caught:
        make(name)
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize("name", [None, "x", "x/seed-1"])
def test_a_file_where_the_root_should_be_is_named(make, tmp_path, name):
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match=r"runs.* file"):
        make(name, root=tmp_path / "runs")


def test_a_disk_that_fills_up_while_creating_leaves_nothing(make, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails(errno.ENOSPC))
        with pytest.raises(RunError, match="the disk is full"):
            make()
    assert list(tmp_path.iterdir()) == []
    make()


def test_a_new_run_survives_a_power_cut(make, tmp_path, monkeypatch):
    synced, real = set(), os.fsync

    def fsync(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    run = make()
    for path in (tmp_path, run.path, run.path / "run.json", run.path / "config.yaml"):
        assert path.stat().st_ino in synced, path


CREATOR = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from assay.core.errors import RunError
    from assay.runs.directory import RunDirectory

    def create(name):
        facts = dict(algorithm="ppo", env="CartPole-v1", config={}, seed=1)
        return RunDirectory.create(Path(sys.argv[1]), name, **facts)

    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(20):
        create(None)
    won = 0
    for k in range(20):
        try:
            create(f"named/{k}")
            won += 1
        except RunError:
            pass
    print(won, flush=True)
    """
)


def spawn(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_create_runs_at_once_never_collide(tmp_path):
    processes = [spawn(CREATOR, tmp_path) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    won = [int(process.communicate()[0]) for process in processes]
    assert sum(won) == 20
    runs = find_runs(tmp_path)
    assert len(runs) == 3 * 20 + 20
    assert len({run.id for run in runs}) == len(runs)


# Opening


def test_what_is_not_a_run_is_refused_and_what_is_missing_is_named(make, tmp_path):
    make("ppo-1")
    with pytest.raises(RunError, match=r"no run at .*ppo-l") as caught:
        RunDirectory.open(tmp_path / "ppo-l")
    assert caught.value.fix == "Did you mean 'ppo-1'?"
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"empty' is not a run: .*run\.json' is missing"):
        RunDirectory.open(tmp_path / "empty")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not readable JSON"),
        ("[]", "expected an object"),
        ('{"name": "other tool"}', "lacks 'schema'"),
        ('{"schema": 99}', "lacks 'id'"),
    ],
)
def test_a_run_json_of_another_program_is_named(make, content, words):
    run = make()
    (run.path / "run.json").write_text(content)
    with pytest.raises(RunError, match=rf"run\.json' .*{words}"):
        RunDirectory.open(run.path)


def test_a_newer_schema_an_odd_schema_and_an_odd_status_are_refused(make):
    run = make()
    edit(run, schema=99)
    with pytest.raises(RunError, match=r"newer Assay .*schema 99"):
        RunDirectory.open(run.path)
    edit(run, schema="one")
    with pytest.raises(RunError, match="schema 'one'"):
        RunDirectory.open(run.path)
    edit(run, schema=1, status="happy")
    with pytest.raises(RunError, match="status 'happy'"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize(
    ("content", "words"), [("a: [", "not readable"), ("", "no settings"), (None, "No such file")]
)
def test_a_damaged_config_is_named(make, content, words):
    run = make()
    path = run.path / "config.yaml"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(RunError, match=rf"config\.yaml'.*{words}"):
        _ = run.config


# Status


def test_the_status_is_written_with_its_reason(make):
    run = make()
    run.set_status("failed", error="NaN reward in environment 3")
    again = RunDirectory.open(run.path)
    assert again.status == again.effective_status == "failed"
    assert again.info["error"] == "NaN reward in environment 3"
    assert again.info["finished"] is not None
    run.set_status("running")
    again = RunDirectory.open(run.path)
    assert again.info["error"] is again.info["finished"] is None
    with pytest.raises(ValueError, match="status='gone'"):
        run.set_status("gone")


def test_a_status_that_cannot_be_written_leaves_the_old_one(make, monkeypatch):
    run = make()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails(errno.ENOSPC))
        with pytest.raises(RunError, match=r"run\.json': the disk is full"):
            run.set_status("done")
        run.heartbeat(5)
    assert run.status == RunDirectory.open(run.path).status == "running"


def test_heartbeats_are_rare_and_record_the_progress(make):
    now = [1000.0]
    run = make(clock=lambda: now[0])
    run.heartbeat(10)
    assert "env_steps" not in RunDirectory.open(run.path).info
    now[0] += module.HEARTBEAT_SECONDS
    run.heartbeat(20)
    assert RunDirectory.open(run.path).info["env_steps"] == 20
    now[0] += 1
    run.heartbeat(30)
    assert RunDirectory.open(run.path).info["env_steps"] == 20


def test_a_running_run_without_its_process_reads_as_interrupted(make):
    run = make()
    assert RunDirectory.open(run.path).effective_status == "running"
    run.unlock()
    assert RunDirectory.open(run.path).effective_status == "interrupted"
    assert RunDirectory.open(run.path).status == "running"


def test_a_run_on_another_host_is_alive_while_it_sends_heartbeats(make):
    run = make(clock=lambda: 1000.0)
    run.unlock()
    edit(run, host="elsewhere")

    def status(now):
        return RunDirectory.open(run.path, clock=lambda: now).effective_status

    assert status(1000.0 + module.STALE_SECONDS - 1) == "running"
    assert status(1000.0 + module.STALE_SECONDS + 1) == "interrupted"


def test_without_locks_the_pid_decides(make, monkeypatch):
    monkeypatch.setattr(module.fcntl, "flock", fails(errno.ENOLCK))
    with pytest.warns(RunWarning, match="has no locks"):
        run = make()
    assert RunDirectory.open(run.path).effective_status == "running"
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    edit(run, pid=gone.pid)
    assert RunDirectory.open(run.path).effective_status == "interrupted"


# The lock

TRAINER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from assay.runs.directory import RunDirectory
    run = RunDirectory.open(Path(sys.argv[1]))
    run.lock()
    run.set_status("running")
    if sys.argv[2] == "fork" and os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
    if sys.argv[2] == "plain":
        print("locked", flush=True)
    time.sleep(60)
    """
)


def test_two_processes_cannot_train_one_run(make):
    run = make()
    run.unlock()
    with spawn(TRAINER, run.path, "plain") as trainer:
        try:
            assert trainer.stdout.readline() == "locked\n"
            other = RunDirectory.open(run.path)
            assert other.effective_status == "running"
            with pytest.raises(RunError, match=f"is being trained by pid {trainer.pid} on "):
                other.lock(wait_seconds=0)
            with pytest.raises(RunError, match="is being trained by"):
                other.delete()
            assert run.path.exists()
        finally:
            trainer.send_signal(signal.SIGKILL)
    other = RunDirectory.open(run.path)
    assert other.effective_status == "interrupted"
    other.lock()
    other.unlock()


def test_a_worker_that_outlives_its_trainer_does_not_keep_the_lock(make):
    run = make()
    run.unlock()
    with spawn(TRAINER, run.path, "fork") as trainer:
        worker = int(trainer.stdout.readline())
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    try:
        os.kill(worker, 0)
        other = RunDirectory.open(run.path)
        assert other.effective_status == "interrupted"
        other.lock()
        other.unlock()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_second_holder_in_this_process_is_refused_too(make):
    run = make()
    other = RunDirectory.open(run.path)
    with pytest.raises(RunError, match=f"is being trained by pid {os.getpid()}"):
        other.lock(wait_seconds=0)
    other.unlock()
    assert other.effective_status == "running"
    run.unlock()
    run.unlock()
    other.lock()
    other.unlock()


def test_a_reader_that_probes_the_lock_does_not_stop_a_trainer(make, monkeypatch):
    run = make()
    run.unlock()
    reader = open(run.path / ".lock", "rb")
    module.fcntl.flock(reader, module.fcntl.LOCK_SH)
    real = time.sleep

    def reader_leaves(seconds):
        reader.close()
        real(0)

    monkeypatch.setattr(module.time, "sleep", reader_leaves)
    run.lock(wait_seconds=5)
    assert run.effective_status == "running"


# Files


def test_evaluations_events_and_provenance_come_back(make):
    run = make()
    run.write_eval({"returns": [2.0, float("nan")]}, count=200, label="train")
    path = run.write_eval({"returns": [1.0]}, count=30, label="train")
    assert path.name == "000000000030-train.json"
    first, second = RunDirectory.open(run.path).evals()
    assert (first["env_steps"], first["returns"]) == (30, [1.0])
    assert second["returns"][1] != second["returns"][1]

    run.write_eval({"returns": [9.0]}, count=30, label="train")
    assert run.evals()[0]["returns"] == [9.0]
    with pytest.raises(ValueError, match="label="):
        run.write_eval({}, count=1, label="../x")

    run.log_event("started", device="cpu")
    run.log_event("checkpoint", env_steps=10)
    with open(run.events_path, "ab") as file:
        file.write(b'{"kind": "to')
    assert [event["kind"] for event in run.events()] == ["started", "checkpoint"]

    run.write_provenance({"argv": ["assay"]})
    assert RunDirectory.open(run.path).provenance == {"argv": ["assay"]}


def test_a_full_disk_is_reported_by_file(make, monkeypatch):
    run = make()
    monkeypatch.setattr(os, "fsync", fails(errno.ENOSPC))
    with pytest.raises(RunError, match=r"provenance\.json': the disk is full"):
        run.write_provenance({})
    with pytest.raises(RunError, match=r"000000000001-train\.json': the disk is full"):
        run.write_eval({}, count=1, label="train")
    assert run.evals() == []


# Many runs


def test_runs_are_found_below_groups_and_not_inside_runs(make, tmp_path):
    times = iter([3.0, 1.0, 2.0])
    for name in ("a", "g/seed-1", "g/deep/seed-2"):
        now = next(times)
        make(name, clock=lambda now=now: now)
    shutil.copytree(tmp_path / "g" / "seed-1", tmp_path / "a" / "videos" / "copy")
    shutil.copytree(tmp_path / "g" / "seed-1", tmp_path / ".deleted-x")
    assert [run.name for run in find_runs(tmp_path)] == ["g/seed-1", "g/deep/seed-2", "a"]
    assert [run.name for run in group_runs(tmp_path / "g")] == ["g/deep/seed-2", "g/seed-1"]
    assert [run.name for run in group_runs(tmp_path / "a")] == ["a"]
    assert find_runs(tmp_path / "nowhere") == []


def test_a_damaged_run_does_not_hide_the_others(make, tmp_path):
    make("good")
    bad = make("bad")
    (bad.path / "run.json").write_text("{")
    with pytest.warns(RunWarning, match=r"bad/run\.json' is not readable"):
        assert [run.name for run in find_runs(tmp_path)] == ["good"]


def test_a_directory_without_runs_is_not_a_group(tmp_path):
    (tmp_path / "g").mkdir()
    with pytest.raises(RunError, match="neither a run nor a group"):
        group_runs(tmp_path / "g")
    with pytest.raises(RunError, match="There is no run at"):
        group_runs(tmp_path / "nowhere")


def test_delete_takes_the_run_and_the_group_that_becomes_empty(make, tmp_path):
    first, second = make("g/seed-1"), make("g/seed-2")
    first.delete()
    assert not first.path.exists()
    second.unlock()
    RunDirectory.open(second.path).delete()
    assert list(tmp_path.iterdir()) == []
    make("g/seed-1")


def test_a_run_that_may_not_be_deleted_stays(make, monkeypatch):
    run = make()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails(errno.EACCES))
        with pytest.raises(RunError, match=r"Cannot delete the run .*permission denied"):
            run.delete()
    assert RunDirectory.open(run.path).config == CONFIG


def test_reading_runs_imports_no_torch():
    rooms = "directory, metrics, sinks, checkpoint, provenance, summary"
    code = f"import sys; from assay.runs import {rooms}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_why_there_is_no_checkpoint_depends_on_the_status(make):
    run = make()
    assert "no checkpoint yet.\nWait" in str(run.no_checkpoint())
    for status, words in (("done", "train again: assay train --config"), ("failed", "resume")):
        run.set_status(status)
        found = run.no_checkpoint()
        assert f"is {status} and has no checkpoint in" in found.message and words in found.fix
