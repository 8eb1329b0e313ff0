"""Steps that are compiled while a run goes on: by whom, from when on, and what a resume does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import assay
from assay.algorithms.base import Algorithm
from assay.core.errors import RunError
from assay.envs.make import make_vector
from assay.envs.space_codec import space_to_state
from assay.loops import compile_worker
from assay.loops.background_compile import BackgroundCompile
from assay.loops.config import RunConfig, resolve
from assay.loops.events import CheckpointSaved, Logged, StepsCompiled
from assay.loops.table import make_loop
from assay.loops.training import build_algorithm
from assay.optim.compiled_step import CompiledStep
from assay.optim.mode import has_compiler
from assay.runs.checkpoint import state_from_bytes, state_to_bytes
from assay.runs.directory import RunDirectory
from assay.testing.algorithms import assert_same_run, require_compiled, run_metrics
from assay.testing.envs import Drifting

PATIENCE = 900.0  # a compiler on a busy machine
# 40 iterations of 32 environment steps and 4 updates
SETTINGS: dict[str, Any] = {
    "num_envs": 2, "hidden": (8,), "horizon": 16, "minibatch_size": 16, "epochs": 2,
    "env_steps": 1280, "log_every": 64, "checkpoint_every": 320, "eval_every": 640,
    "eval_episodes": 2, "sinks": (), "preset": False, "seed": 3, "compile": "auto",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let runs change to compiled steps, in a cache of their own."""
    monkeypatch.setenv("ASSAY_COMPILE", "auto")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def train(root: Path, name: str, **options: Any) -> Path:
    return assay.train("ppo", "CartPole-v1", name=name, root=root, **SETTINGS | options).path


def changes(path: Path) -> list[dict[str, int]]:
    found = RunDirectory.open(path).events()
    return [event["steps"] for event in found if event["kind"] == "StepsCompiled"]


