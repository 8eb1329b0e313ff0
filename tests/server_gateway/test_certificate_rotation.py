"""New certificates are taken while the server runs, and bad ones are not."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from gateway_support import SPEC, WAIT, Client, Running, running

from assay.core.errors import ConfigError
from assay.server.gateway.config import Tls
from assay.server.gateway.tls import Certificates


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    where = tmp_path_factory.mktemp("authorities")
    return Authority(where / "old"), Authority(where / "new")


def install(authority: Authority, place: Path, *names: str) -> None:
    """Replace files as certificate managers do: by a rename."""
    place.mkdir(exist_ok=True)
    for name in names or ("server.crt", "server.key", "ca.crt"):
        shutil.copy(authority.directory / name, place / f"{name}.new")
        (place / f"{name}.new").rename(place / name)


def files(place: Path, *, mutual: bool = False) -> dict[str, str]:
    found = {"cert": str(place / "server.crt"), "key": str(place / "server.key")}
    return found | ({"client_ca": str(place / "ca.crt")} if mutual else {})


def channel(server: Running, authority: Authority, who: Authority | None = None) -> Any:
    pair = who.issue("ada", "ada") if who is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.read("ca.crt"), pair[1], pair[0])
    # A connection of its own, and not one that another test object has open.
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(server.address, credentials, options)


def joins(server: Running, authority: Authority, who: Authority | None = None) -> bool:
    """Return whether a new connection can be made by who trusts this authority."""
    client = server.client(channel=channel(server, authority, who), timeout=WAIT)
    try:
        client.register(SPEC)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    return True


def served(server: Running) -> bytes:
    """Return the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", server.gateway.port), timeout=10) as plain:
        with context.wrap_socket(plain) as secure:
            found = secure.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found).encode()


def test_new_certificates_are_taken_and_open_connections_stay(
    tmp_path: Path, authorities: tuple[Authority, Authority]
) -> None:
    old, new = authorities
    place = tmp_path / "tls"
    install(old, place)
    grants = {"*": {"*": ["register", "write", "read"]}}
    with running(tmp_path / "data", tls=files(place, mutual=True), grants=grants) as server:
        assert joins(server, old, old) and not joins(server, new, new)
        stays: Client = server.client(channel=channel(server, old, old))
        stays.register(SPEC)
        install(new, place)
        # The server's certificate and the authority of its clients are both the new ones.
        assert joins(server, new, new)
        assert not joins(server, old, old) and not joins(server, new, old)
        assert not stays.register(SPEC).created  # over the connection that was open
        install(old, place)
        assert joins(server, old, old)  # and back


def test_half_of_a_pair_changes_nothing(
    tmp_path: Path, authorities: tuple[Authority, Authority], caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authorities
    place = tmp_path / "tls"
    install(old, place)
    with running(tmp_path / "data", tls=files(place), tokens=True) as server:
        assert served(server) == old.read("server.crt")
        with caplog.at_level(logging.INFO, "assay.server"):
            install(new, place, "server.crt")  # its key is not there yet
            for _ in range(3):
                assert served(server) == old.read("server.crt")
            assert caplog.text.count("are not taken") == 1  # once, and not at each connection
            (place / "server.key").unlink()
            assert served(server) == old.read("server.crt")
            assert "Cannot read the private key" in caplog.text
            (place / "server.key").write_bytes(b"nonsense")
            assert served(server) == old.read("server.crt")
            install(new, place, "server.key")
            assert served(server) == new.read("server.crt")
            assert caplog.text.count("are in use for new connections") == 1
            served(server)
            assert caplog.text.count("are in use for new connections") == 1


def test_what_is_not_there_at_the_start_is_still_an_error(
    tmp_path: Path, authorities: tuple[Authority, Authority]
) -> None:
    install(authorities[0], tmp_path)
    tls = Tls.model_validate(files(tmp_path, mutual=True))
    certificates = Certificates(tls)
    assert certificates.changed() is None  # nothing has
    install(authorities[0], tmp_path)
    assert certificates.changed() is not None  # replaced, if by the same
    assert certificates.changed() is None
    (tmp_path / "ca.crt").write_bytes(b"nonsense")
    assert certificates.changed() is None
    with pytest.raises(ConfigError, match="client CA"):
        Certificates(tls)
