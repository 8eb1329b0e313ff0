"""All settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainConfig:
    env: str = "CartPole-v1"
    steps: int = 10_000
    learning_rate: float = 0.1
