"""What a server is told: one YAML or JSON file, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, JsonValue

from assay.core.config import Model, parse, read_yaml
from assay.core.errors import ConfigError
from assay.server.addresses import address, is_local
from assay.server.learner.messages import LearnerSettings
from assay.server.store.registry import Quota, Verb
from assay.server.tensors import FRAME_BYTES

ExecutorName = Literal["process", "inproc", "ray"]
_Port = Annotated[int, Field(ge=0, le=65535)]


class Tls(Model):
    """The server's certificate, and whose certificates it takes from clients."""

    cert: Path = Field(description="The server's certificate chain, PEM.")
    key: Path = Field(description="Its private key, PEM.")
    client_ca: Path | None = Field(
        None, description="Authorities whose client certificates are asked for and trusted, PEM."
    )


class Credits(Model):
    """How much one stream may have under way."""

    batches: int = Field(32, ge=1, le=4096, description="Batches that are not acknowledged yet.")
    bytes: int = Field(
        16 << 20, ge=FRAME_BYTES, description="Their bytes; one batch may go in any case."
    )


class QuotaSettings(Model):
    """How much each client may send to a policy."""

    steps: int | None = Field(None, ge=1, description="Steps in `seconds`; none for any number.")
    bytes: int | None = Field(None, ge=1, description="Bytes in `seconds`; none for any number.")
    seconds: float = Field(1.0, gt=0, description="The time that the two are counted over.")

    def quota(self) -> Quota | None:
        """Return the limit as the store knows it, or None where nothing is limited."""
        if self.steps is None and self.bytes is None:
            return None
        return Quota(self.steps, self.bytes, self.seconds)


class CanarySettings(Model):
    """Try a new version on some clients before the others get it."""

    share: float = Field(0.0, ge=0, le=1, description="Share of the clients; 0 switches it off.")
    min_episodes: int = Field(
        20,
        ge=2,
        description="Episodes of each version before a decision; up to five times as many of one "
        "that looks worse than the best.",
    )
    tolerance: float = Field(
        0.05, ge=0, description="How much worse is good enough, as a share of the stable return."
    )
    best_hours: float = Field(
        24.0,
        ge=0,
        description="A version is judged by the best stable one of so many last hours as well; 0: "
        "by the last one alone.",
    )
    stretch: int | None = Field(
        None, ge=1, description="Steps that count as an episode in a system that never ends one."
    )


class Differences(Model):
    """Send a large model as its difference to one that the client has."""

    above: int | None = Field(
        4 << 20, ge=0, description="Size in bytes from which on it is done; null: never."
    )
    anchor: int = Field(
        16, ge=1, description="Every so many versions one is always sent in full; 1: all of them."
    )


class Retention(Model):
    """What is kept of the past."""

    versions: int = Field(100, ge=2, description="Newest model versions of a policy.")
    minutes: int = Field(
        60, ge=0, description="Last minutes of each of which the newest version stays, too."
    )
    hours: int = Field(
        168, ge=0, description="Last hours of each of which the newest version stays, too."
    )
    trim: bool = Field(True, description="Delete segments that the learner will not read again.")
    every: float = Field(60.0, gt=0, description="Seconds between two looks.")


class PolicyOverrides(Model):
    """What differs for one policy."""

    learner: dict[str, JsonValue] = Field(default_factory=dict, description="Learner settings.")
    quota: QuotaSettings | None = Field(None, description="Instead of the server's own.")
    backlog_steps: int | None = Field(None, ge=1, description="Instead of the server's own.")


