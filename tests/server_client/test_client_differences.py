"""The Python client takes differences of large models, and the whole where one is of no use."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_support import CHOICE, SEEN
from fake_server import FakeServer, wait_for
from test_client_grpc import joined, play

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server_gateway"))
from gateway_support import Running, running

from assay.policies import description as arch
from assay.policies import layers
from assay.policies.model_file import Snapshot, make_snapshot
from assay.server.client.connect import Connection
from assay.server.errors import Reason
from assay.server.executor.inproc import InprocExecutor
from assay.server.supervisor import Patience, Supervisor

OBS = np.zeros(3, np.float32)


def wide(version: int, *, prefers: int, hidden: int = 64) -> Snapshot:
    """Return a model whose versions differ little but in what they prefer."""
    rng = np.random.default_rng(0)
    step = np.random.default_rng(version).normal(size=(hidden, 3)) * 1e-5
    arrays = {
        "a": (rng.normal(size=(hidden, 3)) * 0.03 + step).astype(np.float32),
        "c": np.zeros(hidden, np.float32),
        "w": (rng.normal(size=(3, hidden)) * 0.03).astype(np.float32),
        "b": np.where(np.arange(3) == prefers, 50.0, 0.0).astype(np.float32),
    }
    architecture = arch.Architecture(
        version=version,
        epoch=1,
        algorithm="test",
        observation=arch.describe_space(SEEN),
        action=arch.describe_space(CHOICE),
        inputs=(arch.Entry(key=None, width=3),),
        layers=(layers.Dense(weight="a", bias="c"), layers.Dense(weight="w", bias="b")),
        head=arch.Categorical(n=3),
    )
    return make_snapshot(architecture, arrays)


def counts(agent: Connection) -> tuple[int, int]:
    transport: Any = agent._transport
    return transport.differences, transport.bad_differences


def publish(server: Running, agent: Connection, version: int, prefers: int) -> None:
    wait_for(lambda: "p" in server.executor.puppets and server.puppet("p").state == "learning")
    server.puppet("p").publish(data=wide(version, prefers=prefers).data)
    wait_for(lambda: agent.status().acting.version == version)
    assert agent.act(OBS) == prefers


def test_every_version_but_the_anchors_comes_as_a_difference(tmp_path: Path) -> None:
    options = {"differences": {"above": 0, "anchor": 4}}
    with running(tmp_path, **options) as server, joined(server.address) as agent:
        for version in range(1, 9):
            publish(server, agent, version, version % 3)
        assert counts(agent) == (5, 0)  # not the first, nor versions 4 and 8
        assert server.gateway.hub.meters.differences.get("p") == 5
        # Backwards as well.
        server.store.registry.rollback("p", "stable")
        hub = server.gateway.hub
        server.run(hub.models_changed(hub.policies["p"]))
        wait_for(lambda: agent.status().acting.version == 7)
        assert counts(agent) == (6, 0) and agent.act(OBS) == 7 % 3
        assert agent.status().acting.rejected_models == 0


def cut(delta: bytes) -> bytes:
    return delta[:-5]


def flip(delta: bytes) -> bytes:
    return delta[:200] + bytes([delta[200] ^ 1]) + delta[201:]


def nothing(delta: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, flip, nothing])
def test_a_difference_that_does_not_come_out_right_costs_one_more_fetch(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    with (
        running(tmp_path, differences={"above": 0}) as server,
        joined(server.address) as agent,
    ):
        publish(server, agent, 1, 0)
        hub = server.gateway.hub
        true = hub.difference

        async def damaged(*args: Any) -> bytes | None:
            found = await true(*args)
            return None if found is None else damage(found)

        hub.difference = damaged  # type: ignore[method-assign]
        publish(server, agent, 2, 1)
        assert counts(agent) == (0, 1)
        hub.difference = true  # type: ignore[method-assign]
        publish(server, agent, 3, 2)  # the whole that came is a base like any other
        assert counts(agent) == (1, 1)
        assert agent.status().acting.rejected_models == 0 and agent.status().failures == 0


def test_without_zstandard_models_come_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, differences={"above": 0}) as server:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "zstandard", None)
            connection = joined(server.address)
            agent = connection.__enter__()
        try:
            for version in (1, 2, 3):
                publish(server, agent, version, version % 3)
            assert counts(agent) == (0, 0)
            assert server.gateway.hub.meters.differences.get("p") == 0
        finally:
            connection.__exit__(None, None, None)


def test_a_server_that_lost_a_model_does_not_lose_the_session(tmp_path: Path) -> None:
    with FakeServer() as server, joined(server.address) as agent:
        wait_for(lambda: agent.status().state == "connected")
        for number, reason in enumerate((Reason.UNKNOWN_VERSION, Reason.HASH_MISMATCH), 1):
            server.refuse_calls["Fetch"] = reason
            server.publish(wide(2 * number, prefers=0))
            wait_for(lambda n=number: agent.status().acting.rejected_models >= n)
            del server.refuse_calls["Fetch"]
            server.publish(wide(2 * number + 1, prefers=2))
            wait_for(lambda n=number: agent.status().acting.version == 2 * n + 1)
            assert agent.act(OBS) == 2
        assert agent.status().failures == 0 and server.epochs["ada"] == 1


@pytest.mark.slow
def test_a_real_learner_of_a_wide_network(tmp_path: Path) -> None:
    executor = InprocExecutor()
    supervise = partial(Supervisor, patience=Patience(poll_seconds=0.05))
    settings = {"hidden": [1024, 1024], "horizon": 16, "minibatch_size": 16, "epochs": 1}
    try:
        with (
            running(tmp_path, executor_object=executor, supervise=supervise) as server,
            joined(server.address, settings={**settings, "num_envs": 1}) as agent,
        ):
            assert agent.wait_for_model(60)
            first = agent.status().acting.version or 0

            def moved() -> bool:
                play(agent, 8)
                return agent.flush(30) and (agent.status().acting.version or 0) >= first + 2

            wait_for(moved)
            model = server.store.registry.model("p", agent.status().acting.version or 0)
            assert model.size > server.gateway.config.differences.above  # type: ignore[operator]
            came, bad = counts(agent)
            assert came >= 1 and bad == 0
            meters = server.gateway.hub.meters
            assert meters.fetched_bytes.get("p") < meters.fetches.get("p") * model.size
            loaded = agent.agent.keeper.current
            assert loaded is not None
            blobs = server.store.blobs("p")
            assert hashlib.sha256(blobs.get(loaded.sha256)).hexdigest() == loaded.sha256
    finally:
        executor.close()
