"""Decision Transformer: ask one policy for three returns, after controllers of every quality."""

import gymnasium as gym
import numpy as np

import assay
from assay.data import Episode, from_episodes, save


def controller(obs, rng, chance):
    """Pump energy while the pendulum hangs, hold it when it is up, and at times do anything."""
    cos, sin, velocity = obs
    missing = 15 * (1 - cos) - velocity**2 / 2  # energy, compared with standing upright
    torque = -8 * sin - 2 * velocity if cos > 0.8 else 2 * np.sign(velocity * missing)
    return np.clip([rng.uniform(-2, 2) if rng.random() < chance else torque], -2, 2)


def swing(env, rng, seed):
    """Return an episode of a controller that is random at some share of the steps."""
    chance = rng.random()
    seen, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], False
    while not over:
        actions.append(controller(seen[-1], rng, chance).astype(np.float32))
        obs, reward, _, over, _ = env.step(actions[-1])
        seen.append(obs)
        rewards.append(reward)
    never, last = np.zeros(len(rewards), bool), np.zeros(len(rewards), bool)
    last[-1] = True  # cut by the time limit, not terminated
    return Episode(np.array(seen), np.array(actions), np.array(rewards), never, last)


if __name__ == "__main__":
    env, rng = gym.make("Pendulum-v1"), np.random.default_rng(0)
    episodes = [swing(env, rng, seed) for seed in range(100)]
    save(from_episodes(episodes, env.observation_space, env.action_space), "swings.npz")

    run = assay.train(
        "dt", "Pendulum-v1", data="swings.npz", updates=1500, lr=3e-3, warmup=100, width=32,
        layers=2, context=10, batch_size=32, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    targets = (-1200, -600, -150)
    means = [run.evaluate(episodes=10, settings={"target_return": t}).mean for t in targets]
    for target, mean in zip(targets, means, strict=True):
        print(f"asked for {target}: mean return {mean:.0f}")
    print("higher targets give more" if means == sorted(means) else "the order is not kept")

# Prints: (?s)asked for -1200.*asked for -150: mean return -[1-5]\d\d\nhigher targets give more
