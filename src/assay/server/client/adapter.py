"""A Gymnasium environment as the controlled system: `assay.connect_env`.

with assay.connect_env("CartPole-v1", "127.0.0.1:50051", algorithm="ppo") as runner:
    runner.run(episodes=10)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from assay.core import seeding
from assay.core.errors import ConfigError
from assay.core.types import ACTION_MASK
from assay.envs.make import make_env
from assay.envs.spaces import has_mask
from assay.server.client.config import NEAREST, read_config
from assay.server.client.connect import Connection, connect

Environment = str | gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode that was played.

    Attributes:
        total: Sum of its rewards.
        length: Steps.
        terminated: Whether it ended by itself.
    """

    total: float
    length: int
    terminated: bool


class EnvClient(AbstractContextManager["EnvClient"]):
    """Plays one environment with a connection.

    Args:
        env: The environment.
        connection: Acts in it.
        seed: Of the environment's first reset; None for any.

    Example of the three lines that it stands for:

        action = connection.act(obs, info.get("action_mask"))
        obs, reward, terminated, truncated, info = env.step(action)
        connection.reward(reward)
    """

    def __init__(
        self, env: gym.Env[Any, Any], connection: Connection, seed: int | None = None
    ) -> None:
        self.env, self.connection = env, connection
        self._seed = seed
        self._masks = connection.agent.settings.masks

    def run(
        self, episodes: int | None = None, steps: int | None = None, stop: Any = None
    ) -> list[Episode]:
        """Play so many episodes, or so many steps and to the end of the last episode.

        Args:
            episodes: How many to play.
            steps: Steps after which no new episode begins.
            stop: A `threading.Event` that ends it in the middle of an episode.

        Raises:
            ConfigError: Neither a number of episodes nor of steps is given.
        """
        if episodes is None and steps is None:
            raise ConfigError("run() has no end.", "Give episodes=..., steps=..., or both.")
        played: list[Episode] = []
        taken = 0
        while (episodes is None or len(played) < episodes) and (steps is None or taken < steps):
            episode = self._play(stop)
            if episode is None:
                break
            played.append(episode)
            taken += episode.length
        return played

    def _play(self, stop: Any) -> Episode | None:
        obs, info = self.env.reset(seed=self._seed)
        self._seed = None  # the environment goes on from its own random numbers
        total, length, terminated, truncated = 0.0, 0, False, False
        while not (terminated or truncated):
            if stop is not None and stop.is_set():
                self.connection.end(truncated=True, final_obs=obs, final_mask=self._mask(info))
                return None
            action = self.connection.act(obs, self._mask(info))
            obs, reward, terminated, truncated, info = self.env.step(action)
            self.connection.reward(float(reward))
            total += float(reward)
            length += 1
        # What came last belongs to the episode that ends; the next one begins with a reset.
        self.connection.end(
            terminated=bool(terminated),
            truncated=bool(truncated),
            final_obs=obs,
            final_mask=self._mask(info),
        )
        return Episode(total, length, bool(terminated))

    def _mask(self, info: dict[str, Any]) -> Any:
        return info.get(ACTION_MASK) if self._masks else None

    def close(self) -> bool:
        """Close the environment and the connection; return whether the server has everything."""
        self.env.close()
        return self.connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class EnvClients(AbstractContextManager["EnvClients"]):
    """Several environments, each with a connection and a thread of its own.

    They are clients of one policy, which learns from all of them.

    Attributes:
        clients: One for each environment.
    """

    def __init__(self, clients: Sequence[EnvClient]) -> None:
        self.clients = tuple(clients)

    def run(self, episodes: int | None = None, steps: int | None = None) -> list[Episode]:
        """Play so many episodes or steps in each environment, all at the same time."""
        played: list[list[Episode]] = [[] for _ in self.clients]
        errors: list[BaseException] = []
        stop = threading.Event()

        def play(number: int) -> None:
            try:
                played[number] = self.clients[number].run(episodes, steps, stop)
            except BaseException as error:
                errors.append(error)
                stop.set()

        threads = [threading.Thread(target=play, args=(i,)) for i in range(len(self.clients))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # such as Ctrl-C
            stop.set()
            raise
        if errors:
            raise errors[0]
        return [episode for one in played for episode in one]

    def close(self) -> bool:
        """Close everything; return whether the server has all that happened."""
        return all([client.close() for client in self.clients])

    def __exit__(self, *_: object) -> None:
        self.close()


def connect_env(
    env: Environment,
    target: str | None = None,
    policy: str | None = None,
    *,
    copies: int = 1,
    wait_seconds: float = 0.0,
    env_seed: int | None = None,
    **options: Any,
) -> Any:
    """Play an environment with a policy that a server trains.

    Args:
        env: A Gymnasium id, an environment, or a function that makes one.
        target: Address of the server, `host:port`.
        policy: Name of the policy; the environment's by default.
        copies: How many environments to play at the same time, each in a thread.
        wait_seconds: How long to wait for the first model; the safe action plays without one.
        env_seed: Of the environment's resets.
        **options: As `connect` takes them. `safe_action` is, by default, the action nearest to 0.

    Returns:
        An `EnvClient`, or with several copies an `EnvClients`; both have `run` and `close`.

    Raises:
        ConfigError: A setting is unknown, out of range, or missing.
        EnvError: The environment cannot be made.
    """
    if copies < 1 or (copies > 1 and isinstance(env, gym.Env)):
        raise ConfigError(
            f"copies={copies}: expected 1 or more, and 1 with an environment that is made already.",
            "Give the environment's id, or a function that makes one.",
        )
    made: list[EnvClient] = []
    try:
        for number in range(copies):
            made.append(_one(env, target, policy, number, copies, env_seed, options))
        for client in made:
            if wait_seconds:
                client.connection.wait_for_model(wait_seconds)
    except BaseException:
        for client in made:
            client.close()
        raise
    return made[0] if copies == 1 else EnvClients(made)


def _one(
    env: Environment,
    target: str | None,
    policy: str | None,
    number: int,
    copies: int,
    seed: int | None,
    options: dict[str, Any],
) -> EnvClient:
    if isinstance(env, str):
        one = make_env(env)
    else:
        one = env if isinstance(env, gym.Env) else env()
    options = dict(options)
    # What the file says counts before what the environment says.
    config = read_config(options.get("config"), _plain(options))
    if policy is None and config.policy is None:
        name = one.spec.id if one.spec is not None else type(one.unwrapped).__name__
        policy = name.replace("/", "-")
    first_seed = None if seed is None else seeding.derive_seed(seed, "client", number)
    if "masks" not in config.model_fields_set:
        _, info = one.reset(seed=first_seed)
        inside = has_mask(one.observation_space)
        options["masks"] = ACTION_MASK in info and not inside
    if config.safe_action is None:
        options["safe_action"] = NEAREST
    if copies > 1 and config.client is not None:
        options["client"] = f"{config.client}-{number}"
    options |= {"observation": one.observation_space, "action": one.action_space}
    connection = connect(target, policy, **options)
    return EnvClient(one, connection, first_seed)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    beside = ("config", "heuristic", "on_trouble", "clock", "spec")
    return {key: value for key, value in options.items() if key not in beside}
