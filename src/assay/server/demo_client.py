"""One client of `assay serve demo`, in a process of its own: `python -m assay.server.demo_client`.

It plays an environment as a live system would be run: a decision at a steady rate, whatever the
server does. Once or twice a second it says on stdout how it is, one JSON object a line. It ends in
order when its stdin is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import assay
from assay.envs.make import make_env
from assay.server.client.config import NEAREST
from assay.server.client.connect import Connection

_REPORT_SECONDS = 0.5
_LATENCIES = 2000  # the last calls of act() that the quantiles are of


class DemoClient:
    """Plays an environment until it is told to stop, with so many decisions in a second at most."""

    def __init__(
        self, env: str, agent: Connection, rate: float, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._env, self._agent, self._tell = make_env(env), agent, tell
        self._pause = 1.0 / rate
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._returns: list[float] = []
        self._decisions = 0
        self._reported = 0.0

    def play(self, stop: threading.Event, seed: int) -> None:
        """Play one episode after the other."""
        env, agent = self._env, self._agent
        obs, _ = env.reset(seed=seed)
        total, due = 0.0, time.monotonic()
        while not stop.is_set():
            began = time.perf_counter()
            action = agent.act(obs)
            self._latencies.append(time.perf_counter() - began)
            obs, reward, terminated, truncated, _ = env.step(action)
            agent.reward(float(reward))
            self._decisions += 1
            total += float(reward)
            if terminated or truncated:
                agent.end(terminated=terminated, truncated=truncated, final_obs=obs)
                self._returns.append(total)
                obs, _ = env.reset()
                total = 0.0
            # A system that fell behind does not hurry afterwards.
            due = max(due + self._pause, time.monotonic() - 0.1)
            if due > (now := time.monotonic()):
                time.sleep(due - now)
            if now - self._reported >= _REPORT_SECONDS:
                self._reported = now
                self.report()
        agent.end(truncated=True, final_obs=obs)

    def report(self, *, final: bool = False) -> None:
        """Say how things are; the returns are those since the last report."""
        status = self._agent.status()
        acting = status.acting
        returns, self._returns = self._returns, []
        self._tell(
            {
                "client": self._agent.client,
                "decisions": self._decisions,
                "by_model": acting.sources.get("model", 0),
                "acknowledged": status.acknowledged_steps,
                "lost": acting.dropped_steps + status.refused_steps,
                "version": acting.version or 0,
                "state": status.state,
                "trouble": status.trouble,
                "returns": returns,
                "act_p50": float(np.quantile(self._latencies, 0.5)) if self._latencies else None,
                "act_p99": float(np.quantile(self._latencies, 0.99)) if self._latencies else None,
                "final": final,
            }
        )


def main(text: str) -> None:
    """Play as the JSON object says: address, policy, client, env, settings, rate, seed."""
    given = json.loads(text)
    stop = threading.Event()

    def tell(report: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    space = make_env(given["env"])
    with assay.connect(
        given["address"],
        given["policy"],
        observation=space.observation_space,
        action=space.action_space,
        algorithm=given["algorithm"],
        settings=given["settings"],
        client=given["client"],
        safe_action=NEAREST,
        batch_seconds=0.25,
        close_seconds=10.0,
        on_trouble=lambda message: None,  # the reports have it
    ) as agent:
        while not agent.wait_for_model(0.2) and not stop.is_set():
            tell({"client": given["client"], "waiting": True})
        client = DemoClient(given["env"], agent, given["rate"], tell)
        client.play(stop, given["seed"])
        agent.close()
        client.report(final=True)


if __name__ == "__main__":
    main(sys.argv[1])
