"""The gateway as a whole: binds the port, serves, drains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from assay.core.errors import ConfigError
from assay.server.addresses import address
from assay.server.executor.base import Executor
from assay.server.gateway.admin import Admin
from assay.server.gateway.config import ServerConfig
from assay.server.gateway.health import Health
from assay.server.gateway.hosted import Hosted, Supervise
from assay.server.gateway.hub import Hub, draining
from assay.server.gateway.infer import Infer
from assay.server.gateway.ingest import Ingest
from assay.server.gateway.metrics import MetricsServer
from assay.server.gateway.models import Models
from assay.server.gateway.session import Session
from assay.server.gateway.tls import server_credentials
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol import assay_pb2_grpc as services
from assay.server.store.store import Store
from assay.server.supervisor import Patience, Supervisor
from assay.server.tensors import FRAME_BYTES

log = logging.getLogger("assay.server")

_FRAME_ROOM = 64 << 10  # what a message has around a frame
_STREAM_SHARE = 0.4  # of the time to drain, for the streams; the rest is the learners'


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", FRAME_BYTES + _FRAME_ROOM),
        ("grpc.max_send_message_length", FRAME_BYTES + _FRAME_ROOM),
        ("grpc.max_concurrent_streams", config.max_streams),
        # One server has the port: a second one must hear that it is taken.
        ("grpc.so_reuseport", 0),
        # A peer whose machine is gone answers no ping, and its calls end after 30 seconds.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Keepalive waits behind the library's own pings, whose patience is a minute.
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients look for us in the same way, and must not be turned away for it.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_metadata_size", 16 << 10),
    ]


class Gateway:
    """A server that is being run.

    Args:
        config: Of the server.
        store: Everything that lasts; the caller closes it after `stop`.
        executor: Where learners run; the caller closes it as well.
        supervise: Makes the supervisor of a policy; by default `Supervisor`.
        clock: Seconds since the epoch, for tokens.

    Attributes:
        port: Where it listens, once it was started; 0 for a Unix socket.
        metrics_port: Where the metrics are, or None.
        hub: What the services share, once it was started.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        executor: Executor,
        *,
        supervise: Supervise | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.port = 0
        self.metrics_port: int | None = None
        self._store, self._executor, self._clock = store, executor, clock
        self._supervise = supervise or _supervisor(config)
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics: MetricsServer | None = None

    async def start(self) -> int:
        """Begin to serve, and return the port.

        Raises:
            ConfigError: The port is taken, or a certificate cannot be used.
            RejectionError: The store cannot be read.
        """
        self.hub = Hub(self.config, self._store, self._executor, self._supervise, self._clock)
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> int:
        hub, config = self.hub, self.config
        server = grpc.aio.server(options=_options(config))
        self._server: Any = server
        services.add_SessionServicer_to_server(Session(hub), server)  # type: ignore[no-untyped-call]
        services.add_IngestServicer_to_server(Ingest(hub), server)  # type: ignore[no-untyped-call]
        services.add_ModelsServicer_to_server(Models(hub), server)  # type: ignore[no-untyped-call]
        services.add_InferServicer_to_server(Infer(hub), server)  # type: ignore[no-untyped-call]
        services.add_AdminServicer_to_server(Admin(hub, self.drain), server)  # type: ignore[no-untyped-call]
        self.health = Health(hub)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        if config.reflection:
            _reflect(server)
        self.port = self._bind(server)
        if config.metrics_port is not None:
            self._metrics = MetricsServer(hub.meters.text, hub.health, hub.troubles)
            self.metrics_port = await self._metrics.start(config.metrics_host, config.metrics_port)
        hub.on_change = self._look_at
        await hub.host_all()
        await server.start()
        self._tasks = [asyncio.create_task(hub.pulse()), asyncio.create_task(hub.retain())]
        return self.port

    def _bind(self, server: Any) -> int:
        listen = self.config.listen
        host, port = address(listen)
        credentials = None if self.config.tls is None else server_credentials(self.config.tls)
        path = Path(host.removeprefix("unix:")) if host.startswith("unix:") else None
        if path is None:
            _refuse_taken(host, port, listen)
        else:
            _refuse_served(path, listen)
        before = os.umask(0o177)  # a socket is its owner's alone, as the data directory is
        try:
            if credentials is not None:
                bound = server.add_secure_port(listen, credentials)
            else:
                bound = server.add_insecure_port(listen)
        except RuntimeError:
            bound = 0
        finally:
            os.umask(before)
        if not bound:
            raise _cannot_listen(listen, "the address cannot be used")
        return int(bound) if path is None else 0

    def _look_at(self, hosted: Hosted) -> None:
        there = self.hub.policies.get(hosted.name) is hosted
        self.health.look_at(hosted, there and hosted.works)

    async def drain(self, timeout: float | None = None) -> bool:
        """End in order: take no more, commit what was taken, let the learners save.

        Args:
            timeout: Longest time it may take, in seconds.

        Returns:
            Whether everything was done in time. Whatever was acknowledged is safe either way.
        """
        hub = self.hub
        timeout = self.config.drain_seconds if timeout is None else timeout
        end = time.monotonic() + timeout
        if not hub.draining:
            hub.draining = True
            await self.health.drain()
        for hosted in hub.policies.values():
            for stream in hosted.open_streams():
                stream.finish(draining())
            hosted.changed.fire()
        complete = await self._streams_end(time.monotonic() + _STREAM_SHARE * timeout)
        left = max(end - time.monotonic(), 0.1)
        learners = [
            hub.wait(hosted.supervisor.drain, left) for hosted in list(hub.policies.values())
        ]
        results = await asyncio.gather(*learners, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.error("A learner could not be drained: %s", result)
        complete = complete and all(result is True for result in results)
        hub.drained.set()
        return complete

    async def _streams_end(self, deadline: float) -> bool:
        def open_ones() -> bool:
            return any(hosted.streams for hosted in self.hub.policies.values())

        while open_ones() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not open_ones()

    async def stop(self, grace: float = 1.0) -> None:
        """End now; what was not acknowledged is the clients' to send again."""
        hub = self.hub
        hub.draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        server = getattr(self, "_server", None)
        if server is not None:
            await server.stop(grace)
        if self._metrics is not None:
            await self._metrics.stop()
        stops = [hub.wait(hosted.supervisor.stop) for hosted in hub.policies.values()]
        await asyncio.gather(*stops, return_exceptions=True)
        await hub.close()


def _refuse_taken(host: str, port: int, listen: str) -> None:
    """Say why a port cannot be had. The library would only write to the log."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(where)
                except OSError as error:
                    # A machine without IPv6 still has its localhost.
                    if error.errno == errno.EADDRNOTAVAIL and len(found) > 1:
                        continue
                    raise
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "the port is taken" if taken else str(error.strerror or error).lower()
        raise _cannot_listen(listen, why) from None


def _refuse_served(path: Path, listen: str) -> None:
    """Say why a socket cannot be had. The library would take it from the server that has it."""
    if not path.exists():
        return
    if not path.is_socket():
        raise _cannot_listen(listen, "there is a file of this name")
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        raise _cannot_listen(listen, "another server listens there")


def _cannot_listen(listen: str, why: str) -> ConfigError:
    return ConfigError(
        f"Cannot listen on {listen}: {why}.",
        "Stop what uses it, or choose another address with --listen HOST:PORT.",
    )


def _supervisor(config: ServerConfig) -> Supervise:
    retention = config.retention
    patience = Patience(
        trim_seconds=retention.every if retention.trim else None,
        publish_seconds=config.publish_seconds,
    )
    return functools.partial(Supervisor, patience=patience)


def _reflect(server: Any) -> None:
    from grpc_reflection.v1alpha import reflection

    names = [one.full_name for one in pb.DESCRIPTOR.services_by_name.values()]
    names += [one.full_name for one in health_pb2.DESCRIPTOR.services_by_name.values()]
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
