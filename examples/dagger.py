"""DAgger: a network learns a controller by asking it about the states that it gets into."""

import assay


def controller(obs):
    """Push towards where the pole falls."""
    return int(obs[2] + obs[3] > 0)  # angle and angular velocity


if __name__ == "__main__":
    run = assay.train(
        "dagger", "CartPole-v1", expert=controller, env_steps=1_500, train_every=250, updates=250,
        num_envs=1, lr=3e-3, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    print(f"asked the expert {run.agent().clock.env_steps} times")
    print(f"mean return {run.evaluate(episodes=20).mean:.0f}; random actions give about 22")

# Prints: (?s)asked the expert 1500 times.*mean return [1-5]\d\d;
