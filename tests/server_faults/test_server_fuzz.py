"""Anything that can come over the wire, from either side: nothing falls over, nothing swells up."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from gateway_support import SPEC, Client, batch
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from players import Player
from served import Forge, memory, until
from wild_messages import mutated, wild

from assay.core.errors import ConfigError
from assay.server.client.config import read_config as read_client_config
from assay.server.client.connect import connect
from assay.server.errors import Reason, RejectionError
from assay.server.gateway.config import read_config as read_server_config
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.rejections import rejection_of
from assay.server.spec import PolicySpec, read_spec
from assay.server.store.sqlite import SqliteRegistry
from assay.server.store.tokens import authenticate, make_token

MB = 1 << 20
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# These end the server, or what the other calls are about.
ENDING = ("/assay.v1.Admin/Drain", "/assay.v1.Admin/Delete", "/assay.v1.Admin/Pause")
quickly = settings(
    deadline=None, suppress_health_check=list(HealthCheck), max_examples=20, derandomize=True
)


def good_batch(epoch: int, rng: random.Random) -> pb.IngestRequest:
    return pb.IngestRequest(policy=SPEC.name, batch=batch(epoch, rng.randint(1, 4)))


def good_question(epoch: int, rng: random.Random) -> pb.ActRequest:
    numbers = pb.Tensor(dtype=pb.FLOAT32, shape=[3], data=np.zeros(3, np.float32).tobytes())
    named = pb.NamedTensor(name="obs", tensor=numbers)
    return pb.ActRequest(policy=SPEC.name, observation=pb.TensorMap(tensors=[named]))


GOOD = {pb.IngestRequest: good_batch, pb.ActRequest: good_question}


def reread(kind: type[Any], data: bytes) -> Any:
    """Return the message that bytes are, or None."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with Forge(listen="127.0.0.1:0", max_policies=8) as made:
        yield made.start()


@pytest.fixture(scope="module")
def channel(forge: Forge) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(forge.address) as made:
        yield made


def call(channel: grpc.Channel, path: str, requests: list[bytes], **options: Any) -> grpc.RpcError:
    """Send bytes to a method; return how it refused, or None."""
    method = METHODS[path]
    options = {"timeout": 0.25, "metadata": [("assay-client", "fuzz")], **options}
    kind = {(0, 0): "unary_unary", (0, 1): "unary_stream", (1, 1): "stream_stream"}
    made = getattr(channel, kind[method.client_streaming, method.server_streaming])(path)
    try:
        answer = made(iter(requests) if method.client_streaming else requests[0], **options)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return error
    return None


def fell_over(error: grpc.RpcError | None) -> bool:
    return error is not None and error.code() in (
        grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE
    )  # fmt: skip


@pytest.mark.parametrize("path", [path for path in METHODS if path not in ENDING])
def test_no_message_brings_the_gateway_down(forge: Forge, channel: grpc.Channel, path: str) -> None:
    client = Client(channel, "fuzz")
    client.register()
    epoch = client.open().epoch
    before = memory(forge.pid)
    kind = METHODS[path].input_type._concrete_class
    # A call that has no end by itself takes as long as its time limit.
    endless = METHODS[path].server_streaming and not METHODS[path].client_streaming
    times = 5 if endless else 30
    for number in range(times):
        rng = random.Random(f"{path}/{number}")
        requests = []
        for _ in range(rng.randint(1, 4)):
            message = wild(kind, rng)
            if hasattr(message, "protocol") and rng.random() < 0.8:
                message.protocol = PROTOCOL
            if hasattr(message, "policy") and rng.random() < 0.7:
                message.policy = SPEC.name
            if kind in GOOD and rng.random() < 0.6:
                message = GOOD[kind](epoch, rng)
                if rng.random() < 0.8:
                    message = reread(kind, mutated(message.SerializeToString(), rng)) or message
            requests.append(message.SerializeToString())
        error = call(channel, path, requests)
        assert not fell_over(error), (error, requests)
    assert memory(forge.pid) - before < 48 * MB
    assert "Traceback" not in forge.log.read_text()


