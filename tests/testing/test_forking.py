"""Programs that are forked for tests behave as those that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forking
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks them")

# What the two ways of starting a program have to agree on.
LOOK = """
import os, sys
print(sys.argv, os.getcwd(), sys.path[:2], __name__, os.environ.get("MARK"), os.getppid())
print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), sys.stdin.read())
print(sorted(os.listdir("/proc/self/fd"))[:3], "torch" in sys.modules, file=sys.stderr)
"""


def run(words: list[str], forked: bool, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MARK": "x"} | ({forking.SCRIPTS: "yes"} if forked else {})
    return subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, **options
    )


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"process_group": 0}])
@pytest.mark.parametrize("kind", ["code", "script"])
def test_a_program_finds_what_it_would_find(tmp_path: Path, kind: str, options: Any) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    words = {"code": ["-c", LOOK], "script": [str(tmp_path / "look.py")]}[kind]
    plain, quick = (
        run([*words, "one", "-m"], forked, cwd=tmp_path, input="given", **options)
        for forked in (False, True)
    )
    assert quick.stdout == plain.stdout and f" {os.getpid()}\n" in quick.stdout
    assert "False" in plain.stderr and "True" in quick.stderr  # or this would compare nothing


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("raise ValueError('no')", 1),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_it_would(code: str, status: int) -> None:
    plain, quick = (run(["-c", code], forked) for forked in (False, True))
    assert plain.returncode == quick.returncode == status
    assert plain.stderr.splitlines()[-1:] == quick.stderr.splitlines()[-1:]


def test_threads_and_exit_functions_have_their_turn() -> None:
    code = (
        "import atexit, threading, time; atexit.register(print, 'bye')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()"
    )
    assert run(["-c", code], forked=True).stdout == "late\nbye\n"


def test_files_are_passed_on_under_their_numbers() -> None:
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, b'here')"
    try:
        assert run(["-c", code], forked=True, pass_fds=[writing]).returncode == 0
        os.close(writing)
        assert os.read(reading, 10) == b"here"
        assert os.read(reading, 10) == b""  # nobody else holds it open
    finally:
        os.close(reading)


def test_a_module_runs_as_main_and_can_be_killed() -> None:
    assert run(["-m", "assay", "--version"], forked=False).returncode == 0
    words = [sys.executable, "-m", "assay.study.run.supervisor"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr
    env = {**os.environ, forking.SCRIPTS: "yes"}
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(words, env=env) as child:
        assert child.poll() is None
        child.kill()
        assert child.wait() == -signal.SIGKILL


def test_it_has_its_group_as_soon_as_it_is_there() -> None:
    env = {**os.environ, forking.SCRIPTS: "yes"}
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    for _ in range(5):
        with subprocess.Popen(words, env=env, process_group=0) as child:
            os.killpg(child.pid, signal.SIGKILL)


def test_a_process_that_compiled_something_still_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")  # as torch does
    code = "import os, sys; print('torch' in sys.modules, os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    assert run(["-c", code], forked=True).stdout == "True elsewhere\n"


def test_a_process_whose_libraries_changed_its_environment_still_forks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "elsewhere")  # as OpenCV does, without going back
    code = "import os, sys; print('torch' in sys.modules, os.environ['LD_LIBRARY_PATH'])"
    assert run(["-c", code], forked=True).stdout == "True elsewhere\n"


def test_an_environment_that_changes_the_start_is_respected() -> None:
    code = "import sys; print('torch' in sys.modules, sys.flags.dev_mode)"
    env = {**os.environ, forking.SCRIPTS: "yes", "PYTHONDEVMODE": "1"}
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, env=env, capture_output=True).stdout == b"False True\n"
