"""What the learner's tests share: small tasks, clients that play them, and a server in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from assay.core.types import pack
from assay.policies.model_file import parse_snapshot
from assay.server.client.policy import Policy
from assay.server.client.spaces import make_spec
from assay.server.learner.learner import Learner
from assay.server.learner.messages import Consume, Outcome, Publication, Ready, Start
from assay.server.spec import PolicySpec
from assay.server.tensors import Experience, Layout, encode

Array = np.ndarray[Any, Any]
Heuristic = Callable[[Array], Any]


class Corridor(gym.Env[Array, int]):
    """Walk right along seven cells; only the last step pays. Cut off after thirty steps."""

    observation_space = gym.spaces.Box(0, 1, (7,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = 0, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        self.steps += 1
        over = self.cell == 6
        return self._seen(), (1.0 if over else -0.02), over, self.steps >= 30 and not over, {}

    def _seen(self) -> Array:
        return np.eye(7, dtype=np.float32)[self.cell]


class Point(gym.Env[Array, Array]):
    """Push a point to the origin; it is never over, and cut off after twenty steps."""

    observation_space = gym.spaces.Box(-3, 3, (2,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.steps = float(self.np_random.choice([-1.5, 1.5])), 0
        return self._seen(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.x = float(np.clip(self.x + 0.2 * float(action[0]), -3, 3))
        self.steps += 1
        return self._seen(), -self.x * self.x, False, self.steps >= 20, {}

    def _seen(self) -> Array:
        return np.array([self.x, 1.0], np.float32)


class Cue(gym.Env[Array, int]):
    """The first observation says what to do at the last step, three steps later."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 4

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.cue = 0, int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == self.steps
        reward = (1.0 if action == self.cue else -1.0) if over else 0.0
        return self._seen(), reward, over, False, {}

    def _seen(self) -> Array:
        cue = 2.0 * self.cue - 1.0 if self.t == 0 else 0.0
        return np.array([cue, self.t / self.steps], np.float32)


def spec_for(env: gym.Env[Any, Any], algorithm: str, **settings: Any) -> PolicySpec:
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}
    return make_spec("p", env.observation_space, env.action_space, algorithm, plain)


class Server:
    """A learner with a log and a registry, as far as tests need them."""

    def __init__(self, spec: PolicySpec, settings: str = "{}") -> None:
        self.spec, self.settings = spec, settings
        self.layout = Layout(spec)
        self.log: list[tuple[int, str, bytes]] = []
        self.publications: list[Publication] = []
        self.outcome: Outcome | None = None
        self.learner = Learner()
        self.ready: Ready = self.learner.start(Start(spec.canonical().decode(), settings, epoch=1))
        self.publications += self.ready.publications

    @property
    def policy(self) -> Policy:
        return Policy(parse_snapshot(self.publications[-1].snapshot))

    @property
    def version(self) -> int:
        return self.publications[-1].version

    def append(self, client: str, payload: bytes) -> tuple[int, str, bytes]:
        self.log.append((len(self.log) + 1, client, payload))
        return self.log[-1]

    def send(self, client: str, payload: bytes) -> Outcome:
        return self.consume(self.append(client, payload))

    def consume(self, *batches: tuple[int, str, bytes]) -> Outcome:
        outcome = self.learner.consume(Consume(batches))
        self.publications += outcome.publications
        self.outcome = outcome
        return outcome

    def restart(self, publication: Publication, epoch: int = 2) -> Server:
        """Return a server whose learner was killed after a publication was committed."""
        other = object.__new__(Server)
        other.spec, other.settings, other.layout = self.spec, self.settings, self.layout
        other.log, other.outcome = [], None
        other.publications = [publication]
        other.learner = Learner()
        other.ready = other.learner.start(
            Start(
                self.spec.canonical().decode(), self.settings, epoch, version=publication.version,
                position=publication.position, checkpoint=publication.checkpoint,
            )
        )  # fmt: skip
        old = [b for b in self.log if other.ready.replay_from < b[0] <= publication.position]
        for batch in old:
            other.learner.consume(Consume((batch,), replaying=True))
        return other


