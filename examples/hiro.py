"""HIRO on a plane: one level says where to be in four steps, the other one goes there."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import assay


class Plane(gym.Env[Any, Any]):
    """A plane with a place to go to; the reward is the negative distance."""

    observation_space = spaces.Box(-3.0, 3.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin near the middle."""
        super().reset(seed=seed)
        self.place, self.t = self.np_random.uniform(-0.5, 0.5, 2), 0
        return self.place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move by up to 0.2 along both axes."""
        self.place = np.clip(self.place + 0.2 * np.asarray(action, np.float64), -3.0, 3.0)
        self.t += 1
        away = float(np.linalg.norm(self.place - [1.5, -1.0]))
        return self.place.astype(np.float32), -away, False, self.t >= 24, {}


if __name__ == "__main__":
    run = assay.train(
        "hiro", Plane, env_steps=2000, num_envs=4, interval=4, goal_scale=0.8, hidden=[32, 32],
        batch_size=64, lr=2e-3, tau=0.02, gamma=0.9, low_gamma=0.8, learning_starts=200,
        train_every=2, high_every=2, candidates=4, high_reward_scale=0.2, seed=1, eval_every=0,
        checkpoint_every=0,
    )  # fmt: skip
    result = run.evaluate(episodes=20)
    agent, place = run.agent(), np.zeros(2, np.float32)
    choice = agent.algorithm.act(place[None], agent.algorithm.initial_carry(1), explore=False)
    x, y = choice.extras["goal"][0]
    print(f"from the middle the first subgoal is ({x:.1f}, {y:.1f}) away")
    print(f"subgoals are missed by {result.figures['subgoal_distance']:.2f} on average")
    print(f"mean return {result.mean:.0f}; standing still gives about -43")

# Prints: (?s)subgoals are missed by 0\.[0-2].*mean return -(\d|1\d);
