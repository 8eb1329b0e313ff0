from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from executor_contract import LONG, PUPPET, ExecutorContract, gone, wait_until

from assay.server.executor import make_executor
from assay.server.executor.base import Executor, LearnerCrashed

# A server that dies: it begins two learners, of which one is busy, says their pids, and waits.
_SERVER = f"""
import sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from assay.server.executor.process import ProcessExecutor

executor = ProcessExecutor()
idle = executor.spawn("idle", host={PUPPET!r})
busy = executor.spawn("busy", host={PUPPET!r})
pids = [one.call({{"method": "who"}})[0]["pid"] for one in (idle, busy)]
print(*pids, flush=True)
busy.call({{"method": sys.argv[1], "began": sys.argv[2]}})
"""


class TestProcess(ExecutorContract):
    def make(self) -> Executor:
        return make_executor("process")

    def test_a_learner_is_in_a_session_of_its_own(self, executor: Executor) -> None:
        """So that Ctrl-C at the server, which goes to its whole group, does not reach it."""
        head, _ = self.spawn(executor).call({"method": "who"}, timeout=LONG)
        assert head["session"] == head["pid"] != os.getsid(0)

    def test_a_signal_to_all_processes_of_a_service_leaves_it_to_the_server(
        self, executor: Executor
    ) -> None:
        handle = self.spawn(executor)
        pid = handle.call({"method": "who"}, timeout=LONG)[0]["pid"]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        assert handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 2

    def test_how_it_died_is_told(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        with pytest.raises(LearnerCrashed, match="exited with status 7"):
            handle.call({"method": "exit"}, timeout=LONG)
        handle = self.spawn(executor)
        os.kill(handle.health().pid, signal.SIGKILL)
        with pytest.raises(LearnerCrashed, match=r"SIGKILL") as caught:
            handle.call({"method": "echo"}, timeout=LONG)
        assert "memory" in (caught.value.fix or "")

    def test_out_of_memory_is_told(self, executor: Executor) -> None:
        handle = self.spawn(executor, memory_mb=128)
        with pytest.raises(LearnerCrashed, match="MemoryError"):
            handle.call({"method": "allocate", "megabytes": 300}, timeout=LONG)

    def test_the_thread_that_spawned_may_end(self, executor: Executor) -> None:
        """The kernel takes the parent for gone when the thread is that began a process."""
        handles = []

        def begin() -> None:
            handles.append(self.spawn(executor))
            handles[0].call({"method": "echo"}, timeout=LONG)

        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        for calls in (2, 3):
            assert handles[0].call({"method": "echo"}, timeout=LONG)[0]["calls"] == calls

    def test_processes_do_not_hold_each_other(self, executor: Executor) -> None:
        """A descriptor that a later one inherited would keep an earlier one from seeing its end."""
        first = self.spawn(executor, "first")
        first.call({"method": "echo"}, timeout=LONG)
        self.spawn(executor, "second").call({"method": "echo"}, timeout=LONG)
        pid = first.health().pid
        first.stop(LONG)
        assert gone(pid)

    @pytest.mark.parametrize("method", ["hang", "hang_in_c"])
    def test_no_process_outlives_a_server_that_is_killed(self, tmp_path: Path, method: str) -> None:
        began = tmp_path / "began"
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, method, str(began)], stdout=subprocess.PIPE
        )
        pids: list[int] = []
        try:
            assert server.stdout is not None
            pids = [int(word) for word in server.stdout.readline().split()]
            assert len(pids) == 2
            wait_until(began.exists, "a learner is busy")
            server.kill()
            server.wait()
            for pid in pids:
                wait_until(lambda pid=pid: gone(pid), f"process {pid} is gone")  # type: ignore[misc]
        finally:
            server.kill()
            server.wait()
            server.stdout.close()  # type: ignore[union-attr]
            for pid in pids:
                if not gone(pid):
                    os.kill(pid, signal.SIGKILL)

    def test_a_server_that_ends_without_closing_leaves_nothing(self, tmp_path: Path) -> None:
        script = _SERVER.rpartition("busy.call")[0]
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, timeout=LONG, check=True
        )
        for pid in map(int, ended.stdout.split()):
            wait_until(lambda pid=pid: gone(pid), f"process {pid} is gone")  # type: ignore[misc]
