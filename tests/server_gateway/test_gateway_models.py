"""Models out: channels, canaries, remote actions; and what an operator sees."""

from __future__ import annotations

import hashlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from gateway_support import (
    OTHER,
    SPEC,
    Client,
    Running,
    batch,
    parse_text,
    refused,
    running,
    snapshot,
    wait_for,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc

from assay.server.errors import Reason
from assay.server.gateway.guard import share_of
from assay.server.gateway.models import CHUNK
from assay.server.protocol import assay_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as here:
        here.client().register()
        yield here


TO_ITSELF = {"from_channel": "stable", "to_channel": "stable"}


class Follower:
    """A client that follows its channel."""

    def __init__(self, client: Client, policy: str = "queue", channel: str = "") -> None:
        self.client = client
        self.infos: list[pb.ModelInfo] = []
        self.error: Exception | None = None
        self._call = client.watch(policy, channel)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for info in self._call:
                self.infos.append(info)
        except grpc.RpcError as error:
            self.error = error

    @property
    def version(self) -> int:
        return self.infos[-1].version if self.infos else 0

    def wait_version(self, version: int) -> None:
        wait_for(lambda: self.version == version, f"version {version} (has {self.version})")

    def stop(self) -> None:
        self._call.cancel()
        self._thread.join(20)


def test_a_follower_hears_of_every_move(server: Running) -> None:
    ada = server.client()
    follower = Follower(ada)
    for version in (1, 2, 3):
        server.puppet().publish()
        follower.wait_version(version)
    late = Follower(server.client("bob"))
    late.wait_version(3)  # at once, without waiting for the next
    info = ada.call(ada.models.Rollback, pb.RollbackRequest(policy="queue"))
    assert (info.version, info.channel, info.pinned) == (2, "stable", True)
    follower.wait_version(2)
    late.wait_version(2)
    info = ada.call(ada.models.Pin, pb.PinRequest(policy="queue", version=1))
    assert (info.version, info.pinned) == (1, True)
    follower.wait_version(1)
    server.puppet().publish()
    wait_for(lambda: server.gateway.hub.policies["queue"].newest == 4)
    assert follower.version == 1  # held there
    error = refused(ada.call, ada.models.Promote, pb.PromoteRequest(policy="queue", **TO_ITSELF))
    assert error.reason is Reason.CHANNEL_PINNED
    info = ada.call(ada.models.Pin, pb.PinRequest(policy="queue", version=0))
    assert (info.version, info.pinned) == (4, False)  # at once, not with the next version
    follower.wait_version(4)
    server.puppet().publish()
    follower.wait_version(5)
    follower.stop()
    late.stop()
    wait_for(lambda: not server.gateway.hub.policies["queue"].watching)


def test_models_that_are_not_there(server: Running) -> None:
    ada = server.client()
    assert refused(ada.fetch, version=1).reason is Reason.UNKNOWN_VERSION
    assert refused(ada.fetch).reason is Reason.MALFORMED
    assert refused(ada.fetch, sha256="0" * 64).reason is Reason.UNKNOWN_VERSION
    assert refused(ada.watch, channel="beta").reason is Reason.UNKNOWN_CHANNEL
    assert (
        refused(ada.call, ada.models.Pin, pb.PinRequest(policy="queue", version=9)).reason
        is Reason.UNKNOWN_VERSION
    )
    server.puppet().publish()
    wait_for(lambda: server.gateway.hub.policies["queue"].infos)
    request = pb.RollbackRequest(policy="queue")
    assert refused(ada.call, ada.models.Rollback, request).reason is Reason.NO_EARLIER_VERSION


def test_an_older_model_is_looked_up_by_its_digest_alone(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        server.puppet().publish()
    registry = server.store.registry
    first = registry.model("queue", 1)

    def all_of_them(*args: Any, **options: Any) -> Any:
        raise AssertionError("every version was read")

    monkeypatch.setattr(registry, "models", all_of_them)
    info, data = server.client().fetch(sha256=first.sha256)
    assert info.version == 1 and hashlib.sha256(data).hexdigest() == first.sha256


def test_a_checkpoint_is_no_model(server: Running) -> None:
    server.puppet().publish()
    digest = hashlib.sha256(b"state 1").hexdigest()
    assert server.store.blobs("queue").get(digest) == b"state 1"
    assert refused(server.client().fetch, sha256=digest).reason is Reason.UNKNOWN_VERSION


def test_a_large_model_comes_in_chunks_and_a_damaged_one_not_at_all(
    server: Running, tmp_path: Path
) -> None:
    data = np.random.default_rng(0).bytes(2 * CHUNK + 17)
    server.puppet().publish(data=data)
    ada = server.client()
    chunks = list(ada.call(ada.models.Fetch, pb.FetchRequest(policy="queue", version=1)))
    assert [chunk.offset for chunk in chunks] == [0, CHUNK, 2 * CHUNK]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert chunks[0].info.size == len(data) and not chunks[0].base_sha256
    second = np.random.default_rng(1).bytes(1000)
    server.puppet().publish(data=second)
    digest = hashlib.sha256(second).hexdigest()
    path = next(tmp_path.rglob(digest))
    path.write_bytes(b"x" + second[1:])
    assert refused(ada.fetch, version=2).reason is Reason.HASH_MISMATCH


# Canaries


def play(client: Client, epoch: int, seq: int, version: int, result: float) -> None:
    """Send an episode of two steps that a version has decided."""
    ack = client.put(
        batch(epoch, seq, steps=2, ends=[1], rewards=[0.0, result], version=version, episode=seq)
    )
    assert ack.committed == seq, ack


class Fleet:
    """Clients that play with whatever version they are told to."""

    def __init__(self, server: Running, names: list[str]) -> None:
        self.server = server
        self.followers = {name: Follower(server.client(name)) for name in names}
        self.epochs = {name: f.client.open().epoch for name, f in self.followers.items()}
        self.seq = dict.fromkeys(names, 0)

    def play(self, value: dict[int, float], episodes: int = 4) -> None:
        for name, follower in self.followers.items():
            wait_for(lambda f=follower: f.version)
            for number in range(episodes):
                self.seq[name] += 1
                noise = 0.1 * (number % 2)
                version = follower.version
                play(
                    follower.client, self.epochs[name], self.seq[name], version,
                    value[version] + noise,
                )  # fmt: skip

    def stop(self) -> None:
        for follower in self.followers.values():
            follower.stop()


NAMES = [f"client-{number}" for number in range(6)]
TRIES = min(NAMES, key=share_of)
OTHERS = [name for name in NAMES if name != TRIES]


def decisions(server: Running) -> dict[str, float]:
    meter = server.gateway.hub.meters.canary_decisions
    return {kind: meter.get("queue", kind) for kind in ("promote", "rollback")}


def test_a_version_that_does_worse_rolls_back_by_itself(tmp_path: Path) -> None:
    canary = {"share": 1e-9, "min_episodes": 8, "tolerance": 0.05}
    with running(tmp_path, canary=canary) as server:
        server.client().register()
        puppet = server.puppet()
        puppet.publish()
        fleet = Fleet(server, NAMES)
        for follower in fleet.followers.values():
            follower.wait_version(1)
        puppet.publish()
        wait_for(lambda: server.gateway.hub.policies["queue"].newest == 2)
        values = {1: 10.0, 2: 5.0, 3: 12.0}
        fleet.play(values)  # the stable version gathers what it is judged by
        fleet.followers[TRIES].wait_version(2)
        assert {fleet.followers[name].version for name in OTHERS} == {1}
        assert fleet.followers[TRIES].infos[-1].channel == "canary"
        fleet.play(values, episodes=8)
        fleet.followers[TRIES].wait_version(1)
        assert decisions(server) == {"promote": 0, "rollback": 1}
        # The bad one is not tried again; a new one is, and goes to all.
        puppet.publish()
        fleet.followers[TRIES].wait_version(3)
        fleet.play(values, episodes=8)
        for follower in fleet.followers.values():
            follower.wait_version(3)
        assert decisions(server) == {"promote": 1, "rollback": 1}
        told = {
            name: [version for version, _ in groupby(info.version for info in follower.infos)]
            for name, follower in fleet.followers.items()
        }
        assert told == {TRIES: [1, 2, 1, 3], **{name: [1, 3] for name in OTHERS}}
        fleet.stop()


def test_the_only_client_tries_and_versions_wait_for_their_turn(tmp_path: Path) -> None:
    canary = {"share": 0.1, "min_episodes": 4}
    with running(tmp_path, canary=canary) as server:
        server.client().register()
        puppet = server.puppet()
        puppet.publish()
        fleet = Fleet(server, ["alone"])
        (follower,) = fleet.followers.values()
        follower.wait_version(1)
        values = dict.fromkeys(range(1, 9), 1.0)
        puppet.publish()
        fleet.play(values)
        follower.wait_version(2)
        for _ in range(3):
            puppet.publish()
        wait_for(lambda: server.gateway.hub.policies["queue"].newest == 5)
        assert follower.version == 2
        fleet.play(values)
        follower.wait_version(5)  # the newest is next, not the third
        assert server.store.registry.channel("queue", "stable").version == 2
        # An operator's pin stops the guard.
        client = follower.client
        client.call(client.models.Pin, pb.PinRequest(policy="queue", channel="stable", version=1))
        fleet.play(values)
        fleet.play(values)
        assert server.store.registry.channel("queue", "stable").version == 1
        client.call(client.models.Pin, pb.PinRequest(policy="queue", channel="stable"))
        fleet.play(values)
        wait_for(lambda: server.store.registry.channel("queue", "stable").version == 5)
        fleet.stop()


def test_letting_go_does_not_pass_over_the_trial(tmp_path: Path) -> None:
    canary = {"share": 0.1, "min_episodes": 4}
    with running(tmp_path, canary=canary) as server:
        ada = server.client()
        ada.register()
        puppet, registry = server.puppet(), server.store.registry
        puppet.publish()
        wait_for(lambda: server.gateway.hub.policies["queue"].infos)
        puppet.publish()
        puppet.publish()
        registry.move("queue", "stable", 2)  # it was promoted once
        ada.call(ada.models.Pin, pb.PinRequest(policy="queue", version=1))
        info = ada.call(ada.models.Pin, pb.PinRequest(policy="queue"))
        assert (info.version, info.pinned) == (2, False)  # the third was never tried


def test_a_trial_survives_a_restart(tmp_path: Path) -> None:
    # Nobody may be told by chance, because time has passed.
    options: dict[str, Any] = {"announce_seconds": 600, "recheck_seconds": 600}
    options["canary"] = {"share": 0.1, "min_episodes": 4}
    values = dict.fromkeys(range(1, 9), 1.0)
    with running(tmp_path, **options) as server:
        server.client().register()
        server.puppet().publish()
        fleet = Fleet(server, ["alone"])
        fleet.play(values)
        server.puppet().publish()
        fleet.followers["alone"].wait_version(2)
        fleet.stop()
    with running(tmp_path, **options) as server:
        fleet = Fleet(server, ["alone"])
        follower = fleet.followers["alone"]
        follower.wait_version(1)  # what the stable one can do has to be seen again
        fleet.play(values)
        follower.wait_version(2)
        fleet.play(values)
        wait_for(lambda: server.store.registry.channel("queue", "stable").version == 2)
        fleet.stop()


# Remote actions


def observation(values: Any = (0.0, 1.0, 2.0), **changes: Any) -> pb.TensorMap:
    row = np.asarray(values, np.float32)
    tensor = {"dtype": pb.FLOAT32, "shape": row.shape, "data": row.tobytes()} | changes
    name = tensor.pop("name", "obs")
    return pb.TensorMap(tensors=[pb.NamedTensor(name=name, tensor=pb.Tensor(**tensor))])


def act(client: Client, sent: pb.TensorMap, **options: Any) -> pb.ActReply:
    request = pb.ActRequest(policy="queue", observation=sent, **options)
    return client.call(client.infer.Act, request)


def test_the_server_acts_for_a_client(server: Running) -> None:
    ada = server.client()
    assert refused(act, ada, observation()).reason is Reason.UNKNOWN_VERSION
    server.puppet().publish(prefers=1)
    wait_for(lambda: server.gateway.hub.policies["queue"].infos)
    reply = act(ada, observation(), deterministic=True)
    assert np.frombuffer(reply.action.data, np.int64).tolist() == [1]
    assert (reply.version, reply.log_prob, len(reply.carry.tensors)) == (1, 0.0, 0)
    sampled = act(ada, observation())
    assert np.frombuffer(sampled.action.data, np.int64).tolist() == [1]
    assert -1e-6 < sampled.log_prob <= 0
    server.puppet().publish(prefers=0)
    wait_for(lambda: act(ada, observation(), deterministic=True).version == 2)
    reply = act(ada, observation(), deterministic=True)
    assert np.frombuffer(reply.action.data, np.int64).tolist() == [0]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (pb.TensorMap(), Reason.MISSING_TENSOR),
        (pb.TensorMap(tensors=100_000 * list(observation().tensors)), Reason.MALFORMED),
        (observation(name="obs/x"), Reason.UNKNOWN_TENSOR),
        (observation((1.0, 2.0)), Reason.WRONG_SHAPE),
        (observation(shape=(1 << 31, 3)), Reason.WRONG_SHAPE),
        (observation(data=b"x"), Reason.WRONG_SHAPE),
        (observation(dtype=pb.FLOAT64), Reason.WRONG_DTYPE),
        (observation((0.0, np.nan, 1.0)), Reason.NOT_FINITE),
    ],
)
def test_an_observation_is_looked_at(tmp_path: Path, sent: pb.TensorMap, reason: Reason) -> None:
    with running(tmp_path) as server:
        ada = server.client()
        ada.register()
        server.puppet().publish()
        wait_for(lambda: server.gateway.hub.policies["queue"].infos)
        assert refused(act, ada, sent).reason is reason


