"""QMIX in the two-step game, and what it thinks of the second game."""

import numpy as np

import assay

if __name__ == "__main__":
    run = assay.train("qmix", "assay/TwoStep-v0", eval_every=0, checkpoint_every=0, seed=1)
    print(f"return {run.evaluate(episodes=4).mean:.0f}")
    state = np.array([[0, 0, 1]], np.float32)  # the game with the 8
    seen = {"obs": np.repeat(state[:, None], 2, 1), "alive": np.ones((1, 2)), "state": state}
    print(f"actions: {run.agent().policy.act(seen).action[0].tolist()}")

# Prints: return 8\nactions: \[1, 1\]
