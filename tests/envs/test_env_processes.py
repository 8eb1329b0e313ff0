"""Worker processes: what they compute, how they fail, and that none is left over."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest
from env_zoo import Constant, Counter, Echo, SavesItself, Spoiler
from gymnasium import spaces

from assay.core.errors import EnvError, SpaceError
from assay.envs.make import make_vector

ZEROS = np.zeros(3, np.int64)


def make(env, num_envs: int = 3, workers: int = 2):
    return make_vector(env, num_envs, backend="processes", workers=workers)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until_gone(pids: list[int], seconds: float = 120) -> list[int]:
    """Return who is still there after waiting, which is at most `seconds`."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def pids_of(envs) -> list[int]:
    return [link.process.pid for link in envs.backend._links]


def test_an_exception_arrives_with_its_own_traceback_and_index() -> None:
    class Third(Spoiler):
        """Only the environment that is reset with seed + 2 is bad."""

        def reset(self, *, seed=None, options=None):
            self.what = "raise" if seed == 2 else "nothing"
            return super().reset(seed=seed)

    with make(partial(Third, "")) as envs:
        pids = pids_of(envs)
        envs.reset(seed=0)
        with pytest.raises(EnvError) as caught:
            for _ in range(3):
                envs.step(ZEROS)
        message = caught.value.message
        assert "Environment 2 of" in message
        assert "KeyError: 'the pantry is empty'" in message and "in step" in message
        assert os.path.join("assay", "envs") not in message
        assert wait_until_gone(pids) == []
        with pytest.raises(EnvError, match="closed"):
            envs.step(ZEROS)


@pytest.mark.parametrize(
    ("what", "how"), [("die", r"signal 9 \(SIGKILL\)"), ("exit", "exited with status 7")]
)
def test_a_dead_worker_is_reported_as_such(what: str, how: str) -> None:
    with make(partial(Spoiler, what)) as envs:
        pids = pids_of(envs)
        envs.reset(seed=0)
        with pytest.raises(EnvError, match=f"environment 0, died: it .*{how}"):
            for _ in range(3):
                envs.step(ZEROS)
        assert wait_until_gone(pids) == []


def test_a_worker_killed_between_steps_is_reported() -> None:
    with make(Counter) as envs:
        envs.reset(seed=0)
        first, second = pids_of(envs)
        os.kill(second, signal.SIGKILL)
        with pytest.raises(EnvError, match=rf"pid {second}.*environments 1 to 2, died"):
            for _ in range(2):
                envs.step(ZEROS)
        assert wait_until_gone([first, second]) == []


def test_failures_while_making_keep_their_kind() -> None:
    def broken():
        raise RuntimeError("no such arena")

    with pytest.raises(EnvError, match="no such arena"):
        make(broken)
    with pytest.raises(SpaceError, match="Sequence"):
        make(partial(Constant, spaces.Sequence(spaces.Discrete(2)), ()))
    lock = threading.Lock()
    with pytest.raises(EnvError, match="cannot be sent to a worker"):
        make(lambda: lock)


def test_close_ends_the_workers_and_may_be_repeated() -> None:
    envs = make(Counter)
    pids = pids_of(envs)
    assert all(map(alive, pids)) and len(pids) == 2
    envs.close()
    assert [pid for pid in pids if alive(pid)] == []
    envs.close()


def test_unreferenced_environments_end_their_workers() -> None:
    envs = make(Counter)
    pids = pids_of(envs)
    del envs
    gc.collect()
    assert wait_until_gone(pids) == []


@pytest.mark.parametrize("busy", [False, True])
def test_workers_do_not_outlive_a_killed_parent(busy: bool) -> None:
    # As a script without `if __name__ == "__main__"`, with its factory in the main module.
    script = f"""
        import sys
        import numpy as np
        from assay.envs.make import make_vector
        from env_zoo import Spoiler

        def factory():
            return Spoiler("hang")

        envs = make_vector(factory, 2, backend="processes", workers=2)
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
        print(*[link.process.pid for link in envs.backend._links], flush=True)
        for _ in range({10 if busy else 0}):
            envs.step(np.zeros(2, np.int64))
        sys.stdin.read()
    """
    here = os.path.dirname(__file__)
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if busy:
            time.sleep(0.3)  # let them begin the step that never ends
        assert all(map(alive, pids))
    finally:
        parent.kill()
        parent.wait()
    assert wait_until_gone(pids) == []


def test_actions_are_converted_and_arrays_are_new() -> None:
    space = spaces.MultiDiscrete([[2, 2], [3, 3]], start=[[0, 0], [5, 0]])
    with make(partial(Echo, space), 2) as envs:
        envs.reset(seed=0)
        one = envs.step(np.array([[0, 1, 2, 0], [1, 1, 0, 2]]))
        two = envs.step(np.zeros((2, 4), np.int64))
        assert one[0].tolist() == [[[0, 1], [7, 0]], [[1, 1], [5, 2]]]
        assert two[0].tolist() == [[[0, 0], [5, 0]]] * 2


def test_state_moves_between_numbers_of_workers() -> None:
    def run(envs, steps: int) -> list:
        return [[part.tolist() for part in envs.step(ZEROS)[:4]] for _ in range(steps)]

    with make(SavesItself, workers=2) as envs:
        envs.reset(seed=1)
        run(envs, 4)
        state = envs.get_state()
        expected = run(envs, 5)
    with make(SavesItself, workers=3) as envs:
        envs.set_state(state)
        assert run(envs, 5) == expected
        assert envs.steps == 9
    with make_vector(SavesItself, 3) as envs:
        envs.set_state(state)
        assert run(envs, 5) == expected
    with make(Counter) as envs:
        envs.reset(seed=0)
        assert envs.get_state() is None
