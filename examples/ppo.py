"""PPO: train on CartPole, evaluate, and look at what was learned."""

import assay

if __name__ == "__main__":
    run = assay.train("ppo", "CartPole-v1", env_steps=50_000, seed=1)
    result = run.evaluate(episodes=20)
    print(f"mean return {result.mean:.0f} of 500 after 50,000 steps")

# Prints: mean return (500|4\d\d) of 500