def test_a_policy_with_memory_carries_it_in_the_reply(server: Running) -> None:
    ada = server.client()
    server.puppet().publish(data=snapshot(1, memory=True))
    wait_for(lambda: server.gateway.hub.policies["queue"].infos)
    first = act(ada, observation(), deterministic=True)
    assert [one.name for one in first.carry.tensors] == ["0/h"]
    second = act(ada, observation(), carry=first.carry, deterministic=True)
    # Another client in between changes nothing, for the memory is the client's.
    act(server.client("bob"), observation((9.0, 9.0, 9.0)))
    again = act(ada, observation(), carry=first.carry, deterministic=True)
    assert second.carry == again.carry != first.carry
    fresh = act(ada, observation(), deterministic=True)
    assert fresh.carry == first.carry
    bad = pb.TensorMap.FromString(first.carry.SerializeToString())
    bad.tensors[0].tensor.shape[0] = 1 << 31
    assert refused(act, ada, observation(), carry=bad).reason is Reason.MALFORMED
    many = pb.TensorMap(tensors=1000 * list(first.carry.tensors))
    assert refused(act, ada, observation(), carry=many).reason is Reason.MALFORMED
    bad = observation(name="5/h")
    assert refused(act, ada, observation(), carry=bad).reason is Reason.MALFORMED


