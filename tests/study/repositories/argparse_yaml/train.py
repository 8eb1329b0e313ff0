"""Train an agent with the settings that are known to be good."""

import argparse

import yaml
from envs.reach import Reach
from stable_baselines3 import SAC
from stable_baselines3.common.monitor import Monitor


def settings(algo: str, env: str) -> dict:
    with open(f"hyperparams/{algo}.yml") as file:
        return yaml.safe_load(file)[env]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", default="sac")
    parser.add_argument("--env", default="Reach-v0")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    env = Monitor(Reach(), filename="logs/monitor.csv", info_keywords=("is_success",))
    model = SAC("MlpPolicy", env, seed=args.seed, tensorboard_log="logs/tb")
    model.learn(**settings(args.algo, args.env))
    model.save("logs/model")


if __name__ == "__main__":
    main()
