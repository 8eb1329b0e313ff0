"""Learn where to cut a return's distribution, and see the cuts move to where it is steep."""

import gymnasium as gym
import numpy as np
import torch

import assay


class Jackpot(gym.Env):
    """One decision: a safe 1, or a ticket that pays 10 in one of five cases and else nothing."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Offer the choice."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        """Pay out."""
        ticket = 10.0 if self.np_random.random() < 0.2 else 0.0
        return np.ones(1, np.float32), ticket if action else 1.0, True, False, {}


if __name__ == "__main__":
    run = assay.train(
        "fqf", Jackpot, env_steps=1_500, learning_starts=200, lr="linear:5e-3:5e-4", fractions=8,
        fraction_lr="linear:1e-2:0", epsilon=0.5, hidden=[32], eval_every=0,
        checkpoint_every=0, seed=1,
    )  # fmt: skip
    learned = run.agent().algorithm
    features = learned.q.encoder(torch.ones(1, 1))
    fractions = learned.proposal(features)
    values = learned.q.quantiles(features, fractions.midpoints)[0, 1]
    print("cuts of [0, 1]:", *(f"{tau:.2f}" for tau in fractions.tau[0].tolist()))
    print("ticket pays:   ", *(f"{value:.1f}" for value in values.tolist()))
    print(f"ticket's worth: {(fractions.mass[0] * values).sum():.1f}, safe: 1.0")
    print("takes the", "ticket" if learned.act(np.ones((1, 1)), None, False).action[0] else "1")

# Prints: (?s)ticket's worth: (1\.[3-9]|2\.\d).*takes the ticket
