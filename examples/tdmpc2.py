"""TD-MPC2 on a pendulum: it learns a small model, and plans every action in it."""

import assay

if __name__ == "__main__":
    # Far too short to swing up: the preset of Pendulum-v1 takes 10,000 steps.
    run = assay.train(
        "tdmpc2", "Pendulum-v1", env_steps=300, learning_starts=200, batch_size=32, latent=32,
        width=32, encoder_width=32, samples=32, policy_samples=4, elites=8, iterations=2,
        gamma=0.975, seed=1, eval_every=0, checkpoint_every=0, preset=False,
    )  # fmt: skip
    print(f"mean return {run.evaluate(episodes=2).mean:.0f}; random actions give about -1200")
    # How much it searches is decided when it acts: after training, too.
    agent = assay.load(run.path, settings={"samples": 128, "elites": 16, "iterations": 6})
    print("torque when it hangs:", agent.act([-1.0, 0.0, 0.0]))

# Prints: mean return -\d+;.*\ntorque when it hangs: \[ ?-?[0-2]\.\d*\]\n
