"""Learn to balance by hill climbing."""

import argparse
import csv

import gymnasium as gym
import numpy as np

from .settings import TrainConfig


def train() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = TrainConfig()
    learn(config, args.seed)


def learn(config: TrainConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    env = gym.make(config.env)
    weights, best = np.zeros(4), 0.0
    with open("progress.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["episode", "episode_return", "best_return"])
        for episode in range(100):
            trial = weights + config.learning_rate * rng.normal(size=4)
            total, done = 0.0, False
            obs, _ = env.reset(seed=seed + episode)
            while not done:
                obs, reward, terminated, truncated, _ = env.step(int(obs @ trial > 0))
                total, done = total + reward, terminated or truncated
            if total > best:
                weights, best = trial, total
            writer.writerow([episode, total, best])
    np.save("weights.npy", weights)
