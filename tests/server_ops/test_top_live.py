"""`assay server top` as it runs: on a terminal and in a pipe, until Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gateway_support import OTHER, running, wait_for


class Reader:
    """Collects what comes out of a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._descriptor, 65536):
                self.text += data.decode(errors="replace")
        except OSError:  # the other end of a terminal is gone
            pass


@pytest.mark.parametrize("terminal", [False, True])
def test_it_goes_on_until_it_is_interrupted(tmp_path: Path, terminal: bool) -> None:
    with running(tmp_path / "data") as server:
        server.client().register()
        command = ["server", "top", "--seconds", "0.2", "--address", server.address]
        ours, theirs = pty.openpty() if terminal else os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", *command],
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "200", "LINES": "40", "TERM": "xterm"},
        )
        os.close(theirs)
        reader = Reader(ours)
        try:
            wait_for(lambda: reader.text.count("queue") >= 2, "two looks")
            server.puppet().publish()
            server.puppet().publish()
            before = len(reader.text)
            wait_for(lambda: " 2 " in reader.text[before:], "the new version")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
            assert "Traceback" not in (process.stderr.read() if process.stderr else "")
        finally:
            process.kill()
            process.wait()
            os.close(ours)


def test_it_waits_for_a_server_that_went_away(tmp_path: Path) -> None:
    process: subprocess.Popen[str] | None = None
    try:
        with running(tmp_path / "data") as server:
            server.client().register()
            where = server.address
            command = ["server", "top", "--seconds", "0.2", "--address", where]
            process = subprocess.Popen(
                [sys.executable, "-m", "assay", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None and process.stderr is not None
            reader, errors = Reader(process.stdout.fileno()), Reader(process.stderr.fileno())
            wait_for(lambda: "queue" in reader.text, "a look")
        wait_for(lambda: "No server answers" in errors.text, "a word about it")
        assert process.poll() is None
        port = where.rpartition(":")[2]
        with running(tmp_path / "again", listen=f"127.0.0.1:{port}") as again:
            again.client().register(OTHER)
            wait_for(lambda: "other" in reader.text, "the new server")
    finally:
        if process is not None:
            process.kill()
            process.wait()
