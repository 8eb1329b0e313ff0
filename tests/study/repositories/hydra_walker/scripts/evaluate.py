"""Evaluate a checkpoint over a hundred episodes."""

import hydra
import torch
from omegaconf import DictConfig
from walker.env import WalkerEnv


@hydra.main(config_path="../conf", config_name="config", version_base=None)
def main(cfg: DictConfig) -> None:
    policy = torch.load(cfg.checkpoint)
    env = WalkerEnv(cfg.task)
    obs, done = env.reset(), False
    while not done:
        obs, _reward, done, _info = env.step(policy(obs))


if __name__ == "__main__":
    main()
