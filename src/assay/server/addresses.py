"""Addresses of servers, and whether they stay on this machine."""

from __future__ import annotations

import ipaddress


def address(listen: str) -> tuple[str, int]:
    """Split an address into host and port; a Unix socket has the host `unix:PATH` and port 0.

    Raises:
        ValueError: It is none.

    Example:
        >>> address("[::1]:50051"), address("localhost:0")
        (('::1', 50051), ('localhost', 0))
    """
    if listen.startswith("unix:"):
        if len(listen) == len("unix:"):
            raise ValueError("listen='unix:' names no path")
        return listen, 0
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"listen={listen!r} is not an address; expected HOST:PORT")
    if ":" in bare and bare == host:
        raise ValueError(f"listen={listen!r} is not an address; write IPv6 as [ADDRESS]:PORT")
    return bare, int(port)


def is_local(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