def test_bad_weights_are_refused_and_the_server_lives(server: Running) -> None:
    server.puppet().publish(data=b"no model at all")
    wait_for(lambda: server.gateway.hub.policies["queue"].infos)
    ada = server.client()
    assert refused(act, ada, observation()).reason is Reason.BAD_WEIGHTS
    server.puppet().publish()
    wait_for(lambda: server.gateway.hub.policies["queue"].version_of("stable") == 2)
    assert act(ada, observation()).version == 2


# What an operator sees


def health(server: Running) -> Any:
    channel = grpc.insecure_channel(server.address)
    server.channels.append(channel)
    return health_pb2_grpc.HealthStub(channel)


def test_health_of_the_server_and_of_each_policy(server: Running) -> None:
    stub, ask = health(server), health_pb2.HealthCheckRequest
    server.client().register(OTHER)

    def of(name: str) -> Any:
        try:
            return stub.Check(ask(service=name), timeout=20).status
        except grpc.RpcError as error:
            return error.code()

    assert of("") == SERVING
    wait_for(lambda: of("assay.policy/queue") == SERVING and of("assay.policy/other") == SERVING)
    assert of("assay.policy/nobody") is grpc.StatusCode.NOT_FOUND
    seen: list[Any] = []
    watch = stub.Watch(ask(service="assay.policy/queue"))

    def follow() -> None:
        try:
            seen.extend(reply.status for reply in watch)
        except grpc.RpcError:
            return

    thread = threading.Thread(target=follow, daemon=True)
    server.puppet().state = "failed"
    wait_for(lambda: of("assay.policy/queue") == NOT_SERVING)
    assert of("assay.policy/other") == SERVING and of("") == SERVING
    thread.start()
    server.puppet().state = "learning"
    wait_for(lambda: of("assay.policy/queue") == SERVING)
    server.run(server.gateway.drain(5.0))
    assert of("") == NOT_SERVING and of("assay.policy/other") == NOT_SERVING
    watch.cancel()
    thread.join(20)


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    with running(tmp_path, metrics_port=0) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        stream = ada.stream()
        stream.send(batch(epoch, 1, steps=3), batch(epoch, 1), batch(epoch, 9))
        wait_for(lambda: stream.rejections)
        refused(ada.open, 'no"body\n')
        server.puppet().publish()
        server.puppet().on_metrics({"train/loss": 0.5, "train/bad": float("nan")})
        url = f"http://127.0.0.1:{server.gateway.metrics_port}"

        def read() -> dict[str, float]:
            with urllib.request.urlopen(f"{url}/metrics", timeout=20) as reply:
                assert reply.headers["Content-Type"].startswith("text/plain")
                return dict(parse_text(reply.read().decode()))

        expected = {
            'assay_learner_behind_batches{policy="queue"}': 0,
            'assay_steps_total{policy="queue"}': 3,
            'assay_batches_total{policy="queue"}': 1,
            'assay_duplicates_total{policy="queue"}': 1,
            'assay_rejections_total{policy="queue",reason="SEQUENCE_GAP"}': 1,
            'assay_rejections_total{policy="",reason="UNKNOWN_POLICY"}': 1,
            'assay_ack_seconds_count{policy="queue"}': 3,
            'assay_commit_seconds_count{policy="queue"}': 3,
            'assay_commit_seconds_bucket{policy="queue",le="+Inf"}': 3,
            'assay_sessions{policy="queue"}': 1,
            'assay_sessions_opened_total{policy="queue"}': 1,
            'assay_publications_total{policy="queue"}': 1,
            'assay_model_version{policy="queue"}': 1,
            'assay_learner_metric{policy="queue",name="train/loss"}': 0.5,
        }
        found = wait_for(lambda: (m := read()).items() >= expected.items() and m)
        assert found['assay_bytes_total{policy="queue"}'] > 0
        with urllib.request.urlopen(f"{url}/healthz", timeout=20) as reply:
            assert reply.read() == b"serving\n"
        for path, code in (("/", 404), ("/metrics/../x", 404)):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(url + path, timeout=20)
            assert error.value.code == code
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{url}/metrics", data=b"x", timeout=20)
        assert error.value.code == 405
        stream.cancel()


