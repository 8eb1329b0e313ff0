"""Evaluate what was learned."""

import json

import gymnasium as gym
import numpy as np


def evaluate(weights, episodes: int = 20) -> list[float]:
    env = gym.make("CartPole-v1")
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(int(obs @ weights > 0))
            total, done = total + reward, terminated or truncated
        returns.append(total)
    return returns


def main() -> None:
    returns = evaluate(np.load("weights.npy"))
    results = {"mean_return": float(np.mean(returns)), "worst_return": min(returns)}
    with open("results.json", "w") as file:
        json.dump(results, file)
