"""Random network distillation: find a reward that chance does not find.

The reward waits at the far end of a chain of 40 cells; a bait at its beginning pays 0.001 a step.
"""

import assay

SETTINGS = {"env_steps": 20_480, "eval_every": 0, "seed": 1}

if __name__ == "__main__":
    plain = assay.train("ppo", "assay/Chain-v0", rnd=0.0, **SETTINGS)
    print(f"plain PPO: mean return {plain.evaluate(episodes=10).mean:.2f}")
    curious = assay.train("ppo", "assay/Chain-v0", rnd=0.5, **SETTINGS)
    print(f"with novelty as a reward: {curious.evaluate(episodes=10).mean:.2f}, the far end")

# Prints: (?s)plain PPO: mean return 0\.\d\d.*with novelty as a reward: 1\.00
