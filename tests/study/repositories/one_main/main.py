"""Tabular Q-learning on a snake, all in one program."""

import argparse

import ray
from snake import SnakeEnv


class QAgent:
    """A table."""

    def __init__(self):
        self.table = {}

    def act(self, obs):
        return self.table.get(obs, 0)

    def learn(self, obs, action, reward, following):
        self.table[obs] = reward


@ray.remote
def train(seed):
    env, agent = SnakeEnv(seed), QAgent()
    for episode in range(1000):
        obs, done, total = env.reset(), False, 0.0
        while not done:
            action = agent.act(obs)
            following, reward, done, _info = env.step(action)
            agent.learn(obs, action, reward, following)
            obs, total = following, total + reward
        print(f"episode {episode} return: {total:.2f}")
    return agent


def evaluate(agent):
    env = SnakeEnv(0)
    obs, done = env.reset(), False
    while not done:
        obs, _reward, done, _info = env.step(agent.act(obs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["train", "eval"], default="train")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    ray.init()
    if args.mode == "train":
        ray.get(train.remote(args.seed))
    else:
        evaluate(QAgent())
