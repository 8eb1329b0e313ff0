"""An arm that reaches for a goal."""

import gymnasium as gym
import numpy as np


class Reach(gym.Env):
    """Bring the hand to the goal."""

    def __init__(self) -> None:
        self.hand = np.zeros(3)
        self.goal = np.ones(3)

    def reset(self, *, seed=None, options=None):
        self.hand[:] = 0.0
        return self.hand.copy(), {}

    def step(self, action):
        self.hand += 0.1 * action
        distance = float(np.linalg.norm(self.goal - self.hand))
        reward = -distance - 0.01 * float(np.square(action).sum())
        terminated = distance < 0.05
        info = {"is_success": terminated, "distance": distance}
        info["collision"] = bool(self.hand[2] < 0.0)
        return self.hand.copy(), reward, terminated, False, info


class Rescaled(gym.Wrapper):
    """Hand on what the environment gives, in other units."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return np.float32(obs), reward, terminated, truncated, info
