"""`assay serve`: starts quickly, ends in order, and says in one line what is wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from gateway_support import SPEC, WAIT, Client, batch, refused, running, wait_for
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.errors import ConfigError
from assay.server.errors import Reason
from assay.server.gateway.config import ServerConfig
from assay.server.gateway.run import ADMIN_TOKEN
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.store import Store, iterate

PPO = SPEC.model_copy(
    update={"settings": {"horizon": 16, "minibatch_size": 8, "epochs": 1, "num_envs": 1, "seed": 3}}
)


def mistake(*arguments: str) -> str:
    """Return the message of a command that a user got wrong."""
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output and "Listening" not in result.output
    assert result.stderr.count("Error: ") == 1
    return " ".join(result.stderr.split())


class Server:
    """The command in a process of its own."""

    def __init__(self, data: Path, *arguments: str, program: tuple[str, ...]) -> None:
        command = [sys.executable, *program, "serve", "--data", str(data), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines: list[str] = []
        self.said: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self.said),
                (self.process.stderr, self.lines),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    @property
    def address(self) -> str:
        def found() -> str:
            assert self.process.poll() is None, self.stderr
            return next((line for line in self.said if line.startswith("Listening on ")), "")

        return str(wait_for(found)).removeprefix("Listening on ")

    def client(self, name: str = "ada", **options: Any) -> Client:
        return Client(grpc.insecure_channel(self.address), name, **options)

    def end(self) -> int:
        code = self.process.wait(WAIT)
        for thread in self._threads:
            thread.join(WAIT)
        return code


@contextmanager
def serving(
    data: Path, *arguments: str, program: tuple[str, ...] = ("-m", "assay")
) -> Iterator[Server]:
    server = Server(data, "--listen", "127.0.0.1:0", *arguments, program=program)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.end()


@pytest.mark.slow
def test_the_whole_way_with_a_real_learner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--metrics-port", "0") as server:
        ada = server.client(timeout=90.0)
        assert ada.register(PPO).created
        info = next(ada.watch())
        assert info.version == 1  # something to explore with, before the first step
        epoch = ada.open().epoch
        stream = ada.stream()
        stream.send(*(batch(epoch, seq, steps=8, spec=PPO, version=1) for seq in range(1, 5)))
        stream.wait_committed(4)
        watch = ada.watch()
        for info in watch:
            if info.version >= 2:
                break
        watch.cancel()
        model = ada.fetch(sha256=info.sha256)[1]
        assert len(model) == info.size
        # An end in order, with a stream open.
        server.process.send_signal(signal.SIGTERM)
        assert stream.ended().reason is Reason.DRAINING
        assert server.end() == 0
        assert "Drained." in server.stderr and "Traceback" not in server.stderr
    with serving(data) as server:
        ada = server.client(timeout=90.0)
        assert not ada.register(PPO).created
        (policy,) = ada.call(ada.admin.ListPolicies, pb.ListPoliciesRequest()).policies
        assert policy.newest_version >= 2 and policy.steps == 32
        reply = ada.open(resume_epoch=epoch)
        assert reply.resumed_committed == 4
        assert next(ada.watch()).version == policy.newest_version


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--executor", "inproc") as server:
        ada = server.client(timeout=90.0)
        bad = PPO.model_copy(update={"settings": {"gama": 0.9}})
        error = refused(ada.register, bad)
        assert error.reason is Reason.BAD_SPEC and "gamma" in f"{error.message} {error.fix}"
        ada.register(PPO)
        epoch = ada.open().epoch
        stream = ada.stream()
        stream.send(*(batch(epoch, seq, spec=PPO) for seq in range(1, 300)))
        wait_for(lambda: stream.committed > 20)
        server.process.kill()
        server.end()
        wait_for(lambda: stream.error)
        acknowledged = stream.committed
    with Store(data) as store:
        kept = [one.seq for one in iterate(store, "queue")]
    assert kept == list(range(1, len(kept) + 1)) and len(kept) >= acknowledged


# A drain that never comes to an end, in place of a learner that never answers.
HANGS = """
import asyncio, sys
import assay.server.gateway.run as run
from assay.cli import main

async def hang(self, timeout=None):
    await asyncio.sleep(3600)

