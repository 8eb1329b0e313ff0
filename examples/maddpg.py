"""MADDPG in the two-step game: each agent has a critic that sees what both do."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "maddpg", "assay/TwoStep-v0", env_steps=2000, num_envs=8, batch_size=64, lr=3e-3, tau=0.05,
        learning_starts=64, train_every=4, buffer_size=2000, eval_every=0, checkpoint_every=0,
        seed=1,
    )  # fmt: skip
    print(f"return {run.evaluate(episodes=4).mean:.0f}")

# Prints: return [78]
