"""DQN with some of its options on CartPole, and how well its values foresee what happens."""

import gymnasium as gym
import torch

import assay

if __name__ == "__main__":
    run = assay.train(
        "dqn", "CartPole-v1", env_steps=5_000, double=True, dueling=True,
        gamma=0.95, eval_every=0, checkpoint_every=0, seed=1,
    )  # fmt: skip
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about 22")
    agent = run.agent()
    obs, _ = gym.make("CartPole-v1").reset(seed=0)
    q = agent.algorithm.q(torch.as_tensor(obs)[None]).max().item()
    # 1 + 0.95 + 0.95^2 + ... = 20, for as long as the pole stands
    print(f"promised at the start: {q:.1f} of 20")

# Prints: mean return [1-5]\d\d;.*\npromised at the start: (1[4-9]|2[0-6])\.
