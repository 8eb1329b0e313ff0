"""MBPO: a pendulum swung up after a thousand real steps, learned in a model of it."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "mbpo", "Pendulum-v1", env_steps=1000, learning_starts=250, updates=4, lr=2e-3, gamma=0.95,
        tau=0.02, batch_size=64, hidden=[64, 64], members=4, elites=3, model_hidden=[64, 64],
        model_epochs=40, rollouts=2000, seed=1, eval_every=0, checkpoint_every=0, preset=False,
    )  # fmt: skip
    mean = run.evaluate(episodes=20).mean
    print(f"mean return {mean:.0f} after 1000 steps; random actions give about -1200")
    _, error = run.metrics()["train/model_error"]
    print(f"the model leaves {100 * error[-1]:.1f} % of the variance unexplained")

# Prints: mean return -[1-5]\d\d after 1000 steps;.*\nthe model leaves \d
