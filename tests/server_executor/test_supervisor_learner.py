"""The real learner in a process of its own, killed while it learns."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from executor_contract import wait_until

from assay.policies.model_file import Snapshot, parse_snapshot
from assay.server.client.policy import Policy
from assay.server.client.spaces import make_spec
from assay.server.errors import Reason, RejectionError
from assay.server.executor import make_executor
from assay.server.executor.base import Executor
from assay.server.learner.messages import LearnerSettings
from assay.server.spec import PolicySpec
from assay.server.store.store import Ack, Incoming, Store, iterate
from assay.server.supervisor import Patience, Supervisor
from assay.server.tensors import Experience, Layout, encode

_CONTEXTS = 4
_STEPS = 32
_BATCHES = 28  # two to a rollout
_PATIENCE = Patience(first_pause=0.05, poll_seconds=0.05, trim_seconds=None)


def _spec(**settings: object) -> PolicySpec:
    """Return the task: see one of four contexts, and choose the action of the same parity."""
    observation = gym.spaces.Box(0, 1, (_CONTEXTS,), np.float32)
    chosen = {
        "horizon": 2 * _STEPS,
        "num_envs": 1,
        "minibatch_size": 32,
        "lr": 0.01,
        "hidden": [16],
        **settings,
    }
    return make_spec("p", observation, gym.spaces.Discrete(2), "ppo", chosen)


class _Server:
    """A store with a supervisor, and the one client of its policy."""

    def __init__(self, place: Path, executor: Executor) -> None:
        self.store = Store(place)
        self.spec = _spec()
        self.supervisor = Supervisor(
            self.store, executor, "p", LearnerSettings(), patience=_PATIENCE
        )
        self.supervisor.validate(self.spec)
        self.store.register(self.spec)
        self.supervisor.start()
        wait_until(lambda: self.supervisor.status().version, "version 1 is there")
        self.epoch = self.store.open_session("p", "ada").epoch
        self.seq = 0
        self.rng = np.random.default_rng(0)

    def send(self, payload: bytes) -> None:
        self.seq += 1
        (answer,) = self.store.append([Incoming("p", "ada", self.epoch, self.seq, _STEPS, payload)])
        assert isinstance(answer, Ack), answer
        self.supervisor.notify()

    def model(self) -> Snapshot:
        return self.models(newest=1)[0]

    def models(self, newest: int = 10**6) -> list[Snapshot]:
        rows = self.store.registry.models("p", newest=newest)
        return [parse_snapshot(self.store.blobs("p").get(one.sha256)) for one in rows]

    def play(self) -> bytes:
        """Return a batch of episodes of one step each, by the newest model."""
        policy = Policy(self.model())
        contexts = self.rng.integers(0, _CONTEXTS, _STEPS)
        seen = np.eye(_CONTEXTS, dtype=np.float32)[contexts]
        chosen = [policy.act(row[None], None, self.rng) for row in seen]
        actions = np.array([action for action, _ in chosen], np.int64)
        fields = {
            "obs": seen,
            "action": actions,
            "reward": (actions == contexts % 2).astype(np.float32),
            "log_prob": np.array([log_prob for _, log_prob in chosen], np.float32),
            "version": np.full(_STEPS, policy.version, np.int64),
            "flags": np.zeros(_STEPS, np.uint8),
            "terminated": np.ones(_STEPS, np.bool_),
            "truncated": np.zeros(_STEPS, np.bool_),
        }
        layout = Layout(self.spec)
        fields |= {one.name: np.zeros((0, *one.shape), one.dtype) for one in layout.bootstrap}
        types = {one.name: one.dtype for one in layout.steps}
        fields = {
            name: value.astype(types.get(name, value.dtype)) for name, value in fields.items()
        }
        sent = Experience(self.epoch, self.seq + 1, fields)
        return encode(sent, layout).SerializeToString()

    def close(self) -> None:
        self.supervisor.stop()
        self.store.close()


def _skill(model: Snapshot) -> float:
    policy = Policy(model)
    chosen = [policy.act(row[None])[0] for row in np.eye(_CONTEXTS, dtype=np.float32)]
    return float(np.mean([int(action) == i % 2 for i, action in enumerate(chosen)]))


@pytest.mark.slow
def test_a_policy_is_learned_although_its_learner_is_killed(tmp_path: Path) -> None:
    executor = make_executor("process")
    server = _Server(tmp_path / "killed", executor)
    try:
        for number in range(1, _BATCHES + 1):
            server.send(server.play())
            if number in (7, 16):
                health = server.supervisor.status().health
                assert health is not None
                os.kill(health.pid, signal.SIGKILL)
            wait_until(
                lambda number=number: server.supervisor.status().position == number,  # type: ignore[misc]
                f"batch {number} is consumed",
            )
        assert server.supervisor.drain(60.0)
        status = server.supervisor.status()
        learned = server.models()
        sent = [one.payload for one in iterate(server.store, "p")]
    finally:
        server.close()
    assert status.restarts == 2
    assert status.metrics["server/env_steps"] == _BATCHES * _STEPS, "each step counts once"
    assert status.committed == _BATCHES
    assert [one.architecture.version for one in learned] == list(range(_BATCHES // 2 + 1, 0, -1))
    assert _skill(learned[0]) == 1.0

    # The same experience without any kill gives the same versions, bit for bit.
    quiet = _Server(tmp_path / "quiet", executor)
    try:
        for payload in sent:
            quiet.send(payload)
        wait_until(lambda: quiet.supervisor.status().committed == _BATCHES, "all is learned")
        assert quiet.supervisor.status().restarts == 0
        expected = quiet.models()
    finally:
        quiet.close()
        executor.close()
    for one, other in zip(learned, expected, strict=True):
        assert one.arrays.keys() == other.arrays.keys()
        for name in one.arrays:
            np.testing.assert_array_equal(one.arrays[name], other.arrays[name])


def test_a_batch_that_makes_the_learner_diverge_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from assay.server.learner.learner import Learner

    take = Learner._take

    def ruined(self: Learner, position: int, client: str, payload: bytes) -> Any:
        ended = take(self, position, client, payload)
        if payload == venom:
            for parameter in self.algorithm.net.parameters():  # type: ignore[attr-defined]
                parameter.data.fill_(np.nan)
        return ended

    executor = make_executor("inproc")
    server = _Server(tmp_path, executor)
    try:
        # The first of the two batches of a rollout: the learner dies when the second is there.
        venom = server.play()
        monkeypatch.setattr(Learner, "_take", ruined)
        server.send(venom)
        server.send(server.play())
        wait_until(lambda: server.supervisor.status().skipped, "a batch is passed over")
        for number in range(3, 3 + _BATCHES):
            server.send(server.play())
            wait_until(
                lambda number=number: server.supervisor.status().position == number,  # type: ignore[misc]
                f"batch {number} is behind it",
            )
        assert server.supervisor.drain(60.0)
        status = server.supervisor.status()
        assert status.committed > 3 and status.skipped == 3
        assert "diverged" in caplog.text and "passed over" in caplog.text
        assert _skill(server.model()) == 1.0
    finally:
        server.close()
        executor.close()


def test_a_setting_that_the_learner_refuses_is_a_bad_spec(tmp_path: Path) -> None:
    executor = make_executor("process")
    try:
        with Store(tmp_path) as store:
            supervisor = Supervisor(store, executor, "p", LearnerSettings())
            with pytest.raises(RejectionError, match="lr") as caught:
                supervisor.validate(_spec(lr=-1.0))
            assert caught.value.reason is Reason.BAD_SPEC
            assert store.registry.policies() == []
    finally:
        executor.close()


def test_the_supervisors_side_needs_no_torch() -> None:
    code = (
        "import sys, assay.server.supervisor, assay.server.executor.process, "
        "assay.server.executor.ray, assay.server.executor.inproc; "
        "sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
