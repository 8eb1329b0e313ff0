"""DDPG on a pendulum, exploring with noise that fades while it learns."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "ddpg", "Pendulum-v1", env_steps=2500, learning_starts=300, lr=2e-3, gamma=0.95, tau=0.02,
        batch_size=64, hidden=[64, 64], exploration_noise="linear:0.3:0.05", seed=1, eval_every=0,
        checkpoint_every=0,
    )  # fmt: skip
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

# Prints: mean return -[1-4]\d\d;
