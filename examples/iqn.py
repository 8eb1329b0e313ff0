"""Learn a return's whole distribution, and choose by its mean or by its worst quarter."""

import gymnasium as gym
import numpy as np

import assay


class Lottery(gym.Env):
    """One decision: a safe 1, or a ticket that pays 4 or -1 with equal chances."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Offer the choice."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        """Pay out."""
        ticket = 4.0 if self.np_random.random() < 0.5 else -1.0
        return np.ones(1, np.float32), ticket if action else 1.0, True, False, {}


if __name__ == "__main__":
    for cvar in (1.0, 0.25):
        run = assay.train(
            "iqn", Lottery, env_steps=1_500, learning_starts=200, lr="linear:5e-3:5e-4",
            quantiles=8, target_quantiles=8, acting_quantiles=8, hidden=[32], cvar=cvar,
            eval_every=0, checkpoint_every=0, seed=1,
        )  # fmt: skip
        returns = run.evaluate(episodes=200).returns
        print(f"cvar={cvar}: mean return {returns.mean():.2f}, worst {returns.min():.0f}")

# Prints: (?s)cvar=1.0: mean return 1\.[2-9]\d, worst -1.*cvar=0.25: mean return 1\.00, worst 1
