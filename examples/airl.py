"""AIRL: find the reward behind episodes, and train another agent with it."""

import gymnasium as gym
import numpy as np

import assay
from assay import data


class Line(gym.Env):
    """Walk on a line for 20 steps; the middle is best. `wind` pushes to the right."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, wind=0.0):
        self.wind = wind

    def reset(self, *, seed=None, options=None):
        """Begin anywhere."""
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1.0, 1.0), 0
        return self._seen(), {}

    def step(self, action):
        """Go left, stay, or go right."""
        self.x = float(np.clip(self.x + 0.2 * (int(action) - 1) + self.wind, -1.0, 1.0))
        self.t += 1
        return self._seen(), -abs(self.x), False, self.t == 20, {}

    def _seen(self):
        return np.array([self.x], np.float32)


def expert(obs):
    """Walk to the middle."""
    return 1 if abs(obs[0]) < 0.1 else int(obs[0] < 0) * 2


def play(env, seed):
    """Return an episode of the expert."""
    obs, action, reward = [env.reset(seed=seed)[0]], [], []
    for _ in range(20):
        action.append(expert(obs[-1]))
        after, gain, *_ = env.step(action[-1])
        obs.append(after)
        reward.append(gain)
    last = np.arange(20) == 19
    return data.Episode(np.array(obs), np.array(action), np.array(reward), last & False, last)


if __name__ == "__main__":
    env = Line()
    shown = [play(env, seed) for seed in range(10)]
    small = {"num_envs": 8, "horizon": 32, "minibatch_size": 64, "hidden": (32,), "lr": 3e-3}
    small |= {"preset": False, "eval_every": 0, "checkpoint_every": 0, "seed": 1}
    run = assay.train(
        "airl", Line, expert=data.from_episodes(shown, env.observation_space, env.action_space),
        env_steps=12_000, disc_lr=3e-3, disc_hidden=(32,), gamma=0.9, **small,
    )  # fmt: skip
    reward = assay.learned_reward(run)
    print(f"reward in the middle {reward([0.0], 1):.1f}, at the ends {reward([1.0], 1):.1f}")

    again = assay.train(
        "ppo",
        lambda: reward.wrap(Line(wind=0.05)),
        env_steps=12_000,
        gamma=0.9,
        normalize_reward=True,
        **small,
    )
    found = assay.evaluate(again.agent().policy, lambda: Line(wind=0.05), episodes=20, seed=0)
    print(f"with the learned reward, in wind: mean return {found.mean:.1f}; standing still -12")

# Prints: (?s)reward in the middle .*in wind: mean return -[0-6]\.\d;
