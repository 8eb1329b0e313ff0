"""Sign and check with SSH keys, by OpenSSH's own `ssh-keygen -Y`."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from assay.core.errors import RunError


class SshError(RunError):
    """`ssh-keygen` refused, or is missing."""


def sign(key: Path, namespace: str, message: bytes) -> str:
    """Sign a message with a private key, or with a public one whose private half an agent holds.

    Raises:
        SshError: It cannot be signed; the message holds what ssh-keygen printed.
    """
    done = _keygen("sign", "-f", str(key), "-n", namespace, data=message)
    if done.returncode:
        raise SshError(f"The key '{key}' cannot sign: {_said(done)}.")
    return done.stdout.decode()


def refusal(signers: str, name: str, namespace: str, message: bytes, signature: str) -> str:
    """Return why a signature is not that of a person, or "" if it is.

    Args:
        signers: The text of an allowed_signers file (ssh-keygen(1)).
        name: The person, as it stands there.
        namespace: What is signed for.
        message: What was signed.
        signature: As `sign` returns it.
    """
    with tempfile.TemporaryDirectory() as place:
        allowed, signed = Path(place, "allowed_signers"), Path(place, "signature")
        allowed.write_text(signers)
        signed.write_text(signature)
        options = ("-f", str(allowed), "-I", name, "-n", namespace, "-s", str(signed))
        try:
            done = _keygen("verify", *options, data=message)
        except SshError as error:
            return error.message.rstrip(".")
    return _said(done) if done.returncode else ""


def _keygen(action: str, *options: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", "-Y", action, *options], input=data,
                              capture_output=True)  # fmt: skip
    except OSError as error:
        raise SshError(
            f"ssh-keygen cannot be run: {error.strerror or error}.",
            "Install OpenSSH (on Debian: apt install openssh-client).",
        ) from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else "ssh-keygen gave no reason"
