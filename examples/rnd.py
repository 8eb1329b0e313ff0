"""Random network distillation: find a reward that chance does not find.

The reward waits at the far end of a chain of 24 cells, each with a way on of its own; a bait at
its beginning pays 0.001 a step.
"""

import gymnasium as gym

import assay

SETTINGS = {
    "env_steps": 25_600, "num_envs": 16, "horizon": 64, "minibatch_size": 256, "epochs": 4,
    "lr": "linear:2e-3:0", "entropy_coef": 0.01, "normalize_obs": False, "normalize_reward": False,
    "eval_every": 0, "seed": 1,
}  # fmt: skip


def chain():
    """Make the task; `assay/Chain-v0` itself has 40 cells."""
    return gym.make("assay/Chain-v0", length=24)


if __name__ == "__main__":
    plain = assay.train("ppo", chain, rnd=0.0, **SETTINGS)
    print(f"plain PPO: mean return {plain.evaluate(episodes=10).mean:.2f}")
    curious = assay.train("ppo", chain, rnd=1.0, **SETTINGS)
    print(f"with novelty as a reward: {curious.evaluate(episodes=10).mean:.2f}, the far end")

# Prints: (?s)plain PPO: mean return 0\.\d\d.*with novelty as a reward: 1\.00
