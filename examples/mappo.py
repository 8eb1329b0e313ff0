"""MAPPO with a speaker and a listener, which have a network each."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "mappo", "simple_speaker_listener_v4", env_steps=20_000, num_envs=16, horizon=25,
        minibatch_size=200, epochs=10, lr=2e-3, eval_every=0, checkpoint_every=0, seed=1,
    )  # fmt: skip
    print(f"networks: {list(run.agent().policy.policies)}")
    print(f"mean return {run.evaluate(episodes=50).mean:.0f}; random actions give about -50")

# Prints: networks: \['speaker', 'listener'\]\nmean return -[12]?\d;
