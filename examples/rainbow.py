"""Rainbow on CartPole: it explores with noise in its own weights, and learns how much of it."""

import numpy as np

import assay

if __name__ == "__main__":
    run = assay.train(
        "rainbow", "CartPole-v1", env_steps=4_000, eval_every=0, checkpoint_every=0, seed=1
    )
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about 22")
    weights = run.agent().algorithm.state()["weights"]["q"]
    sigma = np.mean([np.abs(w).mean() for name, w in weights.items() if "weight_sigma" in name])
    # Each sigma starts at 0.5 / sqrt(128 inputs).
    print(f"noise {0.5 / 128**0.5:.3f} at the start, {sigma:.3f} now")

# Prints: mean return [1-5]\d\d;.*\nnoise 0.044 at the start, 0.0[23]\d now