@pytest.mark.parametrize("path", [path for path in METHODS if path not in ENDING])
def test_bytes_that_are_no_message_do_no_harm(
    forge: Forge, channel: grpc.Channel, path: str
) -> None:
    for number in range(5):
        rng = random.Random(f"{path}/{number}")
        call(channel, path, [rng.randbytes(rng.choice([1, 30, 3000]))])
    client = Client(channel, "afterwards")
    client.register()
    epoch = client.open().epoch
    assert client.put(batch(epoch, 1)).committed == 1
    forge.log.write_text("")  # gRPC itself writes there what it cannot read


@pytest.mark.parametrize("number", range(60))
def test_mutated_specs_are_refused_in_little_memory(number: int) -> None:
    rng = random.Random(number)
    bounded = PolicySpec.model_validate(
        {
            "name": "knobs",
            "observation": {"kind": "dict", "spaces": {
                "a": {"kind": "box", "shape": [4], "low": -1.0, "high": 1.0},
                "mask": {"kind": "multi_binary", "shape": [3]},
            }},
            "action": {"kind": "box", "shape": [2], "low": -1.0, "high": 1.0},
            "bounds": {"low": [-0.5, -0.5], "high": [0.5, 0.5]},
            "algorithm": "sac",
            "settings": {"lr": 3e-4, "hidden": [64, 64]},
        }
    ) if number % 2 else SPEC  # fmt: skip
    text = bounded.canonical()
    tracemalloc.start()
    for _ in range(20):
        try:
            found = read_spec(mutated(text, rng))
        except RejectionError as error:
            assert error.reason is Reason.BAD_SPEC
        else:
            assert read_spec(found.canonical()) == found
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MB


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteRegistry, str]]:
    registry = SqliteRegistry(tmp_path_factory.mktemp("registry"))
    text, token = make_token("ada", {"*": frozenset()} | {"queue": frozenset({"read"})})
    registry.add_token(token)
    yield registry, text
    registry.close()


@quickly
@given(st.data())
def test_nothing_but_the_token_is_the_token(
    guarded: tuple[SqliteRegistry, str], data: st.DataObject
) -> None:
    registry, text = guarded
    near = st.builds(
        lambda at, by: text[:at] + by + text[at + len(by) :],
        st.integers(0, len(text)), st.text(max_size=3),
    )  # fmt: skip
    guess = data.draw(st.one_of(st.text(max_size=200), near, st.just(text.upper())))
    if guess == text:
        return
    with pytest.raises(RejectionError) as caught:
        authenticate(registry, guess, now=0.0)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert guess not in str(caught.value) or len(guess) < 4


def test_no_metadata_opens_a_guarded_server() -> None:
    with Forge(listen="127.0.0.1:0", tokens=True) as forge:
        forge.start()
        (path,) = [one for one in forge.directory.rglob("admin.token")]
        secret = path.read_text().strip()
        with grpc.insecure_channel(forge.address) as channel:
            request = pb.ListPoliciesRequest().SerializeToString()
            listing = "/assay.v1.Admin/ListPolicies"
            right = [("authorization", f"Bearer {secret}")]
            assert call(channel, listing, [request], metadata=right, timeout=20) is None
            rng = random.Random(0)
            for number in range(60):
                value = rng.choice(
                    [
                        "", "Bearer", "Bearer ", f"Basic {secret}", secret, "Bearer " + "a" * 9000,
                        "Bearer " + mutated(secret.encode(), rng).decode("latin-1"),
                        f"Bearer {secret} ", f"bearer  {secret[:-1]}", f"Bearer {secret},{secret}",
                    ]
                )  # fmt: skip
                value = "".join(c if " " <= c <= "~" else "?" for c in value)
                if value.strip() == f"Bearer {secret}":
                    continue
                key = rng.choice(["authorization", "assay-client", "x-token"])
                error = call(channel, listing, [request], metadata=[(key, value)], timeout=20)
                assert error is not None, (key, value)
                assert not fell_over(error), (number, key, value, error)
                found = rejection_of(error)
                assert found is None or found.reason is Reason.UNAUTHENTICATED


