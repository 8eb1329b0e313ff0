"""Soft actor-critic on a pendulum: the temperature finds its own way down."""

import assay
from assay import events

TEMPERATURES = []


def watch(event):
    """Collect the entropy coefficient, which SAC adapts to hold its target entropy."""
    if isinstance(event, events.Logged) and "train/alpha" in event.metrics:
        TEMPERATURES.append(event.metrics["train/alpha"])


if __name__ == "__main__":
    run = assay.train(
        "sac", "Pendulum-v1", env_steps=2000, learning_starts=300, lr=2e-3, gamma=0.95, tau=0.02,
        batch_size=64, hidden=[64, 64], seed=1, eval_every=0, checkpoint_every=0,
        callbacks=[watch],
    )  # fmt: skip
    print(f"temperature: {TEMPERATURES[0]:.2f} at first, {TEMPERATURES[-1]:.2f} at the end")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")

# Prints: (?s)temperature: (0\.[5-9]|1).* 0\.[0-3]\d at the end.*mean return -[1-4]\d\d;
