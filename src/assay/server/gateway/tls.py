"""Certificates: read once when the server starts, with a clear line for each mistake."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from assay.core.errors import ConfigError
from assay.server.gateway.config import Tls


def server_credentials(files: Tls) -> Any:
    """Return gRPC's credentials of a server.

    Where there is a client CA, a client without a certificate of it is turned away before any of
    our code runs.

    Raises:
        ConfigError: A file cannot be read, is no certificate, or the two do not belong together.
    """
    import grpc

    cert, key = _read(files.cert, "certificate"), _read(files.key, "private key")
    # The library would only say that the port could not be bound.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            files.cert, files.key, password=_no_password
        )
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"The certificate '{files.cert}' and the key '{files.key}' cannot be used: "
            f"{_why(error)}.",
            "Give a PEM certificate and the unencrypted PEM key that belongs to it.",
        ) from None
    authorities = None
    if files.client_ca is not None:
        authorities = _read(files.client_ca, "client CA")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise ConfigError(
                f"The client CA '{files.client_ca}' cannot be used: {_why(error)}.",
                "Give one or more certificates in PEM.",
            ) from None
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=authorities, require_client_auth=authorities is not None
    )


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"Cannot read the {what} '{path}': {error.strerror}.",
            "Check the path and who may read it.",
        ) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).lower().replace("_", " ").rstrip(".")
