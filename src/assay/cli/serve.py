"""`assay serve`: a training server for live systems. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer

from assay.cli import output, serve_demo

app = typer.Typer(
    help="Run a training server: live systems send experience and get models.",
    invoke_without_command=True,
)
app.command("demo")(serve_demo.demo)


@app.callback()
def serve(
    ctx: typer.Context,
    config: Path = typer.Option(None, "--config", help="Settings of the server, as YAML or JSON."),
    data: Path = typer.Option(
        None, "--data", help="The data directory ($ASSAY_SERVER, or assay-server)."
    ),
    listen: str = typer.Option(None, "--listen", help="HOST:PORT; 127.0.0.1:50051 by default."),
    tls: Path = typer.Option(
        None, "--tls", help="A directory with server.crt, server.key and, for clients, ca.crt."
    ),
    tokens: bool = typer.Option(None, "--tokens/--no-tokens", help="Ask clients for a token."),
    store: str = typer.Option(None, "--store", help="postgresql://... instead of SQLite."),
    executor: Literal["process", "inproc", "ray"] = typer.Option(
        None, "--executor", help="Where learners run; by default each in its own process."
    ),
    metrics_port: int = typer.Option(
        None, "--metrics-port", min=0, max=65535, help="Port of the Prometheus metrics."
    ),
    reflection: bool = typer.Option(
        None, "--reflection/--no-reflection", help="Let anyone list the services."
    ),
    drain_seconds: float = typer.Option(
        None, "--drain-seconds", min=0.1, help="Longest time for an orderly shutdown."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Log warnings and errors only."),
) -> None:
    """Run a training server until Ctrl-C.

    Without options it serves this machine only, and keeps everything in one directory. Ctrl-C or
    SIGTERM shuts it down in order: received experience is committed and learned models are saved.
    """
    if ctx.invoked_subcommand is not None:
        return
    given: dict[str, Any] = {
        "listen": listen,
        "tokens": tokens,
        "store": store,
        "executor": executor,
        "metrics_port": metrics_port,
        "reflection": reflection,
        "drain_seconds": drain_seconds,
        "data": data,
    }
    with _logging(quiet):
        asked = {name: value for name, value in given.items() if value is not None}
        complete = run(config, asked, tls)
    if not complete:
        raise typer.Exit(output.EXIT_INCOMPLETE)


def run(config: Path | None, given: dict[str, Any], tls: Path | None = None) -> bool:
    """Run a server with the command line's settings; return whether it could be drained in time."""
    needs_grpc()
    from assay.server.gateway.config import default_data, read_config, tls_files
    from assay.server.gateway.run import run_server, shown_address

    if tls is not None:
        given["tls"] = tls_files(tls)
    settings = read_config(config, given)
    if "data" not in settings.model_fields_set:
        settings = settings.model_copy(update={"data": default_data()})

    def ready(gateway: Any) -> None:
        # On stdout, for a program that has asked for port 0.
        output.say(f"Listening on {shown_address(gateway)}")
        sys.stdout.flush()
        details = [f"data in '{settings.data}'", f"learners: {settings.executor}"]
        if settings.tls is not None:
            details.append("mutual TLS" if settings.tls.client_ca else "TLS")
        if settings.tokens:
            details.append("tokens")
        if gateway.metrics_port is not None:
            details.append(
                f"metrics on http://{settings.metrics_host}:{gateway.metrics_port}/metrics"
            )
        output.note("; ".join(details) + ". Ctrl-C shuts it down.")

    complete = run_server(settings, output.note, ready)
    output.note("Drained." if complete else "Not everything could be saved in time.")
    return complete


def needs_grpc() -> None:
    """Raise an error if the extra is not installed."""
    from assay.core.errors import MissingExtraError

    try:
        import grpc  # noqa: F401
        import grpc_health  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "grpcio", "server", "The training server") from None


@contextlib.contextmanager
def _logging(quiet: bool) -> Iterator[None]:
    """Show the server's log while it runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("assay.server")
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
