"""Proximal policy optimisation in one file."""

import random
import time
from dataclasses import dataclass

import gymnasium as gym
import torch
import tyro
from torch import nn, optim
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    """All settings."""

    seed: int = 1
    """Of everything that is random."""
    env_id: str = "CartPole-v1"
    total_timesteps: int = 100_000
    learning_rate: float = 3e-4
    track: bool = False


class Agent(nn.Module):
    """Actor and critic."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Linear(observations, actions)
        self.critic = nn.Linear(observations, 1)


def main(args: Args) -> None:
    run = f"{args.env_id}-{args.seed}"
    if args.track:
        import wandb

        wandb.init(project="one-file", name=run, sync_tensorboard=True)
    writer = SummaryWriter(f"runs/{run}")
    writer.add_text("settings", str(args))
    random.seed(args.seed)
    envs = gym.make_vec(args.env_id, num_envs=4)
    agent = Agent(4, 2)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate)
    start = time.time()
    obs, _ = envs.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        logits = agent.actor(torch.as_tensor(obs))
        obs, _reward, _terminated, _truncated, infos = envs.step(logits.argmax(-1).numpy())
        if "episode" in infos:
            writer.add_scalar("charts/episodic_return", infos["episode"]["r"].mean(), step)
        value_loss = agent.critic(torch.as_tensor(obs)).pow(2).mean()
        optimizer.zero_grad()
        value_loss.backward()
        optimizer.step()
        writer.add_scalar("losses/value_loss", value_loss.item(), step)
        writer.add_scalar("charts/SPS", step / (time.time() - start), step)


if __name__ == "__main__":
    main(tyro.cli(Args))