@dataclass
class Client:
    """Plays an environment with a model and packs what happened into batches.

    Attributes:
        heuristic: Acts in place of the model, if given: such steps carry the flag HEURISTIC.
    """

    server: Server
    env: gym.Env[Any, Any]
    name: str = "one"
    seed: int = 0
    heuristic: Heuristic | None = None
    totals: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.seq = self.event = self.episode = self.step = 0
        self.total = 0.0
        self.acting: Policy | None = None
        self.obs, _ = self.env.reset(seed=self.seed)

    def play(self, steps: int, policy: Policy | None = None) -> bytes:
        """Return a batch of so many steps, acted by the newest model."""
        return self.pack(self.collect(steps, policy))

    def collect(self, steps: int, policy: Policy | None = None) -> dict[str, Any]:
        policy = self._choose(policy or self.server.policy)
        rows: list[dict[str, Any]] = []
        finals: list[Any] = []
        self.place = (self.episode, self.step)
        discrete = isinstance(self.env.action_space, gym.spaces.Discrete)
        for _ in range(steps):
            self.event += 1
            if self.heuristic is None:
                action, log_prob = policy.act(self.obs[None], None, self.rng)
                raw, version, flags = policy.raw, policy.version, 0
            else:
                action = raw = self.heuristic(self.obs)
                log_prob, version, flags = 0.0, 0, 16
            following, reward, terminated, truncated, _ = self.env.step(action)
            row = {
                "obs": self.obs, "action": action, "reward": reward, "log_prob": log_prob,
                "version": version, "flags": flags, "terminated": terminated,
                "truncated": truncated, "event": self.event,
            }  # fmt: skip
            if not discrete:
                row["raw_action"] = raw
            rows.append(row)
            self.total += reward
            self.step += 1
            self.obs = following
            if terminated or truncated:
                if not terminated:
                    finals.append(following)
                self.totals.append(self.total)
                self.total, self.step = 0.0, 0
                self.episode += 1
                self.obs, _ = self.env.reset()
                policy.reset()
        if not (terminated or truncated):
            finals.append(self.obs)
        return fields_of(self.server.layout, rows, finals)

    def _choose(self, newest: Policy) -> Policy:
        """Return who acts: one with a memory goes on until its episode is over."""
        if self.step and self.acting is not None and self.acting.architecture.recurrent:
            return self.acting
        self.acting = newest
        return newest

    def pack(
        self, fields: dict[str, Any], patches: Mapping[int, float] | None = None, epoch: int = 1
    ) -> bytes:
        self.seq += 1
        episode, start = self.place
        sent = Experience(epoch, self.seq, fields, episode, start, patches=dict(patches or {}))
        return encode(sent, self.server.layout).SerializeToString()

    def patch(self, event: int, reward: float) -> bytes:
        self.place = (0, 0)
        return self.pack({}, {event: reward})


def fields_of(layout: Layout, rows: list[dict[str, Any]], finals: list[Any]) -> dict[str, Any]:
    """Return rows as the arrays of a batch."""
    fields = {}
    for one in layout.steps:
        if one.name in rows[0]:
            fields[one.name] = np.array([row[one.name] for row in rows], one.dtype)
    last = np.array(finals, np.float32).reshape(len(finals), *np.shape(rows[0]["obs"]))
    return fields | pack("bootstrap", last)


def train(server: Server, clients: list[Client], batches: int, steps: int) -> None:
    """Let clients play and the learner learn, in turns."""
    for number in range(batches):
        client = clients[number % len(clients)]
        server.send(client.name, client.play(steps))


def score(policy: Policy, env: gym.Env[Any, Any], episodes: int = 4) -> float:
    """Return the mean of episodes played without exploration."""
    totals = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        policy.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs[None])[0])
            total, over = total + float(reward), terminated or truncated
        totals.append(total)
    return float(np.mean(totals))


def learn(
    env: type[gym.Env[Any, Any]], algorithm: str, batches: int, steps: int, settings: dict[str, Any]
) -> tuple[float, float, Server]:
    """Return the scores of the first and the last version, learned from three clients."""
    server = Server(spec_for(env(), algorithm, **settings), '{"publish_steps": 100}')
    clients = [Client(server, env(), f"client-{i}", i) for i in range(3)]
    train(server, clients, batches, steps)
    first = Policy(parse_snapshot(server.publications[0].snapshot))
    return score(first, env()), score(server.policy, env()), server
