"""Everything that a client can be told: by keywords, or in a YAML or JSON file."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from assay.core.config import Model, parse, read_yaml
from assay.core.errors import ConfigError
from assay.server.client.agent import ClientSettings
from assay.server.spec import NAME, Bounds

CLIENT = r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}"
_count = itertools.count(1)


class Tls(Model):
    """How the connection is encrypted. Without any file: by the system's certificates."""

    ca: Path | None = Field(None, description="Certificates to trust, PEM.")
    certificate: Path | None = Field(None, description="This client's own, PEM.")
    key: Path | None = Field(None, description="The private key of `certificate`, PEM.")
    server_name: str | None = Field(None, description="The name in the server's certificate.")

    @pydantic.model_validator(mode="after")
    def _pairs(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together; expected both or neither")
        return self


NEAREST = "nearest"


class ClientConfig(ClientSettings):
    """A client's settings, in one flat list.

    Example:
        >>> ClientConfig(policy="queue", algorithm="ppo", batch_steps=64).address
        '127.0.0.1:50051'
    """

    address: str = Field("127.0.0.1:50051", description="Of the server: host:port or unix:path.")
    policy: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="Name of the policy; clients of the same name share it."
    )
    client: Annotated[str, Field(pattern=f"^{CLIENT}$")] | None = Field(
        None, description="This client's id, one for each controlled system. Default: made up."
    )
    observation: Any = Field(None, description="The system's observation space.")
    action: Any = Field(None, description="The system's action space.")
    bounds: Bounds | None = Field(None, description="Tighter limits of Box actions.")
    algorithm: str | None = Field(None, description="What trains the policy on the server.")
    settings: dict[str, pydantic.JsonValue] = Field(
        default_factory=dict, description="Hyperparameters and settings of the algorithm."
    )
    group: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="Name of the group whose members share the policy."
    )
    safe_action: Any = Field(
        None,
        description=f"What to do when nothing else can answer; {NEAREST}: the action nearest to 0.",
    )
    models: Path | None = Field(
        None, description="Directory where good models are kept, under the name of their policy."
    )
    token: str | None = Field(None, description="What proves to the server who this is.")
    token_file: Path | None = Field(None, description="Where to read the token instead.")
    tls: Tls | None = Field(None, description="Encryption; needed off this machine.")
    compress: bool = Field(False, description="Compress batches, where the server takes that.")
    keepalive_seconds: float = Field(20.0, gt=0, description="Silence before a ping.")
    keepalive_timeout: float = Field(10.0, gt=0, description="Seconds for its answer.")
    call_seconds: float = Field(10.0, gt=0, description="Longest short call.")
    stall_seconds: float = Field(60.0, gt=0, description="Longest wait for an acknowledgement.")
    retry_seconds: float = Field(
        0.1,
        gt=0,
        description="First pause before a new try; it doubles up to 100 times that. Where a person "
        "has to do something the pauses are 50 to 600 times as long.",
    )
    close_seconds: float = Field(5.0, ge=0, description="Longest wait of close() for the rest.")
    largest_model_mb: int = Field(256, gt=0, description="Largest model that is fetched, in MiB.")

    @pydantic.model_validator(mode="after")
    def _goes_together(self) -> ClientConfig:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; expected one of them")
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise ValueError("the token has spaces or odd characters; expected one plain word")
        port = self.address.rpartition(":")[2]
        if not self.address.startswith("unix") and not (
            port.isdigit() and 0 < int(port) < 65536 and self.address.rpartition(":")[0]
        ):
            raise ValueError(
                f"address='{self.address}': expected host:port, such as 127.0.0.1:50051"
            )
        return self

    def client_id(self) -> str:
        """Return the id of this client; one that nobody else has where none was given."""
        if self.client is not None:
            return self.client
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip(".-") or "client"
        return f"{host[:80]}-{os.getpid()}-{next(_count)}"


def read_config(
    source: str | Path | Mapping[str, Any] | None, given: Mapping[str, Any]
) -> ClientConfig:
    """Return the settings of a file with keywords laid over them.

    Args:
        source: Path of a YAML or JSON file, or its content; None for none.
        given: Keywords; None counts as not given.

    Raises:
        ConfigError: Names the file, the key, its value and what was expected.
    """
    what = "the client"
    values: dict[str, Any] = {}
    if isinstance(source, str | Path):
        path = Path(source)
        what = f"the client, in '{path}'"
        values = _read_json(path) if path.suffix == ".json" else read_yaml(path)
        values = _beside(values, path.parent)
    elif source is not None:
        values = dict(source)
    given = {key: value for key, value in given.items() if value is not None}
    # Settings of the algorithm are laid over one by one.
    settings = values.get("settings", {}), given.get("settings", {})
    values |= given
    if all(isinstance(one, Mapping) for one in settings) and any(settings):
        values["settings"] = {key: _number(value) for one in settings for key, value in one.items()}
    return parse(ClientConfig, values, what=what)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"No such file: '{path}'.", "Give the path of a file.") from None
    except ValueError as error:
        raise ConfigError(f"'{path}' is not readable JSON: {error}.") from None
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {error.strerror}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"'{path}' holds a {type(values).__name__}; expected an object.")
    return values


def _beside(values: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Read the paths in a file as seen from the file."""
    for key in ("models", "token_file"):
        if isinstance(values.get(key), str):
            values[key] = directory / values[key]
    tls = values.get("tls")
    if isinstance(tls, dict):
        for key in ("ca", "certificate", "key"):
            if isinstance(tls.get(key), str):
                tls[key] = directory / tls[key]
    return values


def _number(value: Any) -> Any:
    """Read `3e-4`, which YAML takes for a word, as the number that it is."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+[eE][-+]?[0-9]+", value):
        return float(value)
    return value
