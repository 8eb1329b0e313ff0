"""CrossQ on a pendulum: one update a step, and no target network anywhere."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "crossq", "Pendulum-v1", env_steps=1500, learning_starts=300, lr=2e-3, gamma=0.95,
        batch_size=64, hidden=[64, 64], critic_hidden=[128, 128], policy_delay=2, seed=1,
        eval_every=0, checkpoint_every=0, preset=False,
    )  # fmt: skip
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about -1200")
    # Where SAC saves target critics, the normalisation of the live ones does.
    networks = run.agent().algorithm.state()["weights"]
    print("networks:", ", ".join(sorted(networks)))

# Prints: mean return -[1-4]\d\d;.*\nnetworks: actor, critic, temperature\n
