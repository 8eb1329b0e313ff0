"""`assay.connect`: an agent in the controlled system, with a training server behind it.

    with assay.connect(
        "127.0.0.1:50051", "queue", observation=seen, action=done, algorithm="ppo", safe_action=0
    ) as agent:
        action = agent.act(obs)
        agent.reward(1.0)

It returns at once, whether the server is there or not, and acts from then on.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.core.errors import ConfigError, MissingExtraError
from assay.server.client.agent import ClientAgent, ClientStatus, Decided, Heuristic
from assay.server.client.config import NEAREST, ClientConfig, read_config
from assay.server.client.spaces import make_spec, nearest_to_zero, read_space
from assay.server.client.transport import Courier, State
from assay.server.spec import PolicySpec, gym_space

_EXIT_SECONDS = 2.0  # at the end of the process, for what still waits


class ServerWarning(UserWarning):
    """Something about the training server that a person should know; the client goes on."""


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """What a connection did so far.

    Attributes:
        acting: What the acting half did.
        state: Where the sending half stands; see `Courier`.
        trouble: What keeps it from working now; "" while it is connected.
        failures: How often a connection broke or could not be opened.
        last_failure: Why, of the last one.
        acknowledged_steps: Steps that the server has for good.
        refused_steps: Steps that the server will never take.
        refusals: How many batches those were, by reason.
        last_refusal: Why, of the last one.
        sent_batches: Batches that were sent, those sent again included.
        sent_bytes: Their size.
        duplicates: Batches that the server had already.
        newest_version: Of the models that the server has.
        epoch: Of the latest session.
    """

    acting: ClientStatus
    state: State
    trouble: str
    failures: int
    last_failure: str
    acknowledged_steps: int
    refused_steps: int
    refusals: dict[str, int]
    last_refusal: str
    sent_batches: int
    sent_bytes: int
    duplicates: int
    newest_version: int
    epoch: int


class Connection(AbstractContextManager["Connection"]):
    """Acts for one controlled system and learns through a server. Made by `connect`.

    Its methods may be called from several threads. What is recorded is one sequence of decisions,
    though: for two systems, make two connections. In a process that was forked from the one that
    made it, it acts on with what it has, and neither learns nor records anything; it says so once.

    Attributes:
        agent: The acting half.
        spec: What was registered.
        client: The id of this client.
    """

    def __init__(
        self,
        config: ClientConfig,
        spec: PolicySpec,
        agent: ClientAgent,
        *,
        report: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        from assay.server.client.grpc_transport import GrpcTransport

        if config.compress and importlib.util.find_spec("zstandard") is None:
            raise MissingExtraError("zstandard", "server", "compress=true")
        assert config.client is not None
        self.client = config.client
        self.agent, self.spec = agent, spec
        self._close_seconds = config.close_seconds
        self._transport = GrpcTransport(config, spec, clock)
        self._courier = Courier(
            agent.outbox,
            agent.keeper,
            self._transport,
            retry_seconds=config.retry_seconds,
            report=report,
            clock=clock,
        )
        self._report = report
        self._home = os.getpid()
        self._forked = self._told = self._closed = False
        _open.add(self)
        # One that nobody holds any more ends by itself; at the end of the process `_at_exit` does.
        weakref.finalize(self, self._courier.abandon).atexit = False
        self._courier.start()

    # ------------------------------------------------------------------ acting

    def act(self, obs: Any, mask: Any = None) -> Any:
        """Return an action for one observation, always.

        Args:
            obs: As the observation space says.
            mask: Which choices are valid, where the settings say `masks`.
        """
        if self._forked:
            self._tell_fork()
        return self.agent.act(obs, mask)

    def decide(self, obs: Any, mask: Any = None) -> Decided:
        """Return an action and where it came from."""
        if self._forked:
            self._tell_fork()
        return self.agent.decide(obs, mask)

    def reward(self, reward: float, event: int | None = None) -> bool:
        """Add a reward to the latest decision, or to the one with a number.

        Returns:
            Whether it belongs to a step that is recorded.
        """
        return not self._forked and self.agent.reward(reward, event)

    def end(
        self,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final_obs: Any = None,
        final_mask: Any = None,
    ) -> bool:
        """End the episode; see `ClientAgent.end`."""
        kept = self.agent.end(
            terminated=terminated, truncated=truncated, final_obs=final_obs, final_mask=final_mask
        )
        return kept and not self._forked

    @property
    def recommendation(self) -> Any:
        """Return what the model would have done at the last decision of shadow mode."""
        return self.agent.recommendation

    # ------------------------------------------------------------------ the rest

    def flush(self, seconds: float = 0.0) -> bool:
        """Hand over what is complete, wait so long for it, and say whether the server has all."""
        if self._forked:
            return False
        self.agent.flush()
        return self._courier.wait_until_empty(seconds)

    def wait_for_model(self, seconds: float) -> bool:
        """Wait for the first model, so long at most; return whether there is one."""
        deadline = time.monotonic() + (0.0 if self._forked else seconds)
        while self.agent.keeper.current is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.agent.keeper.current is not None

    def status(self) -> ConnectionStatus:
        """Return what happened so far."""
        courier, transport, box = self._courier, self._transport, self.agent.outbox
        return ConnectionStatus(
            acting=self.agent.status(),
            state="stopped" if self._forked else courier.state,
            trouble=self._inherited() if self._forked else courier.trouble,
            failures=courier.failures,
            last_failure=courier.last_failure,
            acknowledged_steps=box.acknowledged_steps,
            refused_steps=box.refused_steps,
            refusals=dict(courier.refusals),
            last_refusal=courier.last_refusal,
            sent_batches=transport.sent_batches,
            sent_bytes=transport.sent_bytes,
            duplicates=transport.duplicates,
            newest_version=transport.newest_version,
            epoch=transport.epoch,
        )

    def close(self, seconds: float | None = None) -> bool:
        """Send what is complete, so long at most, and end the connection.

        `act` goes on answering with the models that are there; nothing is recorded any more.

        Returns:
            Whether the server has everything.
        """
        if self._forked:  # the threads are not here, and the connection is the parent's
            return False
        if not self._closed:
            self._closed = True
            self.agent.flush()
            self._courier.stop(self._close_seconds if seconds is None else seconds)
            self.agent.outbox.closed = True
        return self.agent.outbox.empty

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell_fork(self) -> None:
        if not self._told:
            self._told = True
            with contextlib.suppress(Exception):  # such as a warning that is an error
                self._report(self._inherited())

    def _inherited(self) -> str:
        return (
            f"The connection of '{self.client}' was opened in process {self._home}, and this is "
            f"process {os.getpid()}, forked from it: it acts on with the model that it has, and "
            "records nothing. Call assay.connect in each process, after the fork."
        )


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in _open:
        connection._forked = True
        connection.agent.after_fork()


def _at_exit() -> None:
    for connection in list(_open):
        connection.close(min(_EXIT_SECONDS, connection._close_seconds))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def connect(
    target: str | None = None,
    policy: str | None = None,
    *,
    spec: PolicySpec | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    heuristic: Heuristic | None = None,
    on_trouble: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Connection:
    """Begin to act for a system, and to learn from what happens, through a training server.

    Args:
        target: Address of the server, `host:port`.
        policy: Name of the policy.
        spec: The whole policy, instead of `observation`, `action`, `algorithm` and `settings`.
        config: Path of a YAML or JSON file with any of the settings, or its content. Keywords win.
        heuristic: `(observation, mask or None) -> action`, what the system did before.
        on_trouble: Told about once a minute what a person should know; by default a
            `ServerWarning`.
        clock: Seconds that only grow.
        **options: Any other setting of `ClientConfig`, such as `safe_action`, `batch_steps`,
            `models`, `token_file` or `tls`.

    Returns:
        A connection that acts at once. The server is looked for in the background.

    Raises:
        ConfigError: A setting is unknown, out of range, or missing.
        SpaceError: A space is not supported.
        MissingExtraError: The extra `server` is not installed.
    """
    given = {"address": target, "policy": policy, **options}
    settings = read_config(config, given)
    observation, action, spec = _spaces(settings, spec)
    limits = spec.action_limits() if spec.bounds is not None else None
    unsaid = settings.safe_action is None
    if unsaid or (isinstance(settings.safe_action, str) and settings.safe_action == NEAREST):
        safe = nearest_to_zero(action, limits)
        if unsaid:
            warnings.warn(
                f"No safe_action was given: where nothing else can answer, '{spec.name}' does "
                f"{safe}. To accept that, set safe_action='{NEAREST}'.",
                ServerWarning,
                stacklevel=2,
            )
        settings = settings.model_copy(update={"safe_action": safe})
    client = settings.client_id()
    settings = settings.model_copy(update={"client": client})
    if "seed" not in settings.model_fields_set:
        # Clients of one policy would else explore all alike.
        digest = hashlib.sha256(client.encode()).digest()
        settings = settings.model_copy(update={"seed": int.from_bytes(digest[:4], "little")})
    agent = ClientAgent(
        observation,
        action,
        settings.safe_action,
        settings,
        heuristic=heuristic,
        # Another policy's model may fit the spaces just as well.
        directory=None if settings.models is None else settings.models / spec.name,
        limits=limits,
        clock=clock,
    )
    return Connection(settings, spec, agent, report=on_trouble or _warn, clock=clock)


def _spaces(config: ClientConfig, spec: PolicySpec | None) -> tuple[Any, Any, PolicySpec]:
    """Return the system's spaces, and what to register."""
    if spec is not None:
        doubled = {"observation", "action", "algorithm", "settings", "bounds", "group"}
        if extra := sorted(doubled & config.model_fields_set):
            raise ConfigError(
                f"{extra[0]} is given, and the spec has its own.", "Leave one of them out."
            )
        if config.policy not in (None, spec.name):
            raise ConfigError(
                f"policy='{config.policy}', but the spec is that of '{spec.name}'.",
                "Leave policy out.",
            )
        observation, action = gym_space(spec.observation), gym_space(spec.action)
    else:
        for name in ("policy", "observation", "action", "algorithm"):
            if getattr(config, name) is None:
                raise ConfigError(f"{name} is missing.", "Give it as a keyword, or in the file.")
        observation = read_space(config.observation, "observation")
        action = read_space(config.action, "action")
    source = config if spec is None else spec
    policy = config.policy if spec is None else spec.name
    assert policy is not None and source.algorithm is not None
    made = make_spec(
        policy,
        observation,
        action,
        source.algorithm,
        source.settings,
        masks=config.masks,
        group=source.group,
        bounds=source.bounds,
    )
    return observation, action, made


def _warn(message: str) -> None:
    warnings.warn(message, ServerWarning, stacklevel=2)
