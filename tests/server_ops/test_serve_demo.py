"""`assay serve demo`: a server, clients and a trainer that is killed, each a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_support import wait_for

from assay.cli.serve_demo import build_program, clients_line, find_program, show_summary
from assay.runs.metrics import read_metrics
from assay.server.demo import ClientView, Demo, DemoError, Summary, make_plan
from assay.server.store.store import Store

DEMO = [sys.executable, "-m", "assay", "serve", "demo", "--quick"]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def alive(data: Path) -> list[str]:
    """Return the command lines of processes that name a directory or its server's children."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(data) in line and "demo" not in line.split("--data")[0]:
                found.append(line)
    return found


@pytest.mark.slow
def test_it_learns_is_killed_resumes_and_drains(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [*DEMO, "--seconds", "5", "--json", "--data", str(data)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=170, env=environment(), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["drained"] and summary["killed"] and summary["resumed_after"] > 0
    assert summary["versions"] >= 2 and summary["episodes"] > 10
    # Every decision had a model's answer, and every step that was handed over arrived.
    assert summary["fallbacks"] == 0 and summary["lost"] == 0
    assert summary["acknowledged"] == summary["decisions"] > 1000
    assert "kill -9" in done.stderr and "The trainer is back" in done.stderr
    assert "decisions; return" in done.stderr  # a line now and then
    assert alive(data) == []
    with Store(data) as store:  # nothing holds it any more, and it has it all
        assert store.registry.totals("pole").steps == summary["acknowledged"]
        assert store.registry.learner("pole").version >= summary["versions"]
    metrics = read_metrics(data / "policies" / "pole" / "metrics.jsonl")
    steps, _ = metrics["rollout/return_mean"]
    assert (steps[1:] > steps[:-1]).all()  # what was learned twice is not there twice
    assert list((data / "policies" / "pole" / "tensorboard").iterdir())


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = subprocess.Popen(
        [*DEMO, "--seconds", "600", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    try:
        wait_for(lambda: alive(data), "a server")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 130 and "Traceback" not in errors
        wait_for(lambda: not alive(data), "the end of all")
    finally:
        process.kill()
        process.wait()


def test_the_plan_fits_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_plan(quick=True).env == "CartPole-v1"
    monkeypatch.setattr("assay.server.demo.find_spec", lambda name: None)
    plan = make_plan(seconds=7.0)
    assert (plan.env, plan.clients, plan.seconds) == ("CartPole-v1", 4, 7.0)
    monkeypatch.setattr("assay.server.demo.find_spec", lambda name: name)
    assert make_plan().env == "LunarLander-v3"


def test_the_program_in_cpp_is_used_if_it_is_there(tmp_path: Path) -> None:
    program, why = find_program(tmp_path)
    assert program is None and f"there is none in '{tmp_path}'. To build it: make cpp" in why
    (tmp_path / "queue").touch()
    assert find_program(tmp_path)[0] == tmp_path / "queue"


CMAKE = """#!{python}
import pathlib, sys
if "--build" not in sys.argv:
    print({says!r})
    sys.exit({code})
pathlib.Path("build/demo").mkdir(parents=True, exist_ok=True)
pathlib.Path("build/demo/queue").touch()
"""


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ("-- Configuring done", 0, "A C.. client controls a queue"),
        (
            "Only the core is built, not the client: protobuf (apt install x) was not found.",
            0,
            r"No C\+\+ client: protobuf \(apt install x\) was not found\.$",
        ),
        ("-- no luck", 3, "cmake -S source -B build/demo .* failed: -- no luck"),
    ],
)
def test_the_program_in_cpp_is_built_if_it_can_be(
    says: str, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("source")
    assert build_program(source) == (None, "No C++ client: 'source' is not here.")
    source.mkdir()
    (source / "CMakeLists.txt").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no compiler" in build_program(source)[1]
    for name in ("cmake", "c++"):
        tool = tmp_path / name
        tool.write_text(CMAKE.format(python=sys.executable, says=says, code=code))
        tool.chmod(0o755)
    for _ in range(2):  # what was built before is brought up to date
        program, why = build_program(source)
        assert re.search(words, why)
        assert (program is not None) == ("A C++ client" in why)


def test_a_line_has_all_clients(tmp_path: Path) -> None:
    demo = Demo(make_plan(quick=True), tmp_path)
    report: dict[str, Any] = {"decisions": 100, "acknowledged": 80, "returns": [1.0, 3.0]}
    for view, p50 in zip(demo.clients, (1e-5, 3e-5), strict=True):
        assert view.take({**report, "act_p50": p50}) == [1.0, 3.0]
    line = clients_line(demo, 12.0)
    assert "200 decisions" in line and "return 2" in line and "160 steps safe" in line
    assert ClientView("x").mean is None


def test_a_summary_says_what_was_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_summary(make_plan(quick=True), Summary(killed=7))
    text = capsys.readouterr().out
    assert "not back in time" in text and "could not be drained" in text and "return:     -" in text


PROGRAM = """#!{python}
import sys
print("heuristic: mean cost 1.500")
print("step", *sys.argv[1:])
print("learned:   mean cost 1.200 (-20% against the heuristic)")
"""


def test_a_program_beside_the_clients_gets_its_orders_and_is_heard(tmp_path: Path) -> None:
    program = tmp_path / "queue"
    program.write_text(PROGRAM.replace("{python}", sys.executable))
    program.chmod(0o755)
    plan = dataclasses.replace(make_plan(quick=True), clients=0, seconds=3.0)
    with Demo(plan, tmp_path / "data", program) as demo:
        wait_for(lambda: len(demo.program_lines) == 3, "what it says")
        summary = demo.finish(3.0)
    assert summary.program == [
        "heuristic: mean cost 1.500",
        "learned:   mean cost 1.200 (-20% against the heuristic)",
    ]
    assert f"--address {demo.address}" in demo.program_lines[1]
    assert "--steps 3000" in demo.program_lines[1] and summary.drained


def test_a_client_that_dies_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "queue"
    program.write_text(f"#!{sys.executable}\nraise SystemExit('no such library')\n")
    program.chmod(0o755)
    plan = dataclasses.replace(make_plan(quick=True), clients=0)
    with Demo(plan, tmp_path / "data", program) as demo, pytest.raises(DemoError, match="library"):
        while True:
            demo.look(0.1)
