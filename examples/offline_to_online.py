"""Offline to online: learn from what a short run of SAC tried, then go on with the environment."""

import assay

if __name__ == "__main__":
    teacher = assay.train(
        "sac", "Pendulum-v1", env_steps=1500, learning_starts=300, lr=2e-3, gamma=0.95, tau=0.02,
        hidden=[64, 64], batch_size=64, seed=1, eval_every=0, checkpoint_every=0,
    )  # fmt: skip
    assay.record(teacher, "tries.npz", quality="replay")

    run = assay.train(
        "rebrac", "Pendulum-v1", data="tries.npz", updates=1000, env_steps=2000, lr=2e-3,
        gamma=0.95, tau=0.02, hidden=[64, 64], batch_size=64, actor_beta="linear:0.05:0", seed=1,
        eval_every=1000, checkpoint_every=0,
    )  # fmt: skip
    updates, returns = run.metrics()["eval/return_mean"]
    for count, mean in zip(updates, returns, strict=True):
        steps = max(0, count - 1000)
        print(f"{count} updates, {steps} steps of the environment: mean return {mean:.0f}")

# Prints: (?s)1000 updates, 0 steps.*3000 updates, 2000 steps.*: mean return -[12]\d\d\n
