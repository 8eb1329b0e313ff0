"""TD3+BC: a pendulum swung up, learned from a controller of which every other action is random."""

import gymnasium as gym
import numpy as np

import assay
from assay.data import Episode, from_episodes, save


def controller(obs, rng):
    """Pump energy while the pendulum hangs, hold it when it is up, and often do anything."""
    cos, sin, velocity = obs
    missing = 15 * (1 - cos) - velocity**2 / 2  # energy, compared with standing upright
    torque = -8 * sin - 2 * velocity if cos > 0.8 else 2 * np.sign(velocity * missing)
    return np.clip([rng.uniform(-2, 2) if rng.random() < 0.5 else torque], -2, 2)


def swing(env, rng, seed):
    """Return an episode of the controller."""
    seen, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], False
    while not over:
        actions.append(controller(seen[-1], rng).astype(np.float32))
        obs, reward, _, over, _ = env.step(actions[-1])
        seen.append(obs)
        rewards.append(reward)
    never, last = np.zeros(len(rewards), bool), np.zeros(len(rewards), bool)
    last[-1] = True  # cut by the time limit, not terminated
    return Episode(np.array(seen), np.array(actions), np.array(rewards), never, last)


if __name__ == "__main__":
    env, rng = gym.make("Pendulum-v1"), np.random.default_rng(0)
    episodes = [swing(env, rng, seed) for seed in range(50)]
    save(from_episodes(episodes, env.observation_space, env.action_space), "swings.npz")
    recorded = np.mean([episode.reward.sum() for episode in episodes])

    run = assay.train(
        "td3_bc", "Pendulum-v1", data="swings.npz", updates=3000, lr=2e-3, gamma=0.95, tau=0.02,
        hidden=[64, 64], batch_size=64, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    print(f"the controller's mean return is {recorded:.0f}")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

# Prints: (?s)mean return is -[4-6]\d\d.*mean return -[1-3]\d\d;
