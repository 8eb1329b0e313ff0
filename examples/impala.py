"""IMPALA: learn from actors whose policy is eight updates old."""

import assay

if __name__ == "__main__":
    run = assay.train("impala", "CartPole-v1", env_steps=100_000, actor_lag=8, seed=4)
    result = run.evaluate(episodes=20)
    print(f"mean return {result.mean:.0f} of 500, learned from a policy eight updates behind")

# Prints: mean return (500|4\d\d|3\d\d) of 500