class Liar(grpc.GenericRpcHandler):
    """A server that answers every call with something of the right kind, or with noise."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.calls = 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = METHODS.get(details.method)
        if method is None:
            return None
        kind = method.output_type._concrete_class
        rng = random.Random(self.rng.random())

        def answer() -> bytes:
            self.calls += 1
            if rng.random() < 0.1:
                return rng.randbytes(20)
            message = wild(kind, rng)
            if kind is pb.OpenReply and rng.random() < 0.8:
                message.credit_batches, message.credit_bytes, message.epoch = 4, MB, 1
            if kind is pb.Ack and rng.random() < 0.5:
                message.epoch = 1
            return message.SerializeToString()

        def one(request: bytes, context: Any) -> bytes:
            return answer()

        def many(request: Any, context: Any) -> Iterator[bytes]:
            for _ in range(rng.randint(1, 20)):
                yield answer()

        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(many)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(many)
        return grpc.unary_unary_rpc_method_handler(one)


@pytest.mark.parametrize("seed", range(2))
def test_no_server_stops_a_client(seed: int) -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    liar = Liar(seed)
    server.add_generic_rpc_handlers((liar,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    player = Player(f"127.0.0.1:{port}", "ada", buffer_steps=200, retry_seconds=0.0005)
    tracemalloc.start()
    try:

        def enough() -> bool:
            player.play(20)
            return liar.calls > 300

        until(enough, f"calls: {liar.calls}, {player.connection.status()}")
        status = player.connection.status()
        assert status.state != "stopped"
        assert player.wrong == 0 and status.acting.errors == {}
        assert status.acting.held_steps <= 200
        assert tracemalloc.get_traced_memory()[1] < 32 * MB
    finally:
        tracemalloc.stop()
        player.connection.close(0.0)
        server.stop(0)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
SERVER_KEYS = ("listen", "tls", "tokens", "grants", "credits", "learner", "quota", "policies")
CLIENT_KEYS = ("address", "policy", "observation", "action", "bounds", "settings", "tls", "token")


@quickly
@given(st.dictionaries(st.sampled_from(SERVER_KEYS) | st.text(max_size=9), json_like))
def test_a_servers_config_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=True))
    try:
        read_server_config(path, {})
    except ConfigError as error:
        assert error.message


@quickly
@given(st.dictionaries(st.sampled_from(CLIENT_KEYS) | st.text(max_size=9), json_like))
def test_a_clients_config_is_read_or_refused(values: dict[str, Any]) -> None:
    try:
        read_client_config(values, {})
    except ConfigError as error:
        assert error.message


@quickly
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_a_file_that_is_no_config_is_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    for name, read in (("c.yaml", read_client_config), ("c.json", read_client_config)):
        path = tmp_path_factory.getbasetemp() / f"fuzzed-{name}"
        path.write_text(text, errors="surrogatepass")
        try:
            read(path, {})
        except ConfigError as error:
            assert name in error.message or error.message


def test_a_spec_from_a_wild_client_config_is_refused_in_words(tmp_path: Path) -> None:
    # The same mistakes, one level deeper: spaces that make no sense.
    for number, space in enumerate(
        [{"kind": "box"}, {"kind": "box", "shape": [-1]}, {"kind": "nothing"}, [], 3, "Box", {}]
    ):
        config = {"policy": "p", "algorithm": "ppo", "observation": space, "action": space}
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(config))
        with pytest.raises(Exception) as caught:
            connect("127.0.0.1:1", config=path, safe_action=np.zeros(1))
        assert type(caught.value).__module__.startswith("assay."), caught.value
