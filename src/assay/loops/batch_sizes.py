"""What the settings of a run amount to: rollouts, updates, how often a step is learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.core.errors import ConfigError
from assay.loops.config import resolve


def batch_sizes(algorithm: str, env: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return how much a run collects and learns, by its settings alone; nothing is built.

    Raises:
        ConfigError: A setting is wrong, minibatches do not divide a rollout, or the algorithm does
            not collect steps.

    Example:
        >>> sizes = batch_sizes("ppo", "CartPole-v1", {"num_envs": 8, "horizon": 32})
        >>> sizes["rollout"], sizes["updates_per_rollout"]
        (256, 7)
    """
    config = resolve(algorithm, env, settings)
    run, hp = config.run.model_dump(), config.hyperparameters
    if "env_steps" not in run:
        raise ConfigError(
            f"{algorithm} is counted in updates and collects nothing.",
            "Choose one that steps an environment, such as ppo or sac.",
        )
    envs, steps = run["num_envs"], run["env_steps"]
    if "horizon" in hp and "minibatch_size" in hp:
        rollout, size = envs * hp["horizon"], hp["minibatch_size"]
        if rollout % size:
            raise ConfigError(
                f"minibatch_size={size} does not divide the rollout of {rollout} = "
                f"horizon {hp['horizon']} x num_envs {envs} transitions.",
                "Choose a minibatch_size that divides horizon x num_envs.",
            )
        updates = hp["epochs"] * (rollout // size)
        rollouts = -(-steps // rollout)
        return {
            "rollout": rollout,
            "rollouts": rollouts,
            "updates_per_rollout": updates,
            "updates": rollouts * updates,
            "uses_of_a_step": hp["epochs"],
        }
    if "batch_size" not in hp:
        rollout = envs * hp.get("horizon", 1)
        return {"rollout": rollout, "updates": -(-steps // rollout), "uses_of_a_step": 1}
    every, each = hp.get("train_every", 1), hp.get("updates", 1)
    updates = max(steps - hp.get("learning_starts", 0), 0) // every * each
    return {
        "batch": hp["batch_size"],
        "updates": updates,
        "uses_of_a_step": round(updates * hp["batch_size"] / steps, 2),
    }
