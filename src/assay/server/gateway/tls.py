"""Certificates: read when the server starts and again when they change, without a restart.

gRPC asks before each new connection. A pair that cannot be used, such as a certificate whose key is
not there yet, changes nothing: the last good one stays, and the log says why.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from pathlib import Path
from typing import Any

from assay.core.errors import ConfigError
from assay.server.gateway.config import Tls

log = logging.getLogger("assay.server")

_TRIES = 3  # where files change while they are read


def server_credentials(files: Tls) -> Any:
    """Return gRPC's credentials of a server, which follow the files.

    Where there is a client CA, a client without a certificate of it is turned away before any of
    our code runs. Connections that are open stay so; new ones get what the files say by then.

    Raises:
        ConfigError: A file cannot be read, is not a certificate, or the two do not belong together.
    """
    import grpc

    certificates = Certificates(files)
    return grpc.dynamic_ssl_server_credentials(
        certificates.current,
        certificates.changed,
        require_client_authentication=files.client_ca is not None,
    )


class Certificates:
    """The certificates of a server, as its files have them.

    Raises:
        ConfigError: They cannot be used as they are now.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._trouble = ""
        self._seen, self.current = self._load()

    def changed(self) -> Any:
        """Return the new certificates, or None where they are the same; never raises."""
        with self._lock:
            try:
                if self._stamp() == self._seen:
                    self._trouble = ""
                    return None
                self._seen, self.current = self._load()
            except Exception as error:
                why = error.message if isinstance(error, ConfigError) else str(error)
                if why != self._trouble:
                    log.warning("The certificates have changed and are not taken: %s", why)
                self._trouble = why
                return None
            self._trouble = ""
            log.info("The certificates have changed and are in use for new connections")
            return self.current

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return what differs once a file was written or replaced."""
        files = self._files
        found = []
        for path in (files.cert, files.key, files.client_ca):
            if path is not None:
                try:
                    stat = os.stat(path)
                except OSError:
                    found.append((0, 0, 0))
                else:
                    found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    def _load(self) -> tuple[Any, Any]:
        for _ in range(_TRIES):
            stamp = self._stamp()
            configuration = _configuration(self._files)
            if self._stamp() == stamp:
                return stamp, configuration
        raise ConfigError("The certificates change while they are read.", "Wait until they do not.")


def _configuration(files: Tls) -> Any:
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
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=authorities)


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
