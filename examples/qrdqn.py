"""QR-DQN learns the quantiles of a return: here, of a payment with an exponential tail."""

import gymnasium as gym
import numpy as np
import torch

import assay


class Payment(gym.Env):
    """One decision: a safe 0.5, or a draw from an exponential distribution with mean 1."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Offer the choice."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        """Pay out."""
        reward = self.np_random.exponential() if action else 0.5
        return np.ones(1, np.float32), reward, True, False, {}


if __name__ == "__main__":
    # With a small kappa the loss is that of true quantiles; a large one draws them together.
    run = assay.train(
        "qrdqn", Payment, env_steps=3_000, quantiles=5, kappa=0.05, batch_size=256, hidden=[32],
        lr="linear:1e-2:1e-4", epsilon=0.5, eval_every=0, checkpoint_every=0, seed=1,
    )  # fmt: skip
    with torch.no_grad():
        theta = run.agent().algorithm.q(torch.ones(1, 1))[0, 1]
    for level, found in zip((0.1, 0.3, 0.5, 0.7, 0.9), theta.tolist(), strict=True):
        print(f"level {level}: {found:.2f} (true {-np.log(1 - level):.2f})")

# Prints: level 0.1: 0\.[01]\d .*\n(?s:.*)level 0.5: 0\.[67]\d .*\n(?s:.*)level 0.9: 2\.[0-6]
