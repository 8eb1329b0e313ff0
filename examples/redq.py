"""REDQ on a pendulum: four updates for every environment step, so that few steps suffice."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "redq", "Pendulum-v1", env_steps=1000, learning_starts=300, updates=4, lr=2e-3, gamma=0.95,
        tau=0.02, batch_size=64, hidden=[64, 64], n_critics=5, seed=1, eval_every=0,
        checkpoint_every=0, preset=False,
    )  # fmt: skip
    mean = run.evaluate(episodes=20).mean
    print(f"mean return {mean:.0f} after 1000 steps; random actions give about -1200")
    _, spread = run.metrics()["train/q_spread"]
    print(f"the critics disagree by {spread[-1]:.2f} on average")

# Prints: mean return -[1-4]\d\d after 1000 steps;.*\nthe critics disagree by \d
