"""Remember a cue over ten blank steps: recurrent PPO does, feed-forward PPO can only guess."""

import assay

TASK = "assay/Recall-v0"  # four cues, so a guess is right once in four times
ROLLOUT = {"num_envs": 32, "horizon": 48, "minibatch_size": 384, "lr": 3e-3, "entropy_coef": 0.01}

if __name__ == "__main__":
    # `chunk` is how far gradients run back: an episode of 12 steps fits in twice.
    with_memory = assay.train(
        "recurrent_ppo", TASK, env_steps=30_000, memory="lstm", chunk=24, **ROLLOUT
    )
    without = assay.train("ppo", TASK, env_steps=30_000, **ROLLOUT)
    remembers = with_memory.evaluate(episodes=100).mean
    guesses = without.evaluate(episodes=100).mean
    print(f"right answers with memory {remembers:.0%}, without {guesses:.0%}")

    # What it carries from step to step is explicit: an array per environment and layer.
    carry = with_memory.agent().algorithm.initial_carry(1)
    print({name: array.shape for name, array in carry.items()})

# Prints: right answers with memory (9\d|100)%, without [1-4]?\d%
