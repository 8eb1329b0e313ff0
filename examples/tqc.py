"""TQC on a pendulum: critics that predict a distribution of returns, and trust its lower part."""

import gymnasium as gym
import torch

import assay

if __name__ == "__main__":
    run = assay.train(
        "tqc", "Pendulum-v1", env_steps=1600, learning_starts=300, lr=2e-3, gamma=0.95, tau=0.02,
        batch_size=64, hidden=[64, 64], n_critics=3, n_quantiles=15,
        top_quantiles_to_drop_per_net=1, seed=1, eval_every=0, checkpoint_every=0, preset=False,
    )  # fmt: skip
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

    # What the critics think of doing nothing at the start of an episode, as quantiles.
    algorithm = run.agent().algorithm
    obs, _ = gym.make("Pendulum-v1").reset(seed=1)
    with torch.no_grad():
        quantiles = algorithm.critic(torch.tensor(obs)[None], torch.zeros(1, 1))
    low, high = quantiles.flatten().quantile(torch.tensor([0.1, 0.9])).tolist()
    print(f"discounted return: 80 % between {low:.0f} and {high:.0f}")

# Prints: mean return -[1-4]\d\d;.*\n.*80 % between -\d+ and -?\d+
