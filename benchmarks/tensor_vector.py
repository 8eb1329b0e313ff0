"""What a GPU brings: CartPole in tensors beside the native version in NumPy, many copies each.

    python benchmarks/tensor_vector.py             # on a GPU: two minutes
    python benchmarks/tensor_vector.py --quick     # does it work? The numbers mean nothing

Both step the same physics. `step` is the environment alone, through what a collector calls; `ppo`
is training on the GPU, from one rollout to a later one. The contestants take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import evidence
import gymnasium as gym
import numpy as np
import torch

import assay
from assay.envs.make import make_vector
from assay.envs.tensor_vector import TensorVectorEnv
from assay.loops.events import Event, Logged

HORIZON, ROLLOUTS = 16, 6


class CartPole:
    """CartPole-v1 in torch, all copies at once."""

    single_observation_space = gym.make("CartPole-v1").observation_space
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, count: int, device: str) -> None:
        self.num_envs, self.device = count, device
        self.rng = torch.Generator(device).manual_seed(0)
        self.state = self.steps = torch.zeros(0)

    def _start(self) -> torch.Tensor:
        unit = torch.rand(self.num_envs, 4, generator=self.rng, device=self.device)
        return 0.1 * unit - 0.05

    def reset(self, seed: int | None = None) -> torch.Tensor:
        """Start all episodes."""
        if seed is not None:
            self.rng.manual_seed(seed)
        self.state, self.steps = self._start(), torch.zeros(self.num_envs, device=self.device)
        return self.state

    def step(self, actions: torch.Tensor) -> Any:
        """Move all carts by one Euler step of 0.02 s."""
        x, speed, angle, turn = self.state.unbind(1)
        force = 20.0 * actions - 10.0
        cos, sin = angle.cos(), angle.sin()
        push = (force + 0.05 * turn**2 * sin) / 1.1
        bend = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        drift = push - 0.05 * bend * cos / 1.1
        rates = torch.stack([speed, drift, turn, bend], 1)
        state, self.steps = self.state + 0.02 * rates, self.steps + 1
        fallen = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12 * 2 * torch.pi / 360)
        late = (self.steps >= 500) & ~fallen
        over = fallen | late
        self.state = torch.where(over[:, None], self._start(), state)
        self.steps = torch.where(over, 0.0, self.steps)
        return self.state, torch.ones_like(x), fallen, late, {"final_obs": state}


def stepping(make: Callable[[], Any], count: int, steps: int) -> float:
    """Return environment steps per second with random actions."""
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(steps, count))
    with make_vector(make(), count) as envs:
        envs.reset(0)
        for row in actions[: steps // 4]:
            envs.step(row)
        began = time.perf_counter()
        for row in actions[steps // 4 :]:
            envs.step(row)
        return (steps - steps // 4) * count / (time.perf_counter() - began)


def training(make: Callable[[], Any], count: int, device: str) -> float:
    """Return environment steps per second of PPO, without the first two rollouts."""
    marks: list[tuple[int, float]] = []

    def mark(event: Event) -> None:
        if isinstance(event, Logged):
            marks.append((event.clock.env_steps, time.perf_counter()))

    rollout = count * HORIZON
    with tempfile.TemporaryDirectory() as root:
        assay.train(
            "ppo", make(), num_envs=count, root=root, preset=False, horizon=HORIZON, epochs=2,
            sinks=(), minibatch_size=rollout // 4, env_steps=ROLLOUTS * rollout, log_every=rollout,
            eval_every=0, checkpoint_every=0, device=device, callbacks=[mark],
        )  # fmt: skip
    (first, began), (last, ended) = marks[1], marks[-1]
    return (last - first) / (ended - began)


def result(counts: list[int], device: str, turns: int, steps: int) -> dict[str, Any]:
    """Measure, and return the medians in steps per second."""
    rows = []
    for count in counts:
        makers: dict[str, Callable[[], Any]] = {
            "numpy": lambda: "CartPole-v1",
            "tensor": lambda n=count: TensorVectorEnv(CartPole(n, device)),
        }
        found: dict[str, list[float]] = {}
        for _ in range(turns):
            for name, make in makers.items():
                found.setdefault(f"{name}_step", []).append(stepping(make, count, steps))
                found.setdefault(f"{name}_ppo", []).append(training(make, count, device))
        medians = {name: round(statistics.median(values)) for name, values in found.items()}
        rows.append({"copies": count, **medians})
    return {"device": device, "turns": turns, "rows": rows, "machine": evidence.machine()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, on whatever there is")
    quick = parser.parse_args().quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if quick:
        print(json.dumps(result([16], device, turns=1, steps=16), indent=1))
    else:
        print(json.dumps(result([64, 1024, 4096, 16384], device, turns=3, steps=200), indent=1))


if __name__ == "__main__":
    main()
