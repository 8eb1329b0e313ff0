"""A task that no library ships: keep a shop stocked. It is `benchmarks/defaults.py`'s own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LEAD = 3  # days until an order arrives
MOST = 10  # units in an order
PRICE, HOLDING, ORDERING = 4.0, 0.2, 2.0


class Inventory(gym.Env[np.ndarray, int]):
    """Order 0 to 10 units a day; demand has a season, and what is not in stock is not sold.

    The observation is the stock, the orders under way, the latest demand, and the season.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (LEAD + 4,), np.float32)
        self.action_space = gym.spaces.Discrete(MOST + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with a full shop, on any day of the season."""
        super().reset(seed=seed)
        self.stock, self.under_way, self.demand = 10, [0] * LEAD, 0
        self.day = int(self.np_random.integers(28))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Order, receive, sell."""
        self.under_way.append(int(action))
        self.stock += self.under_way.pop(0)
        self.day += 1
        mean = 4.0 + 3.0 * np.sin(2 * np.pi * self.day / 28)
        self.demand = int(self.np_random.poisson(mean))
        sold = min(self.stock, self.demand)
        self.stock -= sold
        profit = PRICE * sold - HOLDING * self.stock - ORDERING * (action > 0) - 2.0 * action
        return self._observation(), float(profit), False, False, {}

    def _observation(self) -> np.ndarray:
        phase = 2 * np.pi * self.day / 28
        now = [self.stock, *self.under_way, self.demand, np.sin(phase), np.cos(phase)]
        return np.array(now, np.float32)


gym.register("benchmarks/Inventory-v0", entry_point=Inventory, max_episode_steps=200)
