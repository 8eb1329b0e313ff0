"""GAIL: swing a pendulum up as ten episodes of a controller do, without seeing any reward."""

import gymnasium as gym
import numpy as np

import assay
from assay import data


def controller(obs):
    """Pump energy in while the pendulum hangs, and hold it where it stands."""
    cosine, sine, speed = obs
    if cosine > 0.9:
        torque = -10.0 * sine - 2.0 * speed
    else:
        energy = speed**2 / 6.0 + 5.0 * cosine  # 5 at rest on top
        torque = (2.0 if speed >= 0 else -2.0) * np.sign(5.0 - energy)
    return np.array([np.clip(torque, -2.0, 2.0)], np.float32)


def play(env, seed):
    """Return an episode of the controller."""
    obs, action, reward, truncated = [env.reset(seed=seed)[0]], [], [], [False]
    while not truncated[-1]:
        action.append(controller(obs[-1]))
        after, gain, _, cut, _ = env.step(action[-1])
        obs.append(after)
        reward.append(gain)
        truncated.append(cut)
    steps = len(action)
    columns = (obs, action, reward, np.zeros(steps, bool), truncated[1:])
    return data.Episode(*map(np.array, columns))


if __name__ == "__main__":
    env = gym.make("Pendulum-v1")
    shown = [play(env, seed) for seed in range(10)]
    expert = data.from_episodes(shown, env.observation_space, env.action_space)
    print(f"the expert's mean return is {data.summarise(expert).returns.mean():.0f}")

    run = assay.train(
        "gail", "Pendulum-v1", expert=expert, env_steps=8_192, seed=1, eval_every=0,
        checkpoint_every=0,
    )  # fmt: skip
    facts = run.directory.provenance["files"]["expert"]
    print(f"imitated {facts['episodes']} episodes of {facts['steps']} steps")
    reward = assay.learned_reward(run)
    upright, hanging = np.array([1.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0])
    print(f"learned reward: {reward(upright, [0.0]):.2f} upright, {reward(hanging, [0.0]):.2f} not")

# Prints: (?s)expert's mean return is -\d+.*imitated 10 episodes of 2000 steps.*learned reward
