"""Nothing but the runner starts a process: every other command is traced while it runs (R1, R5)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from study_samples import candidate_values, make_study

from assay.study.files.candidate import Candidate
from assay.study.run import launcher, planning, recovery
from assay.study.steps import candidates

# Runs one command after another in a process whose every exec, fork and connection is noted.
TRACED = """
import json, shlex, sys
seen = []
WATCHED = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system",
           "os.startfile", "pty.spawn", "socket.connect", "socket.getaddrinfo", "socket.bind"}

def note(event, args):
    if event in WATCHED:
        seen.append([event, str(args[0]) if args else ""])

sys.addaudithook(note)
from assay.cli.app import app
from typer.testing import CliRunner
codes = {}
for line in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, ["study", *shlex.split(line)])
    codes[line] = [result.exit_code, result.output[-300:]]
print(json.dumps({"seen": seen, "codes": codes}))
"""


def test_only_git_is_started_by_commands_that_do_not_launch(tmp_path: Path) -> None:
    study = make_study(tmp_path, mode="supervised")
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(study, Candidate(**base), "agent")
    candidates.validate(study, "base", "agent")
    planned = launcher.launch(study, "c1", "short", 0, confirm=None, actor="test")
    recovery.wait(study, planned.run, 300)
    out = study.path / "runs" / planned.run / "out"
    (tmp_path / "plan.yaml").write_text(
        json.dumps({"id": "p", "parameter": "lr", "nominal": 0.001, "values": [0.001, 0.002],
                    "success": "return >= 1", "safety": "None."})
    )  # fmt: skip
    (tmp_path / "more.yaml").write_text(json.dumps(candidate_values(id="more")))
    root = f"--root {tmp_path}"
    succeed = [
        f"audit {root}", f"contract show {root}", f"contract check {root}",
        f"metrics --out {out} {root}", f"baseline {root}", f"propose {tmp_path}/more.yaml {root}",
        f"validate {root}", f"next {root}", f"status {root}", f"run base --seed 0 {root}",
        f"queue add base --phase promotion {root}", f"queue status {root}", f"queue step {root}",
        f"queue cancel base {root}", f"loop {root}", f"monitor {root}",
        f"analyze {planned.run} {root}", f"scorecard c1 {root}", f"review more {root}",
        f"batch --queue {root}", f"monitor {planned.run} {root}",
        f"probe plan {tmp_path}/plan.yaml {root}",
        f"report {root}", f"verify {root}", f"contract approve all --by Ada {root}",
        f"discard more --why tested {root}", f"stop {root}", f"stop --off {root}",
        f"init --task other --study new --activate {root}",
    ]  # fmt: skip
    refused = [
        f"reflect {planned.run} {root} --task cartpole --study lr",
        f"probe summarise p {root} --task cartpole --study lr",
        f"audit-result c1 {root} --task cartpole --study lr",
        f"verdict c1 {root} --task cartpole --study lr",
    ]
    words = [sys.executable, "-c", TRACED, json.dumps(succeed + refused)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for line in succeed:
        assert told["codes"][line][0] == 0, (line, told["codes"][line])
    for line in refused:
        assert told["codes"][line][0] == 2, (line, told["codes"][line])
    assert {tuple(entry) for entry in told["seen"]} == {("subprocess.Popen", "git")}


def test_the_trace_sees_a_launch(tmp_path: Path) -> None:
    """The same trace of a real launch is not empty, so that the test above can fail."""
    token = planning.plan(make_study(tmp_path), "c1", "short", 0).token
    line = f"run c1 --seed 0 --execute --confirm {token} --root {tmp_path}"
    words = [sys.executable, "-c", TRACED, json.dumps([line])]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["codes"][line][0] == 0, told
    assert ["subprocess.Popen", sys.executable] in told["seen"]
