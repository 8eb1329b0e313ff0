"""Rainbow on CartPole: it explores with noise in its own weights, and needs no epsilon."""

import numpy as np

import assay

if __name__ == "__main__":
    run = assay.train(
        "rainbow", "CartPole-v1", env_steps=8_000, eval_every=0, checkpoint_every=0, seed=1
    )
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about 22")
    policy = run.agent().algorithm
    obs = np.random.default_rng(0).uniform(-0.2, 0.2, (500, 4)).astype(np.float32)
    quiet = policy.act(obs, None, explore=False).action
    for draw in range(3):
        changed = np.mean(policy.act(obs, None, explore=True).action != quiet)
        print(f"draw {draw} of the noise changes {changed:.0%} of the actions")

# Prints: (?s)mean return [1-5]\d\d;.*draw 2 of the noise changes
