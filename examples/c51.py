"""C51 learns how likely each return is, not only the mean: here, the sums of two dice."""

import gymnasium as gym
import numpy as np
import torch

import assay


class Dice(gym.Env):
    """One decision: roll one die or two; the sum is the reward."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Offer the choice."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        """Roll."""
        total = self.np_random.integers(1, 7, size=1 + action).sum()
        return np.ones(1, np.float32), float(total), True, False, {}


if __name__ == "__main__":
    run = assay.train(
        "c51", Dice, env_steps=2_000, v_min=0, v_max=12, atoms=13, batch_size=256,
        lr="linear:1e-2:1e-4", epsilon=0.5, eval_every=0, checkpoint_every=0, seed=1,
    )  # fmt: skip
    with torch.no_grad():
        logits = run.agent().algorithm.q(torch.ones(1, 1))
    for total, mass in enumerate(logits[0, 1].softmax(0).tolist()):
        print(f"{total:2d} {mass:.3f} {'#' * round(100 * mass)}")
    print(f"mean return {run.evaluate(episodes=500).mean:.1f} of 7; one die gives 3.5")

# Prints: (?s) 0 0\.00.* 7 0\.1[4-9].*mean return [67]\.\d of 7
