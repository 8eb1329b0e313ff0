"""Twin delayed DDPG on a pendulum, and what its critics say of the start of an episode."""

import numpy as np
import torch

import assay

if __name__ == "__main__":
    run = assay.train(
        "td3", "Pendulum-v1", env_steps=4000, learning_starts=500, lr=2e-3, gamma=0.9, tau=0.02,
        batch_size=64, hidden=[64, 64], exploration_noise=0.3, seed=1, eval_every=0,
        checkpoint_every=0,
    )  # fmt: skip
    td3 = run.agent().algorithm
    upright = np.array([[1.0, 0.0, 0.0]], np.float32)  # cos, sin, velocity
    action = td3.scale.to_unit(torch.from_numpy(td3.act(upright, None, explore=False).action))
    with torch.no_grad():
        first, second = td3.critic(torch.from_numpy(upright), action).flatten().tolist()
    print(f"upright, the twin critics expect {first:.1f} and {second:.1f}; targets use the smaller")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

# Prints: (?s)twin critics expect .*mean return -[1-4]\d\d;
