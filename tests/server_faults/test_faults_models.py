"""Models that are damaged, do not fit, or do worse: real clients keep what works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from client_support import model
from fault_hosts import SEEN, weights
from gateway_support import running
from gymnasium import spaces
from players import Player
from served import until

from assay.server.errors import Reason, RejectionError
from assay.server.store.blobs import Blobs

OBS = np.zeros(3, np.float32)


def with_nan(data: bytes) -> bytes:
    """Return a model file whose last number is not a number."""
    return data[:-4] + np.array([np.nan], np.float32).tobytes()


def test_bad_weights_are_refused_and_the_model_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as server:
        player = Player(server.address, "ada")
        client = player.connection
        try:
            until(lambda: "queue" in server.executor.puppets, "registration")
            puppet = server.puppet()

            def acts_by(version: int) -> None:
                until(lambda: client.status().acting.version == version, f"version {version}")
                assert client.decide(OBS).version == version

            until(lambda: puppet.state == "learning", "the learner")
            puppet.publish(data=weights(1))
            acts_by(1)
            wide = spaces.Box(-1, 1, (4,), np.float32)
            foreign = model(3, observation=SEEN, action=spaces.Discrete(4)).data
            other = model(4, observation=wide).data
            for number, bad in enumerate((with_nan(weights(2)), foreign, other, b"junk" * 9), 1):
                puppet.publish(data=bad)
                until(
                    lambda number=number: client.status().acting.rejected_models >= number,
                    f"refusal {number}",
                )
                assert client.status().acting.last_rejection
                assert client.decide(OBS).version == 1
            refused = _damage(monkeypatch, weights(6))
            puppet.publish(data=weights(6))
            until(lambda: Reason.HASH_MISMATCH in refused, "the damaged file")
            player.play(20)
            assert client.decide(OBS).version == 1
            puppet.publish(data=weights(7, prefers=0))
            acts_by(7)
            assert client.act(OBS) == 0
            assert player.wrong == 0 and not client.status().acting.errors
        finally:
            client.close(0.0)


def _damage(monkeypatch: pytest.MonkeyPatch, data: bytes) -> list[Reason]:
    """Damage the file of a model once it is published; return why reading files is refused."""
    refused: list[Reason] = []
    put, get = Blobs.put, Blobs.get

    def damaged(self: Blobs, given: bytes) -> str:
        digest = put(self, given)
        if given == data:
            (self._directory / digest).write_bytes(data[:-1] + b"\0\0")
        return digest

    def watched(self: Blobs, digest: str) -> bytes:
        try:
            return get(self, digest)
        except RejectionError as error:
            refused.append(error.reason)
            raise

    monkeypatch.setattr(Blobs, "put", damaged)
    monkeypatch.setattr(Blobs, "get", watched)
    return refused


def test_a_model_that_does_worse_is_rolled_back_by_itself(tmp_path: Path) -> None:
    canary = {"share": 0.4, "min_episodes": 5, "tolerance": 0.1}
    with running(tmp_path, canary=canary) as server:
        players = [Player(server.address, f"client-{i}", batch_steps=5) for i in range(6)]
        clients = [player.connection for player in players]

        def episodes() -> bool:
            """Let each client play an episode in which choice 2 pays."""
            for client in clients:
                for _ in range(5):
                    client.reward(float(client.act(OBS) == 2))
                client.end(terminated=True)
            return True

        def versions() -> set[int]:
            return {client.status().acting.version or 0 for client in clients}

        def decided(verdict: str) -> float:
            return server.gateway.hub.meters.canary_decisions.get("queue", verdict)

        try:
            until(lambda: "queue" in server.executor.puppets, "registration")
            puppet = server.puppet()
            until(lambda: puppet.state == "learning", "the learner")
            puppet.publish(data=weights(1, prefers=2))
            until(lambda: versions() == {1}, "the first version everywhere")
            puppet.publish(data=weights(2, prefers=0))
            tried = until(lambda: episodes() and versions() - {1} and versions(), "a trial")
            assert tried == {1, 2}  # some of them alone
            until(lambda: episodes() and decided("rollback"), "the way back")
            until(lambda: versions() == {1}, "the first version everywhere again")
            puppet.publish(data=weights(3, prefers=2))
            until(lambda: episodes() and decided("promote"), "a better one's way")
            until(lambda: versions() == {3}, "the third version everywhere")
            assert decided("rollback") == 1
        finally:
            for client in clients:
                client.close(0.0)
