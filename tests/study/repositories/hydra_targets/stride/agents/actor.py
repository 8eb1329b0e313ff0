"""One agent, made from the settings by its name."""

import gymnasium as gym
import torch


class Actor:
    def __init__(self, lr):
        self.lr = lr

    def update(self, batch):
        loss = (self.net(batch) ** 2).mean()
        (loss + self.penalty).backward()
        return {"policy_loss": loss.item(), "grad_norm": self.norm()}

    def begin(self, env_cfg, logger):
        env = gym.make(env_cfg.id)
        obs, _ = env.reset()
        total = 0.0
        for _ in range(1000):
            obs, reward, terminated, truncated, info = env.step(self.act(obs))
            total += reward
            losses = self.update(torch.as_tensor(obs))
            for name, value in losses.items():
                logger.log_metric(f"train/{name}", value)
            if terminated or truncated:
                logger.log_metrics({"eval/episode_return": total, "eval/falls": info["falls"]})
                total = 0.0
