"""ReBRAC: a pendulum swung up, learned from all that a short run of SAC tried."""

import numpy as np

import assay
from assay.data import load, summarise

if __name__ == "__main__":
    teacher = assay.train(
        "sac", "Pendulum-v1", env_steps=2500, learning_starts=300, lr=2e-3, gamma=0.95, tau=0.02,
        hidden=[64, 64], batch_size=64, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    assay.record(teacher, "tries.npz", quality="replay")
    tries = summarise(load("tries.npz")).returns

    run = assay.train(
        "rebrac", "Pendulum-v1", data="tries.npz", updates=3000, gamma=0.95, tau=0.02,
        hidden=[64, 64], batch_size=64, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    print(f"the tries have a mean return of {np.mean(tries):.0f}")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

# Prints: (?s)mean return of -\d{3,4}\n.*mean return -[1-3]\d\d;
