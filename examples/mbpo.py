"""MBPO: a pendulum swung up after a few thousand real steps, learned in a model of it."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "mbpo", "Pendulum-v1", env_steps=3000, updates=6, seed=1, eval_every=0, checkpoint_every=0
    )
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

# Prints: mean return -[1-6]\d\d;
