"""A PostgreSQL server of the tests' own, on a socket in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    """Return where initdb and postgres are; Debian keeps them off the path."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True):
        return path.parent
    return None


class PostgresServer:
    """Started by `run_postgres`.

    Attributes:
        url: How to reach it.
    """

    def __init__(self, binaries: Path, directory: Path, prefix: list[str]) -> None:
        self._control = [*prefix, str(binaries / "pg_ctl"), "-D", str(directory / "data")]
        self._directory = directory
        self.url = f"postgresql:///postgres?host={directory}&user=assay"

    def start(self) -> None:
        # Without fsync: what a power cut does to PostgreSQL is not ours to test.
        options = "-c listen_addresses='' -c fsync=off -c autovacuum=off -c shared_buffers=16MB"
        options += f" -k {self._directory}"
        log = str(self._directory / "log")
        self._run("start", "-w", "-l", log, "-o", options)

    def stop(self) -> None:
        self._run("stop", "-w", "-m", "immediate")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self._control, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"pg_ctl {arguments[0]} failed"

    def schema(self) -> str:
        """Return the name of a schema that nobody has used."""
        return f"test_{uuid.uuid4().hex[:12]}"


@contextlib.contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """Start a server for a while, or skip the test with the reason."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL (initdb) is not installed")
    directory = Path(tempfile.mkdtemp(prefix="assay-pg-"))
    prefix: list[str] = []
    try:
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            if shutil.which("runuser") is None:
                pytest.skip("PostgreSQL does not run as root, and runuser is not installed")
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            os.chown(directory, user.pw_uid, user.pw_gid)
            prefix = ["runuser", "-u", "postgres", "--"]
        made = subprocess.run(
            [*prefix, str(binaries / "initdb"), "-D", str(directory / "data"), "-U", "assay",
             "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"],
            capture_output=True, text=True, cwd="/",
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        server = PostgresServer(binaries, directory, prefix)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
