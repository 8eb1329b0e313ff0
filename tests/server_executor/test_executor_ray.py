"""The back end "ray": the contract, and the loss of servers and nodes.

A cluster takes long to begin, so that all tests here share one.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from executor_contract import LONG, PUPPET, ExecutorContract, gone, wait_until
from ray_cluster import RayCluster, ray_cluster
from supervisor_world import world

from assay.core.errors import MissingExtraError
from assay.server.client.spaces import make_spec
from assay.server.executor.base import Executor, ExecutorError, LearnerCrashed
from assay.server.executor.ray import RayExecutor
from assay.server.learner.messages import LearnerSettings
from assay.server.store.store import Store
from assay.server.supervisor import Supervisor

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Seconds that a learner may take to begin where the machine is busy with other tests.
PATIENCE = LONG

# A server that is killed: it begins a learner, says its pid, and is busy with it.
_SERVER = f"""
import sys
from assay.server.executor.ray import RayExecutor

handle = RayExecutor(sys.argv[1]).spawn("p", host={PUPPET!r})
handle.call({{"method": "echo"}})
print(handle.health().pid, flush=True)
handle.call({{"method": sys.argv[2], "began": sys.argv[3], "seconds": 0.0}})
print("rested", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        made.add_node(num_cpus=2)
        made.add_node(num_cpus=2)
        made.connect()
        yield made


class TestRay(ExecutorContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: RayCluster) -> None:
        self.cluster = cluster

    def make(self) -> Executor:
        return RayExecutor(self.cluster.address, patience=PATIENCE)

    def test_a_learner_is_found_again_after_its_server_was_killed(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        server, pid = self.serve("nap", tmp_path)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"rested\n"
            server.kill()
            server.wait()
            handle = self.spawn(executor)
            assert handle.health().pid == pid, "its process is used again"
            # The learner in it is a new one.
            assert handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1
        finally:
            _end(server)
        executor.close()
        wait_until(lambda: gone(pid), "nothing is left behind")

    def test_a_learner_that_is_busy_for_a_killed_server_is_replaced(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        server, pid = self.serve("hang", tmp_path)
        try:
            wait_until((tmp_path / "began").exists, "the learner hangs")
            server.kill()
            server.wait()
            patient = RayExecutor(self.cluster.address, patience=40.0)
            handle = self.spawn(patient)
            assert handle.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1
            assert handle.health().pid != pid
            wait_until(lambda: gone(pid), "the one that hung is gone")
            patient.close()
        finally:
            _end(server)

    def serve(self, method: str, place: Path) -> tuple[subprocess.Popen[bytes], int]:
        command = [sys.executable, "-c", _SERVER, self.cluster.address, method]
        server = subprocess.Popen(
            [*command, str(place / "began")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            return server, int(server.stdout.readline())
        except BaseException:
            _end(server)
            raise

    def test_a_later_spawn_takes_the_learner_from_an_earlier_handle(
        self, executor: Executor
    ) -> None:
        first = self.spawn(executor)
        assert first.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1
        second = self.spawn(executor)
        assert second.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1
        with pytest.raises(LearnerCrashed, match="taken the place"):
            first.call({"method": "echo"}, timeout=LONG)
        first.kill()  # has no say any more
        first.stop(1.0)
        assert second.call({"method": "echo"}, timeout=LONG)[0]["calls"] == 2

    def test_an_earlier_handle_is_told_without_a_call(self, executor: Executor) -> None:
        first = self.spawn(executor)
        assert self.spawn(executor).health().alive
        wait_until(lambda: not first.health().alive, "it has heard of the other one")
        with pytest.raises(LearnerCrashed, match="taken the place"):
            first.call({"method": "echo"}, timeout=LONG)

    def test_no_learner_begins_in_a_process_that_is_being_killed(self, executor: Executor) -> None:
        pids = set()
        for _ in range(4):
            handle = self.spawn(executor)
            pids.add(handle.health().pid)
            with pytest.raises(LearnerCrashed, match="a bug of the learner"):
                handle.call({"method": "fail"}, timeout=LONG)
        assert len(pids) == 4

    def test_ray_begins_a_crashed_learner_again_by_itself(self, executor: Executor) -> None:
        first = self.spawn(executor)
        pid = first.call({"method": "who"}, timeout=LONG)[0]["pid"]
        os.kill(pid, 9)
        wait_until(lambda: not first.health().alive, "its death is known")
        second = self.spawn(executor)
        health = second.health()
        assert health.pid != pid
        assert health.restarts == 1

    def test_without_a_free_core_there_is_no_place(self, executor: Executor) -> None:
        crowded = RayExecutor(self.cluster.address, num_cpus=64, patience=1.0)
        with pytest.raises(ExecutorError, match="no place for the learner 'p' for 1 seconds"):
            self.spawn(crowded)
        crowded.close()
        assert self.spawn(executor).call({"method": "echo"}, timeout=LONG)[0]["calls"] == 1


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()


def test_a_killed_node_costs_seconds_and_nothing_else(
    cluster: RayCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with world(tmp_path, RayExecutor(cluster.address, patience=PATIENCE)) as made:
        made.register(publish_every=3, checkpoint_every=2, window=5, nap=0.02)
        supervisor = made.supervise(batches=4, crashes=10**6)
        stop = threading.Event()

        def feed() -> None:
            while not stop.is_set():
                made.feed(2)
                stop.wait(0.05)

        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            made.await_committed(6)
            first = _node(supervisor.status().health)
            began = time.monotonic()
            cluster.kill_node(first)
            version = supervisor.status().version
            wait_until(lambda: supervisor.status().version > version + 1, "it learns again")
            print(f"learned again {time.monotonic() - began:.1f} s after the node was killed")
        finally:
            stop.set()
            feeding.join()
            cluster.add_node(num_cpus=2)  # for the tests behind this one
        second = _node(supervisor.status().health)
        assert second != first, "on another node"
        fed = made.store.registry.last_position("p")
        wait_until(lambda: supervisor.status().position == fed, "all is consumed")
        assert supervisor.drain(LONG)
        made.assert_exactly_once(fed)
        status = supervisor.status()
        assert status.restarts >= 1
        assert "Ray has lost the learner 'p'" in caplog.text
        started = [one for one in made.notes() if one["what"] == "started"]
        assert len(started) == status.restarts + 1
        assert started[-1]["at"] > 0, "from a checkpoint"
        epochs = [one.epoch for one in made.published]
        assert epochs == sorted(epochs) and len(set(epochs)) >= 2


def _node(health: Any) -> str:
    assert health is not None
    return str(health.where).rpartition(" ")[2]


def test_the_real_learner_begins_on_a_node_within_its_memory(
    cluster: RayCluster, tmp_path: Path
) -> None:
    space = gym.spaces.Box(0, 1, (4,), np.float32)
    spec = make_spec("p", space, gym.spaces.Discrete(2), "ppo", {})
    with Store(tmp_path) as store:
        executor = RayExecutor(cluster.address, patience=PATIENCE)
        supervisor = Supervisor(store, executor, "p", LearnerSettings(memory_mb=1500))
        try:
            supervisor.validate(spec)
            store.register(spec)
            supervisor.start()
            wait_until(lambda: supervisor.status().version == 1, "version 1 is published")
            assert supervisor.status().restarts == 0
        finally:
            supervisor.stop()
            executor.close()


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = importlib.import_module("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ExecutorError, match=rf"127.0.0.1:{port}.*cannot be reached") as caught:
        RayExecutor(f"127.0.0.1:{port}")
    assert "ray start --head" in (caught.value.fix or "")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'assay\[ray\]'"):
        RayExecutor()