run.Gateway.drain = hang
main(sys.argv[1:])
"""


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data", program=("-c", HANGS)) as server:
        assert server.address
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: "Draining" in server.stderr)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 130
        assert "Ending at once." in server.stderr


def test_an_operators_drain_ends_the_process(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        assert client.call(client.admin.Drain, pb.DrainRequest(timeout_seconds=5)).complete
        assert server.end() == 0


def test_tokens_begin_with_one_for_the_operator(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--tokens") as server:
        assert refused(server.client().open).reason is Reason.UNAUTHENTICATED
        path = data / ADMIN_TOKEN
        assert path.stat().st_mode & 0o777 == 0o600 and str(path) in server.stderr
        token = path.read_text().strip()
        assert token not in server.stderr
        client = server.client(token=token)
        assert not client.call(client.admin.ListPolicies, pb.ListPoliciesRequest()).policies
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    with serving(data, "--tokens") as server:
        assert server.address and path.read_text().strip() == token
        assert "first token" not in server.stderr


def test_mistakes_get_one_line(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with running(tmp_path / "other") as other:
        taken = f"127.0.0.1:{other.gateway.port}"
        assert f"Cannot listen on {taken}: the port is taken." in mistake(
            "--data", data, "--listen", taken
        )
        found = mistake("--data", str(tmp_path / "other"), "--listen", "127.0.0.1:0")
        assert f"Another process has the store '{tmp_path / 'other'}' open." in found
    assert "plaintext is refused" in mistake("--data", data, "--listen", "0.0.0.0:0")
    assert "expected HOST:PORT" in mistake("--data", data, "--listen", "here")
    config = tmp_path / "server.yaml"
    config.write_text("lisen: 127.0.0.1:0\n")
    assert "Did you mean 'listen'?" in mistake("--config", str(config))
    config.write_text("- a\n")
    assert "holds a list" in mistake("--config", str(config))
    assert "No such file" in mistake("--config", str(tmp_path / "nothing.yaml"))
    assert "is not known" in mistake("--data", data, "--store", "mysql://user:secret@host/x")
    assert "secret" not in mistake("--data", data, "--store", "mysql://user:secret@host/x")
    file = tmp_path / "file"
    file.write_text("")
    assert str(file) in mistake("--data", str(file), "--listen", "127.0.0.1:0")
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        port = str(blocker.getsockname()[1])
        found = mistake("--data", data, "--listen", "127.0.0.1:0", "--metrics-port", port)
        assert "Cannot serve metrics" in found


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    data, where = str(tmp_path / "data"), tmp_path / "tls"
    start = ("--data", data, "--listen", "127.0.0.1:0", "--tls", str(where))
    assert "has no server.crt" in mistake(*start)
    authority = Authority(where)
    file = str(where / "server.crt")
    message = mistake(*start[:-1], file)
    assert "server.crt is a file; expected a directory" in message and f"--tls {where}" in message
    other = Authority(tmp_path / "other")
    (where / "server.key").write_bytes(other.read("server.key"))
    assert "key values mismatch" in mistake(*start)
    (where / "server.key").write_text("no key")
    assert "cannot be used" in mistake(*start)
    authority.issue("server", "localhost")
    (where / "ca.crt").write_text("no authority")
    assert "client CA" in mistake(*start)
    (where / "ca.crt").unlink()
    (where / "server.crt").unlink()
    (where / "server.crt").symlink_to(where / "server.crt.gone")
    assert "has no server.crt" in mistake(*start)
    assert not Path(data).exists()  # nothing was opened for a server that cannot be


def test_repairs_are_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Store(data) as store:
        store.register(SPEC)
        store.registry.set_state("queue", "paused")
    (data / "registry" / "registry.sqlite").write_bytes(b"no database")
    with serving(data, "--executor", "inproc") as server:
        assert server.address
        assert re.search(r"Repaired: The index 'registry.sqlite' was damaged", server.stderr)


def test_it_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['assay', 'serve', '--data', sys.argv[1], '--listen', "
        "'127.0.0.1:0']\n"
        "import assay.server.gateway.run as run\n"
        "from assay.cli import main\n"
        "start = run.Gateway.start\n"
        "async def once(self):\n"
        "    await start(self)\n"
        "    self.hub.drained.set()\n"
        "run.Gateway.start = once\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print([name for name in ('torch', 'scipy', 'matplotlib') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_help_names_the_options() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    for option in ("--config", "--data", "--tls", "--tokens", "--store", "--executor"):
        assert option in result.output


@pytest.mark.parametrize("place", ["ASSAY_SERVER", "--data", "config"])
def test_where_the_data_are(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli import serve as command
    from assay.server.gateway import run

    seen: list[Path] = []
    monkeypatch.setattr(run, "run_server", lambda config, *_: seen.append(config.data) or True)
    monkeypatch.setenv("ASSAY_SERVER", str(tmp_path / "environment"))
    config = tmp_path / "server.yaml"
    config.write_text(f"data: {tmp_path / 'file'}\n")
    given = {"data": tmp_path / "option"} if place == "--data" else {}
    command.run(config if place != "ASSAY_SERVER" else None, given)
    expected = {"ASSAY_SERVER": "environment", "--data": "option", "config": "file"}[place]
    assert seen == [tmp_path / expected]


def test_servers_that_share_a_ray_cluster_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.server.gateway import run

    asked: list[dict[str, Any]] = []

    def refuse(name: str, **options: Any) -> None:
        asked.append({"name": name, **options})
        raise ConfigError("no cluster here")

    monkeypatch.setattr(run, "make_executor", refuse)
    for place in ("one", "one", "two"):
        config = ServerConfig(data=tmp_path / place, executor="ray", ray_address="somewhere")
        with pytest.raises(ConfigError, match="no cluster"):
            run.run_server(config, print, lambda gateway: None)
    first, again, other = (one["namespace"] for one in asked)
    assert first == again != other
    assert {(one["name"], one["address"]) for one in asked} == {("ray", "somewhere")}
