"""`assay server ...` against a gateway that runs: what it prints, and what it says of mistakes."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from gateway_support import OTHER, SPEC, Running, batch, running, wait_for
from typer.testing import CliRunner

from assay.cli.app import app
from assay.server.admin_client import AdminClient
from assay.server.executor.base import Health
from assay.server.store.registry import EVERY, Verb
from assay.server.store.store import Store
from assay.server.store.tokens import authenticate, make_token


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    for name in ("ASSAY_ADDRESS", "ASSAY_TOKEN_FILE", "ASSAY_SERVER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "data") as here:
        ada = here.client()
        ada.register()
        epoch = ada.open().epoch
        ada.put(batch(epoch, 1, steps=4, ends=[1, 3]))
        for _ in range(3):
            here.puppet().publish()
        yield here


def say(server: Running, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["server", *arguments, "--address", server.address])


def done(server: Running, *arguments: str) -> str:
    result = say(server, *arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def parsed(server: Running, *arguments: str) -> Any:
    result = say(server, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def mistake(arguments: list[str]) -> str:
    result = CliRunner().invoke(app, ["server", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("Error: ") == 1 and "Traceback" not in result.output
    assert not result.stdout
    return " ".join(result.stderr.split())


def refused(server: Running, *arguments: str) -> str:
    return mistake([*arguments, "--address", server.address])


# Looking


def test_policies_are_listed_with_what_matters(server: Running) -> None:
    server.client().register(OTHER)
    (other, queue) = parsed(server, "policies")
    assert (other["policy"], other["steps"], other["newest_version"]) == ("other", 0, 0)
    assert (queue["policy"], queue["steps"], queue["batches"]) == ("queue", 4, 1)
    assert queue["channels"] == {"stable": 3} and queue["state"] == "learning"
    text = done(server, "policies")
    assert re.search(r"queue learning 4 0 - 3 3 - 0 0", text)


def test_there_may_be_none_yet(tmp_path: Path) -> None:
    with running(tmp_path / "data") as here:
        assert "No policies" in done(here, "policies")
        assert parsed(here, "policies") == []
        assert "There is none yet" in refused(here, "pause", "queue")


def test_one_policy_is_shown_with_its_versions(server: Running) -> None:
    facts = parsed(server, "policy", "queue")
    assert facts["spec"]["algorithm"] == "ppo" and facts["spec"]["name"] == "queue"
    assert [model["version"] for model in facts["models"]] == [3, 2, 1]
    assert facts["models"][0]["metrics"] == {"return": 3.0}
    text = done(server, "policy", "queue")
    assert "algorithm: ppo" in text and "stable: 3" in text
    assert facts["models"][2]["sha256"][:12] in text


def test_what_the_learner_says_is_shown_and_outlives_a_restart(tmp_path: Path) -> None:
    said = {"server/env_steps": 800.0, "server/episodes": 12.0, "rollout/return_mean": -3.5}
    with running(tmp_path / "data", journal_seconds=0.0) as here:
        here.client().register()
        here.puppet().on_metrics(said)
        facts = parsed(here, "policy", "queue")
        assert (facts["return_mean"], facts["episodes"]) == (-3.5, 12)
        directory = tmp_path / "data" / "policies" / "queue"
        wait_for(lambda: (directory / "tensorboard").is_dir(), "event files")
    with running(tmp_path / "data") as here:
        facts = parsed(here, "policy", "queue")
        assert (facts["return_mean"], facts["episodes"]) == (-3.5, 12)
        assert say(here, "delete", "queue", "--yes").exit_code == 0
        assert not directory.exists()


def test_rates_lag_and_latency_are_those_of_the_clients(server: Running) -> None:
    ada = server.client()
    epoch = ada.open().epoch
    stream = ada.stream()
    seq = 0

    def busy() -> Any:
        nonlocal seq
        seq += 1
        stream.send(batch(epoch, seq, steps=10, version=1))
        stream.wait_committed(seq)
        traffic = parsed(server, "policy", "queue")["traffic"]
        return traffic["steps_per_second"] and traffic

    traffic = wait_for(busy, "a rate")
    assert traffic["clients"] == ["ada"] and traffic["sessions"] == 1
    assert traffic["version_lag"] == pytest.approx(2.0)  # version 1, and 3 is the newest
    ratio = traffic["steps_per_second"] / traffic["batches_per_second"]
    assert ratio == pytest.approx(10.0, rel=0.5)
    assert 0 < traffic["ack_p50_seconds"] <= traffic["ack_p99_seconds"]
    stream.close()


# The live view


def test_top_once_prints_one_table(server: Running) -> None:
    puppet = server.puppet()
    status = puppet.status
    puppet.status = lambda: _with(  # type: ignore[method-assign]
        status(), behind_steps=1234, restarts=2, health=Health(True, "process 7", 7, 0, 300_000_000)
    )
    text = done(server, "top", "--once")
    assert "1 policy" in text and re.search(
        r"queue learning \d+ [\d.]+ - 0 3 0\.0 1,234 300 MB 2", text
    )
    (facts,) = parsed(server, "top", "--once")
    assert facts["learner"]["pid"] == 7


def _with(status: Any, **changes: Any) -> Any:
    for name, value in changes.items():
        setattr(status, name, value)
    return status


def test_top_says_why_a_learner_has_failed(server: Running) -> None:
    puppet = server.puppet()
    puppet.state = "failed"
    status = puppet.status
    puppet.status = lambda: _with(status(), last_error="It is out of memory.")  # type: ignore[method-assign]
    text = done(server, "top", "--once")
    assert "queue failed" in text and "queue: It is out of memory." in text
    assert "last error: It is out of memory." in done(server, "policy", "queue")


# Steering


def test_pause_and_resume(server: Running) -> None:
    assert "'queue' is paused" in done(server, "pause", "queue")
    assert server.puppet().state == "paused"
    assert parsed(server, "policies")[0]["state"] == "paused"
    assert parsed(server, "resume", "queue")["state"] == "learning"
    assert server.puppet().state == "learning"


def test_pin_holds_a_version_and_off_lets_go(server: Running) -> None:
    assert "stays at version 2" in done(server, "pin", "queue", "2")
    server.puppet().publish()
    (facts,) = parsed(server, "policies")
    assert (facts["channels"], facts["pinned"]) == ({"stable": 2}, ["stable"])
    assert "2 (pinned)" in done(server, "policies")
    itself = ("--from", "stable", "--to", "stable")
    message = refused(server, "promote", "queue", *itself)
    assert "is pinned at version 2" in message
    assert "assay server pin queue --channel stable --off" in message
    text = done(server, "pin", "queue", "--off")
    assert "is released: it is at version 4 now, and new versions move it again" in text
    assert parsed(server, "pin", "queue", "--off")["pinned"] is False
    server.puppet().publish()
    assert parsed(server, "policies")[0]["channels"] == {"stable": 5}


def test_rollback_and_promote(server: Running) -> None:
    model = parsed(server, "rollback", "queue", "--reason", "slower")
    assert (model["version"], model["channel"], model["pinned"]) == (2, "stable", True)
    text = done(server, "promote", "queue", "--from", "stable", "--to", "canary")
    assert "'canary' of 'queue' is at version 2" in text
    server.puppet().publish()
    assert parsed(server, "policies")[0]["channels"]["stable"] == 2  # it was not undone
    result = say(server, "rollback", "queue")
    assert "is back at version 1 and stays there" in " ".join(result.stdout.split())
    assert "`assay server pin queue --off` lets it go" in " ".join(result.stderr.split())
    assert parsed(server, "pin", "queue", "--off")["version"] == 4
    assert parsed(server, "promote", "queue")["version"] == 2
    assert parsed(server, "policies")[0]["channels"] == {"stable": 2, "canary": 2}


def test_the_log_says_who_moved_what(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "assay.server"):
        done(server, "rollback", "queue", "--reason", "slower than before")
        done(server, "pause", "queue")
    assert "queue: rollback by operator" in caplog.text and "'slower than before'" in caplog.text
    assert "queue: pause by operator" in caplog.text


def test_delete_asks_first(server: Running) -> None:
    command = ["server", "delete", "queue", "--address", server.address]
    result = CliRunner().invoke(app, command, input="n\n")
    assert result.exit_code == 1 and "4 steps and 3 versions" in result.stdout
    assert parsed(server, "policies")
    assert "is deleted" in done(server, "delete", "queue", "--yes")
    assert parsed(server, "policies") == []
    assert "There is no policy 'queue'" in refused(server, "pause", "queue")


@pytest.mark.skipif(find_spec("minari") is None, reason="needs the extra minari")
@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_export_writes_a_dataset(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    reply = parsed(server, "export", "queue", "queue/served-v0")
    assert (reply["episodes"], reply["steps"]) == (2, 4) and Path(reply["path"]).exists()
    assert "queue/served-v0" in refused(server, "export", "queue", "queue/served-v0")
    assert "cannot be the id" in refused(server, "export", "queue", "no id")


def test_drain_ends_the_server(server: Running) -> None:
    assert done(server, "drain", "--seconds", "5") == "Drained."
    assert server.puppet().drained
    assert server.gateway.hub.draining


def test_a_drain_that_does_not_finish_is_told_and_has_an_exit_code(server: Running) -> None:
    server.puppet().drain = lambda timeout: False  # type: ignore[method-assign]
    result = say(server, "drain", "--seconds", "1")
    assert result.exit_code == 1 and "Not all learned models could be saved" in result.stdout


# Mistakes


def test_a_wrong_name_gets_the_nearest_right_one(server: Running) -> None:
    for command in (["policy"], ["pause"], ["resume"], ["rollback"], ["promote"], ["delete"]):
        message = refused(server, *command, "quue")
        assert "There is no policy 'quue'" in message and "Did you mean 'queue'?" in message
    assert "Did you mean 'queue'?" in refused(server, "pin", "quue", "1")
    assert "Did you mean 'queue'?" in refused(server, "export", "quue", "a/b-v0")


def test_a_version_that_does_not_exist(server: Running) -> None:
    assert "no version 99" in refused(server, "pin", "queue", "99")
    assert "Neither a version nor --off" in refused(server, "pin", "queue")
    assert "Both version 2 and --off" in refused(server, "pin", "queue", "2", "--off")
    assert "Nothing was published" in refused(server, "promote", "queue")


def test_a_server_that_is_away() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (["policies"], ["policy", "x"], ["top", "--once"], ["drain"], ["top"]):
            message = mistake([*command, "--address", where])
            assert f"No server answers at {where}" in message and "assay serve" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--address", "nonsense"], "expected host:port"),
        (["--address", "10.1.2.3:50051"], "there is no TLS"),
        (["--token-file", "missing"], "cannot be read"),
        (["--tls", "."], "The directory '.' has none of them; expected a directory with ca.crt"),
        (["--tls", "ca.crt"], "--tls ca.crt is a file; expected a directory with ca.crt"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if options == ["--tls", "ca.crt"]:
        Path("ca.crt").touch()
    assert expected in mistake(["policies", *options])


# Tokens and certificates


def test_tokens_over_the_wire(server: Running) -> None:
    made = parsed(server, "token", "add", "ada", "--grant", "queue", "--days", "1")
    assert made["grants"] == {"queue": ["act", "read", "register", "write"]}
    known = authenticate(server.store.registry, made["token"], now=0.0)
    assert (known.id, known.principal) == (made["id"], "ada")
    result = say(server, "token", "add", "op", "--grant", "*:operate,read")
    assert re.fullmatch(r"assay_[0-9a-f]{16}_[0-9a-f]{64}\n", result.stdout)
    assert "only this once" in result.stderr
    listed = parsed(server, "token", "list")
    assert {one["principal"] for one in listed} == {"ada", "op"}
    shown = done(server, "token", "list")
    assert made["id"] in shown and made["token"] not in shown
    assert "token" not in listed[0] and "digest" not in listed[0]
    done(server, "token", "revoke", made["id"])
    assert [one["principal"] for one in parsed(server, "token", "list")] == ["op"]
    assert "There is no token" in refused(server, "token", "revoke", made["id"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ada"], "Nothing is granted"),
        (["ada", "--grant", "queue:wirte"], "Did you mean 'write'?"),
        (["ada", "--grant", ":read"], "expected POLICY"),
        (["ada", "--grant", "queue:"], "expected POLICY"),
        (["two words", "--grant", "queue"], "cannot be the name of a client"),
        (["ada", "--grant", "queue", "--days", "0"], "expected more than 0"),
    ],
)
def test_tokens_that_make_no_sense(server: Running, arguments: list[str], expected: str) -> None:
    assert expected in refused(server, "token", "add", *arguments)
    assert server.store.registry.tokens() == []


def test_tokens_of_a_stopped_server(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "data")]
    assert "There is no directory" in mistake(["token", "list", *data])
    result = CliRunner().invoke(app, ["server", "token", "add", "ada", "--grant", "*", *data])
    assert result.exit_code == 0, result.output
    text = result.stdout.strip()
    with Store(tmp_path / "data") as store:
        assert authenticate(store.registry, text, now=0.0).principal == "ada"
        message = mistake(["token", "list", *data])
        assert "A server is running" in message and "Leave out --data" in message
    listed = CliRunner().invoke(app, ["server", "token", "list", *data, "--json"])
    (one,) = json.loads(listed.stdout)
    assert one["grants"] == {"*": ["act", "read", "register", "write"]}
    assert CliRunner().invoke(app, ["server", "token", "revoke", one["id"], *data]).exit_code == 0
    assert "No tokens" in CliRunner().invoke(app, ["server", "token", "list", *data]).stdout


def test_a_token_opens_what_it_grants_and_no_more(tmp_path: Path) -> None:
    with running(tmp_path / "data", tokens=True) as here:

        def bearer(name: str, grants: dict[str, Any]) -> tuple[str, ...]:
            text, token = make_token(name, grants)
            here.store.registry.add_token(token)
            path = tmp_path / f"{name}.token"
            path.write_text(text + "\n")
            return ("--token-file", str(path))

        root = bearer("root", {EVERY: frozenset(Verb)})
        reader = bearer("reader", {"queue": frozenset({Verb.READ})})
        local = bearer("local", {"queue": frozenset(Verb)})
        client = here.client(token=(tmp_path / "root.token").read_text().strip())
        client.register()
        client.register(OTHER)
        here.puppet().publish()
        here.puppet().publish()

        assert "has no token" in refused(here, "policies")
        assert [one["policy"] for one in parsed(here, "policies", *reader)] == ["queue"]
        assert parsed(here, "policy", "queue", *reader)["newest_version"] == 2
        assert "may not read" in refused(here, "policy", "other", *reader)
        assert "may not operate" in refused(here, "pause", "queue", *reader)
        assert "may not operate" in refused(here, "rollback", "queue", *reader)
        assert parsed(here, "rollback", "queue", *local)["version"] == 1
        # Who may do everything with one policy may still not make tokens, or end the server.
        for command in (["token", "list"], ["token", "add", "x", "--grant", "queue"], ["drain"]):
            assert "may not admin" in refused(here, *command, *local)
        assert "may not admin" in refused(here, "token", "revoke", "x", *local)
        made = parsed(here, "token", "add", "eve", "--grant", "queue:read", *root)
        (tmp_path / "eve.token").write_text(made["token"])
        eve = ("--token-file", str(tmp_path / "eve.token"))
        assert parsed(here, "policies", *eve)
        done(here, "token", "revoke", made["id"], *root)
        assert "unknown, revoked or expired" in refused(here, "policies", *eve)


def test_certificates_and_a_clients_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = Authority(tmp_path / "tls")
    ca.issue("client", "ops")
    tls = {name: str(ca.directory / file) for name, file in (
        ("cert", "server.crt"), ("key", "server.key"), ("client_ca", "ca.crt"))}  # fmt: skip
    grants = {"ops": {"*": ["read", "operate"]}}
    with running(tmp_path / "data", tls=tls, grants=grants) as here:
        assert parsed(here, "policies", "--tls", str(ca.directory)) == []
        assert "No server answers" in refused(here, "policies")
        config = tmp_path / "ops.yaml"
        config.write_text(
            f"address: {here.address}\n"
            "tls: {ca: tls/ca.crt, certificate: tls/client.crt, key: tls/client.key}\n"
        )
        found = CliRunner().invoke(app, ["server", "policies", "--json", "--config", str(config)])
        assert found.exit_code == 0 and json.loads(found.stdout) == []
        (ca.directory / "client.key").rename(tmp_path / "elsewhere")
        assert "client.key or neither" in refused(here, "policies", "--tls", str(ca.directory))


def test_the_address_may_come_from_the_environment(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_ADDRESS", server.address)
    result = CliRunner().invoke(app, ["server", "policies", "--json"])
    assert json.loads(result.stdout)[0]["policy"] == SPEC.name


def test_the_client_of_a_program(server: Running) -> None:
    with AdminClient.open({"address": server.address}) as client:
        assert [info.policy for info in client.policies()] == ["queue"]
        assert client.rollback("queue").version == 2