class ServerConfig(Model):
    """Everything about a server that is not in its data directory.

    Example:
        >>> ServerConfig().listen
        '127.0.0.1:50051'
    """

    data: Path = Field(Path("assay-server"), description="The data directory; made if missing.")
    listen: str = Field(
        "127.0.0.1:50051", description="HOST:PORT, or unix:PATH; port 0 takes a free one."
    )
    tls: Tls | None = Field(None, description="Certificates; needed off loopback.")
    tokens: bool = Field(False, description="Whether clients must bear a token.")
    grants: dict[str, dict[str, tuple[Verb, ...]]] = Field(
        default_factory=dict,
        description="Verbs by policy for the bearers of certificates, by common name; * for all.",
    )
    store: str | None = Field(
        None, description="postgresql://... for the registry; by default SQLite in `data`."
    )
    executor: ExecutorName = Field("process", description="Where learners run.")
    ray_address: str | None = Field(
        None, description="The Ray cluster of executor ray; by default the one that Ray finds."
    )
    metrics_port: _Port | None = Field(None, description="Port of the Prometheus metrics.")
    metrics_host: str = Field("127.0.0.1", description="Address of the Prometheus metrics.")
    reflection: bool = Field(False, description="Whether the services can be listed by anyone.")
    credits: Credits = Credits()
    backlog_steps: int = Field(
        200_000, ge=1, description="Steps that a learner may be behind before clients must wait."
    )
    ingest_mb: int = Field(
        512, ge=64, description="Memory for batches that are under way, of all clients together."
    )
    learner: LearnerSettings = LearnerSettings()
    publish_seconds: float | None = Field(
        None, gt=0, description="Ask a learner for a version after so long without one."
    )
    quota: QuotaSettings = QuotaSettings()
    canary: CanarySettings = CanarySettings()
    differences: Differences = Differences()
    retention: Retention = Retention()
    policies: dict[str, PolicyOverrides] = Field(default_factory=dict)
    max_policies: int = Field(
        64, ge=1, description="Policies at once; each has a learner, which is a process as a rule."
    )
    max_streams: int = Field(256, ge=1, description="Calls at once over one connection.")
    announce_seconds: float = Field(
        10.0, gt=0, description="Longest silence on a stream before a sign of life."
    )
    recheck_seconds: float = Field(
        5.0, gt=0, description="How often a long call's credential is looked at again."
    )
    journal_seconds: float = Field(
        5.0, ge=0, description="Shortest time between two records of a policy's metrics."
    )
    drain_seconds: float = Field(30.0, gt=0, description="Longest orderly end.")

    @pydantic.model_validator(mode="after")
    def _goes_together(self) -> ServerConfig:
        where = address(self.listen)
        if not is_local(where[0]):
            if self.tls is None:
                raise ValueError(
                    f"listen={self.listen} is not loopback, and plaintext is refused there: give "
                    "the server a certificate (tls), or listen on 127.0.0.1"
                )
            if not self.tokens and self.tls.client_ca is None:
                raise ValueError(
                    f"listen={self.listen} is not loopback, and nothing would tell who a client "
                    "is: ask for tokens (tokens: true) or client certificates (tls.client_ca)"
                )
            if self.reflection:
                raise ValueError(
                    f"listen={self.listen} is not loopback, and reflection would tell anyone there "
                    "what this server does: leave reflection out, or listen on 127.0.0.1"
                )
        if self.grants and (self.tls is None or self.tls.client_ca is None):
            raise ValueError(
                "grants has no effect without client certificates: set tls.client_ca, or leave "
                "it out"
            )
        if self.ray_address is not None and self.executor != "ray":
            raise ValueError(
                f"ray_address has no effect with executor={self.executor}: leave it out, or set "
                "executor: ray"
            )
        for name in self.policies:
            self.learner_of(name)
        return self

    def learner_of(self, policy: str) -> LearnerSettings:
        """Return how a policy's learner is run.

        Raises:
            ValueError: What the config says about the policy does not make sense.
        """
        given, settings = self._own(policy).learner, self.learner
        if given:
            values = {**settings.model_dump(), **given}
            try:
                settings = parse(LearnerSettings, values, what=f"the learner of '{policy}'")
            except ConfigError as error:
                raise ValueError(error.message) from None
        if self.canary.share > 0 and settings.max_lag == "auto":
            # Versions wait for their trial. Steps of the stable one must not be left out for that.
            settings = settings.model_copy(update={"max_lag": None})
        return settings

    def quota_of(self, policy: str) -> Quota | None:
        """Return how much each client may send to a policy."""
        return (self._own(policy).quota or self.quota).quota()

    def backlog_of(self, policy: str) -> int:
        """Return how many steps a policy's learner may be behind."""
        return self._own(policy).backlog_steps or self.backlog_steps

    def _own(self, policy: str) -> PolicyOverrides:
        return self.policies.get(policy, PolicyOverrides())


def tls_files(directory: Path) -> dict[str, str]:
    """Find certificates by their usual names: `server.crt`, `server.key` and maybe `ca.crt`.

    Raises:
        ConfigError: It is not a directory, or the first two are not there.
    """
    if directory.is_file():
        raise ConfigError(
            f"--tls {directory} is a file; expected a directory with server.crt and server.key.",
            f"Give the directory that it is in: --tls {directory.parent}",
        )
    found: dict[str, str] = {}
    for setting, names in (
        ("cert", ("server.crt", "server.pem", "tls.crt", "cert.pem")),
        ("key", ("server.key", "tls.key", "key.pem")),
        ("client_ca", ("ca.crt", "ca.pem", "client-ca.crt")),
    ):
        there = [name for name in names if (directory / name).is_file()]
        if there:
            found[setting] = str(directory / there[0])
        elif setting != "client_ca":
            raise ConfigError(
                f"The directory '{directory}' has no {names[0]}.",
                f"Put the certificate and key there as server.crt and server.key ({names[0]} may "
                f"also be called {', '.join(names[1:])}); ca.crt turns on client certificates.",
            )
    return found


def read_config(path: Path | None, given: Mapping[str, Any]) -> ServerConfig:
    """Read a config, in which what is given on the command line counts more than the file.

    Args:
        path: YAML or JSON, of which JSON is a part; None for the defaults.
        given: Settings that were given on the command line.

    Raises:
        ConfigError: Names each bad key with its value, what was expected and the nearest name.
    """
    values = read_yaml(path) if path is not None else {}
    _refuse_secrets(values)
    what = "the server" if path is None else f"the server in '{path}'"
    return parse(ServerConfig, {**values, **given}, what=what)


def _refuse_secrets(values: Mapping[str, Any]) -> None:
    if isinstance(values.get("tokens"), str | list | dict):
        raise ConfigError(
            "tokens: expected true or false; tokens themselves are not kept in a config.",
            "Write tokens: true, and make tokens with `assay server token`.",
        )


def default_data() -> Path:
    """Return where a server keeps its data: `$ASSAY_SERVER`, or `assay-server` where we are."""
    return Path(os.environ.get("ASSAY_SERVER", "assay-server"))
