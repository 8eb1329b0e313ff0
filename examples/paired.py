"""PAIRED: train in mazes that a generator draws, and play one that nobody drew for it."""

import assay

if __name__ == "__main__":
    maze = {"size": 7, "trail": True, "max_walls": 20}
    settings = {"num_envs": 16, "horizon": 64, "minibatch_size": 256, "size": 7, "blocks": 10}
    run = assay.train(
        "paired", "assay/Maze-v0", env_steps=80_000, env_kwargs=maze, max_episode_steps=50,
        lr=1e-3, entropy_coef=0.01, preset=False, seed=1, **settings,
    )  # fmt: skip
    solvable = run.metrics()["train/solvable"][1]
    result = run.evaluate(episodes=50)
    print(f"{100 * solvable[-1]:.0f} % of the last mazes can be solved")
    print(f"mean return {result.mean:.2f} in mazes of its evaluation")

# Prints: mean return 0\.[2-9]\d in mazes of its evaluation
