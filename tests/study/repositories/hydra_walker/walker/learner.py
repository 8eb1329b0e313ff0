"""The learner."""

import torch
import wandb

from walker.env import WalkerEnv


class Learner:
    """Soft actor-critic."""

    def __init__(self, cfg) -> None:
        self.env = WalkerEnv(cfg.task)
        self.actor = torch.nn.Linear(8, 2)
        wandb.init(config=dict(cfg))

    def run(self, steps: int) -> None:
        obs = self.env.reset()
        for step in range(steps):
            obs, _reward, done, info = self.env.step(self.actor(obs))
            loss = self.actor(obs).sum()
            loss.backward()
            metrics = {"train/actor_loss": loss.item(), "train/step": step}
            metrics["train/energy"] = info["energy"]
            if done:
                metrics["eval/return"] = info["return"]
            wandb.log(metrics, step=step)
            wandb.log({"global_step": step, "media/clip": wandb.Video("clip.mp4")})
