"""Record data from a run, look at it, check it, and write it in another format."""

import numpy as np

import assay
from assay import data

if __name__ == "__main__":
    run = assay.train("ppo", "CartPole-v1", env_steps=16_384, num_envs=16, horizon=64, seed=1)
    for quality in ("random", "expert"):
        recorded = assay.record(run, f"{quality}.npz", episodes=20, quality=quality)
        print(recorded, "return", data.summarise(recorded).returns.mean())

    # One set of both, with a tenth held out; nothing is wrong with either part.
    both = data.merge(["random.npz", "expert.npz"])
    train, test = data.split(both, 0.9, seed=0)
    data.save(train, "train.npz")
    assert not [one for one in data.validate("train.npz", "CartPole-v1") if one.level == "error"]

    # What a learner draws: transitions, or the steps that lead up to one.
    rows = test.transitions(np.arange(3))
    print(rows["obs"].shape, rows["next_obs"].shape, rows["reward"])
    print(test.sequences(np.array([5]), length=4)["timestep"])
    same = data.load("train.npz").content_hash == train.content_hash
    print("the same content" if same else "another content")

# Prints: the same content
