"""DreamerV3 sees a falling ball as pixels, and learns a model of it to practise in.

This is a small budget, in which the model begins to see the ball. The preset of assay/Catch-v0 has
the steps that it takes to catch it.
"""

import assay

if __name__ == "__main__":
    run = assay.train(
        "dreamerv3", "assay/Catch-v0", env_steps=300, learning_starts=200, train_ratio=64,
        batch_size=8, seed=1, log_every=25, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    for name in ("reconstruction_loss", "reward_loss", "continue_loss"):
        _, values = run.metrics()[f"train/{name}"]
        print(f"{name}: {values[0]:.2f} at first, {values[-1]:.2f} at last")
    _, seen = run.metrics()["train/reconstruction_loss"]
    print("the model sees better" if seen[-1] < seen[0] / 2 else "the model has learned little")
    print(f"{run.evaluate(episodes=20).mean:.0%} of the balls are caught")

# Prints: (?s)reward_loss: .*the model sees better\n\d+% of the balls
