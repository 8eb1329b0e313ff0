"""Measure policies by the task itself: how many steps the pole stands."""

import argparse
import json
from pathlib import Path

import gymnasium
import numpy as np

MAX_STEPS = 500


def episode_lengths(policies: np.ndarray, episodes: int, seed: int) -> np.ndarray:
    """Return how long every episode of every policy lasts, all of them played at once."""
    weights = np.repeat(policies, episodes, axis=0)
    count = len(weights)
    envs = gymnasium.make_vec(
        "CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point"
    )
    rng = np.random.default_rng(seed)
    observation, _ = envs.reset(seed=seed)
    alive, lengths = np.ones(count, bool), np.zeros(count)
    for _ in range(MAX_STEPS):
        right = 1 / (1 + np.exp(-(observation * weights).sum(axis=1)))
        action = (rng.random(count) < right).astype(np.int64)
        observation, _, terminated, truncated, _ = envs.step(action)
        lengths += alive
        alive &= ~(terminated | truncated)
        if not alive.any():
            break
    return lengths.reshape(len(policies), episodes)


def main() -> None:
    """Evaluate the policies that a training left, the last of them included."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, required=True)
    options = parser.parse_args()
    rows = [json.loads(line) for line in (options.out / "policy.jsonl").read_text().splitlines()]
    policies = np.array([row["weights"] for row in rows])
    # Far from the seeds that training counts up from.
    lengths = episode_lengths(policies, options.episodes, seed=1_000_000 + options.seed)
    with open(options.out / "evaluation.jsonl", "w") as file:
        for row, played in zip(rows, lengths, strict=True):
            result = {
                "step": row["step"],
                "return": float(played.mean()),
                "worst": float(played.min()),
            }
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
