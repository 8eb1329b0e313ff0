"""Watch a trained agent."""

import argparse

from envs.reach import Reach
from stable_baselines3 import SAC

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", default="sac")
    parser.add_argument("--env", default="Reach-v0")
    parser.add_argument("--folder", default="logs")
    args = parser.parse_args()
    env = Reach()
    model = SAC.load(f"{args.folder}/model")
    obs, _ = env.reset()
    for _ in range(1000):
        action, _ = model.predict(obs)
        obs, reward, terminated, truncated, info = env.step(action)
