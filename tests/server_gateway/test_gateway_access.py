"""Who gets in, and how far: tokens, certificates, loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from gateway_support import OTHER, SPEC, WAIT, Client, Running, batch, refused, running, wait_for
from grpc_health.v1 import health_pb2, health_pb2_grpc

from assay.core.errors import ConfigError
from assay.server.errors import Reason
from assay.server.gateway.config import ServerConfig, read_config
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.registry import EVERY, Verb
from assay.server.store.store import iterate
from assay.server.store.tokens import make_token

ALL = frozenset(Verb)
CLIENT = frozenset({Verb.REGISTER, Verb.WRITE, Verb.READ})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Running]:
    options = {"announce_seconds": 0.1, "recheck_seconds": 0.05}
    path = tmp_path_factory.mktemp("server")
    with running(path, tokens=True, clock=clock, **options) as here:
        admin = bearer(here, "root", {EVERY: ALL})
        admin.register()
        admin.register(OTHER)
        here.puppet("queue").publish()
        here.puppet("other").publish()
        yield here


def bearer(server: Running, name: str, grants: dict[str, Any], **options: Any) -> Client:
    text, token = make_token(name, grants, **options)
    server.store.registry.add_token(token)
    client = server.client("somebody-else", token=text)
    client.token = token  # type: ignore[attr-defined]
    return client


def every_call(client: Client, policy: str) -> dict[str, Any]:
    """Return one call of each kind that is about a policy."""
    spec = SPEC.model_copy(update={"name": policy})
    request = pb.PolicyRequest(policy=policy)
    observation = pb.TensorMap()
    return {
        "register": lambda: client.register(spec),
        "open": lambda: client.open(policy),
        "put": lambda: client.put(batch(1, 1), policy),
        "stream": lambda: client.ingest.Stream(
            iter([pb.IngestRequest(policy=policy)]), metadata=client.metadata
        ),
        "watch": lambda: client.watch(policy),
        "fetch": lambda: client.fetch(policy, version=1),
        "act": lambda: client.call(
            client.infer.Act, pb.ActRequest(policy=policy, observation=observation)
        ),
        "pin": lambda: client.call(client.models.Pin, pb.PinRequest(policy=policy)),
        "promote": lambda: client.call(client.models.Promote, pb.PromoteRequest(policy=policy)),
        "rollback": lambda: client.call(client.models.Rollback, pb.RollbackRequest(policy=policy)),
        "pause": lambda: client.call(client.admin.Pause, request),
        "resume": lambda: client.call(client.admin.Resume, request),
        "export": lambda: client.call(client.admin.Export, pb.ExportRequest(policy=policy)),
        "delete": lambda: client.call(client.admin.Delete, request),
        "drain": lambda: client.call(client.admin.Drain, pb.DrainRequest()),
    }


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        "nonsense",
        "assay_0123456789abcdef_" + "0" * 64,
        "assay_" + "0" * 16 + "_" + "0" * 64,
        "x" * 5000,
    ],
)
def test_without_a_good_token_nothing_is_answered(server: Running, token: str | None) -> None:
    client = server.client("root", token=token)
    for name, call in every_call(client, "queue").items():
        assert refused(call).reason is Reason.UNAUTHENTICATED, name
    assert (
        refused(client.call, client.admin.ListPolicies, pb.ListPoliciesRequest()).reason
        is Reason.UNAUTHENTICATED
    )


def test_a_token_with_another_secret_is_as_unknown_as_any(server: Running) -> None:
    text, token = make_token("carl", {EVERY: ALL})
    server.store.registry.add_token(token)
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    unknown = refused(server.client(token="assay_" + "1" * 16 + "_" + "2" * 64).open)
    error = refused(server.client(token=wrong).open)
    assert (error.reason, error.message) == (unknown.reason, unknown.message)
    assert server.client(token=text).open().epoch == 1


def test_expired_and_revoked_tokens(server: Running, clock: Clock) -> None:
    client = bearer(server, "dora", {"queue": CLIENT}, expires=clock.now + 10)
    epoch = client.open().epoch
    stream, watch = client.stream(), client.watch()
    stream.send(batch(epoch, 1))
    stream.wait_committed(1)
    assert next(watch).version == 1
    clock.now += 11
    assert refused(client.open).reason is Reason.UNAUTHENTICATED
    # What is open already ends as well.
    assert stream.ended().reason is Reason.UNAUTHENTICATED
    assert refused(lambda: watch).reason is Reason.UNAUTHENTICATED

    client = bearer(server, "emil", {"queue": CLIENT})
    client.open()
    stream = client.stream()
    wait_for(lambda: stream.acks)
    server.store.registry.revoke_token(client.token.id)  # type: ignore[attr-defined]
    assert stream.ended().reason is Reason.UNAUTHENTICATED
    assert refused(client.open).reason is Reason.UNAUTHENTICATED


def test_a_client_that_never_falls_silent_is_looked_at_as_well(server: Running) -> None:
    client = bearer(server, "busy", {"queue": CLIENT})
    epoch = client.open().epoch
    stream = client.stream()
    stop = threading.Event()

    def work() -> None:
        seq = 0
        while not stop.is_set():
            seq += 1
            stream.send(batch(epoch, seq))
            wait_for(lambda: stream.committed >= seq or stream.error or stop.is_set())  # noqa: B023

    thread = threading.Thread(target=work)
    thread.start()
    try:
        stream.wait_committed(3)
        server.store.registry.revoke_token(client.token.id)  # type: ignore[attr-defined]
        assert stream.ended().reason is Reason.UNAUTHENTICATED
    finally:
        stop.set()
        thread.join(20)


def test_a_token_for_one_policy_is_none_for_another(server: Running) -> None:
    client = bearer(server, "fritz", {"queue": ALL})
    assert client.open("queue").epoch == 1
    for name, call in every_call(client, "other").items():
        assert refused(call).reason is Reason.PERMISSION_DENIED, name
    # Whether a policy exists is told to nobody who may not know.
    assert refused(client.open, "nobody").reason is Reason.PERMISSION_DENIED
    reply = client.call(client.admin.ListPolicies, pb.ListPoliciesRequest())
    assert [one.policy for one in reply.policies] == ["queue"]


VERBS = {
    Verb.REGISTER: {"register"},
    Verb.WRITE: {"open", "put", "stream"},
    Verb.READ: {"watch", "fetch"},
    Verb.ACT: {"act"},
    Verb.OPERATE: {"pin", "promote", "rollback", "pause", "resume", "export"},
    Verb.ADMIN: {"delete"},
}


@pytest.mark.parametrize("verb", list(Verb))
def test_a_verb_grants_what_it_says_and_nothing_else(server: Running, verb: Verb) -> None:
    client = bearer(server, f"only-{verb}", {"queue": frozenset({verb})})
    for name, call in every_call(client, "queue").items():
        if name not in VERBS[verb]:
            assert refused(call).reason is Reason.PERMISSION_DENIED, name
        elif name not in ("watch", "delete", "stream", "pause"):
            try:
                call()
            except grpc.RpcError as error:
                denied = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
                assert error.code() not in denied, name


def test_nobody_writes_in_the_name_of_another(server: Running) -> None:
    victim = bearer(server, "victim", {"queue": CLIENT})
    epoch = victim.open().epoch
    thief = bearer(server, "thief", {"queue": CLIENT})
    # Whatever it says about itself, its credential decides.
    thief.metadata += [("assay-client", "victim")]
    assert thief.open().epoch == 1
    assert victim.put(batch(epoch, 1)).committed == 1
    thief.put(batch(1, 1))
    names = [one.client for one in iterate(server.store, "queue")]
    assert "thief" in names and names.count("victim") == 1
    assert victim.put(batch(epoch, 2)).committed == 2  # and it was not fenced


def test_two_with_one_credential_take_turns(server: Running) -> None:
    text, token = make_token("twin", {"queue": CLIENT})
    server.store.registry.add_token(token)
    one, two = server.client(token=text), server.client(token=text)
    first = one.open().epoch
    stream = one.stream()
    wait_for(lambda: stream.acks)
    second = two.open().epoch
    assert stream.ended().reason is Reason.FENCED
    assert two.put(batch(second, 1)).committed == 1
    assert Reason(one.put(batch(first, 1)).rejections[0].reason) is Reason.FENCED


def test_health_of_the_whole_is_for_all_and_that_of_a_policy_is_not(server: Running) -> None:
    channel = grpc.insecure_channel(server.address)
    server.channels.append(channel)
    health = health_pb2_grpc.HealthStub(channel)
    ask = health_pb2.HealthCheckRequest
    assert health.Check(ask(), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    error = refused(health.Check, ask(service="assay.policy/queue"), timeout=20)
    assert error.reason is Reason.UNAUTHENTICATED
    client = bearer(server, "gerd", {"queue": CLIENT})
    reply = wait_for(
        lambda: health.Check(
            ask(service="assay.policy/queue"), metadata=client.metadata, timeout=20
        )
    )
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_token_that_was_given_counts_where_none_is_needed(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert refused(server.client(token="wrong").register).reason is Reason.UNAUTHENTICATED
        server.client("ada").register()
        for name in ("", "a b", "../x", "ö", "x" * 129):
            client = server.client("ada")
            client.metadata = [("assay-client", name)] if name.isascii() else []
            if client.metadata:
                assert refused(client.open).reason is Reason.UNAUTHENTICATED
        assert server.client("ada").open().epoch == 1
        nameless = server.client()
        nameless.metadata = []
        nameless.open()
        nameless.put(batch(1, 1))
        assert [one.client for one in iterate(server.store, "queue")] == ["local"]


# Certificates


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def secure(server: Running, authority: Authority, who: str | None = None) -> Any:
    pair = authority.issue(who, who) if who is not None else None
    credentials = grpc.ssl_channel_credentials(
        authority.read("ca.crt"), pair and pair[1], pair and pair[0]
    )
    return grpc.secure_channel(server.address, credentials)


def tls(authority: Authority, *, mutual: bool) -> dict[str, str]:
    where = authority.directory
    files = {"cert": str(where / "server.crt"), "key": str(where / "server.key")}
    return files | ({"client_ca": str(where / "ca.crt")} if mutual else {})


def test_certificates_name_their_bearers(tmp_path: Path, authority: Authority) -> None:
    grants = {"ada": {"queue": ["register", "write", "read"]}, "*": {"shared": ["read"]}}
    with running(tmp_path / "data", tls=tls(authority, mutual=True), grants=grants) as server:
        ada = server.client("bob", channel=secure(server, authority, "ada"))
        ada.register()
        epoch = ada.open().epoch
        ada.put(batch(epoch, 1))
        assert [one.client for one in iterate(server.store, "queue")] == ["ada"]
        assert refused(ada.register, OTHER).reason is Reason.PERMISSION_DENIED

        bob = server.client("ada", channel=secure(server, authority, "bob"))
        for name, call in every_call(bob, "queue").items():
            assert refused(call).reason is Reason.PERMISSION_DENIED, name
        assert refused(bob.fetch, "shared", version=1).reason is Reason.UNKNOWN_POLICY
        # What a token grants to bob, his certificate does as well, as long as the token does.
        _, token = make_token("bob", {"queue": frozenset({Verb.WRITE})}, expires=1.0)
        server.store.registry.add_token(token)
        assert refused(bob.open).reason is Reason.PERMISSION_DENIED
        _, token = make_token("bob", {"queue": frozenset({Verb.WRITE})})
        server.store.registry.add_token(token)
        assert bob.open().epoch == 1

        # Without a certificate, or with one of somebody else's authority, there is no connection.
        stranger = Authority(tmp_path / "stranger")
        pair = stranger.issue("ada", "ada")
        for credentials in (
            grpc.ssl_channel_credentials(authority.read("ca.crt")),
            grpc.ssl_channel_credentials(authority.read("ca.crt"), pair[1], pair[0]),
        ):
            channel = grpc.secure_channel(server.address, credentials)
            client = server.client("ada", channel=channel, timeout=WAIT)
            with pytest.raises(grpc.RpcError) as found:
                client.open()
            assert found.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError):
            server.client("ada", timeout=5).open()  # plaintext


def test_a_certificate_of_the_server_alone_goes_with_tokens(
    tmp_path: Path, authority: Authority
) -> None:
    with running(tmp_path, tls=tls(authority, mutual=False), tokens=True) as server:
        text, token = make_token("ada", {EVERY: ALL})
        server.store.registry.add_token(token)
        good = server.client(token=text, channel=secure(server, authority))
        assert good.register().created
        bad = server.client("ada", channel=secure(server, authority))
        assert refused(bad.open).reason is Reason.UNAUTHENTICATED


# Configuration


def test_plaintext_off_loopback_is_refused(authority: Authority) -> None:
    for listen in ("0.0.0.0:50051", "[::]:50051", "192.0.2.1:1", "example.org:50051"):
        with pytest.raises(ConfigError, match="plaintext is refused"):
            read_config(None, {"listen": listen})
        with pytest.raises(ConfigError, match="plaintext is refused"):
            read_config(None, {"listen": listen, "tokens": True})
        with pytest.raises(ConfigError, match="nothing would tell who a client is"):
            read_config(None, {"listen": listen, "tls": tls(authority, mutual=False)})
        read_config(None, {"listen": listen, "tls": tls(authority, mutual=True)})
        read_config(None, {"listen": listen, "tls": tls(authority, mutual=False), "tokens": True})
    for listen in ("127.0.0.1:0", "localhost:50051", "[::1]:50051", "127.9.9.9:1", "unix:/x"):
        assert ServerConfig(listen=listen).tls is None


def test_reflection_off_loopback_is_refused(authority: Authority) -> None:
    safe = {"listen": "0.0.0.0:50051", "tls": tls(authority, mutual=True)}
    with pytest.raises(ConfigError, match="reflection would tell anyone"):
        read_config(None, {**safe, "reflection": True})
    assert read_config(None, {"reflection": True}).reflection


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"lisen": "x"}, "Did you mean 'listen'"),
        ({"listen": "nowhere"}, "expected HOST:PORT"),
        ({"listen": "::1:5"}, r"\[ADDRESS\]:PORT"),
        ({"listen": "h:99999"}, "expected HOST:PORT"),
        ({"metrics_port": 70000}, "metrics_port=70000"),
        ({"executor": "thread"}, "executor='thread'"),
        ({"canary": {"share": 2}}, "canary.share=2"),
        ({"tokens": ["a"]}, "tokens themselves are not kept"),
        ({"learner": {"sed": 1}}, "learner.sed"),
        ({"policies": {"p": {"learner": {"threads": 0}}}}, "threads=0"),
        ({"grants": {"ada": {"p": ["write"]}}}, "grants has no effect"),
        ({"credits": {"bytes": 10}}, "credits.bytes=10"),
    ],
)
def test_a_bad_config_names_the_key(tmp_path: Path, values: dict[str, Any], found: str) -> None:
    import yaml

    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=found) as error:
        read_config(path, {})
    assert "server.yaml" in error.value.message or "tokens" in values


def test_the_command_line_counts_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    own = {"p": {"learner": {"seed": 5}, "backlog_steps": 9}}
    values = {"listen": "127.0.0.1:1", "learner": {"threads": 3}, "backlog_steps": 7}
    path.write_text(json.dumps({**values, "policies": own}))
    config = read_config(path, {"listen": "127.0.0.1:2"})
    assert config.listen == "127.0.0.1:2"
    assert config.learner_of("other").threads == 3
    assert (config.learner_of("p").threads, config.learner_of("p").seed) == (3, 5)
    assert (config.backlog_of("p"), config.backlog_of("q")) == (9, 7)


def test_protocol_is_looked_at_before_the_credential(server: Running) -> None:
    # An old client must hear that it is old, not that its token is wrong.
    client = server.client(token="old")
    assert refused(client.open, protocol=PROTOCOL + 1).reason is Reason.UNSUPPORTED_PROTOCOL
