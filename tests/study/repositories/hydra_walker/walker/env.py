"""A planar walker."""

import numpy as np


class WalkerEnv:
    """Walk forward without falling."""

    def __init__(self, cfg) -> None:
        self.cfg = cfg
        self.state = np.zeros(8)
        self.mass = 1.0

    def reset(self):
        self.state[:] = 0.0
        self._randomize_mass()
        return self.state

    def _randomize_mass(self) -> None:
        low, high = self.cfg.randomization.mass
        self.mass = np.random.uniform(low, high)

    def compute_reward(self, action) -> float:
        weights = self.cfg.reward
        return weights.forward * self.state[0] - weights.energy * float(np.square(action).sum())

    def is_done(self) -> bool:
        return bool(self.state[1] < 0.4)

    def step(self, action):
        self.state[0] += action[0] / self.mass
        info = {"energy": float(np.square(action).sum()), "return": 0.0}
        return self.state, self.compute_reward(action), self.is_done(), info