class TestExactResume:
    """With the traced program in place of the compiled one: its numbers differ as well."""

    @pytest.fixture(autouse=True)
    def _traced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def runner(self: CompiledStep, signature: Any, inputs: list[Tensor]) -> Any:
            state = self._state_tensors()
            program = self._program(list(signature.names), signature.gather)
            return lambda batch: program(*state, *batch)

        monkeypatch.setattr(CompiledStep, "_make_runner", runner)

    @pytest.fixture
    def ready(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
        """Return a function that says from how many updates on the compiled step is there."""

        def from_update(count: int | None) -> None:
            def found(self: BackgroundCompile) -> list[str]:
                step = self.algorithm.steps["step"]
                there = count is not None and step.updates >= count
                return ["step"] if there and step.awaits_compiled else []

            monkeypatch.setattr(BackgroundCompile, "ready", found)

        return from_update

    def test_the_change_is_written_down_and_told(
        self, tmp_path: Path, ready: Callable[[int | None], None]
    ) -> None:
        ready(50)
        told: list[Any] = []
        path = train(
            tmp_path, "a", callbacks=[lambda e: told.append(e) if type(e) is StepsCompiled else 0]
        )
        assert [dict(event.steps) for event in told] == [{"step": 52}] == changes(path)
        ready(None)
        eager = train(tmp_path, "b")
        assert changes(eager) == []
        lines, plain = run_metrics(path), run_metrics(eager)
        assert lines[:6] == plain[:6]  # to 48 updates
        assert lines != plain, "the numbers of the two ways should differ in the last bits"

    @pytest.mark.parametrize("at", [10, 50, 130])
    @pytest.mark.parametrize("end", [1, 2, 3])
    def test_a_run_that_was_killed_changes_where_it_did(
        self, tmp_path: Path, ready: Callable[[int | None], None], at: int, end: int
    ) -> None:
        """Killed `end` log lines after the change; checkpoints come every five of them."""
        ready(at)
        whole = train(tmp_path, "whole")
        ((place,),) = [list(steps.values()) for steps in changes(whole)]

        class KilledError(BaseException):
            pass

        logged = 0

        def kill(event: Any) -> None:
            nonlocal logged
            if isinstance(event, Logged) and event.clock.updates > place:
                logged += 1
                if logged == end:
                    raise KilledError

        with pytest.raises(KilledError):
            train(tmp_path, "killed", callbacks=[kill])
        ready(None)  # whether the step is in the cache by then is not asked
        assay.resume(tmp_path / "killed")
        assert_same_run(whole, tmp_path / "killed")
        assert changes(tmp_path / "killed") == [{"step": place}]

    def test_a_run_that_could_not_write_it_down_does_not_change(
        self,
        tmp_path: Path,
        ready: Callable[[int | None], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ready(None)
        eager = train(tmp_path, "eager")
        original = RunDirectory.log_event

        def full(self: RunDirectory, kind: str, **fields: Any) -> None:
            if kind == "StepsCompiled":
                raise RunError("The disk is full.")
            original(self, kind, **fields)

        monkeypatch.setattr(RunDirectory, "log_event", full)
        ready(10)
        assert_same_run(eager, train(tmp_path, "full"))

    def test_a_run_that_ended_early_goes_on_changed(
        self, tmp_path: Path, ready: Callable[[int | None], None]
    ) -> None:
        ready(50)
        whole = train(tmp_path, "whole")

        def stop(event: Any) -> Any:
            later = isinstance(event, CheckpointSaved) and event.clock.updates > 52
            return assay.STOP if later else None

        train(tmp_path, "stopped", callbacks=[stop])
        ready(None)
        assay.resume(tmp_path / "stopped")
        assert_same_run(whole, tmp_path / "stopped")


def built(algorithm: str, env: Any, **settings: Any) -> tuple[Algorithm, BackgroundCompile]:
    """Return an algorithm whose steps were called, and what compiles them."""
    run = {"env_steps": 10_000, "compile": "auto", "device": "cpu", "hidden": (4,)}
    config: RunConfig = resolve(algorithm, "none", run | settings, use_preset=False)
    vector = make_vector(env, config.run.num_envs)
    made = build_algorithm(config, vector.spaces, config.run.clock())
    loop = make_loop(made, vector, config.run)
    loop.start()
    while not made.steps or any(step.seen is None for step in made.steps.values()):
        loop.iterate()
    spaces = {
        "observation": space_to_state(vector.observations.source),
        "mask_size": vector.observations.mask_size,
        "action": space_to_state(vector.actions.source),
    }
    vector.close()
    return made, BackgroundCompile(made, config, spaces)


REPLAY = {"learning_starts": 8, "batch_size": 4, "buffer_size": 100}


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {"normalize_obs": True, "num_envs": 2, "horizon": 8}),
        ("ppo", Drifting, {"rnd": 0.5, "num_envs": 2, "horizon": 8}),
        ("recurrent_ppo", "CartPole-v1", {"num_envs": 2, "horizon": 8, "chunk": 4}),
        ("dqn", "CartPole-v1", REPLAY | {"prioritized": True}),
        ("td3", "Pendulum-v1", REPLAY),
        ("sac", "Pendulum-v1", REPLAY | {"lr": "linear:1e-3:0"}),
    ],
)
def test_the_worker_compiles_what_the_run_looks_for(
    algorithm: str, env: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "horizon" in settings:
        settings = settings | {"minibatch_size": 8}
    made, compiling = built(algorithm, env, **settings)
    order = state_from_bytes(state_to_bytes(compiling.order(made.steps)))
    names: list[str] = []
    monkeypatch.setattr(
        CompiledStep, "prepare", lambda self, call: names.append(self._cache_name(call))
    )
    monkeypatch.setattr("assay.optim.mode.has_compiler", lambda: True)
    compile_worker.compile_steps(order)
    assert names == [step.cache_name for step in made.steps.values()]


def test_another_schedule_is_not_another_step() -> None:
    """Learning rates are inputs: trying several of them compiles once."""

    def name(**settings: Any) -> str:
        rollout = {"num_envs": 2, "horizon": 8, "minibatch_size": 8}
        return built("ppo", "CartPole-v1", **rollout | settings)[0].steps["step"].cache_name

    assert name() == name(lr=1e-3) == name(lr="linear:1e-3:0", clip=0.1)
    assert name() != name(value_coef=0.25)
    assert name() != name(hidden=(5,))


class TestWorker:
    @pytest.fixture
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", compile_worker.__name__]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        ) as process:
            yield process
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    @staticmethod
    def send(worker: subprocess.Popen[bytes], order: dict[str, Any], then: bytes = b"") -> None:
        assert worker.stdin is not None
        data = state_to_bytes(order)
        worker.stdin.write(len(data).to_bytes(compile_worker.HEADER, "big") + data + then)
        worker.stdin.flush()

    def test_it_ends_when_the_run_is_killed(self, worker: subprocess.Popen[bytes]) -> None:
        made, compiling = built("dqn", "CartPole-v1", **REPLAY)
        self.send(worker, compiling.order(made.steps))
        assert worker.stdin is not None
        worker.stdin.close()  # what the system does for a process that is gone
        assert worker.wait(PATIENCE) == -signal.SIGKILL

    def test_it_ends_if_the_run_is_gone_before_it_has_its_order(
        self, worker: subprocess.Popen[bytes]
    ) -> None:
        assert worker.stdin is not None
        worker.stdin.write(b"\0\0")
        worker.stdin.close()
        assert worker.wait(PATIENCE) == 1

    def test_a_run_that_is_over_lets_it_go_on(self, worker: subprocess.Popen[bytes]) -> None:
        """It would have been killed by a signal otherwise, before it found out about the order."""
        self.send(worker, {"threads": 1}, compile_worker.GO_ON)
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.close()
        assert worker.wait(PATIENCE) == 1
        assert worker.stdout.read() == b"KeyError: 'spaces'\n"


class TestWhoCompiles:
    @pytest.fixture
    def compiling(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], BackgroundCompile]:
        """Return a maker of compilers of one step; their workers sleep until they are killed."""
        monkeypatch.setattr(Algorithm, "is_worth_compiling", True)

        def sleep(self: BackgroundCompile, steps: Any, claim: Any) -> Any:
            return subprocess.Popen(
                ["sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                process_group=0, pass_fds=(claim.fileno(),),
            )  # fmt: skip

        monkeypatch.setattr(BackgroundCompile, "_spawn", sleep)
        return lambda: built("dqn", "CartPole-v1", **REPLAY)[1]

    def test_two_runs_do_not_compile_the_same_step(
        self, compiling: Callable[[], BackgroundCompile]
    ) -> None:
        one, two = compiling(), compiling()
        for _ in range(2):
            assert one.ready() == two.ready() == []
        worker = one._worker
        assert worker is not None and two._worker is None
        one.close(finished=False)
        assert worker.returncode == -signal.SIGKILL
        two.ready()  # nobody compiles any more
        assert two._worker is not None
        two.close(finished=False)

    def test_a_worker_that_fails_is_named_once(
        self, compiling: Callable[[], BackgroundCompile]
    ) -> None:
        one = compiling()
        one.ready()
        assert one._worker is not None
        os.killpg(one._worker.pid, signal.SIGKILL)
        one._worker.wait()
        with pytest.warns(UserWarning, match="stay eager, because .* ended with exit code -9"):
            one.ready()
        one.ready()
        assert one._worker is None

    def test_a_short_run_compiles_nothing(
        self, compiling: Callable[[], BackgroundCompile], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Algorithm, "is_worth_compiling", False)
        one = compiling()
        one.ready()
        assert one._worker is None

    def test_a_cache_that_cannot_be_written_is_said_once(
        self, compiling: Callable[[], BackgroundCompile], cache: Path
    ) -> None:
        one = compiling()
        cache.write_text("a file where the directory should be")
        with pytest.warns(UserWarning, match=r"stay eager, because .*: (Not a directory|File exi)"):
            one.ready()
        one.ready()
        assert one._worker is None

    def test_an_algorithm_of_the_script_itself_is_left_alone(
        self, compiling: Callable[[], BackgroundCompile], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = compiling()
        assert not one.is_over
        monkeypatch.setattr(type(one.algorithm), "__module__", "__main__")
        assert one.is_over


@pytest.mark.slow
def test_a_run_changes_to_what_its_worker_compiled_and_the_next_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_compiler():
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
    monkeypatch.setattr("assay.algorithms.base.UPDATES_THAT_PAY", 1)
    original, workers = BackgroundCompile.ready, []

    def patient(self: BackgroundCompile) -> list[str]:
        if self._worker is not None:
            self._worker.wait(PATIENCE)
            workers.append(self._worker)
        return original(self)

    monkeypatch.setattr(BackgroundCompile, "ready", patient)
    first = train(tmp_path, "first")
    if not changes(first):  # because this torch cannot load what it compiles: that skips the test
        require_compiled(*built("dqn", "CartPole-v1", **REPLAY)[0].steps.values())
    # The worker is started at the first look, after one iteration, and waited for at the second.
    assert changes(first) == [{"step": 8}]
    second = train(tmp_path, "second", log_every=1280)
    assert changes(second) == [{"step": 0}]
    assert len(workers) == 1
    last = [run_metrics(path)[-1] for path in (first, second)]
    assert last[0][:2] == last[1][:2]
    assert np.isfinite(list(last[1][3].values())).all()