def test_reflection_is_off_unless_asked_for(tmp_path: Path) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    for wanted in (False, True):
        with running(tmp_path, reflection=wanted) as server:
            channel = grpc.insecure_channel(server.address)
            server.channels.append(channel)
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([ask]), timeout=20
            )
            if wanted:
                names = {one.name for one in next(call).list_services_response.service}
                assert {"assay.v1.Ingest", "grpc.health.v1.Health"} <= names
            else:
                with pytest.raises(grpc.RpcError) as error:
                    next(call)
                assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_operator_drains_the_server(server: Running) -> None:
    ada = server.client()
    reply = ada.call(ada.admin.Drain, pb.DrainRequest(timeout_seconds=5))
    assert reply.complete and server.puppet().drained
    assert refused(ada.open).reason is Reason.DRAINING


def test_the_port_is_taken(server: Running, tmp_path: Path) -> None:
    from assay.core.errors import ConfigError

    with (
        pytest.raises(ConfigError, match="the port is taken"),
        running(tmp_path / "two", listen=f"127.0.0.1:{server.gateway.port}"),
    ):
        pass
    assert server.client().open().epoch == 1


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with running(tmp_path / "data", listen=f"unix:{path}") as server:
        client = server.client(channel=grpc.insecure_channel(f"unix:{path}"))
        assert client.register().created


