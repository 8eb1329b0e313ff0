"""What every executor has to do. A back end's test file subclasses `ExecutorContract`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.server.executor.base import (
    Executor,
    ExecutorError,
    Handle,
    LearnerCrashed,
    LearnerRefused,
)
from assay.server.executor.frames import FrameError

PUPPET = "executor_hosts:Puppet"
LONG = 240.0  # seconds; what is waited for takes far less, but on a very busy machine


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + LONG
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.01)
    return value


def gone(pid: int) -> bool:
    """Return whether a process has ended (one that nobody has waited for yet has)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class ExecutorContract:
    """The suite; `isolates`: a learner's process is its own."""

    isolates = True

    def make(self) -> Executor:
        raise NotImplementedError

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        made = self.make()
        try:
            yield made
        finally:
            made.close()

    def spawn(self, executor: Executor, name: str = "p", **options: Any) -> Handle:
        return executor.spawn(name, **{"host": PUPPET, **options})

    # Calls

    def test_a_call_is_answered_with_a_head_and_blobs(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        sent = {"method": "echo", "text": "näive", "n": 2**60, "x": 0.1, "list": [1, None, True]}
        head, blobs = handle.call(sent, [b"abc", b"", b"\x00\xff"], timeout=LONG)
        assert head == {"saw": sent, "calls": 1}
        assert blobs == (b"cba", b"", b"\xff\x00")

    def test_the_host_keeps_its_state_between_calls(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        seen = [handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] for _ in range(5)]
        assert seen == [1, 2, 3, 4, 5]

    def test_several_learners_answer_at_once(self, executor: Executor, tmp_path: Path) -> None:
        handles = [self.spawn(executor, f"p{number}") for number in range(2)]
        with ThreadPoolExecutor(len(handles)) as threads:
            napping = threads.submit(
                handles[0].call,
                {"method": "nap", "seconds": 3.0, "began": str(tmp_path / "began")},
                (),
                LONG,
            )
            wait_until((tmp_path / "began").exists, "the first learner is busy")
            head, _ = handles[1].call({"method": "echo", "number": 1}, timeout=LONG)
            assert not napping.done(), "the second learner had to wait for the first"
            assert head["saw"]["number"] == 1
            assert napping.result()[0] == {"rested": True}
        assert handles[0].call({"method": "echo"}, timeout=LONG)[0]["calls"] == 2

    def test_large_blobs_arrive_whole(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        blob = os.urandom(1 << 20) * 64
        _, (back,) = handle.call({"method": "echo"}, [blob], timeout=LONG)
        assert back == blob[::-1]

    def test_a_refusal_carries_message_and_fix_and_the_learner_lives_on(
        self, executor: Executor
    ) -> None:
        handle = self.spawn(executor)
        with pytest.raises(LearnerRefused) as caught:
            handle.call({"method": "refuse"}, timeout=LONG)
        assert caught.value.message == "lr=-1: expected a positive number."
        assert caught.value.fix == "Give a larger lr."
        assert handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 2

    def test_a_head_that_is_no_json_is_refused_before_it_is_sent(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        with pytest.raises(FrameError, match="JSON"):
            handle.call({"method": "echo", "set": {1}}, timeout=LONG)
        assert handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1

    # Crashes

    def assert_dead(self, handle: Handle) -> None:
        wait_until(lambda: not handle.health().alive, "the learner counts as dead")
        with pytest.raises(LearnerCrashed) as caught:
            handle.call({"method": "echo"}, timeout=LONG)
        assert "did not answer" not in caught.value.message, "it is known to be dead"

    def test_an_exception_ends_the_learner_and_is_told(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        with pytest.raises(LearnerCrashed, match="ZeroDivisionError: a bug of the learner"):
            handle.call({"method": "fail"}, timeout=LONG)
        self.assert_dead(handle)

    def test_an_answer_that_cannot_be_sent_is_a_crash(self, executor: Executor) -> None:
        handle = self.spawn(executor)
        with pytest.raises(LearnerCrashed, match="JSON"):
            handle.call({"method": "no_json"}, timeout=LONG)
        self.assert_dead(handle)

    @pytest.mark.parametrize("host", ["executor_hosts:Broken", "no_such_module:Host"])
    def test_a_host_that_cannot_be_loaded_crashes_the_first_call(
        self, executor: Executor, host: str
    ) -> None:
        handle = self.spawn(executor, host=host)
        with pytest.raises(LearnerCrashed, match=r"no such device|no_such_module"):
            handle.call({"method": "echo"}, timeout=LONG)
        self.assert_dead(handle)

    @pytest.mark.parametrize("method", ["exit", "segfault"])
    def test_a_process_that_ends_in_a_call_is_a_crash(
        self, executor: Executor, method: str
    ) -> None:
        if not self.isolates:
            pytest.skip("shares the process")
        other = self.spawn(executor, "other")
        handle = self.spawn(executor)
        with pytest.raises(LearnerCrashed, match="'p'"):
            handle.call({"method": method}, timeout=LONG)
        self.assert_dead(handle)
        assert other.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1

    def test_kill_9_in_the_middle_of_a_call_is_a_crash(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        if not self.isolates:
            pytest.skip("shares the process")
        handle = self.spawn(executor)
        pid = handle.call({"method": "who"}, timeout=LONG)[0]["pid"]
        assert pid == handle.health().pid != os.getpid()
        began = tmp_path / "began"

        def kill() -> None:
            wait_until(began.exists, "the call began")
            os.kill(pid, 9)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(LearnerCrashed, match="'p'"):
            handle.call({"method": "hang", "began": str(began)}, timeout=LONG)
        thread.join()
        self.assert_dead(handle)

    def test_a_learner_that_hangs_is_killed_when_its_time_is_over(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        handle = self.spawn(executor)
        pid = handle.call({"method": "who"}, timeout=LONG)[0]["pid"]
        with pytest.raises(LearnerCrashed, match="did not answer within 2 seconds"):
            handle.call({"method": "hang", "began": str(tmp_path / "began")}, timeout=2.0)
        self.assert_dead(handle)
        if self.isolates:
            wait_until(lambda: gone(pid), "the process is gone")

    def test_after_a_crash_the_name_can_be_used_again(self, executor: Executor) -> None:
        handle = self.answering(executor)
        for _ in range(2):
            with pytest.raises(LearnerCrashed):
                handle.call({"method": "fail"}, timeout=LONG)
            handle = self.answering(executor)

    def answering(self, executor: Executor) -> Handle:
        """Return a learner that has answered its first call."""
        handle = self.spawn(executor)
        assert handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1
        return handle

    # Health and ends

    def test_health_says_whether_it_is_busy(self, executor: Executor, tmp_path: Path) -> None:
        handle = self.spawn(executor)
        handle.call({"method": "echo"}, timeout=LONG)
        assert handle.health().alive
        assert handle.health().busy_since is None
        wait_until(lambda: handle.health().rss > 1 << 20, "its memory is known")
        began = tmp_path / "began"
        before = time.monotonic()
        head = {"method": "nap", "seconds": 1.0, "began": str(began)}
        with ThreadPoolExecutor(1) as threads:
            napping = threads.submit(handle.call, head, (), LONG)
            wait_until(began.exists, "the call began")
            busy = handle.health()
            napping.result()
        assert busy.alive
        assert busy.busy_since is not None and busy.busy_since >= before
        assert handle.health().busy_since is None

    def test_stop_lets_the_call_finish_and_closes_the_host(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        handle = self.spawn(executor)
        pid = handle.call({"method": "who"}, timeout=LONG)[0]["pid"]
        handle.call({"method": "leave_note", "path": str(tmp_path / "note")}, timeout=LONG)
        head = {"method": "nap", "seconds": 0.5, "began": str(tmp_path / "began")}
        with ThreadPoolExecutor(1) as threads:
            napping = threads.submit(handle.call, head, (), LONG)
            wait_until((tmp_path / "began").exists, "the call began")
            handle.stop(LONG)
            assert napping.result()[0] == {"rested": True}
        assert (tmp_path / "note").read_text() == "closed in good order"
        self.assert_dead(handle)
        if self.isolates:
            wait_until(lambda: gone(pid), "the process is gone")

    @pytest.mark.parametrize("way", ["kill", "stop", "close"])
    def test_what_hangs_can_be_ended(self, executor: Executor, tmp_path: Path, way: str) -> None:
        handle = self.spawn(executor)
        pid = handle.call({"method": "who"}, timeout=LONG)[0]["pid"]
        head = {"method": "hang", "began": str(tmp_path / "began")}
        with ThreadPoolExecutor(1) as threads:
            hanging = threads.submit(handle.call, head, (), LONG)
            wait_until((tmp_path / "began").exists, "the call began")
            if way == "kill":
                handle.kill()
            elif way == "stop":
                handle.stop(0.2)
            else:
                executor.close()
            with pytest.raises(LearnerCrashed):
                hanging.result()
        assert not handle.health().alive
        if self.isolates:
            wait_until(lambda: gone(pid), "the process is gone")
        handle.kill()  # again does no harm
        handle.stop(0.1)

    def test_a_closed_executor_takes_no_more(self, executor: Executor) -> None:
        executor.close()
        with pytest.raises(ExecutorError, match="closed"):
            self.spawn(executor)
        executor.close()

    def test_memory_can_be_limited_or_is_refused(self, executor: Executor) -> None:
        if not self.isolates:
            with pytest.raises(ExecutorError, match=r"memory_mb=64 .*process"):
                self.spawn(executor, memory_mb=64)
            return
        other = self.spawn(executor, "other", memory_mb=512)
        handle = self.spawn(executor, memory_mb=256)
        assert handle.call({"method": "allocate", "megabytes": 64}, timeout=LONG)[0]["held"] == 64
        with pytest.raises(LearnerCrashed):
            handle.call({"method": "allocate", "megabytes": 400}, timeout=LONG)
        assert other.call({"method": "allocate", "megabytes": 300}, timeout=LONG)[0]["held"] == 300
