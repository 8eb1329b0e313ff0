"""`assay server`: inspect and control a running training server. Nothing here imports torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay.cli import output
from assay.cli.shared_options import AsJson, shared_options
from assay.core.errors import AssayError, ConfigError, nearest
from assay.core.wording import counted
from assay.evaluation.formatting import number

if TYPE_CHECKING:
    from assay.server.admin_client import AdminClient
    from assay.server.store.store import Store

CLIENT_VERBS = ("register", "write", "read", "act")  # what a client needs
_DAY = 86_400.0

app = typer.Typer(
    help="Inspect and control a running training server: policies, versions, tokens.",
    no_args_is_help=True,
)
token = typer.Typer(help="Credentials of clients and operators.", no_args_is_help=True)
app.add_typer(token, name="token")

Name = Annotated[str, typer.Argument(metavar="POLICY", help="Name of a policy.")]
ChannelName = Literal["stable", "canary"]
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Data directory of a stopped server; by default a running one is asked."
    ),
]
StoreUrl = Annotated[
    str | None, typer.Option("--store", help="Its postgresql://... address, if it uses one.")
]

# What every command that talks to a server takes, after its own options.
_WHERE = {
    "address": Annotated[
        str | None,
        typer.Option(
            "--address", envvar="ASSAY_ADDRESS", help="HOST:PORT; 127.0.0.1:50051 by default."
        ),
    ],
    "token_file": Annotated[
        Path | None,
        typer.Option(
            "--token-file", envvar="ASSAY_TOKEN_FILE", help="A file with the token to use."
        ),
    ],
    "tls": Annotated[
        Path | None,
        typer.Option("--tls", help="A directory with ca.crt and, if needed, client.crt and .key."),
    ],
    "config": Annotated[
        Path | None,
        typer.Option("--config", help="Instead: the YAML or JSON file of a Python client."),
    ],
}


@contextmanager
def connected(
    address: str | None, token_file: Path | None, tls: Path | None, config: Path | None
) -> Iterator[AdminClient]:
    """Yield a client of the server that the options name."""
    from assay.server.admin_client import AdminClient

    given: dict[str, Any] = {"address": address, "token_file": token_file}
    if tls is not None:
        given["tls"] = client_files(tls)
    with AdminClient.open(given, config) as server:
        yield server


# Gives a command the options of `_WHERE`, and a client of the server that they name.
remote = shared_options(_WHERE, connected)


def client_files(directory: Path) -> dict[str, str]:
    """Find a client's certificates by their usual names.

    Raises:
        ConfigError: It is not a directory, there is no `ca.crt`, or a certificate without its key.
    """
    expected = "a directory with ca.crt, and client.crt with client.key or neither"
    if directory.is_file():
        raise ConfigError(
            f"--tls {directory} is a file; expected {expected}.",
            f"Give the directory that it is in: --tls {directory.parent}",
        )
    found = {
        key: str(directory / name)
        for key, name in (("ca", "ca.crt"), ("certificate", "client.crt"), ("key", "client.key"))
        if (directory / name).is_file()
    }
    if "ca" not in found or ("certificate" in found) != ("key" in found):
        has = ", ".join(sorted(Path(path).name for path in found.values())) or "none of them"
        raise ConfigError(
            f"The directory '{directory}' has {has}; expected {expected}.",
            "Put the server's authority there as ca.crt.",
        )
    return found


# Inspecting


@app.command("policies")
@remote
def policies(server: AdminClient, as_json: AsJson = False) -> None:
    """List the policies of a server."""
    from assay.server.admin_client import policy_facts

    found = [policy_facts(info) for info in server.policies()]
    if as_json or not found:
        line = f"No policies at {server.address}. A client registers one: assay.connect(...)"
        _tell(found, as_json, line)
        return
    columns = (
        "policy", "state", "steps>", "episodes>", "return>", "version>", "stable>", "canary>",
        "behind>", "clients>",
    )  # fmt: skip
    rows = [
        (
            one["policy"],
            one["state"],
            f"{one['steps']:,}",
            f"{one['episodes']:,}",
            number(one["return_mean"]),
            one["newest_version"],
            _channel(one, "stable"),
            _channel(one, "canary"),
            f"{one['learner']['behind_steps']:,}",
            len(one["traffic"]["clients"]),
        )
        for one in found
    ]
    output.show(output.table(columns, rows))


def _channel(facts: dict[str, Any], channel: str) -> str | None:
    version = facts["channels"].get(channel)
    if version is None:
        return None
    return f"{version} (pinned)" if channel in facts["pinned"] else str(version)


@app.command("policy")
@remote
def policy(server: AdminClient, name: Name, as_json: AsJson = False) -> None:
    """Show a policy: its spec, learner, clients and latest versions."""
    from assay.server.admin_client import model_facts, policy_facts

    details = server.policy(name)
    facts = policy_facts(details.info)
    facts["spec"] = json.loads(details.info.spec_json)
    facts["models"] = [model_facts(model) for model in details.models]
    if as_json:
        output.print_json(facts)
        return
    learner, traffic = facts["learner"], facts["traffic"]
    clients = ", ".join(traffic["clients"][:8]) + (", ..." if len(traffic["clients"]) > 8 else "")
    lines = {
        "policy": name,
        "state": facts["state"],
        "algorithm": facts["spec"]["algorithm"],
        "settings": ", ".join(f"{k}={v}" for k, v in facts["spec"].get("settings", {}).items()),
        "steps": f"{facts['steps']:,} in {facts['batches']:,} batches ({_size(facts['bytes'])})",
        "episodes": f"{facts['episodes']:,}, return {number(facts['return_mean'])}",
        "stable": _channel(facts, "stable"),
        "canary": _channel(facts, "canary"),
        "learner": f"{learner['state']}, {learner['behind_steps']:,} steps behind, "
        f"{learner['restarts']} restarts" + (f", {learner['where']}" if learner["where"] else ""),
        "last error": learner["last_error"],
        "clients": clients,
    }
    for key, value in lines.items():
        if value:
            output.say(f"{key + ':':<12}{value}")
    for note in facts["notes"]:
        output.say(f"{'note:':<12}{note}")
    rows = [
        (
            model["version"],
            output.duration(time.time() - published.created) if published.created else None,
            ", ".join(at for at, version in facts["channels"].items()
                      if version == model["version"]),
            number(model["metrics"].get("rollout/return_mean")),
            f"{model['metrics'].get('server/env_steps', 0):,.0f}",
            model["parent"],
            _size(model["size"]),
            model["sha256"][:12],
        )
        for model, published in zip(facts["models"], details.models, strict=True)
    ]  # fmt: skip
    columns = ("version>", "age>", "channel", "return>", "steps>", "parent>", "size>", "sha256")
    output.show(output.table(columns, rows))


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@app.command("top")
@remote
def top(
    server: AdminClient,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.2, help="Seconds between two updates.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Watch all policies: rates, returns, versions, lag, memory. Ctrl-C ends it."""
    from assay.cli.top import watch

    watch(server, once=once, seconds=seconds, as_json=as_json)


