"""IPPO in the prisoner's dilemma: each learns what pays for itself, and both lose by it."""

import assay

if __name__ == "__main__":
    run = assay.train(
        "ippo", "assay/PrisonersDilemma-v0", env_steps=6400, num_envs=16, horizon=10,
        minibatch_size=80, lr=3e-3, gamma=0.5, eval_every=0, checkpoint_every=0, seed=1,
    )  # fmt: skip
    result = run.evaluate(episodes=10)
    # Ten rounds: -10 each if both stay silent, -20 if both betray.
    print(f"years in prison: {result.agent_means}")

# Prints: .*'agent_0': -20.*'agent_1': -20
