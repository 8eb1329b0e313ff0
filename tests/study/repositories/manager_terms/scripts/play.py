"""Play a checkpoint."""

import argparse

import gymnasium as gym
from rsl_rl.runners import OnPolicyRunner

parser = argparse.ArgumentParser()
parser.add_argument("--task")
parser.add_argument("--num_envs", type=int)


def main():
    args = parser.parse_args()
    env = gym.make(args.task)
    runner = OnPolicyRunner(env, {}, log_dir=None)
    runner.load("model.pt")
    policy = runner.get_inference_policy()
    obs = env.get_observations()
    while True:
        obs, _, _, _ = env.step(policy(obs))


if __name__ == "__main__":
    main()