# Controlling


@app.command("pause")
@remote
def pause(server: AdminClient, name: Name, as_json: AsJson = False) -> None:
    """Pause learning of a policy; clients keep acting and buffer what they cannot send."""
    _tell_policy(server.pause(name), as_json, "is paused; continue with `assay server resume`")


@app.command("resume")
@remote
def resume(server: AdminClient, name: Name, as_json: AsJson = False) -> None:
    """Continue learning a policy, even one whose learner has failed."""
    _tell_policy(server.resume(name), as_json, "continues")


@app.command("delete")
@remote
def delete(
    server: AdminClient,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a policy with its experience and models, permanently."""
    info = server.policy(name).info
    if not yes:
        what = f"{counted(info.steps, 'step')} and {counted(info.newest_version, 'version')}"
        typer.confirm(f"Delete '{name}' with {what} permanently?", abort=True)
    _tell_policy(server.delete(name), as_json, "is deleted; its name cannot be used again")


def _tell_policy(info: Any, as_json: bool, what: str) -> None:
    from assay.server.admin_client import policy_facts

    _tell(policy_facts(info), as_json, f"'{info.policy}' {what}.")


def _tell(facts: Any, as_json: bool, line: str) -> None:
    if as_json:
        output.print_json(facts)
    else:
        output.say(line)


@app.command("pin")
@remote
def pin(
    server: AdminClient,
    name: Name,
    version: Annotated[int | None, typer.Argument(min=1, help="The version to keep.")] = None,
    channel: Annotated[ChannelName, typer.Option("--channel", help="Which one.")] = "stable",
    off: Annotated[bool, typer.Option("--off", help="Release it to the newest version.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a channel at a version, whatever is published; --off releases it to the newest."""
    if (version is None) != off:
        raise ConfigError(
            "Neither a version nor --off is given." if version is None else
            f"Both version {version} and --off are given.",
            f"Give one: assay server pin {name} 12, or assay server pin {name} --off",
        )  # fmt: skip
    info = server.pin(name, version or 0, channel)
    what = f"stays at version {info.version}"
    if off:
        where = f"at version {info.version}" if info.version else "without a version"
        what = f"is released: it is {where} now, and new versions move it again"
    _tell_model(info, as_json, what)


@app.command("promote")
@remote
def promote(
    server: AdminClient,
    name: Name,
    source: Annotated[
        ChannelName, typer.Option("--from", help="The channel that has the version.")
    ] = "canary",
    target: Annotated[
        ChannelName, typer.Option("--to", help="The channel that gets it.")
    ] = "stable",
    as_json: AsJson = False,
) -> None:
    """Give all clients the version that some of them have been trying."""
    info = server.promote(name, source, target)
    _tell_model(info, as_json, f"is at version {info.version} now")


@app.command("rollback")
@remote
def rollback(
    server: AdminClient,
    name: Name,
    channel: Annotated[ChannelName, typer.Option("--channel", help="Which one.")] = "stable",
    reason: Annotated[str, typer.Option("--reason", help="For the server's log.")] = "",
    as_json: AsJson = False,
) -> None:
    """Move a channel back to the version it had before, for all clients, and hold it there."""
    info = server.rollback(name, channel, reason)
    which = "" if channel == "stable" else f" --channel {channel}"
    _tell_model(info, as_json, f"is back at version {info.version} and stays there")
    if not as_json:
        output.note(f"`assay server pin {name}{which} --off` lets it go, to the newest version.")


def _tell_model(info: Any, as_json: bool, what: str) -> None:
    from assay.server.admin_client import model_facts

    _tell(model_facts(info), as_json, f"The channel '{info.channel}' of '{info.policy}' {what}.")


@app.command("export")
@remote
def export(
    server: AdminClient,
    name: Name,
    dataset: Annotated[
        str,
        typer.Argument(help="A Minari id such as queue/served-v0, or queue/served.hdf5 and alike."),
    ],
    after: Annotated[
        int, typer.Option("--after", min=0, help="Leave out everything up to this position.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a policy's experience as a dataset, on the server's machine.

    A name that ends in .npz, .hdf5 or .parquet is a file in the server's $ASSAY_DATA (data).
    """
    reply = server.export(name, dataset, after)
    facts = {"path": reply.path, "episodes": reply.episodes, "steps": reply.steps}
    line = f"{counted(reply.episodes, 'episode')} with {counted(reply.steps, 'step')}: {reply.path}"
    _tell({**facts, "damaged": list(reply.damaged)}, as_json, line)
    if reply.damaged and not as_json:
        shown = ", ".join(reply.damaged[:5]) + (", ..." if len(reply.damaged) > 5 else "")
        output.note(f"{len(reply.damaged)} damaged batches are not in it: {shown}.")


@app.command("drain")
@remote
def drain(
    server: AdminClient,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Longest wait.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Shut the server down in order: commit received experience, save learned models."""
    complete = server.drain(seconds)
    line = "Drained." if complete else "Not all learned models could be saved."
    _tell({"complete": complete}, as_json, line)
    if not complete:
        raise typer.Exit(output.EXIT_INCOMPLETE)


# Tokens


@contextmanager
def _keeper(
    server: AdminClient, data: Path | None, store: str | None, *, new: bool = False
) -> Iterator[Any]:
    """Yield what keeps the tokens: a running server, or the store of a stopped one."""
    if data is None and store is None:
        yield server
        return
    if data is not None and not new and not data.is_dir():
        raise ConfigError(f"There is no directory '{data}'.", "Give the server's data directory.")
    with _stopped(data, store) as found:
        yield _StoredTokens(found)


@contextmanager
def _stopped(data: Path | None, store: str | None) -> Iterator[Store]:
    from assay.server.errors import StoreInUseError
    from assay.server.gateway.config import ServerConfig, default_data
    from assay.server.gateway.run import open_store

    try:
        opened = open_store(ServerConfig(data=data or default_data(), store=store))
    except StoreInUseError:
        raise ConfigError(
            f"A server is running on '{data or default_data()}'.",
            "Leave out --data and --store to ask the running server.",
        ) from None
    with opened:
        yield opened


class _StoredTokens:
    """The tokens of a stopped server, with the methods of `AdminClient`."""

    def __init__(self, store: Store) -> None:
        self._registry = store.registry

    def add_token(
        self, principal: str, grants: dict[str, tuple[str, ...]], *, expires: float | None
    ) -> Any:
        from assay.server.gateway.admin import read_verbs, token_info
        from assay.server.protocol import assay_pb2 as pb
        from assay.server.store.tokens import make_token

        read = {policy: read_verbs(verbs) for policy, verbs in grants.items()}
        text, made = make_token(principal, read, expires=expires)
        self._registry.add_token(made)
        return pb.AddTokenReply(token=text, info=token_info(made))

    def tokens(self) -> list[Any]:
        from assay.server.gateway.admin import token_info

        return [token_info(one) for one in self._registry.tokens()]

    def revoke_token(self, identifier: str) -> bool:
        return self._registry.revoke_token(identifier)


@token.command("add")
@remote
def token_add(
    server: AdminClient,
    principal: Annotated[str, typer.Argument(help="Who uses it: the id of a client.")],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            metavar="POLICY[:VERB,...]",
            help="What it allows; * for every policy. Verbs: register, write, read, act, operate, "
            "admin; the first four by default.",
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", help="It expires after this many days.")
    ] = None,
    data: DataDirectory = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: only its hash is kept."""
    from assay.server.admin_client import token_facts

    if not grant:
        raise ConfigError(
            "Nothing is granted.", "Give --grant POLICY or --grant POLICY:VERB,..., such as queue."
        )
    if days is not None and not 0 < days < 36_500:
        raise ConfigError(f"--days {days:g}: expected more than 0, and less than 100 years.")
    grants = dict(map(read_grant, grant))
    expires = None if days is None else time.time() + days * _DAY
    with _keeper(server, data, store, new=True) as keeper:
        reply = keeper.add_token(principal, grants, expires=expires)
    _tell({"token": reply.token, **token_facts(reply.info)}, as_json, reply.token)
    if not as_json:
        output.note(
            f"It is shown only this once. '{principal}' gives it as token_file; revoke it "
            f"with: assay server token revoke {reply.info.id}"
        )


def read_grant(text: str) -> tuple[str, tuple[str, ...]]:
    """Read `POLICY` or `POLICY:VERB,VERB`.

    Raises:
        ConfigError: There is no such verb, or no policy.

    Example:
        >>> read_grant("queue:read,act")
        ('queue', ('read', 'act'))
    """
    from assay.server.store.registry import Verb

    policy, colon, verbs = text.partition(":")
    names = tuple(one.strip() for one in verbs.split(",") if one.strip()) if colon else CLIENT_VERBS
    if not policy or not names:
        raise ConfigError(f"--grant '{text}': expected POLICY or POLICY:VERB,VERB.")
    for name in names:
        if name not in list(Verb):
            hint = nearest(name, [*Verb])
            raise ConfigError(f"--grant '{text}': there is no verb '{name}'.", hint)
    return policy, names


@token.command("list")
@remote
def token_list(
    server: AdminClient,
    data: DataDirectory = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the tokens, without their secrets."""
    from assay.server.admin_client import token_facts

    with _keeper(server, data, store) as keeper:
        found = [token_facts(one) for one in keeper.tokens()]
    if as_json or not found:
        _tell(found, as_json, "No tokens. Make one: assay server token add NAME --grant POLICY")
        return
    rows = [
        (
            one["id"],
            one["principal"],
            "; ".join(f"{policy}: {', '.join(verbs)}" for policy, verbs in one["grants"].items()),
            one["expires"] or "never",
        )
        for one in found
    ]
    output.show(output.table(("id", "principal", "grants", "expires"), rows))


@token.command("revoke")
@remote
def token_revoke(
    server: AdminClient,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Its public part.")],
    data: DataDirectory = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token; calls that use it end within seconds."""
    with _keeper(server, data, store) as keeper:
        if not keeper.revoke_token(identifier):
            known = [one.id for one in keeper.tokens()]
            hint = nearest(identifier, known) if known else "There are none."
            raise AssayError(f"There is no token '{identifier}'.", hint)
    _tell({"id": identifier, "revoked": True}, as_json, f"Revoked '{identifier}'.")
