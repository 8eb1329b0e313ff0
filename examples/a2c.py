"""A2C: one cheap update per short rollout."""

import assay

if __name__ == "__main__":
    settings = {"num_envs": 8, "horizon": 16, "lr": 2e-3, "optimizer": "adam", "seed": 1}
    run = assay.train("a2c", "CartPole-v1", env_steps=80_000, **settings)
    result = run.evaluate(episodes=20)
    print(f"mean return {result.mean:.0f} of 500 after one update per 128 steps")

# Prints: mean return (500|4\d\d|3\d\d|2\d\d) of 500
