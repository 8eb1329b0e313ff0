"""Run a server in this process, from its config to its orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from assay.core.errors import ConfigError
from assay.runs.files import write_atomic
from assay.server.addresses import address
from assay.server.executor import make_executor
from assay.server.executor.base import Executor
from assay.server.gateway.config import ServerConfig
from assay.server.gateway.gateway import Gateway
from assay.server.gateway.tls import server_credentials
from assay.server.store.registry import EVERY, Verb
from assay.server.store.sql import Registry
from assay.server.store.store import Store
from assay.server.store.tokens import make_token

ADMIN_TOKEN = "admin.token"
_AT_ONCE = 130

Tell = Callable[[str], None]


def open_store(config: ServerConfig) -> Store:
    """Open what a config says.

    Raises:
        ConfigError: The store's address is none that we know.
        StoreError: Another server has it, or it cannot be read or written.
    """
    registry: Registry | None = None
    if config.store is not None:
        if not config.store.startswith(("postgresql://", "postgres://")):
            raise ConfigError(
                f"store='{_without_secret(config.store)}' is not known.",
                "Give postgresql://USER@HOST/DATABASE, or leave it out for SQLite.",
            )
        from assay.server.store.postgres import PostgresRegistry

        registry = PostgresRegistry(config.store)
    try:
        return Store(config.data, registry)
    except BaseException:
        if registry is not None:
            registry.close()
        raise


def first_token(store: Store) -> Path | None:
    """Make a token for an operator where there is none yet, and return the file that has it."""
    if store.registry.tokens():
        return None
    text, token = make_token("admin", {EVERY: frozenset(Verb)})
    path = store.directory / ADMIN_TOKEN
    before = os.umask(0o077)  # so that nobody else can read it, not even while it is written
    try:
        write_atomic(path, f"{text}\n".encode())
    finally:
        os.umask(before)
    os.chmod(path, 0o600)
    store.registry.add_token(token)
    return path


def run_server(config: ServerConfig, tell: Tell, ready: Callable[[Gateway], None]) -> bool:
    """Serve until a signal or an operator ends it.

    The first SIGTERM or SIGINT drains; a second one ends at once, which loses nothing that was
    acknowledged.

    Args:
        config: Of the server.
        tell: Takes lines for a person.
        ready: Called once the server takes calls.

    Returns:
        Whether it could be drained in time.

    Raises:
        ConfigError: A port, an address or a certificate cannot be used.
        StoreError: The data directory cannot be used.
    """
    if config.tls is not None:
        server_credentials(config.tls)  # a mistake here must not cost a look at all segments
    with open_store(config) as store:
        for repair in store.repairs:
            tell(f"Repaired: {repair}")
        if config.tokens:
            path = first_token(store)
            if path is not None:
                tell(f"Made the first token, which may do everything; it is in '{path}'.")
        place: dict[str, str | None] = {}
        if config.executor == "ray":
            # Servers may share a cluster, but not their learners.
            namespace = f"assay-{store.identity()}"
            place = {"address": config.ray_address, "namespace": namespace}
        executor = make_executor(config.executor, **place)
        try:
            return asyncio.run(_serve(config, store, executor, tell, ready))
        finally:
            executor.close()


async def _serve(
    config: ServerConfig,
    store: Store,
    executor: Executor,
    tell: Tell,
    ready: Callable[[Gateway], None],
) -> bool:
    gateway = Gateway(config, store, executor)
    loop = asyncio.get_running_loop()
    wanted = asyncio.Event()
    asked = 0

    def end() -> None:
        nonlocal asked
        asked += 1
        wanted.set()
        if asked > 1:
            tell("Ending at once.")
            os._exit(_AT_ONCE)

    # From the beginning, so that a signal that comes early is not lost.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    complete = True
    await gateway.start()
    try:
        ready(gateway)
        waits = {
            asyncio.ensure_future(wanted.wait()),
            asyncio.ensure_future(gateway.hub.drained.wait()),
        }
        _, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        if not gateway.hub.drained.is_set():
            seconds = config.drain_seconds
            tell(f"Draining, for {seconds:g} seconds at most; once more ends at once.")
            complete = await gateway.drain(seconds)
        else:
            await asyncio.sleep(0.2)  # whoever asked for it gets their answer
    finally:
        await gateway.stop()
    return complete


def shown_address(gateway: Gateway) -> str:
    """Return where a server can be reached."""
    host, _ = address(gateway.config.listen)
    if host.startswith("unix:"):
        return host
    return f"[{host}]:{gateway.port}" if ":" in host else f"{host}:{gateway.port}"


def _without_secret(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"...@{tail}" if at and head else url[:80]
