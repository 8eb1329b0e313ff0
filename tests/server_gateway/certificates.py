"""Certificates for the tests, made with the command openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A certificate authority in a directory: `ca.crt`, `server.crt`, `server.key`, and clients."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the command openssl is not there")
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._run(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=Test CA", "-days", "2",
            "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip
        self.issue("server", "localhost", names="DNS:localhost,IP:127.0.0.1")

    def issue(self, file: str, common_name: str, *, names: str = "") -> tuple[bytes, bytes]:
        """Make a certificate and its key, and return both."""
        self._run(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{file}.key", "-out", f"{file}.csr", "-subj", f"/CN={common_name}",
        )  # fmt: skip
        extra = self.directory / f"{file}.ext"
        extra.write_text(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        self._run(
            "x509", "-req", "-in", f"{file}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", f"{file}.crt", "-days", "2", "-extfile", extra.name,
        )  # fmt: skip
        return self.read(f"{file}.crt"), self.read(f"{file}.key")

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)
