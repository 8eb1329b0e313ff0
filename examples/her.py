"""Hindsight experience replay: learn from goals that were reached by mistake.

Ten bits are to spell a goal; nothing but -1 is seen until they do, which chance alone hardly finds.
"""

import gymnasium as gym
import numpy as np

import assay


class BitFlip(gym.Env):
    """Flip one of ten bits at a time; a goal environment needs the two `compute_` methods."""

    bits = gym.spaces.MultiBinary(10)
    observation_space = gym.spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)
    action_space = gym.spaces.Discrete(10)

    def reset(self, *, seed=None, options=None):
        """Draw the bits and the goal."""
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, 10), np.int8)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        """Flip a bit."""
        self.state[action] ^= 1
        self.time += 1
        reward = self.compute_reward(self.state, self.goal, {})
        reached = self.compute_terminated(self.state, self.goal, {})
        return self._observe(), reward, reached, self.time >= 10, {"is_success": reached}

    def compute_reward(self, achieved_goal, desired_goal, info):
        """Return 0 for a goal that is reached, else -1; for one, or for a batch of them."""
        return -(achieved_goal != desired_goal).any(-1).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        """End the episode at the goal."""
        return (achieved_goal == desired_goal).all(-1)

    def _observe(self):
        shown = self.state.copy()
        return {"observation": shown, "achieved_goal": shown, "desired_goal": self.goal}


if __name__ == "__main__":
    for her in ("future", None):
        run = assay.train(
            "dqn", BitFlip, her=her, env_steps=8000, num_envs=4, seed=1, lr=1e-3, gamma=0.95,
            batch_size=128, train_every=8, updates=2, learning_starts=500, tau=0.05,
            buffer_size=20_000, hidden=[128], eval_every=0, checkpoint_every=0,
        )  # fmt: skip
        result = run.evaluate(episodes=100)
        print(f"her={her}: {result.success_rate:.0%} of goals reached")

# Prints: (?s)her=future: (9\d|100)%.*her=None: [0-2]?\d% of
