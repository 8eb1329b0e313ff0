"""Learn options in four rooms, move the goal, and see what they do."""

import assay
from assay.envs.make import make_vector
from assay.envs.parameters import set_parameters
from assay.evaluation.evaluate import evaluate

if __name__ == "__main__":
    # A choice costs a little, so that options last for several steps.
    run = assay.train(
        "option_critic", "assay/FourRooms-v0", env_steps=60_000, deliberation_cost=0.01
    )
    result = run.evaluate(episodes=50)
    print(
        f"reached the goal in {result.mean:.0%} of episodes, in {result.lengths.mean():.0f} steps"
    )
    print({name: round(value, 2) for name, value in result.figures.items()})

    # The goal is a parameter: elsewhere, the same agent looks in the wrong place.
    with make_vector("assay/FourRooms-v0", 10, max_episode_steps=50, training=False) as rooms:
        set_parameters(rooms, {"goal": 0})
        moved = evaluate(run.agent().policy, rooms, episodes=50, seed=0)
    print(f"and a goal in the far corner in {moved.mean:.0%}")

# Prints: reached the goal in (9\d|100)% of episodes, in [1-4]\d steps