# Retention


def test_old_versions_are_forgotten(tmp_path: Path) -> None:
    retention = {"versions": 2, "every": 0.05, "minutes": 0, "hours": 0}
    with running(tmp_path, retention=retention) as server:
        server.client().register()
        puppet = server.puppet()
        stable, puppet._channel = puppet._channel, lambda: None
        for _ in range(5):
            puppet.publish()
        puppet._channel = stable
        puppet.publish()
        wait_for(lambda: len(server.store.registry.models("queue")) <= 3)
        assert server.client().fetch(version=6)[0].version == 6
        assert refused(server.client().fetch, version=1).reason is Reason.UNKNOWN_VERSION


def test_old_versions_are_shown_further_and_further_apart(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, now = server.store.registry, time.time()
    for age in [*range(10_000, 100, -100), *range(40, 0, -1)]:
        monkeypatch.setattr(registry, "_clock", lambda age=age: now - age)
        server.puppet().publish()
    ada = server.client()
    details = ada.call(ada.admin.GetPolicy, pb.PolicyRequest(policy="queue"))
    ages = [round(now - one.created) for one in details.models]
    assert ages[:20] == list(range(1, 21))
    assert ages[20:] == [200, 300, 500, 800, 1200, 1800, 2700, 4100, 6200, 9300]


def test_the_spec_of_a_policy_is_shown_to_an_operator(server: Running) -> None:
    ada = server.client()
    (info,) = ada.call(ada.admin.ListPolicies, pb.ListPoliciesRequest()).policies
    assert info.spec_json == SPEC.canonical().decode() and info.state == pb.ACTIVE
