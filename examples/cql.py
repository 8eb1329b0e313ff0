"""CQL: a pole balanced, learned from a controller of which every other action is random."""

import gymnasium as gym
import numpy as np

import assay
from assay.data import Episode, from_episodes, save


def balance(env, rng, seed):
    """Return an episode of somebody who pushes towards where the pole falls, half of the time."""
    seen, actions, over = [env.reset(seed=seed)[0]], [], (False, False)
    while not any(over):
        angle, speed = seen[-1][2:]
        right = angle + speed > 0 if rng.random() < 0.5 else rng.random() < 0.5
        actions.append(int(right))
        obs, _, *over, _ = env.step(actions[-1])
        seen.append(obs)
    ends = np.zeros((2, len(actions)), bool)
    ends[:, -1] = over
    return Episode(np.array(seen), np.array(actions), np.ones(len(actions)), *ends)


if __name__ == "__main__":
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)
    episodes = [balance(env, rng, seed) for seed in range(100)]
    save(from_episodes(episodes, env.observation_space, env.action_space), "poles.npz")
    recorded = np.mean([episode.steps for episode in episodes])

    run = assay.train(
        "cql", "CartPole-v1", data="poles.npz", updates=4000, lr=1e-3, cql_alpha=0.5, tau=0.01,
        hidden=[64, 64], batch_size=128, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    print(f"{len(episodes)} recorded episodes with a mean return of {recorded:.0f}")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}, without another step")

# Prints: (?s)a mean return of 1\d\d\n.*mean return [2-5]\d\d,
