"""REINFORCE with a linear policy on CartPole-v1.

Every iteration plays one episode in each of 16 environments and takes one step of length `lr`
along the policy gradient. Training ends when its environment steps are used up.
"""

import argparse
import json
from pathlib import Path

import gymnasium
import numpy as np
from reward import reward

ENVS = 16
STEPS = 40_000  # in all environments together
MAX_STEPS = 500  # of an episode
POLICIES = 8  # written down on the way


def play(
    envs: gymnasium.vector.VectorEnv, weights: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Play one episode everywhere.

    Returns:
        Observations [T, E, 4], a - p(a=1) [T, E], rewards [T, E], and where it was not over [T, E].
    """
    observation, _ = envs.reset(seed=int(rng.integers(2**31)))
    alive = np.ones(ENVS, bool)
    steps = []
    for _ in range(MAX_STEPS):
        right = 1 / (1 + np.exp(-observation @ weights))
        action = (rng.random(ENVS) < right).astype(np.int64)
        after, _, terminated, truncated, _ = envs.step(action)
        earned = reward(observation, action, after) * alive
        steps.append((observation, action - right, earned, alive.copy()))
        alive &= ~(terminated | truncated)
        observation = after
        if not alive.any():
            break
    observations, errors, rewards, mask = (np.array(part) for part in zip(*steps, strict=True))
    return observations, errors, rewards, mask


def policy_gradient(
    observations: np.ndarray,
    errors: np.ndarray,
    rewards: np.ndarray,
    mask: np.ndarray,
    gamma: float,
) -> np.ndarray:
    """Return sum_t A_t grad log pi(a_t|x_t), where grad log pi(a|x) = (a - p) x."""
    returns, tail = np.zeros_like(rewards), np.zeros(ENVS)
    for t in range(len(rewards) - 1, -1, -1):
        tail = rewards[t] + gamma * tail
        returns[t] = tail
    advantages = (returns - returns[mask].mean()) / (returns[mask].std() + 1e-8) * mask
    return np.einsum("te,tei->i", advantages * errors, observations)


def main() -> None:
    """Train, and write down what was earned and learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=0.03, help="length of a gradient step")
    parser.add_argument("--gamma", type=float, default=0.99, help="discount")
    parser.add_argument(
        "--generator", default="PCG64", help="NumPy bit generator that draws actions and starts"
    )
    options = parser.parse_args()
    rng = np.random.Generator(getattr(np.random, options.generator)(options.seed))
    envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVS, vectorization_mode="vector_entry_point")
    weights = 0.1 * rng.standard_normal(4)
    steps = written = 0
    with (
        open(options.out / "curve.jsonl", "w") as curve,
        open(options.out / "policy.jsonl", "w") as policies,
    ):
        while steps < STEPS:
            observations, errors, rewards, mask = play(envs, weights, rng)
            gradient = policy_gradient(observations, errors, rewards, mask, options.gamma)
            weights = weights + options.lr * gradient / (np.linalg.norm(gradient) + 1e-12)
            steps += int(mask.sum())
            row = {"step": steps, "reward": float(rewards.sum(axis=0).mean())}
            curve.write(json.dumps(row) + "\n")
            if steps >= STEPS * (written + 1) / POLICIES:
                written += 1
                row = {"step": steps, "weights": weights.tolist()}
                policies.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
