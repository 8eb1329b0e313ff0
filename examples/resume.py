"""Interrupt a run and resume it: it ends exactly like one that was never stopped."""

import numpy as np

import assay
from assay import events

SETTINGS = {"env_steps": 16_384, "num_envs": 16, "horizon": 64, "minibatch_size": 256, "seed": 3}


def stop_halfway(event):
    """Ask for a stop at the second checkpoint."""
    if isinstance(event, events.CheckpointSaved) and event.clock.env_steps >= 8_192:
        return assay.STOP
    return None


if __name__ == "__main__":
    whole = assay.train("ppo", "CartPole-v1", **SETTINGS)
    halved = assay.train("ppo", "CartPole-v1", callbacks=[stop_halfway], **SETTINGS)
    print(halved)
    resumed = assay.resume(halved.path)
    print(resumed)
    one, other = (run.agent().algorithm.state()["weights"]["net"] for run in (whole, resumed))
    same = all(np.array_equal(one[name], other[name]) for name in one)
    print("bit for bit the same weights" if same else "the weights differ")

# Prints: bit for bit the same weights
