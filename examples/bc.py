"""Behaviour cloning: a hand-written controller balances a pole, and a network learns to copy it."""

import gymnasium as gym
import numpy as np

import assay
from assay.data import from_transitions, save


def controller(obs):
    """Push towards where the pole falls."""
    return int(obs[2] + obs[3] > 0)  # angle and angular velocity


if __name__ == "__main__":
    env = gym.make("CartPole-v1")
    rows = {
        "obs": [],
        "action": [],
        "reward": [],
        "next_obs": [],
        "terminated": [],
        "truncated": [],
    }
    obs, _ = env.reset(seed=0)
    for _ in range(2000):
        action = controller(obs)
        after, reward, terminated, truncated, _ = env.step(action)
        step = (obs, action, reward, after, terminated, truncated)
        for column, value in zip(rows.values(), step, strict=True):
            column.append(value)
        obs = env.reset()[0] if terminated or truncated else after
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    columns = {name: np.array(values) for name, values in rows.items()}
    save(from_transitions(**columns, **spaces), "controller.npz")

    run = assay.train(
        "bc", "CartPole-v1", data="controller.npz", updates=1500, lr=3e-3, batch_size=64, seed=1,
        eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    print(f"learned from {run.directory.provenance['files']['data']['steps']} recorded steps")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about 22")

# Prints: (?s)learned from 2000 recorded steps.*mean return [1-5]\d\d;
